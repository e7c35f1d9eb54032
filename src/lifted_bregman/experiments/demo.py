"""The demonstration: a sparse autoencoder of 1,000 digits, trained lifted, by SGD and by Adam for the same time.

The set-up is that of the paper's Section 6.2: 784 units in every layer, ReLU around a soft-threshold code, α = 0.09 for
its threshold and its penalty, centred images, batches of 20.
"""

from __future__ import annotations

import math
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import torch
from pydantic import Field
from torch import Tensor

from lifted_bregman import data
from lifted_bregman.experiments import demo_folder
from lifted_bregman.experiments._checked import checked_fields
from lifted_bregman.experiments.build import build_problem
from lifted_bregman.experiments.demo_folder import NOT_TUNED, Demo, DemoRecord, MethodRecord
from lifted_bregman.experiments.environment import environment, load_average, threads
from lifted_bregman.experiments.settings import Settings
from lifted_bregman.experiments.solver_names import default_name
from lifted_bregman.problem import LiftedProblem
from lifted_bregman.problem.blocks import code_layer
from lifted_bregman.solvers import Callback, Outcome, Run
from lifted_bregman.training import fit
from lifted_bregman.training.callbacks import Progress, Timer

if TYPE_CHECKING:
    from rich.console import Console

SET = "mnist-5k-1k"
_ALPHA = 0.09
_BATCH_SIZE = 20
_HIDDEN = (784, 784, 784)
_RECORD_EVERY = 2  # epochs, so that evaluation takes little of the time
_MOST_EPOCHS = 10_000  # the time ends a run, not this
_USED = 0.95  # of the time is planned for the lifted run, whose rate ends at 0 with its last epoch
_CLASSES = 10


@dataclass(frozen=True)
class Method:
    """A training method of the demonstration.

    Args:
        key: the first part of its file names.
        name: its name in charts and tables.
        solver: its name on the command line.
        tuned: the setting that was chosen from a grid; all other settings have their defaults.  None if all have.
        value: the chosen value of that setting.
        grid: the values that were tried.
    """

    key: str
    name: str
    solver: str
    tuned: str | None = None
    value: float = math.nan
    grid: tuple[float, ...] = ()

    @property
    def chosen(self) -> dict[str, float]:
        """The tuned setting, as `lifted train` takes it; empty if none was tuned."""
        return {} if self.tuned is None else {self.tuned: self.value}


# The lifted method is what `fit` does by itself, and nothing of it was tuned.  Of each grid the value with the lowest
# training objective after 40 epochs, on average over the seeds 0 to 3, among those that diverged for none of them.
DEMO_METHODS = (
    Method("lifted", "lifted", default_name()),
    Method("sgd", "SGD", "sgd", "learning_rate", 5e-2, (1e-2, 2e-2, 5e-2, 1e-1, 2e-1)),
    Method("adam", "Adam", "adam", "learning_rate", 5e-4, (1e-4, 2e-4, 5e-4, 1e-3, 2e-3)),
)


@dataclass(frozen=True)
class DemoSettings:
    """The settings of a demonstration.

    Args:
        seconds: of training for each method, > 0; evaluation does not count.
        seed: of digits, initial weights and order of the samples, >= 0.
        threads: number of threads of torch, >= 1; None for torch's default.
        data_dir: a folder that holds data sets; None for the cache.
    """

    seconds: Annotated[float, Field(gt=0.0)] = 18.0
    seed: Annotated[int, Field(ge=0)] = 0
    threads: Annotated[int, Field(ge=1)] | None = None
    data_dir: Path | None = None

    def __post_init__(self) -> None:
        checked_fields(type(self), vars(self))

    def of_run(self, method: Method, epochs: int = _MOST_EPOCHS) -> Settings:
        """The settings by which `lifted train` makes the same run."""
        return Settings(
            data=SET,
            task="autoencode",
            prepare="centre",
            hidden=_HIDDEN,
            code_threshold=_ALPHA,
            code_penalty=_ALPHA,
            solver=method.solver,
            solver_settings=method.chosen,
            epochs=epochs,
            batch_size=_BATCH_SIZE,
            record_every=_RECORD_EVERY,
            seed=self.seed,
            time_limit=self.seconds,
        ).resolved()


