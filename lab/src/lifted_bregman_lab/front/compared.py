"""Lifted training beside an opponent, run by run, and the networks that the README groups problems by."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from statistics import median

from lifted_bregman_lab.race.opponents import OURS, REFERENCE
from lifted_bregman_lab.race.problems import PROBLEMS, Budget
from lifted_bregman_lab.race.store import Row, final
from lifted_bregman_lab.race.verdicts import chosen_rows, finals, verdicts

_SMALL = tuple(name for name, problem in PROBLEMS.items() if problem.group in ("tables", "signals"))
NETWORKS: dict[str, tuple[str, ...]] = {
    "tables and signals, two hidden layers of 256": _SMALL,
    "sparse autoencoders of images, layers of 784": ("fashion-1k", "mnist-1k", "fashion-10k"),
    "image classifiers 784-784-64-64-10": ("mnist-classify", "fashion-classify"),
    "classifier with 20 layers of 64": ("deep-narrow",),
    "deep autoencoders with a code of 30": tuple(name for name in PROBLEMS if name.startswith("deep-autoencoder")),
    "LeNet-5 on MNIST and on CIFAR-10": ("mnist-lenet", "cifar-lenet"),
    "three convolutions on CIFAR-10": ("cifar-cnn",),
    "three residual blocks on CIFAR-10": ("cifar-resnet",),
    "dense layers on CIFAR-10": ("cifar-dense",),
    "128 dense layers in residual blocks": ("residual-128",),
    "GPT on tiny Shakespeare": ("shakespeare",),
}
"""The problems of each line of the tables."""


@dataclass(frozen=True)
class Spread:
    """Values of several runs.

    Args:
        values: one for each problem and seed; ∞ where a run did not get there.
    """

    values: tuple[float, ...]

    @property
    def reached(self) -> tuple[float, ...]:
        """The finite values."""
        return tuple(value for value in self.values if math.isfinite(value))

    def text(self) -> str:
        """The median with the least and the most, and how many runs got there if not all did; "-" without runs."""
        if not self.reached:
            return f"in 0 of {len(self.values)}" if self.values else "-"
        shown = f"{median(self.reached):.2f} ({min(self.reached):.2f} to {max(self.reached):.2f})"
        missed = len(self.values) - len(self.reached)
        return shown + (f" in {len(self.reached)} of {len(self.values)}" if missed else "")


class Compared:
    """The races of one budget, by problem, seed and opponent.

    Args:
        rows: stored rows, with the tunings that chose the rates.
        budget: the races to take.
    """

    def __init__(self, rows: Iterable[Row], budget: Budget) -> None:
        rows = list(rows)
        self._by = {
            criterion: {(row["problem"], row["seed"], row["opponent"]): row for row in chosen}
            for criterion, chosen in chosen_rows(rows, budget).items()
        }
        self.problems = tuple(name for name in PROBLEMS if any(key[0] == name for key in self._by["loss"]))
        self._verdicts = verdicts(finals(rows, budget), OURS)

    def runs(self, criterion: str, problem: str, opponent: str) -> list[Row]:
        """The races of one opponent on one problem at the rate chosen by a criterion, by seed."""
        found = self._by[criterion]
        return [found[key] for key in sorted(found) if (key[0], key[2]) == (problem, opponent)]

    def _pairs(self, criterion: str, problems: Iterable[str], opponent: str) -> list[tuple[Row, Row]]:
        """Our run and the opponent's, of every problem and seed that has both."""
        found = self._by[criterion]
        return [
            (found[problem, seed, OURS], row)
            for (problem, seed, name), row in sorted(found.items())
            if name == opponent and problem in set(problems) and (problem, seed, OURS) in found
        ]

    def step(self, problems: Iterable[str], opponent: str) -> Spread:
        """The time of an opponent's steps over that of as many steps of AdamW."""
        pairs = self._pairs("loss", problems, opponent)
        return Spread(tuple(row["seconds"] / row["reference_seconds"] for _, row in pairs))

    def time_to_reference(self, problems: Iterable[str]) -> Spread:
        """Our time to AdamW's last training loss, over AdamW's time for all its steps."""
        ratios = []
        for ours, row in self._pairs("loss", problems, REFERENCE):
            aim = float(f"{final(row, 'loss'):.6g}")
            reached = [seconds for _, seconds, loss, _ in ours["trace"] if loss <= aim]
            ratios.append(min(reached, default=math.inf) / ours["reference_seconds"])
        return Spread(tuple(ratios))

    def error(self, problems: Iterable[str], opponent: str) -> Spread:
        """Our error on new samples over the opponent's; 1 where both have none."""
        pairs = self._pairs("error", problems, opponent)
        return Spread(tuple(_ratio(final(ours, "error"), final(row, "error")) for ours, row in pairs))

    def verdicts(self, problems: Iterable[str], opponent: str) -> tuple[int, int, int]:
        """On how many problems our error on new samples is lower, equal within the spread of seeds, or higher."""
        table = self._verdicts
        own = table[
            (table["criterion"] == "error") & (table["rival"] == opponent) & table["problem"].isin(list(problems))
        ]["verdict"]
        lower, equal, higher = (int((own == verdict).sum()) for verdict in ("win", "tie", "loss"))
        return lower, equal, higher


def _ratio(ours: float, other: float) -> float:
    if ours == other:
        return 1.0
    return ours / other if other else math.inf
