"""Arguments that scikit-learn's users know: class_weight, verbose, names of activations; and device."""

import numpy as np
import pytest
import torch
from sklearn.base import BaseEstimator, clone
from sklearn.utils.class_weight import compute_sample_weight

import lifted_bregman as lb
from lifted_bregman import activations as act
from lifted_bregman.errors import DataError, NotProximalError, SettingError
from lifted_bregman.estimators import LiftedAutoencoder, LiftedClassifier, LiftedRegressor
from lifted_bregman.solvers import CosineDecay
from tests.estimators.data import Rows, X, Y, every_kind, made, parameters, predict, same_parameters

UNEQUAL = np.where(np.arange(len(Y)) % 3 > 0, 0, Y)
NAMES = np.array(["robin", "heron", "wren"])


def small(**settings) -> LiftedClassifier:
    return made(LiftedClassifier, **settings)


# class_weight


@pytest.mark.parametrize("given", ["balanced", {0: 0.5, 1: 3.0, 2: 2.0}], ids=str)
def test_class_weights_are_the_sample_weights_of_scikit_learn(given) -> None:
    by_hand = compute_sample_weight(given, UNEQUAL)
    assert same_parameters(small(class_weight=given).fit(X, UNEQUAL), small().fit(X, UNEQUAL, sample_weight=by_hand))
    assert not same_parameters(small(class_weight=given).fit(X, UNEQUAL), small().fit(X, UNEQUAL))
    weights = 0.5 + np.random.default_rng(0).random(len(X))
    both = small(class_weight=given).fit(X, UNEQUAL, sample_weight=weights)
    assert same_parameters(both, small().fit(X, UNEQUAL, sample_weight=weights * by_hand))


def test_balanced_classes_count_only_samples_that_are_trained_on() -> None:
    weights = (np.arange(len(X)) % 4 > 0).astype(float)
    some = weights > 0
    left_out = small(class_weight="balanced").fit(X, UNEQUAL, sample_weight=weights)
    assert same_parameters(left_out, small(class_weight="balanced").fit(X[some], UNEQUAL[some]))


def test_weights_count_in_early_stopping_too() -> None:
    """Held-out samples of a class that counts for nothing cannot end the training, nor can they prolong it."""
    weights = {0: 1.0, 1: 1e-6, 2: 1e-6}
    model = small(class_weight=weights, early_stopping=True, epochs=60, validation_fraction=0.3).fit(X, Y)
    assert (model.predict(X) == 0).mean() > 0.9
    by_hand = small(early_stopping=True, epochs=60, validation_fraction=0.3)
    assert same_parameters(model, by_hand.fit(X, Y, sample_weight=compute_sample_weight(weights, Y)))


def test_a_class_of_weight_0_is_known_and_not_trained_on() -> None:
    model = small(class_weight={"robin": 0, "heron": 2, "wren": 1}).fit(X, NAMES[Y])
    assert model.classes_.tolist() == ["heron", "robin", "wren"]
    assert "robin" not in model.predict(X)


def test_partial_fit_takes_weights_of_all_classes_and_no_balance() -> None:
    weights, some = {0: 0.5, 1: 3.0, 2: 2.0}, UNEQUAL < 2
    model = small(class_weight=weights).partial_fit(X[some], UNEQUAL[some], classes=[0, 1, 2])
    by_hand = small().partial_fit(X[some], UNEQUAL[some], [0, 1, 2], np.array([0.5, 3.0])[UNEQUAL[some]])
    assert same_parameters(model, by_hand)
    with pytest.raises(SettingError, match=r"class_weight is 'balanced', .* partial_fit.*dict"):
        small(class_weight="balanced").partial_fit(X, Y, classes=[0, 1, 2])


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ("equal", "class_weight is 'equal'; it must be None, 'balanced' or a dict"),
        ([1.0, 2.0, 3.0], r"class_weight is \[1.0, 2.0, 3.0\]"),
        ({0: -1.0}, "class_weight gives 0 the weight -1.0"),
        ({0: np.inf}, "the weight inf"),
        ({0: "much"}, "the weight 'much'"),
        ({0: 2.0, 7: 1.0}, r"The classes, .*1, 2.*, are not in class_weight"),
    ],
    ids=str,
)
def test_bad_class_weights_are_refused_before_training(given, said: str) -> None:
    rows = Rows()
    with pytest.raises(SettingError, match=said):
        small(class_weight=given, callbacks=[rows]).fit(X, Y)
    assert rows.seen == []


