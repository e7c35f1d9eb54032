"""The studies, row by row; stored rows are not computed again."""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from sklearn.metrics import roc_auc_score  # type: ignore[import-untyped]

from lifted_bregman.experiments.environment import environment
from lifted_bregman.training.fit import default_solver
from lifted_bregman_lab.detection import classifier, problems
from lifted_bregman_lab.detection.detectors import (
    LIFTED,
    PACKAGE,
    PICTURE_DETECTORS,
    TABLE_DETECTORS,
    picture_detector,
    table_detector,
)
from lifted_bregman_lab.detection.results import Detection, Detections
from lifted_bregman_lab.packages import missing_packages
from lifted_bregman_lab.watching import Watch

STUDIES = ("pictures", "tables", "classifier")

Job = tuple[str, str, int, tuple[str, ...]]
"""Study, data, seed and the detectors without a row."""


def missing_rivals() -> tuple[str, ...]:
    """Return the packages of rivals that are not installed."""
    return missing_packages([PACKAGE])


def jobs(studies: Sequence[str], seeds: int, found: Detections) -> list[Job]:
    """Return the jobs that `found` lacks; rivals that are not installed are left out."""
    known = {(row.study, row.data, row.detector, row.seed) for row in found.rows}
    on_tables = (LIFTED,) if missing_rivals() else TABLE_DETECTORS
    planned = {
        "pictures": ([str(usual) for usual in problems.CLASSES], tuple(PICTURE_DETECTORS)),
        "tables": (problems.TABLES, on_tables),
        "classifier": ([classifier.PAIR], tuple(classifier.SCORES)),
    }
    wanted: list[Job] = []
    for study in studies:
        names, detectors = planned[study]
        for seed in range(seeds):
            for name in names:
                left = tuple(one for one in detectors if (study, name, one, seed) not in known)
                if left:
                    wanted.append((study, name, seed, left))
    return wanted


def detect(
    studies: Sequence[str],
    seeds: int,
    data_dir: Path | None = None,
    watch: Watch = lambda what, part: None,
    *,
    stored: Detections | None = None,
    keep: Callable[[Detections], None] = lambda found: None,
) -> Detections:
    """Compute the rows that `stored` lacks, and call `keep` after each problem."""
    found = stored or Detections(environment(), repr(default_solver()))
    left = jobs(studies, seeds, found)
    run = {"pictures": _pictures, "tables": _tables, "classifier": _classifier}
    for done, (study, name, seed, detectors) in enumerate(left):
        watch(f"{study}: {name}, seed {seed}", done / len(left))
        found = replace(found, rows=[*found.rows, *run[study](name, seed, detectors, data_dir)])
        keep(found)
    return found


def _pictures(name: str, seed: int, scores: Sequence[str], data_dir: Path | None) -> Iterator[Detection]:
    samples = problems.pictures(int(name), data_dir)
    start = time.process_time()
    detector = picture_detector(seed).fit(samples.train)
    fitted = time.process_time() - start
    for score in scores:
        start = time.process_time()
        values = PICTURE_DETECTORS[score](detector, samples.test)
        seconds = fitted + time.process_time() - start
        yield Detection("pictures", name, score, seed, _auroc(samples.abnormal, values), seconds)


def _tables(name: str, seed: int, detectors: Sequence[str], data_dir: Path | None) -> Iterator[Detection]:
    samples = problems.table_samples(name, seed, data_dir)
    for detector in detectors:
        with warnings.catch_warnings(), torch.random.fork_rng(devices=[]):
            warnings.simplefilter("ignore")  # PyOD's, of the packages that it uses
            start = time.process_time()
            fitted = table_detector(detector, seed).fit(samples.train)
            values = fitted.decision_function(samples.test)
            seconds = time.process_time() - start
        yield Detection("tables", name, detector, seed, _auroc(samples.abnormal, values), seconds)


def _classifier(name: str, seed: int, scores: Sequence[str], data_dir: Path | None) -> Iterator[Detection]:
    usual, other, score, fitted = classifier.prepare(seed, data_dir)
    abnormal = np.r_[np.zeros(len(usual)), np.ones(len(other))]
    for one in scores:
        start = time.process_time()
        values = torch.cat([score(one, usual), score(one, other)]).numpy()
        seconds = fitted + time.process_time() - start
        yield Detection("classifier", name, one, seed, _auroc(abnormal, values), seconds)


def _auroc(abnormal: Any, scores: Any) -> float:
    return float(roc_auc_score(abnormal, scores))
