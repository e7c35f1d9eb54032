"""Algorithm 1 against brute force and against its printed formulas; descent, variants, inner solvers, memory, state."""

from __future__ import annotations

import copy
from dataclasses import dataclass
from itertools import pairwise

import pytest
import torch
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode

import lifted_bregman as lb
from lifted_bregman import errors, solvers
from lifted_bregman.networks import PowerIteration
from lifted_bregman.solvers._anchor import copied, live
from lifted_bregman.solvers._curvature import RememberedPower
from lifted_bregman.solvers._proximal_problem import ProximalProblem
from lifted_bregman.solvers.admm import ADMM
from lifted_bregman.solvers.coordinate_descent import CoordinateDescent
from lifted_bregman.solvers.implicit_sgd import Coupling, ImplicitSGD, ParameterUpdate, Space
from lifted_bregman.solvers.readings import Corrected, LayerByLayer, Literal, LoopOrder, Majorised, Sweeps
from lifted_bregman.solvers.saga import SAGA
from lifted_bregman.solvers.schedules import Constant, Decaying, Growing
from lifted_bregman.solvers.steps import CurvatureStep, FixedStep
from tests.solvers.brute_force import Brute
from tests.solvers.problems import NAMES, make

F64 = torch.float64
MODULES = {
    "relu": nn.ReLU,
    "soft": lambda: nn.Softshrink(0.2),
    "tanh": nn.Tanh,
    "leaky": lambda: nn.LeakyReLU(0.3),
}
ORDERS = [LayerByLayer(), Sweeps()]
SPACES = pytest.mark.parametrize("space", [Space.SAMPLES, Space.WEIGHTS], ids=lambda s: s.name)


def build(widths, names, weights, bias=True, on_variables=None, on_weights=None, seed=0, spread=1.0):
    """The same network twice: lifted, and for brute force."""
    torch.manual_seed(seed)
    linears = [nn.Linear(a, b, bias=bias, dtype=F64) for a, b in pairwise(widths)]
    modules = [m for linear, name in zip(linears, names, strict=False) for m in (linear, MODULES[name]())]
    problem = lb.lift(
        nn.Sequential(*modules, linears[-1]),
        loss=lb.SquaredError(),
        weights=weights,
        penalties={l: lb.penalties.L1(a) for l, a in (on_variables or {}).items()},
        parameter_penalties={l: lb.penalties.L1(a) for l, a in (on_weights or {}).items()},
    )
    X = spread * torch.randn(12, widths[0], dtype=F64) + 0.3
    Y = torch.randn(12, widths[-1], dtype=F64)
    return problem, brute(problem, names, weights, on_variables, on_weights), X, Y


def brute(problem, names, weights, on_variables=None, on_weights=None):
    maps = [layer.map.module for layer in problem.network]
    return Brute(
        [torch.empty(0), *(m.weight.detach().clone() for m in maps)],
        [None, *(None if m.bias is None else m.bias.detach().clone() for m in maps)],
        ["", *names, "identity"],
        [0.0, *weights, 1.0],
        dict(on_variables or {}),
        dict(on_weights or {}),
    )


NETWORKS = {
    "relu soft tanh": lambda: build((4, 6, 3, 5, 2), ("relu", "soft", "tanh"), [0.7, 1.3, 0.5]),
    "tanh, no bias": lambda: build((3, 5, 2), ("tanh",), [1.6], bias=False),
    "code penalty": lambda: build((5, 3, 4, 2), ("leaky", "soft"), [1.0, 0.8], on_variables={2: 0.05}),
    "sparse weights": lambda: build((4, 5, 3, 3), ("relu", "tanh"), [0.9, 1.2], on_weights={1: 0.01, 3: 0.02}),
}


def batches(problem, X, Y, size=5):
    whole = solvers.Batch.whole(problem, X, Y)
    return [whole.select(places) for places in torch.arange(len(X)).split(size)]


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


def assert_same(problem, variables, net, x, atol=1e-10):
    for l in range(1, net.depth + 1):
        module = problem.network[l].map.module
        torch.testing.assert_close(module.weight.detach(), net.W[l], rtol=0, atol=atol)
        if net.b[l] is not None:
            torch.testing.assert_close(module.bias.detach(), net.b[l], rtol=0, atol=atol)
    for l in range(1, net.depth):
        torch.testing.assert_close(variables[l], x[l], rtol=0, atol=atol)


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


@SPACES
@pytest.mark.parametrize("coupling", list(Coupling), ids=lambda c: c.name)
@pytest.mark.parametrize("order", ORDERS, ids=repr)
@pytest.mark.parametrize("name", NETWORKS)
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


