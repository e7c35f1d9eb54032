"""partial_fit and warm_start: going on is the same as not having stopped."""

import math
import pickle
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
import torch
from sklearn.base import BaseEstimator

import lifted_bregman as lb
from lifted_bregman import solvers
from lifted_bregman.estimators import LiftedClassifier, LiftedRegressor
from tests.cases import name, solver_cases
from tests.estimators.data import X, Y, every_kind, made, parameters, same_parameters, without_times

ENDLESS = lb.GramSweep(total_steps=math.inf)  # what partial_fit makes of the default
CARRIED = [
    lb.ImplicitSGD(prox_weight=solvers.Growing(5.0), inner_steps=2),
    lb.LinBreg(step_size=0.05, momentum=0.5, penalties=lb.penalties.L1(1e-3)),
    lb.baselines.Adam(learning_rate=0.01),
    lb.baselines.SGD(learning_rate=0.02, momentum=0.9),
]


@every_kind
@pytest.mark.parametrize("solver", [ENDLESS, *CARRIED], ids=name)
def test_partial_fits_on_the_same_samples_are_one_fit(kind: type[BaseEstimator], solver: solvers.Solver) -> None:
    whole = made(kind, solver=solver, epochs=4, tol=None).fit(X, Y)
    parts = made(kind, solver=solver)
    first = {"classes": [0, 1, 2]} if kind is LiftedClassifier else {}
    parts.partial_fit(X, Y, **first)
    for _ in range(3):
        parts = pickle.loads(pickle.dumps(parts)).partial_fit(X, Y)  # what is kept survives on disk
    assert same_parameters(whole, parts)
    assert without_times(whole.history_) == without_times(parts.history_)
    assert parts.n_iter_ == whole.n_iter_ == 4
    assert parts.loss_ == whole.loss_
    assert parts.history_[-1]["seconds"] > parts.history_[0]["seconds"]


@every_kind
def test_step_sizes_of_partial_fits_do_not_fall_to_0(kind: type[BaseEstimator]) -> None:
    first = {"classes": [0, 1, 2]} if kind is LiftedClassifier else {}
    default, endless = (made(kind, solver=solver).partial_fit(X, Y, **first) for solver in (None, ENDLESS))
    assert same_parameters(default.partial_fit(X, Y), endless.partial_fit(X, Y))
    assert not same_parameters(default, made(kind, epochs=2, tol=None).fit(X, Y))  # its rate ends at 0


@every_kind
@pytest.mark.parametrize("solver", [lb.GramSweep(total_steps=25, epochs=5), *CARRIED], ids=name)  # 5 batches, 5 epochs
def test_a_warm_start_continues_the_last_fit(kind: type[BaseEstimator], solver: solvers.Solver) -> None:
    whole = made(kind, solver=solver, epochs=5, tol=None).fit(X, Y)
    parts = made(kind, solver=solver, epochs=3, tol=None, warm_start=True).fit(X, Y)
    parts.set_params(epochs=2).fit(X, Y)
    assert same_parameters(whole, parts)
    assert without_times(whole.history_) == without_times(parts.history_)
    cold = made(kind, solver=solver, epochs=3, tol=None).fit(X, Y).set_params(epochs=2).fit(X, Y)
    assert not same_parameters(whole, cold)
    assert cold.n_iter_ == 2


@pytest.mark.parametrize("more", ["fit", "partial_fit"])
def test_the_default_solver_follows_the_schedule_of_the_longer_run(more: str) -> None:
    """By hand: 3 steps on all samples of a run of 3, then steps 4 and 5 of a run of 5, or of one without an end."""
    settings = {"batch_size": None, "tol": None, "warm_start": True}
    begin = made(LiftedClassifier, solver=lb.baselines.SGD(learning_rate=1e-30), batch_size=None, epochs=1).fit(X, Y)
    problem = lb.lift(begin.model_, loss=lb.CrossEntropy())
    batch = solvers.Batch.whole(problem, torch.from_numpy(X), torch.from_numpy(Y))
    state = lb.GramSweep().init(problem, batch)
    longer = lb.GramSweep(total_steps=5, epochs=5) if more == "fit" else ENDLESS
    for solver, steps in ((lb.GramSweep(total_steps=3, epochs=3), 3), (longer, 2)):
        for _ in range(steps):
            state = solver.step(problem, state, batch)
    model = made(LiftedClassifier, epochs=3, **settings).fit(X, Y)
    for _ in range(2 if more == "partial_fit" else 1):
        getattr(model.set_params(epochs=2), more)(X, Y)
    assert [row["step"] for row in model.history_] == [1, 2, 3, 4, 5]
    assert same_parameters(model, begin)


def test_a_warm_start_on_fewer_samples_has_steps_left() -> None:
    """15 steps on 90 samples, then 2 epochs of one batch: 17 steps in all, and not 5 epochs of one batch."""
    seen: list[float] = []

    class Lengths(lb.callbacks.Callback):
        def stepped(self, run: solvers.Run) -> None:
            seen.append(run.solver.total_steps)

    model = made(LiftedClassifier, epochs=3, warm_start=True, tol=None, callbacks=[Lengths()]).fit(X, Y)
    before = [p.clone() for p in parameters(model)]
    model.set_params(epochs=2).fit(X[:20], Y[:20])
    assert seen == [15] * 15 + [17] * 2
    assert not any(torch.equal(p, q) for p, q in zip(before, parameters(model), strict=True))
    model.set_params(solver=lb.GramSweep(weight_decay=0.0)).fit(X, Y)  # another solver has a run of its own
    assert seen[17:] == [10] * 10


