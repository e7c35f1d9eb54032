"""Stochastic proximal gradient with persistent variables: iterates by brute force, rows that stay, convergence."""

from __future__ import annotations

import copy

import numpy as np
import pytest
import torch
from torch import nn

import lifted_bregman as lb
from lifted_bregman import errors, solvers
from lifted_bregman.solvers.schedules import Decaying
from lifted_bregman.solvers.stochastic_proximal_gradient import (
    ParametersFirst,
    Simultaneous,
    StochasticProximalGradient,
    VariablesFirst,
)
from tests.sampling import over
from tests.solvers.brute_networks import NETWORKS, assert_same, batches
from tests.solvers.problems import NAMES, make

F64 = torch.float64
ORDERS = [Simultaneous(), ParametersFirst(), ParametersFirst(3), VariablesFirst(), VariablesFirst(2)]


@over(str, 2, order=ORDERS, name=NETWORKS)
def test_iterates_against_brute_force(name, order):
    """Two epochs over two batches: in the second one every sample continues from its own variables."""
    problem, net, X, Y = NETWORKS[name]()
    t_theta, t_x = 0.06, 0.3
    solver = StochasticProximalGradient(t_theta, t_x, order)
    parts = batches(problem, X, Y, 7)
    state = solver.init(problem, parts[0])
    rows = {}
    for batch in parts * 2:
        places = tuple(batch.index.tolist())
        x = rows.get(places) or net.forward(batch.X, batch.Y)
        x = [*x]

        def parameters(x=x):
            moved = {l: net.moved_theta(l, x, net, 0.0, t_theta) for l in range(1, net.depth + 1)}
            for l, theta in moved.items():
                net.set_theta(l, theta)

        def sweeps(count, x=x):
            for _ in range(count):
                for l in range(net.depth - 1, 0, -1):
                    x[l] = net.moved_x(l, x, t_x)

        if isinstance(order, Simultaneous):
            ahead = [net.moved_x(l, x, t_x) for l in range(1, net.depth)]
            parameters()
            x[1:-1] = ahead
        elif isinstance(order, ParametersFirst):
            parameters()
            sweeps(order.variable_steps)
        else:
            sweeps(order.variable_steps)
            parameters()
        rows[places] = x
        state = solver.step(problem, state, batch)
        assert_same(problem, state.variables.select(batch.index), net, x)
    for places, x in rows.items():  # the other batch's rows were not touched
        assert_same(problem, state.variables.select(torch.tensor(places)), net, x)


def test_rows_start_at_the_forward_pass_of_their_first_visit():
    problem, _, X, Y = NETWORKS["relu soft tanh"]()
    solver = StochasticProximalGradient(0.05, 1e-12, ParametersFirst())
    parts = batches(problem, X, Y, 4)
    state = solver.init(problem, parts[0])
    assert [len(x) for x in state.variables] == [12, 12, 12]
    first = copy.deepcopy(problem)
    state = solver.step(problem, state, parts[0])
    second = copy.deepcopy(problem)
    state = solver.step(problem, state, parts[2])
    for old, batch in ((first, parts[0]), (second, parts[2])):
        for x, y in zip(state.variables.select(batch.index), old.forward_state(batch.X), strict=True):
            torch.testing.assert_close(x, y, rtol=0, atol=1e-9)
    assert not any(bool(x[parts[1].index].any()) for x in state.variables)
    assert state.visited.tolist() == [True] * 4 + [False] * 4 + [True] * 4


def test_the_whole_set_at_once_is_proximal_gradient_descent():
    """With one batch the printed update is the simultaneous proximal gradient step."""
    results = []
    for solver in (
        StochasticProximalGradient(0.04, 0.2, Simultaneous()),
        solvers.ProximalGradient(sweep=solvers.Jacobi(), step_rule=solvers.FixedStep(0.04, 0.2)),
    ):
        case = make("smooth")
        result = solvers.run(case.problem, case.data, solver, epochs=6)
        results.append([*(p.detach() for p in case.problem.model.parameters()), *result.state.variables])
    for a, b in zip(*results, strict=True):
        torch.testing.assert_close(a, b, rtol=0, atol=1e-13)


