"""Transforms against NumPy, the pairs of each task, and images prepared as in training."""

import numpy as np
import pytest
import torch

from lifted_bregman import data
from lifted_bregman.data import Centre, Noise, OneHot, Preparation, Samples, Scale, Subset, Unflatten
from lifted_bregman.errors import DataError, SettingError, TensorError
from tests.data.tiny import arrays, put, tiny

F32, F64 = torch.float32, torch.float64


@pytest.fixture(params=[F32, F64], ids=["float32", "float64"])
def tinies(request, tmp_path):
    _, files = tiny()
    return data.load("tiny", data_dir=put(tmp_path / "tiny", files).parent, dtype=request.param)


def pixels(dtype):
    X, _, X_test, _ = arrays()
    return (images.reshape(len(images), 12).astype(dtype) / dtype(255) for images in (X, X_test))


def close(found, expected, dtype):
    np.testing.assert_allclose(found.numpy(), expected, rtol=0, atol=1e-6 if dtype == F32 else 1e-14)


def test_centre_subtracts_the_mean_of_the_training_part_from_both_parts(tinies):
    dtype = tinies.train.X.dtype
    X, X_test = pixels(np.float64)
    found = tinies.apply(Centre())
    close(found.train.X, X - X.mean(0), dtype)
    close(found.test.X, X_test - X.mean(0), dtype)
    assert abs(float(found.train.X.mean())) < 1e-6 < abs(float(found.test.X.mean()))
    (fitted,) = found.transforms
    np.testing.assert_allclose(fitted.mean, X.mean(0), rtol=1e-7)
    assert tinies.transforms == () and float(tinies.train.X.min()) >= 0  # the set itself stays as it was
    close(fitted.undo(found.train.X), X, dtype)
    assert found.train.y.equal(tinies.train.y) and repr(fitted) == "Centre(mean of 12 features)"


def test_centring_together_subtracts_one_number_from_all_pixels(tinies):
    dtype = tinies.train.X.dtype
    X, X_test = pixels(np.float64)
    found = tinies.apply(Centre(together=True))
    close(found.train.X, X - X.mean(), dtype)
    close(found.test.X, X_test - X.mean(), dtype)
    (fitted,) = found.transforms
    np.testing.assert_allclose(fitted.mean, [X.mean()], rtol=1e-7)
    close(fitted.undo(found.train.X), X, dtype)
    assert (repr(fitted), repr(Centre(together=True))) == ("Centre(one mean)", "Centre(together=True)")
    prepared = Preparation.from_record(found.record())
    close(prepared(arrays()[0]), X - X.mean(), dtype)


def test_the_mean_is_that_of_the_subset_that_is_trained_on(tinies):
    found = tinies.apply(Subset(4), Centre())
    np.testing.assert_allclose(found.train.X.double().mean(0).numpy(), np.zeros(12), atol=1e-7)
    assert not torch.allclose(found.test.X, tinies.apply(Centre()).test.X, atol=1e-3)
    other = tinies.apply(Centre(), Subset(4))
    assert torch.allclose(other.test.X, tinies.apply(Centre()).test.X)


def test_noise_is_gaussian_of_the_level_and_the_clean_inputs_are_kept(tmp_path):
    _, files = tiny(samples=(5000, 2500))
    folder = put(tmp_path / "tiny", files).parent
    clean = data.load("tiny", data_dir=folder)
    noisy = clean.apply(Noise(0.3))
    parts = []
    for before, after in ((clean.train, noisy.train), (clean.test, noisy.test)):
        assert after.clean.equal(before.X) and after.y.equal(before.y)
        parts.append(((after.X - before.X).double() / 0.3).numpy().ravel())
        e = parts[-1]
        n = len(e)
        assert abs(e.mean()) < 5 / np.sqrt(n) and abs(e.std() - 1) < 5 / np.sqrt(2 * n)
        assert abs((e**4).mean() - 3) < 5 * np.sqrt(96 / n)  # the fourth moment tells a Gaussian from a uniform
        assert abs(np.corrcoef(e[:-1], e[1:])[0, 1]) < 5 / np.sqrt(n)
    whole = parts[0].reshape(5000, 12)
    for start in range(1000, 5000, 1000):  # no block of noise comes twice
        assert abs(np.corrcoef(whole[:1000].ravel(), whole[start : start + 1000].ravel())[0, 1]) < 0.05
    assert abs(np.corrcoef(parts[0][:12_000], parts[1][:12_000])[0, 1]) < 0.05
    assert clean.apply(Noise(0.3)).train.X.equal(noisy.train.X)
    assert not clean.apply(Noise(0.3, seed=1)).train.X.equal(noisy.train.X)
    double = data.load("tiny", data_dir=folder, dtype=F64).apply(Noise(0.3))
    assert torch.allclose(double.train.X.float(), noisy.train.X, atol=1e-6)
    twice = noisy.apply(Noise(0.1, seed=9))
    assert twice.train.clean.equal(clean.train.X) and not twice.train.X.equal(noisy.train.X)


