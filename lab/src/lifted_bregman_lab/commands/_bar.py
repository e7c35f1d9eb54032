"""The progress of a long command, and its end by Ctrl-C."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from lifted_bregman.cli import terminal
from lifted_bregman.cli.exit_codes import ExitCode
from lifted_bregman_lab.watching import Watch


@contextmanager
def bar() -> Iterator[Watch]:
    """Show a progress bar on a terminal; elsewhere print a line when a new part begins."""
    from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeRemainingColumn

    console = terminal.messages()
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


def report_interrupt(out: Path | None) -> int:
    """Say whether the rows so far are stored in the folder `out`, and return the exit code of Ctrl-C."""
    kept = f"{out} keeps what is done, and the same command continues" if out else "without --out nothing is stored"
    terminal.say("lifted", f"ended early; {kept}.", "bold yellow")
    return ExitCode.INTERRUPTED
