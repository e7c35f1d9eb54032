"""When training ends: early, at the best parameters, by divergence, by Ctrl-C."""

import copy
import math
import os
import signal
from itertools import pairwise

import numpy as np
import pytest
import torch
from sklearn.base import BaseEstimator
from sklearn.exceptions import ConvergenceWarning, FitFailedWarning, NotFittedError
from sklearn.model_selection import GridSearchCV

import lifted_bregman as lb
from lifted_bregman import solvers
from lifted_bregman.errors import DivergedError
from lifted_bregman.estimators import LiftedClassifier, LiftedRegressor
from lifted_bregman.solvers import Callback, Outcome
from tests.cases import name
from tests.estimators.data import (
    Rows,
    X,
    Y,
    every_kind,
    made,
    parameters,
    predict,
)


def overfitting(**settings) -> LiftedClassifier:
    """Labels that are half noise: the objective on held-out samples soon grows."""
    return LiftedClassifier(
        hidden=(40,),
        epochs=60,
        batch_size=10,
        random_state=0,
        early_stopping=True,
        validation_fraction=0.3,
        n_iter_no_change=4,
        **settings,
    )


def test_early_stopping_restores_the_best_parameters() -> None:
    rows = Rows()
    noisy = np.where(np.arange(len(Y)) % 2, Y, (Y + np.arange(len(Y))) % 3)
    model = overfitting(callbacks=[rows], tol=0.0).fit(X, noisy)
    validation = [row["validation"] for row in model.history_]
    best = int(np.argmin(validation))
    assert model.outcome_ is Outcome.STOPPED
    assert "not improved in 4 rows" in model.message_
    assert model.n_iter_ == len(validation) == best + 1 + 4
    assert model.n_iter_ < 60
    assert all(torch.equal(p, q) for p, q in zip(rows.seen[best], parameters(model), strict=True))
    assert not torch.equal(rows.seen[-1][0], parameters(model)[0])
    assert model.loss_ == model.history_[best]["objective"]
    # Samples that are held out are not trained on: 90 samples, of which 27 are.
    assert model.history_[0]["accuracy"] * 63 == pytest.approx(round(model.history_[0]["accuracy"] * 63))
    assert model.history_[0]["validation_accuracy"] * 27 == pytest.approx(
        round(model.history_[0]["validation_accuracy"] * 27)
    )


class Interrupt(Callback):
    """Presses Ctrl-C in some epoch."""

    def __init__(self, epoch: int, times: int = 1) -> None:
        self.epoch, self.times = epoch, times

    def stepped(self, run) -> None:
        if run.epoch == self.epoch:
            while self.times:
                self.times -= 1
                os.kill(os.getpid(), signal.SIGINT)


@pytest.mark.filterwarnings("ignore:The run was interrupted")
@pytest.mark.parametrize("interrupts", [[], [Interrupt(3)]], ids=["stopped", "interrupted"])
@pytest.mark.parametrize("solver", [lb.LinBreg(step_size=0.3), lb.AdaBreg(step_size=0.01)], ids=name)
def test_training_continues_from_restored_parameters(solver: solvers.Solver, interrupts: list) -> None:
    # These solvers keep a second copy of the parameters, v: the state of the last step would bring them back.
    noisy = np.where(np.arange(len(Y)) % 2, Y, (Y + np.arange(len(Y))) % 3)
    model = overfitting(solver=solver, callbacks=copy.deepcopy(interrupts)).fit(X, noisy)
    assert model.outcome_ is (Outcome.INTERRUPTED if interrupts else Outcome.STOPPED)
    goes_on_with_a_new_state(model)


