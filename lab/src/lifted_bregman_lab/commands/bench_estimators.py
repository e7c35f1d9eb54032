"""`lifted bench estimators`: the estimators' defaults against those of other networks."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from lifted_bregman._arguments import whole
from lifted_bregman.cli import terminal
from lifted_bregman.cli.exit_codes import ExitCode
from lifted_bregman.cli.parameters import Parameter, Whole
from lifted_bregman.errors import CheckpointError
from lifted_bregman.experiments.environment import threads
from lifted_bregman.training.fit import default_solver
from lifted_bregman_lab import estimators
from lifted_bregman_lab.commands._bar import bar, report_interrupt
from lifted_bregman_lab.estimators import summary
from lifted_bregman_lab.text import plain_table

STORED, INCLUDED = "estimators.json", "estimators.inc"


def run(
    *,
    out: Annotated[Path | None, Parameter(help="A folder for the scores of all folds, and their table.")] = None,
    repetitions: Annotated[Whole, Parameter(help="Of the 5-fold cross-validation, each with other folds.")] = 1,
    fresh: Annotated[bool, Parameter(help="Measure everything again, and replace the stored rows.")] = False,
) -> int:
    """LiftedClassifier and LiftedRegressor against scikit-learn's networks and Adam: twelve tables, all with defaults.

    lifted bench estimators --out docs/figures

    It takes some minutes.  After Ctrl-C the same command runs what is missing, if --out is given.
    """
    whole(repetitions, "repetitions")
    stored = None
    if out is not None:
        out.mkdir(parents=True, exist_ok=True)
        if (out / STORED).exists() and not fresh:
            stored = estimators.read_comparison(out / STORED)
            if stored.solver != repr(default_solver()):
                raise CheckpointError(
                    f"{out / STORED} holds folds of the default solver {stored.solver}, but the default is "
                    f"{default_solver()!r} now: replace them with --fresh."
                )
    for table in estimators.TABLES:
        table.load()  # raises an error for a missing table before anything is fitted

    def keep(found: estimators.Comparison) -> None:
        if out is not None:
            estimators.write_comparison(out / STORED, found)

    try:
        with threads(1), bar() as watch:
            found = estimators.compare(estimators.TABLES, repetitions, watch, stored=stored, keep=keep)
    except KeyboardInterrupt:
        return report_interrupt(out)
    console = terminal.output()
    for line in plain_table(*summary.score_rows(found)):
        console.print(line)
    console.print(f"\n{summary.describe_ranks(found)}")
    if out is not None:
        (out / INCLUDED).write_text(summary.page(found), encoding="utf-8")
        console.print(f"table: {out / INCLUDED}")
    return ExitCode.OK
