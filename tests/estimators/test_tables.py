"""Tables as scikit-learn's users have them: frames with categories, sparse matrices, several labels to a sample."""

import math

import numpy as np
import pytest
from scipy import sparse
from scipy.special import expit
from sklearn.base import BaseEstimator
from sklearn.compose import make_column_transformer
from sklearn.metrics import log_loss
from sklearn.model_selection import cross_val_score
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import OneHotEncoder, StandardScaler

import lifted_bregman as lb
from lifted_bregman.errors import DataError, SettingError
from lifted_bregman.estimators import LiftedAutoencoder, LiftedClassifier, LiftedRegressor, _base
from lifted_bregman.estimators import _settings as settings
from tests.estimators.data import X, Y, every_kind, made, predict, same_parameters

RNG = np.random.default_rng(0)


@pytest.fixture
def frame():
    """A number, a town, and a colour that says which of two classes it is."""
    pd = pytest.importorskip("pandas")
    rng = np.random.default_rng(1)
    colour = pd.Categorical(rng.choice(["blue", "green", "red"], 120))
    table = pd.DataFrame({"size": rng.normal(100.0, 30.0, 120), "colour": colour, "town": rng.choice(["A", "B"], 120)})
    y = np.where(table["colour"] == "red", "warm", "cold")
    return table, y


def columns(**settings):
    return make_column_transformer(
        (StandardScaler(), ["size"]),
        (OneHotEncoder(**settings), ["colour", "town"]),
        verbose_feature_names_out=False,
    )


NAMES = ["size", "colour_blue", "colour_green", "colour_red", "town_A", "town_B"]


def test_a_column_transformer_encodes_categories(frame) -> None:
    table, y = frame
    network = LiftedClassifier(hidden=(8,), epochs=60, random_state=0)
    pipeline = make_pipeline(columns(), network).fit(table, y)
    assert pipeline.score(table, y) == 1.0
    assert list(pipeline.feature_names_in_) == ["size", "colour", "town"]
    assert list(pipeline[:-1].get_feature_names_out()) == NAMES
    assert cross_val_score(pipeline, table, y, cv=3).min() > 0.9


def test_feature_names_are_kept_if_a_step_returns_frames(frame) -> None:
    table, y = frame
    network = LiftedClassifier(hidden=(8,), epochs=5, random_state=0)
    pipeline = make_pipeline(columns(sparse_output=False), network).set_output(transform="pandas").fit(table, y)
    assert list(network.feature_names_in_) == NAMES
    by_arrays = make_pipeline(columns(sparse_output=False), made(LiftedClassifier, hidden=(8,), epochs=5))
    by_arrays.set_params(liftedclassifier__batch_size=None).fit(table, y)
    assert same_parameters(network, by_arrays[-1])
    with pytest.raises(ValueError, match="feature names should match"):
        network.predict(pipeline[:-1].transform(table)[NAMES[::-1]])


def test_codes_are_a_frame_if_the_output_is_set_to_pandas(frame) -> None:
    table, _ = frame
    coder = LiftedAutoencoder((5, 3, 5), epochs=2, code_penalty=0.01, random_state=0)
    codes = make_pipeline(columns(sparse_output=False), coder).set_output(transform="pandas").fit_transform(table)
    assert list(codes.columns) == [f"liftedautoencoder{i}" for i in range(3)]
    assert codes.index.equals(table.index)


def test_strings_without_an_encoder_are_refused(frame) -> None:
    table, y = frame
    with pytest.raises(ValueError, match="could not convert string to float"):
        LiftedClassifier().fit(table, y)