def goes_on_with_a_new_state(model: LiftedClassifier) -> None:
    """partial_fit is one step made by hand from the parameters that the model has."""
    problem = lb.lift(copy.deepcopy(model.model_), loss=lb.CrossEntropy())
    model.partial_fit(X[:9], Y[:9])
    batch = solvers.Batch.whole(problem, torch.tensor(X[:9]), torch.tensor(Y[:9]))
    model.solver.step(problem, model.solver.init(problem, batch), batch)
    for p, q in zip(problem.model.parameters(), parameters(model), strict=True):
        torch.testing.assert_close(p.detach(), q, rtol=1e-9, atol=1e-9)


class Spoil(Callback):
    """Puts a NaN into the parameters in some epoch."""

    def __init__(self, epoch: int) -> None:
        self.epoch = epoch

    def stepped(self, run) -> None:
        if run.epoch == self.epoch:
            next(run.problem.model.parameters()).data[0, 0] = math.nan


def test_training_continues_after_a_warm_start_that_diverged() -> None:
    model = made(LiftedClassifier, solver=lb.LinBreg(step_size=0.3), warm_start=True).fit(X, Y)
    with pytest.raises(DivergedError, match="output_residual is nan"):
        model.set_params(callbacks=[Spoil(epoch=7)]).fit(X, Y)
    assert all(bool(p.isfinite().all()) for p in parameters(model))
    goes_on_with_a_new_state(model.set_params(callbacks=()))


def test_training_ends_when_the_objective_no_longer_falls() -> None:
    settings = {"hidden": (), "epochs": 300, "solver": lb.ImplicitSGD(5.0, 1)}
    model = made(LiftedRegressor, n_iter_no_change=3, tol=1e-3, **settings).fit(X, X[:, 0])
    objective = [row["objective"] for row in model.history_]
    assert model.outcome_ is Outcome.STOPPED
    assert model.n_iter_ == len(objective) < 300
    # The last three gain less than tol on the one before them, every one before that gained more on its own.
    assert objective[-4] - min(objective[-3:]) < 1e-3
    assert all(before - after > 1e-3 for before, after in pairwise(objective[:-3]))
    patient = made(LiftedRegressor, tol=None, **settings).fit(X, X[:, 0])
    assert patient.outcome_ is Outcome.FINISHED
    assert patient.n_iter_ == 300


def test_the_lowest_objective_is_kept_where_it_does_not_fall_steadily() -> None:
    rough = {"solver": lb.baselines.SGD(learning_rate=0.6), "epochs": 6, "batch_size": 10}
    kept = made(LiftedClassifier, tol=0.0, **rough).fit(X, Y)
    last = made(LiftedClassifier, tol=None, **rough).fit(X, Y)
    objective = [row["objective"] for row in last.history_]
    assert min(objective) < objective[-1]  # or nothing is shown here
    assert last.loss_ == objective[-1]
    assert kept.loss_ == min(row["objective"] for row in kept.history_) == min(objective)


def test_a_sparsity_that_the_solver_was_asked_for_is_kept() -> None:
    solver = lb.LinBreg(step_size=0.1, penalties=solvers.TargetSparsity(0.95))
    settings = {"hidden": (20,), "epochs": 10, "tol": 0.0, "solver": solver, "standardise_targets": False}
    model = made(LiftedRegressor, **settings).fit(X, Y)
    objective = [row["objective"] for row in model.history_]
    assert min(objective) < objective[-1]  # epochs with more weights had a lower one
    weights = torch.cat([p.flatten() for p in parameters(model) if p.ndim > 1])
    assert float((weights == 0.0).double().mean()) == pytest.approx(0.95, abs=0.01)
    z = model.model_(torch.tensor(X)).detach().numpy()[:, 0]
    assert model.loss_ == pytest.approx(0.5 * np.square(z - Y).mean(), rel=1e-10)


@every_kind
def test_divergence_raises_and_leaves_no_model(kind: type[BaseEstimator]) -> None:
    wild = made(kind, solver=lb.baselines.SGD(learning_rate=1e200), epochs=20)
    with pytest.raises(DivergedError, match="diverged") as raised:
        wild.fit(X, Y)
    assert isinstance(raised.value, ValueError)
    assert "Standardise" in str(raised.value)
    assert not hasattr(wild, "model_")
    with pytest.raises(ValueError, match="not fitted"):
        predict(wild)


