"""The settings of a run of the command line: typed, checked before any work, with every default in this one place."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Any, get_args, get_type_hints

from lifted_bregman.data import TASKS, Task
from lifted_bregman.distributed import Parallel
from lifted_bregman.errors import CompatibilityError, SettingError
from lifted_bregman.experiments import solver_names, specs
from lifted_bregman.experiments._typed import typed

AUTOENCODERS = ("autoencode", "denoise")
TABLES = ("diabetes",)  # named data that are tables of numbers, not images
DTYPES = ("float32", "float64")
INITIALISATIONS = ("glorot", "torch")
LOSSES = ("cross-entropy", "squared-error")
PREPARATIONS = ("none", "centre", "centre-together", "standardise")
VALIDATIONS = ("test", "none")

HIDDEN: dict[str, tuple[int, ...]] = {
    "classify": (64, 64),
    "regress": (64, 64),
    "autoencode": (128, 64, 128),
    "denoise": (128, 64, 128),
}
CODE = 0.09  # the paper's, for the threshold and for the penalty of the code
NOISE = 0.3
BATCH_SIZE = 100
_POSITIVE = ("noise", "tolerance", "time_limit", "checkpoint_seconds")
_AT_LEAST_1 = ("epochs", "batch_size", "record_every", "patience", "checkpoint_epochs", "checkpoint_steps", "threads")
_MOST_THREADS = 1024  # more than any machine has cores; starting millions takes minutes
_MOST = 2**63 - 1  # the largest whole number that torch takes


@dataclass(frozen=True)
class Settings:
    """Everything that makes a run the run it is, but for the folder it goes to.

    What is None is chosen by task, data and solver; `resolved` fills it in.
    """

    data: str
    """A data set's name ("mnist-1k"), "diabetes", or a file of one's own (.npy, .npz, .csv, .idx)."""
    task: str = "classify"
    """classify, regress, autoencode or denoise."""
    target: str | None = None
    """For a file of one's own: the column of labels or numbers to be predicted, or another file that holds them."""
    data_dir: str | None = None
    """A folder that holds data sets; the cache if None."""
    prepare: str | None = None
    """none, centre (the training part's mean is taken off), centre-together (one mean of all pixels; images only) or
    standardise (tables only)."""
    noise: float | None = None
    """The standard deviation of the noise that is to be removed; for the task denoise."""
    validation: str | float = "test"
    """test (the set's test part; of a file without one a fifth, drawn by seed), none, or a fraction to hold out."""
    hidden: tuple[int, ...] | None = None
    """The width of each hidden layer; the middle one is an autoencoder's code."""
    activation: tuple[str, ...] = ("relu",)
    """One for all hidden layers, or one for each, such as "relu", "soft-threshold:0.09", "box:0:1"."""
    initialisation: str | None = None
    """glorot (uniform weights, biases 0) or torch (as nn.Linear draws them); glorot if None."""
    loss: str | None = None
    """cross-entropy or squared-error."""
    code_threshold: float | None = None
    """The threshold of the soft-threshold activation of an autoencoder's code; 0 for the activation of the others."""
    code_penalty: float | None = None
    """The weight of the l1 penalty on an autoencoder's code; 0 for none."""
    weights: tuple[float, ...] | None = None
    """λ of the hidden layers in the lifted energy, one for all or one for each; 1 if None."""
    solver: str | None = None
    """A solver's or baseline's name; the library's default if None."""
    solver_settings: Mapping[str, Any] = field(default_factory=dict)
    """Its settings by name, plain values."""
    epochs: int = 10
    """Passes over the data; for a whole-set solver, steps."""
    batch_size: int | None = None
    """Samples per step."""
    seed: int = 0
    """Fixes initialisation, order of the samples, subsets and noise."""
    dtype: str = "float32"
    """float32 or float64."""
    tolerance: float | None = None
    """Stop when every block's certificate is at most this."""
    record_every: int = 1
    """Epochs between rows of the history."""
    patience: int | None = None
    """Stop after so many rows without a better validation, and keep the best; None for never."""
    time_limit: float | None = None
    """Stop after so many seconds in steps; None for never."""
    checkpoint_epochs: int = 1
    """Epochs between checkpoints."""
    checkpoint_steps: int | None = None
    """Also a checkpoint after so many steps."""
    checkpoint_seconds: float | None = None
    """Also a checkpoint after so many seconds."""
    threads: int | None = None
    """Threads of torch, on which the last digits depend; torch's own choice if None."""
    device: str | None = None
    """Where the numbers are computed, a device of PyTorch such as cuda or cuda:1; the CPU if None.  A run may be
    resumed on another, with other last digits."""
    parallel: str | None = None
    """Processes that share the run, such as "data=2": any number makes the same run, but for rounding; one if None."""

    def __post_init__(self) -> None:
        hints = get_type_hints(type(self))
        for name in names():
            object.__setattr__(self, name, typed(name, getattr(self, name), hints[name]))
        self._check_ranges()
        self._check_task()
        self._check_network()
        self.make_solver()

    @property
    def own_file(self) -> bool:
        """Whether the data are a file rather than a name."""
        return "." in self.data or "/" in self.data

    @property
    def autoencoder(self) -> bool:
        """Whether the targets are images as the inputs are."""
        return self.task in AUTOENCODERS

    @property
    def processes(self) -> Parallel | None:
        """The processes that share the run; None for one."""
        return None if self.parallel is None else Parallel.parse(self.parallel)

    def make_solver(self) -> Any:
        """The solver with its settings; also refuses a batch size that it cannot use."""
        solver = solver_names.make_solver(self.solver, self.solver_settings, self.processes)
        if self.batch_size is not None and not solver.minibatch:
            able = [name for name, kind in solver_names.SOLVERS.items() if kind.minibatch is True]
            raise SettingError(
                f"batch_size is {self.batch_size}, but the solver '{self.solver}' takes the whole set at every step: "
                f"leave batch_size out, or take one of {', '.join(able)}."
            )
        return solver

    def resolved(self) -> Settings:
        """These settings with every None filled in that stands for a choice, and files by their whole path."""
        import torch

        solver, code = self.make_solver(), CODE if self.autoencoder else None
        listed = len(self.activation) > 1
        return replace(
            self,
            data=str(Path(self.data).absolute()) if self.own_file else self.data,
            data_dir=None if self.data_dir is None else str(Path(self.data_dir).absolute()),
            target=_whole_path(self.target),
            prepare=self.prepare or self._preparation(),
            noise=NOISE if self.noise is None and self.task == "denoise" else self.noise,
            hidden=self.hidden or HIDDEN[self.task],
            loss=self.loss or ("cross-entropy" if self.task == "classify" else "squared-error"),
            code_threshold=code if self.code_threshold is None and not listed else self.code_threshold,
            code_penalty=code if self.code_penalty is None else self.code_penalty,
            solver=self.solver or solver_names.default_name(self.processes),
            solver_settings=solver_names.solver_settings(solver) | dict(self.solver_settings),
            batch_size=BATCH_SIZE if self.batch_size is None and solver.minibatch else self.batch_size,
            threads=self.threads or torch.get_num_threads(),
        )

    def _preparation(self) -> str:
        return "standardise" if (self.own_file or self.data in TABLES) and not self.autoencoder else "centre"

    def _check_ranges(self) -> None:
        for name in _AT_LEAST_1:
            value = getattr(self, name)
            if value is not None and value < 1:
                raise SettingError(f"{name} is {value}; it must be a whole number of at least 1.")
        if self.threads is not None and self.threads > _MOST_THREADS:
            raise SettingError(f"threads is {self.threads}; it must be a whole number of at most {_MOST_THREADS}.")
        for name in _POSITIVE:
            value = getattr(self, name)
            if value is not None and not 0.0 < value < math.inf:
                raise SettingError(f"{name} is {value:g}; it must be a number above 0.")
        for name in ("code_threshold", "code_penalty"):
            value = getattr(self, name)
            if value is not None and not 0.0 <= value < math.inf:
                raise SettingError(f"{name} is {value:g}; it must be a number of at least 0.")
        if self.seed < 0:
            raise SettingError(f"seed is {self.seed}; it must be a whole number of at least 0.")
        _one_of("dtype", self.dtype, DTYPES)
        _one_of("task", self.task, TASKS)
        if self.initialisation is not None:
            _one_of("initialisation", self.initialisation, INITIALISATIONS)
        if self.loss is not None:
            _one_of("loss", self.loss, LOSSES)
        if self.prepare is not None:
            _one_of("prepare", self.prepare, PREPARATIONS)
        object.__setattr__(self, "validation", _validation(self.validation))
        if self.parallel is not None:
            object.__setattr__(self, "parallel", str(Parallel.parse(self.parallel)))

    def _check_task(self) -> None:
        if not self.data:
            raise SettingError("no data are named: give a data set, such as mnist-1k, or a file.")
        if self.target is not None and not self.own_file:
            raise SettingError(f"target is '{self.target}', but '{self.data}' has targets of its own: leave it out.")
        if self.noise is not None and self.task != "denoise":
            raise SettingError(f"noise is {self.noise:g}, but the task is {self.task}: leave it out, or take denoise.")
        if not self.autoencoder and (self.code_threshold is not None or self.code_penalty is not None):
            raise SettingError(
                f"code_threshold and code_penalty belong to autoencoders and the task is {self.task}: leave them out, "
                "or take autoencode or denoise."
            )
        if self.loss == "cross-entropy" and self.task != "classify":
            raise CompatibilityError(
                f"the loss cross-entropy compares classes and the task is {self.task}: take squared-error."
            )
        table = self.own_file or self.data in TABLES
        if self.prepare == "standardise" and not table:
            raise SettingError(
                f"prepare is standardise, which is for tables, and '{self.data}' holds images: take centre or none."
            )
        if self.prepare == "centre-together" and table:
            raise SettingError(
                f"prepare is centre-together, which is for named sets of images, and '{self.data}' is a table: take "
                "centre, standardise or none."
            )

    def _check_network(self) -> None:
        for width in self.hidden or ():
            if width < 1:
                raise SettingError(f"hidden holds {width}; each width must be a whole number of at least 1.")
            if width > _MOST:
                raise SettingError(f"hidden holds {width}; each width must be a whole number of at most {_MOST}.")
        if self.hidden == ():
            raise SettingError("hidden is empty; give the width of at least one hidden layer, such as 64,64.")
        for spec in self.activation:
            specs.activation(spec)
        count = len(self.hidden or HIDDEN[self.task])
        for name in ("activation", "weights"):
            given = getattr(self, name)
            if given is not None and len(given) not in (1, count):
                raise SettingError(
                    f"{name} has {len(given)} entries and the network {count} hidden layers: give one for all, or one "
                    "for each."
                )
        for weight in self.weights or ():
            if not weight > 0.0:
                raise SettingError(f"weights holds {weight:g}; each must be a number above 0.")
        if len(self.activation) > 1 and self.code_threshold is not None:
            raise SettingError(
                "activation names one for each layer, the code's too: leave code_threshold out, or name one activation "
                "for all other layers."
            )


