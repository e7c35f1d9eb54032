"""A tiny problem and rows by hand for the race, and a race of the first format by hand."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
from torch import nn

from lifted_bregman_lab.race.archive.results import KIND, Entry, ProblemRecord, Race
from lifted_bregman_lab.race.opponents import OPPONENTS
from lifted_bregman_lab.race.problems import CLASSES, RaceProblem
from lifted_bregman_lab.race.samples import RaceSamples


def three_clouds(data_dir: Path | None = None) -> RaceSamples:
    """Sixty points of four numbers around three centres, and thirty new ones."""
    generator = torch.Generator().manual_seed(5)
    labels = torch.arange(90) % 3
    points = torch.randn(90, 4, generator=generator) + 2.0 * torch.eye(4)[labels]
    return RaceSamples(points[:60], labels[:60], points[60:], labels[60:], 3, source="drawn here")


TINY = RaceProblem(
    "tiny",
    "three clouds, 4-5-3",
    "tables",
    three_clouds,
    lambda data: nn.Sequential(nn.Linear(4, 5), nn.ReLU(), nn.Linear(5, 3)),
    CLASSES,
    batch_size=16,
    short=5,
    long=6,
)


def race_row(opponent: str, seed: int, loss: float | None, error: float | None = 0.5, **other: Any) -> dict[str, Any]:
    """A row by hand, of a run that took AdamW's time."""
    row = {"part": "race", "problem": "p", "title": "P", "group": "tables", "task": "fraction of wrong classes"}
    row |= {"opponent": opponent, "settings": OPPONENTS[opponent].title, "budget": "short", "epochs": 2}
    row |= {"batch_size": 10, "samples": 20, "new_samples": 10, "rate": None, "seed": seed, "steps": 4, "unit": 1.0}
    row |= {"seconds": 2.0, "loss": loss, "error": error, "reference_seconds": 2.0, "outcome": "FINISHED"}
    return row | {"trace": [], "source": "", "versions": {}, "commit": ""} | other


# A race of the first format.  Columns of a row: seconds, epoch, objective, validation error, sparsity.

Numbers = list[tuple[float, float, float, float, float]]


def run_of(race: Race, entry: str, repetition: int = 0) -> Any:
    """The run of an entry in a repetition."""
    return next(run for run in race.repetitions[repetition]["traces"] if run["entry"] == entry)


def run_by_hand(name: str, rows: Numbers, outcome: str = "FINISHED") -> dict[str, Any]:
    names = ("seconds", "epoch", "objective", "validation_error", "sparsity")
    made = [dict(zip(names, row, strict=True)) | {"step": float(number)} for number, row in enumerate(rows)]
    return {"entry": name, "rows": made, "outcome": outcome, "message": f"how {name} ended"}


def entry(name: str, competitor: str, *chosen_by: str) -> Entry:
    tuned = ("learning_rate", 0.01, (0.001, 0.01, 0.1), (5, 10, 20)) if chosen_by else ("", None, (), (10,))
    return Entry(name, competitor, f"title of {name}", "lifted", chosen_by, "S()", 10, *tuned)


def by_hand(classify: bool = False) -> Race:
    """Two repetitions of one problem.

    In the first the objective tuned reference ends at 2.0, which it has at 8 s already.  The validation tuned one has
    its lowest error 0.3, with 0.5 zeros, at 6 s.
    """
    start = (0.0, 0.0, 9.0, 0.9, 0.0)
    first = [
        run_by_hand(
            "lifted", [start, (2.0, 1.0, 4.0, 0.30, 0.4), (4.0, 2.0, 2.0, 0.25, 0.5), (6.0, 3.0, 1.0, 0.4, 0.6)]
        ),
        run_by_hand("slow", [start, (9.0, 0.2, 8.0, 0.80, 0.9), (15.0, 0.4, 7.0, 0.7, 0.9)], "STOPPED"),
        run_by_hand("adam", [start, (4.0, 1.0, 3.0, 0.60, 0.7), (8.0, 2.0, 1.9, 0.5, 0.7), (10.0, 2.5, 2.0, 0.6, 0.7)]),
        run_by_hand("adam-validation", [start, (6.0, 2.0, 4.0, 0.30, 0.5), (9.0, 3.0, 3.5, 0.4, 0.5)]),
    ]
    second = [
        run_by_hand("lifted", [start, (2.0, 1.0, 5.0, 0.50, 0.2), (6.0, 3.0, 3.0, 0.20, 0.1)]),
        run_by_hand("slow", [start], "DIVERGED"),
        run_by_hand("adam", [start, (5.0, 1.0, 4.0, 0.50, 0.7), (12.0, 2.5, 3.0, 0.6, 0.7)]),
        run_by_hand("adam-validation", [start, (8.0, 2.0, 4.0, 0.20, 0.5), (9.0, 3.0, 3.5, 0.3, 0.5)]),
    ]
    entries = (
        entry("lifted", "lifted"),
        entry("slow", "slow", "objective", "validation"),
        entry("adam", "adam", "objective"),
        entry("adam-validation", "adam", "validation"),
    )
    settings = {"data": "d", "hidden": [3], "task": "classify" if classify else "autoencode"}
    problem = ProblemRecord("p", "the problem", classify, 3, 10, 100, 50, "From nowhere.", settings, "adam", entries)
    repetitions = (
        {"problem": "p", "seed": 0, "whole": True, "load": 1.25, "traces": first},
        {"problem": "p", "seed": 1, "whole": True, "load": None, "traces": second},
    )
    return Race((problem,), repetitions, {"torch": "9", "threads": "2"}, 0.1, 1.5, False, {"note": "by hand"})


def write_race(path: Path, race: Race) -> None:
    """The file that keeps a race of the first format."""
    entries = asdict(race)
    path.write_text(json.dumps({"kind": KIND, "heats": entries.pop("repetitions"), **entries}))