def test_centring_after_noise_moves_the_clean_inputs_too(tinies):
    found = tinies.apply(Noise(0.3), Centre())
    mean = torch.tensor(found.transforms[1].mean, dtype=F64)
    assert torch.allclose(found.train.clean.double(), tinies.train.X.double() - mean, atol=1e-6)
    assert torch.allclose(found.train.X.double().mean(0), torch.zeros(12, dtype=F64), atol=1e-6)


def test_scale_and_unflatten(tinies):
    X, X_test = pixels(np.float64)
    found = tinies.apply(Scale(-1, 3), Unflatten((1, 3, 4)))
    close(found.test.X, (-1 + 4 * X_test).reshape(5, 1, 3, 4), tinies.train.X.dtype)
    noisy = tinies.apply(Noise(0.1), Scale(-1, 3), Unflatten((3, 4)))
    close(noisy.train.clean, (-1 + 4 * X).reshape(12, 3, 4), tinies.train.X.dtype)
    assert noisy.train.X.shape == (12, 3, 4)


def test_one_hot(tinies):
    found = tinies.apply(OneHot())
    _, y, _, y_test = arrays()
    for part, labels in ((found.train, y), (found.test, y_test)):
        np.testing.assert_array_equal(part.y.numpy(), np.eye(3)[labels])
        assert part.y.dtype == tinies.train.X.dtype
        np.testing.assert_array_equal(part.labels.numpy(), labels)
    assert found.transforms == (OneHot(3),)
    assert tinies.apply(OneHot(5)).train.y.shape == (12, 5)


def test_the_pairs_of_each_task(tinies):
    _, y, _, _ = arrays()
    noisy = tinies.apply(Noise(0.3))
    (X, Y), (X_test, Y_test) = tinies.pairs("classify")
    assert X is tinies.train.X and Y is tinies.train.y and X_test is tinies.test.X and Y_test is tinies.test.y
    X, Y = tinies.train.pair("regress")
    assert X is tinies.train.X and Y.dtype == X.dtype
    np.testing.assert_array_equal(Y.numpy(), y[:, None])
    np.testing.assert_array_equal(tinies.apply(OneHot()).train.pair("regress")[1].numpy(), np.eye(3)[y])
    X, Y = noisy.train.pair("autoencode")
    assert X is noisy.train.X and Y is X
    X, Y = noisy.test.pair("denoise")
    assert X is noisy.test.X and Y.equal(tinies.test.X)
    with pytest.raises(DataError, match=r"apply Noise\(level\) to the set first"):
        tinies.pairs("denoise")
    with pytest.raises(DataError, match="must be one of classify, regress, autoencode, denoise"):
        tinies.pairs("cluster")


def test_a_subset_of_noisy_samples_keeps_each_with_its_own(tinies):
    noisy = tinies.apply(Noise(0.3), OneHot())
    part = noisy.apply(Subset(5)).train
    for x, y, clean in zip(part.X, part.y, part.clean, strict=True):
        (place,) = (noisy.train.X == x).all(1).nonzero()[0].tolist()
        assert noisy.train.y[place].equal(y) and noisy.train.clean[place].equal(clean)


@pytest.mark.parametrize(
    "make",
    [
        lambda: Subset(0),
        lambda: Subset(2.0),
        lambda: Subset(True),
        lambda: Subset(1, seed=-1),
        lambda: Noise(0),
        lambda: Noise(float("nan")),
        lambda: Noise("0.1"),
        lambda: Noise(0.1, seed=1.5),
        lambda: Scale(1, 1),
        lambda: Scale(0, float("inf")),
        lambda: Unflatten((2, 0)),
        lambda: OneHot(0),
        lambda: Centre((1.0, float("nan"))),
        lambda: Centre((1.0, 2.0), together=True),
    ],
)
def test_settings_out_of_range_are_refused(make):
    with pytest.raises(SettingError):
        make()


