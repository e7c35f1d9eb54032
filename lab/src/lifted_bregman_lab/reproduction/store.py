"""The store of a reproduction: one file of rows for each recipe and seed.  Reading checks every value.

`results/<recipe>/<seed>.jsonl` has a line with settings, data and versions, a line for each row, and a last line with
the outcome.  It is written when the run has ended, whole or not at all.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, fields, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import pandas as pd

from lifted_bregman.errors import CheckpointError
from lifted_bregman.experiments.files import write_whole
from lifted_bregman.experiments.settings import Settings
from lifted_bregman.experiments.settings_file import to_entries
from lifted_bregman.solvers import Outcome
from lifted_bregman_lab.decoding import decode
from lifted_bregman_lab.reproduction.packing import require_shown
from lifted_bregman_lab.reproduction.recipe import Job

KIND = "lifted reproduction, format 1"
# Where a run took place and how it was saved is not part of the hash: any machine may run a recipe.
_NOT_HASHED = ("data_dir", "threads", "checkpoint_epochs", "checkpoint_steps", "checkpoint_seconds")
_MOST_BYTES = 1 << 24

Row = Mapping[str, float]


@dataclass(frozen=True)
class RecipeRun:
    """One stored run.

    Args:
        recipe: name of the recipe.
        seed: of samples, weights, order and noise.
        settings: the resolved settings, as plain entries.
        environment: versions, threads, hardware, commit.
        data: number and checksum of the samples.
        rows: one for each recorded epoch.
        outcome: the name of an `Outcome`.
        message: the outcome in a sentence.
        seconds: in steps.
        measures: numbers measured once, at the end, by name.
        pictures: a few images and a code, packed by `packing`; empty where none are stored.
    """

    recipe: str
    seed: int
    settings: Mapping[str, Any]
    environment: Mapping[str, str]
    data: Mapping[str, Any]
    rows: tuple[Row, ...]
    outcome: str
    message: str
    seconds: float
    measures: Mapping[str, float] = field(default_factory=dict)
    pictures: Mapping[str, Any] = field(default_factory=dict)

    @property
    def diverged(self) -> bool:
        """Whether a number of the run was not finite."""
        return self.outcome == Outcome.DIVERGED.name

    @property
    def reason(self) -> str:
        """The second sentence of `message`, or its only one, without the full stop."""
        sentences = self.message.split(". ")
        return sentences[min(1, len(sentences) - 1)].removesuffix(".")

    @cached_property
    def _frame(self) -> pd.DataFrame:
        return pd.DataFrame(list(self.rows), dtype=float)

    def column(self, name: str) -> pd.Series:
        """One entry of every row; CheckpointError if the rows have none of this name."""
        if not self.rows:
            return pd.Series(dtype=float)
        _require_entry(name, self._frame.columns, f"the rows of {self.recipe}/{self.seed}")
        return self._frame[name]

    def measure(self, name: str) -> float:
        """The measure of this name; CheckpointError if there is none."""
        _require_entry(name, self.measures, f"the measures of {self.recipe}/{self.seed}")
        return float(self.measures[name])


def job_entries(job: Job) -> dict[str, Any]:
    """The settings that define the job's run, as plain entries."""
    entries = {name: value for name, value in to_entries(job.settings).items() if name not in _NOT_HASHED}
    if job.recipe.relaxed is not None:
        entries["relaxed"] = job.recipe.relaxed.__name__
    if job.recipe.code_layer is not None:
        entries["code_layer"] = job.recipe.code_layer
    return entries


def settings_hash(entries: Mapping[str, Any]) -> str:
    """The first 16 hexadecimal digits of the SHA-256 of these entries."""
    text = json.dumps(entries, sort_keys=True, allow_nan=False)
    return hashlib.sha256(text.encode()).hexdigest()[:16]


