"""Whether the numbers of a run are finite, and metrics as numbers."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from lifted_bregman.solvers.outcome import Diverged

if TYPE_CHECKING:
    from lifted_bregman.solvers.loop import Run


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
    """Metrics as numbers.  Tensors () are copied from the device together, which waits for the step to end."""
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
    """Metrics under their names in the history: a metric by term becomes name_1, name_2, ..."""
    flat: dict[str, Any] = {}
    for name, value in metrics.items():
        flat |= {f"{name}_{term}": own for term, own in value.items()} if isinstance(value, Mapping) else {name: value}
    return flat


def finite(t: Tensor) -> bool:
    """Whether every number is finite.  A finite sum proves it in one pass; a sum that overflows needs a second one."""
    return bool(t.sum().isfinite()) or bool(t.isfinite().all())


def _not_finite(value: Any, path: str) -> str | None:
    """The path of the first tensor that holds NaN or infinity; None if every number is finite."""
    if isinstance(value, Tensor):
        return None if not value.is_floating_point() or finite(value) else path
    entries = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, entry in entries:
        where = _not_finite(entry, f"{path}/{key}" if path else str(key))
        if where is not None:
            return where
    return None
