"""LiftedAutoencoder: its code is the network's own middle layer, its decoder the rest."""

import numpy as np
import pytest
import torch
from sklearn.exceptions import ConvergenceWarning, NotFittedError
from sklearn.model_selection import GridSearchCV

import lifted_bregman as lb
from lifted_bregman.errors import DataError, SettingError
from lifted_bregman.estimators import LiftedAutoencoder
from lifted_bregman.solvers import Callback
from tests.estimators.data import digits

X = digits()[0][:300]


def small(**settings) -> LiftedAutoencoder:
    return LiftedAutoencoder(**({"hidden": (20, 10, 15), "epochs": 5, "random_state": 0} | settings))


@pytest.mark.parametrize(
    ("hidden", "place"), [((20, 10, 15), 2), ((20, 10), 1), ((12,), 1), (12, 1), ((20, 10, 15, 17), 2)]
)
def test_codes_are_the_middle_layer_of_a_plain_forward_pass(hidden: tuple[int, ...] | int, place: int) -> None:
    model = small(hidden=hidden, code_penalty=0.01, code_threshold=0.05).fit(X)
    x, layer = torch.tensor(X), 0
    code = None
    for module in model.model_:
        if isinstance(module, torch.nn.Linear):
            x = x @ module.weight.T + module.bias
            layer += 1
        elif layer == place:
            code = x = torch.nn.functional.softshrink(x, 0.05)
        else:
            x = x.clamp(min=0.0)
    assert code is not None
    codes = model.transform(X)
    np.testing.assert_allclose(codes, code.detach().numpy(), rtol=1e-10, atol=1e-12)
    np.testing.assert_allclose(model.denoise(X), x.detach().numpy(), rtol=1e-10, atol=1e-12)
    np.testing.assert_array_equal(model.inverse_transform(codes), model.denoise(X))
    assert codes.shape[1] == len(model.get_feature_names_out()) == model.encoder_[-2].out_features
    np.testing.assert_array_equal(model.encoder_(torch.tensor(X)).detach().numpy(), codes)
    np.testing.assert_array_equal(model.decoder_(torch.tensor(codes)).detach().numpy(), model.denoise(X))


def test_threshold_and_penalty_are_separate() -> None:
    still = {"solver": lb.baselines.SGD(learning_rate=1e-30), "epochs": 1}  # the network as it begins
    model = small(code_penalty=0.09, code_threshold=0.3, **still).fit(X)
    assert model.model_[3].activation == lb.activations.SoftThreshold(0.3)
    code = model.transform(X)
    error = 0.5 * np.square(model.denoise(X) - X).sum(1).mean()
    assert model.loss_ == pytest.approx(error + 0.09 * np.abs(code).sum(1).mean(), rel=1e-10)
    default = small(code_penalty=0.2, **still).fit(X)
    assert default.model_[3].activation == lb.activations.SoftThreshold(0.2)
    linear = small(code_penalty=0.0, **still).fit(X)
    assert linear.model_[3].activation == lb.activations.Identity()
    assert linear.loss_ == pytest.approx(0.5 * np.square(linear.denoise(X) - X).sum(1).mean(), rel=1e-10)
    thresholded = small(code_penalty=0.0, code_threshold=0.3, **still).fit(X)
    assert thresholded.model_[3].activation == lb.activations.SoftThreshold(0.3)
    assert thresholded.loss_ == pytest.approx(0.5 * np.square(thresholded.denoise(X) - X).sum(1).mean(), rel=1e-10)


def test_codes_are_sparser_the_larger_the_penalty() -> None:
    zeros = []
    for penalty in (0.01, 0.1, 0.3):  # with 0.5 every code ends at 0 in 40 epochs, with Adam too
        model = small(code_penalty=penalty, epochs=40).fit(X)
        zeros.append(np.mean(model.transform(X) == 0.0))
        assert model.history_[-1]["sparsity"] == pytest.approx(zeros[-1], abs=1e-12) or model.n_iter_ < 40
    assert zeros[0] + 0.1 < zeros[1] < zeros[2] - 0.1


def test_the_penalty_alone_makes_codes_smaller() -> None:
    size = [
        np.abs(small(code_penalty=penalty, code_threshold=0.05, epochs=40).fit(X).transform(X)).mean()
        for penalty in (0.0, 0.3)
    ]
    assert size[1] < 0.7 * size[0]


