"""Weights that move in sample space: the same iterates as in place, counted touches of weights, norms, the choice."""

from __future__ import annotations

from itertools import pairwise

import pytest
import torch
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode

import lifted_bregman as lb
from lifted_bregman import errors, solvers
from lifted_bregman._linalg import FollowedPower
from lifted_bregman.maps import Dense, PowerIteration
from lifted_bregman.problem.curvature import MARGIN, parameter_curvature
from lifted_bregman.solvers._batch_memory import BatchMemory
from lifted_bregman.solvers._factored_dense import FactoredDense, with_maps
from lifted_bregman.solvers._sample_space import samples_are_cheaper
from lifted_bregman.solvers.implicit_sgd import Coupling, ImplicitSGD, Space
from lifted_bregman.solvers.inner_steps import Corrected, LayerByLayer, Literal, Majorised, Sweeps
from lifted_bregman.solvers.steps import CurvatureStep, FixedStep
from tests import cases
from tests.sampling import over
from tests.solvers.problems import NAMES, make

F64 = torch.float64
FIXED = FixedStep(0.06, 0.35)
READINGS = [
    Corrected(),
    Corrected(FIXED),
    Corrected(CurvatureStep(1.5, upper=True)),
    Literal(),
    Literal(batch_factor=True, bias_step=0.02, anchored_bias=False),
    Majorised(),
    Majorised(FIXED),
]


@pytest.fixture
def exact_norms(monkeypatch):
    """Power iterations replaced by eigenvalues, so that both spaces take the same step sizes."""

    def estimate(self, normal, like, tolerance=0.0, max_steps=0):
        sizes = [part.numel() for part in like]
        columns = []
        for basis in torch.eye(sum(sizes), dtype=F64):
            parts = tuple(p.view(t.shape) for p, t in zip(basis.split(sizes), like, strict=True))
            columns.append(torch.cat([p.flatten() for p in normal(parts)]))
        return float(torch.linalg.eigvalsh(torch.stack(columns))[-1])

    monkeypatch.setattr(PowerIteration, "estimate", estimate)
    monkeypatch.setattr(FollowedPower, "estimate", estimate)


def network(activation, widths=(7, 9, 5, 8, 3), weights=(0.7, 1.3, 0.5), **settings):
    torch.manual_seed(3)
    linears = [nn.Linear(a, b, dtype=F64) for a, b in pairwise(widths)]
    modules = [module for linear in linears for module in (linear, activation.as_module())][:-1]
    return lb.lift(nn.Sequential(*modules), loss=lb.SquaredError(), weights=list(weights), **settings)


def trained(problem, solver, size=4, weights=None, steps=4):
    """Parameters and variables after some batches, the last of which is smaller."""
    torch.manual_seed(5)
    X, Y = 3.0 * torch.randn(10, 7, dtype=F64), torch.randn(10, 3, dtype=F64)
    whole = solvers.Batch.whole(problem, X, Y, weights)
    parts = [whole.select(places) for places in torch.arange(10).split(size)]
    state = solver.init(problem, parts[0])
    for number in range(steps):
        state = solver.step(problem, state, parts[number % len(parts)])
    return [*(p.detach().clone() for p in problem.model.parameters()), *state.variables]


def assert_equal_spaces(make_problem, settings, **data):
    found = {}
    for space in (Space.SAMPLES, Space.WEIGHTS):
        problem = make_problem()
        before = [p.detach().clone() for p in problem.model.parameters()]
        found[space] = trained(problem, ImplicitSGD(**settings, space=space), **data)
        moved = [not torch.equal(p, q) for p, q in zip(before, problem.model.parameters(), strict=True)]
        assert moved == [p.requires_grad for p in problem.model.parameters()]
    for ours, other in zip(*found.values(), strict=True):
        torch.testing.assert_close(ours, other, rtol=1e-10, atol=1e-10)


