"""LiftedClassifier: a dense network for classes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, Self

import numpy as np
import torch
from sklearn.base import ClassifierMixin  # type: ignore[import-untyped]
from sklearn.utils.metaestimators import available_if  # type: ignore[import-untyped]
from sklearn.utils.multiclass import check_classification_targets, type_of_target  # type: ignore[import-untyped]
from torch.nn.functional import logsigmoid

from lifted_bregman.activations import Activation, Sigmoid
from lifted_bregman.errors import DataError, SettingError
from lifted_bregman.estimators import _settings as settings
from lifted_bregman.estimators._base import RELU, Array, LiftedEstimator
from lifted_bregman.losses import BregmanLoss, CrossEntropy, SquaredError
from lifted_bregman.penalties import Penalty
from lifted_bregman.solvers import Callback, Solver


def _has_probabilities(estimator: LiftedClassifier) -> bool:
    if isinstance(estimator.loss, SquaredError):
        raise AttributeError("probabilities need loss=CrossEntropy(); with SquaredError() use decision_function.")
    return True


class LiftedClassifier(ClassifierMixin, LiftedEstimator):  # type: ignore[misc]
    """A dense network for classes, trained by a lifted solver.

    The network has one output for each class and is trained on `loss`; a sample belongs to the largest output.  Where y
    is an indicator matrix (samples, labels) of zeros and ones, a sample may have any number of labels: each output then
    is the logit of one label, trained on its binary cross-entropy, the Bregman loss of the sigmoid.

    Args:
        hidden: the width of each hidden layer, >= 1; () for none.
        activation: of the hidden layers: one of `lb.activations`, or its name, such as "relu", "tanh", "logistic" or
            "leaky-relu:0.1".
        loss: `CrossEntropy()`, the default, or `SquaredError()` to one-hot targets, as in the paper.  For indicator
            matrices `BregmanLoss(Sigmoid())`, which is the default there.
        class_weight: factors of sample_weight for the samples of each class: a dict from classes to weights
            >= 0, or "balanced" for samples / (classes · samples of the class); None for 1.  Not for indicator matrices.
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
        early_stopping: whether to hold out a `validation_fraction` of the samples, in proportion by class where there
            are enough of each, and to stop when the objective on them no longer improves.  "auto" does so for 10,000
            samples or more.  With fewer it trains on all of them, and stops when the training objective no longer
            falls.
        warm_start: whether `fit` continues to train the network of the last `fit`, for `epochs` more, with the schedule
            of the longer run: the rate of the default solver rises again, which can undo part of the last `fit`.
        dtype: "float32" or "float64"; None for that of X, float64 if X is neither.
        device: of the network and the samples in training, such as "cpu" or "cuda"; None for the CPU.
        verbose: 0 for nothing, 1 for a line an epoch on standard error (a live bar on a terminal).
        callbacks: of `lifted_bregman.callbacks`, such as Progress() or Timer(60).
        random_state: seed of initial weights, held-out samples, order, dropout and noise; None for a new one each time.

    The parameters of the epoch with the lowest (validation) objective are kept.  If training meets NaN or infinity
    `fit` raises `DivergedError`; if Ctrl-C is pressed it warns and keeps what was reached.

    Attributes: `model_`, an nn.Sequential without the final activation `out_activation_`; `classes_`, for an indicator
    matrix the numbers of its columns; `multilabel_`, whether y was one; `n_iter_`, the epochs made; `history_`, one row
    an epoch; `loss_curve_`, the training objective after each epoch; `loss_`, that of the final parameters;
    `outcome_` and `message_`, how training ended; `n_features_in_` and, where X has them, `feature_names_in_`.

    Example:
        >>> X = np.random.default_rng(0).normal(size=(200, 2))
        >>> classifier = lb.LiftedClassifier(hidden=(16,), epochs=30, random_state=0).fit(X, X[:, 0] > 0)
        >>> classifier.score(X, X[:, 0] > 0) > 0.9
        True
    """

    default_loss: ClassVar[type[CrossEntropy]] = CrossEntropy

    classes_: Array
    multilabel_: bool
    _indicators: bool = False

    def __init__(
        self,
        hidden: int | Sequence[int] = (100,),
        *,
        activation: Activation | str = RELU,
        loss: BregmanLoss | None = None,
        class_weight: Mapping[Any, float] | str | None = None,
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
        self.class_weight = class_weight

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.classifier_tags.multi_label = self.loss is None  # losses that the user gives are for classes
        return tags

    def fit(self, X: Any, y: Any, sample_weight: Any = None) -> Self:
        """Train the network on samples X (samples, features) with labels y, numbers or strings, or their indicators.

        sample_weight multiplies a sample's part of the objective, also of that on samples held out for validation;
        samples of weight 0 are left out.
        """
        return self._learn(X, y, None, sample_weight, continues=self._continues())

    def partial_fit(self, X: Any, y: Any, classes: Any = None, sample_weight: Any = None) -> Self:
        """Train for one epoch on these samples, with the network and the solver's state of the last call.

        `classes` lists every class of all calls; the first call needs it, unless y is an indicator matrix.  Early
        stopping and class_weight="balanced" belong to `fit`.  A solver whose variables belong to samples begins with
        new ones.  Give batches of some dozens of rows: rows one at a time move the network far.
        """
        if isinstance(self.class_weight, str) and self.class_weight == "balanced":
            raise SettingError(
                "class_weight is 'balanced', which needs all samples, but partial_fit gets only some: give a dict from "
                "classes to weights."
            )
        return self._learn(X, y, classes, sample_weight, continues=self._continues(incremental=True), incremental=True)

    def _loss(self) -> BregmanLoss:
        return BregmanLoss(Sigmoid()) if self.loss is None and self._indicators else super()._loss()

    def _learn(
        self, X: Any, y: Any, classes: Any, sample_weight: Any, *, continues: bool, incremental: bool = False
    ) -> Self:
        self._indicators = _is_indicator(y)
        X, y = self._training_data(X, y, continues=continues, multi_output=self._indicators)
        check_classification_targets(y)
        sample_weight, kept = settings.positive_weights(sample_weight, X)
        X, y = X[kept], settings.dense(y)[kept]
        if incremental and classes is None and not self._indicators:
            if not continues:
                raise SettingError("the first call of partial_fit needs classes=, the labels of all calls: give them.")
            classes = self.classes_
        found = np.arange(y.shape[1]) if self._indicators else np.unique(y)
        classes = found if classes is None else np.unique(classes)
        self._require_classes(found, classes, continues)
        self._require_loss()
        if self._indicators:
            labels, Y = None, self._checked_indicators(y, X.dtype)
        else:
            labels = Y = np.searchsorted(classes, y)
        if self.class_weight is not None and labels is not None:
            by_class = settings.class_weights(self.class_weight, classes, y)[labels]
            given = by_class if sample_weight is None else by_class * sample_weight
            sample_weight, kept = settings.positive_weights(given, X)
            X, labels, Y = X[kept], labels[kept], Y[kept]
        self._train(
            X, Y, len(classes), continues=continues, incremental=incremental, sample_weight=sample_weight, labels=labels
        )
        self.classes_, self.multilabel_ = classes, self._indicators
        return self

    def _require_classes(self, found: Array, classes: Array, continues: bool) -> None:
        """Raise an error unless y has only given classes, which are also those of a fitted network that continues."""
        if continues and self._indicators != self.multilabel_:
            kinds = "one label for each sample", "a matrix of indicators"
            before, now = (kinds[kind] for kind in (self.multilabel_, self._indicators))
            raise DataError(
                f"training continues with {before}, but y is {now}: use warm_start=False, or a new estimator."
            )
        unknown = np.setdiff1d(found, classes)
        if len(unknown):
            raise DataError(
                f"y holds the label {_listed(unknown[:1])}, which is not among the classes {_listed(classes)}: "
                "list every class in classes= at the first call."
            )
        if continues and not np.array_equal(classes, self.classes_):
            raise DataError(
                f"training continues with the classes {_listed(self.classes_)}, but {_listed(classes)} were given: "
                "use warm_start=False, or a new estimator."
            )
        if len(classes) < 2:
            raise DataError(f"y has only one class, {_listed(classes)}: a classifier needs samples of at least two.")

    def _require_loss(self) -> None:
        """Raise an error unless the loss fits the kind of y."""
        loss = self._loss()
        if self._indicators and loss.activation != Sigmoid():
            raise SettingError(
                f"loss is {self.loss!r}, but y is a matrix of indicators, which needs BregmanLoss(Sigmoid()): leave "
                "loss=None."
            )
        if not self._indicators and not isinstance(loss, CrossEntropy | SquaredError):
            raise SettingError(f"loss is {self.loss!r}; a classifier takes CrossEntropy() or SquaredError().")

    def _checked_indicators(self, y: Array, dtype: Any) -> Array:
        """Return the indicators as targets, (samples, labels) of 0 and 1, after checks."""
        if self.class_weight is not None:
            raise SettingError(
                f"class_weight is {self.class_weight!r}, but rows of the indicator matrix y may have several classes: "
                "give sample_weight."
            )
        if not np.isin(y, (0, 1)).all():
            raise DataError(
                f"y is a matrix with the values {_listed(np.unique(y))}; expected indicators, 0 and 1 only."
            )
        return y.astype(dtype)

    def decision_function(self, X: Any) -> Array:
        """Return the outputs before the final activation, (samples, classes); for two classes z_2 - z_1, (samples,)."""
        X = self._checked(X)
        z: Array = self._forward(self.model_, X).numpy()
        return z[:, 1] - z[:, 0] if len(self.classes_) == 2 and not self.multilabel_ else z

    def predict(self, X: Any) -> Array:
        """Return the label of each sample; for indicators (samples, labels), 1 where the probability is above ½."""
        X = self._checked(X)
        z = self._forward(self.model_, X)
        labels: Array = (z > 0.0).long().numpy() if self.multilabel_ else self.classes_[z.argmax(1).numpy()]
        return labels

    @available_if(_has_probabilities)  # type: ignore[untyped-decorator]
    def predict_proba(self, X: Any) -> Array:
        """Return the probability of each class or label, (samples, classes); not with SquaredError."""
        X = self._checked(X)
        z = self._forward(self.model_, X)
        return (z.sigmoid() if self.multilabel_ else z.softmax(1)).numpy()

    @available_if(_has_probabilities)  # type: ignore[untyped-decorator]
    def predict_log_proba(self, X: Any) -> Array:
        """Return log p of each class or label, computed from the logits, so that no p is rounded to 0."""
        X = self._checked(X)
        z = self._forward(self.model_, X)
        return (logsigmoid(z) if self.multilabel_ else z.log_softmax(1)).numpy()


def _is_indicator(y: Any) -> bool:
    """Whether y is a matrix of indicators, a column for each label."""
    try:
        dimensions = y.ndim if hasattr(y, "ndim") else np.asarray(y).ndim
    except ValueError:  # rows of different lengths; the checks of y raise the error
        return False
    return dimensions == 2 and bool(type_of_target(y) == "multilabel-indicator")


def _listed(classes: Array) -> str:
    shown = ", ".join(repr(label) for label in classes[:10].tolist())
    return f"{shown}, ..." if len(classes) > 10 else shown
