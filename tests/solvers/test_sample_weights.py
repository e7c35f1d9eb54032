"""Solvers on weighted samples: whole numbers are duplicated samples, for whole runs; and scikit-learn's ridge."""

from __future__ import annotations

import copy
import math
from pathlib import Path

import numpy as np
import pytest
import torch
from sklearn.linear_model import Ridge
from torch import nn

import lifted_bregman as lb
from lifted_bregman import errors, solvers
from lifted_bregman.problem.blocks import VariableBlock, layers
from lifted_bregman.solvers.model_averaging import deal
from lifted_bregman.solvers.parameters import copy_parameters
from tests import cases
from tests.sampling import over, pairwise
from tests.solvers.problems import NAMES, Case, make

PAGE = Path(__file__).parents[2] / "docs" / "solvers.md"
base = solvers.baselines
GENTLE = solvers.CurvatureStep(1.0)
ESTIMATED = solvers.CurvatureStep(1.0, upper=False)
"""For small batches: guaranteed bounds depend on the number of rows, by up to a few per cent."""
SPARSE = {1: solvers.TargetSparsity(0.3)}
WHOLE_SET = [
    solvers.ProximalGradient(),
    solvers.ProximalGradient(sweep=solvers.OddEven(), smooth_quadratic=True),
    solvers.ProximalGradient(step_rule=solvers.Backtracking(), sweep=solvers.Jacobi()),
    solvers.ProximalGradient(acceleration=solvers.Nesterov(), step_rule=GENTLE, monotone=True),
    solvers.ProximalGradient(acceleration=solvers.HeavyBall(0.5), step_rule=GENTLE),
    solvers.Constrained(inner_steps=2),
    solvers.BregmanIterations(parameter_penalties={1: lb.penalties.L1(1e-2)}),
    solvers.TargetedPenalties(solvers.ProximalGradient(), parameters=SPARSE),
    solvers.AsynchronousPIAG(workers=1, delay_bound=1, updates=3),
    solvers.RandomCoordinateDescent(parts=3, sample_parts=1),
    base.GradientDescent(learning_rate=0.05),
]
"""Solvers whose run on weighted samples is that on duplicated ones."""
MINIBATCH = [
    solvers.GramSweep(step_size=0.2, total_steps=40),
    solvers.ImplicitSGD(prox_weight=5.0, inner_steps=3),
    solvers.ImplicitSGD(
        prox_weight=solvers.Growing(5.0),
        inner_steps=2,
        order=solvers.LayerByLayer(),
        reading=solvers.Corrected(ESTIMATED),
        coupling=solvers.Coupling.BEFORE,
    ),
    solvers.ImplicitSGD(prox_weight=1.0, inner_steps=2, solver=solvers.ProximalGradient(step_rule=ESTIMATED)),
    solvers.ImplicitSGD(
        prox_weight=1.0, inner_steps=2, solver=solvers.ProximalGradient(step_rule=solvers.Backtracking())
    ),
    solvers.ImplicitSGD(prox_weight=5.0, inner_steps=3, parameters=solvers.ParameterUpdate.EXPLICIT),
    solvers.StochasticProximalGradient(step_parameter=0.05),
    solvers.StochasticProximalGradient(step_parameter=ESTIMATED, order=solvers.VariablesFirst(2)),
    solvers.StochasticProximalGradient(step_parameter=0.05, order=solvers.Simultaneous()),
    solvers.PipelinedSweep(step_parameter=ESTIMATED, step_variable=0.1, micro_batches=2),
    solvers.PIAG(delay_bound=4),
    solvers.SAGA(),
    solvers.SAG(),
    solvers.StochasticADMM(),
    solvers.PrimalDual(),
    solvers.LinBreg(step_size=0.05),
    solvers.LinBreg(step_size=0.05, momentum=0.5, penalties=lb.penalties.L1(1e-3)),
    solvers.AdaBreg(step_size=0.01),
    solvers.TargetedPenalties(solvers.ImplicitSGD(prox_weight=5.0, inner_steps=3), parameters=SPARSE),
    base.SGD(learning_rate=0.02, momentum=0.5),
    base.Adam(learning_rate=0.01),
    base.AdamW(learning_rate=0.01, clip_norm=0.5),
    base.ImplicitBackprop(prox_weight=1.0, inner_steps=3, learning_rate=0.05),
]
"""Solvers whose run on weighted batches is that on batches with duplicated rows."""
PARALLEL = [
    solvers.ModelAveraging(workers=2, local_steps=3),
    solvers.ImplicitParallel(workers=3, prox_weight=0.8, local_steps=3),
]
UNWEIGHTED = [
    solvers.CoordinateDescent(),
    solvers.BregmanCoordinateDescent(),
    solvers.ADMM(),
    base.MACQP(),
    base.ClassicalLifted(),
    base.FenchelLifted(),
    base.LPOM(),
]
COUNTS = torch.tensor([1, 2, 3, 3, 1, 2, 2, 3, 1, 3, 2, 1])
"""How often each of the 12 samples is there; three neighbours are there 6 times together."""
ROWS = torch.arange(12).repeat_interleave(COUNTS)
LOOSE = {"rtol": 1e-9, "atol": 1e-9}


