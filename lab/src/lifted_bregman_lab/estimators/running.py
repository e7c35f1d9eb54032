"""The comparison, fold by fold: the competitors take turns, so that load on the machine affects all alike."""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any

from sklearn.model_selection import KFold, StratifiedKFold  # type: ignore[import-untyped]

from lifted_bregman.experiments.environment import environment
from lifted_bregman.training.fit import default_solver
from lifted_bregman_lab.estimators.competitors import COMPETITORS, competitor
from lifted_bregman_lab.estimators.results import Comparison, Fold
from lifted_bregman_lab.estimators.tables import Table
from lifted_bregman_lab.watching import Watch

FOLDS = 5


def compare(
    tables: Sequence[Table],
    repetitions: int,
    watch: Watch = lambda what, part: None,
    *,
    stored: Comparison | None = None,
    keep: Callable[[Comparison], None] = lambda comparison: None,
) -> Comparison:
    """Fit the folds that `stored` lacks, and call `keep` after each table and repetition."""
    found = stored or Comparison(environment(), repr(default_solver()))
    missing = missing_folds(tables, repetitions, found)
    for done, (table, repetition) in enumerate(missing):
        watch(f"{table.name}, repetition {repetition + 1}", done / len(missing))
        known = {fold.key for fold in found.folds}
        new = [fold for fold in _folds(table, repetition) if fold.key not in known]
        found = replace(found, folds=[*found.folds, *new])
        keep(found)
    return found


def missing_folds(tables: Sequence[Table], repetitions: int, stored: Comparison) -> list[tuple[Table, int]]:
    """Return table and repetition of each cross-validation that lacks a fold."""
    known = {fold.key for fold in stored.folds}
    return [
        (table, repetition)
        for repetition in range(repetitions)
        for table in tables
        if any((table.name, name, repetition, fold) not in known for name in COMPETITORS for fold in range(FOLDS))
    ]


def _folds(table: Table, repetition: int) -> Iterator[Fold]:
    """Fit every competitor on every fold; folds of a classification are stratified."""
    X, y = table.load()
    cut: Any = StratifiedKFold if table.classify else KFold
    for number, (train, test) in enumerate(cut(FOLDS, shuffle=True, random_state=repetition).split(X, y)):
        for name in COMPETITORS:
            estimator = competitor(name, table.classify, seed=FOLDS * repetition + number)
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # scikit-learn's networks say that 200 epochs were not enough
                start = time.process_time()
                estimator.fit(X[train], y[train])
                seconds = time.process_time() - start
                score = float(estimator.score(X[test], y[test]))
            yield Fold(table.name, name, repetition, number, score, seconds)
