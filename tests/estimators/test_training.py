"""What the three estimators share: seeds, continuation, stopping, bad ends, bad input, and life in scikit-learn."""

import copy
import io
import math
import os
import pickle
import signal
import subprocess
import sys
from pathlib import Path

import joblib
import numpy as np
import pytest
import torch
from scipy import sparse
from sklearn.base import BaseEstimator, clone
from sklearn.exceptions import ConvergenceWarning, FitFailedWarning
from sklearn.model_selection import GridSearchCV, cross_val_score
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

import lifted_bregman as lb
from lifted_bregman import solvers
from lifted_bregman.errors import CompatibilityError, SettingError
from lifted_bregman.estimators import DivergedError, LiftedAutoencoder, LiftedClassifier, LiftedRegressor
from lifted_bregman.solvers import Callback, Outcome
from tests.cases import name, solver_cases
from tests.estimators.data import classes, parameters, same_parameters, without_times

X, Y = classes()
SETTINGS = {"epochs": 4, "random_state": 0, "batch_size": 20}
KINDS = [LiftedClassifier, LiftedRegressor, LiftedAutoencoder]


def made(kind: type[BaseEstimator], **settings) -> BaseEstimator:
    hidden = (5, 4, 3) if kind is LiftedAutoencoder else (7,)
    return kind(**({"hidden": hidden} | SETTINGS | settings))


def predict(estimator: BaseEstimator, X: np.ndarray = X) -> np.ndarray:
    if isinstance(estimator, LiftedAutoencoder):
        return estimator.denoise(X)
    return getattr(estimator, "decision_function" if isinstance(estimator, LiftedClassifier) else "predict")(X)


every_kind = pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.__name__)


# Seeds


@every_kind
def test_the_same_seed_gives_the_same_bits_and_another_gives_others(kind: type[BaseEstimator]) -> None:
    one, two = made(kind).fit(X, Y), made(kind).fit(X, Y)
    assert same_parameters(one, two)
    assert without_times(one.history_) == without_times(two.history_)
    assert same_parameters(one, one.fit(X, Y))
    assert not same_parameters(two, made(kind, random_state=1).fit(X, Y))


def test_a_seed_fixes_initial_weights_and_order() -> None:
    still = lb.baselines.SGD(learning_rate=1e-30)
    begins = [made(LiftedRegressor, solver=still, random_state=seed).fit(X, Y) for seed in (0, 0, 1)]
    assert same_parameters(*begins[:2])
    assert not same_parameters(*begins[1:])
    # The whole set in one step knows no order, batches do: with the same initial weights only they differ by seed.
    initial = [p.clone() for p in parameters(begins[0])]
    ends = []
    for seed in (0, 1):
        model = made(LiftedRegressor, solver=still, random_state=seed, epochs=1, warm_start=True, tol=None).fit(X, Y)
        with torch.no_grad():
            for p, q in zip(model.model_.parameters(), initial, strict=True):
                p.copy_(q)
        ends.append(model.set_params(solver=lb.baselines.SGD(learning_rate=0.01)).fit(X, Y))
    assert not same_parameters(*ends)


def test_random_states_mean_what_they_mean_in_scikit_learn() -> None:
    shared = np.random.RandomState(3)
    one = made(LiftedRegressor, random_state=shared).fit(X, Y)
    two = made(LiftedRegressor, random_state=shared).fit(X, Y)
    assert not same_parameters(one, two)
    again = made(LiftedRegressor, random_state=np.random.RandomState(3)).fit(X, Y)
    assert same_parameters(one, again)
    assert not same_parameters(
        made(LiftedRegressor, random_state=None).fit(X, Y), made(LiftedRegressor, random_state=None).fit(X, Y)
    )


def test_global_generators_are_left_alone() -> None:
    torch.manual_seed(5)
    expected = torch.rand(3)
    torch.manual_seed(5)
    before = np.random.get_state()[1].tolist()
    made(LiftedAutoencoder, noise=0.1, early_stopping=True).fit(X)
    assert torch.equal(torch.rand(3), expected)
    assert np.random.get_state()[1].tolist() == before


# Going on

CARRIED = [
    None,
    lb.ImplicitSGD(prox_weight=solvers.Growing(5.0), inner_steps=2),
    lb.LinBreg(step_size=0.05, momentum=0.5, penalties=lb.penalties.L1(1e-3)),
    lb.baselines.Adam(learning_rate=0.01),
    lb.baselines.SGD(learning_rate=0.02, momentum=0.9),
]


