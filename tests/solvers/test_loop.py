"""The shared loop: outcomes that are sentences, kept parameters, batches that are a function of seed and epoch."""

from __future__ import annotations

import math
from dataclasses import dataclass

import pytest
import torch
from torch import nn
from torch.overrides import TorchFunctionMode

import lifted_bregman as lb
from lifted_bregman import errors, solvers
from lifted_bregman._generators import named_generator
from lifted_bregman.solvers.batches import InMemory
from lifted_bregman.solvers.evaluation import evaluate_network
from tests.solvers.problems import make


def test_finished_and_history():
    case = make("smooth")
    result = solvers.run(case.problem, case.data, solvers.ProximalGradient(), epochs=6, record_every=2)
    assert result.outcome is solvers.Outcome.FINISHED and result.message == solvers.Outcome.FINISHED.value
    assert [row["epoch"] for row in result.history] == [2, 4, 6]
    last = result.history[-1]
    assert last["energy"] == pytest.approx(float(case.problem.energy(result.state.variables, *case.data)))
    assert last["objective"] == pytest.approx(float(case.problem.objective(*case.data)))
    assert last["forward_maps"] > result.history[0]["forward_maps"] > 0
    shown = f"Result(FINISHED after 6 steps, objective {last['objective']:.4g}: {result.message})"
    assert repr(result) == shown


def test_recording_is_not_counted_as_work():
    counts = []
    for every in (1, 5):
        case = make("relu")
        solvers.run(case.problem, case.data, solvers.ProximalGradient(), epochs=5, record_every=every)
        counts.append(case.problem.work.as_dict())
    assert counts[0] == counts[1]


def test_divergence_names_the_place_and_keeps_the_last_finite_parameters():
    case = make("relu")
    solver = solvers.ProximalGradient(sweep=solvers.Jacobi(), step_rule=solvers.FixedStep(parameter=1e9, variable=1e9))
    result = solvers.run(case.problem, case.data, solver, epochs=500)
    assert result.outcome is solvers.Outcome.DIVERGED
    assert "objective" in result.message and "its initial parameters" in result.message
    assert all(bool(p.isfinite().all()) for p in case.problem.model.parameters())


@dataclass(frozen=True)
class PoisonedWeights(solvers.ProximalGradient):
    def step(self, problem, state, batch):
        state = super().step(problem, state, batch)
        if state.steps == 3:
            with torch.no_grad():
                problem.model[2].weight[1, 1] = math.inf
        return state


def test_the_parameters_of_the_last_good_record_come_back_bitwise():
    case, good = make("relu"), make("relu")
    result = solvers.run(case.problem, case.data, PoisonedWeights(), epochs=9)
    solvers.run(good.problem, good.data, solvers.ProximalGradient(), epochs=2)
    assert result.outcome is solvers.Outcome.DIVERGED and "weight of model.2 (Linear)" in result.message
    for kept, expected in zip(case.problem.model.parameters(), good.problem.model.parameters(), strict=True):
        assert torch.equal(kept, expected)


@dataclass(frozen=True)
class PoisonedMetric(solvers.ProximalGradient):
    def step(self, problem, state, batch):
        state = super().step(problem, state, batch)
        state.metrics["residual of layer 2"] = math.nan if state.steps == 3 else 1.0
        return state


def test_a_metric_that_is_not_finite_stops_at_once():
    case = make("relu")
    result = solvers.run(case.problem, case.data, PoisonedMetric(), epochs=9)
    assert result.outcome is solvers.Outcome.DIVERGED and "residual of layer 2 is nan after step 3" in result.message


def test_a_stationary_point_ends_the_run_as_stalled():
    """At a stationary point no step decreases the energy: the outcome says so instead of looping for ever."""
    case = make("relu")
    solver = solvers.ProximalGradient(step_rule=solvers.Backtracking(floor=1e9, initial=1e10))
    result = solvers.run(case.problem, case.data, solver, epochs=9)
    assert result.outcome is solvers.Outcome.STALLED and "step size" in result.message


def test_callback_stops():
    case = make("relu")
    result = solvers.run(
        case.problem, case.data, solvers.ProximalGradient(), epochs=9, callback=lambda s, row: row["epoch"] == 4
    )
    assert result.outcome is solvers.Outcome.STOPPED and result.state.steps == 4


