"""`lifted bench`: the race against back-propagation, its rates, and its page again."""

from __future__ import annotations

import signal
from collections.abc import Callable, Sequence
from pathlib import Path
from tempfile import TemporaryFile
from typing import Annotated

import typer

from lifted_bregman.cli import _console
from lifted_bregman.cli._errors import ExitCode
from lifted_bregman.errors import CheckpointError, SettingError
from lifted_bregman.experiments.environment import load_average
from lifted_bregman.reports.report import PAGE, require_drawing
from lifted_bregman.training.signals import Signals
from lifted_bregman_lab import race
from lifted_bregman_lab.commands import bench_scale
from lifted_bregman_lab.commands._bar import bar
from lifted_bregman_lab.datasets import fetch_missing
from lifted_bregman_lab.race import tables
from lifted_bregman_lab.race.analysis import TARGETS, reference_entry, targets_of
from lifted_bregman_lab.race.competitors import QUICK
from lifted_bregman_lab.race.entries import plan_race, require_part
from lifted_bregman_lab.race.page import race_page
from lifted_bregman_lab.race.running import IDLE
from lifted_bregman_lab.reports import RACE
from lifted_bregman_lab.text import Rows, plain_table

app = typer.Typer(
    name="bench", help="Benchmarks: the race, its rates, its page; several processes.", no_args_is_help=True
)
app.command("scale")(bench_scale.run)

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
    json: Annotated[
        Path | None, typer.Option(help="A file for everything that is measured, written after every repetition.")
    ] = None,
    out: Out = None,
    data_dir: Folder = None,
    rates: Annotated[Path | None, typer.Option(help="A file of rates. [default: the library's own]")] = None,
    quick: Annotated[bool, typer.Option("--quick", help="2 problems, 4 competitors, 3 repetitions; minutes.")] = False,
    fresh: Annotated[bool, typer.Option("--fresh", help="Begin anew, and replace what the files hold.")] = False,
) -> int:
    """Lifted training against SGD, Adam and others: same weights, same batches, in turns, only steps timed.

    \b
    lifted bench race --quick
    lifted bench race --problems fashion-10k --competitors lifted,adam --out out/race

    Ctrl-C stops after the present step. The same command, with the same --json or --out, then goes on with the
    repetitions that are missing. It may ask for more problems and repetitions; files of another race are refused.
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
    files = [path for path in (json, None if out is None else out / RACE) if path is not None]
    _require_writable(*files)
    planned = plan_race(raced, chosen, found, settings)
    stored = None if fresh else _stored(files, lambda held: require_part(held, planned, settings.seeds))
    wanted = len(raced) * count
    done = 0 if stored is None else len(stored.whole)
    if done == wanted:
        _console.say("lifted", "the whole race is stored already; --fresh runs it anew.", "bold yellow")
    else:
        if stored is not None:
            _console.messages().print(f"{done} of {wanted} repetitions are stored; the others follow.")
        load = load_average()
        if load > IDLE:
            sentence = f"the machine is not idle (load {load:.2f}): times will be longer, and ratios less sure."
            _console.say("warning", sentence, "bold yellow")
        with _console.downloads() as progress:
            fetch_missing((problem.settings.data for problem in raced), data_dir, progress)

    def keep(result: race.Race) -> None:
        for path in files:
            race.write_race(path, result)

    with Signals(terminate=True) as signals:
        with bar() as watch:
            result = race.run_race(raced, chosen, found, settings, watch, stored=stored, keep=keep, signals=signals)
        keep(result)
    _show(result, out)
    if not result.interrupted:
        return ExitCode.OK
    how = f"{files[0]} keeps what is done, and the same command goes on" if files else "with --json it could go on"
    _console.say("lifted", f"the race was ended early; {how}.", "bold yellow")
    return _code(signals)


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
    result = race.read_race(stored / RACE if stored.is_dir() else stored)
    _show(result, out)
    if result.interrupted:
        _console.say("lifted", "the race was ended early, or is still going on.", "bold yellow")


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
        fetch_missing((problem.settings.data for problem in raced), data_dir, progress)
    with Signals(terminate=True) as signals, bar() as watch:
        rates = race.tune(raced, chosen, settings, log, watch, signals=signals)
    if rates is None:
        _console.say("lifted", f"stopped; the same command goes on, for {log} keeps what is done.", "bold yellow")
        return _code(signals)
    rates.write(out)
    _console.output().print(f"rates: {out}")
    return ExitCode.OK


def _show(result: race.Race, out: Path | None) -> None:
    console = _console.output()
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
    if out is not None:
        console.print(f"page: {race_page(result).write(out / PAGE)}")


def _print(table: Rows) -> None:
    for line in plain_table(*table):
        _console.output().print(line)


def _stored(files: Sequence[Path], require: Callable[[race.Race], None]) -> race.Race | None:
    """The race in the files, from the one with the most repetitions; None if there is none yet."""
    found: list[race.Race] = []
    for path in files:
        if path.exists() and path.stat().st_size:
            try:
                held = race.read_race(path)
            except CheckpointError as error:
                raise CheckpointError(f"{error} Name another file, or replace this one: --fresh.") from error
            try:
                require(held)
            except CheckpointError as error:
                raise CheckpointError(f"{path}: {error}") from error
            found.append(held)
    furthest = max(found, key=lambda held: len(held.whole), default=None)
    if furthest is not None and not all(own in furthest.repetitions for other in found for own in other.whole):
        named = " and ".join(map(str, files))
        raise CheckpointError(f"{named} hold repetitions of different races: name one of them, or --fresh.")
    return furthest


def _code(signals: Signals) -> ExitCode:
    """The exit code of a command that a signal stopped."""
    return ExitCode.TERMINATED if signals.received == signal.SIGTERM else ExitCode.INTERRUPTED


def _names(text: str) -> tuple[str, ...]:
    return tuple(name.strip() for name in text.split(",") if name.strip())


def _require_writable(*paths: Path) -> None:
    """Create the folders of files that will be written and try to write there, before the race starts."""
    for path in paths:
        if path.is_dir():
            raise SettingError(f"{path} is a folder: name a file in it.")
        path.parent.mkdir(parents=True, exist_ok=True)
        with TemporaryFile(dir=path.parent):
            pass
