"""The tables of a reproduction, as header and rows of text: for the page, the summary and the README."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence

from lifted_bregman_lab.reproduction import Claim, Near, Status, Verdict
from lifted_bregman_lab.reproduction.claims import with_spread
from lifted_bregman_lab.reproduction.exhibits import ShownRow, ShownTable
from lifted_bregman_lab.reproduction.quantities import Missing, Quantity, RunDiverged, spread
from lifted_bregman_lab.reproduction.report.results import Results
from lifted_bregman_lab.text import Rows

NOT_RUN, DIVERGED = "not run", "diverged"
MARKS = dict(zip(Status, "✓✗–○", strict=True))
MARKED = "✓ within what the claim allows of the paper's number, ✗ not."
"""The meaning of the marks in tables."""


def shown_rows(results: Results, table: ShownTable) -> Rows:
    """The measured numbers; where the paper has numbers, a row with them above."""
    beside, rows = has_published(results, table), list[tuple[str, ...]]()
    for row in table.rows:
        measured = [measured_cell(results, cell, table.digits) for cell in row.cells]
        seeds = _seeds(results, row)
        if not beside:
            rows.append((row.title, seeds, *measured))
            continue
        rows.append((row.title, "paper", *(_published(results, cell) for cell in row.cells)))
        rows.append(("", f"here, {seeds} {'seed' if seeds == '1' else 'seeds'}", *measured))
    return ("", "" if beside else "seeds", *table.columns), rows


def measured_cell(results: Results, quantity: Quantity | None, digits: int | None = None) -> str:
    """Mean ± standard deviation over seeds, with a mark where a claim has a number for it."""
    if quantity is None:
        return ""
    try:
        values = quantity.values(results.evidence)
    except Missing:
        return NOT_RUN
    except RunDiverged:
        return DIVERGED
    claim = results.claim_about(quantity)
    mark = "" if claim is None else f" {MARKS[results.verdicts[claim.name].status]}"
    return with_spread(values.mean(), spread(values), digits) + mark


def number_rows(results: Results, claims: Sequence[Claim]) -> Rows:
    """Tolerance, measured number and seeds of each claim that gives a number."""
    rows: list[tuple[str, ...]] = []
    for claim in claims:
        verdict = results.verdicts[claim.name]
        here = "-" if verdict.measured is None else with_spread(verdict.measured, verdict.spread)
        required = (claim.name, claim.statement, claim.rule.required)
        rows.append((*required, here, str(verdict.seeds), marked(verdict.status)))
    return ("claim", "the paper says", "allowed", "here", "seeds", "verdict"), rows


def marked(status: Status) -> str:
    """A status with its mark."""
    return f"{MARKS[status]} {status.value}"


def has_published(results: Results, table: ShownTable) -> bool:
    """Whether any cell has a published number beside it."""
    cells = (cell for row in table.rows for cell in row.cells if cell is not None)
    return any(results.claim_about(cell) is not None for cell in cells)


def reading_rows(results: Results) -> Rows:
    """How many of the claims that another reading can judge are reproduced in it, and in the main reading."""

    def reproduced(judged: Mapping[str, Verdict], claims: Iterable[str]) -> str:
        return str(sum(judged[claim].status is Status.REPRODUCED for claim in claims))

    rows: list[tuple[str, ...]] = [
        (title, str(len(verdicts)), reproduced(verdicts, verdicts), reproduced(results.verdicts, verdicts))
        for title, verdicts in results.readings.items()
    ]
    return ("read with", "claims", "reproduced", "reproduced in the main reading"), rows


def verdict_rows(results: Results) -> Rows:
    """How many claims of each figure have which verdict."""

    def row(title: str, claims: Sequence[Claim]) -> tuple[str, ...]:
        counts = Counter(results.verdicts[claim.name].status for claim in claims)
        return (title, *(str(counts[status]) for status in Status), str(len(claims)))

    judged = [(exhibit.title, results.paper.claims_of(exhibit.figure)) for exhibit in results.exhibits]
    rows = [row(title, claims) for title, claims in judged if claims]
    return ("", *(status.value for status in Status), "claims"), [*rows, row("all", results.paper.claims)]


def run_rows(results: Results) -> Rows:
    """Title, number of stored seeds, seconds of a run and outcomes of every recipe."""
    rows: list[tuple[str, ...]] = []
    for recipe in results.paper.recipes:
        runs = results.evidence.runs(recipe.name).values()
        what = f"{recipe.title}; {recipe.reading}" if recipe.reading else recipe.title
        seconds = f"{sum(run.seconds for run in runs) / len(runs):,.0f}" if runs else "-"
        ended = Counter(run.outcome.lower().replace("_", " ") for run in runs)
        outcomes = ", ".join(word if n == len(runs) else f"{n} {word}" for word, n in sorted(ended.items()))
        rows.append((recipe.name, what, f"{len(runs)} of {len(recipe.seeds)}", seconds, outcomes or NOT_RUN))
    return ("recipe", "what", "seeds", "seconds a run", "ended"), rows


def machine_rows(results: Results) -> Rows:
    """Every value of the environments, with its number of runs where it is not that of all runs."""
    runs, rows = results.evidence.found, list[tuple[str, ...]]()
    for name in dict.fromkeys(name for run in runs for name in run.environment):
        values = Counter(run.environment.get(name, "unknown") for run in runs)
        shown = [value if len(values) == 1 else f"{value} ({number} runs)" for value, number in values.most_common()]
        rows.append((name, ", ".join(shown)))
    total = f"{sum(run.seconds for run in runs):,.0f}"
    return ("what", "value"), [*rows, ("runs", str(len(runs))), ("seconds in steps", total)]


def counted(results: Results) -> str:
    """The verdicts in a sentence."""
    counts = ", ".join(f"{results.counts[status]} {status.value}" for status in Status if results.counts[status])
    return f"{len(results.paper.claims)} claims: {counts}."


def _published(results: Results, quantity: Quantity | None) -> str:
    """The number as the paper prints it."""
    claim = None if quantity is None else results.claim_about(quantity)
    if claim is None or not isinstance(claim.rule, Near):
        return ""
    return f"{claim.rule.value:.10g}" if claim.rule.value % 1 else f"{claim.rule.value:.1f}"


def _seeds(results: Results, row: ShownRow) -> str:
    """The number of stored seeds; from the fewest to the most where the recipes of a row differ."""
    counts = sorted({len(results.evidence.runs(name)) for name in row.recipes} - {0}) or [0]
    return str(counts[0]) if len(counts) == 1 else f"{counts[0]} to {counts[-1]}"
