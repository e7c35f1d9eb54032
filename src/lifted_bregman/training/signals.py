"""Signals: SIGINT and SIGTERM end a run after a whole step, with a checkpoint."""

from __future__ import annotations

import signal
import threading
from types import FrameType
from typing import Any

from lifted_bregman.solvers import Callback, Outcome, Run
from lifted_bregman.solvers.loop import Phase
from lifted_bregman.solvers.outcome import StopNow

# Seconds before a step is interrupted, so that a run with checkpoints ends within five seconds of the signal.
_GRACE = 2.5


class Signals(Callback):
    """Ends the run after the present step when SIGINT comes, and SIGTERM where `terminate` is set.

    A second SIGINT raises KeyboardInterrupt at once.  With `break_off` a step or evaluation that takes more than a few
    seconds is interrupted; the caller then restores a checkpoint.  Outside the main thread, where Python delivers no
    signals, this does nothing.  A handler that was set by C code is replaced by the default one at the end.

    Example:
        >>> import signal
        >>> from lifted_bregman.training.signals import Signals
        >>> with Signals() as signals:
        ...     signal.raise_signal(signal.SIGINT)
        >>> signals.received == signal.SIGINT
        True
    """

    everywhere = True  # any rank may receive the signal
    reads_parameters = False

    def __init__(self, terminate: bool = False, break_off: bool = False) -> None:
        self.received: int | None = None
        """The signal that ended the run."""
        self._signals = (signal.SIGINT, signal.SIGTERM) if terminate else (signal.SIGINT,)
        self._break_off = break_off
        self._overdue = False
        self._run: Run | None = None
        self._timer: threading.Timer | None = None
        self._previous: dict[int, Any] = {}

    def __enter__(self) -> Signals:
        if threading.current_thread() is threading.main_thread():
            before = {number: signal.signal(number, self._receive) for number in self._signals}
            self._previous = {number: signal.SIG_DFL if h is None else h for number, h in before.items()}
        return self

    def __exit__(self, *exception: object) -> None:
        if self._timer is not None:
            self._timer.cancel()
        for number, handler in self._previous.items():
            signal.signal(number, handler)

    def exit_if_terminated(self) -> None:
        """Raises SystemExit(143) if SIGTERM ended the run; everything is saved by then."""
        if self.received == signal.SIGTERM:
            raise SystemExit(128 + signal.SIGTERM)

    def started(self, run: Run) -> None:
        self._run = run

    def stepped(self, run: Run) -> None:
        self._stop(run)

    def recorded(self, run: Run, row: dict[str, float]) -> None:
        self._stop(run)

    def ended(self, run: Run) -> None:
        self._run = None  # the last save and the result are not interrupted

    def _stop(self, run: Run) -> None:
        if self.received is not None:
            run.stop(Outcome.INTERRUPTED, f"It was sent {signal.Signals(self.received).name}.")

    def _receive(self, number: int, frame: FrameType | None) -> None:
        if self._overdue:
            self._overdue = False
            if self._run is None or self._run.outcome is not None:
                return
            if self._run.phase is not Phase.SAVE:
                self._stop(self._run)
                raise KeyboardInterrupt
            self._wait(_GRACE / 10)
        elif self.received is None:
            self.received = number
            if self._break_off:
                self._wait(_GRACE)
        elif number == signal.SIGINT:
            raise StopNow

    def _wait(self, seconds: float) -> None:
        self._timer = threading.Timer(seconds, self._expire)
        self._timer.daemon = True
        self._timer.start()

    def _expire(self) -> None:
        self._overdue = True
        main = threading.main_thread().ident
        assert main is not None
        signal.pthread_kill(main, signal.SIGINT)  # a real signal also ends a blocking call