@pytest.mark.parametrize("tau", [0.0, 2.0])
@pytest.mark.parametrize(
    ("kind", "space"),
    [(Corrected, Space.WEIGHTS), (Majorised, Space.WEIGHTS), (Majorised, Space.SAMPLES)],
    ids=["Corrected", "Majorised", "Majorised in samples"],
)
@pytest.mark.parametrize("order", ORDERS, ids=repr)
@pytest.mark.parametrize("name", ["relu soft tanh", "code penalty", "sparse weights"])
def test_no_visit_increases_the_objective_of_the_batch(name, order, kind, space, tau):
    """Steps 1.99/L with guaranteed L or those of majorants, x after Θ; E_B + P + (τ/2)‖Θ - Θ⁰‖² by brute force."""
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
    anchor = copied(problem)
    start = net.copy()
    for layer in problem.network:
        for p in layer.map.parameters.values():
            p.data.add_(torch.randn_like(p), alpha=0.3)
    sub = ProximalProblem(problem, anchor, 1.7)
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
    with pytest.raises(errors.CompatibilityError, match="parameter_prox"):
        sub.parameter_penalties[3].prox(W)


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


# State, memory, work, settings

VARIANTS = {
    "sweeps": ImplicitSGD(Growing(0.5), 3),
    "layer by layer, before": ImplicitSGD(1.0, 2, order=LayerByLayer(), coupling=Coupling.BEFORE),
    "certified": ImplicitSGD(1.0, 2, reading=Corrected(CurvatureStep(1.5, upper=True))),
    "literal": ImplicitSGD(30.0, 3, reading=Literal()),
    "explicit": ImplicitSGD(5.0, 3, parameters=ParameterUpdate.EXPLICIT),
    "in samples": ImplicitSGD(Growing(0.5), 3, space=Space.SAMPLES),
    "in weights": ImplicitSGD(Growing(0.5), 3, space=Space.WEIGHTS),
    "majorised": ImplicitSGD(1.0, 3, reading=Majorised()),
    "inner solver": ImplicitSGD(1.0, 3, solver=solvers.ProximalGradient(acceleration=solvers.Nesterov())),
}


@pytest.mark.parametrize("name", VARIANTS)
def test_state_round_trip_continues_bitwise(name):
    solver = VARIANTS[name]
    case = make("smooth")
    parts = batches(case.problem, *case.data)
    state = solver.init(case.problem, parts[0])
    for k in range(4):
        state = solver.step(case.problem, state, parts[k % 3])
    saved, model = copy.deepcopy(state.state_dict()), copy.deepcopy(case.problem.model.state_dict())
    for k in range(4, 9):
        state = solver.step(case.problem, state, parts[k % 3])
    fresh = make("smooth", seed=1)
    fresh.problem.model.load_state_dict(model)
    again = solver.init(fresh.problem, parts[0])
    again.load_state_dict(saved)
    for k in range(4, 9):
        again = solver.step(fresh.problem, again, parts[k % 3])
    assert again.steps == 9 and again.metrics == state.metrics
    for p, q in zip(case.problem.model.parameters(), fresh.problem.model.parameters(), strict=True):
        assert torch.equal(p, q)
    for x, y in zip(state.variables, again.variables, strict=True):
        assert torch.equal(x, y)


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
        found[N] = (state.metrics["residual_4"], float(torch.linalg.vector_norm(d)) / len(X) ** 0.5)
    assert found[2][0] == pytest.approx(found[1][1], rel=1e-12) and found[2][0] != pytest.approx(found[1][0], rel=1e-3)


def test_power_iterations_start_from_the_state():
    """The vectors of all blocks are in the state after a step, and the next estimate needs two or three products."""
    problem, _, X, Y = NETWORKS["relu soft tanh"]()
    solver = ImplicitSGD(1.0, 4)
    batch = solvers.Batch.whole(problem, X, Y)
    state = solver.step(problem, solver.init(problem, batch), batch)
    assert set(state.power) == {"Θ_1", "Θ_2", "Θ_3", "Θ_4", "x_1", "x_2", "x_3"}
    W, products = problem.network[2].map.module.weight.detach(), []

    def normal(v):
        products.append(1)
        return (W.T @ (W @ v[0]),)

    found = RememberedPower(state.power, "x_1").estimate(normal, (W[0],))
    assert len(products) <= 3 and found == pytest.approx(float(torch.linalg.matrix_norm(W, 2)) ** 2, rel=5e-3)


