"""LiftedRegressor: a dense network for numbers."""

from __future__ import annotations

from typing import Any, ClassVar, Self

from sklearn.base import MultiOutputMixin, RegressorMixin  # type: ignore[import-untyped]

from lifted_bregman.estimators import _settings as settings
from lifted_bregman.estimators._base import Array, LiftedEstimator
from lifted_bregman.losses import SquaredError


class LiftedRegressor(RegressorMixin, MultiOutputMixin, LiftedEstimator):  # type: ignore[misc]
    """A dense network that is trained by a lifted solver to predict one number or several.

    Args:
        hidden: the width of each hidden layer, >= 1; () for none, which is linear regression.
        activation: of the hidden layers: one of `lb.activations`, or its name, such as "relu", "tanh", "logistic" or
            "leaky-relu:0.1".
        loss: `SquaredError()`, the default, or `BregmanLoss(activation)` for targets in the range of an activation.
        solver: any solver or baseline; None for the default of `lifted_bregman.fit`.
        epochs: passes over the samples, >= 1; steps for a solver that takes the whole set.
        batch_size: samples per step; None for min(100, samples).
        weights: λ_1 .. λ_{L-1} > 0 of the hidden layers in the lifted energy, or one number for all; 1 by default.
        parameter_penalty: on the weights of every layer, such as `penalties.SquaredL2(1e-4)`.
        tol: the least decrease of the objective that counts as an improvement, >= 0; None to make all epochs.
        n_iter_no_change: epochs without an improvement after which training ends.
        early_stopping: hold out a `validation_fraction` of the samples and stop when the objective on them no longer
            improves.
        warm_start: whether `fit` goes on with the network of the last `fit`, for `epochs` more.
        dtype: "float32" or "float64"; None for that of X, float64 if X is neither.
        device: that network and samples are trained on, such as "cpu" or "cuda"; None for the CPU.
        verbose: 0 for nothing, 1 for a line an epoch on standard error (a live bar on a terminal).
        callbacks: of `lifted_bregman.callbacks`, such as Progress() or Timer(60).
        random_state: fixes initial weights, held-out samples and order; None for new ones each time.

    The biases of the outputs start at the mean targets.  Targets of large variance train slowly: wrap the estimator in
    scikit-learn's TransformedTargetRegressor(regressor, transformer=StandardScaler()).

    The parameters of the epoch with the lowest (validation) objective are kept.  If training meets NaN or infinity
    `fit` raises `DivergedError`; if Ctrl-C is pressed it warns and keeps what was reached.

    Attributes: `model_`, an nn.Sequential without the final activation `out_activation_`; `n_iter_`, the epochs made;
    `history_`, one row an epoch; `loss_curve_`, the training objective after each epoch; `loss_`, that of the
    parameters that are kept; `outcome_` and `message_`, how training ended; `n_features_in_` and, where X has them,
    `feature_names_in_`.
    """

    default_loss: ClassVar[type[SquaredError]] = SquaredError

    def fit(self, X: Any, y: Any, sample_weight: Any = None) -> Self:
        """Trains the network on samples X (samples, features) with targets y, (samples,) or (samples, outputs).

        sample_weight multiplies a sample's part of the objective, also of that on samples held out for validation;
        samples of weight 0 are left out.
        """
        return self._learn(X, y, sample_weight, goes_on=self._goes_on())

    def partial_fit(self, X: Any, y: Any, sample_weight: Any = None) -> Self:
        """One epoch on these samples, with the network and the solver's state of the last call.

        Early stopping belongs to `fit`.  A solver whose variables belong to samples begins with new ones.
        """
        return self._learn(X, y, sample_weight, goes_on=self._goes_on(incremental=True), incremental=True)

    def _learn(self, X: Any, y: Any, sample_weight: Any, *, goes_on: bool, incremental: bool = False) -> Self:
        X, y = self._validated(X, y, goes_on=goes_on, multi_output=True, y_numeric=True)
        sample_weight, kept = settings.positive_weights(sample_weight, X)
        Y = y[kept].astype(X.dtype).reshape(len(y[kept]), -1)
        self._train(X[kept], Y, Y.shape[1], goes_on=goes_on, incremental=incremental, sample_weight=sample_weight)
        self._flat = y.ndim == 1
        return self

    def predict(self, X: Any) -> Array:
        """The targets, in the shape of those that `fit` was given."""
        X = self._checked(X)
        y: Array = self.out_activation_(self._forward(self.model_, X)).numpy()
        return y.ravel() if self._flat else y
