"""The store of a reproduction: one small file of rows for each recipe and seed, and whether it can be believed.

`results/<recipe>/<seed>.jsonl` has a line that says what was run, on what and with which versions; a line for each
row; and a last line that says how it ended.  It is written when the run is over, whole or not at all.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from lifted_bregman.errors import CheckpointError
from lifted_bregman.experiments._write import write_whole
from lifted_bregman.experiments.settings import Settings
from lifted_bregman.experiments.settings_file import to_entries
from lifted_bregman.solvers import Outcome
from lifted_bregman_lab.reproduction.packing import require_shown
from lifted_bregman_lab.reproduction.recipe import Job

KIND = "lifted reproduction, format 1"
# Where a run took place and how it was saved; not what it was.
_NOT_HASHED = ("data_dir", "threads", "checkpoint_epochs", "checkpoint_steps", "checkpoint_seconds")
_MOST_BYTES = 1 << 24

Row = Mapping[str, float]


@dataclass(frozen=True)
class RecipeRun:
    """One stored run.

    Args:
        recipe: its name.
        seed: of samples, weights, order and noise.
        settings: what was run, resolved, as plain entries.
        environment: versions, threads, hardware, commit.
        data: what the samples were.
        rows: one for each recorded epoch.
        outcome: how it ended, in a word.
        message: how it ended, in a sentence.
        seconds: in steps.
        measures: what was measured once, at the end, by name.
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
        """Whether the numbers of the run left the finite ones."""
        return self.outcome == Outcome.DIVERGED.name

    @property
    def reason(self) -> str:
        """The sentence of `message` after that of the outcome, or that one where it is alone; without the full stop."""
        sentences = self.message.split(". ")
        return sentences[min(1, len(sentences) - 1)].removesuffix(".")

    def column(self, name: str) -> list[float]:
        """One entry of every row; CheckpointError if the rows have none of this name."""
        return [_entry(row, name, f"the rows of {self.recipe}/{self.seed}") for row in self.rows]

    def measure(self, name: str) -> float:
        """What was measured at the end under this name; CheckpointError if nothing was."""
        return _entry(self.measures, name, f"the measures of {self.recipe}/{self.seed}")


def job_entries(job: Job) -> dict[str, Any]:
    """What makes the job's run the run it is, as plain entries."""
    return _entries(job.settings, None if job.recipe.relaxed is None else job.recipe.relaxed.__name__)


def settings_hash(entries: Mapping[str, Any]) -> str:
    """16 hexadecimal digits that stand for these entries."""
    text = json.dumps(entries, sort_keys=True, allow_nan=False)
    return hashlib.sha256(text.encode()).hexdigest()[:16]


class ResultStore:
    """The folder of the results of one paper."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.ignored: dict[Path, str] = {}
        """Files that were passed over, and why; filled as files are read."""

    def file(self, job: Job) -> Path:
        """Where the job's rows are, or will be."""
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
        found = [run for job in jobs if (run := self.read(job)) is not None]
        return Evidence(tuple(found))

    def write(self, job: Job, run: RecipeRun) -> Path:
        """Stores a finished run; the file is there whole or not at all."""
        header = {
            "kind": KIND,
            "recipe": run.recipe,
            "seed": run.seed,
            "hash": settings_hash(run.settings),
            "settings": dict(run.settings),
            "environment": dict(run.environment),
            "data": dict(run.data),
        }
        ending = {
            "outcome": run.outcome,
            "message": run.message,
            "seconds": run.seconds,
            "rows": len(run.rows),
            "measures": dict(run.measures),
            "pictures": dict(run.pictures),
        }
        lines = [header, *(dict(row) for row in run.rows), {"end": ending}]
        path = self.file(job)
        path.parent.mkdir(parents=True, exist_ok=True)
        write_whole(path, "".join(json.dumps(line, allow_nan=False) + "\n" for line in lines).encode())
        return path


@dataclass(frozen=True)
class Evidence:
    """Stored runs, by recipe and seed.

    found      the runs
    stand_ins  the recipe whose runs are found under the name of another; None if each is found under its own
    """

    found: tuple[RecipeRun, ...]
    stand_ins: Mapping[str, str] | None = None

    def runs(self, recipe: str) -> dict[int, RecipeRun]:
        """The runs of a recipe, or of the one that stands for it, by seed and in the order of the seeds."""
        name = recipe if self.stand_ins is None else self.stand_ins.get(recipe)
        return {run.seed: run for run in sorted(self.found, key=lambda run: run.seed) if run.recipe == name}

    def standing_for(self, recipes: Mapping[str, str]) -> Evidence:
        """Under each of these names, and no other, the runs of the recipe that is given for it."""
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
        return RecipeRun(
            str(header["recipe"]),
            int(header["seed"]),
            dict(header["settings"]),
            dict(header["environment"]),
            dict(header["data"]),
            tuple(_row(row) for row in rows),
            str(ending["outcome"]),
            str(ending["message"]),
            float(ending["seconds"]),
            _row(ending["measures"]),
            dict(ending["pictures"]),
        )
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise CheckpointError(f"{path} holds no finished run ({error}): it is ignored; run it again.") from error


def _entries(settings: Settings, relaxed: str | None) -> dict[str, Any]:
    entries = {name: value for name, value in to_entries(settings).items() if name not in _NOT_HASHED}
    return entries if relaxed is None else entries | {"relaxed": relaxed}


def _require_same(run: RecipeRun, job: Job) -> None:
    """An error unless every entry of the stored settings is still that of the job.

    What is new among the solver's settings since then has its default, and does not matter.
    """
    now = job_entries(job)
    if (run.recipe, run.seed) != (job.recipe.name, job.seed):
        raise CheckpointError(f"it holds {run.recipe}/{run.seed} and is called {job.name}: it is ignored.")
    for name in sorted({*run.settings, *now}):
        before, today = run.settings.get(name), now.get(name)
        if isinstance(before, dict) and isinstance(today, dict):
            today = {key: value for key, value in today.items() if key in before}
        if before != today:
            raise CheckpointError(
                f"it was run with {name} = {before!r}, and {job.name} has {today!r}: it is ignored; run it again."
            )


def _entry(entries: Row, name: str, where: str) -> float:
    if name not in entries:
        raise CheckpointError(f"{where} have no '{name}', only {', '.join(sorted(entries))}: run it again.")
    return float(entries[name])


def _row(entries: Any) -> dict[str, float]:
    for name, value in entries.items():
        if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
            raise ValueError(f"'{name}' is no number")
    return dict(entries)
