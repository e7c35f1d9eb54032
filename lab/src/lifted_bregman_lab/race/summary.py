"""The tables of a race, as text, and the page of Markdown that the documentation includes."""

from __future__ import annotations

import math
from collections.abc import Iterable

import pandas as pd

from lifted_bregman_lab.race.opponents import OPPONENTS, OURS, Opponent
from lifted_bregman_lab.race.problems import BUDGETS, PROBLEMS, Budget
from lifted_bregman_lab.race.running import CRITERIA
from lifted_bregman_lab.race.store import Row
from lifted_bregman_lab.race.verdicts import average_ranks, chosen_rows, finals, times_to_reference, verdicts
from lifted_bregman_lab.text import Rows, markdown

_OVERVIEW = "Average ranks over the problems (1 is best), and how often lifted wins, ties and loses against each."
_VALUES = {
    "loss": "Training loss at the end, medians over the seeds",
    "error": "Error on new samples at the end, medians over the seeds; in brackets in the units of the data set",
}
_TIMES = "Time to AdamW's final training loss, as a multiple of AdamW's time, medians over the seeds"


def overview_rows(rows: Iterable[Row], budget: Budget) -> Rows:
    """For every opponent its average ranks, our wins, ties and losses against it, and its time."""
    rows = list(rows)
    found = finals(rows, budget)
    judged, times = verdicts(found, OURS), times_to_reference(rows, budget)
    header = ("opponent", "problems", "rank by loss", "rank by error", "rank by time", "time of its steps",
              "time to AdamW's loss", "lifted by loss", "lifted by error")  # fmt: skip
    paces = found[found["criterion"] == "seconds"].groupby("opponent")["value"].median()
    lines = []
    for name, ranks in average_ranks(found).iterrows():
        cells = [str(name), f"{ranks['problems']:.0f}", *(f"{ranks[by]:.1f}" for by in (*CRITERIA, "seconds"))]
        cells += [_number(paces[name], ".2f"), _number(times[name].median() if name in times else math.inf, ".2f")]
        for criterion in CRITERIA:
            own = judged[(judged["criterion"] == criterion) & (judged["rival"] == name)]["verdict"]
            counts = [str((own == verdict).sum()) for verdict in ("win", "tie", "loss")]
            cells.append("-" if name == OURS or own.isna().all() else "-".join(counts))
        lines.append(tuple(cells))
    return header, lines


def value_rows(rows: Iterable[Row], budget: Budget, criterion: str) -> Rows:
    """The median over seeds of every opponent on every problem; the best of a problem is marked by a star."""
    runs = chosen_rows(rows, budget)[criterion]
    units = {row["problem"]: row["unit"] for row in runs}
    found = finals(runs, budget)
    table = _ordered(found[found["criterion"] == criterion].pivot_table("value", "problem", "opponent", "median"))
    lines = []
    for problem, values in table.iterrows():
        texts = [_number(value, ".3g") for value in values]
        if criterion == "error" and units[problem] != 1.0:
            scaled = (_number(value * units[problem], ".3g") for value in values)
            texts = [text if text == "-" else f"{text} ({number})" for text, number in zip(texts, scaled, strict=True)]
        marks = ["*" if value == values.min() else "" for value in values]
        lines.append((str(problem), *(text + mark for text, mark in zip(texts, marks, strict=True))))
    return ("problem", *map(str, table.columns)), lines


def time_rows(rows: Iterable[Row], budget: Budget) -> Rows:
    """The time to AdamW's final loss of every opponent on every problem, as a multiple of AdamW's."""
    table = _ordered(times_to_reference(rows, budget))
    lines = [(str(problem), *(_number(value, ".2f") for value in values)) for problem, values in table.iterrows()]
    return ("problem", *map(str, table.columns)), lines


def race_tables(rows: Iterable[Row]) -> list[tuple[str, Rows]]:
    """Every table with its caption, for each budget that has races."""
    rows, tables = list(rows), []
    for budget in BUDGETS:
        races = [row for row in rows if (row["budget"], row["part"]) == (budget, "race")]
        if races:
            seeds = len({row["seed"] for row in races})
            tables.append((f"{budget.capitalize()} budget, {seeds} seeds. {_OVERVIEW}", overview_rows(rows, budget)))
            tables += [(f"{_VALUES[name]} ({budget}).", value_rows(rows, budget, name)) for name in CRITERIA]
            tables.append((f"{_TIMES} ({budget}).", time_rows(rows, budget)))
    return tables


def race_markdown(rows: Iterable[Row]) -> str:
    """All tables as Markdown."""
    rows = list(rows)
    parts = [f"{caption}\n\n{markdown(table)}\n" for caption, table in race_tables(rows)]
    used = dict.fromkeys(row["opponent"] for row in rows if row["part"] == "race")
    methods: list[tuple[str, ...]] = [
        (name, OPPONENTS[name].title, _rates(OPPONENTS[name])) for name in OPPONENTS if name in used
    ]
    parts.append(f"The opponents and their grids.\n\n{markdown((('opponent', 'method', 'rates'), methods))}\n")
    return "\n".join(parts)


def _rates(opponent: Opponent) -> str:
    grid = ", ".join(f"{rate:g}" for rate in opponent.grid)
    return grid or (f"those of {opponent.rates_of}" if opponent.rates_of else "-")


def _number(value: float, form: str) -> str:
    return format(value, form) if math.isfinite(value) else "-"


def _ordered(table: pd.DataFrame) -> pd.DataFrame:
    """Problems and opponents in the order in which the lab lists them."""
    known, methods = [*PROBLEMS], [*OPPONENTS]
    problems = sorted(table.index, key=lambda name: known.index(name) if name in known else len(known))
    columns = sorted(table.columns, key=lambda name: methods.index(name) if name in methods else len(methods))
    return table.loc[problems, columns]