def test_which_solvers_take_weights():
    """Every solver is in one of the lists above, and says itself which."""
    taking = {type(solver) for solver in (*WHOLE_SET, *MINIBATCH, *PARALLEL)}
    assert all(solver.weighted is True for solver in (*WHOLE_SET, *MINIBATCH, *PARALLEL))
    assert all(solver.weighted is False for solver in UNWEIGHTED)
    assert {type(solver) for solver in cases.solver_cases()} == taking | {type(solver) for solver in UNWEIGHTED}
    assert all(solver.weighted == (type(solver) in taking) for solver in cases.solver_cases())


@pytest.mark.parametrize(
    "wrapped",
    [
        lambda inner: solvers.ImplicitSGD(solver=inner),
        lambda inner: solvers.ModelAveraging(workers=2, solver=inner),
        lambda inner: solvers.ImplicitParallel(workers=2, prox_weight=1.0, solver=inner),
        lambda inner: solvers.TargetedPenalties(inner),
        lambda inner: solvers.Constrained(solver=inner),
    ],
)
def test_a_wrapping_solver_takes_weights_where_the_inner_one_does(wrapped):
    assert wrapped(solvers.ProximalGradient()).weighted is True
    assert wrapped(solvers.CoordinateDescent()).weighted is False


def compatible(solver, case: Case) -> bool:
    try:
        solver.require(case.problem)
    except errors.CompatibilityError:
        return False
    return True


def duplicated(case: Case) -> tuple[Case, solvers.Batch, solvers.Batch]:
    """A twin of the case, its samples as weighted ones and as duplicates."""
    twin = make(case.name)
    ours = solvers.Batch.whole(case.problem, *case.data, weights=5.0 * COUNTS)
    return twin, ours, solvers.Batch.whole(twin.problem, case.X[ROWS], case.Y[ROWS])


def train(solver, case: Case, steps):
    state = solver.init(case.problem, steps[0])
    for batch in steps:
        state = solver.step(case.problem, state, batch)
    solver.finish(case.problem, state)
    return state


def assert_twins(case: Case, twin: Case, tolerance=LOOSE):
    for (name, ours), theirs in zip(
        case.problem.model.named_parameters(), twin.problem.model.parameters(), strict=True
    ):
        torch.testing.assert_close(ours.detach(), theirs.detach(), **tolerance, msg=lambda m, name=name: f"{name}: {m}")


def assert_apart(case: Case, other: Case):
    """The weights have changed where the run went."""
    pairs = zip(case.problem.model.parameters(), other.problem.model.parameters(), strict=True)
    assert any(not torch.allclose(p.detach(), q.detach(), rtol=1e-5, atol=1e-6) for p, q in pairs)


@over(cases.name, 2, solver=WHOLE_SET, name=NAMES)
def test_a_whole_run_is_that_on_duplicated_samples(solver, name):
    case = make(name)
    if not compatible(solver, case):
        pytest.skip("the solver does not take this problem")
    twin, ours, theirs = duplicated(case)
    state, other = train(solver, case, [ours] * 8), train(solver, twin, [theirs] * 8)
    assert_twins(case, twin)
    if state.variables is not None:
        for x, copies in zip(state.variables, other.variables, strict=True):
            torch.testing.assert_close(x[ROWS], copies, **LOOSE)
    without = make(name)
    train(solver, without, [solvers.Batch.whole(without.problem, *without.data)] * 8)
    assert_apart(case, without)


