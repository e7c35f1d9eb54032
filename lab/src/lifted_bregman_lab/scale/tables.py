"""Speed-ups from the measurements of `lifted bench scale`, as tables for the console and as Markdown."""

from __future__ import annotations

from statistics import median

from lifted_bregman_lab.scale.cases import Case
from lifted_bregman_lab.scale.measuring import ALONE, BESIDE, SHARED
from lifted_bregman_lab.scale.results import Measured, ScaleStudy
from lifted_bregman_lab.scale.target import OBJECTIVE
from lifted_bregman_lab.text import Rows, markdown

NUMBER = 4
"""The bytes of a number."""


def speed_ups(measured: Measured) -> list[float]:
    """Time of one process over that of two that share the same work, round by round, sorted."""
    return sorted(one / two for one, two in zip(measured.times[ALONE], measured.times[SHARED], strict=True))


def ceiling(measured: Measured) -> float:
    """Twice the time of one process over that of two at once, each for itself: what the machine allows."""
    return 2.0 * median(one / two for one, two in zip(measured.times[ALONE], measured.times[BESIDE], strict=True))


def sum_bytes(algorithm: str, depth: int, width: int) -> tuple[int, int]:
    """Bytes and messages of the sums over processes that share a batch, in a step, for layers of one width."""
    parameters = depth * (width + 1) * width
    if algorithm == "Gram sweep":
        return NUMBER * depth * width * (width + 3) + 8 * (2 * depth + 1), 3 * depth + 2
    if algorithm == "simultaneous sweep":
        return NUMBER * parameters + 8 * depth * (width + 1), 2 * depth + 1
    return NUMBER * (parameters + (algorithm == "back-propagation")), 1


def bytes_by_formula(case: Case) -> int | None:
    """Return the bytes sent in a step by the process that sends most; None for algorithms without a formula."""
    rows = NUMBER * case.samples * case.width
    if case.shared == "layer":
        return rows + 8 * (case.algorithm != "Gram sweep in parts")
    if case.algorithm not in ("Gram sweep", "back-propagation", "simultaneous sweep"):
        return None
    gathered = (case.depth - 1) * rows // 2 if case.algorithm == "simultaneous sweep" else 0
    return sum_bytes(case.algorithm, case.depth, case.width)[0] + gathered


def gain_rows(scale: ScaleStudy, shared: str) -> Rows:
    """Return the speed-ups of two processes that share "data" or "layer": medians over the rounds."""
    header = ("solver", "network", "batch", "one, ms", "two, ms", "speed-up", "10 % to 90 %", "ceiling", "goal")
    rows = []
    for measured in scale.measured:
        case, ratios = measured.case, speed_ups(measured)
        if case.shared == shared:
            low, high = (ratios[round(part * (len(ratios) - 1))] for part in (0.1, 0.9))
            times = (milliseconds(median(measured.times[turn])) for turn in (ALONE, SHARED))
            goal = "" if case.goal is None else f"{case.goal:g}, {_reached(median(ratios), case.goal)}"
            speed_up = (f"{median(ratios):.2f}", f"{low:.2f} to {high:.2f}", f"{ceiling(measured):.2f}")
            rows.append((case.algorithm, *sizes(case), *times, *speed_up, goal))
    return header, rows


def byte_rows(scale: ScaleStudy) -> Rows:
    """Return the bytes sent in a step by the process that sends most, counted and by formula."""
    header = ("solver", "shared", "network", "batch", "bytes counted", "by formula")
    found = [(measured.case, max(measured.sent), bytes_by_formula(measured.case)) for measured in scale.measured]
    return header, [
        (case.algorithm, case.shared, *sizes(case), f"{int(counted):,}", f"{formula:,}")
        for case, counted, formula in found
        if formula is not None
    ]


def arrival_rows(scale: ScaleStudy) -> Rows:
    """The time to the target objective: medians over the repetitions."""
    header = ("competitor", "seconds to the target", "from", "to", "epochs", "reached", "lowest objective")
    rows: list[tuple[str, ...]] = []
    for name in dict.fromkeys(arrival.name for arrival in scale.arrivals):
        runs = [arrival.rows for arrival in scale.arrivals if arrival.name == name]
        came = [row for run in runs if (row := next((row for row in run if row[2] <= OBJECTIVE), None)) is not None]
        cells: tuple[str, ...] = ("-",) * 4
        if came:
            epochs, seconds, _ = zip(*came, strict=True)
            cells = (*(f"{x:.2f}" for x in (median(seconds), min(seconds), max(seconds))), f"{median(epochs):g}")
        lowest = min(row[2] for run in runs for row in run)
        rows.append((name, *cells, f"{len(came)} of {len(runs)}", f"{lowest:.3g}"))
    return header, rows


def page(scale: ScaleStudy) -> str:
    """Return all tables as Markdown, for a page to include."""
    parts = ["### Sharing batches", markdown(gain_rows(scale, "data"))]
    parts += ["### Sharing layers", markdown(gain_rows(scale, "layer"))]
    if scale.arrivals:
        parts += [f"### Time to an objective of {OBJECTIVE:g}", markdown(arrival_rows(scale))]
    parts += ["### What is sent", markdown(byte_rows(scale))]
    where = scale.environment
    parts.append(
        f"{where['processor']}, {where['cores']} cores, one thread to a process, torch {where['torch']}; "
        f"{scale.rounds} rounds, load before the run {scale.load_before:.2f}."
    )
    return "\n\n".join(parts) + "\n"


def sizes(case: Case) -> tuple[str, str]:
    """Return network and batch in words."""
    return f"{case.depth} layers of {case.width}", str(case.samples)


def milliseconds(seconds: float) -> str:
    """Return milliseconds with three digits, from one second on without decimals."""
    return f"{1e3 * seconds:.3g}" if seconds < 1.0 else f"{1e3 * seconds:,.0f}"


def _reached(speed_up: float, goal: float) -> str:
    return "reached" if speed_up >= goal else "missed"
