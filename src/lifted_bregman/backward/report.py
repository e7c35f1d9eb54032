"""The report of a lifted model: which activations are lifted, and which are left to autograd."""

from __future__ import annotations

from dataclasses import dataclass

from torch import nn

from lifted_bregman.activations.torch_modules import is_activation
from lifted_bregman.backward._forward import rule_of
from lifted_bregman.backward._rule import ActivationRow


@dataclass(frozen=True)
class BackwardReport:
    """The activations of a model, lifted or left to autograd; `print` shows a table.

    Example:
        >>> report = lb.backward_report(lb.lifted_backward(nn.Sequential(nn.Linear(3, 4), nn.ReLU())))
        >>> [(row.path, row.kind, row.place) for row in report.rows]
        [('1', 'ReLU', 'model.1')]
    """

    rows: tuple[ActivationRow, ...]
    """The activations in the order of the forward pass; modules whose forward did not run yet come last."""
    nudge: float
    """ν > 0, shared by the activations on a path."""
    longest_path: int | None
    """P, the number of lifted activations on the longest path; None before the first forward pass."""

    @property
    def lifted(self) -> tuple[ActivationRow, ...]:
        """The rows of activations whose backward pass uses their proximal map."""
        return tuple(row for row in self.rows if row.reason is None)

    @property
    def left_to_autograd(self) -> tuple[ActivationRow, ...]:
        """The rows of activations that autograd differentiates; `reason` says why they are not lifted."""
        return tuple(row for row in self.rows if row.reason is not None)

    def __str__(self) -> str:
        """One line for each activation."""
        width = max((len(row.place) for row in self.rows), default=0)
        kinds = max((len(row.kind) for row in self.rows), default=0)
        lines = [
            f"{row.place:{width}}  {row.kind:{kinds}}  "
            f"{'lifted' if row.reason is None else f'left to autograd: {row.reason}'}"
            for row in self.rows
        ]
        if self.longest_path is None:
            lines.append("no forward pass yet: functions and methods are found in the first one.")
        else:
            lines.append(f"nudge {self.nudge:g}, shared by {self.longest_path} on the longest path")
        return "\n".join(lines)


def backward_report(model: nn.Module) -> BackwardReport:
    """Every activation of a model that `lifted_backward` was given: lifted, or left to autograd and why.

    Example:
        >>> model = lb.lifted_backward(nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 2), nn.Tanh()))
        >>> print(lb.backward_report(model))
        model.1  ReLU  lifted
        model.3  Tanh  lifted
        no forward pass yet: functions and methods are found in the first one.
    """
    rule = rule_of(model, "backward_report")
    rows = list(rule.rows.values())
    share = rule.shares.get("")
    counted = share is not None and share.counted
    if not counted:
        met = {row.path for row in rows}
        for path, module in model.named_modules():
            if path not in met and is_activation(module):
                rows.append(ActivationRow(path, type(module).__name__, f"model.{path}" if path else "model", None))
    longest = share.longest_path if share is not None and counted else None
    return BackwardReport(tuple(rows), rule.nudge, longest)
