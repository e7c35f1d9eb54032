"""scikit-learn's own checks, every one of them, and those that it runs on its own estimators only."""

import json
import os
import subprocess
import sys
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
import sklearn.utils.estimator_checks as checks
from sklearn.base import BaseEstimator

import lifted_bregman as lb
from lifted_bregman.estimators import (
    LiftedAutoencoder,
    LiftedClassifier,
    LiftedDetector,
    LiftedOutlierDetector,
    LiftedRegressor,
)

CLASSIFIER = LiftedClassifier(hidden=(8,), epochs=30)
REGRESSOR = LiftedRegressor(hidden=(8,), epochs=25, solver=lb.AdaBreg(step_size=0.02))
# A check draws seeds of its own; with the default penalty one in thirty ends 4 epochs with no code but 0, and warns.
AUTOENCODER = LiftedAutoencoder(hidden=(8, 4, 8), epochs=4, code_penalty=0.01)
DETECTORS = [LiftedDetector((8, 3), epochs=3), LiftedOutlierDetector((8, 3), epochs=3)]
VARIANTS = [
    LiftedClassifier(hidden=(8, 6), epochs=20, loss=lb.SquaredError(), solver=lb.ImplicitSGD(5.0, 3)),
    LiftedClassifier(hidden=(8,), epochs=30, activation=lb.activations.Tanh()),
    LiftedRegressor(hidden=(), epochs=20, solver=lb.ProximalGradient()),
    LiftedRegressor(hidden=(8, 6), epochs=60, solver=lb.baselines.Adam(0.01), tol=None),
    LiftedAutoencoder(hidden=3, epochs=4, code_penalty=0.01, code_threshold=0.2, noise=0.1, early_stopping=True),
    LiftedClassifier(),
    LiftedClassifier(solver=lb.GramSweep(weight_decay=0.0)),
    LiftedRegressor(),
    LiftedAutoencoder(),
    LiftedDetector(),
    LiftedOutlierDetector(energy="minimum", steps=5),
]

# Not part of check_estimator: what scikit-learn asks of its own classes, where it makes sense for others.
BEYOND = [checks.check_dataframe_column_names_consistency, checks.check_inplace_ensure_writeable]
BEYOND_TRANSFORMERS = [
    checks.check_transformer_get_feature_names_out,
    checks.check_transformer_get_feature_names_out_pandas,
    checks.check_get_feature_names_out_error,
    checks.check_set_output_transform,
    checks.check_set_output_transform_pandas,
    checks.check_global_output_transform_pandas,
]


def test_check_estimator_passes_completely() -> None:
    # One check runs only where SCIPY_ARRAY_API is set before SciPy is imported, so that nothing is skipped here.
    script = """
import json, sys
from sklearn.utils.estimator_checks import check_estimator
from tests.estimators.test_checks import AUTOENCODER, CLASSIFIER, DETECTORS, REGRESSOR
rows = [
    (type(estimator).__name__, row["check_name"], row["status"], repr(row["exception"]))
    for estimator in (CLASSIFIER, REGRESSOR, AUTOENCODER, *DETECTORS)
    for row in check_estimator(estimator, on_fail=None)
]
print(json.dumps(rows))
"""
    run = subprocess.run(
        # Features of some checks are 100 ± 0.5.
        [sys.executable, "-W", "error", "-W", "ignore:X is far from standardised:RuntimeWarning", "-c", script],
        env=os.environ | {"SCIPY_ARRAY_API": "1"},
        cwd=Path(__file__).parents[2],
        capture_output=True,
        text=True,
        timeout=280,
    )
    assert run.returncode == 0, run.stderr
    rows = json.loads(run.stdout)
    assert [row for row in rows if row[2] != "passed"] == []
    counts = Counter(row[0] for row in rows)
    assert counts["LiftedClassifier"] >= 60
    assert counts["LiftedRegressor"] >= 58
    assert counts["LiftedAutoencoder"] >= 45
    assert counts["LiftedDetector"] >= 41 and counts["LiftedOutlierDetector"] >= 47
    names = {row[1] for row in rows}
    assert {"check_array_api_input", "check_sample_weight_equivalence_on_dense_data"} <= names
    assert {"check_sample_weight_equivalence_on_sparse_data", "check_estimator_sparse_matrix"} <= names
    assert "check_classifiers_multilabel_output_format_predict_proba" in names


@pytest.mark.long
@pytest.mark.filterwarnings("ignore:X is far from standardised:RuntimeWarning")  # features of 100 ± 0.5
@pytest.mark.parametrize("estimator", VARIANTS, ids=lambda e: " ".join(repr(e).split()))
def test_check_estimator_passes_with_other_settings(estimator: BaseEstimator) -> None:
    results = checks.check_estimator(estimator, on_skip=None)
    assert len(results) > 40
    other = {entry["check_name"]: entry["status"] for entry in results if entry["status"] != "passed"}
    assert other in ({}, {"check_array_api_input": "skipped"})


@pytest.mark.long
@pytest.mark.filterwarnings("ignore:X is far from standardised:RuntimeWarning")  # features of 100 ± 0.5
def test_check_estimator_passes_with_early_stopping_but_for_repetitions() -> None:
    # Which samples are held out depends on how many there are, so that a weight of 2 cannot be a sample given twice.
    impossible = {f"check_sample_weight_equivalence_on_{kind}_data" for kind in ("dense", "sparse")}
    estimator = LiftedClassifier(hidden=(8,), epochs=60, early_stopping=True, validation_fraction=0.3)
    expected = dict.fromkeys(impossible, "held-out samples")
    results = checks.check_estimator(estimator, on_skip=None, expected_failed_checks=expected)
    other = {entry["check_name"] for entry in results if entry["status"] not in ("passed", "skipped")}
    assert other == impossible


def test_weights_are_repetitions_to_the_last_digits_with_the_default_solver() -> None:
    generator = np.random.default_rng(0)
    X, y = generator.random((15, 30)), generator.integers(3, size=15)
    counts, order = generator.integers(5, size=15), generator.permutation(15)
    weighted = LiftedClassifier(epochs=20, random_state=0).fit(X[order], y[order], sample_weight=counts[order])
    repeated = LiftedClassifier(epochs=20, random_state=0).fit(X.repeat(counts, axis=0), y.repeat(counts))
    np.testing.assert_allclose(weighted.predict_proba(X), repeated.predict_proba(X), rtol=0.0, atol=1e-11)


@pytest.mark.parametrize("check", BEYOND, ids=lambda check: check.__name__)
@pytest.mark.parametrize("estimator", [CLASSIFIER, REGRESSOR, AUTOENCODER], ids=lambda e: type(e).__name__)
def test_further_checks(estimator: BaseEstimator, check) -> None:
    pytest.importorskip("pandas")
    check(type(estimator).__name__, estimator)


@pytest.mark.filterwarnings("ignore:X (does not have valid|has) feature names:UserWarning")  # provoked by the checks
@pytest.mark.parametrize("check", BEYOND_TRANSFORMERS, ids=lambda check: check.__name__)
def test_further_checks_of_transformers(check) -> None:
    pytest.importorskip("pandas")
    check("LiftedAutoencoder", AUTOENCODER)
