"""Claims: a statement of a paper as a rule on stored runs, and the verdict that the runs give."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from enum import Enum

import numpy as np
import pandas as pd

from lifted_bregman.errors import SettingError
from lifted_bregman_lab.reproduction.quantities import Missing, Quantity, ReadsRuns, RunDiverged, paired, spread
from lifted_bregman_lab.reproduction.store import Evidence
from lifted_bregman_lab.text import count


class Status(Enum):
    """The verdict on a claim in a word."""

    REPRODUCED = "reproduced"
    NOT_REPRODUCED = "not reproduced"
    NOT_APPLICABLE = "not applicable"
    NOT_RUN = "not run yet"


@dataclass(frozen=True)
class Verdict:
    """The verdict of stored runs on a claim.

    Args:
        status: in a word.
        sentence: the numbers it rests on, or the reason.
        brief: the same in a few words, for a list.
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


@dataclass(frozen=True)
class Rule(ReadsRuns, ABC):
    """A condition on means over seeds."""

    @property
    def required(self) -> str:
        """The published number with its tolerance, or the kind of inequality, in a few words."""
        return "see the reason"

    @abstractmethod
    def judge(self, evidence: Evidence) -> Verdict:
        """The verdict; raises `Missing` or `RunDiverged` where runs are missing or diverged."""


@dataclass(frozen=True)
class Near(Rule):
    """|mean - value| <= tolerance.

    quantity   the measured quantity
    value      the published number
    tolerance  > 0
    """

    quantity: Quantity
    value: float
    tolerance: float

    def __post_init__(self) -> None:
        if not self.tolerance > 0.0:
            raise SettingError(f"tolerance is {self.tolerance:g}; it must be above 0.")

    @property
    def required(self) -> str:
        return f"{self.value:.10g} ± {self.tolerance:g}"

    def judge(self, evidence: Evidence) -> Verdict:
        values = self.quantity.values(evidence)
        brief, good = _mean(values), abs(values.mean() - self.value) <= self.tolerance
        return _verdict(good, values, f"{brief}; published {self.value:g}, allowed ±{self.tolerance:g}", brief)


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
    def required(self) -> str:
        bounds = (("at least", self.low), ("at most", self.high))
        return " and ".join(f"{word} {bound:.4g}" for word, bound in bounds if bound is not None)

    def judge(self, evidence: Evidence) -> Verdict:
        values = self.quantity.values(evidence)
        low, high, mean = self.low, self.high, values.mean()
        brief, good = _mean(values), (low is None or mean >= low) and (high is None or mean <= high)
        return _verdict(good, values, f"{self.what} is {brief}, and has to be {self.required}", brief)


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
    def required(self) -> str:
        return "strictly less"

    def judge(self, evidence: Evidence) -> Verdict:
        left, right = paired(self.left, self.right, evidence)
        one, other, good = _mean(left), _mean(right), left.mean() < right.mean()
        return _verdict(good, left, f"{self.left_name} {one}, {self.right_name} {other}", f"{one} against {other}")


@dataclass(frozen=True)
class All(Rule):
    """Every one of several rules."""

    rules: tuple[Rule, ...]

    @property
    def required(self) -> str:
        kinds = list(dict.fromkeys(rule.required for rule in self.rules))
        repeated = len(kinds) == 1 and len(self.rules) > 1
        return f"{kinds[0]}, {len(self.rules)} times" if repeated else "; ".join(kinds)

    def judge(self, evidence: Evidence) -> Verdict:
        verdicts = [rule.judge(evidence) for rule in self.rules]
        holds = [verdict.sentence for verdict in verdicts if verdict.status is Status.REPRODUCED]
        fails = [verdict.sentence for verdict in verdicts if verdict.status is not Status.REPRODUCED]
        listed = (("does not hold", fails), ("holds", holds))
        sentence = ". ".join(f"{word}: {'. '.join(sentences)}" for word, sentences in listed if sentences)
        seeds = min(verdict.seeds for verdict in verdicts)
        return Verdict(_status(not fails), sentence, f"{len(holds)} of {len(verdicts)} hold", seeds=seeds)


@dataclass(frozen=True)
class Counted(Rule):
    """A whole number that follows from the settings alone: no run is needed.

    published  the number in the paper
    computed   the number that follows
    what       it counts
    """

    published: int
    computed: int
    what: str

    @property
    def required(self) -> str:
        return f"{self.published:,}"

    def judge(self, evidence: Evidence) -> Verdict:
        brief = f"{self.computed:,}"
        sentence = f"{self.what}: {brief}; published {self.published:,}"
        return Verdict(_status(self.computed == self.published), sentence, brief, float(self.computed))


@dataclass(frozen=True)
class NotApplicable(Rule):
    """No measure exists; the reason says why.

    of  the recipes whose stored pictures a reader may judge by
    """

    reason: str
    of: tuple[str, ...] = ()

    @property
    def recipes(self) -> tuple[str, ...]:
        return self.of

    @property
    def required(self) -> str:
        return "no measure"

    def judge(self, evidence: Evidence) -> Verdict:
        return Verdict(Status.NOT_APPLICABLE, self.reason)


@dataclass(frozen=True)
class Claim(ReadsRuns):
    """One number or finding of a paper.

    Args:
        name: in lower case with hyphens, unlike that of any other claim.
        figure: the table or figure that it belongs to.
        statement: the paper's statement, in our words.
        rule: the condition for the claim to hold.
        why: the reason for the rule, its tolerance or its bound.
    """

    name: str
    figure: str
    statement: str
    rule: Rule
    why: str

    def verdict(self, evidence: Evidence) -> Verdict:
        """The verdict of the stored runs."""
        try:
            return self.rule.judge(evidence)
        except RunDiverged as diverged:
            return Verdict(Status.NOT_REPRODUCED, str(diverged), "diverged")
        except Missing as missing:
            return Verdict(Status.NOT_RUN, f"there is no finished run of {missing}")


def _verdict(good: bool, values: pd.Series, sentence: str, brief: str) -> Verdict:
    """The verdict by the mean of `values`, one for each seed; the sentence ends with the number of seeds."""
    seeds = len(values)
    return Verdict(_status(good), f"{sentence}; {count(seeds, 'seed')}", brief, values.mean(), spread(values), seeds)


def _status(good: bool) -> Status:
    return Status.REPRODUCED if good else Status.NOT_REPRODUCED


def _mean(values: pd.Series) -> str:
    """Mean and spread in words; the number of seeds whose run diverged, where there are any."""
    diverged = int(np.isinf(values).sum())
    if diverged:
        return "diverged" if diverged == len(values) else f"diverged with {diverged} of {count(len(values), 'seed')}"
    return with_spread(values.mean(), spread(values))


def with_spread(value: float, deviation: float | None, digits: int | None = None) -> str:
    """A mean ± its standard deviation, with so many digits after the point; None for four significant digits."""
    first, second = (".4g", ".2g") if digits is None else (f".{digits}f", f".{digits}f")
    return f"{value:{first}}" if deviation is None else f"{value:{first}} ± {deviation:{second}}"
