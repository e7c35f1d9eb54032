"""The tables of a reproduction, as header and rows of text: for the page, the summary and the README."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence

from lifted_bregman_lab.reproduction import (
    All,
    Between,
    Claim,
    Counted,
    Less,
    Near,
    NotApplicable,
    Rule,
    Status,
    Verdict,
)
from lifted_bregman_lab.reproduction.exhibits import ShownRow, ShownTable
from lifted_bregman_lab.reproduction.quantities import Missing, Quantity, RunDiverged, mean, spread
from lifted_bregman_lab.reproduction.report.results import Results

Rows = tuple[tuple[str, ...], list[tuple[str, ...]]]
"""A header, and rows as long as it."""

NOT_RUN, DIVERGED = "not run", "diverged"
MARKS = {
    Status.REPRODUCED: "✓",
    Status.NOT_REPRODUCED: "✗",
    Status.NOT_APPLICABLE: "–",
    Status.NOT_RUN: "○",
}
MARKED = "✓ within what the claim allows of the paper's number, ✗ not."
"""What the marks in tables mean."""


def shown_rows(results: Results, table: ShownTable) -> Rows:
    """What was measured; where the paper has numbers, a row with them above it."""
    beside = has_published(results, table)
    rows: list[tuple[str, ...]] = []
    for row in table.rows:
        measured = [measured_cell(results, cell, table.digits) for cell in row.cells]
        if not beside:
            rows.append((row.title, _seeds(results, row), *measured))
            continue
        rows.append((row.title, "paper", *(_published(results, cell) for cell in row.cells)))
        seeds = _seeds(results, row)
        rows.append(("", f"here, {seeds} {'seed' if seeds == '1' else 'seeds'}", *measured))
    return ("", "" if beside else "seeds", *table.columns), rows


def measured_cell(results: Results, quantity: Quantity | None, digits: int | None = None) -> str:
    """Mean ± standard deviation over seeds, with a mark where a claim has a number for it."""
    if quantity is None:
        return ""
    try:
        values = list(quantity.values(results.evidence).values())
    except Missing:
        return NOT_RUN
    except RunDiverged:
        return DIVERGED
    text = _with_spread(mean(values), spread(values), digits)
    claim = results.claim_about(quantity)
    return text if claim is None else f"{text} {MARKS[results.verdicts[claim.name].status]}"


def number_rows(results: Results, claims: Sequence[Claim]) -> Rows:
    """One row for each claim that gives a number: what is allowed, what was measured, by how many seeds."""
    header = ("claim", "the paper says", "allowed", "here", "seeds", "verdict")
    rows: list[tuple[str, ...]] = []
    for claim in claims:
        verdict = results.verdicts[claim.name]
        rows.append(
            (
                claim.name,
                claim.statement,
                required(claim.rule),
                "-" if verdict.measured is None else _with_spread(verdict.measured, verdict.spread, None),
                str(verdict.seeds),
                told(verdict.status),
            )
        )
    return header, rows


def told(status: Status) -> str:
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
    titles = {exhibit.figure: exhibit.title for exhibit in results.paper.exhibits}
    order = [name for name in titles if results.paper.claims_of(name)]
    order += [name for name in results.paper.figures if name not in titles and results.paper.claims_of(name)]
    rows = []
    for name in order:
        claims = results.paper.claims_of(name)
        counts = Counter(results.verdicts[claim.name].status for claim in claims)
        rows.append((titles.get(name, name), *(str(counts[status]) for status in Status), str(len(claims))))
    rows.append(("all", *(str(results.counts[status]) for status in Status), str(len(results.paper.claims))))
    return ("", *(status.value for status in Status), "claims"), rows


def run_rows(results: Results) -> Rows:
    """Every recipe: what it is, how many of its seeds are stored, how long a run took, how the runs ended."""
    header = ("recipe", "what", "seeds", "seconds a run", "ended")
    rows: list[tuple[str, ...]] = []
    for recipe in results.paper.recipes:
        runs = list(results.evidence.runs(recipe.name).values())
        what = f"{recipe.title}; {recipe.reading}" if recipe.reading else recipe.title
        seconds = f"{mean([run.seconds for run in runs]):,.0f}" if runs else "-"
        ended = Counter(run.outcome.lower().replace("_", " ") for run in runs)
        told = ", ".join(word if count == len(runs) else f"{count} {word}" for word, count in sorted(ended.items()))
        rows.append((recipe.name, what, f"{len(runs)} of {len(recipe.seeds)}", seconds, told or NOT_RUN))
    return header, rows


def machine_rows(results: Results) -> Rows:
    """Where the runs took place: every value that occurs, with the number of runs where it is not that of all."""
    runs = results.evidence.found
    rows: list[tuple[str, ...]] = []
    for name in dict.fromkeys(name for run in runs for name in run.environment):
        values = Counter(run.environment.get(name, "unknown") for run in runs)
        told = [value if len(values) == 1 else f"{value} ({count} runs)" for value, count in values.most_common()]
        rows.append((name, ", ".join(told)))
    rows.append(("runs", str(len(runs))))
    rows.append(("seconds in steps", f"{sum(run.seconds for run in runs):,.0f}"))
    return ("what", "value"), rows


def counted(results: Results) -> str:
    """The verdicts in a sentence."""
    told = ", ".join(f"{results.counts[status]} {status.value}" for status in Status if results.counts[status])
    return f"{len(results.paper.claims)} claims: {told}."


def required(rule: Rule) -> str:
    """What has to hold, in a few words: the published number with its tolerance, or the kind of inequality."""
    match rule:
        case Near():
            return f"{rule.value:.10g} ± {rule.tolerance:g}"
        case Between():
            bounds = (("at least", rule.low), ("at most", rule.high))
            return " and ".join(f"{word} {bound:.4g}" for word, bound in bounds if bound is not None)
        case Less():
            return "strictly less"
        case Counted():
            return f"{rule.published:,}"
        case NotApplicable():
            return "no measure"
        case All():
            kinds = list(dict.fromkeys(required(part) for part in rule.rules))
            repeated = len(kinds) == 1 and len(rule.rules) > 1
            return f"{kinds[0]}, {len(rule.rules)} times" if repeated else "; ".join(kinds)
    return "see the reason"


def _published(results: Results, quantity: Quantity | None) -> str:
    """As it was printed."""
    claim = None if quantity is None else results.claim_about(quantity)
    if claim is None or not isinstance(claim.rule, Near):
        return ""
    return f"{claim.rule.value:.10g}" if claim.rule.value % 1 else f"{claim.rule.value:.1f}"


def _with_spread(value: float, deviation: float | None, digits: int | None) -> str:
    if digits is None:
        return f"{value:.4g}" if deviation is None else f"{value:.4g} ± {deviation:.2g}"
    return f"{value:.{digits}f}" if deviation is None else f"{value:.{digits}f} ± {deviation:.{digits}f}"


def _seeds(results: Results, row: ShownRow) -> str:
    """How many are stored; from the fewest to the most where the recipes of a row differ."""
    counts = sorted({len(results.evidence.runs(name)) for name in row.recipes} - {0}) or [0]
    return str(counts[0]) if len(counts) == 1 else f"{counts[0]} to {counts[-1]}"
