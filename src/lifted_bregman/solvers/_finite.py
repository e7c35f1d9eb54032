"""Whether a run is still finite, and the last good parameters."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from lifted_bregman.graph import Partition
from lifted_bregman.solvers._anchor import Anchor, copied, live, overwrite

if TYPE_CHECKING:
    from lifted_bregman.solvers._loop import Run


class Diverged(Exception):
    """Something is not finite, or has exploded; the message names the quantity, and layer or row."""

    since: int | None = None
    """Among several processes, a smaller number where it began; None where that is not known."""


class Keeper:
    """A copy of the parameters of the last good row, or of the beginning: those and the objective are finite.

    A new one has the present parameters.  The model's buffers, such as the running statistics of batch normalisation,
    are copied with them.
    """

    def __init__(self, run: Run) -> None:
        self._copies: Anchor = copied(run.problem)
        self._buffers = {name: buffer.clone() for name, buffer in run.problem.model.named_buffers()}
        self.steps = run.state.steps
        """Steps taken when the copy was made."""
        self.epoch = int(run.history[-1]["epoch"]) if run.history else None
        """The epoch of its row; None where it has none."""
        self.behind = False
        """Whether the last row was not good, so that the copy is older."""

    @property
    def meaning(self) -> str:
        """Which parameters the copy has."""
        if self.epoch is None:
            return "its initial parameters" if self.steps == 0 else f"the parameters of step {self.steps}"
        return f"the parameters of epoch {self.epoch}"

    def keep(self, run: Run) -> None:
        """Copies the parameters of a good row; `require_finite` comes first, in all processes."""
        overwrite(self._copies, live(run.problem))
        for name, buffer in run.problem.model.named_buffers():
            self._buffers[name].copy_(buffer)
        self.steps, self.epoch, self.behind = run.state.steps, run.epoch, False

    def restore(self, run: Run) -> None:
        """Puts the copy back."""
        overwrite(live(run.problem), self._copies)
        for name, buffer in run.problem.model.named_buffers():
            buffer.copy_(self._buffers[name])

    def state_dict(self, partition: Partition) -> dict[str, Any]:
        """The copy of this rank's terms, and when it was made.  Not copied again."""
        parameters = {layer: own for layer, own in self._copies.items() if layer in partition.terms}
        kept = {"steps": self.steps, "epoch": self.epoch, "behind": self.behind, "parameters": parameters}
        # Where processes share the layers no buffer changes.
        return kept | ({"buffers": self._buffers} if self._buffers and partition.count == 1 else {})

    def load_state_dict(self, entries: Mapping[str, Any]) -> None:
        """Takes over what `state_dict` returned, for the layers that are in it."""
        self.steps, self.epoch, self.behind = entries["steps"], entries["epoch"], entries["behind"]
        overwrite({layer: self._copies[layer] for layer in entries["parameters"]}, entries["parameters"])
        for name, buffer in entries.get("buffers", {}).items():
            self._buffers[name].copy_(buffer)


def require_finite(run: Run) -> None:
    """Raises `Diverged` unless every parameter and every tensor of the solver's state is finite."""
    after = f"not finite after step {run.state.steps}"
    for layer in run.problem.network:
        for name, parameter in layer.map.parameters.items():
            if not finite(parameter.detach()):
                raise Diverged(f"{name} of {layer.path} is {after}")
    if run.state.variables is not None:
        for number, x in enumerate(run.state.variables, start=1):
            if not finite(x):
                raise Diverged(f"x_{number} is {after}")
    where = _not_finite(run.state.state_dict(), "")
    if where is not None:
        raise Diverged(f"{where} of the solver's state is {after}")


def read_numbers(metrics: Mapping[Any, Any]) -> dict[Any, Any]:
    """Metrics as numbers: those that are tensors () come from the device in one copy, which waits for the step."""
    there = [value for value in flat_metrics(metrics).values() if isinstance(value, Tensor)]
    if not there:
        return dict(metrics)
    dtype = next((value.dtype for value in there if value.is_floating_point()), torch.float32)
    numbers = iter(torch.stack([value.to(dtype) for value in there]).tolist())

    def read(value: Any) -> Any:
        if isinstance(value, Mapping):
            return {key: read(entry) for key, entry in value.items()}
        return next(numbers) if isinstance(value, Tensor) else float(value)

    return {name: read(value) for name, value in metrics.items()}


def flat_metrics(metrics: Mapping[str, Any]) -> dict[str, Any]:
    """Metrics under the names that a row of the history has: a metric by term as name_1, name_2, ..."""
    flat: dict[str, Any] = {}
    for name, value in metrics.items():
        flat |= {f"{name}_{term}": own for term, own in value.items()} if isinstance(value, Mapping) else {name: value}
    return flat


def finite(t: Tensor) -> bool:
    """Whether every number is finite.  A finite sum says so in one pass; another may only have overflowed."""
    return bool(t.sum().isfinite()) or bool(t.isfinite().all())


def _not_finite(value: Any, path: str) -> str | None:
    """The place of the first tensor that holds NaN or infinity."""
    if isinstance(value, Tensor):
        return None if not value.is_floating_point() or finite(value) else path
    entries = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, entry in entries:
        where = _not_finite(entry, f"{path}/{key}" if path else str(key))
        if where is not None:
            return where
    return None