# verbose and loss_curve_


@every_kind
def test_verbose_writes_a_line_for_each_epoch_and_nothing_else_does(kind: type[BaseEstimator], capsys) -> None:
    made(kind, tol=None).fit(X, Y)
    assert capsys.readouterr() == ("", "")
    model = made(kind, tol=None, verbose=1).fit(X, Y)
    written = capsys.readouterr()
    lines = written.err.splitlines()
    assert written.out == "" and len(lines) == 4
    for number, (line, loss) in enumerate(zip(lines, model.loss_curve_, strict=True), start=1):
        assert f"epoch {number}/4" in line and f"objective {loss:.4g}" in line


@pytest.mark.parametrize("wrong", [-1, "yes", 0.5, None])
def test_other_values_of_verbose_are_refused(wrong) -> None:
    with pytest.raises(SettingError, match="verbose is"):
        made(LiftedRegressor, verbose=wrong).fit(X, Y)


def test_the_loss_curve_is_the_training_objective_after_each_epoch() -> None:
    rows = Rows()
    settings = {"tol": None, "callbacks": [rows], "warm_start": True, "standardise_targets": True}
    model = made(LiftedRegressor, **settings).fit(X, Y)
    model.partial_fit(X, Y)
    expected, targets = [], torch.tensor((Y - Y.mean()) / Y.std())
    for w1, b1, w2, b2 in rows.seen:
        z = (torch.tensor(X) @ w1.T + b1).clamp(min=0.0) @ w2.T + b2
        expected.append(0.5 * float((z[:, 0] - targets).square().mean()))
    assert isinstance(model.loss_curve_, list) and len(expected) == 5
    np.testing.assert_allclose(model.loss_curve_, expected, rtol=1e-12)


# Names of activations


@pytest.mark.parametrize(
    ("given", "meant"),
    [
        ("relu", act.ReLU()),
        ("tanh", act.Tanh()),
        ("logistic", act.Sigmoid()),
        ("sigmoid", act.Sigmoid()),
        ("identity", act.Identity()),
        ("softplus", act.Softplus()),
        ("leaky-relu:0.2", act.LeakyReLU(0.2)),
    ],
)
def test_an_activation_may_be_named(given: str, meant: act.Activation) -> None:
    named, made_by_hand = (made(LiftedRegressor, activation=activation).fit(X, Y) for activation in (given, meant))
    assert same_parameters(named, made_by_hand)
    assert clone(named).activation == given  # as it was given


def test_a_name_and_its_activation_are_the_same_network_for_a_warm_start() -> None:
    model = made(LiftedAutoencoder, activation="relu", warm_start=True).fit(X)
    model.set_params(activation=act.ReLU()).fit(X)
    with pytest.raises(SettingError, match="warm_start=False"):
        model.set_params(activation="tanh").fit(X)


@every_kind
def test_unknown_names_are_refused_with_the_nearest_name(kind: type[BaseEstimator]) -> None:
    for given, said in (
        ("rely", "there is no activation 'rely'; did you mean 'relu'?"),
        ("logistics", "did you mean 'logistic'?"),
        ("leaky_relu", "did you mean 'leaky-relu'?"),
    ):
        with pytest.raises(SettingError) as raised:
            made(kind, activation=given).fit(X, Y)
        assert said in str(raised.value)
    with pytest.raises(NotProximalError, match="'gelu' is no proximal map"):
        made(kind, activation="gelu").fit(X, Y)


