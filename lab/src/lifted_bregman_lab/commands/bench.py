"""`lifted bench`: the race against other optimisers, and the tables of a stored race."""

from __future__ import annotations

import signal
from pathlib import Path
from tempfile import TemporaryFile
from typing import Annotated

from cyclopts import App

from lifted_bregman.cli import terminal
from lifted_bregman.cli.exit_codes import ExitCode
from lifted_bregman.cli.parameters import Parameter, Whole, argument
from lifted_bregman.errors import SettingError
from lifted_bregman.experiments.files import write_whole
from lifted_bregman.training.signals import Signals
from lifted_bregman_lab.commands import (
    bench_denoising,
    bench_detection,
    bench_estimators,
    bench_nudges,
    bench_scale,
    bench_study,
)
from lifted_bregman_lab.commands._bar import bar
from lifted_bregman_lab.datasets import fetch_missing
from lifted_bregman_lab.race import opponents as rivals
from lifted_bregman_lab.race import problems as tasks
from lifted_bregman_lab.race.archive import tables
from lifted_bregman_lab.race.archive.analysis import TARGETS, reference_entry, targets_of
from lifted_bregman_lab.race.archive.results import Race, read_race
from lifted_bregman_lab.race.running import RaceSettings, left_out, run_race
from lifted_bregman_lab.race.store import Store
from lifted_bregman_lab.race.summary import race_markdown, race_tables
from lifted_bregman_lab.text import Rows, plain_table

app = App(
    name="bench",
    help="Benchmarks: race, nudges, processes, estimators, detection, denoising, a study.\n\nlifted bench race --quick",
)
app.command(bench_scale.run, name="scale")
app.command(bench_estimators.run, name="estimators")
app.command(bench_detection.run, name="detection")
app.command(bench_denoising.run, name="denoising")
app.command(bench_nudges.run, name="nudges")
app.command(bench_study.run, name="optimiser-or-architecture")

_QUICK_SEEDS = 3


@app.command(name="race")
def run(
    *,
    problems: Annotated[str, Parameter(help="Names of problems, with commas. [default: all]")] = "",
    opponents: Annotated[str, Parameter(help="Names of opponents, with commas. [default: all]")] = "",
    budget: Annotated[str, Parameter(help="short, long or both.")] = "short",
    seeds: Annotated[Whole | None, Parameter(help="Number of seeds. [default: 5]")] = None,
    rows: Annotated[Path, Parameter(help="The file of rows, a line for each run.")] = Path("race.jsonl"),
    again: Annotated[str, Parameter(help="Opponents to run again although they are stored, with commas.")] = "",
    tune_on: Annotated[str, Parameter(help="The budget whose runs choose the rates. [default: each its own]")] = "",
    tune_only: Annotated[bool, Parameter(help="Find the rates, and stop.")] = False,
    quick: Annotated[bool, Parameter(help="4 tables, 4 opponents, 3 seeds; minutes.")] = False,
    threads: Annotated[Whole, Parameter(help="Threads of torch.")] = 1,
    data_dir: Annotated[Path | None, Parameter(help="A folder that holds data sets. [default: the cache]")] = None,
) -> int:
    """Lifted training against AdamW, Muon and others: same weights, same batches, in turns, only steps timed.

    lifted bench race --quick
    lifted bench race --problems wine,mnist-1d --opponents lifted,adamw,muon --rows race.jsonl

    Rates are tuned first, with another seed. Ctrl-C stops after the present turn. The same command then makes
    the runs that are missing in the file of rows.
    """
    raced = tasks.choose(_names(problems) or (tasks.QUICK if quick else ()), tasks.PROBLEMS, "problem of the race")
    chosen = rivals.choose_opponents(_names(opponents) or (rivals.QUICK if quick else ()))
    repeated = tuple(one.name for one in rivals.choose_opponents(_names(again))) if again else ()
    known: dict[str, tasks.Budget] = {name: name for name in tasks.BUDGETS}
    budgets = tasks.choose(() if budget == "both" else (budget,), known, "budget")
    count = seeds if seeds is not None else _QUICK_SEEDS if quick else RaceSettings.seeds
    (chooser,) = tasks.choose((tune_on,), known, "budget") if tune_on else (None,)
    plans = [RaceSettings(name, count, threads, data_dir, repeated, chooser) for name in budgets]
    _require_writable(rows)
    store = Store.open(rows)
    missing = left_out(raced, (*chosen, rivals.OPPONENTS[rivals.REFERENCE]))
    for name, packages in missing.items():
        sentence = f"'{name}' is left out: it needs {packages}, which the lab's extra 'race' installs."
        terminal.say("warning", sentence, "bold yellow")
    raced = tuple(problem for problem in raced if problem.name not in missing)
    chosen = tuple(opponent for opponent in chosen if opponent.name not in missing)
    with terminal.downloads() as progress:
        fetch_missing((name for problem in raced for name in problem.sets), data_dir, progress)
    whole = True
    with Signals(terminate=True) as signals:
        for plan in plans:
            with bar() as watch:
                whole = whole and run_race(raced, chosen, plan, store, watch, signals, tune_only)
    _show_rows(store)
    if whole:
        return ExitCode.OK
    terminal.say("lifted", f"ended early; {rows} keeps what is done, and the same command continues.", "bold yellow")
    return ExitCode.TERMINATED if signals.received == signal.SIGTERM else ExitCode.INTERRUPTED


@app.command
def show(
    stored: Annotated[Path, argument("Rows of 'lifted bench race', or a race of the first format.", "FILE")],
    /,
    *,
    markdown: Annotated[Path | None, Parameter(help="A file for the tables of rows in Markdown.")] = None,
) -> None:
    """Show the tables of a stored race.

    lifted bench show race.jsonl --markdown race.md
    """
    if stored.suffix == ".jsonl":
        if not stored.exists():
            raise SettingError(f"there is no file {stored}: name what `lifted bench race --rows FILE` wrote.")
        store = Store.open(stored)
        _show_rows(store)
        if markdown is not None:
            write_whole(markdown, race_markdown(store.rows.values()).encode())
        return
    if markdown is not None:
        raise SettingError(f"--markdown is for rows, and {stored} does not end in .jsonl: leave it out.")
    _show_race(read_race(stored))


def _show_rows(store: Store) -> None:
    for caption, table in race_tables(store.rows.values()):
        terminal.output().print(caption)
        _print(table)
        terminal.output().print("")


def _show_race(result: Race) -> None:
    console = terminal.output()
    for problem in result.problems:
        console.print(f"{problem.name}: {problem.title}")
        for target in targets_of(problem):
            console.print(f"\ntime to {TARGETS[target].format(reference_entry(problem, target))}")
            _print(tables.target_rows(result, problem, target))
        console.print("\nreached at all")
        by_objective, by_error = tables.halves(tables.best_rows(result, problem))
        _print(by_objective)
        console.print("")
        _print(by_error)
        console.print(f"\nreached by fractions of the time of {problem.reference}")
        _print(tables.frontier_rows(result, problem))
        console.print("")


def _print(table: Rows) -> None:
    for line in plain_table(*table):
        terminal.output().print(line)


def _names(text: str) -> tuple[str, ...]:
    return tuple(name.strip() for name in text.split(",") if name.strip())


def _require_writable(path: Path) -> None:
    """Create the folder of a file that will be written and try to write there, before the race starts."""
    if path.is_dir():
        raise SettingError(f"{path} is a folder: name a file in it.")
    path.parent.mkdir(parents=True, exist_ok=True)
    with TemporaryFile(dir=path.parent):
        pass
