"""Baselines against torch.optim, against hand-written loops and formulas, and against the energies they minimise."""

from __future__ import annotations

import copy
import io
import math
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import pytest
import torch
from scipy.integrate import quad
from torch import nn

import lifted_bregman as lb
from lifted_bregman import activations as act
from lifted_bregman import errors, solvers
from lifted_bregman.problem.nested import nested_objective
from lifted_bregman.problem.penalties import Nuclear
from lifted_bregman.solvers import Batch, baselines
from lifted_bregman.solvers.baselines import Normalisation
from tests.problem.networks import conv_case
from tests.solvers.problems import NAMES, make

F64 = torch.float64
BACKPROPAGATION = [
    baselines.GradientDescent(0.05),
    baselines.SGD(0.05, momentum=0.9),
    baselines.Adam(0.01),
    baselines.ImplicitBackprop(prox_weight=0.7, inner_steps=3, learning_rate=0.05),
]
OTHERS = [baselines.MACQP(growth_every=3), baselines.FenchelLifted(inner_steps=2), baselines.LPOM()]


def kind(value):
    return type(value).__name__


def network():
    """Three activations, four widths, a penalty on a variable and two on parameters."""
    torch.manual_seed(3)
    model = nn.Sequential(
        nn.Linear(5, 7), nn.Tanh(), nn.Linear(7, 4), nn.Softshrink(0.1), nn.Linear(4, 6), nn.ReLU(), nn.Linear(6, 3)
    ).double()
    return model, torch.randn(11, 5, dtype=F64), torch.randn(11, 3, dtype=F64)


def lifted(model):
    return lb.lift(
        model,
        loss=lb.SquaredError(),
        weights=[0.5, 2.0, 1.3],
        penalties={2: lb.penalties.L1(0.05)},
        parameter_penalties={1: lb.penalties.SquaredL2(0.02), 3: lb.penalties.L1(0.01)},
    )


def plain_objective(model, X, Y):
    """The nested objective of `lifted(network())`, in plain torch."""
    code = model[:4](X)
    data = 0.5 * (model[4:](code) - Y).square().sum(1) + 0.05 * code.abs().sum(1)
    return data.mean() + 0.01 * model[0].weight.square().sum() + 0.01 * model[4].weight.abs().sum()


def batches(problem, X, Y, size=4):
    whole = Batch.whole(problem, X, Y)
    return [whole.select(places) for epoch in range(3) for places in torch.arange(len(X)).roll(epoch).split(size)]


def states_of(problem):
    return [p.detach().clone() for p in problem.model.parameters()]


def gap(model, other):
    return max(float((a - b).detach().abs().max()) for a, b in zip(model.parameters(), other.parameters(), strict=True))


# The nested objective


def test_the_nested_objective_and_its_gradient_are_those_of_plain_torch():
    model, X, Y = network()
    problem = lifted(model)
    value = nested_objective(problem, *problem.prepare(X, Y))
    plain = plain_objective(model, X, Y)
    assert float(value.detach()) == pytest.approx(float(problem.objective(X, Y)), rel=1e-14)
    assert float(value.detach()) == pytest.approx(float(plain.detach()), rel=1e-14)
    parameters = list(model.parameters())
    for mine, theirs in zip(
        torch.autograd.grad(value, parameters), torch.autograd.grad(plain, parameters), strict=True
    ):
        torch.testing.assert_close(mine, theirs, rtol=1e-12, atol=1e-14)


def test_the_nested_objective_of_convolutions_with_a_joint_activation():
    case = conv_case()
    problem = lb.lift(case.model, loss=case.loss, penalties={1: lb.penalties.GroupL2(0.3)})
    X, Y = problem.prepare(case.X, case.Y)
    value = nested_objective(problem, X, Y)
    first = case.model[:2](X)
    logits = case.model(X)
    entropy = (Y * Y.log()).sum(1)
    plain = nn.functional.cross_entropy(logits, Y) + entropy.mean() + 0.3 * first.norm(dim=1).sum((1, 2)).mean()
    assert float(value.detach()) == pytest.approx(float(plain.detach()), rel=1e-13)
    parameters = list(case.model.parameters())
    for mine, theirs in zip(
        torch.autograd.grad(value, parameters), torch.autograd.grad(plain, parameters), strict=True
    ):
        torch.testing.assert_close(mine, theirs, rtol=1e-11, atol=1e-13)


