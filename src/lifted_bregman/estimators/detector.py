"""LiftedDetector and LiftedOutlierDetector: abnormal samples, by the conventions of PyOD and of scikit-learn."""

from __future__ import annotations

from typing import Any, Self

import numpy as np
from scipy.special import erf  # type: ignore[import-untyped]
from scipy.stats import binom  # type: ignore[import-untyped]
from sklearn.base import OutlierMixin  # type: ignore[import-untyped]

from lifted_bregman.errors import SettingError
from lifted_bregman.estimators._base import Array
from lifted_bregman.estimators._detection import EnergyDetector


class LiftedDetector(EnergyDetector):
    """Finds abnormal samples by the energy of an autoencoder; PyOD's contract.

    Autoencoders are trained on all samples, without labels.  A sample's score is a sum of energies, each
    divided by its mean over the training samples: the output's, those of the encoder's layers, and the distance of the
    code from the training samples' codes (`lb.tasks.EnergyScale` has the formula).  Higher is more abnormal, `predict`
    returns 1 for abnormal and 0 for usual samples.  `LiftedOutlierDetector` is the same with scikit-learn's signs.

    Args:
        hidden: the widths of the encoder, the code's last; the decoder mirrors them.  None for (2f, f/2) with f
            features.  With `images` the channels of its convolutions, of stride 2 each, and the width of the code;
            None for (8, 16, 16).
        images: (channels, height, width) or (height, width) of pictures, for a convolutional autoencoder.  X is
            then (samples, channels, height, width), (samples, height, width), or rows of as many numbers.
        network: an autoencoder in place of `hidden`: a `torch.nn.Module`, which is copied, or a function that returns
            one for the shape of a sample.  Its code is the narrowest hidden variable.
        activation: of the hidden layers other than the code: one of `lb.activations`, or its name.
        energy: "forward" takes the energies at the forward pass, "minimum" after minimising over the hidden variables.
        steps: sweeps towards that minimum, >= 1.
        contamination: the fraction of the training samples above the threshold, in (0, 0.5].
        standardise: "features" by mean and deviation over the training samples, "samples" each by its own (contrast),
            None for neither; "auto" standardises the features of tables, and leaves pictures as they are.
        members: autoencoders with different initial weights, >= 1, whose scores are averaged.
        solver: any solver or baseline; None for the default of `lifted_bregman.fit`.
        epochs: passes over the samples, >= 1; None for about 60 steps, in at most 8 epochs.  After many epochs
            an autoencoder reproduces the abnormal samples too.
        batch_size: samples per step; None for min(100, samples).
        dtype: "float32" or "float64"; None for that of X, float64 if X is neither.
        device: of the network and the samples, such as "cpu" or "cuda"; None for the CPU.
        verbose: 0 for nothing, 1 for a line an epoch on standard error.
        callbacks: of `lifted_bregman.callbacks`.
        random_state: seed of initial weights and the order of samples; None for a new one each time.

    Attributes: `decision_scores_`, of the training samples; `threshold_`, their (1 - contamination) quantile;
    `labels_`, 1 for the training samples above it; `scales_`, an `EnergyScale` for each autoencoder; `model_`, the
    first autoencoder, and `n_iter_`, `history_`, `outcome_` and `message_` of its training; `n_features_in_` and,
    where X has them, `feature_names_in_`.

    Example:
        >>> X = np.random.default_rng(0).normal(size=(200, 1)) @ np.ones((1, 4))
        >>> detector = lb.LiftedDetector(members=1, random_state=0).fit(X)
        >>> detector.predict([[1.0, 1.0, 1.0, 1.0], [3.0, -3.0, 3.0, -3.0]])
        array([0, 1])
    """

    decision_scores_: Array
    threshold_: float
    labels_: Array

    def fit(self, X: Any, y: Any = None) -> Self:
        """Train the autoencoders on X (samples, features), and set the threshold; y is ignored."""
        self.decision_scores_ = self._learn(X)
        self.threshold_ = float(np.percentile(self.decision_scores_, 100.0 * (1.0 - self.contamination)))
        self.labels_ = (self.decision_scores_ > self.threshold_).astype(int)
        return self

    def fit_predict(self, X: Any, y: Any = None) -> Array:
        """Fit to X and return `labels_`; y is ignored."""
        return self.fit(X).labels_

    def decision_function(self, X: Any) -> Array:
        """Return the score of each sample, (samples,); higher is more abnormal."""
        return self._scores(self._checked(X))

    def predict(self, X: Any, return_confidence: bool = False) -> Any:
        """Return 1 for samples above the threshold and 0 for others, (samples,), and if asked their confidence."""
        scores = self.decision_function(X)
        labels = (scores > self.threshold_).astype(int)
        return (labels, self._confidence(scores)) if return_confidence else labels

    def predict_proba(self, X: Any, method: str = "linear", return_confidence: bool = False) -> Any:
        """Return the probabilities of being usual and abnormal, (samples, 2).

        method: "linear" maps the range of the training scores to [0, 1]; "unify" takes erf((s - mean)/(√2 deviation))
            of them, not below 0.
        """
        if method not in ("linear", "unify"):
            raise SettingError(f"method is {method!r}; it must be 'linear' or 'unify'.")
        scores, usual = self.decision_function(X), self.decision_scores_
        if method == "linear":
            low, high = usual.min(), usual.max()
            abnormal = (scores - low) / (high - low if high > low else 1.0)
        else:
            deviation = usual.std()
            abnormal = erf((scores - usual.mean()) / (np.sqrt(2.0) * (deviation if deviation > 0.0 else 1.0)))
        abnormal = np.clip(abnormal, 0.0, 1.0)
        probabilities = np.stack([1.0 - abnormal, abnormal], 1)
        return (probabilities, self._confidence(scores)) if return_confidence else probabilities

    def predict_confidence(self, X: Any) -> Array:
        """Return the probability that another training set of the same size gives the same label, (samples,).

        With n training samples, of which k score at most s, the posterior mean of P(score <= s) is p = (1 + k)/(2 + n);
        a sample is labelled 1 with probability P(Binomial(n, p) > n - ⌊n·contamination⌋).
        """
        return self._confidence(self.decision_function(X))

    def _confidence(self, scores: Array) -> Array:
        n = len(self.decision_scores_)
        below = np.searchsorted(np.sort(self.decision_scores_), scores, side="right")
        abnormal = 1.0 - binom.cdf(n - int(n * self.contamination), n, (1.0 + below) / (2.0 + n))
        confidence: Array = np.where(scores > self.threshold_, abnormal, 1.0 - abnormal)
        return confidence


