"""What each part of the default solver brings, and what a setting that is off costs, on problems of the race.

    python benchmarks/parts_of_the_default.py [--seeds 2] [--quick] [--json FILE] [--data-dir FOLDER]

Each run differs from the default in one setting: a part is taken away, or a number is 3 or 10 times too small or too
large.  Runs of a problem and a seed have the same initial weights, batches and epochs: those of the race's short
budget.  Tables show medians over the problems, each problem with the median over its seeds.  The file gets a row for
each run, and a run that is in it already is not made again.  Nothing here is about time.
"""

from __future__ import annotations

import argparse
import json
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from statistics import median
from typing import Any

import torch

from lifted_bregman.solvers import GramSweep, Outcome
from lifted_bregman.training import default_solver
from lifted_bregman_lab.race.problems import PROBLEMS, RaceProblem
from lifted_bregman_lab.race.runs import LiftedRun

Row = dict[str, Any]
PARTS: dict[str, dict[str, float]] = {
    "back-propagated signals, ν → 0": {"nudge": 1e-4},
    "no metric, τ → ∞": {"damping": 1e6},
    "no weight decay": {"weight_decay": 0.0},
    "no schedule, K = ∞": {"total_steps": math.inf},
}
"""What is set where a part is taken away."""
SETTINGS = ("step_size", "nudge", "damping", "weight_decay")
FACTORS = (0.1, 1 / 3, 3.0, 10.0)
SMALL = ("iris", "wine", "breast-cancer", "diabetes")
CHOSEN = (*SMALL, "segment", "satimage", "compactiv", "puma32h", "mnist-1d", "deep-narrow")
LEAST = 1e-5
"""Losses below this count as this: ratios of numbers that are 0 but for rounding say nothing."""


def variants(default: GramSweep) -> dict[str, GramSweep]:
    """The default, the default without a part, and with a setting that is off, by name."""
    found = {"default": default} | {name: replace(default, **changed) for name, changed in PARTS.items()}  # type: ignore[arg-type]
    for name in SETTINGS:
        for factor in FACTORS:
            found[off(name, factor)] = replace(default, **{name: factor * getattr(default, name)})
    return found


def off(setting: str, factor: float) -> str:
    return f"{setting} x {factor:.2g}"


def train(problem: RaceProblem, data: Any, solver: GramSweep, seed: int) -> tuple[float | None, float | None]:
    """Training loss and error on new samples at the end; None where the run diverged."""
    run = LiftedRun(problem, data, problem.epochs("short"), seed, solver)
    run.advance(run.steps)
    run.record()
    return (None, None) if run.outcome == Outcome.DIVERGED.name else run.trace[-1][2:]


def ratios(rows: Iterable[Row], name: str, what: str) -> list[float]:
    """Of each problem the median over the seeds, over that of the default; inf where it diverged."""
    values: dict[tuple[str, str], list[float]] = {}
    for row in rows:
        value = math.inf if row[what] is None else row[what]
        values.setdefault((row["problem"], row["variant"]), []).append(max(value, LEAST))
    known = [problem for problem, variant in values if variant == name]
    return [median(values[problem, name]) / median(values[problem, "default"]) for problem in known]


def parts_table(rows: Sequence[Row]) -> str:
    """Loss and error without a part, over those of the default."""
    lines = ["| without | loss | least to most | error | higher error on |", "|---|---|---|---|---|"]
    for name in PARTS:
        loss, error = ratios(rows, name, "loss"), ratios(rows, name, "error")
        worse = f"{sum(value > 1.0 for value in error)} of {len(error)}"
        spread = f"{min(loss):.2g} to {max(loss):.2g}"
        lines.append(f"| {name} | {median(loss):.2f} | {spread} | {median(error):.3f} | {worse} |")
    return "\n".join(lines)


def settings_table(rows: Sequence[Row]) -> str:
    """Loss with a setting that is off, over that of the default."""
    lines = ["| setting | " + " | ".join(f"x {factor:.2g}" for factor in FACTORS) + " |", "|---" * 5 + "|"]
    for name in SETTINGS:
        cells = (f"{median(ratios(rows, off(name, factor), 'loss')):.2f}" for factor in FACTORS)
        lines.append(f"| `{name}` | {' | '.join(cells)} |")
    return "\n".join(lines)


def diverged(rows: Iterable[Mapping[str, Any]]) -> int:
    """How many runs diverged."""
    return sum(row["loss"] is None for row in rows)


def stored(path: Path) -> list[Row]:
    return json.loads(path.read_text(encoding="utf-8"))["rows"] if path.exists() else []  # type: ignore[no-any-return]


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--seeds", type=int, default=2, help="seeds (2)")
    parser.add_argument("--quick", action="store_true", help="iris and the parts, to see that it runs")
    parser.add_argument("--threads", type=int, default=1, help="threads of torch (1)")
    parser.add_argument("--json", type=Path, help="keep the rows in this file")
    parser.add_argument("--data-dir", type=Path, help="a folder that holds data sets")
    given = parser.parse_args()
    torch.set_num_threads(given.threads)
    default = default_solver()
    assert isinstance(default, GramSweep)
    solvers = variants(default)
    if given.quick:
        solvers = {name: solvers[name] for name in ("default", *PARTS)}
    rows = stored(given.json) if given.json else []
    known = {(row["problem"], row["variant"], row["seed"]) for row in rows}
    for name in SMALL[:1] if given.quick else CHOSEN:
        problem = PROBLEMS[name]
        data = problem.load(given.data_dir)
        for seed in range(given.seeds):
            for variant, solver in solvers.items():
                if (name, variant, seed) not in known:
                    loss, error = train(problem, data, solver, seed)
                    rows.append({"problem": name, "variant": variant, "seed": seed, "loss": loss, "error": error})
        if given.json:
            text = json.dumps({"solver": repr(default), "torch": torch.__version__, "rows": rows}, indent=1)
            given.json.write_text(text + "\n", encoding="utf-8")
        print(f"{name}: {len(rows)} runs", flush=True)
    print(parts_table(rows))
    if not given.quick:
        print(settings_table(rows))
    print(f"{diverged(rows)} of {len(rows)} runs diverged.")


if __name__ == "__main__":
    main()
