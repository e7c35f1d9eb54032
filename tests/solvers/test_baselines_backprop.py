"""Baselines by back-propagation against torch.optim and hand-written loops, and the objective they descend on."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import nn

import lifted_bregman as lb
from lifted_bregman import activations as act
from lifted_bregman.penalties import Nuclear
from lifted_bregman.problem.nested import nested_objective
from lifted_bregman.solvers import Batch, CosineDecay, baselines
from lifted_bregman.solvers.baselines import Normalisation
from tests.problem.networks import conv_case
from tests.solvers.baseline_cases import BACKPROPAGATION, F64, gap, lifted, network, plain_objective, states_of
from tests.solvers.problems import make


def batches(problem, X, Y, size=4):
    whole = Batch.whole(problem, X, Y)
    return [whole.select(places) for epoch in range(3) for places in torch.arange(len(X)).roll(epoch).split(size)]


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
        (baselines.SGD(0.03, weight_decay=0.4), lambda p: torch.optim.SGD(p, lr=0.03, weight_decay=0.4)),
        (
            baselines.SGD(0.03, momentum=0.8, weight_decay=0.4),
            lambda p: torch.optim.SGD(p, lr=0.03, momentum=0.8, weight_decay=0.4),
        ),
        (baselines.Adam(0.02, weight_decay=0.4), lambda p: torch.optim.Adam(p, lr=0.02, weight_decay=0.4)),
        (baselines.AdamW(0.02), lambda p: torch.optim.AdamW(p, lr=0.02)),
        (
            baselines.AdamW(0.02, 0.7, 0.9, 1e-3, weight_decay=0.4),
            lambda p: torch.optim.AdamW(p, lr=0.02, betas=(0.7, 0.9), eps=1e-3, weight_decay=0.4),
        ),
    ],
    ids=[
        "SGD",
        "momentum",
        "Adam",
        "Adam with settings",
        *("SGD, decay", "momentum, decay", "Adam, decay"),
        "AdamW",
        "AdamW with settings",
    ],
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


CLIPPED = [
    (baselines.SGD, torch.optim.SGD, {"weight_decay": 0.4}),
    (baselines.SGD, torch.optim.SGD, {"momentum": 0.8, "weight_decay": 0.4}),
    (baselines.Adam, torch.optim.Adam, {"weight_decay": 0.4}),
    (baselines.AdamW, torch.optim.AdamW, {"weight_decay": 0.4}),
]


@pytest.mark.parametrize(("kind", "optimiser", "settings"), CLIPPED, ids=["SGD", "momentum", "Adam", "AdamW"])
def test_clipped_gradients_and_a_schedule_give_the_iterates_of_torch(kind, optimiser, settings):
    """9 steps, 3 of warm-up; the bound 1.7 is below some norms and above others."""
    model, X, Y = network()
    twin = copy.deepcopy(model)
    problem, theirs = lifted(model), optimiser(twin.parameters(), lr=0.05, **settings)
    warm_up = torch.optim.lr_scheduler.LinearLR(theirs, start_factor=1 / 3, total_iters=2)
    cosine = torch.optim.lr_scheduler.CosineAnnealingLR(theirs, T_max=6)
    rates = torch.optim.lr_scheduler.SequentialLR(theirs, [warm_up, cosine], milestones=[3])
    solver, norms = kind(CosineDecay(0.05, warm_up=3, steps=9), clip_norm=1.7, **settings), []
    sequence = batches(problem, X, Y)
    state = solver.init(problem, sequence[0])
    for batch in sequence:
        theirs.zero_grad()
        plain_objective(twin, batch.X, batch.Y).backward()
        norms.append(float(torch.nn.utils.clip_grad_norm_(twin.parameters(), 1.7)))
        rate = theirs.param_groups[0]["lr"]
        theirs.step()
        rates.step()
        state = solver.step(problem, state, batch)
        assert state.metrics["gradient_norm"] == pytest.approx(norms[-1], rel=1e-12)
        assert state.metrics["learning_rate"] == pytest.approx(rate, rel=1e-12)
        assert gap(model, twin) < 1e-12
    assert min(norms) < 1.7 < max(norms) and state.steps == len(norms) == 9


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
