"""The tables of a reproduction, as header and rows of text: for the page, the summary and the README."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence

from lifted_bregman_lab.reproduction import Claim, Near, Quoted, Reading, Status, Verdict
from lifted_bregman_lab.reproduction.claims import with_spread
from lifted_bregman_lab.reproduction.exhibits import ShownRow, ShownTable
from lifted_bregman_lab.reproduction.quantities import Missing, Quantity, RunDiverged, spread
from lifted_bregman_lab.reproduction.report.results import Results
from lifted_bregman_lab.text import Rows, count

NOT_RUN, DIVERGED = "not run", "diverged"
MARKS = dict(zip(Status, "✓✗≈!–○", strict=True))


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
    """Mean ± standard deviation over seeds."""
    if quantity is None:
        return ""
    try:
        values = quantity.values(results.evidence)
    except Missing:
        return NOT_RUN
    except RunDiverged:
        return DIVERGED
    return with_spread(values.mean(), spread(values), digits)


def within(results: Results, table: ShownTable) -> str:
    """How many of the paper's numbers in a table are reproduced, by which tolerance; empty where it has none."""
    named = [results.claim_about(cell) for row in table.rows for cell in row.cells if cell is not None]
    claims = [claim for claim in named if claim is not None]
    judged = [claim for claim in claims if isinstance(claim.rule, Near)]
    if not judged:
        return ""
    allowed = sorted({claim.rule.tolerance for claim in judged if isinstance(claim.rule, Near)})
    counts = Counter(results.verdicts[claim.name].status for claim in judged)
    few = [f"{counts[status]} {status.value}" for status in (Status.UNDECIDED, Status.NOT_RUN) if counts[status]]
    quoted = len(claims) - len(judged)
    few += [f"{count(quoted, 'other')} quoted from earlier work and not judged"] if quoted else []
    said = f"{counts[Status.REPRODUCED]} of {len(judged)} numbers of the paper are reproduced"
    return "; ".join([f"{said}, within {' or '.join(f'±{one:g}' for one in allowed)}", *few]) + "."


def number_rows(results: Results, claims: Sequence[Claim]) -> Rows:
    """Tolerance, measured number and seeds of each claim that gives a number."""
    rows: list[tuple[str, ...]] = []
    for claim in claims:
        verdict = results.verdicts[claim.name]
        here = measured_cell(results, claim.rule.quantity) if isinstance(claim.rule, Near | Quoted) else "-"
        required = (claim.name, claim.statement, claim.rule.required)
        seeds = _seeds(results, claim)
        rows.append((*required, here, seeds, marked(verdict.status)))
    return ("claim", "the paper says", "allowed", "here", "seeds", "verdict"), rows


def marked(status: Status) -> str:
    """A status with its mark."""
    return f"{MARKS[status]} {status.value}"


def has_published(results: Results, table: ShownTable) -> bool:
    """Whether any cell has a published number beside it."""
    cells = (cell for row in table.rows for cell in row.cells if cell is not None)
    return any(results.claim_about(cell) is not None for cell in cells)


def reading_rows(results: Results) -> Rows:
    """How many of the claims that another reading can judge are reproduced in it, without its choice, and in the main
    reading.
    """

    def reproduced(judged: Mapping[str, Verdict], claims: Iterable[str]) -> str:
        return str(sum(judged[claim].status is Status.REPRODUCED for claim in claims if claim in judged))

    def before(reading: Reading) -> Mapping[str, Verdict]:
        """The verdicts without the reading's own choice; a claim that its base does not change has the main verdict."""
        found = {} if reading.base is None else results.readings.get(reading.base.title, {})
        return {**results.verdicts, **found}

    rows: list[tuple[str, ...]] = []
    for reading in results.paper.readings:
        verdicts = results.readings.get(reading.title)
        if verdicts is not None:
            counts = (reproduced(judged, verdicts) for judged in (verdicts, before(reading), results.verdicts))
            rows.append((reading.title, str(len(verdicts)), *counts))
    return ("read with", "claims", "reproduced", "without this choice", "in the main reading"), rows


def cause_rows(results: Results) -> Rows:
    """How many claims are not reproduced, and how many facts these are, by cause."""
    texts = {cause.title: cause.text for cause in results.paper.causes}
    rows: list[tuple[str, ...]] = [
        (title, str(len(claims)), str(len({claim.fact for claim in claims})), texts.get(title, ""))
        for title, claims in results.failed.items()
    ]
    return ("cause", "claims", "facts", "evidence"), rows


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
    first = f"{len(results.paper.claims)} claims: {_in_words(results.counts)}."
    if results.facts == results.counts:
        return first
    repeated = f"{results.facts.total()} facts: {_in_words(results.facts)}."
    return f"{first} Where several claims state one fact, it is counted once: {repeated}"


def _in_words(counts: Counter[Status]) -> str:
    return ", ".join(f"{counts[status]} {status.value}" for status in Status if counts[status])


def _published(results: Results, quantity: Quantity | None) -> str:
    """The number as the paper prints it."""
    claim = None if quantity is None else results.claim_about(quantity)
    if claim is None or not isinstance(claim.rule, Near | Quoted):
        return ""
    return f"{claim.rule.value:.10g}" if claim.rule.value % 1 else f"{claim.rule.value:.1f}"


def _seeds(results: Results, row: ShownRow | Claim) -> str:
    """The number of stored seeds; from the fewest to the most where the recipes differ."""
    counts = sorted({len(results.evidence.runs(name)) for name in row.recipes} - {0}) or [0]
    return str(counts[0]) if len(counts) == 1 else f"{counts[0]} to {counts[-1]}"