def names() -> tuple[str, ...]:
    """The settings that are written at the top of a file: all but the solver's."""
    return tuple(f.name for f in fields(Settings) if f.name != "solver_settings")


def task_of(settings: Settings) -> Task:
    """The task, as the data sets name it."""
    assert settings.task in get_args(Task)
    return settings.task  # type: ignore[return-value]


def _validation(value: str | float) -> str | float:
    if isinstance(value, str):
        try:
            value = float(value)
        except ValueError:
            if value in VALIDATIONS:
                return value
            raise SettingError(
                f"validation is '{value}'; it must be test, none, or a fraction of the training part such as 0.1."
            ) from None
    if not 0.0 < value < 1.0:
        raise SettingError(f"validation is {value:g}; as a fraction of the training part it must be between 0 and 1.")
    return value


def _whole_path(target: str | None) -> str | None:
    """The whole path of a file of targets; the name of a column or an array as it is."""
    if target is None or not ("/" in target or target.lower().endswith((".npy", ".csv", ".idx", ".gz", "-ubyte"))):
        return target
    return str(Path(target).absolute())


def _one_of(name: str, value: str, choices: tuple[str, ...]) -> None:
    if value not in choices:
        raise SettingError(f"{name} is '{value}'; it must be one of {', '.join(choices)}.")