# device


@every_kind
def test_the_cpu_is_the_default_device_and_may_be_named(kind: type[BaseEstimator]) -> None:
    models = [made(kind, device=device).fit(X, Y) for device in (None, "cpu", torch.device("cpu"))]
    assert all(same_parameters(models[0], model) for model in models[1:])
    assert {p.device.type for p in parameters(models[0])} == {"cpu"}


@every_kind
@pytest.mark.parametrize("device", ["cuda:99", "gpu", "meta", 1.5], ids=str)
def test_a_device_that_cannot_be_used_is_refused_before_training(kind: type[BaseEstimator], device) -> None:
    rows = Rows()
    with pytest.raises(SettingError, match=rf"device is '?{device}'?[,;] .*'cpu'"):
        made(kind, device=device, callbacks=[rows]).fit(X, Y)
    assert rows.seen == []


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@every_kind
def test_training_and_prediction_on_cuda_give_arrays(kind: type[BaseEstimator]) -> None:
    model = made(kind, device="cuda", early_stopping=True).fit(X, Y)
    assert {p.device.type for p in parameters(model)} == {"cuda"}
    assert isinstance(predict(model), np.ndarray) and np.isfinite(predict(model)).all()
    model.partial_fit(X, Y)
    with pytest.raises(SettingError, match="continues with device"):
        model.set_params(device="cpu").partial_fit(X, Y)


# Masked arrays and schedules


@every_kind
def test_masked_arrays_are_refused(kind: type[BaseEstimator]) -> None:
    masked = np.ma.masked_greater(X, 2.0)
    with pytest.raises(DataError, match=r"X is a masked array.*filled"):
        made(kind).fit(masked, Y)
    fitted = made(kind).fit(X, Y)
    with pytest.raises(DataError, match="X is a masked array"):
        predict(fitted, masked)
    if kind is LiftedAutoencoder:
        with pytest.raises(DataError, match="codes is a masked array"):
            fitted.inverse_transform(np.ma.masked_greater(fitted.transform(X), 0.1))
        return
    with pytest.raises(DataError, match="y is a masked array"):
        made(kind).fit(X, np.ma.masked_equal(Y, 2))
    with pytest.raises(DataError, match="sample_weight is a masked array"):
        made(kind).fit(X, Y, sample_weight=np.ma.masked_less(np.linspace(0.5, 1.0, len(X)), 0.6))


def test_a_schedule_that_ends_with_the_run_belongs_to_one_fit() -> None:
    solver = lb.baselines.AdamW(CosineDecay(0.02, warm_up=2))
    model = made(LiftedRegressor, solver=solver, tol=None, warm_start=True).fit(X, Y)
    rates = [row["learning_rate"] for row in model.history_]
    # 4 epochs of 5 steps of 90 samples in batches of 20: the last step of each is number 4, 9, 14, 19.
    expected = [0.01 * (1.0 + np.cos(np.pi * (step - 2) / 18)) for step in (4, 9, 14, 19)]
    np.testing.assert_allclose(rates, expected, rtol=1e-12)
    for go_on in (lambda: model.fit(X, Y), lambda: clone(model).partial_fit(X, Y)):
        with pytest.raises(SettingError, match=r"CosineDecay.* ends with the run.*steps="):
            go_on()


def test_labels_are_smoothed_in_training() -> None:
    """Samples that say nothing: the probabilities are the mean of (1 - ε) onehot + ε/K."""
    blank = np.zeros((8, 1))
    y = np.array([0] * 5 + [1] * 2 + [2])
    model = LiftedClassifier(
        hidden=(), loss=lb.CrossEntropy(label_smoothing=0.3), solver=lb.ProximalGradient(), epochs=400, tol=None
    ).fit(blank, y)
    np.testing.assert_allclose(model.predict_proba(blank)[0], 0.7 * np.array([5, 2, 1]) / 8 + 0.1, atol=1e-6)
