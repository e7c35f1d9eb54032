"""Algorithm 1 against brute force and against its printed formulas; descent, step sizes, residuals."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise

import pytest
import torch
from torch import nn

import lifted_bregman as lb
from lifted_bregman import solvers
from lifted_bregman.maps import PowerIteration
from lifted_bregman.solvers.implicit_sgd import Coupling, ImplicitSGD, Space
from lifted_bregman.solvers.inner_steps import Corrected, LayerByLayer, Literal, LoopOrder, Majorised
from lifted_bregman.solvers.schedules import Growing
from lifted_bregman.solvers.steps import CurvatureStep, FixedStep
from tests.sampling import over
from tests.solvers.brute_networks import F64, NETWORKS, ORDERS, assert_same, batches, brute, build

SPACES = pytest.mark.parametrize("space", [Space.SAMPLES, Space.WEIGHTS], ids=lambda s: s.name)


def brute_batch(net, X, Y, order, coupling, steps, tau, t_theta, t_x):
    """One batch of Algorithm 1, corrected; t_theta(net, l, x) and t_x(net, l) are the step sizes."""
    anchor, x = net.copy(), net.forward(X, Y)
    if isinstance(order, LayerByLayer):
        visits = [l for l in range(net.depth, 0, -1) for _ in range(steps)]
    else:
        visits = [l for _ in range(steps) for l in range(net.depth, 0, -1)]
    for l in visits:
        before = net.copy()
        theta = net.moved_theta(l, x, anchor, tau, t_theta(net, l, x))
        net.set_theta(l, theta)
        if l > 1:
            used = before if coupling is Coupling.BEFORE else net
            x[l - 1] = used.moved_x(l - 1, x, t_x(used, l - 1))
    return x


@pytest.fixture
def exact_norms(monkeypatch):
    """Power iterations replaced by eigenvalues of the operator written out as a matrix."""

    def estimate(self, normal, like, tolerance=0.0, max_steps=0):
        sizes = [part.numel() for part in like]
        columns = []
        for basis in torch.eye(sum(sizes), dtype=F64):
            parts = tuple(p.view(t.shape) for p, t in zip(basis.split(sizes), like, strict=True))
            columns.append(torch.cat([p.flatten() for p in normal(parts)]))
        return float(torch.linalg.eigvalsh(torch.stack(columns))[-1])

    monkeypatch.setattr(PowerIteration, "estimate", estimate)


@over(str, 2, name=NETWORKS, order=ORDERS, coupling=Coupling, space=[Space.SAMPLES, Space.WEIGHTS])
def test_corrected_iterates_against_brute_force(name, order, coupling, space, exact_norms):
    """Three batches, the last one smaller, with the step sizes from singular values."""
    problem, net, X, Y = NETWORKS[name]()
    tau, steps = 0.8, 3

    def t_theta(net, l, x):
        A = x[l - 1] if net.b[l] is None else torch.cat([x[l - 1], torch.ones(len(x[l - 1]), 1, dtype=F64)], 1)
        return 1.99 / (1.01 * net.weights[l] * float(torch.linalg.matrix_norm(A, 2)) ** 2 / len(A) + tau)

    def t_x(net, l):
        return 1.99 / (1.01 * net.weights[l + 1] * float(torch.linalg.matrix_norm(net.W[l + 1], 2)) ** 2)

    solver = ImplicitSGD(prox_weight=tau, inner_steps=steps, order=order, coupling=coupling, space=space)
    parts = batches(problem, X, Y)
    state = solver.init(problem, parts[0])
    for batch in parts:
        state = solver.step(problem, state, batch)
        x = brute_batch(net, batch.X, batch.Y, order, coupling, steps, tau, t_theta, t_x)
        assert_same(problem, state.variables, net, x)
    assert state.metrics["literal"] == 0.0 and state.steps == 3


@SPACES
@pytest.mark.parametrize("steps", [1, 2, 4])
@pytest.mark.parametrize("order", ORDERS, ids=repr)
def test_every_inner_iterate_with_fixed_steps_and_a_growing_weight(order, steps, space):
    problem, net, X, Y = NETWORKS["relu soft tanh"]()
    rule, weight = FixedStep(parameter=0.07, variable=0.4), Growing(0.5, 0.7)
    solver = ImplicitSGD(weight, steps, order=order, reading=Corrected(rule), space=space)
    parts = batches(problem, X, Y, 6)
    state = solver.init(problem, parts[0])
    for k, batch in enumerate(parts):
        state = solver.step(problem, state, batch)
        tau = 0.5 * (1 + k) ** 0.7
        x = brute_batch(net, batch.X, batch.Y, order, Coupling.AFTER, steps, tau, lambda *_: 0.07, lambda *_: 0.4)
        assert_same(problem, state.variables, net, x)
        assert state.metrics["prox_weight"] == pytest.approx(tau, rel=1e-14)


@pytest.mark.parametrize(
    "reading",
    [
        Literal(),
        Literal(batch_factor=True, bias_step=1.99),
        Literal(batch_factor=True, bias_step=0.7, anchored_bias=False),
    ],
    ids=repr,
)
@SPACES
@pytest.mark.parametrize("coupling", list(Coupling), ids=lambda c: c.name)
@pytest.mark.parametrize("order", ORDERS, ids=repr)
def test_literal_iterates_are_the_printed_formulas(order, coupling, reading, space, exact_norms):
    """Algorithm 1 in the paper's matrices, W_l of shape (in, out), for ReLU and soft threshold."""
    problem, _, X, Y = build((4, 6, 5, 3), ("relu", "soft"), [1.0, 1.0], on_variables={2: 0.05}, spread=2.0)
    W = [None, *(layer.map.module.weight.detach().T.clone() for layer in problem.network)]
    b = [None, *(layer.map.module.bias.detach().clone() for layer in problem.network)]
    tau_k, N = 0.3, 2
    soft = lambda v, a: v.sign() * (v.abs() - a).clamp(min=0)  # noqa: E731
    sigma = [None, lambda z: z.clamp(min=0), lambda z: soft(z, 0.2), lambda z: z]

    def prox(j, v, scale):  # prox_{scale (Ψ_j + R_j)}
        return v.clamp(min=0) if j == 1 else soft(v, scale * (0.2 + 0.05))

    norm2 = lambda M: float(torch.linalg.matrix_norm(M, 2)) ** 2  # noqa: E731
    solver = ImplicitSGD(tau_k, N, order=order, coupling=coupling, reading=reading, space=space)
    parts = batches(problem, X, Y, 6)
    state = solver.init(problem, parts[0])
    for batch in parts:
        B = len(batch.X)
        x = [batch.X, None, None, batch.Y]
        for j in (1, 2):
            x[j] = sigma[j](x[j - 1] @ W[j] + b[j])
        W0, b0 = list(W), list(b)
        visits = [l for l in (3, 2, 1) for _ in range(N)] if isinstance(order, LayerByLayer) else [3, 2, 1] * N
        for l in visits:
            old_W, old_b = W[l], b[l]
            tau_W = 1.99 * (B if reading.batch_factor else 1) / (norm2(x[l - 1]) + tau_k / 2)
            tau_b = tau_W if reading.bias_step is None else reading.bias_step
            d = sigma[l](x[l - 1] @ W[l] + b[l]) - x[l]
            pull_b = tau_k if reading.anchored_bias else 0.0
            W[l] = W[l] - tau_W * (x[l - 1].T @ d / B + tau_k * (W[l] - W0[l]))
            b[l] = b[l] - tau_b * (d.sum(0) / B + pull_b * (b[l] - b0[l]))
            if l > 1:
                j, used_W, used_b = l - 1, *((old_W, old_b) if coupling is Coupling.BEFORE else (W[l], b[l]))
                tau_x = 1.99 / norm2(used_W)
                d = sigma[l](x[j] @ used_W + used_b) - x[l]
                ahead = x[j] + tau_x / B * (x[j - 1] @ W[j] + b[j] - d @ used_W.T)
                x[j] = prox(j, B / (B + tau_x) * ahead, tau_x / (B + tau_x))
        state = solver.step(problem, state, batch)
        scale = max(1.0, max(float(w.abs().max()) for w in W[1:] + b[1:]))
        for l in (1, 2, 3):
            module = problem.network[l].map.module
            torch.testing.assert_close(module.weight.detach().T, W[l], rtol=0, atol=1e-11 * scale)
            torch.testing.assert_close(module.bias.detach(), b[l], rtol=0, atol=1e-11 * scale)
        for j in (1, 2):
            torch.testing.assert_close(state.variables[j], x[j], rtol=0, atol=1e-11 * scale)
    assert state.metrics["literal"] == 1.0 and "Literal" in repr(solver)


