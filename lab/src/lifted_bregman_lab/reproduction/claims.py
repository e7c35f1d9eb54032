"""Claims: a statement of a paper as a rule on stored runs, and the verdict that the runs give."""

from __future__ import annotations

import math
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
    UNDECIDED = "undecided"
    """A bound lies within two standard errors of the mean over seeds."""
    ERRATUM = "erratum"
    """The paper prints a number that contradicts its own settings."""
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
    """A condition on means over seeds.

    With two seeds or more it is undecided where a bound lies within two standard errors of the mean, on either side.
    """

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
        status = _decide(good, values, self.value - self.tolerance, self.value + self.tolerance)
        return _verdict(status, values, f"{brief}; published {self.value:g}, allowed ±{self.tolerance:g}", brief)


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
        status = _decide(good, values, *(bound for bound in (low, high) if bound is not None))
        return _verdict(status, values, f"{self.what} is {brief}, and has to be {self.required}", brief)


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
        one, other = _mean(left), _mean(right)
        status = _decide(left.mean() < right.mean(), left - right, 0.0)
        return _verdict(status, left, f"{self.left_name} {one}, {self.right_name} {other}", f"{one} against {other}")


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
        found = {
            status: [verdict.sentence for verdict in verdicts if verdict.status is status]
            for status in (Status.NOT_REPRODUCED, Status.UNDECIDED, Status.REPRODUCED)
        }
        words = ("does not hold", "is undecided", "holds")
        listed = [(word, sentences) for word, sentences in zip(words, found.values(), strict=True) if sentences]
        status = next(status for status, sentences in found.items() if sentences)
        sentence = ". ".join(f"{word}: {'. '.join(sentences)}" for word, sentences in listed)
        brief = f"{len(found[Status.REPRODUCED])} of {len(verdicts)} hold"
        return Verdict(status, sentence, brief, seeds=min(verdict.seeds for verdict in verdicts))


@dataclass(frozen=True)
class Counted(Rule):
    """A whole number that follows from the settings alone: no run is needed, and another one in print is an erratum.

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
        status = Status.REPRODUCED if self.computed == self.published else Status.ERRATUM
        return Verdict(status, sentence, brief, float(self.computed))


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
class Quoted(Rule):
    """A number that the paper quotes from other work, without settings: it stands beside ours and is not judged.

    quantity  ours
    value     the published number
    reason    where it comes from
    """

    quantity: Quantity
    value: float
    reason: str

    @property
    def required(self) -> str:
        return f"{self.value:.10g}, quoted"

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
        same_as: the name of the claim that states the same fact; empty for the first or only one.
    """

    name: str
    figure: str
    statement: str
    rule: Rule
    why: str
    same_as: str = ""

    @property
    def fact(self) -> str:
        """The name of the first claim that states its fact."""
        return self.same_as or self.name

    def verdict(self, evidence: Evidence) -> Verdict:
        """The verdict of the stored runs."""
        try:
            return self.rule.judge(evidence)
        except RunDiverged as diverged:
            return Verdict(Status.NOT_REPRODUCED, str(diverged), "diverged")
        except Missing as missing:
            return Verdict(Status.NOT_RUN, f"there is no finished run of {missing}")


def _verdict(status: Status, values: pd.Series, sentence: str, brief: str) -> Verdict:
    """The verdict by the mean of `values`, one for each seed; the sentence ends with the number of seeds."""
    seeds = len(values)
    return Verdict(status, f"{sentence}; {count(seeds, 'seed')}", brief, values.mean(), spread(values), seeds)


def _decide(good: bool, values: pd.Series, *bounds: float) -> Status:
    """Whether the mean of `values` is `good`; undecided where |mean - bound| < 2 s / √n for one of the bounds."""
    deviation = spread(values)
    if deviation is not None:
        error = deviation / math.sqrt(len(values))
        if any(abs(values.mean() - bound) < 2.0 * error for bound in bounds):
            return Status.UNDECIDED
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
