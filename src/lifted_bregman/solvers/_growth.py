"""When a run whose numbers are all finite has diverged: how its objective compares with that of the start.

A row is *good* while its value is at most `GOOD` times the reference, the larger of the objective of the initial
parameters and the loss of a network whose outputs z_L are 0.  The second is for runs that start at a small objective,
even at 0: a network that is better than one of zeros has not diverged.  Training may leave this range for some rows, as
the first steps of a large rate do, and come back.  A run that ends outside has diverged, and so has one that exceeds
`EXPLODED` times the reference at any row.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch

from lifted_bregman._no_graph import no_graph
from lifted_bregman.problem import LiftedProblem
from lifted_bregman.solvers._interface import Batch, SolverState

GOOD = 10.0
"""How many times the reference the value of a good row is at most."""
EXPLODED = 1e12
"""How many times the reference ends a run at once."""
ADVICE = "take smaller steps or a larger prox_weight"
"""What to do about a run that has grown."""
_AT_ONCE = 4096  # samples evaluated together


@dataclass(frozen=True)
class Reference:
    """What values are compared with."""

    value: float
    meaning: str

    def times(self, value: float) -> float:
        """value / reference; 0 where the reference is 0 and nothing can be compared."""
        return value / self.value if self.value > 0.0 else 0.0


def reference(start: float, zero: float) -> Reference:
    """The larger of the objective at the start and the loss of outputs 0, whichever of them are finite."""
    known = {"at the start": start, "of a network with outputs 0": zero}
    finite = {meaning: value for meaning, value in known.items() if math.isfinite(value)}
    meaning = max(finite, key=lambda name: finite[name], default="")
    return Reference(finite.get(meaning, 0.0), meaning)


@no_graph
def zero_loss(problem: LiftedProblem, data: Batch) -> float:
    """The (weighted) mean over all samples of ℓ(y, 0); every process has all targets."""
    last, total = problem.network[problem.depth], 0.0
    for begin in range(0, len(data), _AT_ONCE):
        piece = data.slice(begin, begin + _AT_ONCE)
        values = problem.weight(problem.depth) * last.bregman(piece.Y, torch.zeros_like(piece.Y))
        total += float((values if piece.weights is None else values * piece.weights).sum())
    return total / len(data)


def row_value(row: dict[str, float], state: SolverState, samples: int) -> float:
    """The objective; where the solver has variables for all samples, their energy if it is lower.

    A solver of the lifted problem decreases that energy, while the network's own objective may rise for long.
    """
    variables = state.variables
    if variables is None or not len(variables) or len(variables[1]) != samples:
        return row["objective"]
    energy = row.get("energy", math.inf)
    return min(row["objective"], energy) if math.isfinite(energy) else row["objective"]
