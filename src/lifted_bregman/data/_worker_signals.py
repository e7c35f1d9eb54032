"""Signals and the worker processes of a loader: a step is interrupted neither by Ctrl-C nor by a worker that dies."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any


@contextmanager
def deaf_to_interrupts() -> Iterator[None]:
    """Block SIGINT for processes and threads started in the block; on Ctrl-C the run ends them."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def take_child_handler() -> Any:
    """Remove torch's handler of SIGCHLD and return it; None if it is not set or this is not the main thread.

    The handler raises an error at once when a worker dies, also in the middle of a step.  Without it the error is
    raised when the next batch is fetched.
    """
    handler = signal.getsignal(signal.SIGCHLD)
    if threading.current_thread() is not threading.main_thread():
        return None
    if getattr(handler, "__module__", None) != "torch.utils.data._utils.signal_handling":
        return None
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    return handler


def give_child_handler(handler: Any) -> None:
    """Restore the handler that `take_child_handler` returned."""
    if handler is not None:
        signal.signal(signal.SIGCHLD, handler)