@dataclass(frozen=True)
class First(LoopOrder):
    """The first `count` visits of another order."""

    order: LoopOrder
    count: int

    def visits(self, depth, steps):
        return iter(list(self.order.visits(depth, steps))[: self.count])


@over(
    str,
    4,
    name=["relu soft tanh", "code penalty", "sparse weights"],
    way=[(Corrected, Space.WEIGHTS), (Majorised, Space.WEIGHTS), (Majorised, Space.SAMPLES)],
    order=ORDERS,
    tau=[0.0, 2.0],
)
def test_no_visit_increases_the_objective_of_the_batch(name, order, way, tau):
    """Steps 1.99/L with guaranteed L or those of majorants, x after Θ; E_B + P + (τ/2)‖Θ - Θ⁰‖² by brute force."""
    kind, space = way
    _, anchor, X, Y = NETWORKS[name]()
    values = [float(anchor.objective(anchor.forward(X, Y), anchor, tau))]
    depth, steps = anchor.depth, 4
    for count in range(1, depth * steps + 1):
        problem, net, X, Y = NETWORKS[name]()
        reading = kind(CurvatureStep(1.99, upper=True))
        solver = ImplicitSGD(tau, steps, order=First(order, count), reading=reading, space=space)
        batch = solvers.Batch.whole(problem, X, Y)
        state = solver.step(problem, solver.init(problem, batch), batch)
        net = brute(problem, net.names[1:-1], net.weights[1:-1], net.on_variables, net.on_weights)
        values.append(float(net.objective([X, *state.variables, Y], anchor, tau)))
    assert all(after <= before + 1e-12 for before, after in pairwise(values)) and values[-1] < 0.9 * values[0]


