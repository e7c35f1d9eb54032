"""The page and the tables of the race, from what is stored; nothing is trained for them."""

from __future__ import annotations

from lifted_bregman.reports.charts import Charts, Curve
from lifted_bregman.reports.page import Block, Listing, Page, Section, Table, Text
from lifted_bregman_lab.race import PROBLEMS, analysis, quick_problems
from lifted_bregman_lab.race.analysis import TARGETS
from lifted_bregman_lab.race.charts import BandChart
from lifted_bregman_lab.race.results import Entry, ProblemRecord, Race
from lifted_bregman_lab.race.rules import rules
from lifted_bregman_lab.race.running import IDLE
from lifted_bregman_lab.race.tables import best_rows, frontier_rows, overview, target_rows
from lifted_bregman_lab.text import count

_POINTS = 60  # of a curve


class _Numbers(Table):
    """A table whose columns of numbers may hold dashes."""

    def is_numeric(self, column: int) -> bool:
        numbers = [row for row in self.rows if row[column] not in ("-", "")]
        return Table(self.header, numbers, self.caption).is_numeric(column)


def race_page(race: Race) -> Page:
    """The page with the verdict, curves and frontiers, the rules and the grids."""
    repetitions = max((race.count(problem.name) for problem in race.problems), default=0)
    summary = (
        f"{count(len(race.problems), 'problem')}, {count(repetitions, 'repetition')} each. All competitors start from "
        "the same weights, see the same samples in the same order, and take turns. Times are compared inside a "
        "repetition only, as ratios."
    )
    if race.interrupted:
        summary += " The race was ended early; what was done by then is shown."
    result = _overview(race)
    if race.load_before is not None and race.load_before > IDLE:
        result.append(
            Text(f"The machine was not idle before the race (load {race.load_before:.2f}): repeat it when it is.")
        )
    return Page(
        title="The race: lifted training against back-propagation",
        summary=summary,
        sections=[
            Section("Result", result),
            *(Section(problem.title, _problem(race, problem)) for problem in race.problems),
            Section("Rules", [Text(rule) for rule in rules(race)]),
            Section(
                "Grids and choices",
                [*(block for problem in race.problems for block in _choices(problem)), Text(_provenance(race))],
            ),
            Section("Machine", [_machine(race)]),
            Section("How to rerun", _commands(race)),
        ],
    )


def _overview(race: Race) -> list[Block]:
    if not race.problems:
        return [Text("Nothing was finished.")]
    used = {target for problem in race.problems for target in analysis.targets_of(problem)}
    targets = "; ".join(f"{key}: {words.format('the reference')}" for key, words in TARGETS.items() if key in used)
    caption = (
        "Time to each target over the time of the reference, medians over the repetitions; below 1 is faster, and a "
        f"dash was not reached. Targets: {targets}."
    )
    return [_Numbers(*overview(race), caption)]


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
        blocks.append(_Numbers(*target_rows(race, problem, target), caption))
    error = "validation error: mean squared error per output" if not problem.classify else "accuracy: of the test part"
    blocks.append(_Numbers(*best_rows(race, problem), f"What was reached at all ({error}), with its spread."))
    blocks.append(_charts(race, problem))
    caption = f"The frontier: what was reached by fractions of the time of {problem.reference}, medians."
    blocks.append(_Numbers(*frontier_rows(race, problem), caption))
    return blocks


def _charts(race: Race, problem: ProblemRecord) -> Charts:
    rows = race.rows_of(problem.name)
    error, layer = ("Test", "middle layer") if problem.classify else ("Validation", "code")
    shown = [("Training objective", "objective", True), (f"{error} error", "validation_error", True)]
    if rows["sparsity"].notna().all():
        shown.append((f"Zeros in the {layer}", "sparsity", False))
    ends = rows.groupby(["entry", "seed"])["seconds"].max().groupby("entry").min()
    charts = []
    for title, name, log in shown:
        curves, bands = [], []
        for entry in problem.entries:
            end = ends[entry.name]
            times = [end * number / _POINTS for number in range(_POINTS + 1)] if end > 0.0 else [0.0]
            # The median is the line; least and most are the edges of the band.
            spread = analysis.curve(rows, entry.name, name, times)
            curves.append(Curve(entry.name, times, list(spread["median"])))
            bands.append((list(spread["min"]), list(spread["max"])))
        medians = ", ".join(f"{curve.name} {curve.y[-1]:.4g}" for curve in curves)
        alt = f"{title} of {problem.name} against seconds in steps. The medians end at: {medians}."
        charts.append(BandChart(title, curves, f"seconds in steps, {problem.name}", alt, log, not log, bands))
    return Charts(
        charts,
        caption="Median over the repetitions, and from the least to the most as a band; straight lines between "
        "evaluations. A curve ends where the first of its repetitions ended.",
    )


