"""Quantities: one number of each stored run of a recipe, or of two recipes with the same seed."""

from __future__ import annotations

import math
import sys
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from statistics import median

from lifted_bregman_lab.reproduction.store import Evidence, RecipeRun

_ROUNDING = 4.0 * sys.float_info.epsilon  # relative; what means of equal numbers differ by


class Missing(Exception):
    """A recipe has no stored run, or none with a seed in common with another; the message is its name."""


class RunDiverged(Exception):
    """A run that is needed diverged; the message names it."""


class Quantity(ABC):
    """A number by seed."""

    @property
    @abstractmethod
    def recipes(self) -> tuple[str, ...]:
        """The recipes that it is read off."""

    @abstractmethod
    def values(self, evidence: Evidence) -> dict[int, float]:
        """The number of each seed; `Missing` or `RunDiverged` where there is none."""


@dataclass(frozen=True)
class OfRun(Quantity):
    """A number of one stored run.

    recipe  its name
    column  an entry of the rows, or of the measures at the end
    """

    recipe: str
    column: str

    @property
    def recipes(self) -> tuple[str, ...]:
        return (self.recipe,)

    def runs(self, evidence: Evidence) -> dict[int, RecipeRun]:
        """The stored runs by seed; `Missing` where there is none."""
        runs = evidence.runs(self.recipe)
        if not runs:
            raise Missing(self.recipe)
        return runs

    def values(self, evidence: Evidence) -> dict[int, float]:
        runs = self.runs(evidence)
        for seed, run in runs.items():
            if run.diverged:
                raise RunDiverged(f"the run {run.recipe}/{seed} diverged: {run.reason}")
        return {seed: self.of(run) for seed, run in runs.items()}

    @abstractmethod
    def of(self, run: RecipeRun) -> float:
        """The number of this run."""


@dataclass(frozen=True)
class Final(OfRun):
    """The last row's."""

    def of(self, run: RecipeRun) -> float:
        return run.column(self.column)[-1]


@dataclass(frozen=True)
class AtEpoch(OfRun):
    """That of the row of an epoch; `Missing` where the run has none, such as a smoke run."""

    epoch: int

    def of(self, run: RecipeRun) -> float:
        for row, value in zip(run.rows, run.column(self.column), strict=True):
            if row["epoch"] == self.epoch:
                return value
        raise Missing(f"{self.recipe} at epoch {self.epoch}")


@dataclass(frozen=True)
class AtEnd(OfRun):
    """What was measured once, when the run was over."""

    def of(self, run: RecipeRun) -> float:
        return run.measure(self.column)


@dataclass(frozen=True)
class LowestEpoch(OfRun):
    """The epoch of the smallest value."""

    def of(self, run: RecipeRun) -> float:
        values = run.column(self.column)
        return run.column("epoch")[values.index(min(values))]


@dataclass(frozen=True)
class FinalOverLowest(OfRun):
    """The last value over the smallest: 1 for a curve that ends at its lowest."""

    def of(self, run: RecipeRun) -> float:
        values = run.column(self.column)
        return values[-1] / min(values)


@dataclass(frozen=True)
class Oscillation(OfRun):
    """Σ_k |c_{k+1} - c_k| - |c_K - c_1|: how far a curve goes back and forth, 0 for a monotone one."""

    def of(self, run: RecipeRun) -> float:
        values = run.column(self.column)
        return sum(abs(b - a) for a, b in pairwise(values)) - abs(values[-1] - values[0])


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
        first = _centred_changes([math.log(value) for value in values] if self.log else values)
        second = _centred_changes(run.column(self.other))
        size = math.hypot(*first) * math.hypot(*second)
        return sum(a * b for a, b in zip(first, second, strict=True)) / size if size > 0.0 else 0.0


@dataclass(frozen=True)
class SecondsPerEpoch(OfRun):
    """Seconds in steps of an epoch, the median over the rows: other work on the machine may slow a part of a run."""

    column: str = "seconds"

    def of(self, run: RecipeRun) -> float:
        rows = zip([0.0, *run.column("epoch")], [0.0, *run.column(self.column)], strict=True)
        return median((after[1] - before[1]) / (after[0] - before[0]) for before, after in pairwise(rows))


@dataclass(frozen=True)
class OrInfinite(Quantity):
    """A number of one stored run, and ∞ for a run that diverged: above that of any run that did not."""

    quantity: OfRun

    @property
    def recipes(self) -> tuple[str, ...]:
        return self.quantity.recipes

    def values(self, evidence: Evidence) -> dict[int, float]:
        runs = self.quantity.runs(evidence)
        return {seed: math.inf if run.diverged else self.quantity.of(run) for seed, run in runs.items()}


@dataclass(frozen=True)
class Combined(Quantity):
    """Two quantities of the same seed made into one."""

    first: Quantity
    second: Quantity

    @property
    def recipes(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys((*self.first.recipes, *self.second.recipes)))

    def values(self, evidence: Evidence) -> dict[int, float]:
        first, second = self.first.values(evidence), self.second.values(evidence)
        common = [seed for seed in first if seed in second]
        if not common:
            raise Missing(" and ".join(self.recipes))
        return {seed: self.combine(first[seed], second[seed]) for seed in common}

    @abstractmethod
    def combine(self, first: float, second: float) -> float:
        """The number of a seed."""


@dataclass(frozen=True)
class Difference(Combined):
    """first - second."""

    def combine(self, first: float, second: float) -> float:
        return first - second


@dataclass(frozen=True)
class Ratio(Combined):
    """first / second."""

    def combine(self, first: float, second: float) -> float:
        return first / second


@dataclass(frozen=True)
class Scaled(Quantity):
    """offset + factor · quantity, for other units."""

    quantity: Quantity
    factor: float
    offset: float = 0.0

    @property
    def recipes(self) -> tuple[str, ...]:
        return self.quantity.recipes

    def values(self, evidence: Evidence) -> dict[int, float]:
        return {seed: self.offset + self.factor * value for seed, value in self.quantity.values(evidence).items()}


def mean(values: Sequence[float]) -> float:
    """Their mean."""
    return math.fsum(values) / len(values)


def spread(values: Sequence[float]) -> float | None:
    """Their standard deviation (n - 1), 0 if it is no more than rounding; None for a single one, or if one is ∞."""
    if len(values) < 2 or not all(math.isfinite(value) for value in values):
        return None
    centre = mean(values)
    found = math.sqrt(math.fsum((value - centre) ** 2 for value in values) / (len(values) - 1))
    return found if found > _ROUNDING * max(abs(value) for value in values) else 0.0


def _centred_changes(values: Sequence[float]) -> list[float]:
    changes = [b - a for a, b in pairwise(values)]
    centre = mean(changes) if changes else 0.0
    return [change - centre for change in changes]