def test_the_steps_are_close_to_the_limit_but_below_it():
    """The default's estimate with its margin lies within 5 % of the norm, from above."""
    problem, net, X, Y = build((8, 20, 15, 3), ("relu", "tanh"), [1.0, 1.0])
    batch = solvers.Batch.whole(problem, X, Y)
    point = problem.point(problem.forward_state(X), batch.X, batch.Y)
    reading, memory = Corrected(), {}
    for l, x in ((1, net.forward(X, Y)[0]), (2, net.forward(X, Y)[1]), (3, net.forward(X, Y)[2])):
        A = torch.cat([x, torch.ones(len(x), 1, dtype=F64)], 1)
        limit = 2.0 / (float(torch.linalg.matrix_norm(A, 2)) ** 2 / len(A) + 0.4)
        assert 0.93 * limit < reading.parameter_steps(problem, point, l, 0.4, memory).weight < limit
    for l in (1, 2):
        limit = 2.0 / float(torch.linalg.matrix_norm(net.W[l + 1], 2)) ** 2
        assert 0.93 * limit < reading.variable_step(problem, point, l, memory) < limit


def test_one_layer_solves_the_ridge_problem_towards_the_last_parameters():
    """Θ^k = argmin (1/2|B|)‖AΘ - Y‖² + (τ/2)‖Θ - Θ^{k-1}‖², a linear system."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 3, dtype=F64))
    problem = lb.lift(model, loss=lb.SquaredError())
    X, Y = torch.randn(9, 4, dtype=F64), torch.randn(9, 3, dtype=F64)
    solver = ImplicitSGD(0.6, 300, reading=Corrected(CurvatureStep(1.0, upper=False)))
    theta = torch.cat([model[0].weight.detach(), model[0].bias.detach()[:, None]], 1)
    state = solver.init(problem, batches(problem, X, Y, 3)[0])
    for batch in batches(problem, X, Y, 3):
        state = solver.step(problem, state, batch)
        A = torch.cat([batch.X, torch.ones(3, 1, dtype=F64)], 1)
        H = A.T @ A / 3 + 0.6 * torch.eye(5, dtype=F64)
        theta = torch.linalg.solve(H, (A.T @ batch.Y / 3 + 0.6 * theta.T)).T
        found = torch.cat([model[0].weight.detach(), model[0].bias.detach()[:, None]], 1)
        torch.testing.assert_close(found, theta, rtol=0, atol=1e-12)


@SPACES
def test_the_residual_of_a_step_is_that_before_the_last_move_of_the_top_layer(space):
    """With N = 2 it is the residual where N = 1 ends."""
    found = {}
    for N in (1, 2):
        problem, _, X, Y = NETWORKS["relu soft tanh"]()
        solver = ImplicitSGD(1.0, N, reading=Corrected(FixedStep(0.05, 0.3)), space=space)
        batch = solvers.Batch.whole(problem, X, Y)
        state = solver.step(problem, solver.init(problem, batch), batch)
        d = problem.evaluate(state.variables, X, Y).residual(4)
        found[N] = (state.metrics["residual"][4], float(torch.linalg.vector_norm(d)) / len(X) ** 0.5)
    assert found[2][0] == pytest.approx(found[1][1], rel=1e-12) and found[2][0] != pytest.approx(found[1][0], rel=1e-3)


def test_the_default_weight_trains_a_digits_classifier():
    """Beside the mean over batches of 100 a weight of 100 leaves it where it started, at 1 of 10 classes."""
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(64, 32), torch.nn.ReLU(), torch.nn.Linear(32, 10))
    result = lb.fit(lb.lift(model, loss=lb.CrossEntropy()), "digits", ImplicitSGD(), epochs=2, batch_size=100)
    assert result.history[-1]["accuracy"] > 0.85
