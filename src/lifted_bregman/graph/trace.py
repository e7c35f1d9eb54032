"""Trace: a model becomes a graph of calls, with its modules and parameters in place.

The forward method runs twice, on proxies for tensors, for batches of two sizes and in both modes.  Where the two graphs
differ, a number is the batch size, or follows a module's mode; any other difference is refused.
"""

from __future__ import annotations

import inspect
from typing import Any

import torch
from torch import Tensor, fx, nn

from lifted_bregman.graph.agree import agree
from lifted_bregman.graph.inputs import Input
from lifted_bregman.graph.refusals import refuse_call
from lifted_bregman.graph.tracer import WRAP, ModelTracer
from lifted_bregman.maps.determinism import refuse, unchanged

SIZES = (2, 3)
"""Samples in the two traces."""


def trace(model: nn.Module, example: tuple[Tensor, ...] | None) -> tuple[fx.Graph, dict[str, Tensor], bool]:
    """The graph of the model, its constants, and whether the graph is the same in training and evaluation mode.

    In the arguments of nodes `BatchSize` stands for a multiple of the batch size, `Mode` for a module's mode.
    """
    count = required_inputs(model) if example is None else len(example)
    modes = {module: module.training for module in model.modules()}
    state = {module: (dict(module.__dict__), _registered(module)) for module in model.modules()}
    like = next((p for p in model.parameters()), torch.zeros(()))

    def run(samples: int, training: bool | None) -> ModelTracer:
        """One trace, in the given mode or, for None, in the present one; the model is left as it was."""
        for module, mode in modes.items():
            module.training = mode if training is None else training
        inputs = [None] * count if example is None else [_samples(x, samples) for x in example]
        tracer = ModelTracer(model, inputs, samples)
        try:
            with unchanged(model, like):
                tracer.run()
        finally:
            # Attributes, parameters, buffers and submodules that forward has set
            for module, (attributes, registered) in state.items():
                module.__dict__.clear()
                module.__dict__.update(attributes)
                for name, entries in registered.items():
                    kept = attributes[name]
                    kept.clear()
                    kept.update(entries)
        return tracer

    try:
        # Two sizes and both modes at once: the graphs agree for most models
        few, many = run(SIZES[0], True), run(SIZES[1], False)
        difference = agree(few.graph, many.graph, few.constants, many.constants)
        both = difference is None
        if not both:  # the graph depends on the mode: two sizes in the present mode
            few, many = run(SIZES[0], None), run(SIZES[1], None)
            difference = agree(few.graph, many.graph, few.constants, many.constants)
        if difference is not None:
            node, reason = difference
            refuse_call(
                node.meta.get("path", "model"), node.meta.get("owner", model), node.meta.get("line"), reason, WRAP
            )
    finally:
        for module, mode in modes.items():
            module.training = mode
    return few.graph, few.constants, both


def required_inputs(model: nn.Module) -> int:
    """1 if the model's forward takes one tensor; raises for others, which need an example."""
    needed = [p.name for p in _positional(model) if p.default is p.empty]
    if len(needed) > 1:
        names = ", ".join(needed)
        refuse("model", model, f"its forward takes {names}: give an example of each, example=({names})")
    return 1


def inputs_of(model: nn.Module, example: tuple[Tensor, ...] | None) -> tuple[Input, ...]:
    """The tensors that the model takes, with their names in its forward method where there are several."""
    if example is None:
        return (Input(),)
    if len(example) == 1:
        return (Input(dtype=example[0].dtype),)
    names = [p.name for p in _positional(model)]
    names += [f"input {place}" for place in range(len(names) + 1, len(example) + 1)]  # those of *args have no names
    return tuple(Input(name, x.dtype) for name, x in zip(names, example, strict=False))


def _positional(model: nn.Module) -> list[inspect.Parameter]:
    """The arguments of the model's forward method that can be given by position."""
    try:
        parameters = inspect.signature(model.forward).parameters.values()
    except (TypeError, ValueError):
        return []
    places = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    return [p for p in parameters if p.kind in places]


def _samples(x: Tensor, count: int) -> Tensor:
    """The first samples of x, repeated where there are too few."""
    return torch.cat([x] * -(-count // len(x)))[:count].detach().clone()


def _registered(module: nn.Module) -> dict[str, dict[str, Any]]:
    return {name: dict(module.__dict__[name]) for name in ("_parameters", "_buffers", "_modules")}
