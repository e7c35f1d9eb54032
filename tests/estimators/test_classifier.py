"""LiftedClassifier against scikit-learn's classifiers, torch and the definitions."""

import numpy as np
import pytest
import torch
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import train_test_split
from sklearn.neural_network import MLPClassifier
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from torch import nn

import lifted_bregman as lb
from lifted_bregman.errors import DataError, SettingError
from lifted_bregman.estimators import LiftedClassifier
from lifted_bregman.solvers import Callback, CurvatureStep, Nesterov
from tests.estimators.data import classes, digits, parameters, same_parameters

X, Y = classes()
NAMES = np.array(["robin", "heron", "wren"])


def small(**settings) -> LiftedClassifier:
    return LiftedClassifier(**({"hidden": (8,), "epochs": 5, "random_state": 0} | settings))


def outputs(model: nn.Sequential, X: np.ndarray) -> torch.Tensor:
    """A forward pass written out, without the library."""
    x = torch.tensor(X)
    for module in model:
        x = x @ module.weight.T + module.bias if isinstance(module, nn.Linear) else x.clamp(min=0.0)
    return x.detach()


@pytest.mark.filterwarnings("ignore:Stochastic Optimizer")
def test_digits_are_learned_as_well_as_by_scikit_learns_network() -> None:
    X, y = digits()
    X_train, X_test, y_train, y_test = train_test_split(X, y, test_size=0.3, stratify=y, random_state=0)
    scores = []
    for network in (
        LiftedClassifier(hidden=(64, 64), epochs=60, random_state=0),
        MLPClassifier((64, 64), random_state=0),
    ):
        pipeline = make_pipeline(StandardScaler(), network).fit(X_train, y_train)
        scores.append(pipeline.score(X_test, y_test))
    assert scores[0] > scores[1] - 0.02
    assert scores[0] > 0.95


def test_a_classifier_without_hidden_layers_is_logistic_regression() -> None:
    n, weight = len(X), 0.05
    ours = LiftedClassifier(
        hidden=(),
        parameter_penalty=lb.penalties.SquaredL2(weight),
        solver=lb.ProximalGradient(step_rule=CurvatureStep(1.0), acceleration=Nesterov()),
        epochs=250,
        tol=None,
    ).fit(X, Y)
    # scikit-learn minimises C Σ loss + ½‖W‖², which is n·C times the mean plus 1/(n·C) of the penalty.
    theirs = LogisticRegression(C=1.0 / (n * weight), tol=1e-10, max_iter=10_000).fit(X, Y)
    np.testing.assert_allclose(ours.predict_proba(X), theirs.predict_proba(X), atol=1e-5)


def test_outputs_are_those_of_the_network() -> None:
    model = small().fit(X, Y)
    z = outputs(model.model_, X)
    np.testing.assert_allclose(model.decision_function(X), z.numpy(), rtol=1e-12, atol=1e-12)
    probabilities = (z - z.logsumexp(1, keepdim=True)).exp()
    np.testing.assert_allclose(model.predict_proba(X), probabilities.numpy(), rtol=1e-9)
    np.testing.assert_allclose(model.predict_log_proba(X), probabilities.log().numpy(), rtol=1e-7)
    np.testing.assert_array_equal(model.predict(X), z.argmax(1).numpy())
    assert model.score(X, Y) == np.mean(z.argmax(1).numpy() == Y)
    expected = nn.functional.cross_entropy(z, torch.tensor(Y))
    assert model.loss_ == pytest.approx(float(expected), rel=1e-10)


def test_log_probabilities_do_not_round_to_minus_infinity() -> None:
    model = small(epochs=1).fit(X, Y)
    with torch.no_grad():
        model.model_[-1].weight.mul_(1e5)
    assert (model.predict_proba(X) == 0.0).any()
    assert np.isfinite(model.predict_log_proba(X)).all()


def test_labels_may_be_strings() -> None:
    by_name = small().fit(X, NAMES[Y])
    # Classes are sorted, as everywhere in scikit-learn: heron, robin, wren.
    assert by_name.classes_.tolist() == ["heron", "robin", "wren"]
    by_number = small().fit(X, np.array([1, 0, 2])[Y])
    assert same_parameters(by_name, by_number)
    np.testing.assert_array_equal(by_name.predict(X), by_name.classes_[by_number.predict(X)])


def test_two_classes_have_one_decision() -> None:
    y = np.where(Y == 0, "no", "yes")
    model = small(epochs=30).fit(X, y)
    z = outputs(model.model_, X).numpy()
    decision = model.decision_function(X)
    np.testing.assert_allclose(decision, z[:, 1] - z[:, 0], rtol=1e-9, atol=1e-12)
    np.testing.assert_array_equal(model.predict(X), np.where(decision > 0, "yes", "no"))
    np.testing.assert_allclose(model.predict_proba(X)[:, 1], 1.0 / (1.0 + np.exp(-decision)), rtol=1e-9)