def test_penalties_have_subgradients_though_their_values_leave_no_graph():
    model, X, Y = network()
    penalties = {2: lb.penalties.GroupL2(0.2, group_size=2)}
    on_parameters = {2: Nuclear(0.3), 3: lb.penalties.GroupL2(0.1)}
    problem = lb.lift(model, loss=lb.SquaredError(), penalties=penalties, parameter_penalties=on_parameters)
    code = model[:4](X)
    plain = 0.5 * (model[4:](code) - Y).square().sum(1).mean() + 0.2 * code.view(11, 2, 2).norm(dim=2).sum(1).mean()
    plain = plain + 0.3 * torch.linalg.matrix_norm(model[2].weight, "nuc") + 0.1 * model[4].weight.norm(dim=1).sum()
    value, parameters = nested_objective(problem, X, Y), list(model.parameters())
    assert float(value.detach()) == pytest.approx(float(plain.detach()), rel=1e-13)
    for mine, theirs in zip(
        torch.autograd.grad(value, parameters), torch.autograd.grad(plain, parameters), strict=True
    ):
        torch.testing.assert_close(mine, theirs, rtol=1e-11, atol=1e-13)


@dataclass(frozen=True)
class Unknown(lb.penalties.Penalty):
    def _value(self, x):
        return x.abs().sum(-1)

    def _prox(self, x, scale):
        return x.sign() * (x.abs() - scale).clamp(min=0.0)


def test_the_final_activation_belongs_to_the_loss():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(3, 4), nn.ELU(), nn.Linear(4, 2), nn.Sigmoid()).double()
    X, Y = torch.randn(6, 3, dtype=F64), torch.rand(6, 2, dtype=F64)
    problem = lb.lift(model, loss=lb.BregmanLoss(act.Sigmoid()))
    gradient = torch.autograd.grad(nested_objective(problem, X, Y), list(model.parameters()))
    cross_entropy = nn.functional.binary_cross_entropy(model(X), Y, reduction="sum") / len(X)
    for mine, theirs in zip(gradient, torch.autograd.grad(cross_entropy, list(model.parameters())), strict=True):
        torch.testing.assert_close(mine, theirs, rtol=1e-10, atol=1e-13)


# Iterates against torch.optim and hand-written loops


@pytest.mark.parametrize(
    ("solver", "optimiser"),
    [
        (baselines.SGD(0.03), lambda p: torch.optim.SGD(p, lr=0.03)),
        (baselines.SGD(0.03, momentum=0.8), lambda p: torch.optim.SGD(p, lr=0.03, momentum=0.8)),
        (baselines.Adam(0.02), lambda p: torch.optim.Adam(p, lr=0.02)),
        (baselines.Adam(0.02, 0.7, 0.9, 1e-3), lambda p: torch.optim.Adam(p, lr=0.02, betas=(0.7, 0.9), eps=1e-3)),
    ],
    ids=["SGD", "momentum", "Adam", "Adam with settings"],
)
def test_iterates_are_those_of_torch(solver, optimiser):
    model, X, Y = network()
    twin = copy.deepcopy(model)
    problem, torch_optimiser = lifted(model), optimiser(twin.parameters())
    sequence = batches(problem, X, Y)
    state = solver.init(problem, sequence[0])
    for batch in sequence:
        expected = plain_objective(twin, batch.X, batch.Y)
        torch_optimiser.zero_grad()
        expected.backward()
        torch_optimiser.step()
        state = solver.step(problem, state, batch)
        assert state.metrics["batch_objective"] == pytest.approx(float(expected.detach()), rel=1e-12)
        assert gap(model, twin) < 1e-12
    assert state.steps == len(sequence)


