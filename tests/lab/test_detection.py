"""`lifted bench detection`: what is missing, what is stored, what follows from the rows, and the protocol of tables."""

import numpy as np
import pytest

from lifted_bregman.errors import CheckpointError
from lifted_bregman_lab.detection import Detection, Detections, problems, read_detections, summary, write_detections
from lifted_bregman_lab.detection.detectors import TABLE_DETECTORS
from lifted_bregman_lab.detection.running import jobs


def rows(study, data, aurocs, seed=0):
    return [Detection(study, data, name, seed, value, 0.1) for name, value in aurocs.items()]


def test_ranks_are_means_over_tables_and_equal_scores_share_them():
    first = dict(zip(TABLE_DETECTORS, (0.9, 0.8, 0.7, 0.6, 0.5, 0.4, 0.3), strict=True))
    second = dict(zip(TABLE_DETECTORS, (0.5, 0.9, 0.9, 0.6, 0.4, 0.3, 0.2), strict=True))
    found = Detections(
        {}, "", [*rows("tables", problems.TABLES[0], first), *rows("tables", problems.TABLES[1], second)]
    )
    ranks = summary.ranked(found)
    assert [ranks[name] for name in TABLE_DETECTORS] == [2.5, 1.75, 2.25, 3.5, 5.0, 6.0, 7.0]
    assert "number 3 of 7, with 2.50; the middle is 4." in summary.verdict(found)
    alike = Detections({}, "", rows("tables", problems.TABLES[0], first | {TABLE_DETECTORS[1]: 0.9}))
    assert f"number 1 of 7, equal to {TABLE_DETECTORS[1]}, with 1.50; the middle is 4." in summary.verdict(alike)
    header, table = summary.table_rows(found)
    assert header[1] == "lifted" and table[0][1] == "90.0" and table[2][:2] == ("mean", "70.0")


def test_what_is_stored_is_read_again_and_not_computed_again(tmp_path):
    stored = Detections({"torch": "2"}, "solver", rows("pictures", "3", {"all energies": 0.97}))
    write_detections(tmp_path / "detection.json", stored)
    assert read_detections(tmp_path / "detection.json") == stored
    left = jobs(["pictures"], 1, stored)
    assert len(left) == 10 and ("pictures", "3", 0, ("reconstruction error", "output's energy")) in left
    (tmp_path / "other.json").write_text("{}")
    with pytest.raises(CheckpointError, match="is not what 'lifted bench detection' writes"):
        read_detections(tmp_path / "other.json")


def test_tables_are_divided_in_proportion_and_standardised(monkeypatch):
    generator = np.random.default_rng(0)
    X, y = generator.normal(3.0, 2.0, (12_000, 4)), (np.arange(12_000) % 10 == 0).astype(int)
    monkeypatch.setattr("lifted_bregman.data.load_table", lambda name, data_dir: (X, y))
    samples = problems.table_samples("any", 0, None)
    assert samples.train.shape == (7000, 4) and samples.test.shape == (3000, 4)
    assert abs(samples.abnormal.mean() - 0.1) < 0.01
    np.testing.assert_allclose(samples.train.mean(0), 0.0, atol=1e-12)
    np.testing.assert_allclose(samples.train.std(0), 1.0)
