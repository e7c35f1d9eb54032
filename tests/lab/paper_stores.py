"""A tiny paper with exhibits, and stored runs written by hand, so that every number of its report is known."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from lifted_bregman_lab.reproduction import (
    All,
    Between,
    Claim,
    Counted,
    Evidence,
    Job,
    Less,
    Near,
    NotApplicable,
    Paper,
    RecipeRun,
    ResultStore,
    plan,
)
from lifted_bregman_lab.reproduction.exhibits import (
    Exhibit,
    ShownChart,
    ShownCharts,
    ShownCodes,
    ShownCurve,
    ShownImages,
    ShownRow,
    ShownTable,
)
from lifted_bregman_lab.reproduction.packing import pack
from lifted_bregman_lab.reproduction.quantities import Final, Scaled
from lifted_bregman_lab.reproduction.report.results import Results
from lifted_bregman_lab.reproduction.store import job_entries
from tests.lab.paper.worlds import stored
from tests.lab.reproductions import CODES, DIGITS, OTHER

TRAIN, TEST = (Scaled(Final("tiny-digits", name), 100.0) for name in ("accuracy", "validation_accuracy"))
OTHER_TEST = Scaled(Final("tiny-other", "validation_accuracy"), 100.0)
LOSS_QUANTITY, EPOCHS = Final("tiny-digits", "loss"), Final("tiny-digits", "epoch")
BETWEEN = Between(TRAIN, "accuracy", 1.0, 2.5)
# By seed: accuracies in per cent, and three losses.
ACCURACY = {0: 90.0, 1: 92.0, 2: 97.0}
VALIDATION = {0: 69.0, 1: 70.0, 2: 71.0}
LOSSES = {0: (8.0, 4.0, 1.0), 1: (10.0, 5.0, 2.0), 2: (12.0, 6.0, 6.0)}
SPARSITY = (0.25, 0.75)
ENVIRONMENT = {"processor": "an abacus <of beads>", "threads": "1"}
NAMES = [f"{part}_{what}" for part in ("train", "validation") for what in ("input", "target", "output")]
IMAGES = {name: 40 * number for number, name in enumerate(NAMES)}
"""The grey value of each stored picture."""
CODE = {"width": 36, "values": [[0, 0.5], [35, -2.0]]}

TABLE = ShownTable(
    "Accuracy in per cent.",
    ("train", "test"),
    (ShownRow("digits", (TRAIN, TEST)), ShownRow("other | rate", (None, OTHER_TEST))),
    digits=2,
    headline=True,
)
LOSS = ShownChart(
    "Training error",
    (ShownCurve("digits", "tiny-digits", "loss"), ShownCurve("end", "tiny-digits", "loss", level=True)),
    "epochs, digits",
    log=True,
)
ZEROS = ShownChart("Zeros", (ShownCurve("codes", "tiny-codes", "sparsity"),), "epochs, codes", fraction=True)
EXHIBITS = (
    Exhibit("table1", "Table 1: digits", "Digits are classified.", (TABLE, ShownCharts((LOSS,), "The error falls."))),
    Exhibit(
        "fig-codes",
        "Figure 2: codes",
        "Digits are coded.",
        (
            ShownCharts((ZEROS,), "Zeros grow."),
            ShownImages("Digits.", "validation", (("codes", "tiny-codes"),), inputs=True),
            ShownCodes("One code.", (("codes", "tiny-codes"),)),
        ),
        note="Three other codes.",
    ),
)
NOTES = {"test-number": "Two other rates, which came no closer"}
CLAIMS = (
    Claim("train-number", "table1", "It learns 92.5 %.", Near(TRAIN, 92.5, 1.0), "a point"),
    Claim("test-number", "table1", "It gets 80 % of new ones.", Near(TEST, 80.0, 2.0), "two points"),
    Claim(
        "other-is-worse",
        "table1",
        "Another rate is worse <b>by far</b>.",
        Less(TRAIN, OTHER_TEST, "one", "other"),
        "strict",
    ),
    Claim("units", "fig-codes", "It has 6 units.", Counted(6, 6, "units"), "a count"),
    Claim("beauty", "fig-codes", "Codes are beautiful.", NotApplicable("nobody can measure it"), "taste"),
    Claim(
        "sparse",
        "fig-codes",
        "Codes get 75 % zeros, in | every | way.",
        All((Near(Final("tiny-codes", "sparsity"), 0.75, 0.01),)),
        "exact",
    ),
)
PAPER = Paper("tiny", "A tiny paper", (DIGITS, CODES, OTHER), CLAIMS, EXHIBITS, NOTES)


def digits_run(seed: int, outcome: str = "FINISHED") -> RecipeRun:
    """A run of the classifier with the numbers above."""
    rows = [
        {
            "epoch": epoch,
            "seconds": 2.0 * epoch,
            "loss": loss,
            "accuracy": ACCURACY[seed] / 100.0,
            "validation_accuracy": VALIDATION[seed] / 100.0,
        }
        for epoch, loss in enumerate(LOSSES[seed], start=1)
    ]
    return _run(DIGITS.name, seed, rows, outcome)


def codes_run(seed: int = 0) -> RecipeRun:
    """A run of the autoencoder: two rows, images of one grey value each, and a code."""
    rows = [{"epoch": epoch, "seconds": 1.0 * epoch, "sparsity": s} for epoch, s in enumerate(SPARSITY, start=1)]
    pictures: dict[str, Any] = {name: pack(np.full((6, 4, 5), grey, np.uint8)) for name, grey in IMAGES.items()}
    return replace(_run(CODES.name, seed, rows, "FINISHED"), pictures=pictures | {"code": CODE})


def _run(recipe: str, seed: int, rows: list[dict[str, float]], outcome: str) -> RecipeRun:
    return RecipeRun(recipe, seed, {}, ENVIRONMENT, {}, tuple(rows), outcome, "It ended.", rows[-1]["seconds"])


def results(*runs: RecipeRun, paper: Paper = PAPER) -> Results:
    """What a report is made from, without files."""
    return Results(paper, Evidence(runs), {}, plan(paper.recipes))


def every_run() -> tuple[RecipeRun, ...]:
    """Three seeds of the classifier and one of the autoencoder; none of the other rate."""
    return (*(digits_run(seed) for seed in ACCURACY), codes_run())


def write_store(folder: Path, *runs: RecipeRun) -> Path:
    """The runs as files, with the settings and the hash that they need to be believed."""
    recipes, store = {recipe.name: recipe for recipe in PAPER.recipes}, ResultStore(folder)
    for run in runs:
        job = Job(recipes[run.recipe], run.seed)
        store.write(job, replace(run, settings=job_entries(job)))
    return folder


def spoil_hash(path: Path) -> None:
    """Gives a stored run the hash of other settings."""
    header, *others = path.read_text().splitlines()
    path.write_text("\n".join([json.dumps(json.loads(header) | {"hash": "f" * 16}), *others]) + "\n")


def whole_world(paper: Paper) -> Results:
    """Everything that the claims of the real paper need, with two seeds, images and codes."""
    generator, found = np.random.default_rng(0), []
    names = dict.fromkeys(name for claim in paper.claims for name in claim.recipes)
    recipes = {recipe.name: recipe for recipe in paper.recipes}
    for name in names:
        for seed in (0, 1):
            run = replace(stored(paper, name, seed, shift=0.1 * seed), environment=ENVIRONMENT)
            if name.startswith("classify"):
                extra = {f"always_linear_{layer}": 5.0 * layer for layer in (1, 2, 3)}
                run = replace(run, rows=tuple({**row, **extra} for row in run.rows))
            if recipes[name].pictures and seed == 0:
                images: dict[str, Any] = {
                    key: pack(generator.integers(0, 255, (6, 28, 28), np.uint8)) for key in IMAGES
                }
                run = replace(run, pictures=images | {"code": {"width": 784, "values": [[3, 0.5], [700, -1.25]]}})
            found.append(run)
    ignored = {"classify-mnist-sgd/9.jsonl": "its hash is not that of its settings: it is ignored; run it again."}
    return Results(paper, Evidence(tuple(found)), ignored, plan(paper.recipes))
