"""LiftedAutoencoder: a dense network that reproduces its input through a sparse code."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from typing import Any, ClassVar, Self

import numpy as np
import torch
from sklearn.base import ClassNamePrefixFeaturesOutMixin, TransformerMixin  # type: ignore[import-untyped]
from sklearn.exceptions import ConvergenceWarning  # type: ignore[import-untyped]
from sklearn.utils.validation import check_array, check_is_fitted  # type: ignore[import-untyped]
from torch import Tensor, nn

from lifted_bregman._generators import named_generator
from lifted_bregman.activations import Activation, Identity, SoftThreshold
from lifted_bregman.errors import DataError, SettingError
from lifted_bregman.estimators import _settings as settings
from lifted_bregman.estimators._base import RELU, Array, LiftedEstimator
from lifted_bregman.losses import BregmanLoss, SquaredError
from lifted_bregman.penalties import L1, Penalty
from lifted_bregman.problem.blocks import code_layer
from lifted_bregman.solvers import Callback, Solver


class LiftedAutoencoder(ClassNamePrefixFeaturesOutMixin, TransformerMixin, LiftedEstimator):  # type: ignore[misc]
    """A dense network that reproduces its input through a sparse code, trained by a lifted solver.

    The code is the output of the middle hidden layer (of the lower one, if two are in the middle).  Its activation is
    SoftThreshold(code_threshold), which makes exact zeros, and its variable has the penalty L1(code_penalty), which
    makes more of them.

    Args:
        hidden: the width of each hidden layer, >= 1, at least one layer.
        activation: of the hidden layers other than the code: one of `lb.activations`, or its name, such as "relu",
            "tanh", "logistic" or "leaky-relu:0.1".
        code_penalty: the weight of the penalty on the code, >= 0; 0 for none.
        code_threshold: the threshold of the code's activation, >= 0; 0 for a linear code, None for `code_penalty`.
        noise: the standard deviation of Gaussian noise, >= 0.  Above 0 the network learns X from X plus noise.
            The noise is drawn once for each call of `fit` or `partial_fit` and is part of the data: it counts in the
            objective, and every solver takes it.  `input_noise` is drawn in each step instead.
        loss: `SquaredError()`, the default, or `BregmanLoss(activation)` for features in the range of an activation.
        solver: any solver or baseline; None for the default of `lifted_bregman.fit`.
        epochs: passes over the samples, >= 1; steps for a solver that takes the whole set.
        batch_size: samples per step; None for min(100, samples).
        weights: λ_1 .. λ_{L-1} > 0 of the hidden layers in the lifted energy, or one number for all; 1 by default.
        parameter_penalty: on the weights of every layer, such as `penalties.SquaredL2(1e-4)`.
        dropout: the fraction of the units of each hidden layer set to 0 in a training step, in [0, 1); drawn anew for
            each step and sample.  Predictions use all units.  The solver must work on batches, as the default does.
        input_noise: the standard deviation of Gaussian noise that is added to X in training, in its units, >= 0; drawn
            anew for each step.  The targets stay X without noise.
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
    `fit` raises `DivergedError`; it warns if Ctrl-C was pressed, and keeps what was reached, and if all codes are 0.

    Attributes: `model_`, an nn.Sequential without the final activation `out_activation_`, and its halves `encoder_` and
    `decoder_`; `n_iter_`, the epochs made; `history_`, one row an epoch, with the "sparsity" of the code;
    `loss_curve_`, the training objective after each epoch; `loss_`, that of the final parameters; `outcome_`
    and `message_`, how training ended; `n_features_in_` and, where X has them, `feature_names_in_`.

    Example:
        >>> X = np.random.default_rng(0).normal(size=(100, 2)) @ np.ones((2, 6))
        >>> codes = lb.LiftedAutoencoder(hidden=(8, 3, 8), epochs=10, random_state=0).fit(X).transform(X)
        >>> codes.shape
        (100, 3)
    """

    default_loss: ClassVar[type[SquaredError]] = SquaredError

    def __init__(
        self,
        hidden: int | Sequence[int] = (64, 32, 64),
        *,
        activation: Activation | str = RELU,
        code_penalty: float = 0.09,
        code_threshold: float | None = None,
        noise: float = 0.0,
        loss: BregmanLoss | None = None,
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
        self.code_penalty = code_penalty
        self.code_threshold = code_threshold
        self.noise = noise

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.transformer_tags.preserves_dtype = ["float64", "float32"] if self.dtype is None else []
        return tags

    def _hidden_activations(self) -> list[Activation]:
        activations = super()._hidden_activations()
        if not activations:
            raise SettingError("hidden is empty; an autoencoder needs at least one hidden layer, its code.")
        given = self.code_penalty if self.code_threshold is None else self.code_threshold
        threshold = settings.not_negative(given, "code_penalty" if self.code_threshold is None else "code_threshold")
        code = code_layer(len(activations) + 1)
        activations[code - 1] = SoftThreshold(threshold) if threshold > 0.0 else Identity()
        return activations

    def _penalties(self, depth: int) -> dict[int, Penalty]:
        weight = settings.not_negative(self.code_penalty, "code_penalty")
        return {code_layer(depth): L1(weight)} if weight > 0.0 else {}

    def _inputs(self, X: Tensor, seed: int, epochs: int) -> Tensor:
        level = settings.not_negative(self.noise, "noise")
        if level == 0.0:
            return X
        noise = torch.randn(X.shape, generator=named_generator(seed, "noise", epochs), dtype=torch.float64)
        return X + level * noise.to(X.dtype)

    def fit(self, X: Any, y: Any = None) -> Self:
        """Train the network to reproduce X (samples, features); y is ignored."""
        return self._learn(X, continues=self._continues())

    def partial_fit(self, X: Any, y: Any = None) -> Self:
        """Train for one epoch on these samples, with the network and the solver's state of the last call; y is ignored.

        Early stopping belongs to `fit`.  A solver with a variable for each sample starts with new variables.  Give
        batches of some dozens of rows: rows one at a time move the network far.
        """
        return self._learn(X, continues=self._continues(incremental=True), incremental=True)

    def _learn(self, X: Any, *, continues: bool, incremental: bool = False) -> Self:
        X = self._training_data(X, continues=continues)
        reached = self._train(X, X, X.shape[1], continues=continues, incremental=incremental)
        if reached["sparsity"] == 1.0 and not incremental:
            warnings.warn(
                "The codes of all samples are 0: use a smaller code_penalty, or standardise the features.",
                ConvergenceWarning,
                stacklevel=3,
            )
        return self

    @property
    def encoder_(self) -> nn.Sequential:
        """The layers up to the code; shares the parameters of `model_`."""
        check_is_fitted(self)
        return nn.Sequential(*list(self.model_)[: 2 * self._code_layer])

    @property
    def decoder_(self) -> nn.Sequential:
        """The layers after the code; shares the parameters of `model_`."""
        check_is_fitted(self)
        return nn.Sequential(*list(self.model_)[2 * self._code_layer :])

    @property
    def _code_layer(self) -> int:
        """The number of the code's layer in the fitted network."""
        return code_layer((len(self.model_) + 1) // 2)

    @property
    def _n_features_out(self) -> int:
        return len(self.decoder_.get_parameter("0.weight")[0])

    def transform(self, X: Any) -> Array:
        """Return the codes of samples X, (samples, width of the code)."""
        X = self._checked(X)
        return self._forward(self.encoder_, X).numpy()

    def inverse_transform(self, codes: Any) -> Array:
        """Decode codes to samples, (samples, features)."""
        check_is_fitted(self)
        settings.refuse_masked(codes, "codes")
        codes = check_array(codes, dtype=self._model_dtype(), order="C", force_writeable=True)
        if codes.shape[1] != self._n_features_out:
            raise DataError(
                f"the codes have {codes.shape[1]} features; expected {self._n_features_out}, as transform returns "
                "them: give "
                "codes of this network."
            )
        return self.out_activation_(self._forward(self.decoder_, codes)).numpy()

    def denoise(self, X: Any) -> Array:
        """Return inverse_transform(transform(X)); train with `noise` above 0 to remove noise from X."""
        return self._reconstructed(self._checked(X))

    def score(self, X: Any, y: Any = None) -> float:
        """Return minus the mean squared error of the reconstruction, over samples and features; y is ignored."""
        X = settings.dense(self._checked(X))
        return -float(np.square(self._reconstructed(X) - X).mean())

    def _reconstructed(self, X: Any) -> Array:
        return self.out_activation_(self._forward(self.model_, X)).numpy()
