"""Algorithm 1: its state, memory, work and settings."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode

import lifted_bregman as lb
from lifted_bregman import errors, solvers
from lifted_bregman._linalg import RememberedPower
from lifted_bregman.solvers.implicit_sgd import Coupling, ImplicitSGD, ParameterUpdate, Space
from lifted_bregman.solvers.inner_steps import Corrected, LayerByLayer, Literal, Majorised
from lifted_bregman.solvers.parameters import parameters_in_place
from lifted_bregman.solvers.saga import SAGA
from lifted_bregman.solvers.schedules import Constant, Decaying, Growing
from lifted_bregman.solvers.steps import CurvatureStep
from tests.solvers.brute_networks import NETWORKS, batches, build
from tests.solvers.problems import NAMES, make

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


def test_power_iterations_start_from_the_state():
    """The vectors of all blocks are in the state after a step, and the next estimate needs two or three products."""
    problem, _, X, Y = NETWORKS["relu soft tanh"]()
    solver = ImplicitSGD(1.0, 4)
    batch = solvers.Batch.whole(problem, X, Y)
    state = solver.step(problem, solver.init(problem, batch), batch)
    names = {term: set(vectors) for term, vectors in state.power.items()}
    assert names == {1: {"Θ_1"}, 2: {"Θ_2", "x_1"}, 3: {"Θ_3", "x_2"}, 4: {"Θ_4", "x_3"}}
    W, products = problem.network[2].map.module.weight.detach(), []

    def normal(v):
        products.append(1)
        return (W.T @ (W @ v[0]),)

    found = RememberedPower(state.power[2], "x_1").estimate(normal, (W[0],))
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
    kept = [t for own in (*parameters_in_place(problem).values(), *state.anchor.values()) for t in own.values()]
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