def test_noise_is_removed_from_digits_it_has_not_seen() -> None:
    X = digits()[0]
    train, test = X[:1200], X[1200:]
    noisy = test + 0.3 * np.random.default_rng(1).normal(size=test.shape)
    before = np.square(noisy - test).mean()
    denoiser = LiftedAutoencoder((64, 48, 64), noise=0.3, code_penalty=0.01, epochs=30, random_state=0).fit(train)
    after = np.square(denoiser.denoise(noisy) - test).mean()
    assert after < 0.5 * before
    plain = LiftedAutoencoder((64, 48, 64), code_penalty=0.01, epochs=30, random_state=0).fit(train)
    assert after < 0.8 * np.square(plain.denoise(noisy) - test).mean()


class Seen(Callback):
    """What the network is trained on."""

    def started(self, run) -> None:
        self.X, self.Y = run.data.X.numpy(), run.data.Y.numpy()


def test_noise_is_added_to_inputs_and_not_to_targets() -> None:
    drawn = []
    for seed in (0, 0, 1):
        seen = Seen()
        small(noise=0.5, random_state=seed, callbacks=[seen], epochs=1).fit(X)
        np.testing.assert_array_equal(seen.Y, X)
        drawn.append(seen.X - X)
    assert drawn[0].std() == pytest.approx(0.5, rel=0.02)  # 19,200 numbers: 0.5 % is one standard deviation
    assert abs(drawn[0].mean()) < 0.02
    np.testing.assert_array_equal(drawn[0], drawn[1])
    assert abs(np.corrcoef(drawn[1].ravel(), drawn[2].ravel())[0, 1]) < 0.05
    single = Seen()
    small(noise=0.5, callbacks=[single], epochs=1, dtype="float32").fit(X)
    np.testing.assert_allclose(single.X - single.Y, drawn[0], atol=1e-6)


def test_new_noise_for_each_partial_fit() -> None:
    still = lb.baselines.SGD(learning_rate=1e-30)
    model = small(noise=1.0, solver=still)
    losses = {model.partial_fit(X).loss_ for _ in range(3)}
    assert len(losses) == 3


def test_score_is_minus_the_mean_squared_error() -> None:
    model = small().fit(X)
    assert model.score(X[:50]) == pytest.approx(-np.square(model.denoise(X[:50]) - X[:50]).mean(), rel=1e-12)
    search = GridSearchCV(small(code_penalty=0.0), {"hidden": [(20, 10, 15), (20, 2, 15)], "epochs": [20]}, cv=2).fit(X)
    assert search.best_params_["hidden"] == (20, 10, 15)


def test_a_loss_brings_its_activation() -> None:
    model = small(loss=lb.BregmanLoss(lb.activations.Sigmoid()), code_penalty=0.001).fit(X)
    z = model.model_(torch.tensor(X)).detach()
    np.testing.assert_allclose(model.denoise(X), torch.sigmoid(z).numpy(), rtol=1e-10)
    np.testing.assert_array_equal(model.inverse_transform(model.transform(X)), model.denoise(X))


def test_codes_that_are_all_zero_are_reported() -> None:
    with pytest.warns(ConvergenceWarning, match="The codes of all samples are 0"):
        model = small(code_penalty=1e6).fit(X)
    assert not model.transform(X).any()


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"hidden": ()}, "hidden is empty"),
        ({"code_penalty": -0.1}, "code_penalty is -0.1"),
        ({"code_penalty": None}, "code_penalty is None"),
        ({"code_threshold": -1}, "code_threshold is -1"),
        ({"code_penalty": -0.1, "code_threshold": 0.1}, "code_penalty is -0.1"),
        ({"noise": float("inf")}, "noise is inf"),
        ({"noise": "loud"}, "noise is 'loud'"),
    ],
)
def test_bad_settings_are_named(settings: dict, said: str) -> None:
    with pytest.raises(SettingError, match=said):
        small(**settings).fit(X)


def test_codes_of_another_width_are_refused() -> None:
    model = small().fit(X)
    with pytest.raises(DataError, match="9 features; expected 10, as transform"):
        model.inverse_transform(np.zeros((3, 9)))
    with pytest.raises(ValueError, match="NaN"):
        model.inverse_transform(np.full((3, 10), np.nan))


@pytest.mark.parametrize("what", ["transform", "inverse_transform", "denoise", "score"])
def test_methods_raise_not_fitted_before_fit(what: str) -> None:
    with pytest.raises(NotFittedError):
        getattr(small(), what)(X)
    with pytest.raises(NotFittedError):
        _ = small().encoder_
    with pytest.raises(NotFittedError):
        _ = small().decoder_