@over(cases.name, activation=cases.ACTIVATIONS, reading=[Corrected(), Majorised()])
def test_the_same_iterates_for_every_activation(activation, reading, exact_norms):
    assert_equal_spaces(lambda: network(activation), {"prox_weight": 0.9, "inner_steps": 4, "reading": reading})


@over(str, 2, reading=READINGS, coupling=Coupling, order=[LayerByLayer(), Sweeps()])
def test_the_same_iterates_for_every_order_coupling_and_reading(order, coupling, reading, exact_norms):
    settings = {"prox_weight": 0.8, "inner_steps": 3, "order": order, "coupling": coupling, "reading": reading}
    assert_equal_spaces(lambda: network(lb.activations.Softplus()), settings)


@pytest.mark.parametrize("tau", [0.0, 40.0])
@pytest.mark.parametrize("size", [2, 10])
@pytest.mark.parametrize("reading", [Corrected(), Literal(), Majorised()], ids=repr)
def test_the_same_iterates_with_weighted_samples_and_other_sizes(reading, size, tau, exact_norms):
    """More samples than columns of A, fewer, and weights of every size; τ = 0 is guarded for `Majorised`."""
    if tau == 0.0 and isinstance(reading, Majorised):
        tau = 1e-3  # the guards of the two systems differ
    weights = torch.linspace(0.2, 3.0, 10, dtype=F64)
    settings = {"prox_weight": tau, "inner_steps": 5, "reading": reading}
    assert_equal_spaces(lambda: network(lb.activations.Tanh()), settings, size=size, weights=weights)


@pytest.mark.parametrize("reading", [Corrected(), Majorised()], ids=repr)
@pytest.mark.parametrize("frozen", ["no bias", "weight", "bias", "layer", "penalties", "flatten"])
def test_the_same_iterates_where_not_everything_is_trained(frozen, reading, exact_norms):
    def changed():
        torch.manual_seed(2)
        bias = frozen != "no bias"
        modules = [nn.Linear(7, 6, bias=bias), nn.ReLU(), nn.Linear(6, 5, bias=bias), nn.Tanh(), nn.Linear(5, 3)]
        model = nn.Sequential(*modules).double()
        if frozen == "weight":
            model[2].weight.requires_grad_(False)
        elif frozen == "bias":
            model[2].bias.requires_grad_(False)
        elif frozen == "layer":
            model[2].requires_grad_(False)
        elif frozen == "flatten":
            model = nn.Sequential(nn.Unflatten(1, (7, 1)), nn.Flatten(), *model)
        on_weights = {2: lb.penalties.L1(0.02)} if frozen == "penalties" else {}
        on_variables = {1: lb.penalties.L1(0.03)} if frozen == "penalties" else {}
        return lb.lift(model, loss=lb.SquaredError(), penalties=on_variables, parameter_penalties=on_weights)

    assert_equal_spaces(changed, {"prox_weight": 0.7, "inner_steps": 4, "reading": reading})


def test_rows_of_a_sequence(exact_norms):
    """A dense layer on (samples, places, features): every place is a row."""
    found = []
    for space in (Space.SAMPLES, Space.WEIGHTS):
        for reading in (Corrected(), Majorised()):
            torch.manual_seed(0)
            model = nn.Sequential(nn.Linear(6, 5), nn.ReLU(), nn.Linear(5, 2)).double()
            problem = lb.lift(model, loss=lb.SquaredError())
            batch = solvers.Batch.whole(problem, torch.randn(3, 4, 6, dtype=F64), torch.randn(3, 4, 2, dtype=F64))
            solver = ImplicitSGD(0.6, 4, reading=reading, space=space)
            solver.step(problem, solver.init(problem, batch), batch)
            found.append(torch.cat([p.detach().flatten() for p in model.parameters()]))
    torch.testing.assert_close(found[0], found[2], rtol=0, atol=1e-10)
    torch.testing.assert_close(found[1], found[3], rtol=0, atol=1e-10)
    assert not torch.allclose(found[0], found[1], atol=1e-3)


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("space", [Space.SAMPLES, Space.WEIGHTS], ids=lambda s: s.name)
def test_power_iterations_give_the_same_run_to_their_accuracy(name, space):
    case, other = make(name), make(name)
    settings = {"prox_weight": 3.0, "inner_steps": 5}
    result = solvers.run(case.problem, case.data, ImplicitSGD(**settings, space=space), epochs=3, batch_size=4)
    again = solvers.run(other.problem, other.data, ImplicitSGD(**settings), epochs=3, batch_size=4)
    assert result.history[-1]["objective"] == pytest.approx(again.history[-1]["objective"], rel=1e-4)
    counters = ("forward_maps", "adjoints", "parameter_gradients", "prox_maps")
    assert all(result.history[-1][key] == again.history[-1][key] for key in counters)


