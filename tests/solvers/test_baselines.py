"""What all baselines share: saved states, float32, work counted by hand; and what they refuse."""

from __future__ import annotations

import io
import math
from dataclasses import dataclass

import pytest
import torch
from torch import nn

import lifted_bregman as lb
from lifted_bregman import activations as act
from lifted_bregman import errors, solvers
from lifted_bregman.solvers import Batch, baselines
from tests.solvers.baseline_cases import BACKPROPAGATION, F64, dense, gap, states_of
from tests.solvers.problems import make

OTHERS = [baselines.MACQP(growth_every=3), baselines.FenchelLifted(inner_steps=2), baselines.LPOM()]


def kind(value):
    return type(value).__name__


def fitting(solver):
    """A case that the solver accepts."""
    return (
        make("relu") if isinstance(solver, baselines.ClassicalLifted | baselines.FenchelLifted) else make("sparse code")
    )


ALL = [*BACKPROPAGATION, *OTHERS, baselines.ClassicalLifted()]


@pytest.mark.parametrize("solver", ALL, ids=kind)
def test_a_saved_state_goes_on_bitwise(solver):
    case = fitting(solver)
    batch = Batch.whole(case.problem, *case.data)
    state = solver.init(case.problem, batch)
    for _ in range(4):
        state = solver.step(case.problem, state, batch)
    file = io.BytesIO()
    torch.save({"state": state.state_dict(), "model": case.problem.model.state_dict()}, file)
    for _ in range(5):
        state = solver.step(case.problem, state, batch)
    file.seek(0)
    saved = torch.load(file, weights_only=True)
    resumed = fitting(solver)
    resumed.problem.model.load_state_dict(saved["model"])
    other = solver.init(resumed.problem, batch)
    other.load_state_dict(saved["state"])
    for _ in range(5):
        other = solver.step(resumed.problem, other, batch)
    for p, q in zip(states_of(case.problem), states_of(resumed.problem), strict=True):
        assert torch.equal(p, q)
    if state.variables is not None:
        assert all(torch.equal(x, u) for x, u in zip(state.variables, other.variables, strict=True))
    assert state.metrics == other.metrics and state.steps == other.steps == 9


@pytest.mark.parametrize("solver", ALL, ids=kind)
def test_the_loop_runs_them_in_float32_and_the_objective_falls(solver):
    case = fitting(solver)
    problem = lb.lift(
        case.problem.model.float(),
        loss=case.problem.loss,
        penalties=case.problem.penalties,
        weights=case.problem.weights,
    )
    before = float(problem.objective(case.X.float(), case.Y.float()))
    data = (case.X.float(), case.Y.float())
    result = solvers.run(problem, data, solver, epochs=30, batch_size=4 if solver.minibatch else None)
    assert result.outcome is solvers.Outcome.FINISHED
    assert result.history[-1]["objective"] < before
    assert all(p.dtype == torch.float32 for p in problem.model.parameters())
    assert all(math.isfinite(value) for value in result.state.metrics.values())


def two_layers():
    torch.manual_seed(1)
    model = nn.Sequential(nn.Linear(4, 5), nn.ReLU(), nn.Linear(5, 2)).double()
    problem = lb.lift(model, loss=lb.SquaredError())
    return problem, Batch.whole(problem, torch.randn(8, 4, dtype=F64), torch.randn(8, 2, dtype=F64))


@pytest.mark.parametrize(
    ("solver", "factor"),
    list(zip(BACKPROPAGATION, [1, 1, 1, 1, 3], strict=True)),
    ids=[kind(s) for s in BACKPROPAGATION],
)
def test_back_propagation_counts_one_forward_and_one_backward_pass(solver, factor):
    problem, batch = two_layers()
    state = solver.init(problem, batch)
    problem.work.reset()
    solver.step(problem, state, batch)
    expected = {"forward_maps": 2, "adjoints": 1, "parameter_gradients": 2, "prox_maps": 2}
    assert problem.work.as_dict() == {name: factor * count for name, count in expected.items()}


