"""The estimators' defaults against other networks with theirs: twelve tables, by 5-fold cross-validation."""

from lifted_bregman_lab.estimators.competitors import COMPETITORS
from lifted_bregman_lab.estimators.results import Comparison, Fold, read_comparison, write_comparison
from lifted_bregman_lab.estimators.running import compare, missing_folds
from lifted_bregman_lab.estimators.tables import TABLES, Table

__all__ = [
    "COMPETITORS",
    "TABLES",
    "Comparison",
    "Fold",
    "Table",
    "compare",
    "missing_folds",
    "read_comparison",
    "write_comparison",
]
