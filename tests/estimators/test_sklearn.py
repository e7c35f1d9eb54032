"""Life in scikit-learn: seeds, copies, pipelines, searches, and its absence."""

import copy
import io
import pickle
import subprocess

import joblib
import numpy as np
import pytest
import torch
from sklearn.base import BaseEstimator, clone
from sklearn.model_selection import GridSearchCV, cross_val_score
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

import lifted_bregman as lb
from lifted_bregman.estimators import LiftedAutoencoder, LiftedClassifier, LiftedRegressor
from lifted_bregman.solvers import Outcome
from tests import fresh
from tests.estimators.data import (
    KINDS,
    Rows,
    X,
    Y,
    every_kind,
    made,
    parameters,
    predict,
    same_parameters,
    without_times,
)


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


def test_random_states_follow_scikit_learns_rules() -> None:
    shared = np.random.RandomState(3)
    one = made(LiftedRegressor, random_state=shared).fit(X, Y)
    two = made(LiftedRegressor, random_state=shared).fit(X, Y)
    assert not same_parameters(one, two)
    again = made(LiftedRegressor, random_state=np.random.RandomState(3)).fit(X, Y)
    assert same_parameters(one, again)
    assert not same_parameters(
        made(LiftedRegressor, random_state=None).fit(X, Y), made(LiftedRegressor, random_state=None).fit(X, Y)
    )


def test_global_generators_do_not_change() -> None:
    torch.manual_seed(5)
    expected = torch.rand(3)
    torch.manual_seed(5)
    before = np.random.get_state()[1].tolist()
    made(LiftedAutoencoder, noise=0.1, early_stopping=True).fit(X)
    assert torch.equal(torch.rand(3), expected)
    assert np.random.get_state()[1].tolist() == before


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


def run(script: str) -> subprocess.CompletedProcess[str]:
    return fresh.run(script, check=False)


def test_scikit_learn_is_imported_only_with_the_estimators() -> None:
    result = run("import sys, lifted_bregman as lb; print('sklearn' in sys.modules, lb.LiftedClassifier.__name__)")
    assert result.returncode == 0, result.stderr
    assert result.stdout.split() == ["False", "LiftedClassifier"]
    assert [getattr(lb, kind.__name__) for kind in KINDS] == KINDS


def test_without_scikit_learn_a_sentence_names_the_extra() -> None:
    result = run("import sys; sys.modules['sklearn'] = None\nimport lifted_bregman as lb\nlb.LiftedClassifier()")
    assert result.returncode == 1
    last = result.stderr.strip().splitlines()[-1]
    assert last == "ImportError: the estimators need scikit-learn: install lifted-bregman with the extra 'sklearn'."
