"""`lifted bench optimiser-or-architecture`: the error on new samples at equal training loss."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from lifted_bregman._arguments import whole
from lifted_bregman.cli import terminal
from lifted_bregman.cli.exit_codes import ExitCode
from lifted_bregman.cli.parameters import Parameter, Whole
from lifted_bregman.errors import CheckpointError
from lifted_bregman.experiments.environment import threads
from lifted_bregman_lab import study
from lifted_bregman_lab.commands._bar import bar, report_interrupt
from lifted_bregman_lab.datasets import fetch_missing
from lifted_bregman_lab.study import chart, summary
from lifted_bregman_lab.study.running import SEEDS
from lifted_bregman_lab.text import plain_table

STEM = "optimiser_or_architecture"
"""The name of the files: rows as .json, tables as .inc, the chart as .svg."""


def run(
    *,
    out: Annotated[Path | None, Parameter(help="A folder for the rows, their tables and the chart.")] = None,
    seeds: Annotated[Whole, Parameter(help="Number of seeds, at least 2.")] = SEEDS,
    data_dir: Annotated[Path | None, Parameter(help="A folder that holds data sets.")] = None,
    fresh: Annotated[bool, Parameter(help="Measure everything again, and replace the stored rows.")] = False,
) -> int:
    """Eight optimisers on three networks: the error on new samples at equal training loss.

    lifted bench optimiser-or-architecture --out docs/figures

    It takes about a quarter of an hour.  After Ctrl-C the same command runs what is missing, if --out is given.
    """
    whole(seeds, "seeds", least=2)
    stored = None
    if out is not None:
        out.mkdir(parents=True, exist_ok=True)
        if (out / f"{STEM}.json").exists() and not fresh:
            stored = study.read_study(out / f"{STEM}.json")
            _require_same(stored, out / f"{STEM}.json")
    with terminal.downloads() as progress:
        fetch_missing(study.SETS, data_dir, progress)

    def keep(found: study.Study) -> None:
        if out is not None:
            study.write_study(out / f"{STEM}.json", found)

    try:
        with threads(1), bar() as watch:
            found = study.run_study(tuple(study.SETS), seeds, watch, data_dir=data_dir, stored=stored, keep=keep)
    except KeyboardInterrupt:
        return report_interrupt(out)
    console = terminal.output()
    for line in plain_table(*summary.share_rows(found)):
        console.print(line)
    if out is not None:
        chart.write_charts(found, out, STEM)
        (out / f"{STEM}.inc").write_text(summary.page(found, f"{out.name}/{STEM}"), encoding="utf-8")
        console.print(f"tables and chart: {out / STEM}.inc, {out / STEM}.svg")
    return ExitCode.OK


def _require_same(stored: study.Study, path: Path) -> None:
    """Raise an error if a stored run is of an optimiser whose settings have changed since."""
    for name, optimiser in study.OPTIMISERS.items():
        if stored.optimisers.get(name) != optimiser.described:
            raise CheckpointError(
                f"{path} holds runs of {name} with {stored.optimisers.get(name)}, but its settings are "
                f"{optimiser.described} now: replace them with --fresh."
            )
