"""Whether a run is still finite, and the last parameters that were."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from lifted_bregman.problem import LiftedProblem

if TYPE_CHECKING:
    from lifted_bregman.solvers._loop import Run


class Diverged(Exception):
    """Something is not finite; the message names layer and quantity."""

    since: int | None = None
    """Among several processes, a smaller number where it began; None where that is not known."""


class Keeper:
    """A copy of the parameters of the last row, or of the beginning: those and the objective are finite."""

    def __init__(self, run: Run) -> None:
        self._copies = [p.detach().clone() for p in run.problem.model.parameters()]

    def keep(self, run: Run) -> None:
        """Copies the parameters; `require_finite` comes first, in all processes."""
        with torch.no_grad():
            torch._foreach_copy_(self._copies, [p.detach() for p in run.problem.model.parameters()])

    def restore(self, problem: LiftedProblem) -> None:
        """Puts the copy back."""
        with torch.no_grad():
            torch._foreach_copy_([p.detach() for p in problem.model.parameters()], self._copies)


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