class Allocations(TorchDispatchMode):
    """The sizes of tensors that appear in memory which was not there before."""

    def __init__(self, known):
        super().__init__()
        self.known, self.sizes = {t.untyped_storage().data_ptr() for t in known}, []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        out = func(*args, **(kwargs or {}))
        for t in out if isinstance(out, tuple | list) else [out]:
            if isinstance(t, torch.Tensor) and t.untyped_storage().data_ptr() not in self.known:
                self.sizes.append(t.untyped_storage().nbytes() // t.element_size())
        return out


@pytest.mark.parametrize(
    "name", ["sweeps", "in samples", "in weights", "layer by layer, before", "literal", "explicit", "majorised"]
)
def test_nothing_of_a_weights_size_is_made_in_a_step(name):
    problem, _, X, Y = build((31, 29, 37, 23), ("relu", "tanh"), [1.0, 1.0])
    solver = VARIANTS[name]
    batch = batches(problem, X, Y, 4)[0]
    state = solver.init(problem, batch)
    kept = [t for own in (*live(problem).values(), *state.anchor.values()) for t in own.values()]
    places = [p.data_ptr() for p in problem.model.parameters()]
    with Allocations(kept) as seen:
        solver.step(problem, state, batch)
    assert max(seen.sizes) < 29 * 31 and places == [p.data_ptr() for p in problem.model.parameters()]


@pytest.mark.parametrize(
    ("coupling", "sweep"),
    [
        (Coupling.AFTER, {"forward_maps": 3, "adjoints": 1, "parameter_gradients": 2, "prox_maps": 4}),
        (Coupling.BEFORE, {"forward_maps": 2, "adjoints": 1, "parameter_gradients": 2, "prox_maps": 3}),
    ],
    ids=lambda c: c.name if isinstance(c, Coupling) else "",
)
def test_counters_by_hand(coupling, sweep):
    """Two layers.  Forward pass: z_1, σ_1.  A sweep visits layer 2: z_2, σ_2, ∇_{Θ_2}; then x_1: z_2 and σ_2 again if
    Θ_2 has moved first, the adjoint, z_1, a prox; then layer 1: σ_1, ∇_{Θ_1}.
    """
    problem, _, X, Y = build((3, 4, 2), ("relu",), [1.0])
    solver = ImplicitSGD(1.0, 5, coupling=coupling)
    batch = solvers.Batch.whole(problem, X, Y)
    state = solver.init(problem, batch)
    assert not any(problem.work.as_dict().values())
    solver.step(problem, state, batch)
    forward = {"forward_maps": 1, "adjoints": 0, "parameter_gradients": 0, "prox_maps": 1}
    assert problem.work.as_dict() == {key: forward[key] + 5 * count for key, count in sweep.items()}


@pytest.mark.parametrize("name", NAMES)
def test_every_problem_of_the_list(name):
    case = make(name)
    before = float(case.problem.objective(*case.data))
    result = solvers.run(case.problem, case.data, ImplicitSGD(20.0, 5), epochs=8, batch_size=5)
    assert result.outcome is solvers.Outcome.FINISHED and result.history[-1]["objective"] < before


def test_a_growing_weight_lets_the_parameters_settle():
    moves = {}
    for name, weight in (("constant", 1.0), ("growing", Growing(1.0, 1.0))):
        case = make("relu")
        case_solver, kept = ImplicitSGD(weight, 5), []
        solvers.run(
            case.problem,
            case.data,
            case_solver,
            epochs=20,
            batch_size=4,
            callback=lambda state, row, c=case, k=kept: k.append(
                torch.cat([p.detach().flatten() for p in c.problem.model.parameters()])
            ),
        )
        moves[name] = float(torch.linalg.vector_norm(kept[-1] - kept[-2]))
    assert moves["growing"] < 0.2 * moves["constant"]


def test_a_literal_run_that_diverges_ends_with_an_outcome():
    """A bias step of 1.99 with τ = 100: |1 - 1.99·100| > 1."""
    case = make("relu")
    solver = ImplicitSGD(100.0, 15, reading=Literal(bias_step=1.99))
    result = solvers.run(case.problem, case.data, solver, epochs=40, batch_size=4)
    assert result.outcome is solvers.Outcome.DIVERGED and "after step" in result.message
    assert all(bool(p.isfinite().all()) for p in case.problem.model.parameters())


@pytest.mark.parametrize(
    ("settings", "says"),
    [
        ({"prox_weight": -1.0}, "prox_weight"),
        ({"prox_weight": "much"}, "prox_weight"),
        ({"prox_weight": 0.0, "parameters": ParameterUpdate.EXPLICIT}, "above 0"),
        ({"inner_steps": 0}, "inner_steps"),
        ({"order": "sweeps"}, "order"),
        ({"reading": "literal"}, "reading"),
        ({"coupling": True}, "coupling"),
        ({"parameters": "explicit"}, "parameters"),
        ({"solver": SAGA()}, "deterministic"),
        ({"solver": solvers.ProximalGradient(), "order": LayerByLayer()}, "defaults"),
        ({"solver": solvers.ProximalGradient(), "reading": Majorised()}, "defaults"),
    ],
)
def test_settings_that_are_refused(settings, says):
    with pytest.raises(errors.SettingError, match=says):
        ImplicitSGD(**settings)


@pytest.mark.parametrize("bad", [lambda: Constant(-1.0), lambda: Growing(0.0), lambda: Decaying(1.0, 0.0)])
def test_schedules_that_are_refused(bad):
    with pytest.raises(errors.SettingError):
        bad()


def test_literal_steps_need_dense_layers():
    model = nn.Sequential(nn.Conv2d(1, 2, 2), nn.ReLU(), nn.Flatten(), nn.Linear(8, 2)).double()
    problem = lb.lift(model, loss=lb.SquaredError())
    with pytest.raises(errors.CompatibilityError, match="dense"):
        ImplicitSGD(reading=Literal()).require(problem)
    ImplicitSGD().require(problem)
