"""Algorithm 1 with explicit parameter steps and with other inner solvers."""

from __future__ import annotations

import pytest
import torch

from lifted_bregman import errors, solvers
from lifted_bregman.problem import energies
from lifted_bregman.solvers import baselines
from lifted_bregman.solvers.admm import ADMM
from lifted_bregman.solvers.coordinate_descent import CoordinateDescent
from lifted_bregman.solvers.implicit_sgd import ImplicitSGD, ParameterUpdate
from lifted_bregman.solvers.inner_steps import Corrected, LayerByLayer
from lifted_bregman.solvers.parameters import copy_parameters
from lifted_bregman.solvers.steps import CurvatureStep, FixedStep
from tests.solvers.brute_networks import NETWORKS, ORDERS, assert_same, batches, brute, build

# The explicit variant


@pytest.mark.parametrize("order", ORDERS, ids=repr)
@pytest.mark.parametrize("name", ["relu soft tanh", "sparse weights"])
def test_explicit_variant_against_brute_force(name, order):
    problem, net, X, Y = NETWORKS[name]()
    tau, steps, t = 2.5, 3, 0.3
    solver = ImplicitSGD(
        tau, steps, order=order, parameters=ParameterUpdate.EXPLICIT, reading=Corrected(FixedStep(1.0, t))
    )
    parts = batches(problem, X, Y)
    state = solver.init(problem, parts[0])
    assert state.anchor == {}
    for batch in parts:
        state = solver.step(problem, state, batch)
        x = net.forward(batch.X, batch.Y)
        hidden = range(net.depth - 1, 0, -1)
        visits = [l for l in hidden for _ in range(steps)] if isinstance(order, LayerByLayer) else [*hidden] * steps
        for l in visits:
            x[l] = net.moved_x(l, x, t)
        moved = {l: net.moved_theta(l, x, net, 0.0, 1 / tau) for l in range(1, net.depth + 1)}
        for l, theta in moved.items():
            net.set_theta(l, theta)
        assert_same(problem, state.variables, net, x)


def test_explicit_variant_is_a_gradient_step_on_the_minimum_over_the_variables():
    """Finite differences of min_X E(Θ, X), found by many steps, along a random direction."""
    problem, net, X, Y = build((3, 5, 4, 2), ("tanh", "tanh"), [0.8, 1.4])
    torch.manual_seed(5)
    direction = {l: [torch.randn_like(p) for p in own] for l, own in net.theta.items()}
    tau = 50.0

    def envelope(shift):
        moved = net.copy()
        for l, own in moved.theta.items():
            moved.set_theta(l, [p + shift * v for p, v in zip(own, direction[l], strict=True)])
        x = moved.forward(X, Y)
        solver = ImplicitSGD(1e12, 250, parameters=ParameterUpdate.EXPLICIT, reading=Corrected(FixedStep(1.0, 0.5)))
        for l, own in moved.theta.items():
            for p, value in zip(problem.network[l].map.parameters.values(), own, strict=True):
                p.data.copy_(value)
        batch = solvers.Batch.whole(problem, X, Y)
        state = solver.step(problem, solver.init(problem, batch), batch)
        return float(moved.energy([X, *state.variables, Y])), x

    slope = (envelope(1e-4)[0] - envelope(-1e-4)[0]) / 2e-4
    envelope(0.0)
    start = {l: [p.detach().clone() for p in net.theta[l]] for l in net.theta}
    for l in start:
        for p, value in zip(problem.network[l].map.parameters.values(), start[l], strict=True):
            p.data.copy_(value)
    batch = solvers.Batch.whole(problem, X, Y)
    solver = ImplicitSGD(tau, 250, parameters=ParameterUpdate.EXPLICIT, reading=Corrected(FixedStep(1.0, 0.5)))
    solver.step(problem, solver.init(problem, batch), batch)
    found = 0.0
    for l in start:
        for p, old, v in zip(problem.network[l].map.parameters.values(), start[l], direction[l], strict=True):
            found += float(((old - p.detach()) * tau * v).sum())
    assert found == pytest.approx(slope, rel=1e-6)


# Other inner solvers


