"""Data of a run: files of one's own, their parts, their preparation, and new inputs prepared in the same way."""

from __future__ import annotations

import json
import warnings
from pathlib import Path

import numpy as np
import pytest
import torch
from sklearn.preprocessing import StandardScaler

from lifted_bregman import data
from lifted_bregman.errors import DataError
from lifted_bregman.experiments import RunData, Settings, load_data
from lifted_bregman.experiments.run_data import NewInputs
from lifted_bregman.experiments.scaling import Scaling
from lifted_bregman.experiments.tables import diabetes, read_table

X = np.random.default_rng(0).normal(size=(40, 3)) * [1.0, 20.0, 0.3] + [0.0, 5.0, -2.0]
KINDS = np.array(["ash", "birch", "oak"])[np.arange(40) % 3]


def loaded(**settings: object) -> RunData:
    return load_data(Settings(**{"dtype": "float64", **settings}).resolved())  # type: ignore[arg-type]


@pytest.fixture
def trees(tmp_path: Path) -> Path:
    """A table with headings and classes that have names."""
    lines = [f"{a!r},{kind},{b!r},{c!r}" for (a, b, c), kind in zip(X.tolist(), KINDS, strict=True)]
    path = tmp_path / "trees.csv"
    path.write_text("\n".join(["height,kind,girth,age", *lines]) + "\n")
    return path


def test_a_table_with_named_classes(trees: Path) -> None:
    table = read_table(trees, "kind", wanted=True, classes=True)
    np.testing.assert_array_equal(table.X, X)
    assert table.y is not None and table.y.tolist() == KINDS.tolist()
    assert table.columns == ("height", "girth", "age")
    run = loaded(data=str(trees), target="kind", validation="none", prepare="none")
    assert run.record["classes"] == ["ash", "birch", "oak"] and run.outputs == 3 and run.inputs == 3
    np.testing.assert_array_equal(run.train[0].numpy(), X)
    assert run.train[1].tolist() == (np.arange(40) % 3).tolist()
    assert run.validation is None


def test_the_last_column_is_the_target_unless_another_is_named(trees: Path) -> None:
    lines = [",".join(np.array(line.split(","))[[0, 2, 3]]) for line in trees.read_text().split()]
    path = trees.with_name("numbers.csv")
    path.write_text("\n".join(lines) + "\n")
    expected = {None: 2, "age": 2, "height": 0, "2": 1}
    for target, place in expected.items():
        table = read_table(path, target, wanted=True, classes=False)
        assert table.y is not None
        np.testing.assert_array_equal(table.y, X[:, place])
        np.testing.assert_array_equal(table.X, np.delete(X, place, 1))
    everything = read_table(path, None, wanted=False, classes=False)
    assert everything.y is None and everything.X.shape == (40, 3)


def test_a_table_without_headings(tmp_path: Path) -> None:
    path = tmp_path / "plain.csv"
    np.savetxt(path, X, delimiter=",", fmt="%.17g")
    table = read_table(path, "1", wanted=True, classes=False)
    assert table.y is not None and table.columns is None
    np.testing.assert_array_equal(table.y, X[:, 0])


@pytest.mark.parametrize("prepare", ["none", "centre", "standardise"])
def test_inputs_are_prepared_by_the_training_part(prepare: str, tmp_path: Path) -> None:
    path = tmp_path / "table.npz"
    np.savez(path, X=X, y=X[:, :2], X_test=X[:5] + 1.0, y_test=X[:5, :2])
    run = loaded(data=str(path), task="regress", prepare=prepare)
    scaler = StandardScaler(with_mean=prepare != "none", with_std=prepare == "standardise").fit(X)
    assert run.validation is not None
    np.testing.assert_allclose(run.train[0].numpy(), scaler.transform(X), rtol=1e-12)
    np.testing.assert_allclose(run.validation[0].numpy(), scaler.transform(X[:5] + 1.0), rtol=1e-12)
    targets = StandardScaler().fit(X[:, :2])
    np.testing.assert_allclose(run.train[1].numpy(), targets.transform(X[:, :2]), rtol=1e-12)
    np.testing.assert_allclose(run.validation[1].numpy(), targets.transform(X[:5, :2]), rtol=1e-12)
    new = NewInputs(run.record, "float64")
    np.save(tmp_path / "new.npy", X[3:9])
    np.testing.assert_allclose(new.read(tmp_path / "new.npy").numpy(), scaler.transform(X[3:9]), rtol=1e-12)
    np.testing.assert_allclose(new.targets(run.train[1]), X[:, :2], rtol=1e-12)
    np.testing.assert_allclose(new.images(run.train[0]), X, rtol=1e-12)


def test_a_constant_column_is_only_centred(tmp_path: Path) -> None:
    path = tmp_path / "table.npz"
    np.savez(path, X=np.c_[X, np.full(40, 7.0)], y=np.arange(40) % 2)
    run = loaded(data=str(path))
    assert bool((run.train[0][:, 3] == 0).all()) and bool(run.train[0].isfinite().all())


