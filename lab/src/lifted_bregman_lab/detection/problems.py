"""The problems: training and test samples of a detector."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from sklearn.model_selection import train_test_split  # type: ignore[import-untyped]
from sklearn.preprocessing import StandardScaler  # type: ignore[import-untyped]

from lifted_bregman import data

Array = NDArray[Any]

TABLES = tuple(data.TABLES)
LARGEST = 10_000
"""The most rows of a table; larger tables are sampled at random."""
TEST_PART = 0.3
CLASSES = tuple(range(10))


class DetectionSamples(NamedTuple):
    """Training samples, test samples, and the labels of the test samples."""

    train: Array
    """(samples, features); a table's include abnormal ones, pictures' do not."""
    test: Array
    """(samples, features)."""
    abnormal: Array
    """(test samples,), 1 for abnormal ones."""


def pictures(usual: int, data_dir: Path | None) -> DetectionSamples:
    """MNIST: the training images of one class, and all 10,000 test images, of which the other classes are abnormal."""
    mnist = data.load("mnist", data_dir=data_dir)
    train = mnist.train.X[mnist.train.y == usual].numpy()
    return DetectionSamples(train, mnist.test.X.numpy(), (mnist.test.y != usual).numpy().astype(int))


def table_samples(name: str, seed: int, data_dir: Path | None) -> DetectionSamples:
    """70 % of the rows to fit to, without labels, and 30 % to test on, abnormal ones in proportion, standardised."""
    X, y = data.load_table(name, data_dir=data_dir)
    if len(X) > LARGEST:
        kept = np.random.default_rng(seed).choice(len(X), LARGEST, replace=False)
        X, y = X[kept], y[kept]
    train, test, _, abnormal = train_test_split(X, y, test_size=TEST_PART, stratify=y, random_state=seed)
    scale = StandardScaler().fit(train)
    return DetectionSamples(scale.transform(train), scale.transform(test), abnormal)


def sets_of(studies: tuple[str, ...]) -> Iterator[str]:
    """Yield the names of the data sets that the studies need."""
    if "pictures" in studies or "classifier" in studies:
        yield "mnist"
    if "classifier" in studies:
        yield "fashion-mnist"
    if "tables" in studies:
        yield from TABLES
