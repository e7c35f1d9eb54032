"""The settings of a run, defined once: the fields of `Settings` give name, type, range, default and meaning of each.

Python programs construct a `Settings`, a settings file has an entry for each field (`settings_file`), and the command
line has a flag for each (`lifted_bregman.cli._flags`).  Types and ranges are checked when a `Settings` is constructed,
wherever its values come from.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, Field

from lifted_bregman.data import Task
from lifted_bregman.distributed import Parallel
from lifted_bregman.errors import CompatibilityError, SettingError
from lifted_bregman.experiments import solver_names, specs
from lifted_bregman.experiments._checked import NUMBERS, WORDS, checked_fields
from lifted_bregman.experiments.tables import NAMED_TABLES

AUTOENCODERS = ("autoencode", "denoise")
VALIDATIONS = ("test", "none")

_HIDDEN: dict[str, tuple[int, ...]] = {
    "classify": (64, 64),
    "regress": (64, 64),
    "autoencode": (128, 64, 128),
    "denoise": (128, 64, 128),
}
_CODE = 0.09  # the paper's, for the threshold and for the penalty of the code
_NOISE = 0.3
_BATCH_SIZE = 100

WHEN_NONE = {
    "data_dir": "the cache",
    "prepare": "centre; to classify or regress tables, standardise",
    "noise": f"{_NOISE}",
    "hidden": "{}; for autoencoders {}".format(
        *(",".join(map(str, _HIDDEN[task])) for task in ("classify", "autoencode"))
    ),
    "initialisation": "glorot",
    "loss": "cross-entropy to classify, else squared-error",
    "code_threshold": f"{_CODE}",
    "code_penalty": f"{_CODE}",
    "weights": "1",
    "solver": f"{solver_names.default_name()}; {solver_names.default_name(Parallel(layer=2))} to share the layers",
    "batch_size": f"{_BATCH_SIZE}; solvers that take the whole set have none",
    "threads": "torch's choice",
    "device": "cpu",
    "parallel": "one process",
}
"""The value that `resolved` gives a setting that is None, in words; help texts show it as the default."""

_MOST_THREADS = 1024  # more than any machine has cores; starting millions takes minutes
_MOST = 2**63 - 1  # the largest whole number that torch takes


def _validation(value: str | float) -> str | float:
    """A word of VALIDATIONS, or a fraction between 0 and 1."""
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


def _activations(names: tuple[str, ...]) -> tuple[str, ...]:
    for spec in names:
        specs.activation(spec)
    return names


def _processes(text: str) -> str:
    return str(Parallel.parse(text))


_Count = Annotated[int, Field(ge=1)]
_Seed = Annotated[int, Field(ge=0)]
_Threads = Annotated[int, Field(ge=1, le=_MOST_THREADS)]
_Above0 = Annotated[float, Field(gt=0.0)]
_AtLeast0 = Annotated[float, Field(ge=0.0)]
_Widths = Annotated[tuple[Annotated[int, Field(ge=1, le=_MOST)], ...], NUMBERS]
_Weights = Annotated[tuple[_Above0, ...], NUMBERS]
_Activations = Annotated[tuple[str, ...], WORDS, AfterValidator(_activations)]
_Validation = Annotated[str | float, AfterValidator(_validation)]
_Processes = Annotated[str, AfterValidator(_processes)]


@dataclass(frozen=True)
class Settings:
    """All settings that determine a run, except its folder.

    A setting that is None is chosen by task, data and solver; `resolved` fills it in (`WHEN_NONE`).

    Example:
        >>> from lifted_bregman.experiments import Settings
        >>> settings = Settings(data="digits", hidden=(64, 64), epochs=5)
        >>> settings.resolved().loss
        'cross-entropy'
        >>> Settings(data="digits", epochs=0)
        Traceback (most recent call last):
            ...
        lifted_bregman.errors.SettingError: epochs is 0; it must be at least 1.
    """

    data: str
    """A set's name (see 'lifted data list'; 'mnist-1k' is a part), diabetes, or a .csv, .npy, .npz or .idx file."""
    task: Task = "classify"
    """What the network learns: classify, regress, autoencode or denoise."""
    target: str | None = None
    """For a file: the column of the targets (name, or number from 1), or the file with them."""
    data_dir: str | None = None
    """A folder that holds data sets."""
    prepare: Literal["none", "centre", "centre-together", "standardise"] | None = None
    """none, centre (subtract the mean of the training part), centre-together (subtract one mean of all pixels; images
    only) or standardise (tables only)."""
    noise: _Above0 | None = None
    """For the task denoise: the standard deviation of the noise to remove."""
    validation: _Validation = "test"
    """test (the set's test part, or a fifth of a file), none, or a fraction of the training part to hold out."""
    hidden: _Widths | None = None
    """Widths of the hidden layers; the middle one is an autoencoder's code."""
    activation: _Activations = ("relu",)
    """One for all hidden layers or one for each: relu, tanh, soft-threshold:0.09, box:0:1, ..."""
    initialisation: Literal["glorot", "torch"] | None = None
    """glorot (uniform weights, biases 0), or torch for that of nn.Linear."""
    loss: Literal["cross-entropy", "squared-error"] | None = None
    """cross-entropy or squared-error."""
    code_threshold: _AtLeast0 | None = None
    """The threshold of an autoencoder's code, 0 for a linear code."""
    code_penalty: _AtLeast0 | None = None
    """The weight of the l1 penalty on an autoencoder's code, 0 for none."""
    dropout: Annotated[float, Field(ge=0.0, lt=1.0)] = 0.0
    """The part of the units of each hidden layer that are 0 in a step of training."""
    input_noise: _AtLeast0 = 0.0
    """The standard deviation of Gaussian noise that is added to the inputs in each step of training."""
    weights: _Weights | None = None
    """Weights λ of the hidden layers' terms in the lifted energy, one for all or one for each."""
    solver: str | None = None
    """gram-sweep, implicit-sgd, adabreg, proximal-gradient, admm, sgd, adam, ...: a solver or baseline."""
    solver_settings: Mapping[str, Any] = field(default_factory=dict)
    """Settings of the solver by name, as plain values."""
    epochs: _Count = 10
    """Passes over the data; steps of a solver that takes the whole set."""
    batch_size: _Count | None = None
    """Samples per step."""
    seed: _Seed = 0
    """Fixes initialisation, order of the samples, subsets and noise."""
    dtype: Literal["float32", "float64"] = "float32"
    """float32 or float64."""
    tolerance: _Above0 | None = None
    """Stop when every block's certificate is at most this."""
    record_every: _Count = 1
    """Epochs between rows of the history."""
    patience: _Count | None = None
    """Stop after so many rows without a better validation, and keep the best."""
    time_limit: _Above0 | None = None
    """Stop after so many seconds in steps."""
    checkpoint_epochs: _Count = 1
    """Epochs between checkpoints."""
    checkpoint_steps: _Count | None = None
    """Also save a checkpoint after so many steps."""
    checkpoint_seconds: _Above0 | None = None
    """Also save a checkpoint after so many seconds."""
    threads: _Threads | None = None
    """Threads of torch, on which the last digits depend."""
    device: str | None = None
    """Where the numbers are computed, such as cpu, cuda or cuda:1.  A run may be resumed on another device, with other
    last digits."""
    parallel: _Processes | None = None
    """Processes that share the run, such as data=2; torchrun and SLURM may start them.  Any number makes the same run,
    except for rounding."""

    def __post_init__(self) -> None:
        values = {entry.name: getattr(self, entry.name) for entry in fields(self)}
        for name, value in checked_fields(type(self), values).items():
            object.__setattr__(self, name, value)
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
        """These settings with each None of `WHEN_NONE` replaced by its value, and absolute paths of files."""
        import torch

        solver, code = self.make_solver(), _CODE if self.autoencoder else None
        listed = len(self.activation) > 1
        return replace(
            self,
            data=str(Path(self.data).absolute()) if self.own_file else self.data,
            data_dir=None if self.data_dir is None else str(Path(self.data_dir).absolute()),
            target=_whole_path(self.target),
            prepare=self.prepare or self._preparation(),
            noise=_NOISE if self.noise is None and self.task == "denoise" else self.noise,
            hidden=self.hidden or _HIDDEN[self.task],
            loss=self.loss or ("cross-entropy" if self.task == "classify" else "squared-error"),
            code_threshold=code if self.code_threshold is None and not listed else self.code_threshold,
            code_penalty=code if self.code_penalty is None else self.code_penalty,
            solver=self.solver or solver_names.default_name(self.processes),
            solver_settings=solver_names.solver_settings(solver) | dict(self.solver_settings),
            batch_size=_BATCH_SIZE if self.batch_size is None and solver.minibatch else self.batch_size,
            threads=self.threads or torch.get_num_threads(),
        )

    def _preparation(self) -> Literal["standardise", "centre"]:
        return "standardise" if (self.own_file or self.data in NAMED_TABLES) and not self.autoencoder else "centre"

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
        table = self.own_file or self.data in NAMED_TABLES
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
        if self.hidden == ():
            raise SettingError("hidden is empty; give the width of at least one hidden layer, such as 64,64.")
        count = len(self.hidden or _HIDDEN[self.task])
        for name in ("activation", "weights"):
            given = getattr(self, name)
            if given is not None and len(given) not in (1, count):
                raise SettingError(
                    f"{name} has {len(given)} entries and the network {count} hidden layers: give one for all, or one "
                    "for each."
                )
        if len(self.activation) > 1 and self.code_threshold is not None:
            raise SettingError(
                "activation names one for each layer, the code's too: leave code_threshold out, or name one activation "
                "for all other layers."
            )


SETTING_NAMES = tuple(entry.name for entry in fields(Settings) if entry.name != "solver_settings")
"""The settings that are flags, and keys at the top of a settings file: all except the solver's."""


def _whole_path(target: str | None) -> str | None:
    """The absolute path of a file of targets; the name of a column or an array is returned as it is."""
    if target is None or not ("/" in target or target.lower().endswith((".npy", ".csv", ".idx", ".gz", "-ubyte"))):
        return target
    return str(Path(target).absolute())