def run_demo(settings: DemoSettings, out: Path, console: Console | None = None) -> Demo:
    """Trains with the three methods, one after the other, and stores their histories and pictures.

    Args:
        settings: time, seed, threads and data.
        out: a folder, made if it is missing; an earlier demonstration in it is replaced.
        console: where to show progress; None for nowhere.
    """
    # Digits (X, X), and the images whose reconstructions are shown
    started = time.monotonic()
    demo_folder.begin_demo(out, tuple(method.key for method in DEMO_METHODS))
    digits = data.load(SET, data_dir=settings.data_dir, seed=settings.seed).apply(data.Centre())
    (X, _), (X_validation, _) = digits.pairs("autoencode")
    shown = {"train": _one_of_each(digits.train), "validation": _one_of_each(digits.test)}
    pictures = {part: digits.preparation.undo(images) for part, images in shown.items()}
    records = []
    with threads(settings.threads):
        place = environment()
        for method in DEMO_METHODS:
            # Training: the solver and as many epochs as fit into the time; `_Rows` writes the history
            epochs = _MOST_EPOCHS if method.tuned else _affordable(settings, method, X)
            resolved = settings.of_run(method, epochs)
            problem = build_problem(resolved, X.shape[1], X.shape[1])
            callbacks: list[Callback] = [_Rows(out, method.key, X, X_validation), Timer(settings.seconds)]
            if console is not None:
                callbacks.append(Progress(console, title=method.name, time_limit=settings.seconds))
            solver = resolved.make_solver()
            result = fit(
                problem,
                (X, X),
                solver,
                epochs=resolved.epochs,
                batch_size=resolved.batch_size,
                seed=resolved.seed,
                validation=(X_validation, X_validation),
                record_every=resolved.record_every,
                callbacks=callbacks,
            )
            if result.outcome is Outcome.INTERRUPTED:
                raise KeyboardInterrupt
            # Reconstructions and codes of the shown images, and the record of this method
            pictures |= _pictures(problem, method.key, shown, digits.preparation)
            records.append(
                MethodRecord(
                    method.key,
                    method.name,
                    settings=", ".join((type(solver).__name__, *_written(method, " = "))),
                    solver=repr(solver),
                    grid=", ".join(f"{value:g}" for value in method.grid) or NOT_TUNED,
                    command=_command(settings, method, epochs),
                    load=load_average(),
                    outcome=result.outcome.name,
                    message=result.message,
                )
            )
    # The record of the demonstration, written last: a folder without it is incomplete
    record = DemoRecord(
        seconds=settings.seconds,
        seed=settings.seed,
        samples=len(X),
        validation_samples=len(X_validation),
        batch_size=_BATCH_SIZE,
        alpha=_ALPHA,
        source=digits.source,
        seconds_in_all=time.monotonic() - started,
        environment=place,
    )
    demo_folder.save_demo(out, record, tuple(records), pictures)
    return demo_folder.load_demo(out)


class _Rows(Callback):
    """Appends each row to the file of its method, with the error on the validation images.

    Row 0 is that of the untrained network.
    """

    def __init__(self, folder: Path, key: str, X: Tensor, X_validation: Tensor) -> None:
        self._folder, self._key, self._X, self._X_validation = folder, key, X, X_validation

    def started(self, run: Run) -> None:
        problem, X, X_validation = run.problem, self._X, self._X_validation
        code = problem.forward_state(X)[code_layer(problem.depth)]
        row = {
            "step": 0.0,
            "epoch": 0.0,
            "seconds": 0.0,
            "objective": float(problem.objective(X, X)),
            "sparsity": problem.sparsity(code),
            "validation": float(problem.objective(X_validation, X_validation)),
        }
        problem.work.reset()
        self.recorded(run, row)

    def recorded(self, run: Run, row: dict[str, float]) -> None:
        with torch.no_grad():
            difference = run.problem.model(self._X_validation) - self._X_validation
        row["validation_error"] = float(difference.square().mean())
        demo_folder.append_row(self._folder, self._key, row)


def _one_of_each(samples: data.Samples) -> Tensor:
    """The first sample of each class."""
    return torch.stack([samples.X[samples.labels == label][0] for label in range(_CLASSES)])


def _pictures(
    problem: LiftedProblem, key: str, shown: Mapping[str, Tensor], preparation: data.Preparation
) -> dict[str, Tensor]:
    with torch.no_grad():
        made = {f"{key}/{part}": preparation.undo(problem.model(X)) for part, X in shown.items()}
    return made | {f"{key}/codes": problem.forward_state(shown["validation"])[code_layer(problem.depth)]}


def _affordable(settings: DemoSettings, method: Method, X: Tensor) -> int:
    """The epochs that fit into the time, measured on one epoch of a copy.  The schedule of a run needs this number."""
    resolved = settings.of_run(method)
    problem = build_problem(resolved, X.shape[1], X.shape[1])
    solver, size = resolved.make_solver(), resolved.batch_size
    (row,) = fit(problem, (X, X), solver, epochs=1, batch_size=size, seed=resolved.seed).history
    return max(1, min(_MOST_EPOCHS, int(_USED * settings.seconds / row["seconds"])))


def _command(settings: DemoSettings, method: Method, epochs: int) -> str:
    """How `lifted train` makes the same run."""
    options = {
        "task": "autoencode",
        "data": SET,
        "prepare": "centre",
        "hidden": ",".join(map(str, _HIDDEN)),
        "solver": method.solver,
        "set": ",".join(_written(method, "=")),
        "epochs": epochs,
        "batch-size": _BATCH_SIZE,
        "record-every": _RECORD_EVERY,
        "time-limit": f"{settings.seconds:g}",
        "seed": settings.seed,
        "out": f"runs/{method.key}",
    }
    return "lifted train " + " ".join(f"--{name} {value}" for name, value in options.items() if value != "")


def _written(method: Method, equals: str) -> list[str]:
    return [f"{name}{equals}{value:g}" for name, value in method.chosen.items()]
