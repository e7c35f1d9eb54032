"""The benchmarks run; their rounds, ratios, tables and pages say what was measured.

How long anything takes is not judged here.
"""

from __future__ import annotations

import json
import math
import subprocess
import sys
from pathlib import Path

import _rounds
import growth
import pytest
import step_cost
from _tasks import Task

import lifted_bregman as lb
from tests.benchmarks.small_tasks import CLASSIFIER

REPOSITORY = Path(__file__).parents[2]
FOLDER = REPOSITORY / "benchmarks"
FIGURES = REPOSITORY / "docs" / "figures"


# Every script, as a user starts it

SCRIPTS = sorted(path.stem for path in FOLDER.glob("[!_]*.py") if "__main__" in path.read_text())
ONCE = ["--rounds", "1", "--threads", "1"]
SMALLEST = {
    "activations": ["--rounds", "1"],
    "algorithm_1": [*ONCE, "--small"],
    "growth": [*ONCE, "--quick"],
    "parts_of_the_default": ["--threads", "1", "--quick", "--seeds", "1"],
    "stream_memory": [*ONCE, "--quick"],
    "walk": [],
}
"""Options of a short run, by script; `ONCE` for the others."""


@pytest.mark.long
@pytest.mark.parametrize("script", SCRIPTS)
def test_a_script_runs_and_writes_its_numbers(script, tmp_path):
    target = tmp_path / "numbers.json"
    options = ["--json", str(target), *SMALLEST.get(script, ONCE)]
    command = [sys.executable, str(FOLDER / f"{script}.py"), *options]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=280)
    assert done.returncode == 0, done.stderr
    assert "Warning" not in done.stderr and done.stdout.strip()
    numbers = list(leaves(json.loads(target.read_text())))
    assert numbers and all(math.isfinite(number) for number in numbers)


def leaves(entries):
    if isinstance(entries, dict | list):
        for entry in entries.values() if isinstance(entries, dict) else entries:
            yield from leaves(entry)
    elif isinstance(entries, int | float):
        yield entries


# Rounds and ratios


def test_rounds_turn_their_order_round_and_time_all(monkeypatch):
    clock, calls = [0.0], []
    monkeypatch.setattr(_rounds.time, "perf_counter", lambda: clock[0])

    def competitor(name, cost):
        def step():
            calls.append(name)
            clock[0] += cost

        return step

    found = _rounds.timed({"a": competitor("a", 0.004), "b": competitor("b", 0.016)}, rounds=3, span=0.032)
    assert found["a"] == pytest.approx([0.004] * 3) and found["b"] == pytest.approx([0.016] * 3)
    one, other = ["a"] * 9, ["b"] * 3  # one step that is not timed, and 32 ms
    assert (
        calls == ["a"] * (_rounds.WARM_UP + 2) + ["b"] * (_rounds.WARM_UP + 2) + one + other + other + one + one + other
    )
    assert _rounds.fastest(found) == "a"


def test_a_ratio_is_the_median_of_the_ratios_of_the_rounds():
    other = [1.0, 2.0, 4.0, 8.0, 16.0, 1.0, 1.0, 1.0, 1.0, 1.0]
    factors = [3.0, 1.0, 2.0, 5.0, 4.0, 6.0, 7.0, 8.0, 9.0, 10.0]
    found = _rounds.compare([a * b for a, b in zip(other, factors, strict=True)], other)
    assert (found["ratio"], found["ratio_10_percent"], found["ratio_90_percent"]) == (5.5, 2.0, 10.0)
    assert found["other_ms"] == 1000.0


# The step-cost table and the page


def test_every_pair_of_steps_is_compared(monkeypatch):
    task = Task("small", (8, 8, 8, 8, 8), 5, code=2)
    variant = step_cost.Variant(lb.AdaBreg, {(step_cost.ADAM, task): 1e9, (step_cost.PRODUCTS, task): 1e-9})
    monkeypatch.setattr(step_cost, "VARIANTS", {"mine": variant})
    rows = step_cost.times(task, rounds=2)
    pairs = [(row["step"], row["beside"], row["limit"]) for row in rows]
    adam, products, library = step_cost.ADAM, step_cost.PRODUCTS, step_cost.LIBRARY
    assert pairs == [("mine", adam, 1e9), ("mine", products, 1e-9), (library, adam, 1.05), (adam, products, None)]
    _, *table = step_cost.time_table(rows)
    assert [line[-1] for line in table[:2]] == ["kept", "missed"] and table[3][-2:] == ("", "")
    (row,) = step_cost.memory(task)
    parameters = 4 * (64 + 8)
    assert row["other_bytes"] >= 4 * 4 * parameters
    assert row["ratio"] == row["ours_bytes"] / row["other_bytes"]


def test_the_opponent_is_the_fastest_and_the_leanest_form(monkeypatch):
    seconds = {"freed first": 3.0, "freed late": 2.0, "zeroed": 4.0, step_cost.LIBRARY: 5.0, step_cost.PRODUCTS: 1.0}
    monkeypatch.setattr(step_cost, "VARIANTS", {"mine": step_cost.Variant(lb.AdaBreg, {})})
    monkeypatch.setattr(step_cost, "timed", lambda steps, rounds: {name: [seconds.get(name, 6.0)] for name in steps})
    mine, _, library, adam = step_cost.times(CLASSIFIER, rounds=1)
    assert {row["adam_form"] for row in (mine, library, adam)} == {"freed late"}
    assert (mine["ratio"], library["ratio"], adam["ratio"]) == (3.0, 2.5, 2.0)
    peaks = iter((300, 200, 400, 500))
    monkeypatch.setattr(step_cost, "peak_of_a_step", lambda make: next(peaks))
    assert step_cost.memory(CLASSIFIER)[0]["ratio"] == 2.5


def test_the_limits_are_those_of_networks_that_are_measured():
    for variant in step_cost.VARIANTS.values():
        for (opponent, task), limit in variant.limits.items():
            assert opponent in (step_cost.ADAM, step_cost.PRODUCTS) and task in step_cost.TASKS and limit >= 1.0
    parameters = sum(p.numel() for p in step_cost.SMALL.model().parameters())
    assert parameters == 2_461_760  # the paper's network


@pytest.mark.parametrize(
    ("name", "page"), [("step_costs", lambda result, path: step_cost.page(result)), ("growth", growth.page)]
)
def test_the_page_shows_the_stored_numbers(name, page):
    path = FIGURES / f"{name}.json"
    shown = path.with_suffix(".inc").read_text(encoding="utf-8")
    if path.exists():
        assert shown == page(json.loads(path.read_text(encoding="utf-8")), path)
    else:
        assert shown.startswith("*Not measured yet:")
    assert f"{{include}} figures/{name}.inc" in (REPOSITORY / "docs" / "step-costs.md").read_text(encoding="utf-8")