def test_the_proximal_problem_has_the_term_everywhere():
    """Energy, partial energies and proximal map, also of biases, of frozen parts and with a penalty of its own."""
    problem, net, X, Y = NETWORKS["sparse weights"]()
    problem.network[2].map.module.weight.requires_grad_(False)
    anchor = copy_parameters(problem)
    start = net.copy()
    for layer in problem.network:
        for p in layer.map.parameters.values():
            p.data.add_(torch.randn_like(p), alpha=0.3)
    sub = problem.anchored(anchor, 1.7)
    net = brute(problem, net.names[1:-1], net.weights[1:-1], net.on_variables, net.on_weights)
    state = sub.forward_state(X)
    expected = float(net.objective([X, *state, Y], start, 1.7))
    assert float(sub.energy(state, X, Y)) == pytest.approx(expected, rel=1e-13)
    assert float(sub.layer_energies(state, X, Y).sum()) == pytest.approx(expected, rel=1e-13)
    assert float(problem.energy(state, X, Y)) < expected
    other = sub.with_weights([2.0, 0.3])
    net.weights[1:3] = [2.0, 0.3]
    assert float(other.energy(state, X, Y)) == pytest.approx(
        float(net.objective([X, *state, Y], start, 1.7)), rel=1e-13
    )
    t = 0.4
    values = {name: p.detach() for name, p in problem.network[3].map.parameters.items()}
    moved = sub.parameter_prox(3, values, t)
    W, b = values["weight"], values["bias"]
    pulled = (W + t * 1.7 * anchor[3]["weight"]) / (1 + t * 1.7)
    shrunk = pulled.sign() * (pulled.abs() - 0.02 * t / (1 + t * 1.7)).clamp(min=0)
    torch.testing.assert_close(moved["weight"], shrunk, rtol=0, atol=1e-14)
    torch.testing.assert_close(moved["bias"], (b + t * 1.7 * anchor[3]["bias"]) / (1 + t * 1.7), rtol=0, atol=1e-14)


def test_a_sub_problem_of_a_sub_problem_has_both_terms():
    """In its energy and its proximal map; with a weight of 0, the outer one."""
    problem, _, X, Y = NETWORKS["sparse weights"]()
    anchors = []
    for _ in range(2):
        anchors.append(copy_parameters(problem))
        for layer in problem.network:
            for p in layer.map.parameters.values():
                p.data.add_(torch.randn_like(p), alpha=0.3)
    now, state, t = copy_parameters(problem), problem.forward_state(X), 0.4
    apart = [sum(float((now[l][k] - a[l][k]).square().sum()) for l in a for k in a[l]) for a in anchors]
    outer = problem.anchored(anchors[0], 1.7)
    for tau in (0.6, 0.0):
        sub = outer.anchored(anchors[1], tau)
        added = 0.5 * (1.7 * apart[0] + tau * apart[1])
        assert float(sub.energy(state, X, Y)) == pytest.approx(float(problem.energy(state, X, Y)) + added, rel=1e-13)
        assert float(energies.quadratic_terms(sub)) == pytest.approx(added, rel=1e-13)
        assert sub.anchor_weight == 1.7 + tau
        expected = now[2]["bias"] + t * 1.7 * anchors[0][2]["bias"] + t * tau * anchors[1][2]["bias"]
        moved = sub.parameter_prox(2, now[2], t)["bias"]
        torch.testing.assert_close(moved, expected / (1 + t * (1.7 + tau)), rtol=0, atol=1e-14)
    assert energies.quadratic_terms(problem) == 0.0
    assert float(sub.objective(X, Y)) == float(problem.objective(X, Y))  # the network's own value has no such term


INNER = {
    "top down": (solvers.ProximalGradient(), 250),
    "backtracking": (solvers.ProximalGradient(step_rule=solvers.Backtracking(), acceleration=solvers.Anderson(6)), 50),
    "Anderson": (solvers.ProximalGradient(acceleration=solvers.Anderson(8)), 80),
    "coordinate descent": (CoordinateDescent(), 40),
}


@pytest.mark.parametrize("name", INNER)
def test_inner_solvers_find_a_stationary_point_of_the_sub_problem(name):
    """The gradient of E_B + (τ/2)‖Θ - Θ⁰‖² in Θ by autograd, biases included, and fixed points in x by brute force."""
    problem, start, X, Y = build((4, 5, 3, 2), ("tanh", "leaky"), [0.7, 1.3])
    inner, steps = INNER[name]
    solver = ImplicitSGD(2.0, steps, solver=inner)
    batch = solvers.Batch.whole(problem, X, Y)
    solver.require(problem)
    state = solver.step(problem, solver.init(problem, batch), batch)
    net = brute(problem, start.names[1:-1], start.weights[1:-1])
    x = [X, *state.variables, Y]
    assert float(net.distance(start)) > 1e-3
    for l in range(1, 4):
        moved = net.moved_theta(l, x, start, 2.0, 1.0)
        assert all(float((p - q).abs().max()) < 1e-6 for p, q in zip(net.theta[l], moved, strict=True))
    for l in (1, 2):
        assert float((x[l] - net.moved_x(l, x, 0.2)).abs().max()) < 1e-6


def test_corrected_sweeps_and_an_inner_solver_agree_in_the_limit():
    results = []
    for settings in (
        {"reading": Corrected(CurvatureStep(1.0))},
        {"solver": solvers.ProximalGradient(acceleration=solvers.Anderson(8))},
    ):
        problem, _, X, Y = build((4, 5, 3, 2), ("tanh", "leaky"), [0.7, 1.3])
        solver = ImplicitSGD(2.0, 80 if "solver" in settings else 250, **settings)
        batch = solvers.Batch.whole(problem, X, Y)
        solver.step(problem, solver.init(problem, batch), batch)
        results.append(torch.cat([p.detach().flatten() for p in problem.model.parameters()]))
    torch.testing.assert_close(results[0], results[1], rtol=0, atol=1e-7)


