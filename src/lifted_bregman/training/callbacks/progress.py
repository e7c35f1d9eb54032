"""Progress: epoch, objective and time left, as a live bar on a terminal and as plain lines elsewhere."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from lifted_bregman.solvers import Callback, Run

if TYPE_CHECKING:
    from rich.console import Console
    from rich.progress import Progress as Bar
    from rich.progress import TaskID

_REFRESH = 0.1  # seconds between updates of the bar
_BAR = 12  # characters of the bar
_SHOWN = {"objective": "objective", "running_objective": "running objective", "validation": "validation"}
_SHOWN |= {"accuracy": "accuracy", "running_accuracy": "running accuracy", "sparsity": "zeros"}
_FRACTIONS = {"accuracy", "running_accuracy", "validation_accuracy", "sparsity"}


class Progress(Callback):
    """Shows epoch, objective, validation, sparsity and the time left, on standard error.

    A narrow terminal shows as many of them as fit, epoch and time left first.

    console       a rich console to write to; by default one for standard error
    title         a word before each line, where several runs follow each other
    time_limit    the `limit` of the run's `Timer`, in seconds of steps, if it has one; the time left depends on it
    line_seconds  the least time between two plain lines, >= 0; the last row always gets one

    Example:
        >>> from rich.console import Console
        >>> problem, X = lb.lift(nn.Linear(3, 3), loss=lb.SquaredError()), torch.randn(20, 3)
        >>> progress = lb.callbacks.Progress(Console(quiet=True))  # without a console it writes to standard error
        >>> lb.fit(problem, (X, X), epochs=4, callbacks=[progress]).outcome.name
        'FINISHED'
    """

    reads_parameters = False

    def __init__(
        self,
        console: Console | None = None,
        title: str = "training",
        time_limit: float | None = None,
        line_seconds: float = 1.0,
    ) -> None:
        self._given = self._console = console
        self._title, self._time_limit, self._line_seconds = title, time_limit, line_seconds
        self._bar: Bar | None = None
        self._task: TaskID | None = None
        self._shown_at = 0.0
        self._behind: tuple[float, float] = (0.0, 0.0)
        self._unsaid = ""

    def started(self, run: Run) -> None:
        from rich.console import Console

        self._behind = (self._done(run), time.monotonic())
        self._console = self._given or Console(stderr=True)
        if not self._console.is_terminal:
            return
        from rich.progress import BarColumn, TextColumn
        from rich.progress import Progress as Bar

        columns = (TextColumn("{task.description}"), BarColumn(bar_width=_BAR), TextColumn("{task.fields[numbers]}"))
        self._bar = Bar(*columns, console=self._console, auto_refresh=False)
        self._task = self._bar.add_task(self._title, total=1.0, numbers="")
        self._bar.start()

    def stepped(self, run: Run) -> None:
        if self._bar is not None and time.monotonic() - self._shown_at >= _REFRESH:
            self._draw(run)

    def recorded(self, run: Run, row: dict[str, float]) -> None:
        if self._bar is not None:
            self._draw(run)
            return
        numbers, left = self._numbers(run), self._left(run)
        self._unsaid = f"{self._title}: {'  '.join([*numbers, *left])}"
        if time.monotonic() - self._shown_at >= self._line_seconds:
            self._say()

    def finished(self, run: Run) -> None:
        if self._bar is not None:
            self._draw(run)
        self._say()

    def close(self) -> None:
        if self._bar is not None:
            self._bar.stop()
            self._bar = None
        self._console = self._given  # a console that was made here cannot be copied to another process

    def _say(self) -> None:
        if self._unsaid and self._console is not None:
            self._console.print(self._unsaid, highlight=False, markup=False, soft_wrap=True)
            self._unsaid, self._shown_at = "", time.monotonic()

    def _draw(self, run: Run) -> None:
        assert self._bar is not None and self._task is not None
        epoch, *numbers = self._numbers(run)
        parts = [epoch, *self._left(run), *numbers]
        room = self._bar.console.width - len(self._title) - _BAR - 4
        while len(parts) > 1 and len("  ".join(parts)) > room:
            parts.pop()
        self._bar.update(self._task, completed=self._done(run), numbers="  ".join(parts), refresh=True)
        self._shown_at = time.monotonic()

    def _done(self, run: Run) -> float:
        """The fraction of the run that is done, by epochs or by the time limit."""
        part = run.batch / run.source.batches if run.source.batches else 0.0  # unknown of some streams
        done = (run.epoch - 1 + part) / run.epochs
        return min(1.0, done if self._time_limit is None else max(done, run.seconds / self._time_limit))

    def _numbers(self, run: Run) -> list[str]:
        """The epoch, the last row's numbers, and the seconds of the run."""
        row = run.history[-1] if run.history else {}
        epoch = int(row["epoch"]) if row else min(run.epoch, run.epochs)
        shown = [f"epoch {epoch}" if self._time_limit is not None else f"epoch {epoch}/{run.epochs}"]
        shown += [f"{word} {_number(name, row[name])}" for name, word in _SHOWN.items() if name in row]
        if "validation_accuracy" in row:
            shown.append(f"validation accuracy {_number('validation_accuracy', row['validation_accuracy'])}")
        return [*shown, f"{run.seconds:.1f} s"]

    def _left(self, run: Run) -> list[str]:
        """The estimated time left, in words; empty at the start and at the end."""
        before, since = self._behind
        done, elapsed = self._done(run) - before, time.monotonic() - since
        if done <= 0.0 or before + done >= 1.0 or run.outcome is not None:
            return []
        return [f"{_duration((1.0 - before - done) * elapsed / done)} left"]


def _number(name: str, value: float) -> str:
    return f"{100 * value:.1f} %" if name in _FRACTIONS else f"{value:.4g}"


def _duration(seconds: float) -> str:
    if seconds < 90:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 5400 else f"{seconds / 3600:.1f} h"
