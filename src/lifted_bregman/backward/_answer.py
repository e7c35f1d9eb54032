"""What an activation answers to the gradient of its output: a difference of proximal maps in place of a derivative."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from lifted_bregman.activations import Activation
from lifted_bregman.activations.differences import quotient
from lifted_bregman.errors import ActivationDerivativeError, CompatibilityError
from lifted_bregman.penalties import Penalty
from lifted_bregman.problem.composite import composite_prox
from lifted_bregman.solvers.gram.signal import LARGEST_NUDGE, least_norm

PENALISED_NUDGE = 0.001
"""ν of activations with a penalty, as in the default solver; a small one keeps zeros."""


class Share:
    """ν/P, the part of the nudge that each activation gets: P is known after a first forward pass."""

    def __init__(self, nudge: float) -> None:
        self.nudge = nudge
        """ν > 0."""
        self.each = nudge
        """ν/P."""
        self.longest_path = 1
        """P."""
        self.calls = 0
        """Calls of lifted activations in the forward pass in which P was counted."""
        self.counted = False
        """Whether there was such a pass."""
        self.stale = False
        """Whether another pass has made another number of calls since."""

    def count(self, calls: int, longest_path: int) -> None:
        """Takes note of P >= 1 for forward passes with so many calls."""
        self.calls, self.longest_path, self.each = calls, longest_path, self.nudge / longest_path
        self.counted, self.stale = True, False


@dataclass(frozen=True, eq=False)
class Call:
    """One call of an activation in a forward pass."""

    activation: Activation
    dim: int
    """The dimension along which a joint activation acts, or on which a penalty does."""
    function: Callable[[Tensor], Tensor]
    """Computes σ as the model does."""
    share: Share
    terms: Any
    """c: the gradient of one sample's loss is c times what autograd passes down."""
    place: str
    """Where the call is, for messages."""
    penalty: Penalty | None = None
    """R on the output, if any."""


def sizes(z: Tensor) -> Tensor:
    """‖z_i‖ of each sample, (samples, 1, ..), in float32 at least.

    A sample with z_i = 0 has no size: it gets that of numbers of √eps.
    """
    precision = torch.promote_types(z.dtype, torch.float32)
    return _norms(z, precision).clamp(min=least_norm(z, precision))


def answer(call: Call, G: Tensor, z: Tensor, size: Tensor) -> Tensor:
    """(σ(z) - prox_{Ψ + νR}(z - ν c G))/(ν c) in place of σ'(z) G, with ν of its own for each sample.

    G     (samples, ...), the gradient of the loss in x = σ(z)
    z     (samples, ...), float32 or float64
    size  ‖z_i‖, as `sizes` gives it

        ν_i = min(ν/P, 0.3 ‖z_i‖/‖c G_i‖)

    What is computed is ν_i c.
    """
    length = _norms(G)
    # The last summand is 0, or NaN where G has overflowed: a GradScaler looks for that in the gradients.
    steps = (LARGEST_NUDGE * size / length).clamp(max=call.share.each * call.terms) + 0.0 * length
    if call.penalty is None:
        return quotient(call.activation, z, G, steps, dim=call.dim, function=call.function)
    # One ν for all samples, as the proximal map of Ψ + νR takes one number
    step = steps.amin().double().clamp_(max=PENALISED_NUDGE * call.terms)
    z_ = z.double()
    v = (z_ - step * G).movedim(call.dim, -1)
    target = composite_prox(call.activation, call.penalty, v, 1.0, step / call.terms).movedim(-1, call.dim)
    return ((call.function(z_) - target) / step).to(z.dtype)


def _norms(t: Tensor, precision: torch.dtype | None = None) -> Tensor:
    """‖t_i‖ of each sample, (samples, 1, ..)."""
    features = tuple(range(1, t.ndim))
    return torch.linalg.vector_norm(t, dim=features, keepdim=True, dtype=precision) if features else t.abs()


class LiftedActivation(torch.autograd.Function):
    """σ(z), whose backward pass is `answer`."""

    generate_vmap_rule = True

    @staticmethod
    def forward(z: Tensor, call: Call) -> Tensor:
        return call.function(z)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
        z, ctx.call = inputs
        _save(ctx, z)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None]:
        return _once(_answer_saved(ctx, *gradients), *gradients), None


class LiftedInPlace(torch.autograd.Function):
    """The same, written into z."""

    @staticmethod
    def forward(ctx: Any, z: Tensor, call: Call) -> Tensor:
        ctx.call = call
        before = z.clone()
        _save(ctx, before)
        ctx.mark_dirty(z)
        return z.copy_(call.function(before))

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None]:
        return _once(_answer_saved(ctx, *gradients), *gradients), None


def lifted(z: Tensor, call: Call, in_place: bool) -> Tensor:
    """σ(z) with the lifted backward pass; in place it is written into z."""
    result: Tensor
    if not in_place:
        result = LiftedActivation.apply(z, call)  # type: ignore[no-untyped-call]
    elif torch.compiler.is_compiling() or torch._C._are_functorch_transforms_active():
        # which know no functions that write into their inputs
        result = z.copy_(LiftedActivation.apply(z.clone(), call))  # type: ignore[no-untyped-call]
    else:
        result = LiftedInPlace.apply(z, call)  # type: ignore[no-untyped-call]
    return result


def _save(ctx: Any, z: Tensor) -> None:
    # Two tensors, of which torch's own activations save none of the second's shape: activation checkpointing notices
    # when it runs the forward pass again without the lifted activations.
    ctx.save_for_backward(z, sizes(z))


def _once(E: Tensor, G: Tensor) -> Tensor:
    if not torch.is_grad_enabled():  # as it is in a backward pass, unless a graph of it is wanted
        return E
    result: Tensor = _NoSecondDerivative.apply(E, G)  # type: ignore[no-untyped-call]
    return result


class _NoSecondDerivative(torch.autograd.Function):
    """The identity in its first argument; an error when it is differentiated, and it would be through the second."""

    generate_vmap_rule = True

    @staticmethod
    def forward(E: Tensor, G: Tensor) -> Tensor:
        return E.clone()

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
        """There is nothing to keep."""

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, Tensor]:
        raise ActivationDerivativeError(
            "the gradient of a model with lifted_backward was differentiated once more; the answer of a lifted "
            "activation has no derivative: call lb.plain_backward(model) where you need second derivatives."
        )


@torch.no_grad()
def _answer_saved(ctx: Any, G: Tensor) -> Tensor:
    try:
        z, size = ctx.saved_tensors
    except RuntimeError as error:
        if "modified by an inplace operation" not in str(error):
            raise
        raise CompatibilityError(
            f"{ctx.call.place}: the input of this activation was modified in place after the call, and the backward "
            "pass needs its old numbers: write z = z + y in place of z += y or z.add_(y)."
        ) from error
    # In half precision z and G are rounded already, but the difference is taken in float32.
    precision = torch.promote_types(z.dtype, torch.float32)
    return answer(ctx.call, G.to(precision), z.to(precision), size).to(z.dtype)