@every_kind
@pytest.mark.parametrize("solver", CARRIED, ids=name)
def test_partial_fits_on_the_same_samples_are_one_fit(kind: type[BaseEstimator], solver: solvers.Solver | None) -> None:
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
@pytest.mark.parametrize("solver", CARRIED, ids=name)
def test_a_warm_start_goes_on_where_the_last_fit_ended(
    kind: type[BaseEstimator], solver: solvers.Solver | None
) -> None:
    whole = made(kind, solver=solver, epochs=5, tol=None).fit(X, Y)
    parts = made(kind, solver=solver, epochs=3, tol=None, warm_start=True).fit(X, Y)
    parts.set_params(epochs=2).fit(X, Y)
    assert same_parameters(whole, parts)
    assert without_times(whole.history_) == without_times(parts.history_)
    cold = made(kind, solver=solver, epochs=3, tol=None).fit(X, Y).set_params(epochs=2).fit(X, Y)
    assert not same_parameters(whole, cold)
    assert cold.n_iter_ == 2


@pytest.mark.parametrize("solver", solver_cases(), ids=name)
def test_every_solver_fits_and_goes_on_with_other_samples(solver: solvers.Solver) -> None:
    size = None if not solver.minibatch else 20
    model = made(LiftedRegressor, solver=solver, batch_size=size, epochs=2, hidden=(7, 5)).fit(X, Y)
    begun = [p.clone() for p in parameters(model)]
    model.partial_fit(X[:31], Y[:31]).partial_fit(X[31:50], Y[31:50])
    assert model.n_iter_ == 4
    assert np.isfinite(model.predict(X)).all()
    assert not all(torch.equal(p, q) for p, q in zip(begun, parameters(model), strict=True))


def test_another_solver_begins_with_a_state_of_its_own() -> None:
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


# Stopping


class Rows(Callback):
    """The parameters after each row."""

    def __init__(self) -> None:
        self.seen: list[list[torch.Tensor]] = []

    def recorded(self, run, row) -> None:
        self.seen.append([p.detach().clone() for p in run.problem.model.parameters()])


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


def test_early_stopping_puts_the_best_parameters_back() -> None:
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


def test_after_early_stopping_training_goes_on_from_the_best_parameters() -> None:
    # A solver whose state would contradict them: LinBreg keeps a second copy of the parameters, as v.
    noisy = np.where(np.arange(len(Y)) % 2, Y, (Y + np.arange(len(Y))) % 3)
    solver = lb.LinBreg(step_size=0.3)
    model = overfitting(solver=solver).fit(X, noisy)
    assert model.outcome_ is Outcome.STOPPED
    best = [p.clone() for p in parameters(model)]
    model.set_params(solver=lb.LinBreg(step_size=1e-30)).partial_fit(X, noisy)
    for p, q in zip(best, parameters(model), strict=True):
        torch.testing.assert_close(p, q, rtol=1e-12, atol=1e-12)
    model.set_params(solver=solver).fit(X, noisy)
    best = [p.clone() for p in parameters(model)]
    model.partial_fit(X[:1], noisy[:1])
    # One step of 0.3 on one sample from the best parameters, not from the last ones.
    assert max(float((p - q).abs().max()) for p, q in zip(best, parameters(model), strict=True)) < 1.0
    expected = copy.deepcopy(best)
    assert len(expected) == 4


def test_training_ends_when_the_objective_no_longer_falls() -> None:
    model = LiftedRegressor(hidden=(), epochs=500, random_state=0, n_iter_no_change=3, tol=1e-3).fit(X, X[:, 0])
    objective = [row["objective"] for row in model.history_]
    assert model.outcome_ is Outcome.STOPPED
    assert model.n_iter_ == len(objective) < 500
    assert objective[-4] - 1e-3 <= min(objective[-3:])
    patient = LiftedRegressor(hidden=(), epochs=500, random_state=0, tol=None).fit(X, X[:, 0])
    assert patient.outcome_ is Outcome.FINISHED
    assert patient.n_iter_ == 500


