"""How the ranks of a run agree on its end."""

from __future__ import annotations

from dataclasses import dataclass

from lifted_bregman.solvers.outcome import Outcome

_NEVER = 2**62


@dataclass(frozen=True)
class Stop:
    """A rank's request to end the run."""

    outcome: Outcome
    message: str
    """The sentence for the user."""
    record: bool = False
    """Whether to add a row to the history for the unfinished epoch."""
    failed: bool = False
    """Whether the present step or row failed, so that there is nothing to record."""
    since: int = _NEVER
    """The number of the first message in which this rank sent NaN or infinity, if the run diverged."""

    def precedence(self, rank: int) -> tuple[bool, int, int]:
        """The sort key among several requests: divergence first, then the earliest message, then the lowest rank."""
        diverged = self.outcome is Outcome.DIVERGED
        return not diverged, self.since if diverged else _NEVER, rank


class Agreement:
    """Decisions that the ranks of a run take together.  This class is for one rank, which decides alone.

    All ranks call the same method at the same point of the run.  The exception is `share_error`: a rank with an error
    calls it at once, and the next method that another rank calls raises the error there.  Between an operation that
    can fail on one rank and the next method no other message may be sent, and none after an error.
    """

    rank: int = 0
    """The number of this rank; rank 0 calls the callbacks."""
    size: int = 1
    """The number of ranks."""

    def stop(self, wanted: Stop | None) -> Stop | None:
        """The request with the highest precedence among all ranks; every rank returns it.  None if no rank has one."""
        return wanted

    def any(self, flag: bool) -> bool:
        """Whether `flag` is true on any rank."""
        return flag

    def share_error(self, error: Exception | None, told: Exception | None = None) -> None:
        """Raises `error` here, and an error of the same class that names this rank on the other ranks.

        told  the error whose class and message the other ranks get in place of `error`
        """
        if error is not None:
            raise error
