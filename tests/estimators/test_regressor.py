"""LiftedRegressor against closed forms and scikit-learn's regressors."""

import math

import numpy as np
import pytest
import torch
from sklearn.compose import TransformedTargetRegressor
from sklearn.datasets import load_diabetes, make_regression
from sklearn.linear_model import Ridge
from sklearn.model_selection import train_test_split
from sklearn.neural_network import MLPRegressor
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

import lifted_bregman as lb
from lifted_bregman.errors import DataError, DomainError, SettingError
from lifted_bregman.estimators import LiftedRegressor
from tests.estimators.data import parameters, same_parameters, without_times

RNG = np.random.default_rng(0)
X = RNG.normal(size=(80, 4))
Y = np.stack([X[:, 0] - 2.0 * X[:, 1], np.abs(X[:, 2])], axis=1) + 0.1 * RNG.normal(size=(80, 2))


def small(**settings) -> LiftedRegressor:
    own = {"hidden": (8,), "epochs": 5, "random_state": 0, "standardise_targets": True}
    return LiftedRegressor(**(own | settings))


@pytest.mark.parametrize("standardise", [False, True])
@pytest.mark.parametrize("weighted", [False, True])
def test_a_regressor_without_hidden_layers_is_ridge_regression(weighted: bool, standardise: bool) -> None:
    w = RNG.uniform(0.5, 2.0, len(X)) if weighted else None
    weight = 0.3
    ours = small(
        hidden=(),
        parameter_penalty=lb.penalties.SquaredL2(weight),
        solver=lb.ProximalGradient(),
        epochs=400,
        tol=None,
        standardise_targets=standardise,
    ).fit(X, Y, sample_weight=w)
    # Ridge minimises Σ w ‖y - z‖² + α‖W‖²; ours, ½ the mean by weight plus ½ weight ‖W‖², is that over 2 Σ w.
    total = len(X) if w is None else w.sum()
    theirs = Ridge(alpha=weight * total).fit(X, Y, sample_weight=w)
    # Ridge regression is linear in y, so that the network of standardised targets is Ridge's in their units.
    assert np.array_equal(ours.target_scale_, [1.0, 1.0]) is not standardise
    W, b = (p.detach().numpy() for p in ours.model_.parameters())
    np.testing.assert_allclose(ours.target_scale_[:, None] * W, theirs.coef_, atol=1e-10)
    np.testing.assert_allclose(ours.target_mean_ + ours.target_scale_ * b, theirs.intercept_, atol=1e-10)
    np.testing.assert_allclose(ours.predict(X), theirs.predict(X), atol=1e-10)


def test_a_linear_problem_is_learned_as_well_as_by_scikit_learns_network() -> None:
    X, y = make_regression(300, 10, n_informative=10, noise=5.0, random_state=0)
    X_train, X_test, y_train, y_test = train_test_split(X, y, test_size=0.3, random_state=0)
    scores = []
    for network in (
        LiftedRegressor(random_state=0),
        MLPRegressor(random_state=0, max_iter=200),
    ):
        regressor = TransformedTargetRegressor(
            make_pipeline(StandardScaler(), network), transformer=StandardScaler()
        ).fit(X_train, y_train)
        scores.append(regressor.score(X_test, y_test))
    assert scores[0] > scores[1] - 0.01
    assert scores[0] > 0.97


def test_diabetes_with_its_own_targets_is_as_good_as_ridge_regression() -> None:
    X, y = load_diabetes(return_X_y=True)
    behind = []
    for split in range(4):
        X_train, X_test, y_train, y_test = train_test_split(X, y, test_size=0.3, random_state=split)
        assert y_train.mean() > 1.9 * y_train.std()  # far from 0: scikit-learn's network ends at R² = -1.4 here
        network = LiftedRegressor(random_state=0, solver=lb.GramSweep(weight_decay=1.0))  # 309 noisy samples
        ours = make_pipeline(StandardScaler(), network).fit(X_train, y_train)
        theirs = make_pipeline(StandardScaler(), Ridge()).fit(X_train, y_train)
        behind.append(theirs.score(X_test, y_test) - ours.score(X_test, y_test))
    assert np.mean(behind) < 0.05


def test_predictions_have_the_shape_of_the_targets() -> None:
    flat = small().fit(X, Y[:, 0])
    column = small().fit(X, Y[:, :1])
    both = small().fit(X, Y)
    assert flat.predict(X).shape == (80,)
    assert column.predict(X).shape == (80, 1)
    assert both.predict(X).shape == (80, 2)
    assert same_parameters(flat, column)
    np.testing.assert_array_equal(flat.predict(X), column.predict(X)[:, 0])


