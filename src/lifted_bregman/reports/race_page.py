"""The page and the tables of the race, from what is stored; nothing is trained for them."""

from __future__ import annotations

from lifted_bregman.experiments.race import analysis
from lifted_bregman.experiments.race.analysis import TARGETS
from lifted_bregman.experiments.race.results import EntryRecord, ProblemRecord, Race
from lifted_bregman.reports.charts import Charts, Curve
from lifted_bregman.reports.page import Block, Listing, Page, Section, Table, Text
from lifted_bregman.reports.race_charts import BandChart
from lifted_bregman.reports.race_rules import rules
from lifted_bregman.reports.race_tables import arrival_rows, best_rows, frontier_rows, overview

_POINTS = 60  # of a curve
_IDLE = 0.5  # a load above it means that somebody else was using the machine


def race_page(race: Race) -> Page:
    """The page with the verdict, curves and frontiers, the rules and the grids."""
    repetitions = max((len(race.heats_of(problem.name)) for problem in race.problems), default=0)
    summary = (
        f"{len(race.problems)} problems, {repetitions} repetitions each. All competitors start from the same weights, "
        "see the same samples in the same order, and take turns. Times are compared inside a "
        "repetition only, as ratios."
    )
    if race.interrupted:
        summary += " The race was ended early; what was done by then is shown."
    return Page(
        title="The race: lifted training against back-propagation",
        summary=summary,
        sections=[
            Section("Result", [*_overview(race), *_warning(race)]),
            *(Section(problem.title, _problem(race, problem)) for problem in race.problems),
            Section("Rules", [Text(rule) for rule in rules(race)]),
            Section("Grids and choices", [*(_choices(problem) for problem in race.problems), Text(_provenance(race))]),
            Section("Machine", [_machine(race)]),
            Section("How to rerun", _commands(race)),
        ],
    )


def _overview(race: Race) -> list[Block]:
    if not race.problems:
        return [Text("Nothing was finished.")]
    header, rows = overview(race)
    told = "; ".join(f"{key}: {words.format('the reference')}" for key, words in TARGETS.items())
    caption = (
        "Time to each target over the time of the reference, medians over the repetitions; below 1 is faster, and a "
        f"dash was not reached. Targets: {told}."
    )
    turned = list(zip(header, *rows, strict=True))  # one row for each entry: telephones are narrow
    names = [f"{problem} {target}" for problem, target in zip(turned[0][1:], turned[1][1:], strict=True)]
    return [Table(("", *names), turned[2:], caption)]


def _warning(race: Race) -> list[Block]:
    if race.load_before is None or race.load_before <= _IDLE:
        return []
    return [Text(f"The machine was not idle before the race (load {race.load_before:.2f}): repeat it when it is.")]


def _problem(race: Race, problem: ProblemRecord) -> list[Block]:
    blocks: list[Block] = [
        Text(
            f"{problem.samples:,} samples to train on, {problem.validation_samples:,} to be judged by; batches of "
            f"{problem.batch_size}, {problem.epochs} epochs. {problem.source}"
        )
    ]
    for target in analysis.targets_of(problem):
        leader = analysis.reference_entry(problem, target)
        caption = (
            f"Time and epochs to {TARGETS[target].format(leader)}: ratio to the time of {leader}, with its spread."
        )
        blocks.append(Table(*arrival_rows(race, problem, target), caption))
    error = "validation error: mean squared error per output" if not problem.classify else "accuracy: of the test part"
    blocks.append(Table(*best_rows(race, problem), f"What was reached at all ({error}), with its spread."))
    blocks.append(_charts(race, problem))
    caption = f"The frontier: what was reached by fractions of the time of {problem.reference}, medians."
    blocks.append(Table(*frontier_rows(race, problem), caption))
    return blocks


