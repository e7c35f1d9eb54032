"""Schedules: proximal weights and step sizes that depend on the step number."""

from __future__ import annotations

import contextlib
import math
from abc import ABC, abstractmethod
from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Any

from lifted_bregman._arguments import positive, whole
from lifted_bregman.errors import SettingError

_LOOKED_AT = 10**6


class Schedule(ABC):
    """A number for each step."""

    @abstractmethod
    def value(self, step: int) -> float:
        """The number for step k = 0, 1, ..."""

    def extremes(self, steps: int) -> Iterable[int]:
        """The steps among the first `steps` with the smallest and the largest number, which are checked before a run.

        By default all of them, up to a million.
        """
        return range(min(steps, _LOOKED_AT))

    @property
    def ends_with_run(self) -> bool:
        """Whether the schedule depends on the number of steps of the run, and `planned` has not set that number yet."""
        return False

    def planned(self, steps: float) -> Schedule:
        """The schedule for a run of `steps` steps; itself unless it `ends_with_run`."""
        return self


@dataclass(frozen=True)
class Constant(Schedule):
    """The same number at every step.

    number  >= 0

    Example:
        >>> from lifted_bregman.solvers import Constant
        >>> [Constant(0.5).value(step) for step in range(3)]
        [0.5, 0.5, 0.5]
    """

    number: float

    def __post_init__(self) -> None:
        if not 0.0 <= self.number < math.inf:
            raise SettingError(f"number is {self.number!r}; it must be finite and at least 0.")

    def value(self, step: int) -> float:
        return self.number

    def extremes(self, steps: int) -> Iterable[int]:
        return (0,)


@dataclass(frozen=True)
class Growing(Schedule):
    """initial (1 + k)^power: a proximal weight that grows, so that the steps shrink.

    initial  > 0
    power    > 0; at most 1 where the sum of 1/τ_k must diverge, so that any solution can be reached

    Example:
        >>> from lifted_bregman.solvers import Growing
        >>> [Growing(1.0).value(step) for step in range(3)]
        [1.0, 2.0, 3.0]
    """

    initial: float
    power: float = 1.0

    def __post_init__(self) -> None:
        positive(self.initial, "initial")
        positive(self.power, "power")

    def value(self, step: int) -> float:
        return self.initial * math.pow(1 + step, self.power)

    def extremes(self, steps: int) -> Iterable[int]:
        return 0, steps - 1


@dataclass(frozen=True)
class Decaying(Schedule):
    """initial / (1 + k)^power: a step size that decays.

    initial  > 0
    power    > 0; in (½, 1] for the classical conditions Σ t_k = ∞, Σ t_k² < ∞

    Example:
        >>> from lifted_bregman.solvers import Decaying
        >>> [Decaying(1.0).value(step) for step in (0, 1, 3)]
        [1.0, 0.5, 0.25]
    """

    initial: float
    power: float = 1.0

    def __post_init__(self) -> None:
        positive(self.initial, "initial")
        positive(self.power, "power")

    def value(self, step: int) -> float:
        return self.initial / math.pow(1 + step, self.power)

    def extremes(self, steps: int) -> Iterable[int]:
        return 0, steps - 1


class _ToZero(Schedule):
    """A warm-up to the peak, then a decay to 0 at the end of the run."""

    peak: float
    warm_up: int
    steps: int | None

    def __post_init__(self) -> None:
        positive(self.peak, "peak")
        whole(self.warm_up, "warm_up", least=0)
        if self.steps is not None and self.warm_up >= whole(self.steps, "steps"):
            raise SettingError(
                f"warm_up is {self.warm_up}, and the schedule has {self.steps} steps: take fewer steps to warm up, or "
                "a longer run."
            )

    @abstractmethod
    def _remaining(self, fraction: float) -> float:
        """The fraction of the peak after this fraction of the steps that follow the warm-up."""

    @property
    def ends_with_run(self) -> bool:
        return self.steps is None

    def planned(self, steps: float) -> Schedule:
        if self.steps is not None:
            return self
        own: Any = self
        return replace(own, steps=steps)  # type: ignore[no-any-return]

    def value(self, step: int) -> float:
        if self.steps is None:
            raise SettingError(
                f"{self!r} ends with the run, and no run has said how long it is: train by fit or solvers.run, or give "
                "steps=."
            )
        if step < self.warm_up:
            return self.peak * (step + 1) / self.warm_up
        fraction = (step - self.warm_up) / (self.steps - self.warm_up)
        return self.peak * self._remaining(fraction) if fraction < 1.0 else 0.0

    def extremes(self, steps: int) -> Iterable[int]:
        return sorted({0, min(self.warm_up, steps - 1), steps - 1})


