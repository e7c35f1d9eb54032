"""What a run calls as it goes."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

from lifted_bregman.errors import CallbackError

if TYPE_CHECKING:
    from lifted_bregman.solvers._loop import Run
    from lifted_bregman.solvers.agreement import Agreement


class Callback:
    """What a run calls as it goes.  Every method may be left out.

    The order of a run is `started`, then `stepped` after each step and `recorded` after each row of the history, then
    `ended`, the solver's own last word (averages), `finished`, and whatever happened `close`.

    Where several processes share a run, the first one alone calls them, with a `run.problem` that it may evaluate
    freely, and a `stop` ends the run in all processes after the same step.  An error that one raises is raised there,
    and is a `CallbackError` in all other processes.  Where they share the layers, the parameters of other processes are
    those of the last row, and solver state and variables are only those of the first layers.
    """

    everywhere: bool = False
    """Whether every process of a run calls it: for callbacks that follow from the history alone, or look after the
    process they are in.
    """

    reads_parameters: bool = True
    """Whether it reads the parameters at rows, to which processes that share the layers then send theirs."""

    def started(self, run: Run) -> None:
        """Before the first step; a continued run has its state already."""

    def stepped(self, run: Run) -> None:
        """After each step."""

    def recorded(self, run: Run, row: dict[str, float]) -> None:
        """After each new row of the history."""

    def ended(self, run: Run) -> None:
        """After the last step, with the parameters it left and the outcome in `run.outcome`."""

    def finished(self, run: Run) -> None:
        """At the very end; parameters changed here are the result's."""

    def close(self) -> None:
        """Always, even if the run raised, or another callback could not be closed."""

    def state_dict(self) -> dict[str, Any]:
        """What has to be kept for an exact continuation: containers of tensors and numbers."""
        return {}

    def load_state_dict(self, entries: Mapping[str, Any]) -> None:
        """Takes over what `state_dict` returned."""


def callback_error(callback: Callback, moment: str, error: Exception) -> CallbackError:
    """What other processes are told of an error that a callback raised."""
    return CallbackError(
        f"{moment} of the callback {type(callback).__name__} raised {error!r}: mend it, then start the run again."
    )


def close_all(callbacks: Iterable[Callback], agreement: Agreement) -> None:
    """Closes those that this process calls, each of them whatever others raise, and then raises the first error."""
    first: tuple[Callback, BaseException] | None = None
    for callback in callbacks:
        if agreement.rank == 0 or callback.everywhere:
            try:
                callback.close()
            except BaseException as error:
                first = first or (callback, error)
    if first is not None:
        callback, failure = first
        if isinstance(failure, Exception):
            agreement.share_error(failure, callback_error(callback, "close", failure))
        raise failure