def _charts(race: Race, problem: ProblemRecord) -> Charts:
    heats = race.heats_of(problem.name)
    shown = [("Training objective", "objective", True)]
    shown.append(("Test error" if problem.classify else "Validation error", "validation_error", True))
    if all("sparsity" in heat.trace(entry.name).rows[0] for heat in heats for entry in problem.entries):
        shown.append(("Zeros in the middle layer" if problem.classify else "Zeros in the code", "sparsity", False))
    charts = []
    for title, name, log in shown:
        curves, bands = [], []
        for entry in problem.entries:
            end = min(heat.trace(entry.name).rows[-1]["seconds"] for heat in heats)
            times = [end * number / _POINTS for number in range(_POINTS + 1)] if end > 0.0 else [0.0]
            spreads = analysis.curve(heats, entry.name, name, times)
            curves.append(Curve(entry.name, times, [spread.median for spread in spreads]))
            bands.append(([spread.low for spread in spreads], [spread.high for spread in spreads]))
        ends = ", ".join(f"{curve.name} {curve.y[-1]:.4g}" for curve in curves)
        alt = f"{title} of {problem.name} against seconds in steps. The medians end at: {ends}."
        charts.append(BandChart(f"{title}", curves, f"seconds in steps, {problem.name}", alt, log, not log, bands))
    return Charts(
        charts,
        caption="Median over the repetitions, and from the least to the most as a band; straight lines between "
        "evaluations. A curve ends where the first of its repetitions ended.",
    )


def _choices(problem: ProblemRecord) -> Table:
    rows = [
        (
            entry.name,
            entry.title,
            f"{entry.tuned} = {entry.value:g}" if entry.value is not None else "not tuned",
            f"{entry.batch_size}",
            " and ".join(entry.chosen_by) or "-",
            _grid(entry),
        )
        for entry in problem.entries
    ]
    return Table(("entry", "what", "rate", "batch", "chosen by", "grid"), rows, f"{problem.title}.")


def _grid(entry: EntryRecord) -> str:
    if not entry.grid:
        return "-"
    sizes = "" if len(entry.batch_sizes) == 1 else f"; batches of {', '.join(map(str, entry.batch_sizes))}"
    at_end = " (the choice is an end of the grid)" if entry.value in (entry.grid[0], entry.grid[-1]) else ""
    return ", ".join(f"{value:g}" for value in entry.grid) + sizes + at_end


def _provenance(race: Race) -> str:
    told = race.provenance
    if "seed" not in told:
        return f"How the rates were found: {told.get('note', 'not recorded')}."
    epochs = ", ".join(f"{name} {count}" for name, count in dict(told.get("epochs", {})).items())
    versions = ", ".join(f"{name} {value}" for name, value in dict(told.get("environment", {})).items())
    return (
        f"The rates were found by `lifted bench tune` with seed {told['seed']}, one run for each point of a grid, in "
        f"these epochs: {epochs}. Runs ended at {told.get('budget', 1.5):g} times the reference's median time at the "
        f"latest. {versions}."
    )


def _machine(race: Race) -> Table:
    rows = list(race.environment.items())
    rows.append(("load before", "unknown" if race.load_before is None else f"{race.load_before:.2f}"))
    for problem in race.problems:
        loads = [heat.load for heat in race.heats_of(problem.name) if heat.load is not None]
        if loads:
            rows.append((f"load on {problem.name}", f"{min(loads):.2f} to {max(loads):.2f}"))
    caption = (
        "Where it ran. Load: processes that wanted to run in the last minute, on average. Above the number of threads, "
        "and before the race above 0, the machine was not idle."
    )
    return Table(("what", "value"), rows, caption)


def _commands(race: Race) -> list[Block]:
    problems = ",".join(problem.name for problem in race.problems)
    names = dict.fromkeys(entry.competitor for problem in race.problems for entry in problem.entries)
    threads = race.environment.get("threads", "1")
    return [
        Listing(
            f"lifted bench race --problems {problems} \\\n    --competitors {','.join(names)} \\\n"
            f"    --threads {threads} --json race.json --out out/race\n"
            "lifted bench show race.json --out out/race\nlifted bench tune --out rates.json"
        ),
        Text(
            "The first command runs everything again, the second one makes tables and page from the stored rows, and "
            "the third one finds the rates."
        ),
    ]
