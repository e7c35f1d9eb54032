"""How a run ended: an enum whose value is the sentence shown to the user, and the result that carries it."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum

from lifted_bregman.solvers._interface import SolverState


class Outcome(Enum):
    """How a run ended.  The value is a sentence; `Result.message` adds layer and quantity."""

    CONVERGED = "The run converged: every block's certificate is below the tolerance."
    FINISHED = "The run took all the steps it was asked for."
    STALLED = "The run stalled: no step size above its floor decreases the energy."
    DIVERGED = "The run diverged; the last good parameters were kept."
    STOPPED = "The run was stopped early by a callback."
    INTERRUPTED = "The run was interrupted; what was reached is kept."


_SHOWN = ("objective", "running_objective", "accuracy", "running_accuracy", "validation", "validation_accuracy")


@dataclass(repr=False)
class Result:
    """What a run leaves besides the trained parameters, which are in the model."""

    outcome: Outcome
    message: str
    state: SolverState
    history: list[dict[str, float]] = field(default_factory=list)
    """One row an epoch with the entries that `Run.history` lists.  A run that diverged before its first row has
    that of the initial parameters, with epoch 0.
    """

    def __repr__(self) -> str:
        last = self.history[-1] if self.history else {}
        reached = "".join(f", {name} {last[name]:.4g}" for name in _SHOWN if name in last)
        return f"Result({self.outcome.name} after {self.state.steps} steps{reached}: {self.message})"
