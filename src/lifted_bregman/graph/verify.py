"""Checks, after reading, that the terms compute what the model computes, each sample alone."""

from __future__ import annotations

import torch
from torch import Tensor

from lifted_bregman.errors import UnsupportedModuleError
from lifted_bregman.graph.terms import Network
from lifted_bregman.maps.determinism import nearly_equal, unchanged


@torch.no_grad()
def evaluate_terms(network: Network, inputs: tuple[Tensor, ...]) -> dict[int, Tensor]:
    """Every variable of the network for given inputs, by number; the last one is z_L, before the final activation."""
    x = {-place: value for place, value in enumerate(inputs)}
    for number, layer in enumerate(network, 1):
        read = tuple(x[v] for v in layer.inputs)
        x[number] = layer.activate(layer.map.apply(read if len(read) > 1 else read[0]))
    return x


@torch.no_grad()
def require_same_function(network: Network, example: tuple[Tensor, ...], both_modes: bool) -> None:
    """Raises unless each variable of a sample depends on that sample alone, and the terms give the model's output.

    The check runs in evaluation mode, on three different samples, and on the first of them alone.
    """
    model = network.model
    modes = {module: module.training for module in model.modules()}
    if not both_modes and any(modes.values()):
        return
    # Variables of three samples, and of the first alone; the model's output
    generator = torch.Generator().manual_seed(0)
    inputs = tuple(_three(x, generator) for x in example)
    try:
        model.eval()
        with unchanged(model, inputs[0]):
            together, alone = evaluate_terms(network, inputs), evaluate_terms(network, tuple(x[:1] for x in inputs))
            expected = model(*inputs)
    finally:
        for module, mode in modes.items():
            module.training = mode
    # Samples do not depend on each other
    for number, layer in enumerate(network, 1):
        if not nearly_equal(together[number][:1], alone[number]):
            raise UnsupportedModuleError(
                f"{layer.path} cannot be lifted: its output for the first sample changes with the rest of the batch; a "
                "map must treat each sample alone: take out what couples the samples."
            )
    # The last variable, activated, is the output
    z = together[len(network)]
    if network.final_activation is not None:
        from dataclasses import replace

        z = replace(network.layers[-1], activation=network.final_activation).activate(z)
    if not nearly_equal(z, expected):
        raise UnsupportedModuleError(
            "model cannot be lifted: the terms that were read do not give the model's output; its forward does "
            "something that tracing does not see, such as keeping state between calls: take that out, or wrap the "
            "module in lb.Map(module)."
        )


def _three(x: Tensor, generator: torch.Generator) -> Tensor:
    """Three samples from the example, moved a little so that they differ."""
    x = torch.cat([x] * -(-3 // len(x)))[:3].detach().clone()
    if x.is_floating_point():
        noise = torch.randn(x.shape, generator=generator, dtype=torch.float64).to(x)
        x += 0.1 * noise * (x.std() if x.numel() > 1 and float(x.std()) > 0.0 else 1.0)
    return x