def test_several_outputs_are_learned_together() -> None:
    model = small(epochs=300, hidden=(30,)).fit(X, Y)
    residual = model.predict(X) - Y
    assert (residual.var(0) < 0.1 * Y.var(0)).all()
    assert model.loss_ == pytest.approx(0.5 * np.square(residual / Y.std(0)).sum(1).mean(), rel=1e-10)


@pytest.mark.parametrize("early_stopping", [False, True], ids=["all", "held out"])
def test_predictions_scale_with_the_unit_of_the_targets(early_stopping: bool) -> None:
    # A power of two changes no digit, so that nothing is left to rounding.
    y, settings = Y[:, 0], {"early_stopping": early_stopping, "validation_fraction": 0.3}
    plain, other = small(**settings).fit(X, y), small(**settings).fit(X, 2.0**20 * y)
    assert same_parameters(plain, other)
    np.testing.assert_array_equal(2.0**20 * plain.predict(X), other.predict(X))
    assert without_times(plain.history_) == without_times(other.history_)


def test_targets_are_standardised_by_weight_with_the_samples_trained_on() -> None:
    w = RNG.integers(1, 4, len(X))
    model = small(epochs=1).fit(X, Y, sample_weight=w)
    repeated = Y.repeat(w, axis=0)
    np.testing.assert_allclose(model.target_mean_, repeated.mean(0), rtol=1e-12)
    np.testing.assert_allclose(model.target_scale_, repeated.std(0), rtol=1e-12)
    # What a later call brings does not move them.
    model.partial_fit(X, 5.0 + 3.0 * Y)
    np.testing.assert_allclose(model.target_mean_, repeated.mean(0), rtol=1e-12)


@pytest.mark.parametrize("value", [0.0, 0.1, -1e9])
def test_a_constant_target_is_learned_as_it_is(value: float) -> None:
    model = small().fit(X, np.full(len(X), value))
    assert model.target_scale_ == 1.0
    assert model.target_mean_ == pytest.approx(value, rel=1e-12)
    assert np.abs(model.predict(X) - value).max() < 2.0  # a network of five epochs, not one in units of 1e9


def test_targets_far_from_zero_keep_their_digits_in_float32() -> None:
    y = 1e7 + Y[:, 0]  # float32 has steps of 1 there
    model = small(epochs=100, hidden=(30,), dtype="float32").fit(X, y)
    predicted = model.target_mean_ + model.target_scale_ * model.model_(torch.tensor(X).float()).detach().numpy()[:, 0]
    assert np.square(predicted - y).mean() < 0.1 * y.var()


def test_targets_of_other_losses_or_by_setting_are_not_standardised() -> None:
    targets = 0.5 + 0.4 * np.tanh(Y)
    for settings in ({"loss": lb.BregmanLoss(lb.activations.Sigmoid())}, {"standardise_targets": False}):
        model = small(**settings).fit(X, targets)
        np.testing.assert_array_equal([model.target_mean_, model.target_scale_], [[0.0, 0.0], [1.0, 1.0]])
    with pytest.raises(SettingError, match="standardise_targets is 'yes'"):
        small(standardise_targets="yes").fit(X, Y)
    model = small(warm_start=True).fit(X, Y).set_params(standardise_targets=False)
    with pytest.raises(SettingError, match="continues with standardise_targets=True, but False was given"):
        model.fit(X, Y)


def test_weights_start_as_glorot_has_them_and_biases_at_zero() -> None:
    still = lb.baselines.SGD(learning_rate=1e-30)
    model = small(solver=still, epochs=1, hidden=(200, 200, 200)).fit(X, Y)
    weights, biases = parameters(model)[::2], parameters(model)[1::2]
    for W in weights:
        bound = (6.0 / sum(W.shape)) ** 0.5
        assert 0.95 * bound < float(W.abs().max()) <= bound * (1.0 + 1e-9)
        assert float(W.square().mean()) == pytest.approx(bound**2 / 3.0, rel=0.25)  # the variance of a uniform number
    assert not torch.allclose(weights[1], weights[2])
    assert all(float(b.abs().max()) < 1e-20 for b in biases[:-1])


