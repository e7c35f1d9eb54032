"""The interface of a solver: frozen settings, a state, and the methods `init` and `step`.

A solver never loops, prints or draws random numbers by itself.  You can write the loop in five lines:

    batch = Batch.whole(problem, X, Y)
    state = solver.init(problem, batch)
    for _ in range(100):
        state = solver.step(problem, state, batch)
        print(state.steps, float(problem.energy(state.variables, X, Y)))

`step` changes the parameters in the user's model in place.  All other values that a step needs later are in the state.
"""

from __future__ import annotations

import dataclasses
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar, Generic, Self, TypeVar

import torch
from torch import Tensor

from lifted_bregman.errors import CompatibilityError, SettingError
from lifted_bregman.graph import InputTensors, ModelInput
from lifted_bregman.graph.inputs import InputLike, input_tensors
from lifted_bregman.problem import LiftedProblem, LiftedState, Point
from lifted_bregman.problem.data_checks import sample_weights
from lifted_bregman.problem.shard import WHOLE, Shard
from lifted_bregman.solvers._meter import Meter
from lifted_bregman.solvers.data_ranks import DataRanks
from lifted_bregman.solvers.schedules import Schedule, require_schedule


@dataclass(frozen=True)
class Batch:
    """Samples, checked and encoded by `problem.prepare`, with their places in the whole set."""

    X: ModelInput
    """(samples, ...), or `InputTensors` where the model takes several tensors."""
    Y: Tensor
    index: Tensor
    """The samples' indices in the whole set, (size,), int64, on the device of X."""
    total: int
    """The number of samples in the whole set."""
    weights: Tensor | None = None
    """w_i > 0 with mean 1 over the whole set, (size,), by which each sample's energy counts; None for all equal."""
    meter: Meter | None = None
    """Receives the objective of a step's forward pass; None for a set in memory."""
    shard: Shard = WHOLE
    """The rows of the whole batch that these samples are, where ranks share it."""

    @classmethod
    def whole(cls, problem: LiftedProblem, X: InputLike, Y: Tensor, weights: Tensor | None = None) -> Batch:
        """The whole set as one batch; X, Y and weights are checked here, and the weights divided by their mean."""
        X, Y = problem.prepare(X, Y)
        if weights is not None:
            weights = sample_weights(weights, Y)
            weights = weights / weights.mean()
        return cls(X, Y, torch.arange(len(X), device=X.device), len(X), weights)

    def select(self, places: Tensor) -> Batch:
        """The samples at these positions of the batch; `places` may be on any device."""
        places = places.to(self.X.device)
        weights = None if self.weights is None else self.weights[places]
        Y, index = (values.index_select(0, places) for values in (self.Y, self.index))
        return Batch(self.X.index_select(0, places), Y, index, self.total, weights)

    def slice(self, start: int, stop: int) -> Batch:
        """The samples from `start` up to `stop`, as views of this batch."""
        weights = None if self.weights is None else self.weights[start:stop]
        return Batch(self.X[start:stop], self.Y[start:stop], self.index[start:stop], self.total, weights)

    def share(self, ranks: DataRanks) -> Batch:
        """This rank's shard of the batch."""
        if ranks.count == 1:
            return self
        given = input_tensors(self.X)
        more = (self.Y, self.index) if self.weights is None else (self.Y, self.index, self.weights)
        shard, parts = ranks.divide(*given, *more)
        Y, index, *weights = parts[len(given) :]
        X = InputTensors(parts[: len(given)]) if isinstance(self.X, InputTensors) else parts[0]
        return Batch(X, Y, index, self.total, weights[0] if weights else None, shard=shard)

    @property
    def samples(self) -> int:
        """The number of samples of the whole batch, on all ranks."""
        return self.shard.samples(len(self))

    def point(self, problem: LiftedProblem, variables: LiftedState) -> Point:
        """The point of these samples at the given variables, which have one row for each of them."""
        return problem.point(variables, self.X, self.Y, self.weights, self.shard)

    def __len__(self) -> int:
        return len(self.X)