def test_the_lowest_objective_is_kept_where_it_does_not_fall_steadily() -> None:
    rough = {"solver": lb.baselines.SGD(learning_rate=0.6), "epochs": 12, "batch_size": 10}
    kept = made(LiftedClassifier, tol=0.0, **rough).fit(X, Y)
    last = made(LiftedClassifier, tol=None, **rough).fit(X, Y)
    objective = [row["objective"] for row in last.history_]
    assert min(objective) < objective[-1]  # or nothing is shown here
    assert last.loss_ == objective[-1]
    assert kept.loss_ == min(row["objective"] for row in kept.history_) == min(objective)


def test_a_sparsity_that_the_solver_was_asked_for_is_kept() -> None:
    # Epochs before the last have a lower objective and more weights.
    target = solvers.TargetSparsity(0.7)
    model = made(LiftedRegressor, hidden=(20,), epochs=25, solver=lb.LinBreg(step_size=0.1, penalties=target)).fit(X, Y)
    weights = torch.cat([p.flatten() for p in parameters(model) if p.ndim > 1])
    assert float((weights == 0.0).double().mean()) == pytest.approx(0.7, abs=0.02)
    z = model.model_(torch.tensor(X)).detach().numpy()[:, 0]
    assert model.loss_ == pytest.approx(0.5 * np.square(z - Y).mean(), rel=1e-10)


# Bad ends


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


class Interrupt(Callback):
    """Presses Ctrl-C in some epoch."""

    def __init__(self, epoch: int, times: int = 1) -> None:
        self.epoch, self.times = epoch, times

    def stepped(self, run) -> None:
        if run.epoch == self.epoch:
            while self.times:
                self.times -= 1
                os.kill(os.getpid(), signal.SIGINT)


@every_kind
def test_ctrl_c_keeps_what_was_reached_and_warns(kind: type[BaseEstimator]) -> None:
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
    model = made(LiftedRegressor, epochs=1000, callbacks=[Interrupt(1)])
    with pytest.warns(ConvergenceWarning, match="interrupted"):
        model.fit(X, Y)
    assert model.history_ == []
    assert model.loss_ == pytest.approx(0.5 * np.square(model.predict(X) - Y).mean(), rel=1e-9)


def test_ctrl_c_twice_raises() -> None:
    model = made(LiftedRegressor, epochs=1000, callbacks=[Interrupt(2, times=2)])
    with pytest.raises(KeyboardInterrupt):
        model.fit(X, Y)
    assert not hasattr(model, "model_")


def test_a_solver_that_stalls_is_reported() -> None:
    # Targets that the network gives already: no step can make the energy smaller.
    model = made(LiftedRegressor, batch_size=None, solver=lb.ProximalGradient(step_rule=solvers.Backtracking()))
    flat = np.full(len(X), 2.0)
    model.set_params(hidden=(), epochs=3000, tol=None)
    with pytest.warns(ConvergenceWarning, match="stalled"):
        model.fit(X, flat)
    np.testing.assert_allclose(model.predict(X), flat, atol=1e-6)


# Data


@every_kind
@pytest.mark.parametrize(
    ("dtype", "given", "expected"),
    [
        (None, np.float32, np.float32),
        (None, np.float64, np.float64),
        (None, np.int32, np.float64),
        (None, np.float16, np.float64),
        ("float32", np.float64, np.float32),
        (np.float64, np.float32, np.float64),
    ],
)
def test_the_network_has_the_dtype_of_the_data_or_of_the_settings(kind, dtype, given, expected) -> None:
    data = (X * 3).astype(given)
    model = made(kind, dtype=dtype, epochs=1).fit(data, Y)
    assert {p.dtype for p in parameters(model)} == {torch.from_numpy(np.zeros(1, expected)).dtype}
    assert predict(model, data).dtype == expected
    # Once trained, it takes any.
    assert predict(model, data.astype(np.float64)).dtype == expected
    first = {"classes": [0, 1, 2]} if kind is LiftedClassifier else {}
    model.partial_fit(data.astype(np.float32), Y, **first)


