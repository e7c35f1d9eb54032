"""Checks that a map is a deterministic function of each sample alone, and the modules of torch that are not."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import NoReturn

import torch
from torch import Tensor, nn

from lifted_bregman.errors import UnsupportedModuleError
from lifted_bregman.maps.noise import GaussianNoise

DROPOUT = (nn.Dropout, nn.Dropout1d, nn.Dropout2d, nn.Dropout3d, nn.AlphaDropout, nn.FeatureAlphaDropout)
RANDOM = (*DROPOUT, GaussianNoise)
"""Modules that draw random numbers in training mode, and are the identity in evaluation mode."""
BATCH_NORM = (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d, nn.SyncBatchNorm)
INSTANCE_NORM = (nn.InstanceNorm1d, nn.InstanceNorm2d, nn.InstanceNorm3d)

_EVALUATE = "call model.eval() before lift, and keep that mode until training has ended"
_TOLERANCE = {torch.float32: 1e-3, torch.float64: 1e-6}  # far above the rounding by another batch size


def obstacle(module: nn.Module) -> str | None:
    """Why `module` in its present mode is no deterministic function of each sample, and the remedy; None if it is."""
    if isinstance(module, RANDOM) and is_drawing(module):
        return (
            "it is random in training mode, so that the energy would have no fixed value. In evaluation mode it is the "
            f"identity: {_EVALUATE}; or leave it out and use penalties instead"
        )
    if isinstance(module, BATCH_NORM) and module.running_mean is None:
        return (
            "it has no running statistics and divides by statistics of the batch, which couple the samples, in "
            "evaluation mode too: make it with track_running_stats=True, or leave it out"
        )
    if isinstance(module, BATCH_NORM) and module.training:
        return (
            "in training mode it divides by statistics of the batch, which couple the samples. In evaluation mode it "
            f"is an affine map: {_EVALUATE}; or leave it out"
        )
    if isinstance(module, INSTANCE_NORM) and module.training and module.track_running_stats:
        return f"in training mode it changes its running statistics at every call: {_EVALUATE}"
    if isinstance(module, nn.RReLU) and module.training and module.lower < module.upper:
        return f"its slope is random in training mode: use nn.LeakyReLU(slope), or {_EVALUATE}"
    if isinstance(module, (nn.RNNBase, nn.MultiheadAttention)) and module.training and module.dropout > 0.0:
        return f"its dropout of {module.dropout:g} is random in training mode: set it to 0, or {_EVALUATE}"
    return None


def is_drawing(module: nn.Module) -> bool:
    """Whether one of `RANDOM` draws random numbers in its present mode."""
    strength = module.std if isinstance(module, GaussianNoise) else module.p
    return module.training and float(strength) > 0.0  # type: ignore[arg-type]


def changes_with_mode(module: nn.Module) -> bool:
    """Whether `obstacle` depends on the mode of `module`."""
    return isinstance(module, (*RANDOM, *BATCH_NORM, *INSTANCE_NORM, nn.RReLU, nn.RNNBase, nn.MultiheadAttention))


def submodules(module: nn.Module, path: str) -> Iterator[tuple[str, nn.Module]]:
    """`module` and every module in it, each with its path."""
    for name, inner in module.named_modules():
        yield f"{path}.{name}" if name else path, inner


def require_pure(model: nn.Module, path: str = "model") -> None:
    """Raises an error that names the first module in `model` with an `obstacle`."""
    for where, module in submodules(model, path):
        reason_and_remedy = obstacle(module)
        if reason_and_remedy is not None:
            refuse(where, module, reason_and_remedy)


@contextmanager
@torch.no_grad()
def unchanged(module: nn.Module, like: Tensor) -> Iterator[None]:
    """A context for trial calls of the module: its buffers and torch's random state are restored at the end."""
    kept = [(buffer, buffer.clone()) for buffer in module.buffers()]
    try:
        with torch.random.fork_rng(devices=[like.device] if like.is_cuda else []):
            yield
    finally:
        for buffer, old in kept:
            buffer.copy_(old)


@torch.no_grad()
def require_one_answer(module: nn.Module, path: str, *inputs: Tensor) -> None:
    """Calls a module on the samples twice, and on the first of them alone; raises unless the results agree.

    This finds what `obstacle` cannot know, such as F.dropout(x, training=self.training) in a forward method.
    """
    with unchanged(module, inputs[0]):
        before = [buffer.clone() for buffer in module.buffers()]
        first, second, alone = module(*inputs), module(*inputs), module(*(x[:1] for x in inputs))
        changed = [not torch.equal(buffer, old) for buffer, old in zip(module.buffers(), before, strict=True)]
    if any(changed):
        refuse(path, module, f"each call changes one of its buffers; a map must keep no statistics: {_EVALUATE}")
    if not nearly_equal(first, second):
        refuse(path, module, f"two calls with the same samples differ; a map must not be random: {_EVALUATE}")
    if not nearly_equal(first[:1], alone):
        refuse(
            path,
            module,
            f"its output for the first sample changes with the rest of the batch; a map must treat each alone: "
            f"{_EVALUATE}, or take out what couples the samples",
        )


def nearly_equal(a: Tensor, b: Tensor) -> bool:
    """Whether a and b differ by no more than rounding that depends on the size of the batch."""
    if a.shape != b.shape:
        return False
    size = float(a.abs().nan_to_num(0.0, 0.0, 0.0).max()) if a.numel() else 0.0
    return torch.allclose(a, b, rtol=0.0, atol=_TOLERANCE[a.dtype] * size, equal_nan=True)


def refuse(path: str, module: nn.Module, reason_and_remedy: str) -> NoReturn:
    """Raises the error for a module that cannot be lifted."""
    raise UnsupportedModuleError(f"{path} ({type(module).__name__}) cannot be lifted: {reason_and_remedy}.")