def test_squared_error_is_to_one_hot_targets_and_has_no_probabilities() -> None:
    model = small(loss=lb.SquaredError(), epochs=40, batch_size=10).fit(X, Y)
    z = outputs(model.model_, X).numpy()
    assert model.loss_ == pytest.approx(0.5 * np.square(z - np.eye(3)[Y]).sum(1).mean(), rel=1e-10)
    assert model.score(X, Y) > 0.6
    assert not hasattr(model, "predict_proba")
    assert not hasattr(model, "predict_log_proba")
    with pytest.raises(AttributeError, match="has no attribute 'predict_proba'") as raised:
        model.predict_proba(X)
    assert "CrossEntropy()" in str(raised.value.__cause__)
    assert hasattr(small(), "predict_proba")


def test_one_class_is_refused() -> None:
    with pytest.raises(DataError, match="only one class, 'wren'"):
        small().fit(X, np.full(len(X), "wren"))
    with pytest.raises(DataError, match="only one class, 1"):
        small().fit(X, Y, sample_weight=(Y == 1).astype(float))


def test_a_loss_without_classes_is_refused() -> None:
    with pytest.raises(SettingError, match=r"CrossEntropy\(\) or SquaredError\(\)"):
        small(loss=lb.BregmanLoss(lb.activations.Tanh())).fit(X, Y)


def test_the_first_partial_fit_needs_all_classes_and_later_ones_none() -> None:
    some = Y < 2
    with pytest.raises(SettingError, match="classes="):
        small().partial_fit(X[some], Y[some])
    model = small().partial_fit(X[some], Y[some], classes=[2, 0, 1])
    assert model.classes_.tolist() == [0, 1, 2]
    assert model.predict_proba(X).shape == (len(X), 3)
    model.partial_fit(X, Y)
    model.partial_fit(X, Y, classes=[0, 1, 2])
    assert model.n_iter_ == 3
    with pytest.raises(DataError, match="label 7"):
        model.partial_fit(X, np.where(Y == 0, 7, Y))
    with pytest.raises(DataError, match="continues with the classes 0, 1, 2"):
        model.partial_fit(X[some], Y[some], classes=[0, 1])
    with pytest.raises(DataError, match="label 2"):
        small().partial_fit(X, Y, classes=[0, 1])


def test_a_warm_start_refuses_other_classes() -> None:
    model = small(warm_start=True).fit(X, Y)
    with pytest.raises(DataError, match="continues with the classes"):
        model.fit(X[Y < 2], Y[Y < 2])


def test_a_weight_counts_like_a_repetition() -> None:
    # The check in scikit-learn has fewer samples than a batch; here whole-set steps say the same for any number.
    rng = np.random.default_rng(0)
    counts = rng.integers(0, 3, len(X))
    settings = {"solver": lb.ProximalGradient(), "epochs": 20}
    weighted = small(**settings).fit(X, Y, sample_weight=counts)
    repeated = small(**settings).fit(X.repeat(counts, axis=0), Y.repeat(counts))
    np.testing.assert_allclose(weighted.predict_proba(X), repeated.predict_proba(X), rtol=1e-7)
    assert weighted.loss_ == pytest.approx(repeated.loss_, rel=1e-9)
    plain = small(**settings).fit(X, Y)
    assert not np.allclose(weighted.predict_proba(X), plain.predict_proba(X), rtol=1e-3)


class HeldOut(Callback):
    """The targets of the samples that are held out, and of those that are not."""

    def started(self, run) -> None:
        self.held_out, self.trained = (batch.Y.sum(0).tolist() for batch in (run.validation, run.data))


def test_early_stopping_holds_out_each_class_in_proportion() -> None:
    seen = HeldOut()
    settings = {"early_stopping": True, "epochs": 1, "callbacks": [seen]}
    small(**settings).fit(X[:70], np.array([0] * 50 + [1] * 20))
    assert (seen.held_out, seen.trained) == ([5, 2], [45, 18])
    small(**settings, validation_fraction=0.5).fit(X[:70], np.array([0] * 50 + [1] * 20))
    assert (seen.held_out, seen.trained) == ([25, 10], [25, 10])
    # Where a class has one sample, or more classes than samples would be held out, chance decides.
    small(**settings).fit(X[:70], np.array([0] * 69 + [1]))
    assert sum(seen.held_out) == 7
    small(**settings).fit(X[:20], np.arange(20) % 3)
    assert sum(seen.held_out) == 2


def test_history_has_accuracies() -> None:
    model = small(epochs=3, tol=None).fit(X, Y)
    assert [row["epoch"] for row in model.history_] == [1, 2, 3]
    assert model.history_[-1]["accuracy"] == pytest.approx(model.score(X, Y))
    assert [tuple(p.shape) for p in parameters(model)] == [(8, 6), (8,), (3, 8), (3,)]
