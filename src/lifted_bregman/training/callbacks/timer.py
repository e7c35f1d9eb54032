"""Timer: a run that ends after a given time."""

from __future__ import annotations

from lifted_bregman._arguments import positive
from lifted_bregman.solvers import Callback, Outcome, Run


class Timer(Callback):
    """Stops after `limit` seconds in steps; evaluation and checkpoints do not count.

    The step under way is finished and a last row recorded.  A continued run counts the seconds it had before.  The rate
    of the default solver falls to 0 at the last epoch asked for, and is still high where a run of many epochs is ended
    early: give `fit` about the epochs that the time allows.

    limit  seconds, > 0

    Example:
        >>> problem, X = lb.lift(nn.Linear(3, 3), loss=lb.SquaredError()), torch.randn(20, 3)
        >>> lb.fit(problem, (X, X), epochs=1000000, callbacks=[lb.callbacks.Timer(0.01)]).outcome.name
        'STOPPED'
    """

    reads_parameters = False

    def __init__(self, limit: float) -> None:
        self.limit = positive(limit, "limit")

    def stepped(self, run: Run) -> None:
        if run.seconds >= self.limit:
            run.stop(
                Outcome.STOPPED, f"Its {self.limit:g} seconds are over, after {run.state.steps} steps.", record=True
            )
