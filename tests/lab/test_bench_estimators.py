"""`lifted bench estimators`: tables, folds, ranks, files; and that the page in the docs is what is stored."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from sklearn.dummy import DummyClassifier
from sklearn.linear_model import LinearRegression
from sklearn.model_selection import cross_val_score
from sklearn.neural_network import MLPClassifier, MLPRegressor
from sklearn.preprocessing import StandardScaler

from lifted_bregman.errors import CheckpointError, DataError
from lifted_bregman_lab import estimators
from lifted_bregman_lab.estimators import Comparison, Fold, Table, running, summary, tables
from lifted_bregman_lab.estimators.competitors import AdamClassifier, AdamRegressor, competitor
from tests.cli.program import call

DOCS = Path(__file__).parents[2] / "docs"
STORED = DOCS / "figures" / "estimators.json"
Capture = pytest.CaptureFixture[str]


def comparison(scores: dict[str, tuple[float, float, float]]) -> Comparison:
    """Two folds a table, a little above and below the given score of each competitor."""
    folds = [
        Fold(table, name, 0, fold, score + (0.01 if fold else -0.01), 0.5 + fold)
        for table, row in scores.items()
        for name, score in zip(estimators.COMPETITORS, row, strict=True)
        for fold in range(2)
    ]
    return Comparison({"torch": "2.0", "processor": "abacus"}, "Solver()", folds)


def test_ranks_are_averaged_over_tables_and_shared_by_equals() -> None:
    found = comparison({"iris": (0.9, 0.8, 0.9), "wine": (0.7, 0.8, 0.9), "diabetes": (-0.1, -3.0, -0.2)})
    assert summary.ranks(found) == {"lifted": [1.5, 3.0, 1.0], "scikit-learn": [3.0, 2.0, 3.0], "Adam": [1.5, 1.0, 2.0]}
    assert summary.mean_ranks(found) == pytest.approx({"lifted": 11 / 6, "scikit-learn": 8 / 3, "Adam": 1.5})
    assert summary.describe_ranks(found) == "On average rank the defaults of the library are worse than those of Adam."
    page = summary.page(found)
    assert "| iris | accuracy | 0.900 ± 0.014 | 0.800 ± 0.014 | 0.900 ± 0.014 |" in page
    assert "| mean rank |  | 1.83 | 2.67 | 1.50 |" in page and "| processor seconds | of a fit | 1.00 |" in page
    tie = comparison({"iris": (0.9, 0.8, 0.9)})
    assert "no worse on average rank than those of scikit-learn and Adam." in summary.describe_ranks(tie)


def test_the_table_of_the_page_is_the_one_of_the_stored_folds() -> None:
    found = estimators.read_comparison(STORED)
    assert estimators.missing_folds(estimators.TABLES, 1, found) == []
    assert len(estimators.TABLES) == 12 and sum(table.classify for table in estimators.TABLES) == 6
    assert (DOCS / "figures" / "estimators.inc").read_text() == summary.page(found)
    assert "```{include} figures/estimators.inc\n```" in (DOCS / "estimators.md").read_text()


def test_a_file_holds_every_fold(tmp_path: Path) -> None:
    found = comparison({"iris": (0.9, 0.8, 0.9)})
    estimators.write_comparison(tmp_path / "file", found)
    assert estimators.read_comparison(tmp_path / "file") == found
    (tmp_path / "other").write_text("{}")
    with pytest.raises(CheckpointError, match="other is not what 'lifted bench estimators' writes"):
        estimators.read_comparison(tmp_path / "other")


def constant(seen: list[tuple[str, int]]):
    """A stand-in for all competitors."""

    def make(name: str, classify: bool, seed: int) -> DummyClassifier:
        seen.append((name, seed))
        return DummyClassifier()

    return make


def test_only_what_is_missing_is_fitted(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[tuple[str, int]] = []
    monkeypatch.setattr(running, "competitor", constant(seen))
    y = np.repeat([0, 1], [70, 30])
    table = Table("iris", True, lambda: (np.zeros((100, 2)), y))
    kept: list[Comparison] = []
    found = estimators.compare([table], 1, keep=kept.append)
    # each class in proportion in each fold, so that the most frequent is right in 70 of 100
    assert [fold.score for fold in found.folds] == [0.7] * 15
    assert cross_val_score(DummyClassifier(), np.zeros((100, 2)), y, cv=5) == pytest.approx(0.7)
    assert {seed for _, seed in seen} == set(range(5)) and kept == [found]
    more = estimators.compare([table], 2, stored=found)
    assert len(seen) == len(more.folds) == 30 and {seed for _, seed in seen[15:]} == set(range(5, 10))
    assert estimators.missing_folds([table], 3, more) == [(table, 2)]


def test_competitors_have_their_defaults_and_standardised_numbers() -> None:
    pipeline = competitor("scikit-learn", True, 3)
    assert pipeline[-1].get_params() == MLPClassifier(random_state=3).get_params()
    assert isinstance(pipeline[0], StandardScaler)
    wrapped = competitor("scikit-learn", False, 3)
    assert wrapped.regressor[-1].get_params() == MLPRegressor(random_state=3).get_params()
    assert isinstance(wrapped.transformer, StandardScaler) and isinstance(wrapped.regressor[0], StandardScaler)


@pytest.mark.long
def test_adam_learns() -> None:
    X, y = tables.TABLES[0].load()
    assert AdamClassifier(0).fit(X, y).score(X, y) > 0.95
    inputs, targets = X[:, :2], X[:, 2:]
    linear = LinearRegression().fit(inputs, targets).score(inputs, targets)
    assert AdamRegressor(0).fit(inputs, targets).score(inputs, targets) > linear
    assert AdamRegressor(0).fit(X[:, :2], X[:, 2]).predict(X[:, :2]).shape == (150,)


@pytest.mark.parametrize("table", estimators.TABLES, ids=lambda table: table.name)
def test_tables_have_samples(table: Table, monkeypatch: pytest.MonkeyPatch) -> None:
    try:
        X, y = table.load()
    except DataError as error:
        assert "install lifted-bregman-lab with the extra 'race'" in str(error)
        pytest.skip("the package that carries it is not installed")
    assert len(X) == len(y) >= 20 and np.isfinite(X).all()
    assert (np.unique(y).size <= 11) if table.classify else y.dtype == float


def test_a_missing_package_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tables, "PACKAGE", "no_such_package")
    with pytest.raises(DataError, match=r"no_such_package is not installed, and contains the table vowel"):
        tables.vowel()


def test_folds_of_another_default_solver_are_not_mixed(tmp_path: Path, capsys: Capture) -> None:
    estimators.write_comparison(tmp_path / "estimators.json", comparison({"iris": (0.9, 0.8, 0.9)}))
    called = call(capsys, "bench", "estimators", "--out", tmp_path)
    assert called.code != 0 and "folds of the default solver Solver()" in called.err and "--fresh" in called.err
    assert call(capsys, "bench", "estimators", "--repetitions", "0").code == 2
