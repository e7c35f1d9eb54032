"""How a run ends: the outcomes, the result of a run, and the exceptions that end a run."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum

from lifted_bregman.solvers.interface import SolverState


class Outcome(Enum):
    """How a run ended.  The value is a sentence; `Result.message` adds layer and quantity.

    Example:
        >>> X = torch.linspace(-1, 1, 20).reshape(-1, 1)
        >>> problem = lb.lift(nn.Linear(1, 1), loss=lb.SquaredError())
        >>> result = lb.fit(problem, (X, 2 * X + 1), solver=lb.CoordinateDescent(), epochs=50, tolerance=1e-5)
        >>> result.outcome
        <Outcome.CONVERGED: "The run converged: every block's certificate is below the tolerance.">
    """

    CONVERGED = "The run converged: every block's certificate is below the tolerance."
    FINISHED = "The run took all the steps it was asked for."
    STALLED = "The run stalled: no step size above its floor decreases the energy."
    DIVERGED = "The run diverged; the last good parameters were kept."
    STOPPED = "The run was stopped early by a callback."
    INTERRUPTED = "The run was interrupted; what was reached is kept."


class Stalled(Exception):
    """Raised by a solver's step when it can make no more progress; the message names layer and quantity."""


class Diverged(Exception):
    """Raised when a number is not finite or the objective has exploded; the message names quantity and layer or row."""

    since: int | None = None
    """The number of the message that first carried NaN or infinity, among several processes; None if unknown.  A rank
    with a smaller number diverged earlier.
    """


class StopNow(KeyboardInterrupt):
    """A KeyboardInterrupt that leaves the run as an exception: the user interrupted a second time."""


_SHOWN = ("objective", "running_objective", "accuracy", "running_accuracy", "validation", "validation_accuracy")


@dataclass(repr=False)
class Result:
    """What a run returns; the trained parameters are in the model.

    Example:
        >>> X = torch.linspace(-1, 1, 20).reshape(-1, 1)
        >>> problem = lb.lift(nn.Linear(1, 1), loss=lb.SquaredError())
        >>> result = lb.fit(problem, (X, 2 * X + 1), epochs=3)
        >>> result.outcome.name, len(result.history)
        ('FINISHED', 3)
    """

    outcome: Outcome
    message: str
    """The outcome's sentence, followed by step, layer or quantity."""
    state: SolverState
    """The solver's state after the last step."""
    history: list[dict[str, float]] = field(default_factory=list)
    """One row an epoch with the entries that `Run.history` lists.  The history of a run that diverged before its first
    row is the row of the initial parameters, with epoch 0.
    """

    def __repr__(self) -> str:
        last = self.history[-1] if self.history else {}
        reached = "".join(f", {name} {last[name]:.4g}" for name in _SHOWN if name in last)
        return f"Result({self.outcome.name} after {self.state.steps} steps{reached}: {self.message})"
