"""`lifted reproduce`: trains the missing runs of a paper and judges its claims."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

from lifted_bregman._arguments import positive
from lifted_bregman._text import unknown
from lifted_bregman.cli import terminal
from lifted_bregman.cli.exit_codes import ExitCode
from lifted_bregman.cli.parameters import Parameter, Whole, argument
from lifted_bregman.errors import SettingError
from lifted_bregman_lab.datasets import fetch_missing
from lifted_bregman_lab.reproduction import (
    Deadline,
    Job,
    JobState,
    Paper,
    Places,
    Priority,
    ResultStore,
    Status,
    choose_paper,
    find_papers,
    plan,
    state_of,
    work_through,
)
from lifted_bregman_lab.reproduction.paper import ALL
from lifted_bregman_lab.text import count

_FULL = Places(Path("results"), Path("out/reproduce"))
_SMOKE = Places(Path("out/smoke/results"), Path("out/smoke/runs"))


def reproduce(
    name: Annotated[str, argument("A table or figure, such as table1, a claim, a run, or all.")] = ALL,
    /,
    *,
    smoke: Annotated[bool, Parameter(help="Tiny variants of the runs, in seconds; no verdicts.")] = False,
    minutes: Annotated[float | None, Parameter(help="Stop after so many minutes. [default: never]")] = None,
    seeds: Annotated[Whole | None, Parameter(help="At most so many seeds of a run. [default: 3, or 5]")] = None,
    priority: Annotated[str, Parameter(help="The last of core, seeds, readings that is run.")] = "readings",
    data_dir: Annotated[Path | None, Parameter(help="A folder that holds data sets. [default: the cache]")] = None,
    out: Annotated[Path | None, Parameter(help="The folder of stored rows. [default: results]")] = None,
    work: Annotated[Path | None, Parameter(help="The folder of checkpoints. [default: out/reproduce]")] = None,
    threads: Annotated[Whole, Parameter(help="Threads of torch.")] = 1,
    listed: Annotated[bool, Parameter(name="--list", help="Show the runs, their states and durations.")] = False,
    paper: Annotated[str | None, Parameter(help="Which paper, where several are installed.")] = None,
) -> int:
    """Run what is missing for a table, figure or claim of a paper, store the rows, and judge the claims by them.

    lifted reproduce table1 --smoke
    lifted reproduce table1-mnist-test-sgd --out out/again
    lifted reproduce all --minutes 150

    Every claim is answered once first, then other seeds, then other readings of the text. Ctrl-C and --minutes stop
    after the present step; the same command continues. Several processes may share the work.
    """
    chosen = choose_paper(find_papers(), paper)
    default = _SMOKE if smoke else _FULL
    places = Places(out or default.results, work or default.work)
    if threads < 1:
        raise SettingError(f"threads is {threads}; it must be a whole number of at least 1.")
    recipes = chosen.recipes_of(name)
    jobs = plan(
        recipes,
        _priority(priority),
        1 if smoke and seeds is None else seeds,
        smoke=smoke,
        data_dir=data_dir,
        threads=threads,
    )
    if recipes and not jobs:
        least = min(recipe.priority for recipe in recipes).name.lower()
        raise SettingError(f"--priority is {priority}, and {name} has only {least}: leave --priority out.")
    at = None if minutes is None else time.monotonic() + 60.0 * positive(minutes, "minutes")
    if listed:
        _list(chosen, jobs, places)
        return ExitCode.OK
    code = _work(jobs, places, Deadline(at), data_dir)
    _end(chosen, name, jobs, places, smoke)
    return code


def _work(jobs: Sequence[Job], places: Places, deadline: Deadline, data_dir: Path | None) -> int:
    """Train the missing runs; return the exit code."""
    store, console = ResultStore(places.results), terminal.messages()
    missing = [job for job in jobs if store.read(job) is None]
    for path, reason in store.ignored.items():
        terminal.say("warning", f"{path}: {reason}", "bold yellow")
    with terminal.downloads() as progress:
        fetch_missing((job.settings.data for job in missing), data_dir, progress)

    def begun(job: Job) -> None:
        number = missing.index(job) + 1
        about = "seconds" if job.smoke else f"about {_duration(job.recipe.seconds)}"
        console.print(f"{number} of {len(missing)}: {job.name} ({job.recipe.title}; {about})")

    try:
        work_through(missing, places, deadline, console, begun)
    except KeyboardInterrupt:
        return ExitCode.INTERRUPTED
    except SystemExit:
        return ExitCode.TERMINATED
    return ExitCode.OK


def _end(paper: Paper, name: str, jobs: Sequence[Job], places: Places, smoke: bool) -> None:
    """Print the number of runs that are left, and the verdicts on the claims."""
    console, store = terminal.output(), ResultStore(places.results)
    left = [job for job in jobs if store.read(job) is None]
    if left:
        hours = _duration(sum(job.recipe.seconds for job in left))
        time_left = "" if smoke else f", about {hours}"
        console.print(
            f"{len(left)} of {len(jobs)} runs are left{time_left}: {_some(left)}. The same command continues."
        )
    if smoke:
        ended = Counter(run.outcome.lower() for job in jobs if (run := store.read(job)) is not None)
        said = ", ".join(f"{number} {word}" for word, number in sorted(ended.items()))
        console.print(f"smoke runs in {places.results}: {said or 'none'}; claims are not judged by them.")
        return
    evidence = store.read_all(plan(paper.recipes, data_dir=jobs[0].data_dir if jobs else None))
    verdicts = {one.name: one.verdict(evidence) for one in paper.claims_of(name)}
    if not verdicts:
        console.print(f"No claim is judged by {name}; what is stored of it is in {places.results}.")
        return
    width = max(map(len, verdicts))
    for claim, verdict in verdicts.items():
        console.print(f"{claim.ljust(width)}  {verdict.status.value:<14}  {verdict.sentence}")
    counts = Counter(verdict.status for verdict in verdicts.values())
    judged = ", ".join(f"{counts[status]} {status.value}" for status in Status)
    console.print(f"{count(len(verdicts), 'claim')}: {judged}.")


def _list(paper: Paper, jobs: Sequence[Job], places: Places) -> None:
    """Print one line for each recipe, and the time that all of them take."""
    console, store = terminal.output(), ResultStore(places.results)
    states = {job.name: state_of(job, store, places) for job in jobs}
    header = ("recipe", "priority", "runs done", "a run takes", "claims", "reading")
    rows = [header]
    for recipe in {job.recipe.name: job.recipe for job in jobs}.values():
        own = [states[job.name] for job in jobs if job.recipe is recipe]
        done, started = own.count(JobState.DONE), own.count(JobState.STARTED)
        seeds = f"{done} of {len(own)}" + (f", {started} started" if started else "")
        served = str(len(paper.claims_of(recipe.name)))
        word = recipe.priority.name.lower()
        rows.append((recipe.name, word, seeds, _duration(recipe.seconds), served, recipe.reading))
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for row in rows:
        cells = (cell.ljust(width) for cell, width in zip(row, widths, strict=True))
        console.print("   ".join(cells).rstrip())
    for priority in Priority:
        own_jobs = [job for job in jobs if job.priority is priority]
        left = sum(job.recipe.seconds for job in own_jobs if states[job.name] is not JobState.DONE)
        if own_jobs:
            console.print(f"{priority.name.lower()}: {len(own_jobs)} runs, {_duration(left)} left on one thread")
    for path, reason in store.ignored.items():
        terminal.say("warning", f"{path}: {reason}", "bold yellow")


def _priority(name: str) -> Priority:
    known = {priority.name.lower(): priority for priority in Priority}
    if name not in known:
        raise SettingError(unknown("priority", name, known))
    return known[name]


def _some(jobs: Sequence[Job]) -> str:
    names = [job.name for job in jobs]
    return ", ".join(names[:3]) + (", ..." if len(names) > 3 else "")


def _duration(seconds: float) -> str:
    if seconds < 90:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 5400 else f"{seconds / 3600:.1f} h"
