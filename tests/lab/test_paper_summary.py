"""The Markdown of a reproduction: the same numbers as the page, in tables that the documentation can be built from."""

from __future__ import annotations

import re
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from lifted_bregman.errors import SettingError
from lifted_bregman_lab.paper.paper import paper
from lifted_bregman_lab.reproduction.report import results as paper_results
from lifted_bregman_lab.reproduction.report.claims import command_of_all
from lifted_bregman_lab.reproduction.report.summary import (
    BEGIN,
    END,
    between_marks,
    headline,
    markdown_table,
    require_place,
    summary,
    write_headline,
    write_summary,
)
from tests.cli.program import PATIENCE, call
from tests.lab import paper_stores as stores
from tests.lab.paper_stores import PAPER, TABLE, codes_run, digits_run, every_run, spoil_hash, write_store

Capture = pytest.CaptureFixture[str]
FULL = stores.results(*every_run())
COUNTED = "6 claims: 2 reproduced, 1 not reproduced, 1 undecided, 1 not applicable, 1 not run yet."


def tables(text: str) -> list[list[list[str]]]:
    """The cells of every table, without the line of dashes, with what was escaped as it was."""
    found: list[list[list[str]]] = [[]]
    for line in text.splitlines():
        if line.startswith("|"):
            cells = re.split(r"(?<!\\)\|", line)[1:-1]
            found[-1].append([re.sub(r"\\(.)", r"\1", cell.strip()) for cell in cells])
        elif found[-1]:
            found.append([])
    return [[table[0], *table[2:]] for table in found if table]


def section(text: str, title: str) -> str:
    return text.split(f"## {title}\n")[1].split("\n## ")[0]


def test_tables_stand_beside_the_papers() -> None:
    (first, claims) = tables(section(summary(FULL), "Table 1: digits"))
    assert first == [
        ["", "", "train", "test"],
        ["digits", "paper", "92.5", "80.0"],
        ["", "here, 3 seeds", "93.00 ± 3.61", "70.00 ± 1.00"],
        ["other | rate", "paper", "", ""],
        ["", "here, 0 seeds", "", "not run"],
    ]
    assert claims[0] == ["claim", "the paper says", "required", "found", "verdict"]
    assert claims[1] == ["train-number", "It learns 92.5 %.", "92.5 ± 1", "93 ± 3.6; 3 seeds", "≈ undecided"]
    assert claims[2] == ["test-number", "It gets 80 % of new ones.", "80 ± 2", "70 ± 1; 3 seeds", "✗ not reproduced"]
    assert claims[3][3:] == ["there is no finished run of tiny-other", "○ not run yet"]


def test_every_claim_has_its_row_reason_and_command() -> None:
    text = summary(FULL)
    rows = {row[0]: row for table in tables(text) for row in table}
    for claim in PAPER.claims:
        assert rows[claim.name][1] == claim.statement
        assert f"- {claim.why} ({claim.name}" in text and f"`{command_of_all(claim.figure)}`" in text
    assert rows["sparse"][3] == "holds: 0.75; published 0.75, allowed ±0.01; 1 seed"
    assert rows["all"] == ["all", "2", "1", "1", "0", "1", "1", "6"]


def test_what_was_tried_what_is_missing_and_what_was_ignored() -> None:
    text = summary(replace(FULL, ignored={"tiny-digits/9.jsonl": "it is * bad | wrong"}))
    failed = section(text, "What was not reproduced")
    assert (
        "of new ones. 70 ± 1; published 80, allowed ±2; 3 seeds.\n  - What was tried: Two other rates, which came"
        in failed
    )
    assert "What was tried: Three other codes." in text
    assert "4 of 9 runs are stored; the other 5" in section(text, "Runs")
    assert tables(section(text, "Files that were ignored"))[0][1] == ["tiny-digits/9.jsonl", "it is * bad | wrong"]
    assert "None." in section(summary(FULL), "Files that were ignored")
    assert ["processor", "an abacus <of beads>"] in tables(section(text, "Machine"))[0]


def test_words_mean_themselves() -> None:
    assert markdown_table(("a",), [("x | *y* `z` <b> $1$ [l](u) \\",)]).splitlines()[2] == (
        r"| x \| \*y\* \`z\` \<b\> \$1\$ \[l\](u) \\ |"
    )


def test_sphinx_builds_the_summary_without_a_warning(tmp_path: Path) -> None:
    pytest.importorskip("myst_parser")
    source, out = tmp_path / "docs", tmp_path / "html"
    write_summary(stores.whole_world(paper()), source / "world.md")
    write_summary(FULL, source / "tiny.md")
    (source / "reproduce.md").write_text("# How\n\n```{toctree}\ntiny\nworld\n```\n")
    extensions = "extensions = ['myst_parser']\nmyst_enable_extensions = ['dollarmath', 'deflist']\n"
    (source / "conf.py").write_text(f"{extensions}root_doc = 'reproduce'\n")
    command = [sys.executable, "-m", "sphinx", "-W", "--keep-going", "-n", "-q", source, out]
    done = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE)
    assert (done.returncode, done.stderr) == (0, "")
    built = re.sub(r"<[^>]*>", "", (out / "tiny.html").read_text())
    assert "Codes get 75 % zeros, in | every | way." in built and "an abacus &lt;of beads&gt;" in built
    assert "Another rate is worse &lt;b&gt;by far&lt;/b&gt;." in built


