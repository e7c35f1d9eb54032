"""Callbacks: the hooks of a run."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

from lifted_bregman.errors import CallbackError

if TYPE_CHECKING:
    from lifted_bregman.solvers.agreement import Agreement
    from lifted_bregman.solvers.loop import Run


class Callback:
    """Hooks that a run calls.  A subclass defines the methods it needs.

    The order of the calls is `started`; `stepped` after each step and `recorded` after each row of the history;
    `ended`; the solver's `finish`; `finished`; and always `close`, also after an error.

    Where several processes share a run, only rank 0 calls the callbacks.  They may evaluate `run.problem` freely, and
    `run.stop` ends the run in all processes after the same step.  An error in a callback is raised on rank 0, and as
    `CallbackError` in all other processes.  Where processes share the layers, parameters of other ranks are those of
    the last row, and rank 0 has only the solver state and variables of the layers that it holds.

    Example:
        >>> class Count(lb.callbacks.Callback):
        ...     steps = 0
        ...     def stepped(self, run):
        ...         self.steps += 1
        >>> X, count = torch.randn(20, 3), Count()
        >>> problem = lb.lift(nn.Linear(3, 3), loss=lb.SquaredError())
        >>> result = lb.fit(problem, (X, X), epochs=2, batch_size=5, callbacks=[count])
        >>> count.steps
        8
    """

    everywhere: bool = False
    """Whether every rank calls it: for callbacks that depend on the history only, or act on their own process."""

    reads_parameters: bool = True
    """Whether it reads parameters in `recorded`: processes that share the layers then gather them at each row."""

    def started(self, run: Run) -> None:
        """Before the first step, also of a resumed run, whose state is loaded by then."""

    def stepped(self, run: Run) -> None:
        """After each step."""

    def recorded(self, run: Run, row: dict[str, float]) -> None:
        """After each new row of the history."""

    def ended(self, run: Run) -> None:
        """After the last step; `run.outcome` has the outcome."""

    def finished(self, run: Run) -> None:
        """Last; the result has the parameters as they are after this call."""

    def close(self) -> None:
        """Always, even if the run raised or another callback's `close` did."""

    def state_dict(self) -> dict[str, Any]:
        """The state that an exact resumption needs, as containers of tensors and numbers."""
        return {}

    def load_state_dict(self, entries: Mapping[str, Any]) -> None:
        """Restores the state from `entries`, which `state_dict` returned."""


def callback_error(callback: Callback, moment: str, error: Exception) -> CallbackError:
    """The error that other processes raise for an error of a callback."""
    return CallbackError(
        f"{moment} of the callback {type(callback).__name__} raised {error!r}: mend it, then start the run again."
    )


def close_all(callbacks: Iterable[Callback], agreement: Agreement) -> None:
    """Closes every callback of this process, and then raises the first error, if any."""
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
