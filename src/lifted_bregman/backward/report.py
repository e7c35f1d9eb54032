"""What becomes of each activation of a model in `loss.backward()`."""

from __future__ import annotations

from dataclasses import dataclass

from torch import nn

from lifted_bregman.activations.torch_modules import is_activation
from lifted_bregman.backward._forward import rule_of
from lifted_bregman.backward._rule import ActivationRow


@dataclass(frozen=True)
class BackwardReport:
    """What becomes of each activation in `loss.backward()`; `print` shows a table."""

    rows: tuple[ActivationRow, ...]
    """The activations in the order of the forward pass; modules whose forward did not run yet come last."""
    nudge: float
    """ν."""
    longest_path: int | None
    """P; None before the first forward pass."""

    @property
    def lifted(self) -> tuple[ActivationRow, ...]:
        """The activations that answer with their proximal maps."""
        return tuple(row for row in self.rows if row.reason is None)

    @property
    def left_to_autograd(self) -> tuple[ActivationRow, ...]:
        """The others."""
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
    """Every activation of a model that `lifted_backward` was given: lifted, or left to autograd and why."""
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
