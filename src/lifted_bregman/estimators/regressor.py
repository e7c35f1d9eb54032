"""LiftedRegressor: a dense network for numbers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar, Self

import numpy as np
import torch
from sklearn.base import MultiOutputMixin, RegressorMixin  # type: ignore[import-untyped]
from sklearn.utils.validation import check_is_fitted  # type: ignore[import-untyped]
from torch import Tensor

from lifted_bregman.activations import Activation, Identity
from lifted_bregman.errors import SettingError
from lifted_bregman.estimators import _settings as settings
from lifted_bregman.estimators._base import RELU, Array, LiftedEstimator
from lifted_bregman.estimators._training import TargetScale
from lifted_bregman.losses import BregmanLoss, SquaredError
from lifted_bregman.penalties import Penalty
from lifted_bregman.problem import LiftedProblem
from lifted_bregman.solvers import Callback, Solver


class LiftedRegressor(RegressorMixin, MultiOutputMixin, LiftedEstimator):  # type: ignore[misc]
    """A dense network for one number or several, trained by a lifted solver.

    Args:
        hidden: the width of each hidden layer, >= 1; () for none, which is linear regression.
        activation: of the hidden layers: one of `lb.activations`, or its name, such as "relu", "tanh", "logistic" or
            "leaky-relu:0.1".
        loss: `SquaredError()`, the default, or `BregmanLoss(activation)` for targets in the range of an activation.
        standardise_targets: whether the network learns (y - mean) / standard deviation of each output, so that the
            unit of y does not matter and several outputs count alike.  For SquaredError only; other losses take the
            targets as they are.
        solver: any solver or baseline; None for the default of `lifted_bregman.fit`.
        epochs: passes over the samples, >= 1; steps for a solver that takes the whole set.
        batch_size: samples per step; None for min(100, samples).
        weights: λ_1 .. λ_{L-1} > 0 of the hidden layers in the lifted energy, or one number for all; 1 by default.
        parameter_penalty: on the weights of every layer, such as `penalties.SquaredL2(1e-4)`.
        dropout: the fraction of the units of each hidden layer set to 0 in a training step, in [0, 1); drawn anew for
            each step and sample.  Predictions use all units.  The solver must work on batches, as the default does.
        input_noise: the standard deviation of Gaussian noise that is added to X in training, in its units, >= 0; drawn
            anew for each step.
        tol: the least decrease of the objective that counts as an improvement, >= 0.  None to make all epochs, as the
            default solver needs: its step sizes fall to 0 at the last epoch.
        n_iter_no_change: epochs without an improvement after which training ends.
        early_stopping: whether to hold out a `validation_fraction` of the samples, and to stop when the objective on
            them no longer improves.  "auto" does so for 10,000 samples or more.  With fewer it trains on all of them,
            and stops when the training objective no longer falls.
        warm_start: whether `fit` continues to train the network of the last `fit`, for `epochs` more, with the schedule
            of the longer run: the rate of the default solver rises again, which can undo part of the last `fit`.
        dtype: "float32" or "float64"; None for that of X, float64 if X is neither.
        device: of the network and the samples in training, such as "cpu" or "cuda"; None for the CPU.
        verbose: 0 for nothing, 1 for a line an epoch on standard error (a live bar on a terminal).
        callbacks: of `lifted_bregman.callbacks`, such as Progress() or Timer(60).
        random_state: seed of initial weights, held-out samples, order, dropout and noise; None for a new one each time.

    The parameters of the epoch with the lowest (validation) objective are kept.  If training meets NaN or infinity
    `fit` raises `DivergedError`; if Ctrl-C is pressed it warns and keeps what was reached.

    Attributes: `model_`, an nn.Sequential without the final activation `out_activation_`; `target_mean_` and
    `target_scale_`, (outputs,), with which it predicts `target_mean_ + target_scale_ * out_activation_(model_(X))`, 0
    and 1 where targets are not standardised; `n_iter_`, the epochs made; `history_`, one row an epoch; `loss_curve_`,
    the training objective after each epoch, of standardised targets; `loss_`, that of the final parameters;
    `outcome_` and `message_`, how training ended; `n_features_in_` and, where X has them, `feature_names_in_`.

    Example:
        >>> X = np.random.default_rng(0).normal(size=(200, 2))
        >>> regressor = lb.LiftedRegressor(hidden=(16,), epochs=30, random_state=0).fit(X, 3 * X[:, 0])
        >>> regressor.score(X, 3 * X[:, 0]) > 0.9
        True
    """

    default_loss: ClassVar[type[SquaredError]] = SquaredError

    _standardised: bool

    def __init__(
        self,
        hidden: int | Sequence[int] = (100,),
        *,
        activation: Activation | str = RELU,
        loss: BregmanLoss | None = None,
        standardise_targets: bool = True,
        solver: Solver[Any] | None = None,
        epochs: int = 100,
        batch_size: int | None = None,
        weights: float | Sequence[float] | None = None,
        parameter_penalty: Penalty | None = None,
        dropout: float = 0.0,
        input_noise: float = 0.0,
        tol: float | None = None,
        n_iter_no_change: int = 10,
        early_stopping: bool | str = "auto",
        validation_fraction: float = 0.1,
        warm_start: bool = False,
        dtype: Any = None,
        device: str | torch.device | None = None,
        verbose: int = 0,
        callbacks: Sequence[Callback] = (),
        random_state: Any = None,
    ) -> None:
        super().__init__(
            hidden,
            activation=activation,
            loss=loss,
            solver=solver,
            epochs=epochs,
            batch_size=batch_size,
            weights=weights,
            parameter_penalty=parameter_penalty,
            dropout=dropout,
            input_noise=input_noise,
            tol=tol,
            n_iter_no_change=n_iter_no_change,
            early_stopping=early_stopping,
            validation_fraction=validation_fraction,
            warm_start=warm_start,
            dtype=dtype,
            device=device,
            verbose=verbose,
            callbacks=callbacks,
            random_state=random_state,
        )
        self.standardise_targets = standardise_targets

    def fit(self, X: Any, y: Any, sample_weight: Any = None) -> Self:
        """Train the network on samples X (samples, features) with targets y, (samples,) or (samples, outputs).

        sample_weight multiplies a sample's part of the objective, also of that on samples held out for validation;
        samples of weight 0 are left out.
        """
        return self._learn(X, y, sample_weight, continues=self._continues())

    def partial_fit(self, X: Any, y: Any, sample_weight: Any = None) -> Self:
        """Train for one epoch on these samples, with the network and the solver's state of the last call.

        Targets are standardised by the mean and deviation of the first call.  Early stopping belongs to `fit`.  A
        solver whose variables belong to samples begins with new ones.  Give batches of some dozens of rows: rows one at
        a time move the network far.
        """
        return self._learn(X, y, sample_weight, continues=self._continues(incremental=True), incremental=True)

    def _learn(self, X: Any, y: Any, sample_weight: Any, *, continues: bool, incremental: bool = False) -> Self:
        standardise = settings.flag(self.standardise_targets, "standardise_targets")
        if continues and standardise != self._standardised:
            raise SettingError(
                f"training continues with standardise_targets={self._standardised}, but {standardise} was given: use "
                "warm_start=False, or a new estimator."
            )
        X, y = self._training_data(X, y, continues=continues, multi_output=True, y_numeric=True)
        sample_weight, kept = settings.positive_weights(sample_weight, X)
        Y = settings.dense(y).astype(np.float64).reshape(len(X), -1)[kept]
        self._train(X[kept], Y, Y.shape[1], continues=continues, incremental=incremental, sample_weight=sample_weight)
        self._flat, self._standardised = y.ndim == 1, standardise
        return self

    def _find_target_scale(self, problem: LiftedProblem, Y: Tensor, weights: Tensor | None) -> TargetScale | None:
        if not self.standardise_targets or problem.loss.activation != Identity():
            return None
        return TargetScale.of(Y, weights)

    @property
    def target_mean_(self) -> Array:
        """The mean target of each output, (outputs,), to which the network's output 0 corresponds."""
        return self._fitted_scale.mean.numpy()

    @property
    def target_scale_(self) -> Array:
        """The standard deviation of the targets of each output, (outputs,), the unit of the network's outputs."""
        return self._fitted_scale.scale.numpy()

    @property
    def _fitted_scale(self) -> TargetScale:
        check_is_fitted(self)
        bias = self.model_.get_parameter(f"{len(self.model_) - 1}.bias").detach().cpu().double()
        return self._target_scale or TargetScale(torch.zeros_like(bias), torch.ones_like(bias))

    def predict(self, X: Any) -> Array:
        """Return predicted targets, in the units and the shape of those given to `fit`."""
        X = self._checked(X)
        outputs = self.out_activation_(self._forward(self.model_, X))
        y: Array = (outputs if self._target_scale is None else self._target_scale.restore(outputs)).numpy()
        return y.ravel() if self._flat else y
