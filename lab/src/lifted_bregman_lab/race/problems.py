"""The problems of the race: samples, network, batches and epochs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TypeVar

from lifted_bregman._arguments import whole
from lifted_bregman.errors import SettingError
from lifted_bregman.experiments._typed import unknown
from lifted_bregman.experiments.build import build_problem
from lifted_bregman.experiments.run_data import RunData, load_data
from lifted_bregman.experiments.settings import Settings
from lifted_bregman.problem import LiftedProblem
from lifted_bregman_lab.datasets import is_here

T = TypeVar("T")


@dataclass(frozen=True)
class RaceProblem:
    """One problem of the race.

    Args:
        name: for the command line.
        title: for readers.
        settings: data, network, batch size and epochs, as for `lifted train`; solver and seed are the race's.
        validation_samples: the first so many of the test part, >= 1; None for all.
        rows: evaluations in the time that the reference takes, >= 1.
        tuned_as: the name of the problem whose rates are taken; None for its own.
    """

    name: str
    title: str
    settings: Settings
    validation_samples: int | None = None
    rows: int = 50
    tuned_as: str | None = None

    def __post_init__(self) -> None:
        for name in ("validation_samples", "rows"):
            if getattr(self, name) is not None:
                whole(getattr(self, name), f"{name} of '{self.name}'")
        if self.settings.batch_size is None:
            raise SettingError(f"the settings of '{self.name}' have no batch_size: give the samples of a step.")

    @property
    def batch_size(self) -> int:
        """Samples of a step, unless a competitor was tuned to another number."""
        assert self.settings.batch_size is not None
        return self.settings.batch_size

    @property
    def epochs(self) -> int:
        """Passes over the data."""
        return self.settings.epochs

    @property
    def classify(self) -> bool:
        """Whether the validation error is that of classes; otherwise it is the mean squared error of the outputs."""
        return self.settings.task == "classify"

    def with_epochs(self, epochs: int) -> RaceProblem:
        """The same problem with another number of epochs."""
        return replace(self, settings=replace(self.settings, epochs=epochs))

    def load(self, seed: int, data_dir: Path | None = None) -> RunData:
        """The samples for this seed, which draws subsets; SettingError unless there are validation samples."""
        loaded = load_data(self._resolved(seed, data_dir))
        if loaded.validation is None:
            raise SettingError(f"'{self.name}' has no validation samples: leave validation at 'test'.")
        X, Y = loaded.validation
        return replace(loaded, validation=(X[: self.validation_samples], Y[: self.validation_samples]))

    def build(self, seed: int, samples: RunData) -> LiftedProblem:
        """The network with the initial weights of this seed, the same in every call."""
        return build_problem(self._resolved(seed, None), samples.inputs, samples.outputs)

    def _resolved(self, seed: int, data_dir: Path | None) -> Settings:
        folder = None if data_dir is None else str(data_dir)
        return replace(self.settings, seed=seed, data_dir=folder).resolved()


def _autoencoder(name: str, title: str, data: str, batch_size: int, alpha: float, held_out: int) -> RaceProblem:
    settings = Settings(data=data, task="autoencode", prepare="centre", hidden=(784,) * 3, epochs=50)
    settings = replace(settings, code_threshold=alpha, code_penalty=alpha, batch_size=batch_size)
    return RaceProblem(name, f"{title}, sparse autoencoder 784-784-784-784-784", settings, held_out)


def _classifier(name: str, title: str, data: str, hidden: tuple[int, ...], epochs: int) -> RaceProblem:
    settings = Settings(data=data, prepare="centre", hidden=hidden, loss="squared-error", epochs=epochs, batch_size=100)
    return RaceProblem(name, title, settings, rows=40)


_PAPER, _LAYERS = (784, 64, 64), "classifier 784-784-64-64-10"  # of the paper
_DEEP = "MNIST, 4,000 images, classifier of 20 layers, 784-64-...-64-10"
PROBLEMS: dict[str, RaceProblem] = {
    problem.name: problem
    for problem in (
        _autoencoder("fashion-1k", "Fashion-MNIST, 1,000 images", "fashion-mnist-1k", 20, 0.09, 1000),
        _autoencoder("mnist-1k", "MNIST, 1,000 images", "mnist-1k", 20, 0.09, 1000),
        _autoencoder("fashion-10k", "Fashion-MNIST, 10,000 images", "fashion-mnist-10k", 200, 0.055, 2000),
        _classifier("mnist-classify", f"MNIST, {_LAYERS}", "mnist", _PAPER, 20),
        _classifier("fashion-classify", f"Fashion-MNIST, {_LAYERS}", "fashion-mnist", _PAPER, 20),
        _classifier("deep-narrow", _DEEP, "mnist-5k", (64,) * 19, 50),
    )
}


def choose(names: Sequence[str], known: Mapping[str, T], what: str) -> tuple[T, ...]:
    """The values of these names, in this order; all if there are none.  SettingError for an unknown name."""
    for name in names:
        if name not in known:
            raise SettingError(unknown(what, name, known))
    return tuple(known[name] for name in dict.fromkeys(names or known))


def choose_problems(names: Sequence[str], epochs: int | None = None) -> tuple[RaceProblem, ...]:
    """The problems of these names, in this order; all if there are none."""
    chosen = choose(names, PROBLEMS, "problem of the race")
    return chosen if epochs is None else tuple(problem.with_epochs(epochs) for problem in chosen)


def quick_problems(data_dir: Path | None = None) -> tuple[RaceProblem, RaceProblem]:
    """An autoencoder of 1,000 images (Fashion-MNIST if it is on this machine) and a classifier of 10,000 digits."""
    autoencoder = PROBLEMS["fashion-1k" if is_here("fashion-mnist", data_dir) else "mnist-1k"]
    classifier = PROBLEMS["mnist-classify"]
    return (
        replace(autoencoder.with_epochs(15), rows=15),
        RaceProblem(
            "mnist-classify-10k",
            f"MNIST, 10,000 images, {_LAYERS}",
            replace(classifier.settings, data="mnist-10k", epochs=8),
            validation_samples=5000,
            rows=12,
            tuned_as=classifier.name,
        ),
    )
