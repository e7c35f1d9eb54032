"""From the rows of a race to its verdicts: who wins where, average ranks, and time to AdamW's final loss."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import Literal

import pandas as pd

from lifted_bregman_lab.race.opponents import REFERENCE, tuned_as
from lifted_bregman_lab.race.problems import BUDGETS, Budget
from lifted_bregman_lab.race.running import CRITERIA, best_rates
from lifted_bregman_lab.race.store import Row, final

Verdict = Literal["win", "tie", "loss"]
MARKS: dict[Verdict | None, str] = {"win": "\u00a0+", "tie": "", "loss": "\u00a0-", None: ""}
"""What stands behind a number in a table, on the same line."""
SIGMAS = 3.09
"""A difference counts from so many standard errors on: the one-sided 0.1 % point of the normal distribution."""
JUDGED = (*CRITERIA, "seconds")
"""What runs are judged by: training loss, error on new samples, and time as a multiple of AdamW's for as many steps."""


def chosen_rows(rows: Iterable[Row], budget: Budget) -> dict[str, list[Row]]:
    """By criterion, the races of each opponent at the rate that its tuning chose by it.

    The rate chosen by the loss counts for the time, too.  Rates that were not tuned in this budget are those of the
    other one.  Where a rate was not tuned at all, the rows must have one rate only.
    """
    tunings: dict[Budget, dict[tuple[str, str], list[Row]]] = {name: {} for name in BUDGETS}
    races = []
    for row in rows:
        if row["part"] == "tune":
            tunings[row["budget"]].setdefault((row["problem"], row["opponent"]), []).append(row)
        elif row["budget"] == budget:
            races.append(row)
    (other,) = (tunings[name] for name in BUDGETS if name != budget)
    rates = {run: best_rates(tuned) for run, tuned in (other | tunings[budget]).items()}
    chosen: dict[str, dict[tuple[str, str, int], Row]] = {criterion: {} for criterion in JUDGED}
    for row in races:
        run = row["problem"], row["opponent"]
        tuned = row["problem"], tuned_as(row["opponent"])
        for criterion, kept in chosen.items():
            by = "error" if criterion == "error" else "loss"
            if tuned not in rates or row["rate"] == rates[tuned][by]:
                kept[*run, row["seed"]] = row  # of several the last one counts
    return {criterion: list(kept.values()) for criterion, kept in chosen.items()}


def finals(rows: Iterable[Row], budget: Budget) -> pd.DataFrame:
    """One line for each criterion, problem, opponent and seed: the "value" at the end of the run; ∞ if it diverged."""
    lines = [
        (criterion, row["problem"], row["opponent"], row["seed"], _value(row, criterion))
        for criterion, chosen in chosen_rows(rows, budget).items()
        for row in chosen
    ]
    return pd.DataFrame(lines, columns=["criterion", "problem", "opponent", "seed", "value"])


def _value(row: Row, criterion: str) -> float:
    if criterion != "seconds":
        return final(row, criterion)
    return math.inf if row["loss"] is None else float(row["seconds"] / row["reference_seconds"])


def compare_seeds(ours: Sequence[float], rival: Sequence[float]) -> Verdict | None:
    """Whether we win against a rival, by values of the same seeds of which smaller is better.

    A win needs mean(d) √n >= 3.09 σ > or = 0 for the differences d = rival - ours, with their standard deviation σ
    (n - 1 degrees of freedom), and a positive mean; a loss the same with the signs exchanged.  Who diverged with some
    seed loses to whoever did not.  None for a single seed, whose spread is unknown.
    """
    if len(ours) != len(rival):
        raise ValueError(f"{len(ours)} values are compared with {len(rival)}: give those of the same seeds.")
    if len(ours) < 2:
        return None
    failed, failing = (any(map(math.isinf, values)) for values in (ours, rival))
    if failed or failing:
        return "tie" if failed and failing else "loss" if failed else "win"
    differences = pd.Series(rival, dtype=float) - pd.Series(ours, dtype=float)
    mean, limit = differences.mean(), SIGMAS * differences.std(ddof=1) / math.sqrt(len(ours))
    if mean == 0.0 or abs(mean) < limit:
        return "tie"
    return "win" if mean > 0.0 else "loss"


def verdicts(found: pd.DataFrame, ours: str) -> pd.DataFrame:
    """The verdict of `compare_seeds` by "criterion", "problem" and "rival", over the seeds that both have."""
    lines = []
    for (criterion, problem), group in found.groupby(["criterion", "problem"], sort=False):
        table = group.pivot(index="seed", columns="opponent", values="value")
        for rival in table.columns.drop(ours, errors="ignore") if ours in table else ():
            both = table[[ours, rival]].dropna()
            lines.append((criterion, problem, rival, compare_seeds(list(both[ours]), list(both[rival]))))
    return pd.DataFrame(lines, columns=["criterion", "problem", "rival", "verdict"])


def average_ranks(found: pd.DataFrame) -> pd.DataFrame:
    """The average over problems of each opponent's rank by the mean over seeds; equal ones share a rank.

    Columns are the criteria; "problems" is the number of problems on which an opponent ran.
    """
    means = found.groupby(["criterion", "problem", "opponent"], sort=False)["value"].mean().reset_index()
    means["rank"] = means.groupby(["criterion", "problem"])["value"].rank()
    ranks = means.pivot_table(index="opponent", columns="criterion", values="rank")[list(JUDGED)]
    return ranks.assign(problems=means.groupby("opponent")["problem"].nunique()).sort_values("loss")


def times_to_reference(rows: Iterable[Row], budget: Budget) -> pd.DataFrame:
    """The median over seeds of the time to AdamW's final loss, as a multiple of AdamW's time for all its steps.

    One line for each problem, one column for each opponent; ∞ where at most half of the seeds reached it.  A run
    reaches it at the first evaluation that shows it.
    """
    runs = chosen_rows(rows, budget)["loss"]
    aims = {(row["problem"], row["seed"]): final(row, "loss") for row in runs if row["opponent"] == REFERENCE}
    lines = []
    for row in runs:
        if (aim := aims.get((row["problem"], row["seed"]))) is not None:
            reached = [seconds for _, seconds, loss, _ in row["trace"] if float(f"{loss:.6g}") <= float(f"{aim:.6g}")]
            ratio = min(reached, default=math.inf) / row["reference_seconds"]
            lines.append((row["problem"], row["opponent"], ratio))
    table = pd.DataFrame(lines, columns=["problem", "opponent", "ratio"])
    return table.pivot_table(index="problem", columns="opponent", values="ratio", aggfunc="median", sort=False)
