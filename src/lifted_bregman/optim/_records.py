"""Hooks that record the inputs of a model's layers and the gradients of the loss with respect to their outputs."""

from __future__ import annotations

import weakref
from collections.abc import Collection
from dataclasses import dataclass
from typing import Any

from torch import Tensor, nn
from torch.utils.hooks import RemovableHandle

from lifted_bregman._autocast import widened


@dataclass(eq=False)
class Record:
    """One call of a layer."""

    x: Tensor
    """Its inputs."""
    forward: int
    """The number of the forward pass."""
    E: Tensor | None = None
    """The gradient of the loss in the outputs, in float32 at least; None before a backward pass."""


class Recorder:
    """Hooks on a model and on its modules with weights.  They record in training mode while gradients are enabled."""

    def __init__(self, model: nn.Module) -> None:
        self._forward, self._running = 0, False
        self.records: dict[nn.Module, list[Record]] = {}
        """The calls since the last step."""
        self.wanted: Collection[nn.Module] = ()
        """The modules whose calls are recorded."""
        self.last: nn.Module | None = None
        """The module with weights that ended last in a forward pass: the output layer."""
        # The hooks are removed when this recorder, and with it the optimiser, is deleted.
        from lifted_bregman.optim._hooks import Begin, End, Note

        handles = [model.register_forward_pre_hook(Begin(self))]
        for module in model.modules():
            if any(p.ndim > 1 for p in module.parameters(recurse=False)):
                handles.append(module.register_forward_hook(Note(self)))
        handles.append(model.register_forward_hook(End(self)))
        weakref.finalize(self, _remove, handles).atexit = False

    def begin(self) -> None:
        """A forward pass of the model begins."""
        self._forward, self._running = self._forward + 1, True

    def end(self) -> None:
        """It has ended."""
        self._running = False

    def finished(self) -> dict[nn.Module, list[Record]]:
        """The calls of each layer that a backward pass has reached."""
        return {layer: done for layer, calls in self.records.items() if (done := [c for c in calls if c.E is not None])}

    def clear(self, finished_only: bool = False) -> None:
        """Discards all calls, or with `finished_only` those that a backward pass has reached."""
        if not finished_only:
            self.records.clear()
        for calls in self.records.values():
            calls[:] = [call for call in calls if call.E is None]

    def note(self, module: nn.Module, args: tuple[Any, ...], output: Any) -> None:
        """Records a call of a module, and the gradient of its output when a backward pass computes it."""
        if self._running or not self._forward:  # and not in a backward pass that computes activations again
            self.last = module
        if module not in self.wanted or not (module.training and args):
            return
        if not (isinstance(output, Tensor) and output.requires_grad):
            return
        record = Record(args[0].detach(), self._forward)
        self.records.setdefault(module, []).append(record)

        def receive(gradient: Tensor) -> None:
            E = widened(gradient.detach())
            record.E = E if record.E is None else record.E + E

        output.register_hook(receive)


def _remove(handles: list[RemovableHandle]) -> None:
    for handle in handles:
        handle.remove()