@pytest.mark.parametrize(("solver", "name"), pairwise(MINIBATCH, NAMES), ids=cases.name)
def test_batches_are_those_with_duplicated_rows(solver, name):
    """Batches of three samples whose weights have the mean 1, and the same ones with six rows; three epochs."""
    case = make(name)
    if not compatible(solver, case):
        pytest.skip("the solver does not take this problem")
    twin, ours, theirs = duplicated(case)
    groups = list(torch.arange(12).split(3))
    steps = [ours.select(group) for group in groups] * 3
    copies = [theirs.select(torch.isin(ROWS, group).nonzero().flatten()) for group in groups] * 3
    train(solver, case, steps)
    train(solver, twin, copies)
    assert_twins(case, twin)
    without = make(name)
    whole = solvers.Batch.whole(without.problem, *without.data)
    train(solver, without, [whole.select(group) for group in groups] * 3)
    assert_apart(case, without)


def test_weights_do_not_count_like_copies_in_the_printed_steps_and_the_page_says_so():
    """The step of x_l is 1/|B| times a norm, and copies make |B| larger."""
    case, solver = make("relu"), solvers.ImplicitSGD(1.0, 3, reading=solvers.Literal())
    twin, ours, theirs = duplicated(case)
    train(solver, case, [ours] * 3)
    train(solver, twin, [theirs] * 3)
    assert_apart(case, twin)
    (row,) = [line for line in PAGE.read_text(encoding="utf-8").splitlines() if "exactly like copies" in line]
    assert "other than `GramSweep` and `ImplicitSGD(reading=Literal())`" in row


@pytest.mark.parametrize("solver", [*WHOLE_SET, *MINIBATCH, *PARALLEL], ids=cases.name)
def test_equal_weights_are_no_weights(solver):
    name = next(n for n in NAMES if compatible(solver, make(n)))
    case, twin = make(name), make(name)
    ours = solvers.Batch.whole(case.problem, *case.data, weights=torch.full((12,), 7.0))
    theirs = solvers.Batch.whole(twin.problem, *twin.data)
    parts = torch.arange(12).split(4) if solver.minibatch else [torch.arange(12)]
    train(solver, case, [ours.select(part) for part in parts] * 3)
    train(solver, twin, [theirs.select(part) for part in parts] * 3)
    assert_twins(case, twin, {"rtol": 1e-12, "atol": 1e-14})


@pytest.mark.parametrize("name", ["relu", "smooth"])
@pytest.mark.parametrize("solver", PARALLEL, ids=cases.name)
def test_workers_by_hand(solver, name):
    """Each worker alone on its own samples, duplicated, and the mean by how many of them it has."""
    case = make(name)
    batch = solvers.Batch.whole(case.problem, *case.data, weights=COUNTS)
    parts, mean = deal(12, solver.workers, solver.seed), {}
    for part in parts:
        alone = make(name)
        rows = part.repeat_interleave(COUNTS[part])
        own = solvers.Batch.whole(alone.problem, case.X[rows], case.Y[rows])
        tau = getattr(solver, "prox_weight", 0.0)
        train(solvers.ImplicitSGD(prox_weight=tau, inner_steps=3, solver=solvers.ProximalGradient()), alone, [own])
        for key, value in alone.problem.model.state_dict().items():
            mean[key] = mean.get(key, 0.0) + len(rows) / len(ROWS) * value
    train(solver, case, [batch])
    torch.testing.assert_close(dict(case.problem.model.state_dict()), mean, **LOOSE)


def test_anderson_never_increases_the_weighted_energy():
    """Its mixture of past sweeps is no average over samples, so that duplicates mix differently; it must descend."""
    case = make("smooth")
    batch = solvers.Batch.whole(case.problem, *case.data, weights=COUNTS**3)
    solver = solvers.ProximalGradient(acceleration=solvers.Anderson(3))
    state, last = solver.init(case.problem, batch), math.inf
    for _ in range(30):
        state = solver.step(case.problem, state, batch)
        value = float(case.problem.energy(state.variables, *case.data, weights=batch.weights))
        assert value <= last * (1.0 + 1e-12)
        last = value


# Batches whose weights do not have the mean 1


