"""The opponents, without the library: a step of back-propagation with fused Adam, and the matrix products it needs.

`FORMS` are ways to write the same step, which differ in what becomes of the gradients of the step before.  Which is the
fastest depends on sizes and allocator: a benchmark times them all and takes the fastest.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import cycle, pairwise

import torch
from _tasks import Task
from torch import Tensor, nn
from torch.nn.functional import mse_loss

Step = Callable[[Tensor, Tensor], object]
RATE = 1e-3


def objective(task: Task, model: nn.Sequential) -> Step:
    """The mean over samples of ½‖y - z_L‖², plus α‖code‖₁ where there is a code."""
    if task.code is None:
        return lambda X, Y: mse_loss(model(X), Y, reduction="sum") * (0.5 / len(X))
    encoder, decoder, alpha = model[: 2 * task.code], model[2 * task.code :], task.alpha

    def value(X: Tensor, Y: Tensor) -> Tensor:
        code = encoder(X)
        error = mse_loss(decoder(code), Y, reduction="sum")
        return (0.5 / len(X)) * error + (alpha / len(X)) * code.abs().sum()

    return value


def freed_first(task: Task, model: nn.Sequential) -> Step:
    """Gradients are set to None before the forward pass, as most people write it."""
    value, adam = objective(task, model), fused_adam(model)

    def step(X: Tensor, Y: Tensor) -> None:
        adam.zero_grad(set_to_none=True)
        value(X, Y).backward()
        adam.step()

    return step


def freed_late(task: Task, model: nn.Sequential) -> Step:
    """Gradients are set to None just before the new ones are made, which can take their memory."""
    value, adam = objective(task, model), fused_adam(model)

    def step(X: Tensor, Y: Tensor) -> None:
        loss = value(X, Y)
        adam.zero_grad(set_to_none=True)
        loss.backward()
        adam.step()

    return step


def zeroed(task: Task, model: nn.Sequential) -> Step:
    """Gradients keep their memory: they are set to 0, and the new ones added."""
    value, adam = objective(task, model), fused_adam(model)

    def step(X: Tensor, Y: Tensor) -> None:
        adam.zero_grad(set_to_none=False)
        value(X, Y).backward()
        adam.step()

    return step


def fused_adam(model: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.Adam(model.parameters(), lr=RATE, fused=True)


FORMS: dict[str, Callable[[Task, nn.Sequential], Step]] = {
    "freed first": freed_first,
    "freed late": freed_late,
    "zeroed": zeroed,
}


def backprop_step(task: Task, form: str, batches: int = 8) -> Callable[[], object]:
    """One step of back-propagation in the given form, on one batch after the other."""
    step = FORMS[form](task, task.model())
    X, Y = task.data(batches * task.batch)
    turn = cycle(list(zip(X.split(task.batch), Y.split(task.batch), strict=True)))
    return lambda: step(*next(turn))


def products(task: Task) -> Callable[[], object]:
    """The matrix products of one step into memory that is there: two in layer 1 and three in each layer above it.

    z = x Wᵀ        W' += dᵀ x        x' = d W  (from layer 2 on)
    """
    layers = []
    for below, width in pairwise(task.widths):
        W, into = (torch.randn(width, below, dtype=task.dtype) / below**0.5 for _ in range(2))
        x, x_gradient = (torch.randn(task.batch, below, dtype=task.dtype) for _ in range(2))
        d, z = (torch.randn(task.batch, width, dtype=task.dtype) for _ in range(2))
        layers.append((W, W.t(), into, x, x_gradient, d, d.t(), z))

    def step() -> None:
        for _, Wt, _, x, _, _, _, z in layers:
            torch.mm(x, Wt, out=z)
        for W, _, into, x, x_gradient, d, dt, _ in reversed(layers[1:]):
            into.addmm_(dt, x, alpha=1e-3)
            torch.mm(d, W, out=x_gradient)
        _, _, into, x, _, _, dt, _ = layers[0]
        into.addmm_(dt, x, alpha=1e-3)

    return step
