"""What the estimators take, and what they refuse before training."""

import numpy as np
import pytest
import torch
from scipy import sparse
from sklearn.base import BaseEstimator

import lifted_bregman as lb
from lifted_bregman.errors import CompatibilityError, SettingError
from lifted_bregman.estimators import LiftedAutoencoder, LiftedClassifier, LiftedRegressor
from tests.estimators.data import KINDS, Rows, X, Y, every_kind, made, parameters, predict


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
        (lambda X: sparse.csr_array(np.where(X > 2.0, np.nan, X)), ValueError, "NaN"),
        (lambda X: X.astype(str) + "x", ValueError, "could not convert string"),
        (lambda X: X * (1 + 1j), ValueError, "Complex data not supported"),
    ],
)
def test_bad_samples_are_refused_before_training(kind, spoil, error, said) -> None:
    rows = Rows()
    with pytest.raises(error, match=said):
        made(kind, callbacks=[rows]).fit(spoil(X), Y[: spoil(X).shape[0]])
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
        ({"activation": "rely"}, "no activation 'rely'; did you mean 'relu'?"),
        ({"activation": torch.nn.ReLU()}, "activation is ReLU"),
        ({"solver": "sgd"}, "solver is 'sgd'"),
        ({"solver": lb.ImplicitSGD}, "solver is <class"),
        ({"epochs": 0}, "epochs is 0"),
        ({"epochs": True}, "epochs is True"),
        ({"epochs": 2.0}, "epochs is 2.0"),
        ({"batch_size": -1}, "batch_size is -1"),
        ({"tol": -1.0}, "tol is -1.0"),
        ({"tol": "small"}, "tol is 'small'"),
        ({"tol": True}, "tol is True"),
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
