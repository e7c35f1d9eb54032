"""Estimators with scikit-learn's interface, trained by lifted solvers.

    lb.LiftedClassifier(hidden=(64, 64)).fit(X, y).score(X_test, y_test)
    lb.LiftedAutoencoder(hidden=(784, 784, 784), code_penalty=0.09).fit(X).transform(X)      # sparse codes
    lb.LiftedDetector().fit(X).decision_function(X_new)                                      # higher = more abnormal

Standardise the features first: make_pipeline(StandardScaler(), LiftedClassifier()).
"""

try:
    import sklearn  # type: ignore[import-untyped]  # noqa: F401
except ImportError as error:
    raise ImportError("the estimators need scikit-learn: install lifted-bregman with the extra 'sklearn'.") from error

from lifted_bregman.estimators.autoencoder import LiftedAutoencoder
from lifted_bregman.estimators.classifier import LiftedClassifier
from lifted_bregman.estimators.detector import LiftedDetector, LiftedOutlierDetector
from lifted_bregman.estimators.regressor import LiftedRegressor

__all__ = ["LiftedAutoencoder", "LiftedClassifier", "LiftedDetector", "LiftedOutlierDetector", "LiftedRegressor"]
