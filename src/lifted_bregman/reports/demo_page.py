"""The page of `lifted demo`, made from the stored rows without training."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from lifted_bregman.experiments.demo_folder import NOT_TUNED, Demo, MethodRecord
from lifted_bregman.reports.charts import Chart, Charts, Curve
from lifted_bregman.reports.page import Listing, Page, PageTable, Section, Text
from lifted_bregman.reports.strips import Strip, Strips

_LINE = 60  # most characters in a line of a command
HEADER = ("method", "epochs", "seconds", "objective", "validation error", "lowest of all", "zeros in the code")


def final_rows(demo: Demo) -> list[tuple[str, ...]]:
    """Return the final metrics of each method, in the columns of `HEADER`."""
    table: list[tuple[str, ...]] = []
    for method in demo.methods:
        last = demo.rows[method.key][-1]
        lowest = _lowest(demo.rows[method.key])
        table.append(
            (
                method.name,
                f"{last['epoch']:.0f}",
                f"{last['seconds']:.1f}",
                f"{last['objective']:.3f}",
                f"{last['validation_error']:.5f}",
                f"{lowest['validation_error']:.5f} at {lowest['seconds']:.1f} s",
                f"{100 * last['sparsity']:.1f} %",
            )
        )
    return table


def demo_page(demo: Demo) -> Page:
    """Return the page with the table, the curves, the digits and the codes."""
    record = demo.record
    return Page(
        title="A sparse autoencoder of digits: lifted training, SGD and Adam",
        summary=(
            f"The network of the paper's MNIST-1K experiment was trained by three methods for {record.seconds:g} "
            f"seconds each, from the same weights, on the same {record.samples:,} digits. The lifted method never "
            "differentiates an activation; SGD and Adam use back-propagation."
        ),
        sections=[
            Section("Result", [_table(demo), Text(_verdict(demo))]),
            Section("Progress", [_charts(demo)]),
            Section("Reconstructions", [_digits(demo, "train"), _digits(demo, "validation")]),
            Section("Codes", [_codes(demo)]),
            Section("Settings", [*_settings(demo), _machine(demo)]),
            Section("How to rerun", _commands(demo)),
        ],
    )


def _table(demo: Demo) -> PageTable:
    objective = "½‖x\u00a0−\u00a0x̂‖²\u00a0+\u00a0α‖code‖₁"  # never broken across lines
    caption = (
        f"What each method reached. Objective: {objective}, mean over the training digits. Validation error: mean "
        f"squared error per pixel on {demo.record.validation_samples:,} digits that no method has seen, at the end "
        "and where it was lowest. Zeros: fraction of exact zeros in the codes of the training digits. Seconds: in "
        "training steps; evaluation is not counted."
    )
    rows = final_rows(demo)  # transposed below: one column for each method fits on a telephone
    return PageTable(("", *(row[0] for row in rows)), list(zip(HEADER, *rows, strict=True))[1:], caption)


def _verdict(demo: Demo) -> str:
    """Return sentences that name the best method of each column, as the rows have it."""
    ends = {method.name: demo.rows[method.key][-1] for method in demo.methods}
    objective = min(ends, key=lambda name: ends[name]["objective"])
    error = min(ends, key=lambda name: ends[name]["validation_error"])
    lowest = {name: _lowest(rows)["validation_error"] for name, rows in _histories(demo)}
    reached = min(lowest, key=lambda name: lowest[name])
    zeros = max(ends, key=lambda name: ends[name]["sparsity"])
    sentences = [
        f"In this run the lowest training objective is that of {objective}, the lowest last validation error "
        f"that of {error}, the lowest of all that of {reached}, and the codes with the most zeros are those of {zeros}."
    ]
    turned = [name for name, rows in _histories(demo) if _turned_up(rows)]
    if turned:
        sentences.append(
            f"The validation error of {_listed(turned)} was lower on the way than it is at the end: with so few digits "
            "the network begins to learn them by heart."
        )
    failed = [method for method in demo.methods if method.outcome == "DIVERGED"]
    sentences += [f"{method.name}: {method.message}" for method in failed]
    sentences.append("One run on one machine: times, and with them the table, differ from run to run.")
    return " ".join(sentences)


def _histories(demo: Demo) -> list[tuple[str, list[dict[str, float]]]]:
    return [(method.name, demo.rows[method.key]) for method in demo.methods]


def _lowest(rows: Sequence[dict[str, float]]) -> dict[str, float]:
    """Return the row with the lowest validation error."""
    return min(rows, key=lambda row: row["validation_error"])


def _turned_up(rows: Sequence[dict[str, float]]) -> bool:
    return rows[-1]["validation_error"] > 1.02 * _lowest(rows)["validation_error"]


def _charts(demo: Demo) -> Charts:
    def curves(name: str, against: str = "seconds") -> list[Curve]:
        return [Curve(who, [r[against] for r in rows], [r[name] for r in rows]) for who, rows in _histories(demo)]

    def ends(name: str, write: Callable[[float], str]) -> str:
        return ", ".join(f"{who} {write(rows[-1][name])}" for who, rows in _histories(demo))

    seconds = "seconds of training"
    return Charts(
        [
            Chart(
                "Training objective",
                curves("objective"),
                seconds,
                f"The training objective against time. It ends at: {ends('objective', '{:.3f}'.format)}.",
                log=True,
            ),
            Chart(
                "Validation error",
                curves("validation_error"),
                seconds,
                f"The validation error against time. It ends at: {ends('validation_error', '{:.5f}'.format)}.",
                log=True,
            ),
            Chart(
                "Zeros in the code",
                curves("sparsity"),
                seconds,
                f"The fraction of zeros in the code against time. It ends at: {ends('sparsity', '{:.1%}'.format)}.",
                fraction=True,
            ),
            Chart(
                "Training objective by epochs",
                curves("objective", "epoch"),
                "epochs",
                f"The training objective against epochs, which are: {ends('epoch', '{:.0f}'.format)}.",
                log=True,
            ),
        ],
        caption="All start at the same point, the untrained network. The last chart shows what an epoch is worth, "
        "however long it takes.",
    )


def _digits(demo: Demo, part: str) -> Strips:
    kind = {"train": "training digits", "validation": "digits that no method has seen"}[part]
    strips = [Strip("original", demo.pictures[part].numpy())]
    strips += [Strip(method.name, demo.pictures[f"{method.key}/{part}"].numpy()) for method in demo.methods]
    return Strips(strips, f"Reconstructions of {kind}.", f"ten {kind}, from 0 to 9")


def _codes(demo: Demo) -> Strips:
    strips = [Strip("original", demo.pictures["validation"].numpy())]
    for method in demo.methods:
        codes = demo.pictures[f"{method.key}/codes"]
        zeros = float((codes == 0).float().mean())
        strips.append(Strip(f"{method.name}, {100 * zeros:.0f} % zeros", codes.numpy(), signed=True))
    caption = (
        "The codes of the digits in the top row, which no method has seen: 784 numbers each, shown as 28 × 28 pixels "
        "in no meaningful order. Grey is exactly zero, blue positive, orange negative."
    )
    return Strips(strips, caption, "codes of ten digits, mostly zeros")


def _settings(demo: Demo) -> list[Text | PageTable]:
    record = demo.record
    text = (
        f"The network has 784 units in each of its layers: ReLU, a soft-threshold code with α = {record.alpha:g}, "
        "ReLU, and a linear output; the penalty on the code has the same α. The digits are centred by the mean "
        f"training image. Batches have {record.batch_size} of them, in the same order for all methods (seed "
        f"{record.seed}). For each batch the lifted method takes one sweep over the layers, from the top down: a "
        "proximal map gives each layer its target, and the weights move in the metric of the layer's inputs, around an "
        "average of where they have been."
    )
    rows = [(method.name, method.settings, method.grid) for method in demo.methods]
    caption = (
        "Where there is a grid, the rate is the one that gave the lowest training objective in trial runs made "
        "beforehand: 40 epochs, on average over four seeds, rates that diverged for one of them left out. All other "
        f"settings are the library's defaults{_untuned(demo)}."
    )
    return [Text(text), PageTable(("method", "settings", "grid"), rows, caption)]


def _untuned(demo: Demo) -> str:
    """Return the clause that names the methods without a tuned setting."""
    names = [method.name for method in demo.methods if method.grid == NOT_TUNED]
    return f"; for {_listed(names)} nothing was tuned" if names else ""


def _machine(demo: Demo) -> PageTable:
    record = demo.record
    rows = [*record.environment.items(), ("digits", record.source)]
    rows += [(f"load while {method.name} ran", f"{method.load:.2f}") for method in demo.methods]
    rows.append(("time in all", f"{record.seconds_in_all:.0f} s"))
    caption = (
        "Where it ran. Load: processes that wanted to run in the last minute, on average; above the number of threads "
        "the machine was not idle, and times are longer than they need to be."
    )
    return PageTable(("what", "value"), rows, caption)


def _commands(demo: Demo) -> list[Text | Listing]:
    record = demo.record
    threads = record.environment.get("threads", "1")
    again = f"lifted demo --seconds {record.seconds:g} --seed {record.seed} --threads {threads}"
    return [
        Listing(f"{again}\nlifted report out/demo"),
        Text("The first command runs everything again, the second one makes this page from the stored rows."),
        Text("One method at a time, with checkpoints:"),
        Listing("\n\n".join(_wrapped(method) for method in demo.methods)),
    ]


def _wrapped(method: MethodRecord) -> str:
    """Return the command in lines of at most `_LINE` characters, broken before options."""
    first, *options = method.command.split(" --")
    lines = [first]
    for option in options:
        if len(lines[-1]) + len(option) > _LINE:
            lines.append("   ")
        lines[-1] += f" --{option}"
    return " \\\n".join(lines)


def _listed(names: Sequence[str]) -> str:
    return names[0] if len(names) == 1 else f"{', '.join(names[:-1])} and {names[-1]}"
