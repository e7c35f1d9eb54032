"""`lifted bench`: the race against back-propagation, its rates, and its page again."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated

import typer

from lifted_bregman.cli import _console
from lifted_bregman.cli._errors import ExitCode
from lifted_bregman.errors import SettingError
from lifted_bregman.experiments import race
from lifted_bregman.experiments.environment import load_average
from lifted_bregman.experiments.race.analysis import targets_of
from lifted_bregman.experiments.race.competitors import QUICK
from lifted_bregman.experiments.race.running import IDLE, Watch
from lifted_bregman.reports import race_tables
from lifted_bregman.reports.race_page import race_page
from lifted_bregman.reports.report import PAGE, require_drawing

app = typer.Typer(name="bench", help="Benchmarks: the race, its rates, its page.", no_args_is_help=True)

_STORED = "race.json"
_QUICK_REPETITIONS = 3
Problems = Annotated[str, typer.Option(help="Names of problems, with commas. [default: all]")]
Competitors = Annotated[str, typer.Option(help="Names of competitors, with commas. [default: all]")]
Epochs = Annotated[int | None, typer.Option(help="Epochs of every problem. [default: the problem's own]")]
Threads = Annotated[int | None, typer.Option(help="Threads of torch. [default: as many as torch takes]")]
Folder = Annotated[Path | None, typer.Option("--data-dir", help="A folder that holds data sets. [default: the cache]")]
Out = Annotated[Path | None, typer.Option(help="A folder for the page, and the rows it is made of.")]


@app.command("race")
def run(
    problems: Problems = "",
    competitors: Competitors = "",
    repetitions: Annotated[int | None, typer.Option(help="Repetitions, each with its own seed. [default: 5]")] = None,
    epochs: Epochs = None,
    threads: Threads = None,
    json: Annotated[Path | None, typer.Option(help="A file for everything that was measured.")] = None,
    out: Out = None,
    data_dir: Folder = None,
    rates: Annotated[Path | None, typer.Option(help="A file of rates. [default: the library's own]")] = None,
    quick: Annotated[bool, typer.Option("--quick", help="2 problems, 4 competitors, 3 repetitions; minutes.")] = False,
) -> int:
    """Lifted training against SGD, Adam and others: same weights, same batches, in turns, only steps timed.

    \b
    lifted bench race --quick
    lifted bench race --problems fashion-10k --competitors lifted,adam --out out/race
    """
    chosen = race.choose_competitors(_names(competitors) or (QUICK if quick else ()))
    named = _names(problems)
    raced = race.choose_problems(named, epochs)
    if quick and not named:
        raced = race.quick_problems(data_dir)
        raced = raced if epochs is None else tuple(problem.with_epochs(epochs) for problem in raced)
    count = repetitions if repetitions is not None else _QUICK_REPETITIONS if quick else race.RaceSettings.repetitions
    settings = race.RaceSettings(count, threads=threads, data_dir=data_dir)
    found = race.read_rates(rates)
    if out is not None:
        require_drawing()
    _require_writable(json, None if out is None else out / _STORED)
    load = load_average()
    if load > IDLE:
        sentence = f"the machine is not idle (load {load:.2f}): times will be longer, and ratios less sure."
        _console.say("warning", sentence, "bold yellow")
    with _console.downloads() as progress:
        race.fetch_missing(raced, data_dir, progress)
    with _bar() as watch:
        result = race.run_race(raced, chosen, found, settings, watch)
    if json is not None:
        race.write_race(json, result)
    if out is not None:
        race.write_race(out / _STORED, result)
    _show(result, out)
    return ExitCode.INTERRUPTED if result.interrupted else ExitCode.OK


@app.command()
def show(
    stored: Annotated[Path, typer.Argument(metavar="FILE", help="What 'lifted bench race' wrote, or its --out.")],
    out: Out = None,
) -> None:
    """The tables of a race again, and with --out its page, from stored rows.

    \b
    lifted bench show race.json --out out/race
    """
    if out is not None:
        require_drawing()
    _show(race.read_race(stored / _STORED if stored.is_dir() else stored), out)


@app.command()
def tune(
    out: Annotated[Path, typer.Option(help="The file of rates; its runs are kept beside it.")] = Path("rates.json"),
    problems: Problems = "",
    competitors: Competitors = "",
    epochs: Epochs = None,
    seed: Annotated[int, typer.Option(help="Of samples, weights and order; not one of the race's.")] = 1000,
    threads: Threads = None,
    data_dir: Folder = None,
) -> int:
    """Walks over the grids of rates and batch sizes, and writes what is best; goes on where it was ended.

    \b
    lifted bench tune --out rates.json
    """
    chosen, raced = race.choose_competitors(_names(competitors)), race.choose_problems(_names(problems), epochs)
    settings = race.TuneSettings(seed, threads, data_dir=data_dir)
    log = out.with_suffix(".jsonl")
    _require_writable(out)
    with _console.downloads() as progress:
        race.fetch_missing(raced, data_dir, progress)
    with _bar() as watch:
        rates = race.tune(raced, chosen, settings, log, watch)
    if rates is None:
        _console.say("lifted", f"stopped; the same command goes on, for {log} keeps what is done.", "bold yellow")
        return ExitCode.INTERRUPTED
    rates.write(out)
    _console.output().print(f"rates: {out}")
    return ExitCode.OK


def _show(result: race.Race, out: Path | None) -> None:
    console = _console.output()
    for problem in result.problems:
        console.print(f"{problem.name}: {problem.title}")
        for target in targets_of(problem):
            console.print(f"\ntime to the {target} of {problem.reference}")
            _print(race_tables.arrival_rows(result, problem, target))
        console.print("\nreached at all")
        _print(race_tables.best_rows(result, problem))
        console.print(f"\nreached by fractions of the time of {problem.reference}")
        _print(race_tables.frontier_rows(result, problem))
        console.print("")
    if result.interrupted:
        _console.say("lifted", "the race was ended early; what was done by then is kept.", "bold yellow")
    if out is not None:
        console.print(f"page: {race_page(result).write(out / PAGE)}")


def _print(table: race_tables.Rows) -> None:
    for line in race_tables.plain_table(*table):
        _console.output().print(line)


def _names(text: str) -> tuple[str, ...]:
    return tuple(name.strip() for name in text.split(",") if name.strip())


def _require_writable(*paths: Path | None) -> None:
    """Makes the folders of files that will be written, so that nobody finds out after the race."""
    for path in paths:
        if path is None:
            continue
        if path.is_dir():
            raise SettingError(f"{path} is a folder: name a file in it.")
        path.parent.mkdir(parents=True, exist_ok=True)


@contextmanager
def _bar() -> Iterator[Watch]:
    """A bar on a terminal; elsewhere a line whenever something new begins."""
    from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeRemainingColumn

    console = _console.messages()
    columns = (TextColumn("{task.description}"), BarColumn(), TaskProgressColumn(), TimeRemainingColumn())
    with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as bar:
        task, said = bar.add_task("", total=1.0), ""

        def watch(what: str, part: float) -> None:
            nonlocal said
            bar.update(task, description=what, completed=part)
            if not console.is_terminal and what != said:
                said = what
                console.print(f"{what} ({part:.0%})")

        yield watch
