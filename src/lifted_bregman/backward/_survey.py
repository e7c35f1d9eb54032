"""The first forward pass of a model: which activations it calls, and how many lie on the longest path."""

from __future__ import annotations

import sys
from pathlib import Path
from types import FrameType
from typing import Any

import torch.utils.checkpoint
from torch import Tensor
from torch.utils._pytree import tree_leaves

from lifted_bregman.activations import Activation
from lifted_bregman.backward._answer import LiftedActivation, LiftedInPlace, Share
from lifted_bregman.backward._rule import ActivationRow, Rule
from lifted_bregman.errors import CompatibilityError, SettingError, UnsupportedModuleError
from lifted_bregman.graph.refusals import is_user_code
from lifted_bregman.problem.composite import require_composable

_LIFTED = tuple(f"{function.__name__}Backward" for function in (LiftedActivation, LiftedInPlace))
_FORWARD = str(Path(__file__).with_name("_forward.py"))
_CHECKPOINT = str(torch.utils.checkpoint.__file__)


class Survey:
    """Records every activation of one forward pass."""

    def __init__(self, rule: Rule, path: str) -> None:
        self.rule, self.path = rule, path
        self._hidden: dict[int, int] = {}
        """Calls behind a node of reentrant checkpointing, by the node's id."""
        self._nodes: list[Any] = []  # kept alive, so that no id is used twice

    def note(self, path: str, name: str, activation: Activation | None, reason: str | None) -> str:
        """Adds a call to the report; returns its place, module and line."""
        line = user_line()
        where = f"model.{path}" if path else "model"
        place = f"{where}, {name} at {line}" if line else where
        kind = name if activation is None else repr(activation)
        self.rule.rows[place, kind] = ActivationRow(path, kind, place, reason)
        if activation is not None:
            checkpoint_around()
            require_composable(activation, self.rule.penalties.get(path))
        return place

    def hide(self, node: Any) -> None:
        """Counts a call that reentrant checkpointing will repeat in its backward pass."""
        self._nodes.append(node)
        self._hidden[id(node)] = self._hidden.get(id(node), 0) + 1

    def finish(self, share: Share, result: Any, calls: int) -> None:
        """Counts P in the graph of the forward pass's result; an error if nothing is lifted."""
        rows = self.rule.rows.values()
        if self.path == "" and not any(row.reason is None for row in rows):
            raise UnsupportedModuleError(nothing_to_lift([row for row in rows if row.reason is not None]))
        lifted = {row.path for row in rows if row.reason is None}
        unmet = sorted(set(self.rule.penalties) - lifted)
        if unmet and self.path == "":
            raise SettingError(
                f"penalties names {unmet[0]!r}, in which no lifted activation is called; the names are "
                f"{', '.join(sorted(lifted))}."
            )
        longest = longest_path([t for t in tree_leaves(result) if isinstance(t, Tensor)], self._hidden)
        # Within torch.func there is no graph to read: P is then the number of all calls.
        share.count(calls, max(1, longest or calls + sum(self._hidden.values())))


def nothing_to_lift(left: list[ActivationRow]) -> str:
    """The message for a model without a proximal activation."""
    seen = f" It has {left[0].kind} at {left[0].place}: {left[0].reason}." if left else ""
    return (
        "the model calls no activation that is a proximal map, so that there is nothing to lift: use nn.ReLU, "
        f"nn.Tanh, nn.Softplus or another proximal activation.{seen}"
    )


def longest_path(outputs: list[Tensor], hidden: dict[int, int]) -> int:
    """The largest number of lifted activations on a path from a leaf to an output of autograd's graph.

    hidden  the calls behind nodes of reentrant checkpointing, by the ids of those nodes
    """
    lengths: dict[Any, int] = {}
    todo = [t.grad_fn for t in outputs if t.grad_fn is not None]
    while todo:
        node = todo[-1]
        before = [n for n, _ in node.next_functions if n is not None]
        waiting = [n for n in before if n not in lengths]
        if node not in lengths and waiting:
            todo += waiting
            continue
        todo.pop()
        own = 1 if node.name() in _LIFTED else hidden.get(id(node), 0)
        lengths[node] = own + max((lengths[n] for n in before), default=0)
    return max((lengths[t.grad_fn] for t in outputs if t.grad_fn is not None), default=0)


def user_line() -> str | None:
    """The line of the user's code that calls an activation, "file.py:12"; None where torch's own code calls it."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None and not _is_forward(frame):
        if is_user_code(frame.f_code.co_filename):
            return f"{Path(frame.f_code.co_filename).name}:{frame.f_lineno}"
        frame = frame.f_back
    return None


def checkpoint_around() -> Any:
    """The graph node of the reentrant checkpointing around the present call; None without checkpointing.

    Checkpointing of a function that is not a module is an error: the backward pass would repeat it outside the model,
    with plain activations.
    """
    frame: FrameType | None = sys._getframe(1)
    in_module = False
    while frame is not None:
        in_module = in_module or _is_forward(frame)
        if frame.f_code.co_filename == _CHECKPOINT:
            if not in_module:
                raise CompatibilityError(
                    f"{user_line() or 'the model'}: torch.utils.checkpoint runs a function that calls an activation, "
                    "and in the backward pass it would call it outside the model: give checkpoint a module, "
                    "checkpoint(self.block, x)."
                )
            if frame.f_code.co_name == "forward" and "ctx" in frame.f_locals:  # CheckpointFunction.forward(ctx, ...)
                return frame.f_locals["ctx"]
        frame = frame.f_back
    return None


def _is_forward(frame: FrameType) -> bool:
    return frame.f_code.co_filename == _FORWARD and frame.f_code.co_name == "__call__"
