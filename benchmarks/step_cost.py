"""What one lifted step costs in time and memory, beside back-propagation with fused Adam and the bare matrix products.

    python benchmarks/step_cost.py [--rounds 40] [--threads 2] [--json FILE]

All competitors of a network are timed in turn in one process, from the same weights and on the same batches; a ratio is
the median of the ratios of the rounds.  Back-propagation is plain PyTorch in whichever form is the fastest here.
Memory is the peak of one step in bytes of live tensors: parameters, gradients, state, batch, whatever the step makes.
With --json the tables are also written as Markdown, beside the file with the suffix .inc.  It takes about a minute.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from _backprop import FORMS, backprop_step, products
from _interleaved import arguments, report
from _memory import peak_of_a_step
from _rounds import compare, fastest, timed
from _tables import markdown, place, plain
from _tasks import Task, solver_step

import lifted_bregman as lb
from lifted_bregman.experiments.environment import environment
from lifted_bregman.solvers import Solver

SMALL = Task("784⁴ autoencoder, batch 20", (784,) * 5, 20, code=2)
LARGE = Task("784⁴ autoencoder, batch 200", (784,) * 5, 200, code=2)
CLASSIFIER = Task("784-784-64-64-10, batch 100", (784, 784, 64, 64, 10), 100)
DEEP = Task("20 x 64, batch 100", (64,) * 21, 100)
TASKS = (SMALL, LARGE, CLASSIFIER, DEEP)

ADAM, PRODUCTS, LIBRARY = "fused Adam", "matrix products", "baselines.Adam"


class Variant(NamedTuple):
    """A lifted solver, and what the ratio of its step to an opponent's may be on some of the tasks."""

    solver: Callable[[], Solver[Any]]
    limits: Mapping[tuple[str, Task], float]


# Every lifted solver that is measured.  More of them are more entries here, and nothing else.
VARIANTS: dict[str, Variant] = {
    "default": Variant(
        lb.training.default_solver,
        {
            (ADAM, SMALL): 1.3,
            (ADAM, LARGE): 1.3,
            (ADAM, CLASSIFIER): 1.3,
            (ADAM, DEEP): 2.0,
            (PRODUCTS, SMALL): 1.3,
            (PRODUCTS, LARGE): 1.3,
        },
    ),
}
LIBRARY_LIMIT = 1.05  # of the library's own Adam to the plain one
MEMORY_LIMIT = 1.3

Row = dict[str, Any]


def times(task: Task, rounds: int) -> list[Row]:
    """One row for each pair that is compared."""
    variants = {name: solver_step(task, variant.solver()) for name, variant in VARIANTS.items()}
    forms = {form: backprop_step(task, form) for form in FORMS}
    others = {LIBRARY: solver_step(task, lb.baselines.Adam()), PRODUCTS: products(task)}
    found = timed({**variants, **forms, **others}, rounds)
    form = fastest({name: found[name] for name in forms})
    pairs = [(name, other, VARIANTS[name].limits.get((other, task))) for name in variants for other in (ADAM, PRODUCTS)]
    pairs += [(LIBRARY, ADAM, LIBRARY_LIMIT), (ADAM, PRODUCTS, None)]
    found[ADAM] = found[form]
    return [
        {"task": task.name, "step": ours, "beside": other, **compare(found[ours], found[other])}
        | {"limit": limit, "adam_form": form}
        for ours, other, limit in pairs
    ]


def memory(task: Task) -> list[Row]:
    """One row for each variant; of the forms of back-propagation the one that needs the least."""
    other = min(peak_of_a_step(lambda form=form: backprop_step(task, form, batches=1)) for form in FORMS)
    rows: list[Row] = []
    for name, variant in VARIANTS.items():
        ours = peak_of_a_step(lambda variant=variant: solver_step(task, variant.solver(), batches=1))
        rows.append({"task": task.name, "step": name, "ours_bytes": ours, "other_bytes": other, "ratio": ours / other})
        rows[-1]["limit"] = MEMORY_LIMIT
    return rows


def measure(rounds: int) -> dict[str, Any]:
    return {
        "times": [row for task in TASKS for row in times(task, rounds)],
        "memory": [row for task in TASKS for row in memory(task)],
        "rounds": rounds,
        "environment": environment(),
    }


def time_table(rows: Sequence[Row]) -> list[tuple[str, ...]]:
    head = ("network", "step", "ms", "beside", "ms", "ratio", "10 to 90 %", "limit", "")
    return [head] + [
        (
            row["task"],
            row["step"],
            f"{row['ours_ms']:.2f}",
            row["beside"],
            f"{row['other_ms']:.2f}",
            f"{row['ratio']:.2f}",
            f"{row['ratio_10_percent']:.2f} to {row['ratio_90_percent']:.2f}",
            *_judged(row),
        )
        for row in rows
    ]


def memory_table(rows: Sequence[Row]) -> list[tuple[str, ...]]:
    head = ("network", "step", "MB", "back-propagation, MB", "ratio", "limit", "")
    return [head] + [
        (
            row["task"],
            row["step"],
            f"{row['ours_bytes'] / 1e6:.2f}",
            f"{row['other_bytes'] / 1e6:.2f}",
            f"{row['ratio']:.2f}",
            *_judged(row),
        )
        for row in rows
    ]


def _judged(row: Row) -> tuple[str, str]:
    if row["limit"] is None:
        return "", ""
    return f"{row['limit']:g}", "kept" if row["ratio"] <= row["limit"] else "missed"


def page(result: Mapping[str, Any]) -> str:
    """Both tables, and where they were made, as docs/step-costs.md includes them."""
    forms = {row["task"]: row["adam_form"] for row in result["times"]}
    chosen = "; ".join(f"{task}: {form}" for task, form in forms.items())
    made = f"{place(result)} Fastest form of back-propagation: {chosen}."
    return "\n\n".join([markdown(time_table(result["times"])), markdown(memory_table(result["memory"])), made]) + "\n"


def main() -> None:
    given = arguments(__doc__, rounds=40)
    result = measure(given.rounds)
    print(plain(time_table(result["times"])), plain(memory_table(result["memory"])), sep="\n\n", end="\n\n")
    report(given, result)
    if given.json:
        given.json.with_suffix(".inc").write_text(page(result | {"load_before": given.load}), encoding="utf-8")


if __name__ == "__main__":
    main()
