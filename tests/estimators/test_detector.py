"""LiftedDetector and LiftedOutlierDetector: both conventions, pictures, networks of the user's, and mistakes."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from scipy.special import erf
from scipy.stats import binom
from sklearn.exceptions import NotFittedError
from sklearn.metrics import roc_auc_score
from sklearn.preprocessing import MinMaxScaler
from torch import nn

import lifted_bregman as lb
from lifted_bregman.errors import CompatibilityError, DataError, SettingError, TensorError

SMALL = {"hidden": (6, 2), "epochs": 2, "random_state": 0}


@pytest.fixture(scope="module")
def table() -> np.ndarray:
    generator = np.random.default_rng(0)
    X = generator.normal(size=(200, 5))
    X[:, 2] = X[:, 0] + X[:, 1]
    return X


@pytest.fixture(scope="module")
def detector(table: np.ndarray) -> lb.LiftedDetector:
    return lb.LiftedDetector(**SMALL, contamination=0.07).fit(table)


def test_threshold_and_labels_are_those_of_the_training_scores(detector: lb.LiftedDetector, table: np.ndarray) -> None:
    scores = detector.decision_scores_
    assert scores.shape == (200,) and detector.threshold_ == pytest.approx(np.quantile(scores, 0.93))
    assert detector.labels_.sum() == 14 and set(detector.labels_) == {0, 1}
    assert scores[detector.labels_ == 1].min() > scores[detector.labels_ == 0].max()
    np.testing.assert_array_equal(detector.decision_function(table), scores)
    np.testing.assert_array_equal(detector.predict(table), detector.labels_)


def test_both_conventions_are_one_score_with_two_signs(detector: lb.LiftedDetector, table: np.ndarray) -> None:
    other = lb.LiftedOutlierDetector(**SMALL, contamination=0.07).fit(table)
    np.testing.assert_allclose(other.score_samples(table), -detector.decision_scores_)
    np.testing.assert_allclose(other.decision_function(table), detector.threshold_ - detector.decision_scores_)
    np.testing.assert_array_equal(other.predict(table) == -1, detector.labels_ == 1)
    np.testing.assert_array_equal(other.fit_predict(table), other.predict(table))


def test_probabilities_and_confidence_follow_their_definitions(detector: lb.LiftedDetector, table: np.ndarray) -> None:
    new = 1.5 * table[:40]
    usual, scores = detector.decision_scores_, detector.decision_function(new)
    linear = detector.predict_proba(new)
    expected = MinMaxScaler().fit(usual[:, None]).transform(scores[:, None])[:, 0].clip(0, 1)
    np.testing.assert_allclose(linear[:, 1], expected)
    np.testing.assert_allclose(linear.sum(1), 1.0)
    unified = detector.predict_proba(new, method="unify")[:, 1]
    np.testing.assert_allclose(unified, erf((scores - usual.mean()) / usual.std() / 2**0.5).clip(0, 1))
    labels, confidence = detector.predict(new, return_confidence=True)
    for score, label, own in zip(scores, labels, confidence, strict=True):
        p = (1 + np.count_nonzero(usual <= score)) / (2 + len(usual))
        abnormal = binom.sf(len(usual) - int(0.07 * len(usual)), len(usual), p)
        assert own == pytest.approx(abnormal if label else 1 - abnormal, abs=1e-9)
    np.testing.assert_array_equal(confidence, detector.predict_confidence(new))
    with pytest.raises(SettingError, match="method is 'softmax'"):
        detector.predict_proba(new, method="softmax")


@pytest.mark.parametrize("energy", ["forward", "minimum"])
def test_samples_that_break_a_relation_are_found_although_each_feature_is_usual(energy: str) -> None:
    generator = np.random.default_rng(1)
    X = generator.normal(size=(330, 2)) @ generator.normal(size=(2, 8))
    test, broken = X[300:], X[300:].copy()
    for column in broken.T:
        generator.shuffle(column)  # the same numbers in each feature, no longer together
    found = lb.LiftedDetector((16, 2), energy=energy, epochs=20, random_state=0).fit(X[:300])
    scores = found.decision_function(np.concatenate([test, broken]))
    assert roc_auc_score(np.repeat([0, 1], 30), scores) > 0.9
    explained = found.explain(broken)
    assert explained.features.shape == (30, 8)
    np.testing.assert_allclose(explained.layers.sum(1).numpy(), scores[30:])


def test_pictures_of_any_size_in_any_form() -> None:
    images = np.random.default_rng(2).random((30, 1, 9, 6)).astype(np.float32)
    settings = {"images": (9, 6), "hidden": (3, 4, 2), "epochs": 1, "random_state": 0}
    scores = lb.LiftedDetector(**settings).fit(images).decision_scores_
    for form in (images[:, 0], images.reshape(30, 54)):
        np.testing.assert_array_equal(lb.LiftedDetector(**settings).fit(form).decision_scores_, scores)
    found = lb.LiftedDetector(**settings).fit(images)
    assert found.reconstruct(images).shape == (30, 54) and found.reconstruct(images).dtype == np.float32
    assert found.explain(images[:2]).features.shape == (2, 1, 9, 6)
    assert [m.out_channels for m in found.model_ if isinstance(m, nn.Conv2d)] == [3, 4]


def test_scores_of_standardised_samples_do_not_depend_on_contrast() -> None:
    generator = np.random.default_rng(3)
    X = generator.random((40, 12))
    found = lb.LiftedDetector(**SMALL, standardise="samples").fit(X)
    other = generator.random((7, 12))
    np.testing.assert_allclose(found.decision_function(3 * other - 1), found.decision_function(other), rtol=1e-6)


def test_features_are_standardised_by_default(table: np.ndarray, detector: lb.LiftedDetector) -> None:
    scaled = table * [1e3, 1.0, 1e-3, 5.0, 1.0] + [7.0, 0.0, 0.0, -3.0, 100.0]
    again = lb.LiftedDetector(**SMALL, contamination=0.07).fit(scaled)
    np.testing.assert_allclose(again.decision_scores_, detector.decision_scores_, rtol=1e-5)
    np.testing.assert_allclose(
        again.reconstruct(scaled)[:, 0] / 1e3, detector.reconstruct(table)[:, 0] + 7e-3, rtol=1e-5
    )


@pytest.mark.parametrize("scale", [1e155, 1e300, 1e-155, 1e-170, 1e-300], ids=str)
@pytest.mark.parametrize("standardise", ["features", "samples"])
def test_scores_of_standardised_data_do_not_depend_on_the_unit(
    table: np.ndarray, standardise: str, scale: float
) -> None:
    expected = lb.LiftedDetector(**SMALL, standardise=standardise).fit(table)
    again = lb.LiftedDetector(**SMALL, standardise=standardise).fit(table * scale)
    np.testing.assert_allclose(again.decision_scores_, expected.decision_scores_, rtol=1e-9)
    np.testing.assert_allclose(again.reconstruct(table * scale) / scale, expected.reconstruct(table), rtol=1e-9)


def test_standardisation_of_usual_data_is_that_of_numpy() -> None:
    """Division by a power of two is exact: to the last bit mean and deviation are those of NumPy."""
    X = np.random.default_rng(5).normal(size=(60, 3)) * [1e3, 1.0, 1e-3] + [7.0, 0.0, 0.0]
    found = lb.LiftedDetector(**SMALL).fit(X)
    np.testing.assert_array_equal(found._mean.ravel(), X.mean(0))
    np.testing.assert_array_equal(found._deviation.ravel(), X.std(0))


def test_scales_at_which_energies_vanish_or_overflow_are_refused(table: np.ndarray) -> None:
    with pytest.raises(
        DataError, match=r"features are at most .*e-170 in magnitude, .*: rescale the features"
    ) as caught:
        lb.LiftedDetector(**SMALL, standardise=None).fit(table * 1e-170)
    assert str(caught.value).count(". ") == 0
    tiny = lb.LiftedDetector(**SMALL).fit(table * 1e-170)
    with pytest.raises(DataError, match="sample 0 overflows float64 when its features are standardised: rescale"):
        tiny.predict(table * 1e170)
    equal = lb.LiftedDetector(**SMALL).fit(np.ones((50, 5)))  # inputs that are all 0
    assert equal.predict([[1.0] * 5, [9.0] * 5]).tolist() == [0, 1]


@pytest.mark.parametrize(("wrong", "kind"), [(np.nan, "NaN"), (np.inf, "infinity"), (1e39, "infinity or a number too")])
def test_numbers_that_are_not_finite_are_refused_in_one_sentence(
    detector: lb.LiftedDetector, table: np.ndarray, wrong: float, kind: str
) -> None:
    X = table.copy()
    X[3, 2] = wrong
    single = lb.LiftedDetector(**SMALL, dtype="float32").fit(table)
    for ask in (single.predict, lb.LiftedDetector(**SMALL, dtype="float32").fit, detector.predict):
        if wrong == 1e39 and ask == detector.predict:
            continue  # a number of float64
        with (
            np.errstate(over="ignore"),
            pytest.raises(ValueError, match=f"^X holds {kind}.* in sample 3, feature 2: leave") as caught,
        ):
            ask(X)
        assert str(caught.value).count(". ") == 0 and "\n" not in str(caught.value)


def test_a_network_of_other_widths_than_the_samples_is_refused_with_both() -> None:
    five = nn.Sequential(nn.Linear(5, 2), nn.ReLU(), nn.Linear(2, 5))
    with pytest.raises(TensorError, match=r"samples of shape \(4,\), .* model\.0 \(Linear\) .* takes 5 features"):
        lb.LiftedDetector(network=five).fit(np.eye(4))


def test_a_network_of_the_users_is_copied_or_made() -> None:
    X = np.random.default_rng(4).normal(size=(30, 4))
    module = nn.Sequential(nn.Linear(4, 3), nn.Tanh(), nn.Linear(3, 4))
    before = {name: value.clone() for name, value in module.state_dict().items()}
    found = lb.LiftedDetector(network=module, epochs=2, random_state=0).fit(X)
    assert all(torch.equal(value, before[name]) for name, value in module.state_dict().items())
    assert not torch.equal(found.model_[0].weight.float(), module[0].weight)
    shapes: list[tuple[int, ...]] = []

    def make(shape: tuple[int, ...]) -> nn.Module:
        shapes.append(shape)
        return nn.Sequential(nn.Linear(4, 3), nn.Tanh(), nn.Linear(3, 4))

    one, two = (lb.LiftedDetector(network=make, members=2, epochs=1, random_state=5).fit(X) for _ in range(2))
    assert shapes == [(4,)] * 4  # each with members of its own
    np.testing.assert_array_equal(one.decision_scores_, two.decision_scores_)
    assert one.explain(X).names == ("layer 1", "code", "output")


COLOUR = np.zeros((4, 3, 8, 8))


@pytest.mark.parametrize(
    ("settings", "X", "error", "said"),
    [
        (
            {"images": (1, 8, 8)},
            COLOUR,
            DataError,
            r"takes \(1, 8, 8\): convert them from colour \(3 channels\) to grey \(1 channel\)\.$",
        ),
        ({"images": (3, 8, 8)}, COLOUR[:, :1], DataError, r"from grey \(1 channel\) to colour \(3 channels\)\.$"),
        (
            {"images": (3, 8, 8)},
            COLOUR.transpose(0, 2, 3, 1),
            DataError,
            r"put the channels first by X\.transpose\(0, 3, 1, 2\)\.$",
        ),
        (
            {"images": (3, 8, 7)},
            COLOUR,
            DataError,
            r"shape \(3, 8, 8\), and the detector takes \(3, 8, 7\): scale or crop",
        ),
        ({"images": (8, 8)}, np.zeros((4, 63)), DataError, "63 numbers a sample .* makes 64"),
        ({}, COLOUR, DataError, r"give images=\(3, 8, 8\)"),
        ({"images": 8}, COLOUR, SettingError, r"images is 8; it must be \(channels, height, width\)"),
        ({"images": (8, 0)}, COLOUR, SettingError, "images is"),
        ({"hidden": ()}, np.eye(4), SettingError, "hidden is empty"),
        ({"hidden": 3, "network": nn.Linear(4, 4)}, np.eye(4), SettingError, "both given"),
        ({"network": "conv"}, np.eye(4), SettingError, "network is 'conv'"),
        ({"network": lambda shape: shape}, np.eye(4), SettingError, "network returned a tuple"),
        ({"network": nn.Linear(4, 3)}, np.eye(4), TensorError, r"returns \(3,\) for samples of shape \(4,\)"),
        (
            {"network": nn.Sequential(nn.Linear(4, 2), nn.ReLU(), nn.Linear(2, 4), nn.Sigmoid())},
            np.eye(4),
            CompatibilityError,
            r"ends with the activation Sigmoid\(\), .*: remove the last activation\.$",
        ),
        ({"contamination": 0}, np.eye(4), SettingError, r"contamination is 0; it must be in \(0, 0\.5\]"),
        ({"contamination": 0.6}, np.eye(4), SettingError, r"contamination is 0\.6; it must be in \(0, 0\.5\]"),
        ({"standardise": "rows"}, np.eye(4), SettingError, "standardise is 'rows'"),
        ({"energy": "lowest"}, np.eye(4), SettingError, "energy is 'lowest'"),
        ({"solver": "adam"}, np.eye(4), SettingError, "solver is 'adam'"),
    ],
    ids=lambda value: str(value)[:30] if isinstance(value, dict) else "",
)
def test_mistakes_are_one_sentence_each(settings: dict, X: np.ndarray, error: type[Exception], said: str) -> None:
    with pytest.raises(error, match=said) as caught:
        lb.LiftedDetector(**settings).fit(X)
    assert str(caught.value).count(". ") == 0


def test_a_detector_refuses_calls_before_fit_and_samples_of_another_shape(detector: lb.LiftedDetector) -> None:
    for method in ("decision_function", "predict", "predict_proba", "predict_confidence", "explain", "reconstruct"):
        with pytest.raises(NotFittedError, match="not fitted yet"):
            getattr(lb.LiftedDetector(), method)(np.eye(3))
    with pytest.raises(ValueError, match="X has 4 features, but LiftedDetector is expecting 5"):
        detector.predict(np.eye(4))
    pictures = lb.LiftedDetector(images=(3, 8, 8), hidden=(2, 2), epochs=1).fit(
        np.random.default_rng(0).random((9, 3, 8, 8))
    )
    with pytest.raises(DataError, match="convert them from grey"):
        pictures.predict(np.zeros((2, 8, 8)))
