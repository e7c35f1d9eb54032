"""Trains the missing runs: each job by `fit`, with checkpoints in its own folder, and its rows stored at the end."""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from enum import Enum
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lifted_bregman.errors import CheckpointError, SettingError
from lifted_bregman.experiments.build import build_problem
from lifted_bregman.experiments.environment import commit, environment, threads
from lifted_bregman.experiments.run_data import RunData, load_data
from lifted_bregman.experiments.settings import Settings
from lifted_bregman.penalties import L1
from lifted_bregman.problem import LiftedProblem, lift
from lifted_bregman.solvers import Callback, Outcome, Run
from lifted_bregman.training import fit
from lifted_bregman.training.callbacks import Checkpoint, Progress
from lifted_bregman.training.files import take_lock
from lifted_bregman_lab.reproduction.observing import Observer, final_measures, kept, take_pictures
from lifted_bregman_lab.reproduction.recipe import Job, Priority, Recipe
from lifted_bregman_lab.reproduction.store import RecipeRun, ResultStore, job_entries

if TYPE_CHECKING:
    from rich.console import Console

_SAVE_SECONDS = 120.0
_NEVER = 1_000_000  # epochs
_OF_DATA = ("data", "task", "data_dir", "prepare", "noise", "validation", "seed", "dtype", "loss")


class JobState(Enum):
    """The state of a job."""

    DONE = "done"
    STARTED = "started"
    MISSING = "missing"
    BUSY = "running in another process"


@dataclass(frozen=True)
class Places:
    """Where a reproduction keeps its files.

    Args:
        results: rows, to be kept.
        work: checkpoints of runs that have not ended; removed afterwards.
    """

    results: Path
    work: Path

    def __post_init__(self) -> None:
        for name in ("results", "work"):
            path = getattr(self, name)
            if path.exists() and not path.is_dir():
                raise SettingError(f"{name} is {path}, which is a file: name a folder.")

    def folder(self, job: Job) -> Path:
        """The checkpoints of a job."""
        return self.work / job.recipe.name / str(job.seed)


class Deadline(Callback):
    """Stops a run after the present step when a moment has come, to be continued later.

    at  in seconds of `time.monotonic`; None for never
    """

    def __init__(self, at: float | None) -> None:
        self.at = at

    @property
    def over(self) -> bool:
        """Whether the moment has come."""
        return self.at is not None and time.monotonic() >= self.at

    def stepped(self, run: Run) -> None:
        if self.over:
            run.stop(Outcome.INTERRUPTED, "Its time is over.")


def plan(
    recipes: Sequence[Recipe], upto: Priority = Priority.READINGS, seeds: int | None = None, **job: Any
) -> tuple[Job, ...]:
    """The jobs of these recipes: first those that answer every claim once, then other seeds, then other readings.

    Args:
        recipes: in the order in which they are run.
        upto: the last priority that is wanted.
        seeds: at most so many of each recipe, >= 1; None for as many as it has.
        job: `smoke`, `data_dir` and `threads` of every `Job`.
    """
    if seeds is not None and seeds < 1:
        raise SettingError(f"seeds is {seeds}; it must be a whole number of at least 1.")
    jobs = [Job(recipe, seed, **job) for recipe in recipes for seed in recipe.seeds[:seeds]]
    wanted = [one for one in jobs if one.priority <= upto]
    return tuple(sorted(wanted, key=lambda one: (one.priority, one.seed)))


def state_of(job: Job, store: ResultStore, places: Places) -> JobState:
    """The state of the job; a run that another process trains counts as started."""
    if store.read(job) is not None:
        return JobState.DONE
    return JobState.STARTED if (places.folder(job) / "checkpoints").exists() else JobState.MISSING


