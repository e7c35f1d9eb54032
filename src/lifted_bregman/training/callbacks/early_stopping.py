"""EarlyStopping: ends a run that no longer improves, with the best parameters."""

from __future__ import annotations

from collections.abc import Mapping
from difflib import get_close_matches
from typing import Any

import torch
from torch import Tensor

from lifted_bregman._arguments import require_count, require_not_negative
from lifted_bregman.errors import SettingError
from lifted_bregman.problem.blocks import layers
from lifted_bregman.solvers import Callback, Outcome, Run


def improves_downwards(monitor: str) -> bool:
    """Whether a smaller value is better: False for accuracies, True for all other entries."""
    return not monitor.endswith("accuracy")


def monitored(monitor: str | None, row: Mapping[str, float]) -> str:
    """`monitor`, or for None the first of "validation", "objective" and "running_objective" that `row` contains."""
    default = ("validation", "objective", "running_objective")
    name = monitor or next((name for name in default if name in row), "objective")
    if name not in row:
        raise SettingError(f"monitor is {name!r}, which the history does not have; it has {', '.join(sorted(row))}.")
    return name


def require_monitor(monitor: str | None, run: Run) -> None:
    """Raises SettingError for a name that no row will have, or that resembles the name of an entry.

    Called before the first step.  Other names may be metrics of the solver; `monitored` checks them at the first row.
    """
    depth, held = run.problem.depth, not run.source.streamed
    evaluated = held or run.evaluate_training
    needs = {
        "objective": evaluated,
        "accuracy": run.classify and evaluated,
        "running_objective": not held,
        "running_accuracy": run.classify and not held,
        "validation": run.validation is not None,
        "certificate": run.tolerance is not None,
    }
    needs |= {"validation_accuracy": run.classify and needs["validation"], "sparsity": depth > 1 and evaluated}
    needs |= dict.fromkeys(("energy", *(f"energy_{layer}" for layer in layers(depth))), held)
    known = ["step", "epoch", "seconds"]
    known += [*(name for name, given in needs.items() if given), *run.problem.work.as_dict()]
    if monitor is None or monitor in known:
        return
    close = get_close_matches(monitor, known, n=1)
    if close or not needs.get(monitor, True):
        meant = f"; did you mean {close[0]!r}?" if close else "."
        raise SettingError(f"monitor is {monitor!r}, which the rows will not have{meant} They have {', '.join(known)}.")


class EarlyStopping(Callback):
    """Stops when the monitored number has not improved for `patience` rows, and puts the best parameters back.

    monitor      an entry of the history; by default "validation", or "objective" without a validation set, for a stream
      "running_objective".  An accuracy improves when it grows, any other entry when it falls
    patience     rows without an improvement, at least 1
    min_delta    the smallest change that counts as an improvement, >= 0
    restore_best whether the model ends with the parameters of its best row, whatever ends the run

    Example:
        >>> problem, X = lb.lift(nn.Linear(3, 3), loss=lb.SquaredError()), torch.randn(20, 3)
        >>> stop = lb.callbacks.EarlyStopping(patience=2, min_delta=1e9)
        >>> result = lb.fit(problem, (X, X), epochs=50, callbacks=[stop])
        >>> result.outcome.name, len(result.history)
        ('STOPPED', 3)
    """

    everywhere = True  # every process of a run has the same rows, and the same best parameters
    reads_parameters = False  # but at the best rows

    def __init__(
        self, monitor: str | None = None, patience: int = 5, min_delta: float = 0.0, restore_best: bool = True
    ) -> None:
        require_count(patience, "patience")
        require_not_negative(min_delta, "min_delta")
        self.monitor, self.patience, self.min_delta, self.restore_best = monitor, patience, min_delta, restore_best
        self._resumed = False  # whether the state is that of a checkpoint
        self._begin()

    def _begin(self) -> None:
        self.best: float | None = None
        """The best value so far."""
        self.best_epoch = 0
        self.waited = 0
        """Rows since then."""
        self._parameters: dict[str, Tensor] = {}

    def started(self, run: Run) -> None:
        require_monitor(self.monitor, run)
        if not self._resumed or run.state.steps == 0:  # a new run discards the best value of an earlier one
            self._begin()
        self._resumed = False

    def recorded(self, run: Run, row: dict[str, float]) -> None:
        name = monitored(self.monitor, row)
        value = row[name] if improves_downwards(name) else -row[name]
        if self.best is None or value < self.best - self.min_delta:
            self.best, self.best_epoch, self.waited = value, int(row["epoch"]), 0
            if self.restore_best:
                self._copy(run)
            return
        self.waited += 1
        if self.waited >= self.patience:
            run.stop(
                Outcome.STOPPED,
                f"{name} has not improved in {self.waited} rows; the best, {row_value(name, self.best):.6g}, was after "
                f"epoch {self.best_epoch}{' and is restored' if self.restore_best else ''}.",
            )

    def finished(self, run: Run) -> None:
        if self.restore_best and self._parameters:
            run.problem.model.load_state_dict(self._parameters)

    def state_dict(self) -> dict[str, Any]:
        return {
            "best": self.best,
            "best_epoch": self.best_epoch,
            "waited": self.waited,
            "parameters": self._parameters,
        }

    def load_state_dict(self, entries: Mapping[str, Any]) -> None:
        self.best, self.best_epoch, self.waited = entries["best"], entries["best_epoch"], entries["waited"]
        self._parameters = {name: value.clone() for name, value in entries["parameters"].items()}
        self._resumed = True

    def _copy(self, run: Run) -> None:
        run.collect(state=False)
        current = run.problem.model.state_dict()
        if not self._parameters:
            self._parameters = {name: value.detach().clone() for name, value in current.items()}
            return
        with torch.no_grad():
            for name, value in current.items():
                self._parameters[name].copy_(value)


def row_value(monitor: str, best: float) -> float:
    """The value in the history: `best` is stored with its sign changed for entries that should grow."""
    return best if improves_downwards(monitor) else -best