def test_pixels_are_divided_by_255(tmp_path: Path) -> None:
    images = np.arange(40 * 12, dtype=np.uint64).reshape(40, 3, 4).astype(np.uint8)
    np.save(tmp_path / "images.npy", images)
    run = loaded(data=str(tmp_path / "images.npy"), task="autoencode", prepare="none", validation="none")
    np.testing.assert_allclose(run.train[0].numpy(), images.reshape(40, 12) / 255.0, rtol=1e-15)
    assert run.train[1] is run.train[0] or torch.equal(*run.train)
    new = NewInputs(run.record, "float64")
    np.testing.assert_allclose(new.images(run.train[0]), images, rtol=1e-12)
    assert new.images(run.train[0]).shape == (40, 3, 4)
    np.save(tmp_path / "divided.npy", images[:7] / 255.0)
    np.testing.assert_allclose(new.read(tmp_path / "divided.npy").numpy(), run.train[0][:7].numpy(), rtol=1e-12)
    np.save(tmp_path / "one.npy", images[3])
    np.testing.assert_allclose(new.read(tmp_path / "one.npy").numpy(), run.train[0][3:4].numpy(), rtol=1e-12)
    np.save(tmp_path / "not divided.npy", images.astype(np.float64) + 0.25)
    with pytest.raises(DataError, match="divide them by 255"):
        new.read(tmp_path / "not divided.npy")


def test_a_fifth_is_held_out_by_seed(tmp_path: Path) -> None:
    path = tmp_path / "table.npz"
    np.savez(path, X=X, y=np.arange(40) % 2)
    run = loaded(data=str(path), prepare="none")
    assert run.validation is not None
    assert len(run.train[0]) == 32 and len(run.validation[0]) == 8
    together = np.concatenate([run.train[0].numpy(), run.validation[0].numpy()])
    np.testing.assert_array_equal(np.sort(together, 0), np.sort(X, 0))
    rows = {tuple(row): place % 2 for place, row in enumerate(X.tolist())}
    for part in (run.train, run.validation):
        assert [rows[tuple(row)] for row in part[0].tolist()] == part[1].tolist()
    again, other = loaded(data=str(path), prepare="none"), loaded(data=str(path), prepare="none", seed=1)
    assert torch.equal(again.train[0], run.train[0]) and not torch.equal(other.train[0], run.train[0])
    half = loaded(data=str(path), prepare="none", validation=0.5)
    assert len(half.train[0]) == 20


def test_a_fraction_of_a_named_set_comes_out_of_its_training_part() -> None:
    digits = data.load("digits", dtype=torch.float64)
    run = loaded(data="digits", prepare="none", validation=0.1)
    assert run.validation is not None
    assert (
        len(run.validation[0]) == round(0.1 * len(digits.train)) and len(run.train[0]) + len(run.validation[0]) == 1433
    )
    together = torch.cat([run.train[0], run.validation[0]])
    assert torch.equal(together.sum(0), digits.train.X.sum(0))
    whole = loaded(data="digits", prepare="none")
    assert whole.validation is not None
    assert torch.equal(whole.train[0], digits.train.X) and torch.equal(whole.validation[0], digits.test.X)
    assert loaded(data="digits", validation="none").validation is None


def test_noise_is_added_to_the_inputs_alone(tmp_path: Path) -> None:
    clean = np.random.default_rng(1).uniform(size=(500, 20))
    np.save(tmp_path / "a.npy", clean)
    for name, prepare in ((str(tmp_path / "a.npy"), "none"), ("digits", "none")):
        run = loaded(data=name, task="denoise", noise=0.25, prepare=prepare, validation="none")
        noise = (run.train[0] - run.train[1]).flatten()
        assert abs(float(noise.std()) - 0.25) < 0.01 and abs(float(noise.mean())) < 0.01
    run = loaded(data=str(tmp_path / "a.npy"), task="denoise", prepare="none", validation="none")
    np.testing.assert_array_equal(run.train[1].numpy(), clean)


def test_a_named_set_is_centred_and_comes_back() -> None:
    digits = data.load("digits", dtype=torch.float64)
    run = loaded(data="digits")
    mean = digits.train.X.numpy().mean(0)
    np.testing.assert_allclose(run.train[0].numpy(), digits.train.X.numpy() - mean, atol=1e-15)
    np.testing.assert_allclose(NewInputs(run.record, "float64").images(run.train[0]), digits.train.X.reshape(-1, 8, 8))
    assert run.record["classes"] == [str(digit) for digit in range(10)]


def test_the_diabetes_table_has_442_samples_of_10_features() -> None:
    table = diabetes()
    run = loaded(data="diabetes", task="regress", validation="none")
    assert run.train[0].shape == (442, 10) and run.train[1].shape == (442, 1)
    np.testing.assert_allclose(NewInputs(run.record, "float64").targets(run.train[1])[:, 0], table.y, rtol=1e-12)
    assert table.columns is not None and "bmi" in table.columns