class Touches(TorchDispatchMode):
    """How often an operation reads each of some tensors, and how often one writes to it."""

    def __init__(self, watched):
        super().__init__()
        self.places = {t.untyped_storage().data_ptr(): index for index, t in enumerate(watched)}
        self.reads, self.writes = [0] * len(watched), [0] * len(watched)

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        if not func.is_view:
            mutable = func._schema.is_mutable
            for number, t in enumerate(args):
                place = self.places.get(t.untyped_storage().data_ptr()) if isinstance(t, torch.Tensor) else None
                if place is not None and t.numel():
                    (self.writes if mutable and number == 0 else self.reads)[place] += 1
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize("reading", [Corrected(FIXED), Majorised(FIXED)], ids=repr)
def test_weights_are_read_twice_per_inner_step_and_written_once_per_batch(reading):
    """W_1: one product for the whole batch.  Others: x W⁰ᵀ and d W⁰ in each inner step, x being new."""
    problem, N = network(lb.activations.ReLU()), 6
    X, Y = torch.randn(4, 7, dtype=F64), torch.randn(4, 3, dtype=F64)
    solver, batch = ImplicitSGD(1.0, N, reading=reading, space=Space.SAMPLES), solvers.Batch.whole(problem, X, Y)
    state = solver.init(problem, batch)
    assert all(set(own) == {"bias"} for own in state.anchor.values())
    weights = [module.weight for module in problem.model if isinstance(module, nn.Linear)]
    with Touches([w.detach() for w in weights]) as seen:
        solver.step(problem, state, batch)
    assert seen.writes == [1, 1, 1, 1] and seen.reads == [1, 2 * N, 2 * N, 2 * N]


@pytest.mark.parametrize("space", list(Space), ids=lambda s: s.name)
def test_norms_cost_no_products_of_their_own_once_they_are_followed(space):
    """With many samples per unit the norms move slowly; then one product for each inner step goes with the others."""
    problem, N = network(lb.activations.ReLU()), 8
    X, Y = torch.randn(4, 7, dtype=F64), torch.randn(4, 3, dtype=F64)
    solver, batch = ImplicitSGD(1e4, N, space=space), solvers.Batch.whole(problem, X, Y)
    state = solver.init(problem, batch)
    for _ in range(5):
        solver.step(problem, state, batch)
    weights = [module.weight.detach() for module in problem.model if isinstance(module, nn.Linear)]
    with Touches(weights) as seen:
        solver.step(problem, state, batch)
    norms = {index: float(torch.linalg.matrix_norm(weights[index], 2)) ** 2 for index in (1, 2, 3)}
    v = {index: state.power[index + 1][f"x_{index}"][0] for index in norms}
    for index, norm in norms.items():
        W = weights[index]
        assert float(torch.linalg.vector_norm(W.T @ (W @ v[index]))) == pytest.approx(norm, rel=2e-3)
    if space is Space.SAMPLES:
        assert seen.writes == [1, 1, 1, 1] and seen.reads == [1, 2 * N, 2 * N, 2 * N]


