"""Runs of the default without one of its parts: what differs, what the tables say, and that the page has them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import parts_of_the_default as parts
import pytest

from lifted_bregman.training import default_solver

DOCS = Path(__file__).parents[2] / "docs"
STORED = DOCS / "figures" / "parts_of_the_default.json"


def test_each_variant_differs_from_the_default_in_one_setting() -> None:
    default: Any = default_solver()
    solvers = parts.variants(default)
    assert solvers.pop("default") == default and len(solvers) == len(parts.PARTS) + 4 * len(parts.SETTINGS)
    for solver in solvers.values():
        assert sum(value != vars(solver)[name] for name, value in vars(default).items()) == 1
    assert solvers["nudge x 0.33"].nudge == pytest.approx(default.nudge / 3)


def test_the_tables_have_medians_over_problems_of_medians_over_seeds() -> None:
    numbers = {("a", "default"): [1.0, 3.0], ("b", "default"): [2.0, 2.0], ("c", "default"): [1e-9, 1e-9]}
    numbers |= {("a", "x"): [4.0, 4.0], ("b", "x"): [1.0, 1.0], ("c", "x"): [None, 1e-5]}
    rows = [
        {"problem": problem, "variant": variant, "seed": seed, "loss": value, "error": value}
        for (problem, variant), values in numbers.items()
        for seed, value in enumerate(values)
    ]
    assert parts.ratios(rows, "x", "loss") == [2.0, 0.5, float("inf")]
    assert parts.diverged(rows) == 1


def test_the_page_has_the_stored_rows() -> None:
    rows, page = parts.stored(STORED), (DOCS / "speed.md").read_text(encoding="utf-8")
    assert {row["problem"] for row in rows} == set(parts.CHOSEN)
    assert {row["variant"] for row in rows} == set(parts.variants(default_solver()))  # type: ignore[arg-type]
    assert parts.parts_table(rows) in page and parts.settings_table(rows) in page
    assert f"{parts.diverged(rows)} of {len(rows)} runs diverged" in page