@dataclass
class SolverState:
    """The values that a solver keeps between steps, apart from the parameters.

    Subclasses are dataclasses whose fields are tensors, numbers, lifted states, or dicts and lists of those.  A dict
    with integer keys has one entry for each term l; where ranks share the terms, each rank has the entries of the terms
    that it holds.  A lifted state on a rank has the variables that the rank moves or reads.  All other fields are equal
    on all ranks, except the counters named in `Solver.counts`.
    """

    steps: int = 0
    """Steps taken."""
    variables: LiftedState | None = None
    """x_1 .. x_{L-1} of the last batch, for solvers that have them."""
    metrics: dict[str, Any] = field(default_factory=dict)
    """Numbers of the last step (residuals, step sizes, multipliers); each must be finite, or the run has diverged.

    A metric of each term is a dict by term (`term_metric`); a row of the history has it as name_1 .. name_L.  `step`
    may store tensors of shape () on the device, so that it need not wait for them; the run converts them to numbers.
    """

    def term_metric(self, name: str) -> dict[int, Any]:
        """The dict of a metric by term, in which `step` stores its values."""
        own: dict[int, Any] = self.metrics.setdefault(name, {})
        return own

    def state_dict(self) -> dict[str, Any]:
        """Every field as plain containers of tensors and numbers.  Tensors are not copied."""
        return {f.name: _plain(getattr(self, f.name)) for f in dataclasses.fields(self)}

    def load_state_dict(self, entries: Mapping[str, Any]) -> None:
        """Restores a copy of `entries`, which `state_dict` returned: the next step is bitwise the one that would have
        followed.
        """
        names = {f.name for f in dataclasses.fields(self)}
        if names != set(entries):
            raise SettingError(
                f"the saved state has {sorted(entries)}, {type(self).__name__} has {sorted(names)}; load it with the "
                "solver that saved it."
            )
        for name, value in entries.items():
            setattr(self, name, _restored(value))


S = TypeVar("S", bound=SolverState)


class Solver(ABC, Generic[S]):
    """An algorithm: a frozen dataclass of settings with `init` and `step`."""

    minibatch: ClassVar[bool] = False
    """Whether a step takes any batch; otherwise every step takes the whole set."""
    indexed: ClassVar[bool] = False
    """Whether its state has a row for each sample of the set, found by `Batch.index`."""
    batch_variables: ClassVar[bool] = False
    """Whether its state has the variables of the last batch, of the whole set where that is the batch."""
    weighted: ClassVar[bool] = False
    """Whether it minimises the weighted mean of the samples' energies where a batch has weights."""
    data_parallel: ClassVar[bool] = False
    """Whether ranks can share its batches, with the numbers of one process.

    Such a solver makes its points by `Batch.point`, and its own sums over samples pass through `Batch.shard`.
    """
    shared_parameters: ClassVar[bool] = False
    """Whether it trains networks in which a parameter occurs in several terms: tied weights, recurrences."""
    training_mode: ClassVar[bool] = False
    """Whether it trains maps that couple samples or are random: batch normalisation, dropout, noise."""
    autocast: ClassVar[bool] = False
    """Whether it trains maps that compute in half precision, as within torch.autocast."""
    counts: ClassVar[tuple[str, ...]] = ()
    """The counters among the fields and metrics of its state, which layer-parallel ranks add up."""

    @property
    def layer_parallel(self) -> bool:
        """Whether ranks can share the terms, with the bits of one process."""
        return False

    def require(self, problem: LiftedProblem) -> None:
        """Raises `CompatibilityError` before any work if the problem lacks what this solver needs (see `lacking`)."""

    def require_steps(self, problem: LiftedProblem, steps: int) -> None:
        """Raises an error before a run of so many steps, at least 1, if a schedule has no valid numbers for them."""
        for name, setting in vars(self).items():
            if isinstance(setting, Schedule):
                require_schedule(setting, name, steps)

    @property
    def ends_with_run(self) -> bool:
        """Whether its numbers depend on the length of the run, so that a run with more epochs is another run."""
        return any(isinstance(setting, Schedule) and setting.ends_with_run for setting in vars(self).values())

    def planned(self, steps: float, epochs: float) -> Self:
        """The same solver for a run of this length, which sets the end of schedules that end with the run.

        steps   the number of steps; inf if unknown
        epochs  passes over the data; 0 for a solver inside another one
        """
        schedules = {name: setting for name, setting in vars(self).items() if isinstance(setting, Schedule)}
        return self._changed(**{name: schedule.planned(steps) for name, schedule in schedules.items()})

    def _changed(self, **settings: Any) -> Self:
        """The solver with these settings; itself if it has them already."""
        if all(getattr(self, name) is value for name, value in settings.items()):
            return self
        own: Any = self
        return dataclasses.replace(own, **settings)  # type: ignore[no-any-return]

    @abstractmethod
    def init(self, problem: LiftedProblem, batch: Batch) -> S:
        """The state before the first step.  Changes nothing."""

    @abstractmethod
    def step(self, problem: LiftedProblem, state: S, batch: Batch) -> S:
        """One step on one batch: changes the parameters in place and returns the state (the same object, updated)."""

    def attach(self, problem: LiftedProblem, state: S) -> None:
        """Called after `init` and after a state was loaded, for solvers whose steps change the problem."""

    def finish(self, problem: LiftedProblem, state: S) -> None:
        """Called once after the last step, for solvers whose result differs from the last iterate (averages)."""


