"""What follows from the measurements: gains, the model's inputs, and how well it predicts what it was not fitted to."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from statistics import median

from lifted_bregman_lab.scale.cases import Case, Use
from lifted_bregman_lab.scale.measuring import ALONE, BESIDE, SHARED
from lifted_bregman_lab.scale.model import ComputingCost, Layout, Link, Links, Network, sent, step_seconds
from lifted_bregman_lab.scale.results import Measured, Scale

WITHIN = 0.2
"""The relative error that predictions are to keep."""


@dataclass(frozen=True)
class Gain:
    """What two processes gain in a case: medians over the rounds.

    speed_up  time of one process over that of two, which share the same work
    ceiling   twice the time of one over that of two that work at once, each for itself: what the machine allows
    """

    case: Case
    alone: float
    shared: float
    speed_up: float
    low: float
    high: float
    ceiling: float
    sent: int

    @property
    def efficiency(self) -> float:
        """The speed-up as a share of 2."""
        return self.speed_up / 2

    @property
    def reached(self) -> bool | None:
        """Whether the goal is; None where there is none."""
        return None if self.case.goal is None else self.speed_up >= self.case.goal


@dataclass(frozen=True)
class Checked:
    """A prediction of the model beside the measurement."""

    case: Case
    predicted: float
    measured: float

    @property
    def error(self) -> float:
        """Relative, above 0 where the model says too long."""
        return self.predicted / self.measured - 1.0


@dataclass(frozen=True)
class Model:
    """The inputs of the model as they were measured."""

    costs: Mapping[str, ComputingCost]
    links: Links


def gains(scale: Scale) -> list[Gain]:
    """One for each case."""
    return [_gain(measured) for measured in scale.measured]


def calibrated(scale: Scale) -> Model | None:
    """The model's inputs, None while what they follow from is not all measured.

    Computing is that of two processes at once, each for itself: what a worker takes while others work too.
    """
    points: dict[str, list[tuple[Network, float]]] = {}
    for measured in scale.measured:
        if measured.case.use is Use.CALIBRATE:
            points.setdefault(measured.case.algorithm, []).append(
                (network_of(measured.case), median(measured.times[BESIDE]))
            )
    if not points or scale.links is None:
        return None
    links = Links(Link.fit(scale.links["sum"], messages=2), Link.fit(scale.links["rows"]))
    return Model({name: ComputingCost.fit(found) for name, found in points.items()}, links)


def checks(scale: Scale, use: Use = Use.CHECK) -> list[Checked]:
    """Predictions for the cases of a use, by default those that the model was not fitted to."""
    model = calibrated(scale)
    if model is None:
        return []
    found = []
    for measured in scale.measured:
        case = measured.case
        if case.use is use and case.algorithm in model.costs:
            layout = layout_of(case)
            cost = model.costs[case.algorithm]
            predicted = step_seconds(case.algorithm, cost, network_of(case), layout, model.links)
            found.append(Checked(case, predicted, median(measured.times[SHARED])))
    return found


def bytes_by_formula(case: Case) -> int | None:
    """What the worker that sends most sends in a step, None for algorithms without a formula here."""
    network, layout = network_of(case), layout_of(case)
    rows = 4 * network.samples * network.width
    if case.shared == "layer":
        return rows + 8 * (case.algorithm != "Gram sweep in parts")
    if case.algorithm == "simultaneous sweep":
        return sent(case.algorithm, network, layout)[0] + (network.depth - 1) * rows // 2
    return sent(case.algorithm, network, layout)[0] if case.algorithm in ("Gram sweep", "back-propagation") else None


def network_of(case: Case) -> Network:
    """The network and the whole batch of a case."""
    return Network(case.depth, case.width, case.samples)


def layout_of(case: Case) -> Layout:
    """The two workers of a case."""
    return Layout(**{case.shared: 2})


def _gain(measured: Measured) -> Gain:
    alone, beside, shared = (measured.times[name] for name in (ALONE, BESIDE, SHARED))
    ratios = sorted(one / two for one, two in zip(alone, shared, strict=True))
    low, high = (ratios[round(part * (len(ratios) - 1))] for part in (0.1, 0.9))
    return Gain(
        measured.case,
        median(alone),
        median(shared),
        median(ratios),
        low,
        high,
        2.0 * median(one / two for one, two in zip(alone, beside, strict=True)),
        int(max(measured.sent)),
    )
