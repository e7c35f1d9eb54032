"""Claims: what a paper says, as a rule on stored runs, and the verdict that the runs give."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum

from lifted_bregman.errors import SettingError
from lifted_bregman_lab.reproduction.quantities import Missing, Quantity, RunDiverged, mean, spread
from lifted_bregman_lab.reproduction.store import Evidence


class Status(Enum):
    """What came of a claim."""

    REPRODUCED = "reproduced"
    NOT_REPRODUCED = "not reproduced"
    NOT_APPLICABLE = "not applicable"
    NOT_RUN = "not run yet"


@dataclass(frozen=True)
class Verdict:
    """What stored runs say about a claim.

    Args:
        status: in a word.
        sentence: the numbers it rests on, or the reason.
        brief: the same in a few words, as they stand in a list.
        measured: the mean over seeds; None where there is no one number.
        spread: the standard deviation over seeds; None for fewer than two.
        seeds: how many it rests on.
    """

    status: Status
    sentence: str
    brief: str = ""
    measured: float | None = None
    spread: float | None = None
    seeds: int = 0


class Rule(ABC):
    """What has to hold for a claim, on the mean over seeds."""

    @property
    @abstractmethod
    def recipes(self) -> tuple[str, ...]:
        """The recipes that it needs."""

    @abstractmethod
    def judge(self, evidence: Evidence) -> Verdict:
        """The verdict; raises `Missing` or `RunDiverged` where runs are missing or diverged."""


@dataclass(frozen=True)
class Near(Rule):
    """|mean - value| <= tolerance.

    quantity   what is measured
    value      what the paper has
    tolerance  > 0
    """

    quantity: Quantity
    value: float
    tolerance: float

    def __post_init__(self) -> None:
        if not self.tolerance > 0.0:
            raise SettingError(f"tolerance is {self.tolerance:g}; it must be above 0.")

    @property
    def recipes(self) -> tuple[str, ...]:
        return self.quantity.recipes

    def judge(self, evidence: Evidence) -> Verdict:
        values = list(self.quantity.values(evidence).values())
        good = abs(mean(values) - self.value) <= self.tolerance
        return _verdict(good, values, f"; published {self.value:g}, allowed ±{self.tolerance:g}")


@dataclass(frozen=True)
class Between(Rule):
    """low <= mean <= high; None for no bound.

    what  the quantity in words
    """

    quantity: Quantity
    what: str
    low: float | None = None
    high: float | None = None

    def __post_init__(self) -> None:
        if self.low is None and self.high is None:
            raise SettingError("low and high are both None: give at least one.")

    @property
    def recipes(self) -> tuple[str, ...]:
        return self.quantity.recipes

    def judge(self, evidence: Evidence) -> Verdict:
        values = list(self.quantity.values(evidence).values())
        low, high, found = self.low, self.high, mean(values)
        good = (low is None or found >= low) and (high is None or found <= high)
        bounds = [] if low is None else [f"at least {low:.4g}"]
        bounds += [] if high is None else [f"at most {high:.4g}"]
        return _verdict(good, values, f", and has to be {' and '.join(bounds)}", f"{self.what} is ")


@dataclass(frozen=True)
class Less(Rule):
    """mean of `left` < mean of `right` on their common seeds, strictly; one ∞ makes a mean ∞.

    left_name, right_name  the two in words
    """

    left: Quantity
    right: Quantity
    left_name: str
    right_name: str

    @property
    def recipes(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys((*self.left.recipes, *self.right.recipes)))

    def judge(self, evidence: Evidence) -> Verdict:
        left, right = self.left.values(evidence), self.right.values(evidence)
        seeds = [seed for seed in left if seed in right]
        if not seeds:
            raise Missing(" and ".join(self.recipes))
        first, second = [left[seed] for seed in seeds], [right[seed] for seed in seeds]
        good = mean(first) < mean(second)
        sentence = f"{self.left_name} {_numbers(first)}, {self.right_name} {_numbers(second)}; {_seeds(len(seeds))}"
        brief = f"{_numbers(first)} against {_numbers(second)}"
        return Verdict(_status(good), sentence, brief, mean(first), spread(first), len(seeds))


@dataclass(frozen=True)
class All(Rule):
    """Every one of several rules."""

    rules: tuple[Rule, ...]

    @property
    def recipes(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys(name for rule in self.rules for name in rule.recipes))

    def judge(self, evidence: Evidence) -> Verdict:
        verdicts = [rule.judge(evidence) for rule in self.rules]
        good = all(verdict.status is Status.REPRODUCED for verdict in verdicts)
        failing = [verdict.sentence for verdict in verdicts if verdict.status is not Status.REPRODUCED]
        held = [verdict.sentence for verdict in verdicts if verdict.status is Status.REPRODUCED]
        parts = [f"{word}: {'. '.join(said)}" for word, said in (("does not hold", failing), ("holds", held)) if said]
        brief = f"{len(held)} of {len(verdicts)} hold"
        return Verdict(_status(good), ". ".join(parts), brief, seeds=min(verdict.seeds for verdict in verdicts))


@dataclass(frozen=True)
class Counted(Rule):
    """A whole number that follows from the settings alone: no run is needed.

    published  what the paper has
    computed   what it is
    what       it counts
    """

    published: int
    computed: int
    what: str

    @property
    def recipes(self) -> tuple[str, ...]:
        return ()

    def judge(self, evidence: Evidence) -> Verdict:
        brief = f"{self.computed:,}"
        sentence = f"{self.what}: {brief}; published {self.published:,}"
        return Verdict(_status(self.computed == self.published), sentence, brief, float(self.computed))


@dataclass(frozen=True)
class NotApplicable(Rule):
    """Nothing that could be measured; the reason says why.

    of  the recipes whose stored pictures a reader may judge by
    """

    reason: str
    of: tuple[str, ...] = ()

    @property
    def recipes(self) -> tuple[str, ...]:
        return self.of

    def judge(self, evidence: Evidence) -> Verdict:
        return Verdict(Status.NOT_APPLICABLE, self.reason)


@dataclass(frozen=True)
class Claim:
    """One number or finding of a paper.

    Args:
        name: in lower case with hyphens, unlike that of any other claim.
        figure: the table or figure that it belongs to.
        statement: what the paper says, in our words.
        rule: what has to hold.
        why: why the rule, its tolerance or its bound is what it is.
    """

    name: str
    figure: str
    statement: str
    rule: Rule
    why: str

    @property
    def recipes(self) -> tuple[str, ...]:
        """The recipes that produce it."""
        return self.rule.recipes

    def verdict(self, evidence: Evidence) -> Verdict:
        """What the stored runs say."""
        try:
            return self.rule.judge(evidence)
        except RunDiverged as diverged:
            return Verdict(Status.NOT_REPRODUCED, str(diverged), "diverged")
        except Missing as missing:
            return Verdict(Status.NOT_RUN, f"there is no finished run of {missing}")


def _verdict(good: bool, values: Sequence[float], bounds: str, before: str = "") -> Verdict:
    brief = _numbers(values)
    sentence = f"{before}{brief}{bounds}; {_seeds(len(values))}"
    return Verdict(_status(good), sentence, brief, mean(values), spread(values), len(values))


def _status(good: bool) -> Status:
    return Status.REPRODUCED if good else Status.NOT_REPRODUCED


def _numbers(values: Sequence[float]) -> str:
    lost = sum(math.isinf(value) for value in values)
    if lost:
        return "diverged" if lost == len(values) else f"diverged with {lost} of {_seeds(len(values))}"
    deviation = spread(values)
    return f"{mean(values):.4g}" if deviation is None else f"{mean(values):.4g} ± {deviation:.2g}"


def _seeds(count: int) -> str:
    return "1 seed" if count == 1 else f"{count} seeds"