def test_a_fit_that_fails_leaves_no_model_for_other_data() -> None:
    model = made(LiftedRegressor).fit(X, Y)
    model.set_params(solver=lb.baselines.SGD(learning_rate=1e200))
    with pytest.raises(DivergedError):
        model.fit(X[:, :3], Y)
    with pytest.raises(NotFittedError):
        model.predict(X[:, :3])


def test_a_partial_fit_that_diverges_leaves_the_model_as_it_was() -> None:
    model = made(LiftedRegressor, solver=lb.baselines.SGD(learning_rate=0.01)).fit(X, Y)
    before = model.predict(X)
    model.set_params(solver=lb.baselines.SGD(learning_rate=1e200))
    with pytest.raises(DivergedError):
        model.partial_fit(X, Y)
    np.testing.assert_array_equal(model.predict(X), before)
    model.set_params(solver=lb.baselines.SGD(learning_rate=0.01)).partial_fit(X, Y)
    assert np.isfinite(model.predict(X)).all()


def test_a_search_scores_divergence_as_failure() -> None:
    grid = {"solver": [lb.baselines.SGD(learning_rate=1e200), lb.baselines.SGD(learning_rate=0.05)]}
    search = GridSearchCV(made(LiftedClassifier, epochs=20), grid, cv=2)
    with pytest.warns((FitFailedWarning, UserWarning)):
        search.fit(X, Y)
    scores = search.cv_results_["mean_test_score"]
    assert math.isnan(scores[0])
    assert scores[1] > 0.4
    assert search.best_params_["solver"] == lb.baselines.SGD(learning_rate=0.05)


@every_kind
def test_ctrl_c_keeps_the_parameters_and_warns(kind: type[BaseEstimator]) -> None:
    model = made(kind, epochs=1000, callbacks=[Interrupt(3)], tol=None)
    with pytest.warns(ConvergenceWarning, match="interrupted"):
        model.fit(X, Y)
    assert model.outcome_ is Outcome.INTERRUPTED
    assert model.n_iter_ == 3
    assert len(model.history_) == 2
    assert model.loss_ < model.history_[0]["objective"]
    assert np.isfinite(predict(model)).all()
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
    model.set_params(callbacks=()).partial_fit(X, Y)
    assert model.n_iter_ == 4


def test_ctrl_c_before_the_first_epoch_ends() -> None:
    model = made(LiftedRegressor, epochs=1000, callbacks=[Interrupt(1)], standardise_targets=True)
    with pytest.warns(ConvergenceWarning, match="interrupted"):
        model.fit(X, Y)
    assert model.history_ == []
    residual = (model.predict(X) - Y) / Y.std()  # as the network learns it
    assert model.loss_ == pytest.approx(0.5 * np.square(residual).mean(), rel=1e-9)


def test_ctrl_c_twice_raises() -> None:
    model = made(LiftedRegressor, epochs=1000, callbacks=[Interrupt(2, times=2)])
    with pytest.raises(KeyboardInterrupt):
        model.fit(X, Y)
    assert not hasattr(model, "model_")


@pytest.mark.filterwarnings("ignore:X is far from standardised:RuntimeWarning")
def test_a_solver_that_stalls_is_reported() -> None:
    # Samples of size 1000 allow no step near 1.
    rule = solvers.Backtracking(initial=1.0, floor=0.9)
    model = made(LiftedRegressor, batch_size=None, solver=lb.ProximalGradient(step_rule=rule))
    with pytest.warns(ConvergenceWarning, match="stalled"):
        model.fit(1000.0 * X, Y)
    assert model.outcome_ is Outcome.STALLED
    assert np.isfinite(model.predict(X)).all()
