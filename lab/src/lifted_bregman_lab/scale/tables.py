"""The tables of `lifted bench scale`, as header and rows of text: for the console, and as Markdown for a page."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import median

from lifted_bregman_lab.race.tables import Rows
from lifted_bregman_lab.scale.analysis import (
    WITHIN,
    Gain,
    Model,
    bytes_by_formula,
    calibrated,
    checks,
    gains,
    layout_of,
    network_of,
)
from lifted_bregman_lab.scale.cases import Case
from lifted_bregman_lab.scale.layouts import Prediction, Scene, best_layouts
from lifted_bregman_lab.scale.model import sent
from lifted_bregman_lab.scale.results import Arrival, Scale
from lifted_bregman_lab.scale.target import OBJECTIVE


def gain_rows(scale: Scale, shared: str) -> Rows:
    """What two processes gain where they share "data" or "layer"."""
    header = ("solver", "network", "batch", "one, ms", "two, ms", "speed-up", "10 % to 90 %", "ceiling", "goal")
    found = [gain for gain in gains(scale) if gain.case.shared == shared]
    return header, [_gain(gain) for gain in found]


def byte_rows(scale: Scale) -> Rows:
    """What the process that sends most sends in a step, counted and by the formulas."""
    header = ("solver", "shared", "network", "batch", "bytes counted", "by formula")
    rows: list[tuple[str, ...]] = []
    for gain in gains(scale):
        formula = bytes_by_formula(gain.case)
        if formula is not None:
            counted = f"{gain.sent:,}"
            rows.append((gain.case.algorithm, gain.case.shared, *_sizes(gain.case), counted, f"{formula:,}"))
    return header, rows


def check_rows(scale: Scale) -> Rows:
    """The model beside measurements that it was not fitted to."""
    header = ("solver", "shared", "network", "batch", "measured, ms", "model, ms", "error", f"within {WITHIN:.0%}")
    rows: list[tuple[str, ...]] = []
    for check in checks(scale):
        case, within = check.case, "yes" if abs(check.error) <= WITHIN else "no"
        numbers = (_ms(check.measured), _ms(check.predicted), f"{check.error:+.0%}")
        rows.append((case.algorithm, case.shared, *_sizes(case), *numbers, within))
    return header, rows


def input_rows(model: Model) -> Rows:
    """The inputs of the model, as measured here."""
    header = ("input", "value")
    sums, rows = model.links.sums, model.links.rows
    found: list[tuple[str, ...]] = [
        ("a sum: latency, bandwidth", f"{1e6 * sums.latency:.0f} µs, {sums.bandwidth / 1e9:.2f} GB/s"),
        ("rows to a neighbour: latency, bandwidth", f"{1e6 * rows.latency:.0f} µs, {rows.bandwidth / 1e9:.2f} GB/s"),
    ]
    for name, cost in model.costs.items():
        parts = (1e12 * cost.per_product, 1e9 * cost.per_unit, 1e9 * cost.per_weight, 1e6 * cost.per_layer)
        text = "{:.1f} ps n m² + {:.2f} ns n m + {:.2f} ns m² + {:.0f} µs".format(*parts)
        found.append((f"{name}, a layer", text))
    return header, found


def relief_rows(scale: Scale, model: Model) -> Rows:
    """Speed-ups where sums would cost less than they do: measured times less what the model says is saved."""
    header = ("solver", "network", "batch", "as it is", "16-bit sums", "sums every 4th step", "sums hidden")
    rows: list[tuple[str, ...]] = []
    for gain in gains(scale):
        case = gain.case
        if case.shared == "data" and case.algorithm in model.costs:
            size, messages = sent(case.algorithm, network_of(case), layout_of(case))
            summing = model.links.sums.sum(size, 2, messages)
            half = model.links.sums.sum(size / 2, 2, messages)
            others = gain.shared - summing
            times = (gain.shared, others + half, others + summing / 4, max(others, summing))
            rows.append((case.algorithm, *_sizes(case), *(f"{gain.alone / time:.2f}" for time in times)))
    return header, rows


def arrival_rows(scale: Scale) -> Rows:
    """The time to the target objective: medians over the repetitions."""
    header = ("competitor", "seconds to the target", "from", "to", "epochs", "reached", "lowest objective")
    rows: list[tuple[str, ...]] = []
    for name in dict.fromkeys(arrival.name for arrival in scale.arrivals):
        runs = [arrival for arrival in scale.arrivals if arrival.name == name]
        came = [row for row in map(_arrived, runs) if row is not None]
        lowest = f"{min(row[2] for run in runs for row in run.rows):.3g}"
        reached = f"{len(came)} of {len(runs)}"
        if not came:
            rows.append((name, "-", "-", "-", "-", reached, lowest))
            continue
        seconds = sorted(row[1] for row in came)
        epochs = f"{median(row[0] for row in came):g}"
        numbers = (f"{x:.2f}" for x in (median(seconds), seconds[0], seconds[-1]))
        rows.append((name, *numbers, epochs, reached, lowest))
    return header, rows


def layout_rows(model: Model, scene: Scene) -> Rows:
    """Milliseconds of a step for each number of workers: back-propagation, and lifted training in its layouts."""
    header = ("workers", "back-propagation", "data", "layers", "layers, Gram sweep", "both", "layout of both")
    rows: list[tuple[str, ...]] = []
    for best in best_layouts(model, scene):
        layout = "" if best.mixed is None else f"{best.mixed.layout.data} x {best.mixed.layout.layer}"
        times = map(_time, (best.backprop, best.data, best.layer, best.passes, best.mixed))
        rows.append((str(best.workers), *times, layout))
    return header, rows


def ahead(model: Model, scene: Scene) -> str:
    """With how many workers a lifted step with shared layers takes less than one of back-propagation, in words."""
    kinds = {"with shared layers, or both": ("layer", "mixed"), "of the Gram sweep with shared layers": ("passes",)}
    found = []
    for kind, fields in kinds.items():
        before = []
        for best in best_layouts(model, scene):
            times = [at.seconds for at in (getattr(best, field) for field in fields) if at is not None]
            if times and best.backprop is not None and min(times) < best.backprop.seconds:
                before.append(best.workers)
        counts = (
            "no number of" if not before else str(before[0]) if len(before) == 1 else f"{before[0]} to {before[-1]}"
        )
        found.append(f"one {kind} with {counts} workers")
    return f"Model: a step takes less than one of back-propagation with as many workers: {'; '.join(found)}."


def markdown(rows: Rows) -> str:
    """The first line is the head."""
    lines = ["| " + " | ".join(cells) + " |" for cells in (rows[0], *rows[1])]
    return "\n".join([lines[0], "|" + "---|" * len(rows[0]), *lines[1:]])


def page(scale: Scale, scenes: Sequence[Scene], picture: str) -> str:
    """All of it as Markdown, to be included in a page; `picture` is where that page finds the charts."""
    model = calibrated(scale)
    parts = ["### Sharing batches", markdown(gain_rows(scale, "data"))]
    parts += ["### Sharing layers", markdown(gain_rows(scale, "layer"))]
    if scale.arrivals:
        parts += [f"### Time to an objective of {OBJECTIVE:g}", markdown(arrival_rows(scale))]
    parts += ["### What is sent", markdown(byte_rows(scale))]
    if model is not None:
        parts += ["### The model: its inputs", markdown(input_rows(model))]
        parts += ["### The model: what would relieve sums", markdown(relief_rows(scale, model))]
        parts += ["### The model: predictions of what it was not fitted to", markdown(check_rows(scale))]
        parts += ["### The model: 1 to 1,024 workers", _pictures(picture)]
        for scene in scenes:
            parts += [f"Model, ms of a step: {scene.name}.", markdown(layout_rows(model, scene))]
            parts += [ahead(model, scene)]
    return "\n\n".join([*parts, _place(scale)]) + "\n"


def _pictures(picture: str) -> str:
    alt = (
        "Predicted time of a step against the number of workers, for four networks. The tables below have the numbers."
    )
    shown = {"only-light": "", "only-dark": "_dark"}
    return "\n\n".join(f"```{{image}} {picture}{s}.svg\n:class: {c}\n:alt: {alt}\n```" for c, s in shown.items())


def _place(scale: Scale) -> str:
    where = scale.environment
    return (
        f"{where['processor']}, {where['cores']} cores, one thread to a process, torch {where['torch']}; "
        f"{scale.rounds} rounds, load before the run {scale.load_before:.2f}."
    )


def _gain(gain: Gain) -> tuple[str, ...]:
    goal = "" if gain.case.goal is None else f"{gain.case.goal:g}, {'reached' if gain.reached else 'missed'}"
    numbers = (_ms(gain.alone), _ms(gain.shared), f"{gain.speed_up:.2f}", f"{gain.low:.2f} to {gain.high:.2f}")
    return gain.case.algorithm, *_sizes(gain.case), *numbers, f"{gain.ceiling:.2f}", goal


def _sizes(case: Case) -> tuple[str, str]:
    return f"{case.depth} layers of {case.width}", str(case.samples)


def _arrived(arrival: Arrival) -> tuple[float, float, float] | None:
    return next((row for row in arrival.rows if row[2] <= OBJECTIVE), None)


def _time(prediction: Prediction | None) -> str:
    return "" if prediction is None else _ms(prediction.seconds)


def _ms(seconds: float) -> str:
    return f"{1e3 * seconds:.3g}" if seconds < 1.0 else f"{1e3 * seconds:,.0f}"