@every_kind
@pytest.mark.parametrize(
    ("spoil", "error", "said"),
    [
        (lambda X: np.where(X > 2.0, np.nan, X), ValueError, "NaN"),
        (lambda X: np.where(X > 2.0, np.inf, X), ValueError, "infinity"),
        (lambda X: X[:0], ValueError, "0 sample"),
        (lambda X: X[:, :0], ValueError, "0 feature"),
        (lambda X: X[0], ValueError, "1D array"),
        (lambda X: np.stack([X, X]), ValueError, "dim 3"),
        (lambda X: sparse.csr_matrix(X), TypeError, "dense data is required"),
        (lambda X: sparse.csr_array(X), TypeError, "dense data is required"),
        (lambda X: X.astype(str) + "x", ValueError, "could not convert string"),
        (lambda X: X * (1 + 1j), ValueError, "Complex data not supported"),
    ],
)
def test_bad_samples_are_refused_before_training(kind, spoil, error, said) -> None:
    rows = Rows()
    with pytest.raises(error, match=said):
        made(kind, callbacks=[rows]).fit(spoil(X), Y[: len(spoil(X))] if not sparse.issparse(spoil(X)) else Y)
    assert rows.seen == []
    fitted = made(kind).fit(X, Y)
    with pytest.raises(error, match=said):
        predict(fitted, spoil(X))


@every_kind
def test_another_number_of_features_is_refused(kind: type[BaseEstimator]) -> None:
    model = made(kind).fit(X, Y)
    assert model.n_features_in_ == 6
    with pytest.raises(ValueError, match=r"X has 5 features, but .* is expecting 6"):
        predict(model, X[:, :5])
    with pytest.raises(ValueError, match="X has 5 features"):
        model.partial_fit(X[:, :5], Y)


@pytest.mark.parametrize("kind", [LiftedClassifier, LiftedRegressor])
def test_bad_targets_are_refused(kind: type[BaseEstimator]) -> None:
    with pytest.raises(ValueError, match="inconsistent numbers of samples"):
        made(kind).fit(X, Y[:-1])
    with pytest.raises(ValueError, match="NaN"):
        made(kind).fit(X, np.where(Y == 0, np.nan, Y))


@every_kind
@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"hidden": (8, 0)}, r"hidden is \(8, 0\)"),
        ({"hidden": (8, 2.5)}, r"hidden is \(8, 2.5\)"),
        ({"hidden": None}, "hidden is None"),
        ({"activation": "relu"}, "activation is 'relu'"),
        ({"activation": torch.nn.ReLU()}, "activation is ReLU"),
        ({"solver": "sgd"}, "solver is 'sgd'"),
        ({"solver": lb.ImplicitSGD}, "solver is <class"),
        ({"epochs": 0}, "epochs is 0"),
        ({"epochs": True}, "epochs is True"),
        ({"epochs": 2.0}, "epochs is 2.0"),
        ({"batch_size": -1}, "batch_size is -1"),
        ({"tol": -1.0}, "tol is -1.0"),
        ({"tol": "small"}, "tol is 'small'"),
        ({"n_iter_no_change": 0}, "n_iter_no_change is 0"),
        ({"early_stopping": True, "validation_fraction": 1.0}, "validation_fraction is 1.0"),
        ({"early_stopping": True, "validation_fraction": None}, "validation_fraction is None"),
        ({"dtype": "float16"}, "dtype is 'float16'"),
        ({"dtype": "floaty"}, "dtype is 'floaty'"),
        ({"callbacks": ["progress"]}, "callbacks holds 'progress'"),
        ({"weights": -1.0}, "weights"),
    ],
)
def test_bad_settings_are_named_when_training_begins(kind, settings, said) -> None:
    model = made(kind).set_params(**settings)
    with pytest.raises(SettingError, match=said):
        model.fit(X, Y)


def test_settings_that_do_not_fit_together_are_refused() -> None:
    with pytest.raises(CompatibilityError, match="loss is"):
        made(LiftedRegressor, loss=torch.nn.MSELoss()).fit(X, Y)
    with pytest.raises(SettingError, match="takes the whole set"):
        made(LiftedRegressor, solver=lb.ProximalGradient(), batch_size=10).fit(X, Y)
    with pytest.raises(CompatibilityError, match="parameter_penalties"):
        made(LiftedRegressor, solver=lb.AdaBreg(), parameter_penalty=lb.penalties.L1(0.1)).fit(X, Y)


def test_numpy_numbers_are_numbers() -> None:
    model = LiftedRegressor(
        hidden=np.array([5, 4]),
        epochs=np.int64(2),
        batch_size=np.int32(20),
        n_iter_no_change=np.int64(3),
        tol=np.float32(0.0),
        random_state=np.int64(0),
    ).fit(X, Y)
    assert [tuple(p.shape) for p in parameters(model)][::2] == [(5, 6), (4, 5), (1, 4)]
    assert model.n_iter_ == 2


