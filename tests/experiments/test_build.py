"""The network and the problem that settings describe."""

from __future__ import annotations

import math

import pytest
import torch
from rich.console import Console
from torch import nn

from lifted_bregman import activations as act
from lifted_bregman.experiments import Settings
from lifted_bregman.experiments.build import build_callbacks, build_model, build_problem
from lifted_bregman.losses import CrossEntropy, SquaredError
from lifted_bregman.penalties import L1
from lifted_bregman.training.callbacks import Checkpoint, EarlyStopping, Progress, Timer


def resolved(**settings: object) -> Settings:
    return Settings(**{"data": "digits", **settings}).resolved()  # type: ignore[arg-type]


def linears(model: nn.Sequential) -> list[nn.Linear]:
    return [module for module in model if isinstance(module, nn.Linear)]


def test_widths_and_activations() -> None:
    settings = resolved(hidden=(7, 5), activation=("tanh", "elu:0.5"), dtype="float64")
    model = build_model(settings, 11, 3)
    assert [(layer.in_features, layer.out_features) for layer in linears(model)] == [(11, 7), (7, 5), (5, 3)]
    assert [module.activation for module in model if isinstance(module, act.ActivationModule)] == [
        act.Tanh(),
        act.ELU(0.5),
    ]
    assert all(parameter.dtype == torch.float64 for parameter in model.parameters())


def test_initial_weights_are_glorots() -> None:
    model = build_model(resolved(hidden=(300, 200)), 400, 100)
    for layer in linears(model):
        limit = math.sqrt(6.0 / (layer.in_features + layer.out_features))
        weights = layer.weight.detach()
        assert float(weights.abs().max()) <= limit
        assert abs(float(weights.std()) - limit / math.sqrt(3.0)) < 0.02 * limit  # uniform on [-limit, limit]
        assert bool((layer.bias == 0).all())


def test_initial_weights_are_those_of_torch() -> None:
    """Uniform on [-1/√n, 1/√n] for n inputs, weights and biases."""
    model = build_model(resolved(hidden=(900, 800), initialisation="torch"), 400, 700)
    for layer in linears(model):
        limit = 1.0 / math.sqrt(layer.in_features)
        for parameter in (layer.weight.detach(), layer.bias.detach()):
            assert 0.98 * limit < float(parameter.abs().max()) <= limit
            assert abs(float(parameter.std()) - limit / math.sqrt(3.0)) < 0.04 * limit


def test_the_random_numbers_of_the_user_are_left_alone() -> None:
    torch.manual_seed(3)
    expected = torch.rand(4)
    torch.manual_seed(3)
    build_model(resolved(hidden=(5, 5), initialisation="torch"), 5, 5)
    assert torch.equal(torch.rand(4), expected)


@pytest.mark.parametrize("initialisation", [None, "glorot", "torch"])
def test_initial_weights_are_a_function_of_the_seed(initialisation: str | None) -> None:
    def small(**settings: object) -> Settings:
        return resolved(hidden=(5, 5), initialisation=initialisation, **settings)

    torch.manual_seed(1)
    first = build_model(small(), 5, 5)
    torch.manual_seed(2)
    again, other = build_model(small(), 5, 5), build_model(small(seed=1), 5, 5)
    assert all(torch.equal(a.weight, b.weight) for a, b in zip(linears(first), linears(again), strict=True))
    assert not any(torch.equal(a.weight, b.weight) for a, b in zip(linears(first), linears(other), strict=True))
    assert not torch.equal(linears(first)[0].weight, linears(first)[1].weight)


@pytest.mark.parametrize(("hidden", "code"), [((4,), 1), ((4, 3), 1), ((6, 4, 6), 2), ((9, 6, 4, 6, 9), 3)])
def test_the_code_is_the_middle_layer(hidden: tuple[int, ...], code: int) -> None:
    problem = build_problem(resolved(task="autoencode", hidden=hidden, code_threshold=0.5, code_penalty=0.25), 8, 8)
    kinds = [problem.network[layer].activation for layer in range(1, len(hidden) + 1)]
    assert kinds == [act.SoftThreshold(0.5) if layer == code else act.ReLU() for layer in range(1, len(hidden) + 1)]
    assert problem.penalties == {code: L1(0.25)}


def test_a_code_without_threshold_or_penalty() -> None:
    problem = build_problem(resolved(task="autoencode", hidden=(6, 4, 6), code_threshold=0, code_penalty=0), 8, 8)
    assert problem.network[2].activation == act.Identity() and problem.penalties == {}  # the limit of small thresholds
    listed = resolved(task="autoencode", hidden=(6, 4, 6), activation=("relu", "tanh", "relu"))
    assert build_problem(listed, 8, 8).network[2].activation == act.Tanh()


def test_loss_and_weights() -> None:
    assert isinstance(build_problem(resolved(), 8, 3).loss, CrossEntropy)
    assert isinstance(build_problem(resolved(loss="squared-error"), 8, 3).loss, SquaredError)
    assert build_problem(resolved(hidden=(4, 3), weights=(2.0,)), 8, 3).weights == (2.0, 2.0)
    assert build_problem(resolved(hidden=(4, 3), weights=(2.0, 0.5)), 8, 3).weights == (2.0, 0.5)


def test_callbacks_follow_the_settings() -> None:
    console = Console(quiet=True)
    assert [type(callback) for callback in build_callbacks(resolved(), console)] == [Progress, Checkpoint]
    every = {"checkpoint_epochs": 2, "checkpoint_steps": 3, "checkpoint_seconds": 4.0}
    made = build_callbacks(resolved(time_limit=5.0, patience=6, **every), console)
    _, timer, stopping, saver = made
    assert isinstance(timer, Timer) and timer.limit == 5.0
    assert isinstance(stopping, EarlyStopping) and stopping.patience == 6
    assert isinstance(saver, Checkpoint)
    assert (saver.every_epochs, saver.every_steps, saver.every_seconds) == (2, 3, 4.0)