@every_kind
@pytest.mark.parametrize("form", [sparse.csr_matrix, sparse.csr_array, sparse.coo_array, sparse.csc_matrix])
def test_a_sparse_matrix_gives_the_results_of_its_dense_array(kind: type[BaseEstimator], form) -> None:
    zeros = np.where(np.abs(X) < 0.8, 0.0, X)
    of_array, of_sparse = made(kind).fit(zeros, Y), made(kind).fit(form(zeros), Y)
    assert same_parameters(of_array, of_sparse)
    np.testing.assert_array_equal(predict(of_array, zeros), predict(of_array, form(zeros)))
    assert same_parameters(of_array.partial_fit(zeros, Y), of_sparse.partial_fit(form(zeros), Y))
    if kind is not LiftedAutoencoder:
        w = RNG.uniform(0.0, 1.0, len(Y)).round()  # some are 0, whose rows are left out
        assert same_parameters(
            made(kind).fit(form(zeros), Y, sample_weight=w), made(kind).fit(zeros, Y, sample_weight=w)
        )
    assert of_array.score(form(zeros), Y) == of_array.score(zeros, Y)


def test_predictions_make_a_few_rows_dense_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_base, "_ROWS", 16)
    written = []
    monkeypatch.setattr(settings, "dense", lambda rows: written.append(rows.shape) or rows.toarray())
    model = LiftedRegressor(hidden=(4,), epochs=1).fit(sparse.csr_array(X), sparse.csr_array(Y[:, None]))
    written.clear()
    predicted = model.predict(sparse.csr_array(X))
    assert written == [(16, 6)] * 5 + [(10, 6)]
    monkeypatch.undo()
    np.testing.assert_allclose(predicted, model.predict(X), rtol=1e-12)


@every_kind
def test_a_matrix_larger_than_the_memory_is_refused(kind: type[BaseEstimator]) -> None:
    huge = sparse.csr_array((1000, 2_000_000_000))
    with pytest.raises(DataError, match=r"1,000 x 2,000,000,000, which training makes dense: it needs 16,000 GB"):
        made(kind).fit(huge, np.arange(1000) % 2)


# Several labels to a sample

INDICATORS = np.stack([X[:, 0] > 0.3, X[:, 1] + X[:, 2] > 0.0, np.arange(len(X)) % 7 == 0], axis=1).astype(int)


def test_indicators_are_learned_by_binary_cross_entropy() -> None:
    model = LiftedClassifier(hidden=(8,), epochs=30, random_state=0, tol=None).fit(X, INDICATORS)
    assert model.multilabel_ and list(model.classes_) == [0, 1, 2]
    p = model.predict_proba(X)
    # the sum over labels of scikit-learn's own log loss
    entropies = [log_loss(INDICATORS[:, label], p[:, label]) for label in range(3)]
    assert model.loss_ == pytest.approx(sum(entropies), rel=1e-9)
    np.testing.assert_array_equal(model.predict(X), (p > 0.5).astype(int))
    # not by log(p/(1 - p)), which has no digits left where p rounds to 1
    np.testing.assert_allclose(p, expit(model.decision_function(X)), rtol=1e-12)
    np.testing.assert_allclose(1.0 - p, expit(-model.decision_function(X)), atol=1e-15)
    np.testing.assert_allclose(np.exp(model.predict_log_proba(X)), p, rtol=1e-12)
    assert (model.predict(X) == INDICATORS).mean() > 0.85
    assert model.score(X, INDICATORS) == (model.predict(X) == INDICATORS).all(1).mean()


def test_without_hidden_layers_each_label_is_logistic_regression() -> None:
    from sklearn.linear_model import LogisticRegression

    weight = 0.05
    ours = LiftedClassifier(
        hidden=(), parameter_penalty=lb.penalties.SquaredL2(weight), solver=lb.ProximalGradient(), epochs=800, tol=None
    ).fit(X, INDICATORS)
    W, b = (p.detach().numpy() for p in ours.model_.parameters())
    for label in range(3):  # C Σ loss + ½‖w‖², with the mean loss + ½ weight ‖w‖² over weight
        theirs = LogisticRegression(C=1.0 / (weight * len(X)), tol=1e-10, max_iter=2000).fit(X, INDICATORS[:, label])
        np.testing.assert_allclose(W[label], theirs.coef_[0], atol=1e-5)
        np.testing.assert_allclose(b[label], theirs.intercept_[0], atol=1e-5)