@dataclass(frozen=True)
class Interrupted(solvers.ProximalGradient):
    def step(self, problem, state, batch):
        if state.steps == 2:
            raise KeyboardInterrupt
        return super().step(problem, state, batch)


def test_keyboard_interrupt_returns_what_was_reached():
    case = make("relu")
    result = solvers.run(case.problem, case.data, Interrupted(), epochs=9)
    assert result.outcome is solvers.Outcome.INTERRUPTED and result.state.steps == 2 and len(result.history) == 2


def test_batches_are_a_function_of_seed_and_epoch():
    case = make("relu", samples=10)
    data = solvers.Batch.whole(case.problem, *case.data)
    first, again = (torch.cat([b.index for b in InMemory(data, 4, 3).epoch(5)]) for _ in range(2))
    assert torch.equal(first, again) and sorted(first.tolist()) == list(range(10))
    assert [len(b) for b in InMemory(data, 4, 3).epoch(5)] == [4, 4, 2]
    assert not torch.equal(first, torch.cat([b.index for b in InMemory(data, 4, 3).epoch(6)]))
    assert not torch.equal(first, torch.cat([b.index for b in InMemory(data, 4, 4).epoch(5)]))
    for batch in InMemory(data, 4, 3).epoch(5):
        assert torch.equal(batch.X, case.X[batch.index]) and batch.total == 10
    one, other = (torch.rand(3, generator=named_generator(0, name)) for name in ("noise", "data order"))
    assert not torch.equal(one, other)


@pytest.mark.parametrize("bad", [{"epochs": 0}, {"epochs": 2.5}, {"epochs": 1, "batch_size": 0}])
def test_settings_of_a_run_out_of_range_are_refused(bad):
    case = make("relu")
    with pytest.raises(errors.SettingError):
        solvers.run(case.problem, case.data, solvers.ProximalGradient(), **bad)


def test_bad_data_is_found_before_the_first_step():
    case = make("relu")
    kept = [p.detach().clone() for p in case.problem.model.parameters()]
    X = case.X.clone()
    X[3, 1] = math.nan
    with pytest.raises(errors.TensorError):
        solvers.run(case.problem, (X, case.Y), solvers.ProximalGradient(), epochs=3)
    assert all(torch.equal(a, b) for a, b in zip(kept, case.problem.model.parameters(), strict=True))


class _Products(TorchFunctionMode):
    """Counts products with weights."""

    count = 0

    def __torch_function__(self, function, types, args=(), kwargs=None):
        self.count += function is torch.nn.functional.linear
        return function(*args, **(kwargs or {}))


def test_a_row_of_a_solver_without_variables_takes_one_forward_pass():
    """Its energy is the objective by layer: loss, penalties on variables and on weights, from the same pass."""
    torch.manual_seed(1)
    model = nn.Sequential(nn.Linear(5, 7), nn.Tanh(), nn.Linear(7, 6), nn.Softshrink(0.1), nn.Linear(6, 3)).double()
    penalties, on_weights = {1: lb.penalties.SquaredL2(0.3), 2: lb.penalties.L1(0.2)}, {2: lb.penalties.SquaredL2(0.1)}
    problem = lb.lift(model, loss=lb.SquaredError(), penalties=penalties, parameter_penalties=on_weights)
    X, Y = torch.randn(11, 5, dtype=torch.float64), torch.randn(11, 3, dtype=torch.float64)
    batch = solvers.Batch(X, Y, torch.arange(11), 11)
    with _Products() as products:
        row = evaluate_network(problem, batch, classify=False, by_layer=True)
    assert products.count == 3
    with torch.no_grad():
        x_1, x_2 = model[:2](X), model[:4](X)
        first, second = 0.15 * x_1.square().sum(1).mean(), 0.2 * x_2.abs().sum(1).mean()
        second = second + 0.05 * model[2].weight.square().sum()
        third = 0.5 * (model(X) - Y).square().sum(1).mean()
    expected = [float(part) for part in (first, second, third)]
    assert [row[f"energy_{l}"] for l in (1, 2, 3)] == pytest.approx(expected, rel=1e-13)
    assert row["energy"] == pytest.approx(sum(expected), rel=1e-13)
    assert row["objective"] == pytest.approx(sum(expected), rel=1e-13)
