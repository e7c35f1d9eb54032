"""`GramSweep` on bad data, on inputs of deficient rank in single precision, and with settings out of range."""

from __future__ import annotations

import math

import pytest
import torch
from torch import nn

import lifted_bregman as lb
from lifted_bregman import errors, solvers
from lifted_bregman.solvers.gram import rule
from tests.solvers.problems import make

GramSweep = solvers.GramSweep


@pytest.mark.parametrize("inputs", [1, 256], ids=["samples", "weights"])
@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_inputs_that_are_not_finite(value, inputs, monkeypatch):
    """The systems that could not be solved are counted, and the run ends with the parameters it began with."""
    monkeypatch.setattr(rule, "WIDEST_INPUTS", inputs)
    case = make("relu")
    batch = solvers.Batch.whole(case.problem, *case.data)
    batch.X[8, 2] = value  # after the check
    before = [p.detach().clone() for p in case.problem.model.parameters()]
    run = solvers.Run(case.problem, GramSweep(), batch, epochs=4, batch_size=5)
    result = run.execute()
    assert result.outcome is solvers.Outcome.DIVERGED and "output_residual is nan after step" in result.message
    assert result.state.fallbacks > 0 and result.state.metrics["fallbacks"] == result.state.fallbacks
    assert all(torch.equal(p, q) for p, q in zip(before, case.problem.model.parameters(), strict=True))


@pytest.mark.parametrize("inputs", [1, 256], ids=["samples", "weights"])
def test_a_system_that_cannot_be_solved_is_a_gradient_step(monkeypatch, inputs):
    """Counted in the history of a run that goes on, downhill."""
    monkeypatch.setattr(rule, "WIDEST_INPUTS", inputs)
    case, real = make("relu"), torch.linalg.cholesky_ex
    monkeypatch.setattr(torch.linalg, "cholesky_ex", lambda K: (real(K)[0], torch.ones(K.shape[:-2], dtype=torch.int)))
    result = solvers.run(case.problem, case.data, GramSweep(step_size=0.1), epochs=5, batch_size=6)
    assert result.outcome is solvers.Outcome.FINISHED
    counts = [row["fallbacks"] for row in result.history]
    assert counts == sorted(counts) and 0.0 < counts[0] < counts[-1]
    assert result.history[-1]["objective"] < result.history[0]["objective"]


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("inputs", [1, 256], ids=["samples", "weights"])
@pytest.mark.parametrize("damping", [1e-12, 0.1])
@pytest.mark.parametrize(
    "kind", ["duplicates", "zeros", "a block of zeros", "large mean", "nearly nothing", "one sample"]
)
def test_single_precision_with_inputs_of_deficient_rank(kind, damping, inputs, bias, monkeypatch):
    monkeypatch.setattr(rule, "WIDEST_INPUTS", inputs)
    torch.manual_seed(9)
    X = {
        "duplicates": torch.randn(1, 20).repeat(12, 1),
        "zeros": torch.zeros(12, 20),
        "a block of zeros": torch.cat((torch.zeros(6, 20), torch.randn(6, 20))),
        "large mean": torch.rand(12, 20) + 1e3,
        "nearly nothing": torch.full((12, 20), 1e-22),
        "one sample": torch.randn(1, 20),
    }[kind]
    model = nn.Sequential(nn.Linear(20, 8, bias=bias), nn.ReLU(), nn.Linear(8, 3, bias=bias))
    problem = lb.lift(model, loss=lb.SquaredError())
    start = float(problem.objective(X, Y := torch.randn(len(X), 3)))
    batch, solver = (
        solvers.Batch.whole(problem, X, Y),
        GramSweep(damping=damping, step_size=2e-3, total_steps=20),
    )
    state = solver.init(problem, batch)
    for _ in range(10):
        state = solver.step(problem, state, batch)
    assert state.fallbacks == 0
    assert all(bool(p.isfinite().all()) for p in model.parameters())
    assert all(
        bool(t.isfinite().all()) for term in state.memory.values() for own in term.values() for t in own.values()
    )
    if damping == 0.1:
        assert float(problem.objective(X, Y)) <= start


# Settings


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        *[({n: v}, f"{n} is {v!r}; it must be a finite number greater than 0.")
          for n in ("step_size", "damping", "nudge", "penalised_nudge")
          for v in (0.0, -1.0, math.inf, math.nan, "a")],
        *[({n: v}, f"{n} is {v!r}; it must be a finite number of at least 0.")
          for n in ("weight_decay", "epochs") for v in (-1.0, math.inf, math.nan)],
        *[({n: v}, f"{n} is {v!r}; it must be a whole number of at least 1.")
          for n in ("micro_batches", "total_steps") for v in (0, -3, 1.5)],
    ],
)  # fmt: skip
def test_settings_out_of_range(settings, message):
    with pytest.raises(errors.SettingError) as caught:
        GramSweep(**settings)
    assert str(caught.value) == message


def test_settings_at_the_ends_of_their_ranges():
    GramSweep(weight_decay=0.0, epochs=0, total_steps=math.inf, step_size=1e-300)


def test_a_signal_that_overflows_ends_the_run_as_diverged():
    """The signal of the layer above is infinite in float32; the penalty's proximal map still gets a scale above 0."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 4), nn.Softshrink(0.1), nn.Linear(4, 3))
    with torch.no_grad():
        model[2].weight.fill_(1e30)
    problem = lb.lift(model, loss=lb.SquaredError(), penalties={1: lb.penalties.L1(0.1)})
    data = torch.randn(8, 4), torch.randn(8, 3)
    result = lb.fit(problem, data, GramSweep(), epochs=1, batch_size=8)
    assert result.outcome is solvers.Outcome.DIVERGED
