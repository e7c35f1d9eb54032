"""TensorBoard: the history as scalars that TensorBoard shows."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from lifted_bregman.solvers import Callback, Run


class TensorBoard(Callback):
    """Writes every entry of every row to `folder`, for `tensorboard --logdir folder`.  Needs the extra `track`.

    A continued run writes after the last step it reached.

    Example:
        >>> problem, X = lb.lift(nn.Linear(3, 3), loss=lb.SquaredError()), torch.randn(20, 3)
        >>> lb.fit(problem, (X, X), epochs=4, callbacks=[lb.callbacks.TensorBoard("logs")]).outcome.name
        'FINISHED'
    """

    reads_parameters = False

    def __init__(self, folder: str | Path) -> None:
        try:
            from torch.utils.tensorboard import SummaryWriter
        except ImportError as error:
            raise ImportError("this needs tensorboard: install lifted-bregman with the extra 'track'.") from error
        self._writer_class: Any = SummaryWriter
        self._folder = Path(folder)
        self._writer: Any = None

    def started(self, run: Run) -> None:
        self._writer = self._writer_class(str(self._folder), purge_step=run.state.steps + 1)

    def recorded(self, run: Run, row: dict[str, float]) -> None:
        for name, value in row.items():
            self._writer.add_scalar(name, value, int(row["step"]))
        self._writer.flush()

    def close(self) -> None:
        if self._writer is not None:
            self._writer.close()
