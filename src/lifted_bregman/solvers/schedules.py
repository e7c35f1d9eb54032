"""Numbers that may change from step to step: proximal weights and step sizes."""

from __future__ import annotations

import contextlib
import math
from abc import ABC, abstractmethod
from collections.abc import Iterable
from dataclasses import dataclass

from lifted_bregman.activations._base import positive
from lifted_bregman.errors import SettingError

_LOOKED_AT = 10**6


class Schedule(ABC):
    """A sequence of numbers."""

    @abstractmethod
    def value(self, step: int) -> float:
        """The number for step k = 0, 1, ..."""

    def extremes(self, steps: int) -> Iterable[int]:
        """Those of the first `steps` steps at which it is least and largest; where that is not known, up to a million.

        There its numbers are looked at before a run.
        """
        return range(min(steps, _LOOKED_AT))


@dataclass(frozen=True)
class Constant(Schedule):
    """The same number at every step.

    number  >= 0
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


def as_schedule(given: float | Schedule, name: str, zero: bool = False) -> Schedule:
    """`given` as a schedule; a plain number is constant.  Zero is refused unless `zero`."""
    if not isinstance(given, Schedule):
        try:
            given = Constant(float(given))
        except (TypeError, ValueError) as error:
            expected = "a finite number of at least 0" if zero else "a finite number above 0"
            raise SettingError(f"{name} is {given!r}; it must be {expected}, or a schedule such as Growing.") from error
    if not zero and given.value(0) <= 0.0:
        raise SettingError(f"{name} is {given!r}; it must be above 0.")
    return given


def require_numbers(given: float | Schedule, name: str, steps: int, zero: bool = False) -> float:
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
