"""Checkpoint: saves a run every few epochs, steps or seconds, so that it can be resumed exactly."""

from __future__ import annotations

import time
import warnings
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from lifted_bregman._arguments import positive, require_count
from lifted_bregman.errors import CheckpointError, SettingError
from lifted_bregman.solvers import Callback, Outcome, Run
from lifted_bregman.solvers.finite import require_finite
from lifted_bregman.solvers.loop import Phase
from lifted_bregman.solvers.outcome import Diverged
from lifted_bregman.training.callbacks.early_stopping import improves_downwards, monitored, require_monitor

if TYPE_CHECKING:
    from lifted_bregman.training.run_folder import RunFolder


class Checkpoint(Callback):
    """Saves to the `out` folder of `fit`: every few epochs, steps or seconds, and once at the end.

    The last two checkpoints are kept, and the best of those saved at rows.  If the first or the last save of a run
    fails, the run raises the error; if another one fails, it warns.  With several ranks, rank 0 saves, and all ranks
    raise its error.

    every_epochs   at the rows of the history, at least 1
    every_steps    also after so many steps, for long epochs; None for never
    every_seconds  also after so many seconds; None for never
    monitor        the entry of the history by which the best checkpoint is chosen, as for `EarlyStopping`

    Example:
        >>> problem, X = lb.lift(nn.Linear(3, 3), loss=lb.SquaredError()), torch.randn(20, 3)
        >>> checkpoint = lb.callbacks.Checkpoint(every_epochs=2)
        >>> result = lb.fit(problem, (X, X), epochs=4, out="run", callbacks=[checkpoint])
        >>> resumed = lb.fit(problem, (X, X), epochs=6, out="run", resume=True, callbacks=[checkpoint])
        >>> [row["epoch"] for row in resumed.history]
        [1, 2, 3, 4, 5, 6]
    """

    everywhere = True  # every rank sends its variables and learns whether the save succeeded
    reads_parameters = False  # except when it saves

    def __init__(
        self,
        every_epochs: int = 1,
        every_steps: int | None = None,
        every_seconds: float | None = None,
        monitor: str | None = None,
    ) -> None:
        for name, value in {"every_epochs": every_epochs, "every_steps": every_steps}.items():
            if value is not None:
                require_count(value, name)
        if every_seconds is not None:
            positive(every_seconds, "every_seconds")
        self.every_epochs, self.every_steps, self.every_seconds = every_epochs, every_steps, every_seconds
        self.monitor = monitor
        self._folder: RunFolder | None = None
        self._begin()

    def _begin(self) -> None:
        self.best: float | None = None
        self._last_epoch = 0
        self._saved: tuple[int, int, int] | None = None
        self._saved_at = time.monotonic()

    def attach(self, folder: RunFolder) -> None:
        """Sets the folder of a new run.  `fit` calls it, and then restores the state of a resumed run."""
        self._folder = folder
        self._begin()

    def started(self, run: Run) -> None:
        if self._folder is None:
            raise SettingError("Checkpoint needs a folder: give fit(..., out='runs/name').")
        require_monitor(self.monitor, run)
        self._saved_at = time.monotonic()
        if self._saved is None:
            self._require_save(run)  # so that a kill in the first interval can be resumed from

    def stepped(self, run: Run) -> None:
        by_steps = self.every_steps is not None and run.state.steps % self.every_steps == 0
        by_time = self.every_seconds is not None and time.monotonic() - self._saved_at >= self.every_seconds
        if self.every_seconds is not None and run.partition.count > 1:
            by_time = run.agreement.any(by_time)  # clocks of ranks differ
        if by_steps or by_time:
            self._try(run, best=False)

    def recorded(self, run: Run, row: dict[str, float]) -> None:
        name, epoch = monitored(self.monitor, row), int(row["epoch"])
        if epoch - self._last_epoch < self.every_epochs:
            return
        value = row[name] if improves_downwards(name) else -row[name]
        better = self.best is None or value < self.best
        self.best, self._last_epoch = value if better else self.best, epoch
        self._try(run, best=better)

    def ended(self, run: Run) -> None:
        if run.intact:
            self._require_save(run)
        elif run.outcome is Outcome.INTERRUPTED:
            self._go_back(run)

    def state_dict(self) -> dict[str, Any]:
        return {"best": self.best, "last_epoch": self._last_epoch}

    def load_state_dict(self, entries: Mapping[str, Any]) -> None:
        self.best, self._last_epoch = entries["best"], entries["last_epoch"]

    def resumed(self, run: Run) -> None:
        """Records that the present step is saved already.  `fit` calls it after it has restored a checkpoint."""
        self._saved = _position(run)

    def _require_save(self, run: Run) -> None:
        """Saves unless the present step is saved already; all ranks raise the error of rank 0."""
        if run.agreement.size > 1:
            require_finite(run)  # on all ranks, which have the same numbers
        failure: CheckpointError | None = None
        due = self._saved != _position(run)
        if run.partition.count > 1:
            due = run.agreement.any(due)  # only rank 0 knows that a save failed
        try:
            if due:
                self._save(run, best=False)
        except CheckpointError as error:
            failure = error
        run.agreement.share_error(failure)

    def _try(self, run: Run, best: bool) -> None:
        try:
            self._save(run, best)
        except CheckpointError as error:
            warnings.warn(
                f"this checkpoint was not saved, and the run continues: {error}", RuntimeWarning, stacklevel=2
            )

    def _save(self, run: Run, best: bool) -> None:
        """Collects the variables of all ranks on rank 0, which saves."""
        assert self._folder is not None
        if not _finite_everywhere(run):
            return  # the rank with NaN or infinity raises the error
        before, run.phase = run.phase, Phase.SAVE
        try:
            run.collect()
            if run.agreement.rank == 0:
                self._folder.save(run, best)
        finally:
            run.phase = before
        self._saved, self._saved_at = _position(run), time.monotonic()

    def _go_back(self, run: Run) -> None:
        """Restores the last checkpoint after a step or row was interrupted, which leaves parameters half changed."""
        assert self._folder is not None
        broken = f"Step {run.state.steps + 1}" if run.phase is Phase.STEP else f"The row after step {run.state.steps}"
        self._folder.restore(run)
        run.phase = Phase.BETWEEN
        run.message += f" {broken} was broken off; step {run.state.steps}, the last checkpoint, is kept."


def _finite_everywhere(run: Run) -> bool:
    """Whether the variables of all ranks are finite; raises `Diverged` on a rank where they are not."""
    failure: Diverged | None = None
    try:
        require_finite(run)
    except Diverged as diverged:
        failure = diverged
    broken = run.agreement.any(failure is not None) if run.partition.count > 1 else failure is not None
    if failure is not None:
        raise failure
    return not broken


def _position(run: Run) -> tuple[int, int, int]:
    return run.state.steps, run.epoch, run.batch