@pytest.mark.parametrize("space", [Space.SAMPLES, Space.WEIGHTS], ids=lambda s: s.name)
@pytest.mark.parametrize("bias", ["trained", "frozen", "none"])
@pytest.mark.parametrize("weighted", [False, True])
def test_norms_of_inputs_by_singular_values(weighted, bias, space):
    """λ ‖√w [X 1]‖₂²/s, without the column of ones where the bias is not trained; computed once while X stays."""
    torch.manual_seed(4)
    model = nn.Sequential(nn.Linear(6, 5, bias=bias != "none"), nn.ReLU(), nn.Linear(5, 2)).double()
    if bias == "frozen":
        model[0].bias.requires_grad_(False)
    problem = lb.lift(model, loss=lb.SquaredError(), weights=0.7)
    X, Y = torch.rand(4, 6, dtype=F64), torch.randn(4, 2, dtype=F64)
    w = torch.tensor([0.5, 2.0, 1.0, 3.0], dtype=F64) if weighted else None
    batch = solvers.Batch.whole(problem, X, Y, w)
    solver, memory = ImplicitSGD(1.0, 3, space=space), BatchMemory({})
    view = with_maps(problem, solver._maps(problem, batch, memory))
    point = view.point(view.forward_state(batch.X), batch.X, batch.Y, batch.weights)
    A = torch.cat((X, torch.ones(4, 1, dtype=F64)), 1) if bias == "trained" else X
    if weighted:
        A = A * batch.weights.sqrt()[:, None]
    expected = 0.7 * (1.0 + MARGIN) * float(torch.linalg.matrix_norm(A, 2)) ** 2 / 4
    for _ in range(2):
        assert parameter_curvature(view, point, 1, memory, upper=False) == pytest.approx(expected, rel=1e-4)
        memory[1]["Θ_1"] = [torch.zeros_like(part) for part in memory[1]["Θ_1"]]  # another product would give 0


def test_the_next_batch_reuses_the_memory_of_the_factors():
    """It is no part of the saved state, grows for a larger batch, and is left alone by a model of another dtype."""
    problem = network(lb.activations.ReLU())
    X, Y = torch.randn(6, 7, dtype=F64), torch.randn(6, 3, dtype=F64)
    whole, solver = solvers.Batch.whole(problem, X, Y), ImplicitSGD(1.0, 3, space=Space.SAMPLES)
    state = solver.init(problem, whole)

    def places(rows):
        solver.step(problem, state, whole.select(torch.arange(rows)))
        return [t.data_ptr() for f in state.maps.values() for t in (f._R, f._C)]

    first = places(4)
    assert places(4) == first and places(2) == first and places(6) != first
    assert "maps" not in state.state_dict()
    single = nn.Linear(7, 9)
    f = FactoredDense(Dense(single), 1, {}, "x")
    f.reuse(state.maps[1])
    assert f._R.dtype == f._C.dtype == torch.float32 and not len(f._R)