def test_indicators_may_be_arrays_or_sparse_and_come_in_parts() -> None:
    small = {"hidden": (7,), "epochs": 1, "random_state": 0, "batch_size": 20}
    model = LiftedClassifier(**small).fit(X, INDICATORS)
    for other in (INDICATORS.astype(bool), INDICATORS.astype(float), INDICATORS.tolist(), sparse.csr_array(INDICATORS)):
        assert same_parameters(model, LiftedClassifier(**small).fit(X, other))
    endless = LiftedClassifier(**small, solver=lb.GramSweep(total_steps=math.inf)).fit(X, INDICATORS)
    parts = LiftedClassifier(**small).partial_fit(X, INDICATORS)  # more may follow, so that its rate has no end
    assert same_parameters(endless, parts)
    parts.partial_fit(X, INDICATORS, classes=range(3))
    with pytest.raises(DataError, match="y is one label for each sample"):
        parts.partial_fit(X, Y)
    with pytest.raises(DataError, match="classes 0, 1, 2, but 0, 1 were given"):
        parts.partial_fit(X, INDICATORS[:, :2])
    split = LiftedClassifier(hidden=(7,), epochs=3, early_stopping=True).fit(X, INDICATORS)
    assert "validation" in split.history_[0]


@pytest.mark.parametrize(
    ("given", "y", "error", "said"),
    [
        (
            {"class_weight": "balanced"},
            INDICATORS,
            SettingError,
            "class_weight is 'balanced', but rows of the indicator",
        ),
        ({"loss": lb.SquaredError()}, INDICATORS, SettingError, "but y is a matrix of indicators"),
        ({"loss": lb.BregmanLoss(lb.activations.Sigmoid())}, Y, SettingError, "takes CrossEntropy"),
        ({}, 2 * INDICATORS, DataError, "values 0, 2; expected indicators, 0 and 1 only"),
        ({}, np.stack([Y, Y], axis=1), ValueError, "should be a 1d array"),
    ],
)
def test_what_does_not_fit_indicators_is_refused(given, y, error, said) -> None:
    with pytest.raises(error, match=said):
        LiftedClassifier(**given).fit(X, y)


# Stopping without being told


@pytest.mark.parametrize("kind", [LiftedClassifier, LiftedRegressor, LiftedAutoencoder])
def test_samples_are_held_out_where_there_are_enough(kind, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(settings, "ENOUGH_TO_HOLD_OUT", len(X))
    enough, few = made(kind).fit(X, Y), made(kind).fit(X[1:], Y[1:])
    assert "validation" in enough.history_[0] and "validation" not in few.history_[0]
    assert same_parameters(enough, made(kind, early_stopping=True).fit(X, Y))
    assert same_parameters(few, made(kind, early_stopping=False).fit(X[1:], Y[1:]))


@every_kind
def test_early_stopping_is_yes_no_or_auto(kind: type[BaseEstimator]) -> None:
    with pytest.raises(SettingError, match="early_stopping is 'sometimes'; it must be True, False or 'auto'"):
        made(kind, early_stopping="sometimes").fit(X, Y)


def test_weights_of_classes_are_repetitions_of_their_samples() -> None:
    # Weights 2 and 1 against samples of class 1 given twice: the mean objective is the same, and so is its minimum.
    settings = {"hidden": (), "solver": lb.ProximalGradient(), "epochs": 150, "tol": None, "random_state": 0}
    ridge = {"parameter_penalty": lb.penalties.SquaredL2(0.1)}
    weighted = LiftedClassifier(class_weight={0: 1, 1: 2, 2: 1}, **settings, **ridge).fit(X, Y)
    counts = np.where(Y == 1, 2, 1)
    repeated = LiftedClassifier(**settings, **ridge).fit(X.repeat(counts, axis=0), Y.repeat(counts))
    np.testing.assert_allclose(weighted.predict_proba(X), repeated.predict_proba(X), atol=1e-8)
