"""How the ranks of a run end it together."""

from __future__ import annotations

from dataclasses import dataclass

from lifted_bregman.solvers.outcome import Outcome

_NEVER = 2**62


@dataclass(frozen=True)
class Stop:
    """Why a run is to end."""

    outcome: Outcome
    message: str
    record: bool = False
    """Whether a row is to be added for an epoch that is not over."""
    failed: bool = False
    """Whether what was under way has not come to its end, so that there is nothing to record."""
    since: int = _NEVER
    """Of a run that diverged, the number of the first message in which this rank sent NaN or infinity."""

    def precedence(self, rank: int) -> tuple[bool, int, int]:
        """What decides among several: that a run diverged, where this began, and the lowest rank."""
        diverged = self.outcome is Outcome.DIVERGED
        return not diverged, self.since if diverged else _NEVER, rank


class Agreement:
    """What the ranks of a run decide together.  Here there is one, which decides alone.

    All ranks call a method at the same place of the run.  Only `share_error` is called at once, by the rank that has an
    error; the others get it from the next method they call, which raises.  So nothing else is sent between what may
    fail on one rank alone and the next method.  After an error nothing more is sent.
    """

    rank: int = 0
    """The number of this rank; rank 0 calls the callbacks."""
    size: int = 1
    """The number of ranks."""

    def stop(self, wanted: Stop | None) -> Stop | None:
        """What all stop with after the present step or row, if any of them wants to: see `Stop.precedence`."""
        return wanted

    def any(self, flag: bool) -> bool:
        """Whether any rank gives True."""
        return flag

    def share_error(self, error: Exception | None, told: Exception | None = None) -> None:
        """Raises `error`, and where another rank has one, an error of the same kind that names its rank.

        With `told` the others raise an error of that kind, with its message.
        """
        if error is not None:
            raise error