def ridge(step, epochs):
    """The distance to the least-squares solution after `epochs` of batches of 5, for one layer."""
    torch.manual_seed(3)
    X, Y = torch.randn(40, 3, dtype=F64) + 0.5, torch.randn(40, 2, dtype=F64)
    problem = lb.lift(nn.Sequential(nn.Linear(3, 2, dtype=F64)), loss=lb.SquaredError())
    solvers.run(problem, (X, Y), StochasticProximalGradient(step), epochs=epochs, batch_size=5, record_every=epochs)
    A = np.hstack([X.numpy(), np.ones((40, 1))])
    exact = np.linalg.lstsq(A, Y.numpy(), rcond=None)[0].T
    W, b = problem.model[0].weight.detach().numpy(), problem.model[0].bias.detach().numpy()
    return float(np.linalg.norm(np.hstack([W, b[:, None]]) - exact))


def test_one_layer_is_stochastic_gradient_descent():
    """A constant step stays at a distance, the shorter the step the smaller; a decaying one converges."""
    long, longer, short = ridge(0.2, 100), ridge(0.2, 200), ridge(0.02, 300)
    assert min(long, longer) > 0.05 and 1e-4 < short < 0.2 * long
    settled = [ridge(Decaying(0.3, 0.6), epochs) for epochs in (20, 300)]
    assert settled[1] < 0.02 and settled[1] < 0.5 * settled[0]


@pytest.mark.parametrize("order", [Simultaneous(), ParametersFirst(), VariablesFirst(3)], ids=repr)
@pytest.mark.parametrize("name", NAMES)
def test_the_energy_falls_on_every_problem(name, order):
    """The lifted energy of the whole set, at the variables of all samples, comes down."""
    case = make(name)
    before = float(case.problem.objective(*case.data))
    result = solvers.run(case.problem, case.data, StochasticProximalGradient(0.05, 0.1, order), epochs=10, batch_size=5)
    assert result.outcome is solvers.Outcome.FINISHED
    assert result.history[-1]["energy"] < min(before, result.history[0]["energy"])


def test_curvature_steps_for_both():
    case = make("relu")
    solver = StochasticProximalGradient(solvers.CurvatureStep(0.5, upper=False), solvers.CurvatureStep(1.0))
    before = float(case.problem.objective(*case.data))
    result = solvers.run(case.problem, case.data, solver, epochs=10, batch_size=6)
    assert result.history[-1]["energy"] < before and all(
        0.0 < result.state.metrics["step"][l] < 10.0 for l in (1, 2, 3)
    )


SOLVERS = [
    StochasticProximalGradient(Decaying(0.1, 0.6)),
    StochasticProximalGradient(solvers.CurvatureStep(0.5, upper=False), 0.2, Simultaneous()),
    StochasticProximalGradient(0.05, solvers.CurvatureStep(1.5, upper=True), VariablesFirst(2)),
]


@pytest.mark.parametrize("solver", SOLVERS, ids=repr)
def test_state_round_trip_continues_bitwise(solver):
    case = make("smooth")
    parts = batches(case.problem, *case.data)
    state = solver.init(case.problem, parts[0])
    for k in range(2):
        state = solver.step(case.problem, state, parts[k % 3])
    saved, model = copy.deepcopy(state.state_dict()), copy.deepcopy(case.problem.model.state_dict())
    for k in range(2, 7):
        state = solver.step(case.problem, state, parts[k % 3])
    fresh = make("smooth", seed=1)
    fresh.problem.model.load_state_dict(model)
    again = solver.init(fresh.problem, parts[2])
    again.load_state_dict(saved)
    for k in range(2, 7):
        again = solver.step(fresh.problem, again, parts[k % 3])
    assert again.steps == 7 and again.metrics == state.metrics
    tensors = [*case.problem.model.parameters(), *state.variables]
    others = [*fresh.problem.model.parameters(), *again.variables]
    assert all(torch.equal(a, b) for a, b in zip(tensors, others, strict=True))


