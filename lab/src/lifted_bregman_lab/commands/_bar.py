"""How far a long command has come."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from lifted_bregman.cli import _console
from lifted_bregman_lab.watching import Watch


@contextmanager
def bar() -> Iterator[Watch]:
    """A bar on a terminal; elsewhere a line whenever something new begins."""
    from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeRemainingColumn

    console = _console.messages()
    columns = (TextColumn("{task.description}"), BarColumn(), TaskProgressColumn(), TimeRemainingColumn())
    with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as bar:
        task, said = bar.add_task("", total=1.0), ""

        def watch(what: str, part: float) -> None:
            nonlocal said
            bar.update(task, description=what, completed=part)
            if not console.is_terminal and what != said:
                said = what
                console.print(f"{what} ({part:.0%})")

        yield watch