@pytest.mark.parametrize(
    ("solver", "torch_optimiser"),
    [
        (baselines.SGD(0.05), lambda p: torch.optim.SGD(p, lr=0.05)),
        (baselines.SGD(0.05, 0.9), lambda p: torch.optim.SGD(p, lr=0.05, momentum=0.9)),
        (baselines.Adam(0.05), lambda p: torch.optim.Adam(p, lr=0.05)),
    ],
    ids=["SGD", "momentum", "Adam"],
)
def test_a_gradient_may_lie_in_memory_in_another_order_than_its_parameter(solver, torch_optimiser):
    """As that of a convolution does for channels-last images; torch's fused kernels would mix up its entries."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Conv2d(3, 4, 3), nn.ReLU(), nn.Flatten(), nn.Linear(64, 2)).double()
    twin = copy.deepcopy(model)
    X, Y = torch.randn(8, 3, 6, 6, dtype=F64).to(memory_format=torch.channels_last), torch.randn(8, 2, dtype=F64)
    problem, optimiser = lb.lift(model, loss=lb.SquaredError()), torch_optimiser(twin.parameters())
    batch = Batch.whole(problem, X, Y)
    state = solver.init(problem, batch)
    for _ in range(3):
        optimiser.zero_grad()
        (0.5 * (twin(X) - Y).square().sum(1).mean()).backward()
        optimiser.step()
        state = solver.step(problem, state, batch)
    assert state.gradient[0].stride() != model[0].weight.stride()
    assert gap(model, twin) < 1e-12


@pytest.mark.parametrize("make_solver", [baselines.GradientDescent, lambda rate, n: baselines.SGD(rate, 0.0, n)])
@pytest.mark.parametrize("normalisation", list(Normalisation))
def test_normalisation_by_hand(make_solver, normalisation):
    model, X, Y = network()
    twin = copy.deepcopy(model)
    problem, solver = lifted(model), make_solver(0.01, normalisation)
    batch = Batch.whole(problem, X, Y)
    state = solver.init(problem, batch)
    for _ in range(4):
        factor = len(X) if normalisation is Normalisation.SUM else 1
        objective = factor * plain_objective(twin, X, Y)
        with torch.no_grad():
            for p, g in zip(twin.parameters(), torch.autograd.grad(objective, list(twin.parameters())), strict=True):
                p -= 0.01 * g
        state = solver.step(problem, state, batch)
    assert gap(model, twin) < 1e-12


@pytest.mark.parametrize("prox_weight", [0.0, 0.9])
def test_implicit_backprop_is_gradient_descent_on_the_proximal_objective(prox_weight):
    model, X, Y = network()
    twin = copy.deepcopy(model)
    problem = lifted(model)
    solver = baselines.ImplicitBackprop(prox_weight, inner_steps=4, learning_rate=0.05)
    sequence = batches(problem, X, Y)[:5]
    state = solver.init(problem, sequence[0])
    for batch in sequence:
        start = [p.detach().clone() for p in twin.parameters()]
        for _ in range(4):
            away = sum((p - q).square().sum() for p, q in zip(twin.parameters(), start, strict=True))
            objective = plain_objective(twin, batch.X, batch.Y) + 0.5 * prox_weight * away
            gradient = torch.autograd.grad(objective, list(twin.parameters()))
            with torch.no_grad():
                for p, g in zip(twin.parameters(), gradient, strict=True):
                    p -= 0.05 * g
        state = solver.step(problem, state, batch)
    assert gap(model, twin) < 1e-12


def test_frozen_parameters_stay():
    case = make("frozen and bias-free")
    frozen = case.problem.model[2].weight.detach().clone()
    for solver in [*BACKPROPAGATION, baselines.MACQP(), baselines.LPOM()]:
        batch = Batch.whole(case.problem, *case.data)
        before = states_of(case.problem)
        state = solver.init(case.problem, batch)
        for _ in range(3):  # MAC-QP carries the output error down by one layer a step
            state = solver.step(case.problem, state, batch)
        assert torch.equal(case.problem.model[2].weight, frozen)
        moved = [not torch.equal(a, b) for a, b in zip(before, states_of(case.problem), strict=True)]
        assert sum(moved) == len(moved) - 1


# What all of them share


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
    ("solver", "factor"), list(zip(BACKPROPAGATION, [1, 1, 1, 3], strict=True)), ids=[kind(s) for s in BACKPROPAGATION]
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


# MAC with quadratic penalty


def quadratic_penalty_energy(problem, variables, X, Y, mu):
    """Q_μ in plain torch, for the networks of `network()`."""
    model, x = problem.model, X
    value = torch.zeros(len(X), dtype=F64)
    for layer, weight in zip((1, 2, 3), problem.weights, strict=True):
        u = model[2 * layer - 1](model[2 * layer - 2](x))
        x = variables[layer]
        value = value + 0.5 * mu * weight * (x - u).square().sum(1)
    value = value + 0.5 * (model[6](x) - Y).square().sum(1)
    return value.mean()


def mac_penalties(problem, variables):
    on_code = 0.05 * variables[2].abs().sum(1).mean()
    return on_code + 0.01 * problem.model[0].weight.square().sum() + 0.01 * problem.model[4].weight.abs().sum()


def test_mac_steps_are_proximal_gradient_steps_on_its_energy():
    model, X, Y = network()
    problem = lifted(model)
    solver = baselines.MACQP(penalty=3.0, growth_every=2, growth=1.7, largest_penalty=4.0)
    batch = Batch.whole(problem, X, Y)
    state = solver.init(problem, batch)
    soft = torch.nn.functional.softshrink
    for step in range(6):
        before = copy.deepcopy(model)
        variables = state.variables.clone()
        mu = min(3.0 * 1.7 ** (step // 2), 4.0)
        value = quadratic_penalty_energy(problem, variables, X, Y, mu)
        gradient = torch.autograd.grad(value, list(model.parameters()))
        start = float((value + mac_penalties(problem, variables)).detach())
        state = solver.step(problem, state, batch)
        assert state.metrics["penalty"] == pytest.approx(mu)
        t = state.metrics["parameter_step"]
        with torch.no_grad():
            for p, g in zip(before.parameters(), gradient, strict=True):
                p -= t * g
            before[0].weight /= 1.0 + 0.02 * t
            before[4].weight.copy_(soft(before[4].weight, 0.01 * t))
        assert gap(model, before) < 1e-12
        for x in variables:
            x.requires_grad_()
        value = quadratic_penalty_energy(problem, variables, X, Y, mu)
        slopes = torch.autograd.grad(len(X) * value, list(variables))
        t = state.metrics["variable_step"]
        moved = [(x - t * g).detach() for x, g in zip(variables, slopes, strict=True)]
        moved[1] = soft(moved[1], 0.05 * t)
        for x, u in zip(state.variables, moved, strict=True):
            torch.testing.assert_close(x, u, rtol=1e-11, atol=1e-12)
        after = quadratic_penalty_energy(problem, state.variables, X, Y, mu) + mac_penalties(problem, state.variables)
        assert state.metrics["penalised_objective"] == pytest.approx(float(after.detach()), rel=1e-12)
        assert float(after.detach()) < start


def test_mac_reaches_a_stationary_point_and_then_stalls():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(3, 2), nn.Tanh(), nn.Linear(2, 2)).double()
    X, Y = torch.randn(10, 3, dtype=F64), torch.randn(10, 2, dtype=F64)
    decay = {l: lb.penalties.SquaredL2(0.3) for l in (1, 2)}
    problem = lb.lift(model, loss=lb.SquaredError(), parameter_penalties=decay)
    result = solvers.run(problem, (X, Y), baselines.MACQP(growth=1.0), epochs=1000, record_every=1000)
    x = result.state.variables[1].requires_grad_()
    coupling = 0.5 * (x - model[:2](X)).square().sum(1)
    value = (coupling + 0.5 * (model[2](x) - Y).square().sum(1)).mean()
    value = value + 0.15 * (model[0].weight.square().sum() + model[2].weight.square().sum())
    gradient = torch.autograd.grad(value, [x, *model.parameters()])
    assert max(float(g.abs().max()) for g in gradient) < 1e-6
    assert result.outcome is solvers.Outcome.STALLED and "Q_μ" in result.message


def test_mac_without_activations_is_the_lifted_energy():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(3, 5), nn.Linear(5, 4), nn.Linear(4, 2)).double()
    problem = lb.lift(model, loss=lb.SquaredError(), weights=[0.4, 1.9])
    batch = Batch.whole(problem, torch.randn(7, 3, dtype=F64), torch.randn(7, 2, dtype=F64))
    solver = baselines.MACQP()
    state = solver.init(problem, batch)
    for _ in range(3):
        state = solver.step(problem, state, batch)
        energy = float(problem.energy(state.variables, batch.X, batch.Y))
        assert state.metrics["penalised_objective"] == pytest.approx(energy, rel=1e-12)


def test_mac_says_that_it_differentiates_activations():
    assert repr(baselines.MACQP(penalty=2.0)) == (
        "MACQP(penalty=2.0, growth=2.0, growth_every=50, largest_penalty=100.0; differentiates activations)"
    )
    assert "DIFFERENTIATES ACTIVATIONS" in baselines.MACQP.__doc__


# Classical lifted networks


@pytest.mark.parametrize(
    "activation",
    [act.Identity(), act.ReLU(), act.Box(-0.3, 0.7), act.Sparsemax(), act.BallProjection(0.8)],
    ids=repr,
)
def test_the_classical_coupling_is_the_bregman_loss_plus_the_distance_to_the_domain(activation):
    torch.manual_seed(0)
    z = 2.0 * torch.randn(50, 4, dtype=F64)
    x = activation(torch.randn(50, 4, dtype=F64))
    classical = 0.5 * (x - z).square().sum(1)
    distance = 0.5 * (z - activation(z)).square().sum(1)
    torch.testing.assert_close(classical, lb.bregman_loss(x, z, activation) + distance, rtol=1e-12, atol=1e-13)


def classical_case():
    torch.manual_seed(2)
    model = nn.Sequential(nn.Linear(5, 6), nn.ReLU(), nn.Linear(6, 4), nn.Hardtanh(-0.2, 0.6), nn.Linear(4, 3)).double()
    problem = lb.lift(
        model, loss=lb.SquaredError(), weights=[0.7, 1.6], penalties={1: lb.penalties.L1(0.04)},
        parameter_penalties={2: lb.penalties.SquaredL2(0.03)},
    )  # fmt: skip
    return problem, Batch.whole(problem, torch.randn(9, 5, dtype=F64), torch.randn(9, 3, dtype=F64))


def classical_energy(problem, variables, X, Y):
    model, (x1, x2) = problem.model, variables
    value = 0.7 * 0.5 * (x1 - model[0](X)).square().sum(1) + 1.6 * 0.5 * (x2 - model[2](x1)).square().sum(1)
    value = value + 0.5 * (model[4](x2) - Y).square().sum(1)
    return value.mean()


def test_classical_steps_are_projected_gradient_steps_on_its_energy():
    problem, batch = classical_case()
    solver = baselines.ClassicalLifted(
        sweep=solvers.Jacobi(), step_rule=solvers.FixedStep(parameter=0.05, variable=0.2)
    )
    state = solver.init(problem, batch)
    for _ in range(3):
        twin = copy.deepcopy(problem.model)
        variables = [x.clone().requires_grad_() for x in state.variables]
        value = classical_energy(problem, variables, batch.X, batch.Y)
        slopes = torch.autograd.grad(value, [*variables, *problem.model.parameters()])
        penalties = 0.04 * variables[0].abs().sum(1).mean() + 0.015 * twin[2].weight.square().sum()
        state = solver.step(problem, state, batch)
        assert state.metrics["start_energy"] == pytest.approx(float((value + penalties).detach()), rel=1e-12)
        with torch.no_grad():
            for p, g in zip(twin.parameters(), slopes[2:], strict=True):
                p -= 0.05 * g
            twin[2].weight /= 1.0 + 0.05 * 0.03
        assert gap(problem.model, twin) < 1e-12
        # The step of eq. 17 has ½‖x‖² in its proximal part: gradient without λx, then division by 1 + tλ.
        t, parts = 0.2, []
        for x, g, weight in zip(variables, slopes[:2], (0.7, 1.6), strict=True):
            v = x - t * (9 * g - weight * x)
            parts.append((v / (1.0 + t * weight)).detach())
        first = (parts[0] - 0.04 * t / (1.0 + 0.7 * t)).clamp(min=0.0)
        torch.testing.assert_close(state.variables[1], first, rtol=1e-11, atol=1e-12)
        torch.testing.assert_close(state.variables[2], parts[1].clamp(-0.2, 0.6), rtol=1e-11, atol=1e-12)


def test_the_classical_energy_never_increases():
    problem, batch = classical_case()
    solver = baselines.ClassicalLifted(inner_steps=2)
    state = solver.init(problem, batch)
    values = []
    for _ in range(60):
        state = solver.step(problem, state, batch)
        values.append(state.metrics["start_energy"])
    assert all(after <= before * (1 + 1e-13) for before, after in pairwise(values))
    assert values[-1] < 0.7 * values[0]
    assert all(bool(problem.network[l].contains(state.variables[l]).all()) for l in (1, 2))


# Fenchel lifted networks and LPOM


def test_for_relu_the_fenchel_energy_is_the_lifted_energy():
    case = make("relu")
    X, Y = case.data
    torch.manual_seed(5)
    variables = lb.LiftedState([torch.rand(12, 7, dtype=F64), torch.rand(12, 4, dtype=F64)])
    model = case.problem.model

    def b(v, u):  # as printed
        return 0.5 * v.square() + 0.5 * u.clamp(min=0.0).square() - u * v

    with torch.no_grad():
        parts = b(variables[1], model[0](X)).sum(1) + b(variables[2], model[2](variables[1])).sum(1)
        energy = float((parts + 0.5 * (model[4](variables[2]) - Y).square().sum(1)).mean())
    assert float(case.problem.energy(variables, X, Y)) == pytest.approx(energy, rel=1e-12)
    problem = case.problem
    state = baselines.FenchelLifted().init(problem, Batch.whole(problem, X, Y))
    state.variables = variables
    state = baselines.FenchelLifted().step(problem, state, Batch.whole(problem, X, Y))
    assert state.metrics["start_energy"] == pytest.approx(energy, rel=1e-12)


INVERTIBLE = {
    act.Tanh(): math.atanh,
    act.Sigmoid(): lambda x: math.log(x / (1 - x)),
    act.Arctan(): math.tan,
    act.Asinh(): math.sinh,
    act.LeakyReLU(0.3): lambda x: x if x >= 0 else x / 0.3,
    act.Softplus(): lambda x: x + math.log(-math.expm1(-x)),
    act.ELU(0.6): lambda x: x if x >= 0 else math.log1p(x / 0.6),
}


def scalar(activation):
    return lambda t: float(activation(torch.tensor([t], dtype=F64)))


@pytest.mark.parametrize("activation", INVERTIBLE, ids=repr)
def test_fenchels_biconvex_function_is_the_bregman_loss(activation):
    sigma, inverse = scalar(activation), INVERTIBLE[activation]
    for u, v in [(-1.3, sigma(0.4)), (0.8, sigma(-0.6)), (2.1, sigma(2.5))]:
        at_zero = sigma(0.0)
        value = quad(sigma, 0, u)[0] + quad(inverse, at_zero, v)[0] - u * v
        # φ*(0) + φ(σ(0)) = <0, σ(0)> = 0 at the pair (0, σ(0)): the constant is 0.
        bregman = float(lb.bregman_loss(torch.tensor([[v]], dtype=F64), torch.tensor([[u]], dtype=F64), activation))
        assert value == pytest.approx(bregman, abs=1e-8)


@pytest.mark.parametrize("activation", INVERTIBLE, ids=repr)
def test_lpoms_terms_are_the_bregman_loss_up_to_a_constant(activation):
    sigma, inverse = scalar(activation), INVERTIBLE[activation]
    zero = torch.zeros(1, dtype=F64)
    constant = float(activation.potential(zero)) + float(activation.conjugate(zero))  # φ(0) + φ*(0)
    for z, x in [(-1.3, sigma(0.4)), (0.8, sigma(-0.6)), (2.1, sigma(2.5))]:
        f = quad(lambda t: inverse(t) - t, 0, x)[0]
        g = quad(lambda t: sigma(t) - t, 0, z)[0]
        bregman = float(lb.bregman_loss(torch.tensor([[x]], dtype=F64), torch.tensor([[z]], dtype=F64), activation))
        assert f + g + 0.5 * (x - z) ** 2 == pytest.approx(bregman - constant, abs=1e-8)


@pytest.mark.parametrize("name", ["relu", "smooth", "classes"])
def test_the_fenchel_energy_never_increases(name):
    case = make(name)
    batch = Batch.whole(case.problem, *case.data)
    solver = baselines.FenchelLifted(inner_steps=3)
    state = solver.init(case.problem, batch)
    values = [float(case.problem.energy(state.variables, *case.data))]
    for _ in range(25):
        state = solver.step(case.problem, state, batch)
        values.append(float(case.problem.energy(state.variables, *case.data)))
    assert all(after <= before * (1 + 1e-13) for before, after in pairwise(values))
    assert values[-1] < 0.7 * values[0]


@pytest.mark.parametrize("safeguard", [True, False])
def test_lpom_steps_by_hand(safeguard):
    torch.manual_seed(4)
    model = nn.Sequential(nn.Linear(3, 5), nn.Tanh(), nn.Linear(5, 4), nn.Sigmoid(), nn.Linear(4, 2)).double()
    with torch.no_grad():
        for layer in (2, 4):
            model[layer].weight.mul_(0.5)  # contractions: the safeguard has nothing to do
    X, Y = torch.randn(30, 3, dtype=F64), torch.randn(30, 2, dtype=F64)
    penalties = {2: lb.penalties.L1(0.1)}  # prox_{Ψ + 0.1|.|/λ} is σ(. - 0.1/λ) for the sigmoid
    problem = lb.lift(model, loss=lb.SquaredError(), weights=[2.5, 1.5], penalties=penalties)
    solver = baselines.LPOM(safeguard=safeguard)
    batch = Batch.whole(problem, X, Y)
    state = solver.init(problem, batch)
    for _ in range(1 if safeguard else 3):  # after one step W_3 has grown, and the safeguard would act
        twin = copy.deepcopy(model)
        x1, x2 = (x.clone() for x in state.variables)
        state = solver.step(problem, state, batch)
        with torch.no_grad():
            error = twin[4](x2) - Y
            x2 = twin[2](x1).sub(error @ twin[4].weight / 1.5).sub(0.1 / 1.5).sigmoid()
            d = twin[2](x1).sigmoid() - x2
            x1 = twin[0](X).sub(1.5 / 2.5 * d @ twin[2].weight).tanh()
            for linear, below, d in (
                (twin[0], X, twin[0](X).tanh() - x1),
                (twin[2], x1, twin[2](x1).sigmoid() - x2),
                (twin[4], x2, twin[4](x2) - Y),
            ):
                A = np.column_stack([below.numpy(), np.ones(len(X))])
                change = torch.from_numpy(np.linalg.pinv(A) @ d.numpy())
                linear.weight -= change[:-1].T
                linear.bias -= change[-1]
        torch.testing.assert_close(state.variables[1], x1, rtol=1e-9, atol=1e-9)
        torch.testing.assert_close(state.variables[2], x2, rtol=1e-9, atol=1e-9)
        assert gap(model, twin) < 1e-9
        assert state.metrics["fixed_points"] == 1.0


@pytest.mark.parametrize("prox_weight", [0.0, 0.4])
@pytest.mark.parametrize("samples", [20, 3])
def test_lpom_solves_least_squares_in_one_step(samples, prox_weight):
    torch.manual_seed(0)
    X, Y = torch.randn(samples, 4, dtype=F64), torch.randn(samples, 3, dtype=F64)
    model = nn.Sequential(nn.Linear(4, 3)).double()
    problem = lb.lift(model, loss=lb.SquaredError())
    batch, solver = Batch.whole(problem, X, Y), baselines.LPOM(prox_weight=prox_weight)

    def packed():
        return np.column_stack([model[0].weight.detach().numpy(), model[0].bias.detach().numpy()]).T.copy()

    start = packed()
    solver.step(problem, solver.init(problem, batch), batch)
    # min (1/2s)‖AΘ - Y‖² + (τ/2)‖Θ - Θ⁰‖², by least squares on the stacked system; for τ = 0 the nearest solution
    A = np.column_stack([X.numpy(), np.ones(samples)])
    stacked = np.vstack([A / np.sqrt(samples), np.sqrt(prox_weight) * np.eye(5)])
    right = np.vstack([(Y.numpy() - A @ start) / np.sqrt(samples), np.zeros((5, 3))])
    np.testing.assert_allclose(packed(), start + np.linalg.lstsq(stacked, right, rcond=None)[0], rtol=1e-9, atol=1e-10)


@pytest.mark.parametrize("name", [n for n in NAMES if n != "joint"])
def test_guarded_lpom_never_increases_the_energy(name):
    case = make(name)
    batch = Batch.whole(case.problem, *case.data)
    solver = baselines.LPOM(variable_steps=2)
    state = solver.init(case.problem, batch)
    with torch.no_grad():
        for parameter in case.problem.model.parameters():
            parameter.mul_(3.0)  # no contraction: the safeguard is needed
    passed, values = [], [float(case.problem.energy(state.variables, *case.data))]
    for _ in range(25):
        state = solver.step(case.problem, state, batch)
        values.append(float(case.problem.energy(state.variables, *case.data)))
        passed.append(state.metrics["fixed_points"])
    assert all(after <= before * (1 + 1e-12) + 1e-13 for before, after in pairwise(values))
    assert values[-1] < 0.5 * values[0] and min(passed) < 1.0


# Refusals


def dense(*activations, **settings):
    torch.manual_seed(0)
    modules, width = [], 4
    for activation in activations:
        modules += [nn.Linear(width, width + 1), activation.as_module()]
        width += 1
    return lb.lift(nn.Sequential(*modules, nn.Linear(width, 2)).double(), loss=lb.SquaredError(), **settings)


@pytest.mark.parametrize(
    ("solver", "problem", "required", "missing"),
    [
        *[
            (s, dense(act.Tanh(), penalties={1: lb.penalties.Box(-0.5, 0.5)}), "differentiate", r"penalties\[1\] = Box")
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
        (baselines.MACQP(), act.Tanh(), lb.penalties.Box(-0.1, 0.2)),
        (baselines.ClassicalLifted(), act.ReLU(), lb.penalties.Box(0.0, 0.2)),
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
