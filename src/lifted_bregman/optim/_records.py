"""What the layers of a model see in a training loop: their inputs, and the gradients of the loss in their outputs."""

from __future__ import annotations

import weakref
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves

from lifted_bregman._autocast import widened


@dataclass(eq=False)
class Record:
    """One call of a layer."""

    x: Tensor
    """Its inputs."""
    square: Tensor
    """Σ z² over all entries of its outputs, ()."""
    count: int
    """How many entries these are."""
    samples: int
    """Samples of the batch."""
    factor: Any
    """c: the gradient of one sample's loss is c times what autograd passes down."""
    forward: int
    """The number of the forward pass."""
    place: int
    """The place of the call among those of the forward pass."""
    E: Tensor | None = None
    """c times the gradient of the loss in the outputs; None before a backward pass."""


@dataclass
class Reduction:
    """How the user's loss is made of the losses of samples."""

    mean: bool
    terms_per_sample: float
    loss_scale: Any

    def factor(self, samples: int) -> Any:
        """c, for a batch of so many samples."""
        given = self.loss_scale
        scale = given.get_scale() if hasattr(given, "get_scale") else given() if callable(given) else given
        return (samples * self.terms_per_sample if self.mean else 1.0) / scale


class Recorder:
    """Hooks on a model and on its layers.  They record in training mode while gradients are enabled."""

    def __init__(self, model: nn.Module, layers: Iterable[nn.Module], reduction: Reduction) -> None:
        self._reduction = reduction
        self._samples: int | None = None
        self._forward = self._place = 0
        self.records: dict[nn.Module, list[Record]] = {layer: [] for layer in layers}
        # Hooks know the recorder weakly: an optimiser that is no longer used records nothing.  A compiled model calls
        # them between its parts.
        me = weakref.ref(self)

        def begin(module: nn.Module, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> None:
            if (recorder := me()) is not None:
                recorder._begin(args, kwargs)

        def note(module: nn.Module, args: tuple[Any, ...], output: Any) -> None:
            if (recorder := me()) is not None:
                recorder._note(module, args, output)

        model.register_forward_pre_hook(torch.compiler.disable(begin), with_kwargs=True)
        for layer in self.records:
            layer.register_forward_hook(torch.compiler.disable(note))

    def finished(self) -> dict[nn.Module, list[Record]]:
        """The calls of each layer that a backward pass has reached."""
        return {layer: done for layer, calls in self.records.items() if (done := [c for c in calls if c.E is not None])}

    def clear(self, finished_only: bool = False) -> None:
        """Forgets all calls, or those that a backward pass has reached."""
        for calls in self.records.values():
            calls[:] = [call for call in calls if finished_only and call.E is None]

    def _begin(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> None:
        first = next((t for t in tree_leaves((args, dict(kwargs))) if isinstance(t, Tensor) and t.ndim), None)
        self._samples = None if first is None else len(first)
        self._forward += 1
        self._place = 0

    @torch.no_grad()
    def _note(self, module: nn.Module, args: tuple[Any, ...], output: Any) -> None:
        if not (module.training and isinstance(output, Tensor) and output.requires_grad and args):
            return
        x, z = args[0].detach(), widened(output.detach())
        samples = len(x) if self._samples is None else self._samples
        square = torch.linalg.vector_norm(z).square_()
        factor = self._reduction.factor(samples)
        record = Record(x, square, z.numel(), samples, factor, self._forward, self._place)
        self._place += 1
        self.records[module].append(record)

        def receive(gradient: Tensor) -> None:
            E = widened(gradient.detach()) * record.factor
            record.E = E if record.E is None else record.E + E

        output.register_hook(receive)