def test_what_does_not_fit_the_set_is_refused(tinies):
    with pytest.raises(DataError, match="has 12: ask for at most"):
        tinies.apply(Subset(13))
    with pytest.raises(DataError, match=r"an image of \(3, 4\)"):
        tinies.apply(Unflatten((5, 5)))
    with pytest.raises(DataError, match="'tiny' has 3"):
        tinies.apply(OneHot(2))
    with pytest.raises(DataError, match="has 2 numbers"):
        tinies.apply(Centre((0.0, 1.0)))
    with pytest.raises(SettingError, match="apply it to a set first"):
        Centre().inputs(tinies.train.X)
    with pytest.raises(TensorError, match="one label and one clean input"):
        Samples(torch.zeros(3, 2), torch.zeros(2))
    with pytest.raises(TensorError, match="one label and one clean input"):
        Samples(torch.zeros(3, 2), torch.zeros(3), torch.zeros(3, 1))


# images prepared as in training


def test_raw_images_become_what_the_network_was_trained_on(tinies):
    found = tinies.apply(Subset(9), Scale(-1, 1), Centre(), Unflatten((1, 3, 4)), Noise(0.2), OneHot())
    X, *_ = arrays()
    kept = found.train.clean
    prepare = Preparation.from_record(found.record())
    for raw in (
        X,
        X.reshape(12, 12),
        X.reshape(12, 1, 3, 4),
        X.astype(np.int64),
        X.astype(np.float64),
        torch.from_numpy(X),
    ):
        ready = prepare(raw)
        assert ready.dtype == tinies.train.X.dtype and ready.shape == (12, 1, 3, 4)
        places = [
            int((ready == row).flatten(1).all(1).nonzero()[0]) for row in kept
        ]  # each clean sample is one of them
        assert len(set(places)) == 9
    assert prepare(X[3]).equal(prepare(X)[3:4])
    assert torch.allclose(prepare(X / 255.0), prepare(X), atol=1e-6)
    np.testing.assert_allclose(prepare.undo(prepare(X)).numpy(), X / 255.0, atol=1e-6)
    assert found.preparation == prepare


def test_images_of_another_shape_type_or_scale_are_refused(tinies):
    prepare = tinies.preparation
    for images, said in (
        (np.zeros((2, 5)), r"shape \(2, 5\); expected \(samples, 12\) or \(samples, 3, 4\)"),
        (np.zeros((2, 5, 3)), r"\(samples, 3, 4\), as in training: scale or crop them to that size\.$"),
        (np.zeros((2, 3, 3, 4)), r"convert them from colour \(3 channels\) to grey \(1 channel\)\.$"),
        (
            np.zeros((2, 3, 4, 3)),
            r"put the channels first by X\.transpose\(0, 3, 1, 2\) and convert them from colour \(3 channels\) to grey",
        ),
        (np.zeros((0, 12)), "shape"),
        (np.zeros(()), "shape"),
        (np.full((2, 12), 256), "go from 256 to 256; expected raw pixels from 0 to 255"),
        (np.full((2, 12), -1), "go from -1"),
        (np.full((2, 12), 254.5), "divide them by 255"),
        (np.full((2, 12), 256.0), "go from 256 to 256; expected raw pixels from 0 to 255"),
        (np.full((2, 12), "a"), "expected numbers"),
        (np.array([[0.0] * 12, [np.nan] * 12]), "image 1 holds NaN"),
    ):
        with pytest.raises(DataError, match=said):
            prepare(images)
    assert prepare(np.full((2, 12), 1.7)).max() == torch.tensor(1.7, dtype=tinies.train.X.dtype)  # noisy, not raw
    assert prepare(np.ones((1, 12), bool)).eq(1).all()


def test_integer_zeros_and_ones_are_pixels_from_0_to_1_with_a_warning(tinies):
    """Raw pixels of at most 1 in 255 would be black; zeros alone mean the same on both scales."""
    prepare = tinies.preparation
    binary = (arrays()[0] > 127).astype(np.uint8)
    with pytest.warns(RuntimeWarning, match=r"only 0 and 1.*scale from 0 to 1.*divide them by 255"):
        found = prepare(binary)
    close(found, binary.reshape(12, 12), tinies.train.X.dtype)
    assert prepare(binary.astype(bool)).equal(found) and prepare(binary.astype(np.float32)).equal(found)
    assert prepare(np.zeros((2, 12), np.uint8)).eq(0).all()