def _choices(problem: ProblemRecord) -> list[Block]:
    chosen, grids = [], []
    for entry in problem.entries:
        rate = f"{entry.tuned} = {entry.value:g}" if entry.value is not None else "not tuned"
        chosen.append((entry.name, rate, str(entry.batch_size), " and ".join(entry.chosen_by) or "-"))
        grids.append((entry.name, entry.title, _grid(entry)))
    return [
        Table(("entry", "rate", "batch", "chosen by"), chosen, f"{problem.title}: what was chosen."),
        Table(("entry", "what", "grid"), grids, f"{problem.title}: what it was chosen from."),
    ]


def _grid(entry: Entry) -> str:
    if not entry.grid:
        return "-"
    sizes = "" if len(entry.batch_sizes) == 1 else f"; batches of {', '.join(map(str, entry.batch_sizes))}"
    at_end = " (the choice is an end of the grid)" if entry.value in (entry.grid[0], entry.grid[-1]) else ""
    return ", ".join(f"{value:g}" for value in entry.grid) + sizes + at_end


def _provenance(race: Race) -> str:
    found = race.provenance
    if "seed" not in found:
        return f"How the rates were found: {found.get('note', 'not recorded')}."
    epochs = ", ".join(f"{name} {number}" for name, number in dict(found.get("epochs", {})).items())
    versions = ", ".join(f"{name} {value}" for name, value in dict(found.get("environment", {})).items())
    return (
        f"The rates were found by `lifted bench tune` with seed {found['seed']}, one run for each point of a grid, in "
        f"these epochs: {epochs}. Runs ended at {found.get('budget', 1.5):g} times the reference's median time at the "
        f"latest. {versions}."
    )


def _machine(race: Race) -> Table:
    rows = list(race.environment.items())
    rows.append(("load before", "unknown" if race.load_before is None else f"{race.load_before:.2f}"))
    for problem in race.problems:
        loads = race.rows_of(problem.name)["load"].dropna()
        if len(loads):
            rows.append((f"load on {problem.name}", f"{min(loads):.2f} to {max(loads):.2f}"))
    caption = (
        "Where it ran. Load: processes that wanted to run in the last minute, on average. Above the number of threads, "
        f"and before the race above {IDLE:g}, the machine was not idle."
    )
    return Table(("what", "value"), rows, caption)


def _commands(race: Race) -> list[Block]:
    names = dict.fromkeys(entry.competitor for problem in race.problems for entry in problem.entries)
    repetitions = max((race.count(problem.name) for problem in race.problems), default=1)
    threads = race.environment.get("threads", "1")
    return [
        Listing(
            f"lifted bench race {_chosen(race)} \\\n    --competitors {','.join(names)} \\\n"
            f"    --repetitions {repetitions} --threads {threads} --json race.json --out out/race\n"
            "lifted bench show race.json --out out/race\nlifted bench tune --out rates.json"
        ),
        Text(
            "The first command runs everything again; with a file that holds this race already it goes on with what "
            "is missing there. The second one makes tables and page from the stored rows, and the third one finds the "
            "rates, which the first one takes with --rates."
        ),
    ]


def _chosen(race: Race) -> str:
    """The options that choose the race's problems, and their epochs where those are not their own."""
    epochs, quick = {problem.name: problem.epochs for problem in race.problems}, quick_problems()[1]
    options = "--quick" if quick.name in epochs else f"--problems {','.join(epochs)}"
    known = {**PROBLEMS, quick.name: quick}
    changed = any(name in known and number != known[name].epochs for name, number in epochs.items())
    return f"{options} --epochs {race.problems[0].epochs}" if changed and len({*epochs.values()}) == 1 else options