def test_the_outputs_start_at_the_mean_target() -> None:
    # A step size too small to move anything shows where the network began.
    still = lb.baselines.SGD(learning_rate=1e-30)
    standardised = small(solver=still, epochs=1).fit(X, Y + 1000.0)
    np.testing.assert_allclose(standardised.model_[-1].bias.detach().numpy(), 0.0, atol=1e-20)
    np.testing.assert_allclose(standardised.target_mean_, Y.mean(0) + 1000.0, rtol=1e-12)
    plain = {"solver": still, "epochs": 1, "standardise_targets": False}
    model = small(**plain).fit(X, Y + 1000.0)
    np.testing.assert_allclose(model.model_[-1].bias.detach().numpy(), Y.mean(0) + 1000.0, rtol=1e-12)
    w = RNG.uniform(0.5, 2.0, len(X))
    model = small(**plain).fit(X, Y, sample_weight=w)
    np.testing.assert_allclose(model.model_[-1].bias.detach().numpy(), (w @ Y) / w.sum(), rtol=1e-9)
    # With another activation at the end the mean belongs behind it.
    sigmoid = lb.BregmanLoss(lb.activations.Sigmoid())
    model = small(solver=still, epochs=1, loss=sigmoid).fit(X, 0.5 + 0.4 * np.tanh(Y))
    np.testing.assert_allclose(model.model_[-1].bias.detach().numpy(), 0.0, atol=1e-20)


def test_held_out_targets_have_no_effect_on_the_network() -> None:
    still = lb.baselines.SGD(learning_rate=1e-30)
    y = np.zeros(len(X))
    y[7] = 1e6
    settings = {"solver": still, "epochs": 1, "early_stopping": True, "validation_fraction": 0.5}
    networks = [small(random_state=seed, **settings).fit(X, y) for seed in range(6)]
    means = [float(network.target_mean_[0]) for network in networks]
    # Half of the samples, of which sample 7 is one or is not.
    assert {round(mean) for mean in means} == {0, 25_000}
    plain = [small(random_state=seed, standardise_targets=False, **settings).fit(X, y) for seed in range(6)]
    assert [float(parameters(network)[-1]) for network in plain] == pytest.approx(means)


def test_a_loss_brings_its_activation() -> None:
    targets = 1.0 / (1.0 + np.exp(-3.0 * X[:, 0]))
    model = small(loss=lb.BregmanLoss(lb.activations.Sigmoid()), epochs=60, batch_size=10).fit(X, targets)
    z = model.model_(torch.tensor(X)).detach()
    np.testing.assert_allclose(model.predict(X), torch.sigmoid(z)[:, 0].numpy(), rtol=1e-10)
    assert model.score(X, targets) > 0.9
    with pytest.raises(DomainError, match="sample 0"):
        small(loss=lb.BregmanLoss(lb.activations.Sigmoid())).fit(X, targets + 1.0)


def test_weights_of_the_layers_reach_the_problem() -> None:
    implicit = {"solver": lb.ImplicitSGD(5.0, 3)}
    assert not same_parameters(small(**implicit).fit(X, Y), small(weights=3.0, **implicit).fit(X, Y))
    with pytest.raises(ValueError, match="weights"):
        small(weights=[1.0, 2.0]).fit(X, Y)


def test_samples_of_weight_zero_are_left_out() -> None:
    w = np.ones(len(X))
    w[::3] = 0.0
    spoiled = Y.copy()
    spoiled[::3] = 1e6
    kept = w > 0
    assert same_parameters(
        small().fit(X, spoiled, sample_weight=w), small().fit(X[kept], Y[kept], sample_weight=w[kept])
    )
    with pytest.raises(DataError, match="only zeros"):
        small().fit(X, Y, sample_weight=np.zeros(len(X)))
    with pytest.raises(DataError, match="negative values"):
        small().fit(X, Y, sample_weight=np.where(np.arange(len(X)) == 5, -1.0, w))
    with pytest.raises(DataError, match=r"shape \(79,\); expected \(80,\)"):
        small().fit(X, Y, sample_weight=w[:-1])
    with pytest.raises(ValueError, match="NaN"):
        small().fit(X, Y, sample_weight=np.where(w > 0.0, np.nan, 1.0))


def test_partial_fit_takes_weights_too() -> None:
    w = RNG.uniform(0.5, 2.0, len(X))
    endless = lb.GramSweep(total_steps=math.inf)  # as partial_fit has it, because more may follow
    model = small(epochs=1, tol=None, solver=endless)
    assert same_parameters(model.fit(X, Y, sample_weight=w), small().partial_fit(X, Y, sample_weight=w))
    assert not same_parameters(model, small().partial_fit(X, Y))
    assert len(parameters(model)) == 4
