"""Runs of the race: in turns as in one go, on the batches of fit, judged on the right samples, only steps timed."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from dataclasses import replace
from itertools import count
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import torch.nn.functional as F

from lifted_bregman.solvers import baselines
from lifted_bregman.solvers.schedules import Constant
from lifted_bregman.training import fit
from lifted_bregman_lab.race import runs
from lifted_bregman_lab.race.opponents import OPPONENTS, Opponent, Trainer
from lifted_bregman_lab.race.problems import NUMBERS
from lifted_bregman_lab.race.runs import BackpropRun, LiftedRun, RaceRun, start_run
from lifted_bregman_lab.race.samples import RaceSamples
from tests.lab.races import TINY, three_clouds

PLAIN = Opponent(
    "plain",
    "SGD",
    (0.1,),
    lambda problem, model, rate, steps: Trainer(
        problem, model, [torch.optim.SGD(model.parameters(), rate)], Constant(1.0)
    ),
)


@pytest.fixture
def threads_end() -> Iterator[None]:
    before = threading.active_count()
    yield
    assert threading.active_count() == before


def begin(name: str, epochs: int = 4) -> RaceRun:
    return start_run(TINY, three_clouds(), epochs, 2, OPPONENTS[name], None if name == "lifted" else 0.01)


def parameters(run: RaceRun) -> list[torch.Tensor]:
    return [parameter.detach().clone() for parameter in run.model.parameters()]


@pytest.mark.parametrize("name", ["adamw", "lifted"])
def test_a_run_in_turns_has_the_bits_of_one_in_one_go(name: str, threads_end: None) -> None:
    whole, parts = begin(name), begin(name)
    assert all(map(torch.equal, parameters(whole), parameters(parts)))
    whole.advance(16)
    for steps in (1, 3, 3, 9, 16):
        parts.advance(steps)
        assert parts.done == steps and bool(parts.outcome) == (steps == 16)
        parts.record()
    assert whole.outcome == parts.outcome == "FINISHED"
    assert all(map(torch.equal, parameters(whole), parameters(parts)))
    assert [point[0] for point in parts.trace] == [1, 3, 3, 9, 16]


def test_ours_is_what_fit_does_by_default(threads_end: None) -> None:
    run, data = begin("lifted"), three_clouds()
    run.advance(16)
    model = TINY.build(2, data)
    fit(TINY.lifted(model, data), (data.X, data.Y), epochs=4, batch_size=16, seed=2)
    assert all(map(torch.equal, parameters(run), [p.detach() for p in model.parameters()]))


def test_opponents_see_the_batches_of_fit() -> None:
    """The library's SGD in `fit` and torch's SGD in the race end at the same parameters, from the same weights."""
    data = three_clouds()
    run = BackpropRun(TINY, data, 3, 6, PLAIN, 0.1)
    run.advance(run.steps)
    model = TINY.build(6, data)
    fit(TINY.lifted(model, data), (data.X, data.Y), baselines.SGD(0.1), epochs=3, batch_size=16, seed=6)
    for own, expected in zip(run.model.parameters(), model.parameters(), strict=True):
        torch.testing.assert_close(own, expected, rtol=1e-5, atol=1e-6)


def test_a_point_has_the_training_loss_and_the_error_on_new_samples() -> None:
    run, data = begin("adamw"), three_clouds()
    run.advance(5)
    run.record()
    with torch.no_grad():
        loss = F.cross_entropy(run.model(data.X), data.Y).item()
        wrong = sum(int(row.argmax()) != label for row, label in zip(run.model(data.X_new), data.Y_new, strict=True))
    assert run.trace[0][2:] == (pytest.approx(loss, rel=1e-6), pytest.approx(wrong / 30))


def test_the_error_of_numbers_is_a_root_and_is_taken_in_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    clouds = three_clouds()
    data = RaceSamples(clouds.X, clouds.X[:, :3], clouds.X_new, clouds.X_new[:, 1:], 3)
    monkeypatch.setattr(runs, "_AT_ONCE", 7)  # pieces of 7, 7, 7, 7 and 2
    run = BackpropRun(replace(TINY, task=NUMBERS), data, 2, 0, PLAIN, 0.1)
    run.record()
    with torch.no_grad():
        expected = (run.model(data.X_new) - data.Y_new).square().mean().sqrt().item()
        loss = 0.5 * (run.model(data.X) - data.Y).square().sum(1).mean().item()
    assert run.trace[0][2:] == (pytest.approx(loss, rel=1e-5), pytest.approx(expected, rel=1e-5))


def test_a_loss_on_some_samples_is_on_the_same_ones_for_all() -> None:
    few = replace(TINY, measured=10)
    first, second = (BackpropRun(few, three_clouds(), 2, 3, PLAIN, rate) for rate in (0.1, 0.2))
    first.record()
    second.record()
    assert first.trace[0][2] == second.trace[0][2]
    assert len(first._measured[0]) == 10


@pytest.mark.parametrize("name", ["adamw", "lifted"])
def test_only_steps_are_timed(name: str, monkeypatch: pytest.MonkeyPatch, threads_end: None) -> None:
    """Every look at the clock takes a second: one for each step, and none for what lies between turns."""
    ticks = count()
    monkeypatch.setattr(runs, "time", SimpleNamespace(process_time=lambda: float(next(ticks))))
    run = begin(name)
    for steps in (3, 8, 16):
        run.advance(steps)
        for _ in range(50):
            next(ticks)
        run.record()
        assert run.seconds == steps


def test_a_run_that_explodes_has_diverged() -> None:
    run = BackpropRun(TINY, three_clouds(), 4, 0, PLAIN, 1e30)
    run.record()
    run.advance(16)
    run.record()
    assert run.outcome == "DIVERGED" and run.done < 16 and len(run.trace) == 1


def test_a_run_that_is_abandoned_leaves_no_thread(threads_end: None) -> None:
    for steps in (0, 3):
        run = begin("lifted")
        assert isinstance(run, LiftedRun)
        run.advance(steps)
        run.abandon()
        run.abandon()
    begin("adamw").abandon()


def test_an_error_of_fit_is_raised_where_the_race_waits(monkeypatch: pytest.MonkeyPatch, threads_end: None) -> None:
    def broken(*_: Any, **__: Any) -> None:
        raise RuntimeError("in the other thread")

    monkeypatch.setattr(runs, "fit", broken)
    with pytest.raises(RuntimeError, match="in the other thread"):
        begin("lifted")