def test_a_record_that_is_no_record() -> None:
    for record in ({}, {"classes": None, "inputs": 3, "outputs": 1, "kind": "table"}, {"classes": 3}):
        with pytest.raises(DataError, match="record of the data"):
            NewInputs(record, "float32")


def test_numbers_in_an_archive_are_never_unpickled(tmp_path: Path) -> None:
    path = tmp_path / "a.npz"
    np.savez(path, X=np.array([{"a": 1}], dtype=object), y=np.ones(1))
    with pytest.raises(DataError, match=r"the array 'X' of .*a.npz"):
        read_table(path, None, wanted=True, classes=True)


def test_whole_numbers_are_raw_pixels_also_where_text_made_them_decimal(tmp_path: Path) -> None:
    pixels = np.arange(12, dtype=np.uint8).reshape(4, 3) * 9
    scaling = Scaling.fit(pixels, "centre", "float64")
    assert scaling.divisor == 255.0
    expected = pixels / 255.0 - (pixels / 255.0).mean(0)
    for given in (pixels, pixels.astype(np.float64), pixels / 255.0):
        np.testing.assert_allclose(scaling(given).numpy(), expected, rtol=0, atol=1e-15)
    np.testing.assert_allclose(scaling(np.eye(3)).numpy(), np.eye(3) - (pixels / 255.0).mean(0), atol=1e-15)


def test_whole_zeros_and_ones_for_a_run_of_raw_pixels_are_the_ends_of_the_scale_and_that_is_said() -> None:
    scaling = Scaling.fit(np.arange(12, dtype=np.uint8).reshape(4, 3) * 20, "none", "float64")
    binary = np.eye(3, dtype=np.uint8)
    with pytest.warns(RuntimeWarning, match=r"only 0 and 1.*divide them by 255"):
        found = scaling(binary)
    np.testing.assert_array_equal(found.numpy(), binary)


@pytest.mark.parametrize(
    ("trained", "given", "said"),
    [
        pytest.param(np.eye(3, dtype=np.uint8), np.eye(3, dtype=np.uint8) * 255, "go up to 255", id="binary, raw"),
        pytest.param(np.linspace(0, 1, 9).reshape(3, 3), np.eye(3) * 199.5, "go up to 199.5", id="divided, raw"),
        pytest.param(np.eye(3) * 255, np.eye(3) / 2, "from 0 to 0.5", id="raw, divided"),
        pytest.param(np.eye(3, dtype=np.uint8), np.eye(3), None, id="binary, binary"),
        pytest.param(np.linspace(0, 1, 9).reshape(3, 3), np.eye(3) * 2.5, None, id="divided, noisy"),
        pytest.param(np.eye(3) * 255, np.eye(3), None, id="raw, black"),
        pytest.param(X, X * 50.0, None, id="a table"),
    ],
)
def test_new_inputs_on_another_scale_than_the_training_data_are_warned_of(
    tmp_path: Path, trained: np.ndarray, given: np.ndarray, said: str | None
) -> None:
    """Without a divisor in the record the inputs are taken as they are; the record says from where to where."""
    np.save(tmp_path / "trained.npy", trained)
    np.save(tmp_path / "given.npy", given)
    run = loaded(data=str(tmp_path / "trained.npy"), task="autoencode", prepare="none", validation="none")
    record = json.loads(json.dumps(run.record))
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        found = NewInputs(record, "float64").read(tmp_path / "given.npy")
    np.testing.assert_array_equal(found.numpy(), given)
    assert len(told) == (said is not None)
    assert said is None or said in str(told[0].message)
    del record["scaling"]["low"], record["scaling"]["high"], record["scaling"]["whole"]  # as older runs have it
    assert NewInputs(record, "float64").read(tmp_path / "given.npy").equal(found)


@pytest.mark.parametrize("start", [0, 1])
def test_a_first_line_that_counts_the_columns_is_warned_of(tmp_path: Path, start: int) -> None:
    path = tmp_path / "pandas.csv"
    heading = ",".join(str(start + number) for number in range(3))
    path.write_text(heading + "\n0.5,1.5,2.5\n")
    with pytest.warns(RuntimeWarning, match=r"the numbers of its columns.*header=False"):
        assert read_table(path, None, wanted=False, classes=False).X.shape == (2, 3)
    for harmless in ("0,2,1", "0,1", "1,2,3.5"):
        path.write_text(harmless + "\n")
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            read_table(path, None, wanted=False, classes=False)


def test_large_labels_keep_all_their_digits(tmp_path: Path) -> None:
    path = tmp_path / "labels.npz"
    np.savez(path, X=X, y=np.arange(len(X)) % 2 + 1_000_001)
    assert loaded(data=str(path), task="classify").record["classes"] == ["1000001", "1000002"]
