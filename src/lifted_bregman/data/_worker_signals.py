"""Signals and the worker processes of a loader: what is sent to the run, or happens to a worker, breaks off no step."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any


@contextmanager
def deaf_to_interrupts() -> Iterator[None]:
    """Processes and threads that are started in the block do not get SIGINT: Ctrl-C is for the run, which ends them."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def take_child_handler() -> Any:
    """Takes away torch's handler of SIGCHLD and returns it; None where it is not set, or not for this thread to change.

    It raises in the middle of whatever runs when a worker dies.  Without it the next batch that is fetched raises.
    """
    handler = signal.getsignal(signal.SIGCHLD)
    if threading.current_thread() is not threading.main_thread():
        return None
    if getattr(handler, "__module__", None) != "torch.utils.data._utils.signal_handling":
        return None
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    return handler


def give_child_handler(handler: Any) -> None:
    """Puts back what `take_child_handler` returned."""
    if handler is not None:
        signal.signal(signal.SIGCHLD, handler)