@every_kind
@pytest.mark.parametrize("change", [{"hidden": (9, 9)}, {"activation": lb.activations.Tanh()}], ids=str)
def test_a_warm_start_with_another_network_is_refused(kind: type[BaseEstimator], change: dict[str, Any]) -> None:
    model = made(kind, epochs=1, warm_start=True).fit(X, Y)
    before = [p.clone() for p in parameters(model)]
    with pytest.raises(lb.errors.SettingError, match="warm_start=False"):
        model.set_params(**change).fit(X, Y)
    assert all(torch.equal(p, q) for p, q in zip(before, parameters(model), strict=True))
    assert model.set_params(warm_start=False).fit(X, Y).n_iter_ == 1


def test_widths_that_can_be_read_only_once_are_refused() -> None:
    with pytest.raises(lb.errors.SettingError, match="hidden is"):
        made(LiftedRegressor, hidden=(width for width in (7, 5))).fit(X, Y)


@pytest.mark.parametrize("solver", solver_cases(), ids=name)
def test_every_solver_fits_and_continues_with_other_samples(solver: solvers.Solver) -> None:
    size = None if not solver.minibatch else 30
    model = made(LiftedRegressor, solver=solver, batch_size=size, epochs=2, hidden=(7, 5)).fit(X, Y)
    begun = [p.clone() for p in parameters(model)]
    model.partial_fit(X[:31], Y[:31]).partial_fit(X[31:50], Y[31:50])
    assert model.n_iter_ == 4
    assert np.isfinite(model.predict(X)).all()
    assert not all(torch.equal(p, q) for p, q in zip(begun, parameters(model), strict=True))


def test_another_solver_starts_with_a_new_state() -> None:
    model = made(LiftedRegressor, solver=lb.baselines.Adam()).fit(X, Y)
    for solver in (lb.ImplicitSGD(5.0, 2), lb.ProximalGradient(), lb.AdaBreg(step_size=0.01)):
        model.set_params(solver=solver, batch_size=None).partial_fit(X, Y)
    assert model.n_iter_ == 7


def test_a_saved_estimator_holds_no_variables_of_samples() -> None:
    # 2,000 samples with 50 hidden units: their variables alone would take 800 kB.
    rng = np.random.default_rng(0)
    many, few = rng.normal(size=(2000, 3)), rng.normal(size=(20, 3))
    for solver in (lb.ProximalGradient(), lb.ImplicitSGD(5.0, 2), lb.StochasticProximalGradient(step_parameter=0.05)):
        sizes = [
            len(pickle.dumps(LiftedRegressor(hidden=50, solver=solver, epochs=1).fit(data, data[:, 0])))
            for data in (many, few)
        ]
        assert abs(sizes[0] - sizes[1]) < 2000


def test_a_stream_of_single_rows_with_targets_near_the_mean_does_not_diverge() -> None:
    """The loss of such a row is nearly 0 at the start of its call, and any step raises it to many times that."""
    rng = np.random.default_rng(0)
    inputs = rng.normal(size=(400, 5))
    targets = np.sin(inputs).sum(1)
    targets = (targets - targets.mean()) / targets.std()
    model = LiftedRegressor(hidden=(16,), random_state=0)
    for row in range(200):
        model.partial_fit(inputs[row : row + 1], targets[row : row + 1])
    fitted = LiftedRegressor(hidden=(16,), epochs=20, random_state=0).fit(inputs, targets)
    for row in np.argsort(abs(targets))[:40]:
        fitted.partial_fit(inputs[row : row + 1], targets[row : row + 1])
    assert fitted.n_iter_ == 60


def test_a_stream_that_explodes_is_refused_and_the_network_before_that_call_is_kept() -> None:
    rng = np.random.default_rng(0)
    inputs = rng.normal(size=(400, 5))
    model = LiftedRegressor(hidden=(16,), solver=lb.baselines.SGD(learning_rate=3.0), random_state=0)
    model.partial_fit(inputs[:1], inputs[:1, 0])
    with pytest.raises(lb.errors.DivergedError, match=r"times the .*; give SGD a smaller learning_rate"):
        for rows in np.array_split(np.arange(1, 400), 40):
            before = [p.clone() for p in parameters(model)]
            model.partial_fit(inputs[rows], inputs[rows, 0])
    assert all(torch.equal(p, q) for p, q in zip(before, parameters(model), strict=True))


@dataclass(frozen=True)
class Trebling(solvers.Solver[solvers.SolverState]):
    """Multiplies the last weight and bias by 3 in each step, so that the objective rises to at most about 9 times."""

    minibatch = True

    def init(self, problem: lb.LiftedProblem, batch: solvers.Batch) -> solvers.SolverState:
        return solvers.SolverState()

    def step(self, problem: lb.LiftedProblem, state: solvers.SolverState, batch: solvers.Batch) -> solvers.SolverState:
        with torch.no_grad():
            for p in list(problem.model.parameters())[-2:]:
                p.mul_(3.0)
        state.steps += 1
        return state


def test_an_explosion_in_which_no_call_ends_10_times_above_its_own_start_is_refused() -> None:
    rng = np.random.default_rng(0)
    inputs = rng.normal(size=(20, 5))
    model = LiftedRegressor(hidden=(16,), solver=Trebling(), random_state=0)
    with pytest.raises(lb.errors.DivergedError, match="of the calls of partial_fit so far"):
        for _ in range(30):
            model.partial_fit(inputs, inputs[:, 0])
    assert 10 < len(model.history_) < 20