@pytest.mark.parametrize(
    "solver",
    [
        base.SGD(learning_rate=0.1),
        base.SGD(learning_rate=0.1 / 3, normalisation=base.Normalisation.SUM),
        base.ImplicitBackprop(prox_weight=1.0, inner_steps=1, learning_rate=0.1),
        solvers.StochasticProximalGradient(step_parameter=0.1),
        solvers.LinBreg(step_size=0.1),
    ],
    ids=cases.name,
)
def test_the_mean_of_the_batches_moves_is_the_move_of_the_weighted_energy(solver):
    """Moves that are linear in the gradient: from the same Θ, their mean over a partition is -0.1 ∇, by autograd."""
    weights = torch.tensor([9.0, 4.0, 7.0, 0.1, 0.2, 0.3, 1.0, 1.0, 1.0, 2.0, 0.5, 3.0])  # batch means far from 1
    start = make("relu")
    X, Y = start.problem.prepare(*start.data)
    loss = 0.5 * (start.problem.model(X) - Y).square().sum(1)
    F = (weights.double() / weights.double().sum() * loss).sum()
    if isinstance(solver, solvers.StochasticProximalGradient | solvers.LinBreg):
        top = start.problem.model[-1]  # at the forward pass only the top layer's gradient is that of the network
        parameters = dict(top.named_parameters(prefix="4"))
    else:
        parameters = dict(start.problem.model.named_parameters())
    slopes = dict(zip(parameters, torch.autograd.grad(F, list(parameters.values())), strict=True))
    moved = dict.fromkeys(parameters, 0.0)
    for group in torch.arange(12).split(3):
        case = make("relu")
        batch = solvers.Batch.whole(case.problem, *case.data, weights=weights).select(group)
        train(solver, case, [batch])
        after = dict(case.problem.model.named_parameters())
        moved = {key: value + 0.25 * (after[key] - parameters[key]).detach() for key, value in moved.items()}
    for key, slope in slopes.items():
        torch.testing.assert_close(moved[key], -0.1 * slope, rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("factor", [0.25, 3.0])
@pytest.mark.parametrize(
    "settings",
    [{}, {"solver": solvers.ProximalGradient()}, {"parameters": solvers.ParameterUpdate.EXPLICIT}],
    ids=["Algorithm 1", "inner solver", "explicit"],
)
def test_a_batch_of_equal_heavy_samples_is_a_smaller_prox_weight(settings, factor):
    """c E_B + (τ/2)‖Θ - Θ⁰‖² and E_B + (τ/2c)‖Θ - Θ⁰‖² have the same minimiser, and gradient steps of 1.99/L agree."""
    case, twin = make("smooth"), make("smooth")
    theirs = solvers.Batch.whole(twin.problem, *twin.data)
    ours = solvers.Batch(theirs.X, theirs.Y, theirs.index, theirs.total, torch.full((12,), factor, dtype=torch.float64))
    train(solvers.ImplicitSGD(prox_weight=2.0, inner_steps=4, **settings), case, [ours] * 3)
    train(solvers.ImplicitSGD(prox_weight=2.0 / factor, inner_steps=4, **settings), twin, [theirs] * 3)
    assert_twins(case, twin)


def test_a_step_that_tries_energies_has_the_right_proximal_term():
    """The same with one layer and backtracking: c E_B with steps t is E_B with steps ct, tried in the same order."""
    torch.manual_seed(2)
    model, c = nn.Sequential(nn.Linear(4, 3)).double(), 64.0
    X, Y = torch.randn(9, 4, dtype=torch.float64), torch.randn(9, 3, dtype=torch.float64)
    results = []
    for w, tau, first in ((torch.full((9,), c, dtype=torch.float64), 2.0, 1.0 / c), (None, 2.0 / c, 1.0)):
        problem = lb.lift(copy.deepcopy(model), loss=lb.SquaredError())
        inner = solvers.ProximalGradient(step_rule=solvers.Backtracking(initial=first))
        solver = solvers.ImplicitSGD(prox_weight=tau, inner_steps=20, solver=inner)
        batch = solvers.Batch(*problem.prepare(X, Y), torch.arange(9), 9, w)
        solver.step(problem, solver.init(problem, batch), batch)
        results.append(problem.model[0].weight.detach())
    assert not torch.allclose(results[0], model[0].weight.detach(), rtol=1e-2)
    torch.testing.assert_close(results[0], results[1], **LOOSE)


def test_the_proximal_term_has_no_sample_weights():
    """E_w + (τ/2)‖Θ - Θ⁰‖² by hand, with weights of mean 4.25, also after a change of λ."""
    case = make("smooth")
    problem, w = case.problem, torch.arange(3.0, 8.5, 0.5, dtype=torch.float64)
    X, Y = problem.prepare(case.X[:11], case.Y[:11])
    state, anchor = problem.forward_state(X), copy_parameters(problem)
    with torch.no_grad():
        for p in problem.model.parameters():
            p.add_(0.3 * torch.randn_like(p))
    apart = sum(
        float((p.detach() - anchor[l][name]).square().sum())
        for l in layers(problem.depth)
        for name, p in problem.network[l].map.parameters.items()
    )
    sub = problem.anchored(anchor, 1.7)
    for ours, plain in ((sub, problem), (sub.with_weights([0.4, 3.0]), problem.with_weights([0.4, 3.0]))):
        expected = float(plain.energy(state, X, Y, weights=w)) + 0.85 * apart
        assert float(ours.energy(state, X, Y, weights=w)) == pytest.approx(expected, rel=1e-12)


def test_backtracking_asks_for_a_tenth_of_the_weighted_quadratic():
    """Where a tenth of a smaller quadratic would be content with 0.245, by hand.

    E_i(x) = ½(x - z)² + ½(3x - y_i)² has curvature 10, and the step from x = z is -τ E_i'(z), τ = t/(1 + t).  So
    E_i decreases by (τ - 5τ²) E_i'², which is 0.1/2t times the step squared for t <= 0.2375, and above 0 for t < 0.25.
    Nearly all weight is on the one sample that is far from its minimum.
    """
    model = nn.Sequential(nn.Linear(1, 1, bias=False), nn.Linear(1, 1, bias=False)).double()
    nn.init.constant_(model[0].weight, 1.0)
    nn.init.constant_(model[1].weight, 3.0)
    problem = lb.lift(model, loss=lb.SquaredError())
    X, Y, w = torch.ones(20, 1), torch.full((20, 1), 2.99), torch.full((20,), 0.01)
    Y[7], w[7] = 2.0, 100.0
    batch = solvers.Batch.whole(problem, X.double(), Y.double(), w)
    point = problem.point(problem.forward_state(batch.X), batch.X, batch.Y, batch.weights)
    memory: dict[str, float] = {}
    solvers.Backtracking(initial=0.245, shrink=0.95).update(problem, point, [VariableBlock(1)], memory)
    assert list(memory.values()) == [pytest.approx(0.245 * 0.95)]


def test_the_printed_step_sizes_have_weighted_rows():
    case = make("relu")
    batch = solvers.Batch.whole(case.problem, *case.data, weights=COUNTS**4)
    point = case.problem.point(case.problem.forward_state(batch.X), batch.X, batch.Y, batch.weights)
    for l in (1, 2, 3):
        rows = batch.weights.sqrt()[:, None] * point.x[l - 1]
        norm = float(np.linalg.norm(rows.numpy(), 2)) ** 2
        t = solvers.Literal().parameter_steps(case.problem, point, l, 3.0, {}).weight
        assert t == pytest.approx(1.99 / (norm + 1.5), rel=1e-2)


# Another library


@pytest.mark.parametrize("outputs", [1, 3])
def test_one_layer_with_squared_error_is_scikit_learns_weighted_ridge(outputs):
    """(1/s) Σ w_i ½‖y_i - W x_i - b‖² + (α/2)‖W‖² is Ridge(alpha=sα) with sample_weight=w, w of mean 1."""
    torch.manual_seed(5)
    X, Y = torch.randn(30, 4, dtype=torch.float64), torch.randn(30, outputs, dtype=torch.float64)
    w = torch.rand(30, dtype=torch.float64).mul(4.0).exp()
    problem = lb.lift(
        nn.Sequential(nn.Linear(4, outputs)).double(),
        loss=lb.SquaredError(),
        parameter_penalties={1: lb.penalties.SquaredL2(0.3)},
    )
    batch, solver = solvers.Batch.whole(problem, X, Y, w), solvers.ProximalGradient(step_rule=GENTLE)
    state = solver.init(problem, batch)
    for _ in range(2000):
        state = solver.step(problem, state, batch)
    ridge = Ridge(alpha=30 * 0.3, solver="cholesky").fit(X.numpy(), Y.numpy(), sample_weight=batch.weights.numpy())
    layer = problem.model[0]
    np.testing.assert_allclose(layer.weight.detach().numpy(), ridge.coef_.reshape(outputs, 4), rtol=0.0, atol=1e-8)
    np.testing.assert_allclose(layer.bias.detach().numpy(), np.ravel(ridge.intercept_), rtol=0.0, atol=1e-8)
    assert problem.certificates(state.variables, X, Y, weights=batch.weights).largest < 1e-8