class LiftedOutlierDetector(OutlierMixin, EnergyDetector):  # type: ignore[misc]
    """`LiftedDetector` with scikit-learn's signs: -1 for abnormal and 1 for usual samples, lower is more abnormal.

    The arguments are those of `LiftedDetector`.

    Attributes: `offset_`, which `decision_function` subtracts from `score_samples`, so that a fraction `contamination`
    of the training samples is below 0, and those of `LiftedDetector` that describe the network.

    Example:
        >>> X = np.random.default_rng(0).normal(size=(200, 1)) @ np.ones((1, 4))
        >>> detector = lb.LiftedOutlierDetector(members=1, random_state=0).fit(X)
        >>> detector.predict([[1.0, 1.0, 1.0, 1.0], [3.0, -3.0, 3.0, -3.0]])
        array([ 1, -1])
    """

    offset_: float

    def fit(self, X: Any, y: Any = None) -> Self:
        """Train the autoencoders on X (samples, features), and set the offset; y is ignored."""
        self.offset_ = float(np.percentile(-self._learn(X), 100.0 * self.contamination))
        return self

    def score_samples(self, X: Any) -> Array:
        """Return minus the score of each sample, (samples,); lower is more abnormal."""
        return -self._scores(self._checked(X))

    def decision_function(self, X: Any) -> Array:
        """Return `score_samples(X)` - `offset_`, (samples,), below 0 for abnormal samples."""
        return self.score_samples(X) - self.offset_

    def predict(self, X: Any) -> Array:
        """Return -1 for abnormal samples and 1 for others, (samples,)."""
        return np.where(self.decision_function(X) < 0.0, -1, 1)
