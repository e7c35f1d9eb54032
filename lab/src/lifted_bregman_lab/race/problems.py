"""The problems of the race: which samples, which network, which batches, for how many epochs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from lifted_bregman import data
from lifted_bregman.data.naming import parse
from lifted_bregman.errors import SettingError
from lifted_bregman.experiments._typed import unknown
from lifted_bregman.experiments.build import build_problem
from lifted_bregman.experiments.run_data import Pair, load_data
from lifted_bregman.experiments.settings import Settings
from lifted_bregman.problem import LiftedProblem


@dataclass(frozen=True, eq=False)
class RaceData:
    """What one repetition trains on and is judged by.

    Args:
        train: (X, Y).
        validation: (X, Y) of samples that are not trained on.
        outputs: of the network.
        source: a sentence that says where the samples came from.
    """

    train: Pair
    validation: Pair
    outputs: int
    source: str


@dataclass(frozen=True)
class RaceProblem:
    """One problem of the race.

    Args:
        name: as it is chosen on the command line.
        title: as people read it.
        settings: data, network, batch size and epochs, as `lifted train` takes them; solver and seed are the race's.
        validation_samples: the first so many of the test part, >= 1; None for all.
        rows: evaluations in the time that the reference takes, >= 1.
        tuned_as: the problem whose rates are taken; its own if None.
    """

    name: str
    title: str
    settings: Settings
    validation_samples: int | None = None
    rows: int = 50
    tuned_as: str | None = None

    def __post_init__(self) -> None:
        for name in ("validation_samples", "rows"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise SettingError(f"{name} of '{self.name}' is {value!r}; it must be a whole number of at least 1.")
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

    @property
    def rates_name(self) -> str:
        """The name under which its rates are found."""
        return self.tuned_as or self.name

    def with_epochs(self, epochs: int) -> RaceProblem:
        """The same problem with another number of epochs."""
        return replace(self, settings=replace(self.settings, epochs=epochs))

    def load(self, seed: int, data_dir: Path | None = None) -> RaceData:
        """The samples of the repetition with this seed, which draws subsets."""
        settings = self._resolved(seed, data_dir)
        loaded = load_data(settings)
        if loaded.validation is None:
            raise SettingError(f"'{self.name}' has no validation samples: leave validation at 'test'.")
        X, Y = (part[: self.validation_samples] for part in loaded.validation)
        return RaceData(loaded.train, (X, Y), loaded.outputs, loaded.source)

    def build(self, seed: int, samples: RaceData) -> LiftedProblem:
        """The network with the initial weights of this seed, the same in every call."""
        return build_problem(self._resolved(seed, None), samples.train[0].shape[1], samples.outputs)

    def _resolved(self, seed: int, data_dir: Path | None) -> Settings:
        folder = None if data_dir is None else str(data_dir)
        return replace(self.settings, seed=seed, data_dir=folder).resolved()


def _autoencoder(name: str, title: str, samples: str, batch_size: int, alpha: float, held_out: int) -> RaceProblem:
    settings = Settings(
        data=samples,
        task="autoencode",
        prepare="centre",
        hidden=(784, 784, 784),
        code_threshold=alpha,
        code_penalty=alpha,
        epochs=50,
        batch_size=batch_size,
    )
    return RaceProblem(name, title, settings, held_out)


def _classifier(
    name: str, title: str, samples: str, hidden: tuple[int, ...], epochs: int, rows: int = 40
) -> RaceProblem:
    settings = Settings(
        data=samples, prepare="centre", hidden=hidden, loss="squared-error", epochs=epochs, batch_size=100
    )
    return RaceProblem(name, title, settings, rows=rows)


_SPARSE = "sparse autoencoder 784-784-784-784-784"
_PAPER = (784, 64, 64)  # hidden layers of the paper's classifier
PROBLEMS: dict[str, RaceProblem] = {
    problem.name: problem
    for problem in (
        _autoencoder("fashion-1k", f"Fashion-MNIST, 1,000 images, {_SPARSE}", "fashion-mnist-1k", 20, 0.09, 1000),
        _autoencoder("mnist-1k", f"MNIST, 1,000 images, {_SPARSE}", "mnist-1k", 20, 0.09, 1000),
        _autoencoder("fashion-10k", f"Fashion-MNIST, 10,000 images, {_SPARSE}", "fashion-mnist-10k", 200, 0.055, 2000),
        _classifier("mnist-classify", "MNIST, classifier 784-784-64-64-10", "mnist", _PAPER, 20),
        _classifier("fashion-classify", "Fashion-MNIST, classifier 784-784-64-64-10", "fashion-mnist", _PAPER, 20),
        _classifier(
            "deep-narrow",
            "MNIST, 4,000 images, classifier of 20 layers, 784-64-...-64-10",
            "mnist-5k",
            (64,) * 19,
            50,
        ),
    )
}


def choose_problems(names: Sequence[str], epochs: int | None = None) -> tuple[RaceProblem, ...]:
    """The problems of these names, in this order; all if there are none."""
    for name in names:
        if name not in PROBLEMS:
            raise SettingError(unknown("problem of the race", name, PROBLEMS))
    chosen = [PROBLEMS[name] for name in dict.fromkeys(names)] or list(PROBLEMS.values())
    return tuple(chosen if epochs is None else (problem.with_epochs(epochs) for problem in chosen))


def fetch_missing(
    problems: Sequence[RaceProblem], data_dir: Path | None = None, progress: data.Progress | None = None
) -> None:
    """Downloads the sets that are not on this machine, so that nothing is missing once the race has begun."""
    for name in dict.fromkeys(problem.settings.data for problem in problems):
        if not _is_here(name, data_dir):
            data.load(name, data_dir=data_dir, progress=progress)


def quick_problems(data_dir: Path | None = None) -> tuple[RaceProblem, RaceProblem]:
    """An autoencoder of 1,000 images, of clothes if they are on this machine, and a classifier of 10,000 digits."""
    autoencoder = PROBLEMS["fashion-1k" if _is_here("fashion-mnist", data_dir) else "mnist-1k"]
    classifier = PROBLEMS["mnist-classify"]
    return (
        replace(autoencoder.with_epochs(15), rows=15),
        RaceProblem(
            "mnist-classify-10k",
            "MNIST, 10,000 images, classifier 784-784-64-64-10",
            replace(classifier.settings, data="mnist-10k", epochs=8),
            validation_samples=5000,
            rows=12,
            tuned_as=classifier.name,
        ),
    )


def _is_here(name: str, data_dir: Path | None) -> bool:
    info, _ = parse(name)
    return data.whereabouts(info, data_dir).startswith("in ")
