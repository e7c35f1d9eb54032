"""Fill the marked blocks of the README, draw its picture and write the table of networks, from stored rows.

    python -m lifted_bregman_lab.front README.md docs

A block stands between the lines `<!-- NAME: begin -->` and `<!-- NAME: end -->`.
"""

from __future__ import annotations

import argparse
import re
from collections.abc import Sequence
from pathlib import Path

from lifted_bregman.errors import SettingError
from lifted_bregman.experiments.files import write_whole
from lifted_bregman_lab.front.networks import network_rows
from lifted_bregman_lab.front.picture import write_picture
from lifted_bregman_lab.front.tables import FrontEvidence, blocks
from lifted_bregman_lab.text import markdown


def filled(text: str, name: str, block: str) -> str:
    """The text with one block replaced; SettingError if it has no such block, or several."""
    begin, end = (f"<!-- {name}: {place} -->" for place in ("begin", "end"))
    pattern = re.compile(f"{re.escape(begin)}.*?{re.escape(end)}", re.S)
    if len(pattern.findall(text)) != 1:
        raise SettingError(f"the text needs one place for '{name}': the lines '{begin}' and '{end}'.")
    return pattern.sub(lambda found: f"{begin}\n{block}\n{end}", text)


def with_blocks(text: str, evidence: FrontEvidence) -> str:
    """The text of a README with every block made anew."""
    for name, block in blocks(evidence).items():
        text = filled(text, name, block)
    return text


def main(arguments: Sequence[str] | None = None) -> None:
    """Write all three."""
    parser = argparse.ArgumentParser(
        description="From stored rows: the README's blocks, its picture, the table of networks."
    )
    parser.add_argument("readme", type=Path)
    parser.add_argument("docs", type=Path, help="the folder with races/rows.jsonl and figures/")
    chosen = parser.parse_args(arguments)
    evidence = FrontEvidence.read(chosen.docs)
    write_whole(chosen.readme, with_blocks(chosen.readme.read_text(encoding="utf-8"), evidence).encode())
    table = f"{markdown(network_rows(evidence))}\n"
    write_whole(chosen.docs / "figures" / "networks.inc", table.encode())
    write_picture(evidence, chosen.docs / "figures")


if __name__ == "__main__":
    main()