def test_a_block_sweep_counts_by_hand():
    # z_1, z_2; Θ_2: σ_2, gradient; x_1: z_2 and σ_2 again, adjoint, prox; Θ_1: σ_1, gradient.
    for solver in (baselines.ClassicalLifted(), baselines.FenchelLifted(inner_steps=1)):
        problem, batch = two_layers()
        state = solver.init(problem, batch)
        problem.work.reset()
        solver.step(problem, state, batch)
        assert problem.work.as_dict() == {"forward_maps": 3, "adjoints": 1, "parameter_gradients": 2, "prox_maps": 4}
    # z_1, z_2, σ_2, adjoint, fixed point; z_2 for the safeguard; Θ_1: σ_1, gradient; Θ_2: σ_2, gradient.
    problem, batch = two_layers()
    with torch.no_grad():
        problem.model[2].weight.mul_(0.1)  # λ_2‖W_2‖² < λ_1, so that the fixed point is accepted
    state = baselines.LPOM().init(problem, batch)
    problem.work.reset()
    baselines.LPOM().step(problem, state, batch)
    assert problem.work.as_dict() == {"forward_maps": 3, "adjoints": 1, "parameter_gradients": 2, "prox_maps": 4}


@pytest.mark.parametrize("solver", [baselines.ClassicalLifted, baselines.FenchelLifted])
def test_inner_steps_repeat_each_block(solver):
    models = []
    for inner_steps, steps in ((4, 1), (1, 4)):
        problem = dense()  # one block, so that repeating it is repeating the sweep
        torch.manual_seed(0)
        batch = Batch.whole(problem, torch.randn(8, 4, dtype=F64), torch.randn(8, 2, dtype=F64))
        state = solver(inner_steps=inner_steps).init(problem, batch)
        for _ in range(steps):
            state = solver(inner_steps=inner_steps).step(problem, state, batch)
        models.append(problem.model)
    assert gap(*models) < 1e-13


# Refusals


@dataclass(frozen=True)
class Unknown(lb.penalties.Penalty):
    def compute_value(self, x):
        return x.abs().sum(-1)

    def compute_prox(self, x, scale):
        return x.sign() * (x.abs() - scale).clamp(min=0.0)


@pytest.mark.parametrize(
    ("solver", "problem", "required", "missing"),
    [
        *[
            (
                s,
                dense(act.Tanh(), penalties={1: lb.penalties.Bounds(-0.5, 0.5)}),
                "differentiate",
                r"penalties\[1\] = Bounds",
            )
            for s in BACKPROPAGATION
        ],
        (
            baselines.SGD(0.1),
            dense(act.Tanh(), parameter_penalties={2: lb.penalties.NonNegative()}),
            "differentiate",
            r"parameter_penalties\[2\]",
        ),
        (
            baselines.Adam(),
            dense(act.Tanh(), parameter_penalties={1: Unknown()}),
            "differentiate",
            r"no subgradient of parameter_penalties\[1\] = Unknown",
        ),
        (baselines.ClassicalLifted(), dense(act.ReLU(), act.Tanh()), "projections", r"Tanh\(\).*layer 2"),
        (baselines.ClassicalLifted(), dense(act.SoftThreshold(0.1)), "projections", "SoftThreshold"),
        (baselines.FenchelLifted(), dense(act.Tanh(), act.Box()), "strictly increasing", r"Box.*layer 2"),
        (baselines.FenchelLifted(), dense(act.SoftThreshold(0.1)), "strictly increasing", "SoftThreshold"),
        (baselines.FenchelLifted(), dense(act.Softmax()), "strictly increasing", "Softmax"),
        (baselines.FenchelLifted(), dense(act.ReLU(), penalties={1: lb.penalties.L1(0.1)}), "without", r"\[1\]"),
        (baselines.LPOM(), dense(act.ReLU(), act.Softmax()), "each number alone", r"Softmax.*layer 2"),
        (
            baselines.LPOM(),
            dense(act.ReLU(), parameter_penalties={2: lb.penalties.L1(0.1)}),
            "without penalties on parameters",
            r"\[2\]",
        ),
        (
            baselines.FenchelLifted(),
            lb.lift(nn.Sequential(lb.Map(nn.Linear(3, 2)), nn.ReLU(), nn.Linear(2, 2)), loss=lb.SquaredError()),
            "affine",
            "layer 1",
        ),
        (
            baselines.LPOM(),
            lb.lift(
                nn.Sequential(nn.Conv1d(1, 2, 2), nn.ReLU(), nn.Flatten(), nn.Linear(4, 2)), loss=lb.SquaredError()
            ),
            "dense",
            "Conv1d",
        ),
    ],
)
def test_what_does_not_fit_is_refused_with_what_is_required_and_missing(solver, problem, required, missing):
    sentence = rf"{type(solver).__name__} requires .*{required}.*; missing: .*{missing}"
    with pytest.raises(errors.CompatibilityError, match=sentence):
        solver.require(problem)


