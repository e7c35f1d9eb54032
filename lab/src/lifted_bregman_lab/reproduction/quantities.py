"""Quantities: one number for each seed, read off the stored runs of one recipe or of two."""

from __future__ import annotations

import math
import sys
from abc import ABC, abstractmethod
from dataclasses import dataclass, fields

import numpy as np
import pandas as pd

from lifted_bregman_lab.reproduction.store import Evidence, RecipeRun

_ROUNDING = 4.0 * sys.float_info.epsilon  # relative; the error of the mean of equal numbers


class Missing(Exception):
    """A recipe has no stored run, or shares no seed with another; the message is its name."""


class RunDiverged(Exception):
    """A required run diverged; the message names it."""


@dataclass(frozen=True)
class ReadsRuns:
    """A dataclass with a field `recipe`, or with fields that are such dataclasses, or tuples of them."""

    @property
    def recipes(self) -> tuple[str, ...]:
        """The recipes whose runs it reads, each once, in the order of the fields."""
        names: list[str] = []
        for field in fields(self):
            value = getattr(self, field.name)
            if field.name == "recipe":
                names.append(value)
            for part in value if isinstance(value, tuple) else (value,):
                names += part.recipes if isinstance(part, ReadsRuns) else ()
        return tuple(dict.fromkeys(names))


@dataclass(frozen=True)
class Quantity(ReadsRuns, ABC):
    """A number for each seed."""

    @abstractmethod
    def values(self, evidence: Evidence) -> pd.Series:
        """The numbers, indexed by seed; raises `Missing` or `RunDiverged` where there is none."""


@dataclass(frozen=True)
class OfRun(Quantity):
    """A number computed from one stored run.

    recipe  its name
    column  an entry of the rows, or of the measures at the end
    """

    recipe: str
    column: str

    def runs(self, evidence: Evidence) -> dict[int, RecipeRun]:
        """The stored runs by seed; raises `Missing` where there is none."""
        runs = evidence.runs(self.recipe)
        if not runs:
            raise Missing(self.recipe)
        return runs

    def values(self, evidence: Evidence) -> pd.Series:
        runs = self.runs(evidence)
        for seed, run in runs.items():
            if run.diverged:
                raise RunDiverged(f"the run {run.recipe}/{seed} diverged: {run.reason}")
        return pd.Series({seed: self.of(run) for seed, run in runs.items()})

    @abstractmethod
    def of(self, run: RecipeRun) -> float:
        """The number of this run."""


class Final(OfRun):
    """The value in the last row."""

    def of(self, run: RecipeRun) -> float:
        return float(run.column(self.column).iloc[-1])


@dataclass(frozen=True)
class AtEpoch(OfRun):
    """The value in the row of an epoch; `Missing` where the run has no such row, as in a smoke run."""

    epoch: int

    def of(self, run: RecipeRun) -> float:
        found = run.column(self.column)[run.column("epoch") == self.epoch]
        if found.empty:
            raise Missing(f"{self.recipe} at epoch {self.epoch}")
        return float(found.iloc[0])


class AtEnd(OfRun):
    """A measure that is taken once, at the end of the run."""

    def of(self, run: RecipeRun) -> float:
        return run.measure(self.column)


class LowestEpoch(OfRun):
    """The epoch of the smallest value."""

    def of(self, run: RecipeRun) -> float:
        return float(run.column("epoch")[run.column(self.column).idxmin()])


class FinalOverLowest(OfRun):
    """The last value over the smallest: 1 for a curve that ends at its lowest."""

    def of(self, run: RecipeRun) -> float:
        values = run.column(self.column)
        return float(values.iloc[-1] / values.min())


class Oscillation(OfRun):
    """Σ_k |c_{k+1} - c_k| - |c_K - c_1|: how far a curve goes back and forth, 0 for a monotone one."""

    def of(self, run: RecipeRun) -> float:
        values = run.column(self.column)
        return float(values.diff().abs().sum() - abs(values.iloc[-1] - values.iloc[0]))


@dataclass(frozen=True)
class ChangeCorrelation(OfRun):
    """The correlation between the changes of two columns from row to row; 0 where one of them does not change.

    other  the second column
    log    whether the first column, then > 0, is taken in logarithms: its changes are then relative ones
    """

    other: str
    log: bool = False

    def of(self, run: RecipeRun) -> float:
        values = run.column(self.column)
        first, second = (np.log(values) if self.log else values).diff(), run.column(self.other).diff()
        size = first.std() * second.std()
        return float(first.cov(second) / size) if size > 0.0 else 0.0


@dataclass(frozen=True)
class SecondsPerEpoch(OfRun):
    """Seconds in steps of an epoch, the median over the rows: other work on the machine may slow a part of a run."""

    column: str = "seconds"

    def of(self, run: RecipeRun) -> float:
        epochs, seconds = run.column("epoch"), run.column(self.column)
        return float((seconds.diff().fillna(seconds) / epochs.diff().fillna(epochs)).median())


@dataclass(frozen=True)
class OrInfinite(Quantity):
    """A number of one stored run; ∞ for a run that diverged, which is above that of every other run."""

    quantity: OfRun

    def values(self, evidence: Evidence) -> pd.Series:
        runs = self.quantity.runs(evidence)
        return pd.Series({seed: math.inf if run.diverged else self.quantity.of(run) for seed, run in runs.items()})


@dataclass(frozen=True)
class Difference(Quantity):
    """first - second, of the same seed."""

    first: Quantity
    second: Quantity

    def values(self, evidence: Evidence) -> pd.Series:
        first, second = paired(self.first, self.second, evidence)
        return first - second


@dataclass(frozen=True)
class Ratio(Quantity):
    """first / second, of the same seed."""

    first: Quantity
    second: Quantity

    def values(self, evidence: Evidence) -> pd.Series:
        first, second = paired(self.first, self.second, evidence)
        return first / second


@dataclass(frozen=True)
class Smallest(Quantity):
    """The smallest of several quantities of the same seed."""

    quantities: tuple[Quantity, ...]

    def values(self, evidence: Evidence) -> pd.Series:
        found = pd.concat([one.values(evidence) for one in self.quantities], axis=1, join="inner")
        if found.empty:
            raise Missing(" and ".join(self.recipes))
        return found.min(axis=1)


@dataclass(frozen=True)
class Scaled(Quantity):
    """offset + factor · quantity, for other units."""

    quantity: Quantity
    factor: float
    offset: float = 0.0

    def values(self, evidence: Evidence) -> pd.Series:
        return self.offset + self.factor * self.quantity.values(evidence)


def paired(first: Quantity, second: Quantity, evidence: Evidence) -> tuple[pd.Series, pd.Series]:
    """The values of both on their common seeds; raises `Missing` where there is none."""
    one, other = first.values(evidence).align(second.values(evidence), join="inner")
    if one.empty:
        raise Missing(" and ".join(dict.fromkeys((*first.recipes, *second.recipes))))
    return one, other


def spread(values: pd.Series) -> float | None:
    """The standard deviation (n - 1), 0 if it is only rounding; None for one value, or if one is ∞."""
    if len(values) < 2 or not np.isfinite(values).all():
        return None
    found = float(values.std())
    return found if found > _ROUNDING * values.abs().max() else 0.0