def test_the_data_are_not_changed() -> None:
    data, targets = X.copy(), Y.astype(float)
    data.flags.writeable = targets.flags.writeable = False
    for kind in KINDS:
        made(kind, **({"noise": 0.5} if kind is LiftedAutoencoder else {})).fit(data, Y).partial_fit(data, Y)
    made(LiftedRegressor).fit(data[::-1], targets[::-1])
    np.testing.assert_array_equal(data, X)


# Life in scikit-learn


@every_kind
@pytest.mark.parametrize("way", ["pickle", "joblib", "deepcopy"])
def test_a_copy_predicts_the_same_bits(kind: type[BaseEstimator], way: str) -> None:
    model = made(kind, activation=lb.activations.Softplus(), solver=lb.ImplicitSGD(5.0, 2)).fit(X, Y)
    if way == "pickle":
        other = pickle.loads(pickle.dumps(model))
    elif way == "joblib":
        file = io.BytesIO()
        joblib.dump(model, file)
        file.seek(0)
        other = joblib.load(file)
    else:
        other = copy.deepcopy(model)
    np.testing.assert_array_equal(predict(other), predict(model))
    assert other.outcome_ is model.outcome_
    assert other.get_params()["activation"] == model.activation
    other.partial_fit(X, Y)
    assert not same_parameters(other, model)  # it has a network of its own


@every_kind
def test_clones_have_the_settings_and_nothing_else(kind: type[BaseEstimator]) -> None:
    model = made(kind, solver=lb.ImplicitSGD(5.0, 2), loss=lb.SquaredError()).fit(X, Y)
    other = clone(model)
    assert not hasattr(other, "model_")
    assert other.solver == model.solver
    assert set(other.get_params()) == set(model.get_params())
    assert same_parameters(other.fit(X, Y), model)


def test_a_pipeline_and_cross_validation() -> None:
    pipeline = make_pipeline(StandardScaler(), made(LiftedClassifier, epochs=30))
    scores = cross_val_score(pipeline, X * 1000.0 + 5.0, Y, cv=3)
    assert scores.shape == (3,)
    assert scores.min() > 0.5  # a third by chance
    coder = make_pipeline(StandardScaler(), made(LiftedAutoencoder), made(LiftedClassifier)).fit(X, Y)
    assert coder.predict(X).shape == (90,)


def test_a_search_over_layers_solvers_and_penalties() -> None:
    grid = {
        "hidden": [(2,), (20,)],
        "solver": [None, lb.ImplicitSGD(prox_weight=5.0, inner_steps=3), lb.baselines.SGD(learning_rate=1e-9)],
    }
    search = GridSearchCV(made(LiftedClassifier, epochs=30), grid, cv=2).fit(X, Y)
    assert search.best_params_["hidden"] == (20,)
    assert search.best_params_["solver"] != lb.baselines.SGD(learning_rate=1e-9)
    assert search.best_score_ > 0.5
    assert search.predict(X).shape == (90,)
    assert same_parameters(search.best_estimator_, clone(search.best_estimator_).fit(X, Y))


def test_callbacks_are_called() -> None:
    rows = Rows()
    made(LiftedRegressor, callbacks=[rows]).fit(X, Y)
    assert len(rows.seen) == 4
    timed = made(LiftedRegressor, callbacks=[lb.callbacks.Timer(1e-9)], epochs=50).fit(X, Y)
    assert timed.outcome_ is Outcome.STOPPED
    assert timed.n_iter_ == 1


# Import


def run(script: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=120)


def test_scikit_learn_is_imported_only_with_the_estimators() -> None:
    result = run("import sys, lifted_bregman; assert 'sklearn' not in sys.modules; print(list(sys.modules))")
    assert result.returncode == 0, result.stderr
    assert "lifted_bregman.estimators" not in result.stdout


def test_without_scikit_learn_a_sentence_names_the_extra() -> None:
    result = run("import sys; sys.modules['sklearn'] = None\nfrom lifted_bregman.estimators import LiftedClassifier")
    assert result.returncode == 1
    last = result.stderr.strip().splitlines()[-1]
    assert last == "ImportError: the estimators need scikit-learn: install lifted-bregman with the extra 'sklearn'."


def test_the_modules_are_small_enough_to_read() -> None:
    for path in (Path(lb.__file__).parent / "estimators").glob("*.py"):
        assert len(path.read_text(encoding="utf-8").splitlines()) <= 300