def test_a_network_that_is_frozen_altogether_is_refused():
    problem = dense(act.ReLU())
    for parameter in problem.model.parameters():
        parameter.requires_grad_(False)
    for solver in [*BACKPROPAGATION, baselines.MACQP()]:
        with pytest.raises(errors.CompatibilityError, match="missing: every parameter has requires_grad=False"):
            solver.require(problem)


@pytest.mark.parametrize(
    ("solver", "activation", "penalty"),
    [
        (baselines.MACQP(), act.Tanh(), lb.penalties.Bounds(-0.1, 0.2)),
        (baselines.ClassicalLifted(), act.ReLU(), lb.penalties.Bounds(0.0, 0.2)),
    ],
)
def test_constraints_hold_where_proximal_maps_handle_them(solver, activation, penalty):
    """The forward pass violates the box; from the first step on the variables are in it, and some at its ends."""
    problem = dense(activation, penalties={1: penalty})
    X, Y = 3.0 * torch.randn(9, 4, dtype=torch.float64), torch.randn(9, 2, dtype=torch.float64)
    assert not bool(penalty.value(problem.forward_state(X)[1]).isfinite().all())
    x = solvers.run(problem, (X, Y), solver, epochs=3).state.variables[1]
    assert bool(penalty.value(x).isfinite().all()) and bool((x == penalty.high).any())


@pytest.mark.parametrize(
    "build",
    [
        lambda: baselines.GradientDescent(0.0),
        lambda: baselines.GradientDescent(0.1, "mean"),
        lambda: baselines.SGD(math.nan),
        lambda: baselines.SGD(0.1, momentum=1.0),
        lambda: baselines.SGD(0.1, normalisation=None),
        lambda: baselines.Adam(-1e-3),
        lambda: baselines.Adam(first_decay=1.0),
        lambda: baselines.Adam(epsilon=0.0),
        lambda: baselines.Adam(weight_decay=-0.1),
        lambda: baselines.Adam(clip_norm=0.0),
        lambda: baselines.SGD(0.1, weight_decay=math.inf),
        lambda: baselines.SGD(0.1, clip_norm=math.nan),
        lambda: baselines.AdamW(0.0),
        lambda: baselines.AdamW(second_decay=1.0),
        lambda: baselines.AdamW(weight_decay=-0.1),
        lambda: baselines.AdamW(clip_norm=-1.0),
        lambda: baselines.ImplicitBackprop(-1.0, 3, 0.1),
        lambda: baselines.ImplicitBackprop(1.0, 0, 0.1),
        lambda: baselines.ImplicitBackprop(1.0, 2.5, 0.1),
        lambda: baselines.MACQP(growth=0.5),
        lambda: baselines.MACQP(penalty=3.0, largest_penalty=2.0),
        lambda: baselines.MACQP(growth_every=0),
        lambda: baselines.ClassicalLifted(inner_steps=0),
        lambda: baselines.FenchelLifted(inner_steps=-1),
        lambda: baselines.LPOM(variable_steps=0),
        lambda: baselines.LPOM(prox_weight=math.inf),
    ],
)
def test_settings_out_of_range_are_refused(build):
    with pytest.raises(errors.SettingError):
        build()