def test_counters_by_hand():
    """Two layers, fixed steps, second visit.  Printed order: z_2, σ_2, z_1, the adjoint and a prox for x_1; σ_1 and two
    parameter gradients.  Θ first: z_2, σ_2, z_1, σ_1, two gradients; then z_2, σ_2, z_1 again, the adjoint and a prox.
    """
    expected = {
        Simultaneous(): {"forward_maps": 2, "adjoints": 1, "parameter_gradients": 2, "prox_maps": 3},
        ParametersFirst(): {"forward_maps": 4, "adjoints": 1, "parameter_gradients": 2, "prox_maps": 4},
    }
    for order, counts in expected.items():
        torch.manual_seed(0)
        problem = lb.lift(nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 2)).double(), loss=lb.SquaredError())
        X, Y = torch.randn(5, 3, dtype=F64), torch.randn(5, 2, dtype=F64)
        batch = solvers.Batch.whole(problem, X, Y)
        solver = StochasticProximalGradient(0.1, 0.1, order)
        state = solver.step(problem, solver.init(problem, batch), batch)
        problem.work.reset()
        solver.step(problem, state, batch)
        assert problem.work.as_dict() == counts


@pytest.mark.parametrize(
    ("make_solver", "says"),
    [
        (lambda: StochasticProximalGradient(0.0), "step_parameter"),
        (lambda: StochasticProximalGradient(0.1, -1.0), "step_variable"),
        (lambda: StochasticProximalGradient(0.1, order="first"), "order"),
        (lambda: StochasticProximalGradient(0.1, order=VariablesFirst), "order"),
        (lambda: ParametersFirst(0), "variable_steps"),
        (lambda: VariablesFirst(1.5), "variable_steps"),
    ],
)
def test_settings_that_are_refused(make_solver, says):
    with pytest.raises(errors.SettingError, match=says):
        make_solver()


TARGETED = solvers.TargetedPenalties(lb.SAGA(), {1: solvers.TargetSparsity(0.3)})


@pytest.mark.parametrize(
    "solver", [StochasticProximalGradient(0.05), lb.SAGA(), TARGETED], ids=lambda s: type(s).__name__
)
@pytest.mark.parametrize("activation", [nn.Softmax(-1), nn.Softplus()], ids=repr)
def test_a_row_before_the_end_of_an_epoch_has_samples_ahead_at_the_forward_pass(solver, activation):
    """There they begin, so that only samples visited differ from it."""
    torch.manual_seed(1)
    model = nn.Sequential(nn.Linear(5, 6), activation, nn.Linear(6, 2)).double()
    X, Y = torch.randn(40, 5, dtype=F64), torch.randn(40, 2, dtype=F64)
    problem = lb.lift(model, loss=lb.SquaredError())
    timer = lb.callbacks.Timer(1e-9)
    result = lb.fit(problem, (X, Y), solver=solver, epochs=2, batch_size=10, tolerance=1e-12, callbacks=[timer])
    state = getattr(result.state, "inner", result.state)
    assert int(state.visited.sum()) == 10
    hidden = activation(model[0](X)).detach()
    x = torch.where(state.visited[:, None], state.variables[1], hidden)
    expected = problem.energy(lb.LiftedState([x]), X, Y)
    assert result.history[-1]["energy"] == pytest.approx(float(expected), rel=1e-12)
    if solver is not TARGETED:  # whose penalties are its own
        certificate = problem.certificates(lb.LiftedState([x]), X, Y).largest
        assert result.history[-1]["certificate"] == pytest.approx(certificate, rel=1e-12)
