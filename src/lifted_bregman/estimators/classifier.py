"""LiftedClassifier: a dense network for classes."""

from __future__ import annotations

from typing import Any, ClassVar, Self

import numpy as np
from sklearn.base import ClassifierMixin  # type: ignore[import-untyped]
from sklearn.utils.metaestimators import available_if  # type: ignore[import-untyped]
from sklearn.utils.multiclass import check_classification_targets  # type: ignore[import-untyped]

from lifted_bregman.errors import DataError, SettingError
from lifted_bregman.estimators import _settings as settings
from lifted_bregman.estimators._base import Array, LiftedEstimator
from lifted_bregman.losses import CrossEntropy, SquaredError


def _has_probabilities(estimator: LiftedClassifier) -> bool:
    if not isinstance(estimator._loss(), CrossEntropy):
        raise AttributeError("probabilities need loss=CrossEntropy(); with SquaredError() use decision_function.")
    return True


class LiftedClassifier(ClassifierMixin, LiftedEstimator):  # type: ignore[misc]
    """A dense network that is trained by a lifted solver to tell classes apart.

    The network has one output for each class and is trained on `loss`; a sample belongs to the largest output.

    Args:
        hidden: the width of each hidden layer, >= 1; () for none.
        activation: of the hidden layers.
        loss: `CrossEntropy()`, the default, or `SquaredError()` to one-hot targets, as in the paper.
        solver: any solver or baseline; None for the default of `lifted_bregman.fit`.
        epochs: passes over the samples, >= 1; steps for a solver that takes the whole set.
        batch_size: samples per step; None for min(100, samples).
        weights: λ_1 .. λ_{L-1} > 0 of the hidden layers in the lifted energy, or one number for all; 1 by default.
        parameter_penalty: on the weights of every layer, such as `penalties.SquaredL2(1e-4)`.
        tol: the least decrease of the objective that counts as an improvement, >= 0; None to make all epochs.
        n_iter_no_change: epochs without an improvement after which training ends.
        early_stopping: hold out a `validation_fraction` of the samples, in proportion by class where there are enough
            of each, and stop when the objective on them no longer improves.
        warm_start: whether `fit` goes on with the network of the last `fit`, for `epochs` more.
        dtype: "float32" or "float64"; None for that of X, float64 if X is neither.
        callbacks: of `lifted_bregman.callbacks`, such as Progress() or Timer(60).
        random_state: fixes initial weights, held-out samples and order; None for new ones each time.

    The parameters of the epoch with the lowest (validation) objective are kept.  If training meets NaN or infinity
    `fit` raises `DivergedError`; if Ctrl-C is pressed it warns and keeps what was reached.

    Attributes: `model_`, an nn.Sequential without the final activation `out_activation_`; `classes_`; `n_iter_`, the
    epochs made; `history_`, one row an epoch; `loss_`, the training objective of the parameters that are kept;
    `outcome_` and `message_`, how training ended; `n_features_in_` and, where X has them, `feature_names_in_`.
    """

    default_loss: ClassVar[type[CrossEntropy]] = CrossEntropy

    classes_: Array

    def fit(self, X: Any, y: Any, sample_weight: Any = None) -> Self:
        """Trains the network on samples X (samples, features) with labels y, numbers or strings.

        sample_weight multiplies a sample's part of the objective; samples of weight 0 are left out, and samples held
        out for validation all count the same.
        """
        goes_on = self._goes_on()
        X, y = self._validated(X, y, goes_on=goes_on)
        check_classification_targets(y)
        sample_weight, kept = settings.positive_weights(sample_weight, X)
        return self._learn(X[kept], y[kept], np.unique(y[kept]), goes_on=goes_on, sample_weight=sample_weight)

    def partial_fit(self, X: Any, y: Any, classes: Any = None, sample_weight: Any = None) -> Self:
        """One epoch on these samples, with the network and the solver's state of the last call.

        `classes` lists all there will be, and must be given at the first call.  Early stopping belongs to
        `fit`.  A solver whose variables belong to samples begins with new ones.
        """
        goes_on = self._goes_on(incremental=True)
        X, y = self._validated(X, y, goes_on=goes_on)
        check_classification_targets(y)
        if classes is None:
            if not goes_on:
                raise SettingError("partial_fit needs classes=, all labels that there will be, at the first call.")
            classes = self.classes_
        sample_weight, kept = settings.positive_weights(sample_weight, X)
        return self._learn(
            X[kept], y[kept], np.unique(classes), goes_on=goes_on, incremental=True, sample_weight=sample_weight
        )

    def _learn(self, X: Array, y: Array, classes: Array, *, goes_on: bool, **options: Any) -> Self:
        unknown = np.setdiff1d(y, classes)
        if len(unknown):
            raise DataError(
                f"y holds the label {_listed(unknown[:1])}, which is not among the classes {_listed(classes)}."
            )
        if goes_on and not np.array_equal(classes, self.classes_):
            raise DataError(
                f"training goes on with the classes {_listed(self.classes_)}, but {_listed(classes)} were given: "
                "use warm_start=False, or a new estimator."
            )
        if len(classes) < 2:
            raise DataError(f"y has only one class, {_listed(classes)}: a classifier needs samples of at least two.")
        if not isinstance(self._loss(), CrossEntropy | SquaredError):
            raise SettingError(f"loss is {self.loss!r}; a classifier takes CrossEntropy() or SquaredError().")
        labels = np.searchsorted(classes, y)
        self._train(X, labels, len(classes), goes_on=goes_on, labels=labels, **options)
        self.classes_ = classes
        return self

    def decision_function(self, X: Any) -> Array:
        """The outputs before the final activation, (samples, classes); for two classes z_2 - z_1, (samples,)."""
        X = self._checked(X)
        z: Array = self._forward(self.model_, X).numpy()
        return z[:, 1] - z[:, 0] if len(self.classes_) == 2 else z

    def predict(self, X: Any) -> Array:
        """The label of each sample."""
        X = self._checked(X)
        labels: Array = self.classes_[self._forward(self.model_, X).argmax(1).numpy()]
        return labels

    @available_if(_has_probabilities)  # type: ignore[untyped-decorator]
    def predict_proba(self, X: Any) -> Array:
        """The probability of each class, (samples, classes); with CrossEntropy only."""
        X = self._checked(X)
        return self._forward(self.model_, X).softmax(1).numpy()

    @available_if(_has_probabilities)  # type: ignore[untyped-decorator]
    def predict_log_proba(self, X: Any) -> Array:
        """The logarithms of `predict_proba`, without its rounding to 0."""
        X = self._checked(X)
        return self._forward(self.model_, X).log_softmax(1).numpy()


def _listed(classes: Array) -> str:
    shown = ", ".join(repr(label) for label in classes[:10].tolist())
    return f"{shown}, ..." if len(classes) > 10 else shown