def of_inner(name: str) -> Any:
    """A class variable of `Solver`, declared as that of the wrapped solver, `self.solver`."""
    return property(lambda self: getattr(self.solver, name), doc=f"`{name}` of the wrapped solver.")


def added(default: Any) -> Any:
    """A setting that earlier versions of its solver did not have.

    `repr` and stored settings omit it at its default, so that runs stored by an earlier version keep their settings.
    """
    return field(default=default, metadata={"added": True})


def shown_settings(solver: Solver[Any]) -> dict[str, dataclasses.Field[Any]]:
    """The fields of a solver that is a dataclass, without those that were `added` and have their default."""
    own: Any = solver
    fields = dataclasses.fields(own)
    return {f.name: f for f in fields if not (f.metadata.get("added") and getattr(solver, f.name) == f.default)}


def shown(solver: Solver[Any]) -> str:
    """`repr` of a solver by its `shown_settings`."""
    settings = ", ".join(f"{name}={getattr(solver, name)!r}" for name in shown_settings(solver))
    return f"{type(solver).__qualname__}({settings})"


def lacking(solver: Solver[Any], required: str, missing: str) -> CompatibilityError:
    """The error for a problem that a solver cannot take, with what it requires and what is missing."""
    return CompatibilityError(f"{type(solver).__name__} requires {required}; missing: {missing}.")


def on_device(value: Any, device: torch.device) -> Any:
    """An entry of `state_dict` with all its tensors on `device`; tensors already there are not copied."""
    if isinstance(value, Tensor):
        return value.to(device)
    if isinstance(value, Mapping):
        return {key: on_device(entry, device) for key, entry in value.items()}
    if isinstance(value, list):
        return [on_device(entry, device) for entry in value]
    return value


def _plain(value: Any) -> Any:
    if isinstance(value, LiftedState):
        return {"LiftedState": value.state_dict()}
    if isinstance(value, SolverState):
        raise TypeError("nested solver states must be stored as their state_dict")  # pragma: no cover
    if isinstance(value, dict):
        return {key: _plain(entry) for key, entry in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(entry) for entry in value]
    return value


def _restored(value: Any) -> Any:
    if isinstance(value, Tensor):
        return value.clone()
    if isinstance(value, Mapping):
        if set(value) == {"LiftedState"}:
            return LiftedState.from_state_dict({key: entry.clone() for key, entry in value["LiftedState"].items()})
        return {key: _restored(entry) for key, entry in value.items()}
    if isinstance(value, list):
        return [_restored(entry) for entry in value]
    return value
