"""Every solver reproduces its golden run to 1e-12, so that a rebuilt core is known to compute the same."""

from __future__ import annotations

import json

import pytest

from tests.golden.runs import STORED, record, run_cases

CASES = run_cases()
GOLDEN = json.loads(STORED.read_text(encoding="utf-8"))


def test_every_solver_has_a_golden_run() -> None:
    assert set(CASES) == set(GOLDEN)


@pytest.mark.parametrize("name", CASES)
def test_a_solver_reproduces_its_golden_run(name: str) -> None:
    run, golden = record(*CASES[name]), GOLDEN[name]
    for key in ("objective", "energy", "norm"):
        assert run[key] == pytest.approx(golden[key], rel=1e-12), key
    assert run["projections"] == pytest.approx(golden["projections"], abs=1e-12 * golden["norm"])