def run_job(job: Job, places: Places, deadline: Deadline, console: Console) -> JobState:
    """Start or resume a job; its rows are stored when it is done, and its checkpoints are then removed.

    A run that was interrupted or killed resumes from its last checkpoint and ends with the same rows, but for seconds.
    """
    store, folder = ResultStore(places.results), places.folder(job)
    with _locked(folder.with_suffix(".lock")) as free:
        if not free:
            return JobState.BUSY
        if store.read(job) is not None:
            return JobState.DONE
        with threads(job.threads):
            run = _train(job, folder, deadline, console)
        if run is None:
            return JobState.STARTED
        store.write(job, run)
        shutil.rmtree(folder, ignore_errors=True)
        return JobState.DONE


def work_through(
    jobs: Sequence[Job],
    places: Places,
    deadline: Deadline,
    console: Console,
    begun: Callable[[Job], None] = lambda job: None,
) -> None:
    """Run the jobs that are missing, in their order, until the deadline; jobs that other processes train are skipped.

    A job that is interrupted by Ctrl-C raises KeyboardInterrupt, one that is terminated SystemExit.
    """
    store = ResultStore(places.results)
    for job in jobs:
        if deadline.over:
            return
        if store.read(job) is not None:
            continue
        begun(job)
        if run_job(job, places, deadline, console) is JobState.STARTED and not deadline.over:
            raise KeyboardInterrupt


def _train(job: Job, folder: Path, deadline: Deadline, console: Console) -> RecipeRun | None:
    """The finished run; None for one that was stopped early."""
    settings, recipe = job.settings, job.recipe
    data = load_job_data(settings)
    assert data.validation is not None
    problem = build_job_problem(job, data)
    observer = Observer(problem, data.train, data.validation, recipe.code_layer)
    saver = Checkpoint(every_epochs=_NEVER, every_seconds=_SAVE_SECONDS, monitor="objective")
    result = fit(
        problem if recipe.relaxed is None else recipe.relaxed(problem),
        data.train,
        settings.make_solver(),
        epochs=settings.epochs,
        batch_size=settings.batch_size,
        seed=settings.seed,
        record_every=settings.record_every,
        callbacks=[observer, Progress(console, title=job.name, line_seconds=30.0), deadline, saver],
        out=folder,
        resume=True,
    )
    if result.outcome in (Outcome.INTERRUPTED, Outcome.STOPPED):
        return None
    diverged = result.outcome is Outcome.DIVERGED
    # The observer writes "inner_iterations" last, into a row that it has found to be finite.
    rows = tuple(kept(row) for row in result.history if "inner_iterations" in row)
    return RecipeRun(
        recipe.name,
        job.seed,
        job_entries(job),
        environment() | {"commit": commit()},
        _source(data),
        rows,
        result.outcome.name,
        result.message,
        rows[-1]["seconds"] if rows else 0.0,
        {} if diverged else final_measures(observer, data),
        take_pictures(observer, data) if recipe.pictures and job.seed == 0 and not diverged else {},
    )


def build_job_problem(job: Job, data: RunData) -> LiftedProblem:
    """The lifted problem of a job; the penalty of its settings is that of the code."""
    settings, code_layer = job.settings, job.recipe.code_layer
    problem = build_problem(settings, data.inputs, data.outputs)
    if code_layer is None:
        return problem
    assert settings.code_penalty is not None
    return lift(problem.model, loss=problem.loss, penalties={code_layer: L1(settings.code_penalty)})


def load_job_data(settings: Settings) -> RunData:
    """The samples of resolved settings; those of the last job again where they are the same."""
    named = {name: getattr(settings, name) for name in _OF_DATA}
    return _load(tuple(named.items()))


@lru_cache(maxsize=1)
def _load(named: tuple[tuple[str, Any], ...]) -> RunData:
    return load_data(Settings(**dict(named)).resolved())


def _source(data: RunData) -> dict[str, Any]:
    record = data.record.get("set", data.record)
    return {"samples": len(data.train[0]), "sha256": record.get("sha256")}


@contextmanager
def _locked(path: Path) -> Iterator[bool]:
    """Whether this process holds the lock of the job while the block lasts."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        file = path.open("a")
    except OSError as error:
        raise CheckpointError(
            f"{path} cannot be written ({error.strerror}): choose another folder for the checkpoints."
        ) from error
    with file:
        yield take_lock(file)