@dataclass(frozen=True)
class CosineDecay(_ToZero):
    """peak ½(1 + cos(π (k - w)/(K - w))): a step size that falls to 0 along half a wave, after w steps of warm-up.

    In the warm-up it is peak (k + 1)/w.

    peak     > 0
    warm_up  w >= 0, in steps
    steps    K > w, at which it is 0; None for the number of steps of the run

    Example:
        >>> from lifted_bregman.solvers import CosineDecay
        >>> [round(CosineDecay(1.0, steps=4).value(step), 2) for step in range(5)]
        [1.0, 0.85, 0.5, 0.15, 0.0]
    """

    peak: float
    warm_up: int = 0
    steps: int | None = None

    def _remaining(self, fraction: float) -> float:
        return 0.5 * (1.0 + math.cos(math.pi * fraction))


@dataclass(frozen=True)
class LinearDecay(_ToZero):
    """peak (1 - (k - w)/(K - w)): a step size that falls to 0 along a line, after w steps of warm-up.

    In the warm-up it is peak (k + 1)/w.

    peak     > 0
    warm_up  w >= 0, in steps
    steps    K > w, at which it is 0; None for the number of steps of the run

    Example:
        >>> from lifted_bregman.solvers import LinearDecay
        >>> [LinearDecay(1.0, steps=4).value(step) for step in range(5)]
        [1.0, 0.75, 0.5, 0.25, 0.0]
    """

    peak: float
    warm_up: int = 0
    steps: int | None = None

    def _remaining(self, fraction: float) -> float:
        return 1.0 - fraction


@dataclass(frozen=True)
class StepDecay(Schedule):
    """initial factor^⌊k/every⌋: a step size that is multiplied by a factor every so many steps.

    initial  > 0
    every    >= 1, in steps: an epoch has ⌈samples / batch size⌉
    factor   in (0, 1]

    Example:
        >>> from lifted_bregman.solvers import StepDecay
        >>> [StepDecay(1.0, every=2, factor=0.5).value(step) for step in range(5)]
        [1.0, 1.0, 0.5, 0.5, 0.25]
    """

    initial: float
    every: int
    factor: float = 0.1

    def __post_init__(self) -> None:
        positive(self.initial, "initial")
        whole(self.every, "every")
        if not 0.0 < positive(self.factor, "factor") <= 1.0:
            raise SettingError(f"factor is {self.factor!r}; it must be in (0, 1].")

    def value(self, step: int) -> float:
        return self.initial * math.pow(self.factor, step // self.every)

    def extremes(self, steps: int) -> Iterable[int]:
        return 0, steps - 1


def as_schedule(given: float | Schedule, name: str, zero: bool = False) -> Schedule:
    """`given` as a schedule; a plain number is constant.  Zero is refused unless `zero`."""
    if not isinstance(given, Schedule):
        try:
            given = Constant(float(given))
        except (TypeError, ValueError) as error:
            expected = "a finite number of at least 0" if zero else "a finite number above 0"
            raise SettingError(f"{name} is {given!r}; it must be {expected}, or a schedule such as Growing.") from error
    if not zero and not given.ends_with_run and given.value(0) <= 0.0:
        raise SettingError(f"{name} is {given!r}; it must be above 0.")
    return given


def require_schedule(given: float | Schedule, name: str, steps: int, zero: bool = False) -> float:
    """The largest number of the first `steps` steps; an error unless each is finite and above 0, or 0 with `zero`."""
    schedule, largest = as_schedule(given, name, zero), 0.0
    for step in schedule.extremes(steps):
        number: float | None = None
        with contextlib.suppress(OverflowError):
            number = schedule.value(step)
        if number is None or not (0.0 < number < math.inf or (zero and number == 0.0)):
            raise SettingError(
                f"{name} is {given!r}, and at step {step} that is {'out of range' if number is None else number}; it "
                f"must be finite and {'at least' if zero else 'above'} 0 at each of the {steps} steps, counted from 0: "
                "take another schedule, or fewer steps."
            )
        largest = max(largest, number)
    return largest