@pytest.mark.parametrize("flatten", [False, True])
def test_the_factored_map_is_the_dense_map_of_its_weight(flatten):
    """Moves with every kind of decay, repeated and new inputs, and more factors than there was room for."""
    torch.manual_seed(1)
    linear = nn.Linear(6, 4, dtype=F64)
    W, first = linear.weight.detach().clone(), linear.weight.detach().clone()
    memory = {"x_1": [torch.randn(6, dtype=F64)]}
    f = FactoredDense(Dense(linear, flatten), 2, memory, "x_1")
    rows, shape = 3, (3, 2, 3) if flatten else (3, 6)
    x = torch.randn(shape, dtype=F64)
    for number, decay in enumerate([0.7, 1.0, -0.4, 0.9, 0.0, 0.3, 0.0, 0.5, 1.0, 0.8, 0.6]):
        if number % 3 != 1:
            x = torch.randn(shape, dtype=F64)
        C, scale = torch.randn(rows, 4, dtype=F64), 0.3 + 0.1 * number
        X = x.flatten(1)
        before = f.apply(x)
        torch.testing.assert_close(before, X @ W.T + linear.bias.detach(), rtol=0, atol=1e-12)
        f.pull_back_input(x, C)  # so that a product for the norm of the old W is known
        f.move(x, C, scale, decay)
        W = first + decay * (W - first) + scale * C.T @ X
        assert decay != 0.0 or f._rank == rows
        v = memory["x_1"][0]
        norm = float(torch.linalg.vector_norm(W.T @ (W @ v)))
        assert f.input_curvature(x, Once((v,))) == pytest.approx(norm, rel=1e-12)
        torch.testing.assert_close(f.apply(x), X @ W.T + linear.bias.detach(), rtol=0, atol=1e-12)
        torch.testing.assert_close(f.shift(x), X @ (W - first).T, rtol=0, atol=1e-12)
        torch.testing.assert_close(f.gram(x), X @ X.T, rtol=0, atol=1e-12)
        d = torch.randn(rows, 4, dtype=F64)
        torch.testing.assert_close(f.pull_back_input(x, d), (d @ W).view(shape), rtol=0, atol=1e-12)
        assert f.input_curvature(x, Once((v,))) == pytest.approx(norm, rel=1e-12)
        assert f._image is not None
        fresh = (torch.randn(6, dtype=F64),)
        norm = float(torch.linalg.vector_norm(W.T @ (W @ fresh[0])))
        assert f.input_curvature(x, Once(fresh)) == pytest.approx(norm, rel=1e-12)
        largest = float(torch.linalg.matrix_norm(W, 2)) ** 2
        assert largest <= f.input_curvature(x, upper=True) <= 1.1 * largest
        if number % 3:
            memory["x_1"] = [torch.randn(6, dtype=F64)]
        assert torch.equal(linear.weight, first)
    f.write()
    torch.testing.assert_close(linear.weight.detach(), W, rtol=0, atol=1e-12)
    f.write()
    torch.testing.assert_close(linear.weight.detach(), W, rtol=0, atol=1e-12)


class Once(PowerIteration):
    """‖Nv‖ for one given v."""

    def __init__(self, v):
        self.v = v

    def estimate(self, normal, like, tolerance=0.0, max_steps=0):
        return float(torch.linalg.vector_norm(normal(self.v)[0]))


def test_what_the_automatic_choice_takes():
    """By the products counted in the docstring: layer 1 gains most, long batches and narrow layers nothing."""
    assert samples_are_cheaper(20, 784, 784, 15, moving=True)
    assert samples_are_cheaper(100, 784, 784, 15, moving=False)
    assert not samples_are_cheaper(100, 784, 64, 15, moving=True)
    assert not samples_are_cheaper(100, 784, 784, 15, moving=True)
    assert not samples_are_cheaper(10000, 784, 784, 15, moving=False)
    widths = (784, 784, 64, 10)
    modules = [module for a, b in pairwise(widths) for module in (nn.Linear(a, b), nn.ReLU())][:-1]
    problem = lb.lift(nn.Sequential(*modules), loss=lb.SquaredError())
    batch = solvers.Batch.whole(problem, torch.zeros(100, 784), torch.zeros(100, 10))

    def chosen(**settings):
        return set(ImplicitSGD(100.0, 15, **settings)._maps(problem, batch, {}))

    assert chosen() == {1} and chosen(space=Space.SAMPLES) == {1, 2, 3} and chosen(space=Space.WEIGHTS) == set()
    assert chosen(reading=Majorised()) == {1, 2} and chosen(reading=Majorised(CurvatureStep())) == {1}
    assert chosen(reading=Corrected(CurvatureStep())) == {1}
    explicit = solvers.ParameterUpdate.EXPLICIT
    assert chosen(parameters=explicit, space=Space.SAMPLES) == set()


def test_settings_that_are_refused():
    with pytest.raises(errors.SettingError, match="space"):
        ImplicitSGD(space="samples")
    with pytest.raises(errors.SettingError, match="defaults"):
        ImplicitSGD(solver=solvers.ProximalGradient(), space=Space.SAMPLES)
