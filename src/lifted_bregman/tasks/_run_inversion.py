"""The loop of an inversion: steps, rows of the history, and the outcome."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from typing import Any

from torch import Tensor

from lifted_bregman.solvers.outcome import Outcome, Stalled
from lifted_bregman.tasks._inverse_problem import InverseProblem
from lifted_bregman.tasks.inversion_result import Inversion
from lifted_bregman.tasks.inversion_solver import InversionProgress, InversionSolver

Row = dict[str, float]


def run_inversion(
    inverse: InverseProblem,
    solver: InversionSolver[Any],
    start: Tensor,
    steps: int,
    tolerance: float,
    record_every: int,
    callback: Callable[[Row], bool | None] | None,
) -> Inversion:
    """Step until every sample's distance is at most the tolerance, at most `steps` times.

    Every `record_every` steps, and at the last one, energies and distance are computed and a row is recorded.
    `callback` gets a copy of the row; a true value that it returns ends the run.  If an energy is not finite, the run
    ends, and the result has the inputs of the row before.
    """
    state = solver.init(inverse, start)
    good, reached = state, solver.progress(inverse, state)
    history: list[Row] = []
    seconds, outcome, detail = 0.0, Outcome.FINISHED, ""
    try:
        for step in range(1, steps + 1):
            # One step; only steps are timed
            began = time.perf_counter()
            state = solver.step(inverse, state)
            seconds += time.perf_counter() - began
            if step % record_every and step != steps:
                continue
            # Energies and distance of each sample, in the steps that are recorded
            found = solver.progress(inverse, state)
            if not bool(found.energies.isfinite().all()):
                worst = int((~found.energies.isfinite()).nonzero()[0])
                outcome, detail = Outcome.DIVERGED, f" The energy of sample {worst} is not finite after step {step}."
                break
            good, reached = state, found
            history.append(_row(inverse, step, seconds, good.u, reached))
            # Stopping rule: max_i distance_i <= tolerance, or the callback
            distance = history[-1]["distance"]
            if distance <= tolerance:
                what = "distance" if reached.gap is None else "relative gap"
                outcome, detail = Outcome.CONVERGED, f" The largest {what} is {distance:.3g} after {step} steps."
                break
            if callback is not None and callback(dict(history[-1])):
                outcome, detail = Outcome.STOPPED, f" It returned a true value after step {step}."
                break
    except Stalled as stalled:
        outcome, detail = Outcome.STALLED, f" {stalled}"
    except KeyboardInterrupt:
        outcome = Outcome.INTERRUPTED
    # Outcome and result, at the last state with finite energies
    if outcome is Outcome.FINISHED:
        detail = _distances(reached, tolerance)
    message = _SENTENCES.get(outcome, outcome.value) + detail
    return Inversion(
        input=good.u,
        hidden=tuple(good.hidden),
        energy=reached.energies,
        residual=inverse.residuals(good.u),
        gap=reached.gap,
        radius=reached.radius,
        outcome=outcome,
        message=message,
        history=history,
    )


_SENTENCES = {
    Outcome.CONVERGED: "The inversion converged.",
    Outcome.DIVERGED: "The inversion diverged; the last good input was kept.",
}
"""Sentences for inversions; those of `Outcome` mention the parameters of a model."""


def _distances(reached: InversionProgress, tolerance: float) -> str:
    """Return the largest finite distance and the tolerance in words, and how many distances are not finite."""
    known = reached.distance.isfinite()
    samples, rest = len(known), int((~known).sum())
    said, which = "", "distance"
    if rest:
        few, which = f"{rest} of {samples} samples", "distance of the others"
        said = f" The last step left {few} in place, for it would have increased their energy."
        if reached.gap is not None:
            said = f" The gap of {few} is not finite."
    if rest == samples:
        return said
    return f"{said} The largest {which} is {float(reached.distance[known].max()):.3g}, the tolerance {tolerance:g}."


def _row(inverse: InverseProblem, step: int, seconds: float, u: Tensor, reached: InversionProgress) -> Row:
    row = {
        "step": float(step),
        "seconds": seconds,
        "energy": float(reached.energies.mean()),
        "residual": float(inverse.residuals(u).mean()),
        "distance": float(reached.distance.max()),
    }
    if reached.gap is not None:
        row["gap"] = float(reached.gap.max())
    return {name: value if not math.isnan(value) else math.inf for name, value in row.items()}
