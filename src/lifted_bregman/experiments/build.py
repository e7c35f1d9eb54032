"""From settings to the objects that `fit` takes: the network, the lifted problem, the callbacks."""

from __future__ import annotations

import os
from itertools import pairwise
from typing import TYPE_CHECKING

import torch
from torch import nn

from lifted_bregman._generators import named_generator
from lifted_bregman.activations import Activation, Identity, SoftThreshold
from lifted_bregman.errors import SettingError
from lifted_bregman.experiments import specs
from lifted_bregman.experiments.settings import Settings
from lifted_bregman.losses import BregmanLoss, CrossEntropy, SquaredError
from lifted_bregman.maps.noise import insert_noise
from lifted_bregman.penalties import L1
from lifted_bregman.problem import LiftedProblem, lift
from lifted_bregman.problem.blocks import code_layer
from lifted_bregman.solvers import Callback
from lifted_bregman.training.callbacks import Checkpoint, EarlyStopping, Progress, Timer

if TYPE_CHECKING:
    from rich.console import Console


def build_model(settings: Settings, inputs: int, outputs: int) -> nn.Sequential:
    """Dense layers whose initial parameters are a function of the seed; the loss owns the last activation."""
    assert settings.hidden is not None
    widths = (inputs, *settings.hidden, outputs)
    dtype = getattr(torch, settings.dtype)
    _require_memory(widths, dtype)
    modules: list[nn.Module] = []
    activations = hidden_activations(settings)
    for layer, (width, wider) in enumerate(pairwise(widths), start=1):
        generator = named_generator(settings.seed, "initialisation", layer)
        with torch.random.fork_rng(devices=()):  # nn.Linear draws from torch's global generator
            torch.manual_seed(generator.initial_seed())
            linear = nn.Linear(width, wider, dtype=dtype)
        if settings.initialisation != "torch":
            nn.init.xavier_uniform_(linear.weight, generator=generator)
            nn.init.zeros_(linear.bias)
        modules.append(linear)
        if layer <= len(activations):
            modules.append(activations[layer - 1].as_module())
    return nn.Sequential(*modules)


def _require_memory(widths: tuple[int, ...], dtype: torch.dtype) -> None:
    """SettingError if the parameters of dense layers of these widths are more than the memory of the machine."""
    needed = sum(wider * (width + 1) for width, wider in pairwise(widths)) * dtype.itemsize
    memory = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    if needed > memory:
        raise SettingError(
            f"hidden is {','.join(map(str, widths[1:-1]))}, a network of {needed:,} bytes, and this machine has "
            f"{memory:,}: there is not enough memory; take narrower layers."
        )


def hidden_activations(settings: Settings) -> tuple[Activation, ...]:
    """σ_1 .. σ_{L-1}; an autoencoder's code has a soft threshold unless the settings say otherwise."""
    assert settings.hidden is not None
    made = [specs.activation(spec) for spec in settings.activation]
    made = made if len(made) > 1 else made * len(settings.hidden)
    threshold = settings.code_threshold
    if threshold is not None:
        made[code_layer(len(settings.hidden) + 1) - 1] = SoftThreshold(threshold) if threshold else Identity()
    return tuple(made)


def build_problem(settings: Settings, inputs: int, outputs: int, device: torch.device | None = None) -> LiftedProblem:
    """The lifted problem of resolved settings, its parameters on a device, the CPU if None."""
    assert settings.hidden is not None
    loss: BregmanLoss = CrossEntropy() if settings.loss == "cross-entropy" else SquaredError()
    code = code_layer(len(settings.hidden) + 1)
    weights = settings.weights
    model = build_model(settings, inputs, outputs).to(device or "cpu")
    return lift(
        insert_noise(model, dropout=settings.dropout, input_noise=settings.input_noise),
        loss=loss,
        weights=weights[0] if weights is not None and len(weights) == 1 else weights,
        penalties={code: L1(settings.code_penalty)} if settings.code_penalty else {},
    )


def build_callbacks(settings: Settings, console: Console) -> list[Callback]:
    """The callbacks of a run, a function of its settings, so that a resumed run has the same."""
    callbacks: list[Callback] = [Progress(console, time_limit=settings.time_limit)]
    if settings.time_limit is not None:
        callbacks.append(Timer(settings.time_limit))
    if settings.patience is not None:
        callbacks.append(EarlyStopping(patience=settings.patience))
    saver = Checkpoint(settings.checkpoint_epochs, settings.checkpoint_steps, settings.checkpoint_seconds)
    return [*callbacks, saver]