class ResultStore:
    """The folder of the results of one paper."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.ignored: dict[Path, str] = {}
        """Files that were read and ignored, with the reason."""

    def file(self, job: Job) -> Path:
        """The file of the job's rows, whether it exists or not."""
        return self.path / job.recipe.name / f"{job.seed}.jsonl"

    def read(self, job: Job) -> RecipeRun | None:
        """The job's finished run; None if there is none, or only a file that is named in `ignored`."""
        path = self.file(job)
        if not path.exists():
            return None
        try:
            run = read_run(path)
            _require_same(run, job)
        except CheckpointError as error:
            self.ignored[path] = str(error)
            return None
        self.ignored.pop(path, None)
        return run

    def read_all(self, jobs: Iterable[Job]) -> Evidence:
        """The finished runs of these jobs."""
        return Evidence(tuple(run for job in jobs if (run := self.read(job)) is not None))

    def write(self, job: Job, run: RecipeRun) -> Path:
        """Store a finished run; the file is written whole or not at all."""
        header = {"kind": KIND, "recipe": run.recipe, "seed": run.seed, "hash": settings_hash(run.settings)}
        header |= {name: dict(getattr(run, name)) for name in ("settings", "environment", "data")}
        ending = {"outcome": run.outcome, "message": run.message, "seconds": run.seconds, "rows": len(run.rows)}
        ending |= {"measures": dict(run.measures), "pictures": dict(run.pictures)}
        lines = [header, *map(dict, run.rows), {"end": ending}]
        path = self.file(job)
        path.parent.mkdir(parents=True, exist_ok=True)
        write_whole(path, "".join(json.dumps(line, allow_nan=False) + "\n" for line in lines).encode())
        return path


@dataclass(frozen=True)
class Evidence:
    """Stored runs, by recipe and seed.

    found      the runs
    stand_ins  name of a recipe -> name of the recipe whose runs take its place; None for no replacement
    """

    found: tuple[RecipeRun, ...]
    stand_ins: Mapping[str, str] | None = None

    def runs(self, recipe: str) -> dict[int, RecipeRun]:
        """The runs of a recipe, or of the recipe that takes its place, by seed and in the order of the seeds."""
        name = recipe if self.stand_ins is None else self.stand_ins.get(recipe)
        return {run.seed: run for run in sorted(self.found, key=lambda run: run.seed) if run.recipe == name}

    def standing_for(self, recipes: Mapping[str, str]) -> Evidence:
        """The same runs, where each key of `recipes` reads the runs of its value, and other names have no runs."""
        return replace(self, stand_ins=recipes)


def read_run(path: Path) -> RecipeRun:
    """The run in a file; CheckpointError if it is damaged, unfinished, or its hash is not that of its settings."""
    try:
        if path.stat().st_size > _MOST_BYTES:
            raise ValueError(f"it is above {_MOST_BYTES:,} bytes")
        header, *rows, last = (json.loads(line) for line in path.read_text(encoding="utf-8").splitlines())
        if header["kind"] != KIND:
            raise ValueError("it is of another kind or version")
        ending = last["end"]
        if ending["rows"] != len(rows):
            raise ValueError(f"it has {len(rows)} rows of {ending['rows']}")
        if Outcome[ending["outcome"]] is not Outcome.DIVERGED and not rows:
            raise ValueError("it has no rows")
        if any(row.keys() != rows[0].keys() for row in rows):
            raise ValueError("its rows do not have the same entries")
        if header["hash"] != settings_hash(header["settings"]):
            raise ValueError("its hash is not that of its settings")
        require_shown(ending["pictures"])
        entries = {**header, **ending, "rows": rows}
        run: RecipeRun = decode({field.name: entries[field.name] for field in fields(RecipeRun)}, RecipeRun)
        return run
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise CheckpointError(f"{path} holds no finished run ({error}): it is ignored; run it again.") from error


def _require_same(run: RecipeRun, job: Job) -> None:
    """CheckpointError unless every entry of the stored settings is still that of the job.

    A setting that did not exist when the run was stored had its present default; one of the solver is not compared.
    """
    now, defaults = job_entries(job), {field.name: field.default for field in fields(Settings)}
    if (run.recipe, run.seed) != (job.recipe.name, job.seed):
        raise CheckpointError(f"it holds {run.recipe}/{run.seed} and is called {job.name}: it is ignored.")
    for name in sorted({*run.settings, *now}):
        before, today = run.settings.get(name, defaults.get(name)), now.get(name)
        if isinstance(before, dict) and isinstance(today, dict):
            today = {key: value for key, value in today.items() if key in before}
        if before != today:
            raise CheckpointError(
                f"it was run with {name} = {before!r}, and {job.name} has {today!r}: it is ignored; run it again."
            )


def _require_entry(name: str, entries: Iterable[str], where: str) -> None:
    if name not in entries:
        raise CheckpointError(f"{where} have no '{name}', only {', '.join(sorted(entries))}: run it again.")