def test_the_headline_is_the_marked_tables_and_the_count() -> None:
    text = headline(FULL)
    assert tables(text) == [tables(section(summary(FULL), "Table 1: digits"))[0]]
    assert text.startswith("Accuracy in per cent. Means over seeds") and "1 undecided.\n\n|" in text
    assert text.endswith(f"\n\n{COUNTED}")
    later = headline(stores.results(*every_run(), paper=replace(PAPER, decided_later=("The pixels.",))))
    assert later == f"{text} Some choices were made after results had been seen; the results name them."
    assert TABLE.headline and TABLE.recipes == ("tiny-digits", "tiny-other")


def test_the_headline_goes_between_the_marks_and_nowhere_else(tmp_path: Path) -> None:
    readme = tmp_path / "README.md"
    readme.write_text(f"# Mine\n\n{BEGIN}\nold\n{END}\n\nrest\n")
    write_headline(FULL, readme)
    first = readme.read_text()
    assert first == f"# Mine\n\n{BEGIN}\n{headline(FULL)}\n{END}\n\nrest\n"
    assert between_marks(first) == headline(FULL)
    write_headline(stores.results(digits_run(0)), readme)
    assert between_marks(readme.read_text()) == headline(stores.results(digits_run(0))) != headline(FULL)


@pytest.mark.parametrize("text", [None, "# Mine\n", f"{END}\n{BEGIN}\n"])
def test_a_file_without_a_place_for_the_headline_is_left_alone(text: str | None, tmp_path: Path) -> None:
    readme = tmp_path / "README.md"
    if text is not None:
        readme.write_text(text)
    with pytest.raises(SettingError, match="has no place for the headline: add the two lines"):
        require_place(readme)
    assert (readme.read_text() if readme.exists() else None) == text


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder to work in with stored rows, and the tiny paper as the only one."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(paper_results, "find_papers", lambda: {PAPER.name: PAPER})
    write_store(tmp_path / "results", *every_run())
    return tmp_path


def test_the_command_writes_page_and_summary(here: Path, capsys: Capture) -> None:
    called = call(capsys, "report", "results", "--summary", "docs/summary.md")
    assert called.code == 0 and called.err == ""
    assert called.out.splitlines() == [
        COUNTED,
        "page: out/reproduction/index.html",
        "summary: docs/summary.md",
    ]
    assert (here / "docs" / "summary.md").read_text() == summary(FULL)
    assert "93.00 ± 3.61" in (here / "out" / "reproduction" / "index.html").read_text()
    assert sorted(path.name for path in here.iterdir()) == ["docs", "out", "results"]
    assert not list((here / "results").glob("*.html"))
    again = call(capsys, "report", "results/", "--out", "pages", "--paper", "tiny")
    assert again.code == 0 and again.out.endswith("page: pages/index.html\n")


def test_the_command_fills_in_a_readme(here: Path, capsys: Capture) -> None:
    (here / "README.md").write_text(f"{BEGIN}\n{END}\n")
    called = call(capsys, "report", "results", "--headline", "README.md")
    assert called.code == 0 and called.out.endswith("headline: README.md\n")
    assert between_marks((here / "README.md").read_text()) == headline(FULL)
    (here / "other.md").write_text("nothing")
    refused = call(capsys, "report", "results", "--out", "unmade", "--headline", "other.md")
    assert refused.code == 2 and "has no place for the headline" in refused.err and refused.out == ""
    assert not (here / "unmade").exists() and (here / "other.md").read_text() == "nothing"


def test_the_command_names_a_file_with_a_wrong_hash(here: Path, capsys: Capture) -> None:
    spoil_hash(here / "results" / "tiny-codes" / "0.jsonl")
    called = call(capsys, "report", "results")
    assert called.code == 0 and called.err.startswith("warning: results/tiny-codes/0.jsonl: ")
    assert "its hash is not that of its settings" in called.err and called.err.count("\n") == 1
    assert "0.75" not in (here / "out" / "reproduction" / "index.html").read_text().split("fig-codes")[0]


@pytest.mark.parametrize("options", [(), ("--summary", "docs/summary.md")])
@pytest.mark.parametrize("folder", ["nowhere", "empty"])
def test_without_rows_the_command_says_what_makes_them(
    folder: str, options: tuple[str, ...], here: Path, capsys: Capture
) -> None:
    (here / "empty").mkdir()
    called = call(capsys, "report", folder, *options)
    assert called.code == 4 and folder in called.err and "lifted reproduce" in called.err.replace("\n", " ")
    assert called.err.count("\n") == 1 and not (here / "docs").exists() and not (here / "out").exists()


@pytest.mark.parametrize("option", ["--summary", "--headline", "--paper"])
def test_what_means_something_for_reproductions_only_is_refused_elsewhere(
    option: str, here: Path, capsys: Capture
) -> None:
    run = here / "runs" / "a"
    run.mkdir(parents=True)
    (run / "history.jsonl").write_text('{"epoch": 1, "step": 3, "seconds": 0.5, "objective": 2.0}\n')
    refused = call(capsys, "report", run, option, "x.md")
    assert refused.code == 4 and f"which {option} is for" in refused.err and not (here / "x.md").exists()
    assert sorted(path.name for path in run.iterdir()) == ["history.jsonl"]
    assert call(capsys, "report", run, "--out", "pages").out == "page: pages/index.html\n"
    assert "<h1>Run a</h1>" in (here / "pages" / "index.html").read_text()


def test_an_unknown_paper_is_refused(here: Path, capsys: Capture) -> None:
    called = call(capsys, "report", "results", "--paper", "tny")
    assert called.code == 2 and "did you mean 'tiny'?" in called.err


def test_one_seed_more_changes_the_summary() -> None:
    assert "1 seed" in summary(stores.results(digits_run(0), codes_run()))
    assert summary(stores.results(digits_run(0))) != summary(stores.results(digits_run(0), digits_run(1)))