def test_a_solver_that_would_leave_biases_out_is_refused():
    problem, _, X, Y = build((4, 5, 2), ("relu",), [1.0])
    solver = ImplicitSGD(1.0, 2, solver=ADMM())
    batch = solvers.Batch.whole(problem, X, Y)
    with pytest.raises(errors.CompatibilityError, match="bias"):
        solver.step(problem, solver.init(problem, batch), batch)


SPARSE = {1: solvers.TargetSparsity(0.5)}
UNFIT = {
    "another energy": (baselines.ClassicalLifted(), r"ClassicalLifted requires .* τ = 0.5; .* or prox_weight=0"),
    "biases": (ADMM(), r"ADMM requires .* τ = 0.5; .* bias of .* CoordinateDescent\(\) or prox_weight=0"),
    "wrapped": (solvers.Constrained(baselines.ClassicalLifted()), "ClassicalLifted"),
    "wrapped twice": (solvers.ModelAveraging(2, solvers.Constrained(ADMM(inner_steps=1), inner_steps=1)), "ADMM"),
}
TAKING = {
    "proximal gradient": solvers.ProximalGradient(),
    "coordinate descent": CoordinateDescent(),
    "Bregman coordinate descent": solvers.BregmanCoordinateDescent(),
    "Bregman iterations": solvers.BregmanIterations(),
    "Fenchel lifted": baselines.FenchelLifted(),
    "MAC-QP": baselines.MACQP(),
    "constrained": solvers.Constrained(),
    "averaged": solvers.ModelAveraging(2),
    "targeted variables": solvers.TargetedPenalties(solvers.ProximalGradient(), variables=SPARSE),
}


@pytest.mark.parametrize("name", UNFIT)
def test_an_inner_solver_that_would_leave_out_the_proximal_term_is_refused_before_any_step(name):
    problem, _, X, Y = build((4, 5, 3, 2), ("relu", "relu"), [0.7, 1.3])
    inner, sentence = UNFIT[name]
    with pytest.raises(errors.CompatibilityError, match=rf"{sentence}"):
        ImplicitSGD(0.5, 2, solver=inner).require(problem)
    with pytest.raises(errors.CompatibilityError, match=rf"{sentence.replace('0.5', '1')}"):
        solvers.ImplicitParallel(2, 0.5, inner).require(problem)
    solver = ImplicitSGD(0.0, 2, solver=inner)  # without a term there is nothing to leave out
    solver.require(problem)
    batch = solvers.Batch.whole(problem, X, Y)
    assert solver.step(problem, solver.init(problem, batch), batch).variables is not None


@pytest.mark.parametrize("tau", [0.0, 0.5])
def test_targets_for_weights_are_refused_inside_and_taken_outside(tau):
    """Inside, the weights of the penalties would be adjusted and the penalties never applied."""
    problem, _, X, Y = build((4, 5, 3, 2), ("relu", "relu"), [0.7, 1.3])
    with pytest.raises(errors.CompatibilityError, match=r"TargetedPenalties .* wrap the outer solver in it"):
        ImplicitSGD(tau, 2, solver=solvers.TargetedPenalties(solvers.ProximalGradient(), SPARSE)).require(problem)
    strong = {1: solvers.TargetSparsity(0.5, start=100.0)}
    solver = solvers.TargetedPenalties(ImplicitSGD(tau, 2, solver=solvers.ProximalGradient()), strong)
    solver.require(problem)
    batch = solvers.Batch.whole(problem, X, Y)
    solver.step(problem, solver.init(problem, batch), batch)
    assert float((problem.network[1].map.module.weight == 0).double().mean()) > 0.5


@pytest.mark.parametrize("name", [*TAKING, "ADMM without biases"])
def test_every_other_inner_solver_takes_the_proximal_term(name):
    """It hardly moves for a large τ, ‖Θ - Θ⁰‖ = O(1/τ), and clearly for a small one."""
    moves = []
    for tau in (1e-2, 1e8):
        problem, _, X, Y = build((4, 5, 3, 2), ("relu", "relu"), [0.7, 1.3], bias=name in TAKING)
        solver = ImplicitSGD(tau, 2, solver=TAKING.get(name, ADMM()))
        solver.require(problem)
        before = copy_parameters(problem)
        batch = solvers.Batch.whole(problem, X, Y)
        solver.step(problem, solver.init(problem, batch), batch)
        pairs = [(own[key], before[l][key]) for l, own in copy_parameters(problem).items() for key in own]
        moves.append(max(float((p - q).abs().max()) for p, q in pairs))
    assert moves[0] > 1e-3 and moves[1] < 1e-6
