"""Where the command line writes: results to standard output, everything else to standard error.

Both are plain text unless they are a terminal, and obey NO_COLOR.  A closed pipe ends the output, not the run.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING

from rich.console import Console
from rich.progress import BarColumn, DownloadColumn, TextColumn, TimeRemainingColumn
from rich.progress import Progress as Bar
from rich.text import Text

if TYPE_CHECKING:
    from lifted_bregman.data import DownloadProgress

_silent = False


class Terminal(Console):
    """A console that stops writing when its pipe is closed."""

    def on_broken_pipe(self) -> None:
        """Continues without output."""
        self.quiet = True
        discard(self.file.fileno())


def silence(wanted: bool) -> None:
    """Switches the output of this process off or on; rank 0 writes for the other ranks."""
    global _silent
    _silent = wanted


def silent() -> bool:
    """Whether the output of this process is off."""
    return _silent


def output(wrapped: bool = False) -> Terminal:
    """Standard output; lines are not wrapped unless asked for."""
    return Terminal(highlight=False, markup=False, soft_wrap=not wrapped, quiet=_silent)


def messages(quiet: bool = False, wrapped: bool = False) -> Terminal:
    """Standard error; lines are not wrapped unless asked for."""
    return Terminal(stderr=True, highlight=False, markup=False, soft_wrap=not wrapped, quiet=quiet or _silent)


def say(word: str, sentence: str, style: str = "bold red") -> None:
    """Prints one sentence on standard error, after a word such as "warning"."""
    messages().print(Text.assemble((f"{word}:", style), f" {sentence}"))


def show_rows(rows: Mapping[str, str]) -> None:
    """Prints a table on standard output: a name and its value in each line."""
    console, width = output(), max(map(len, rows), default=0)
    for name, value in rows.items():
        console.print(Text.assemble((name.ljust(width), "bold"), f"  {value}"))


@contextmanager
def downloads() -> Iterator[DownloadProgress]:
    """A progress bar for downloads, on a terminal only."""
    console = messages()
    columns = (TextColumn("{task.description}"), BarColumn(), DownloadColumn(), TimeRemainingColumn())
    with Bar(*columns, console=console, transient=True, disable=not console.is_terminal) as bar:
        task = bar.add_task("", total=None, visible=False)

        def report(what: str, done: int, expected: int | None) -> None:
            bar.update(task, description=what, completed=done, total=expected, visible=True)

        yield report


def discard(descriptor: int) -> None:
    """Redirects a file descriptor to the null device."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, descriptor)
    os.close(nowhere)
