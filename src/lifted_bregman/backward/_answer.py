"""The backward pass of a lifted activation: a difference of proximal maps in place of a derivative."""

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
"""The largest ν of an activation with a penalty, as in the default solver; a small ν keeps zeros."""


class Share:
    """ν/P, the nudge of each activation, where P activations lie on the longest path; a forward pass counts P."""

    def __init__(self, nudge: float) -> None:
        self.nudge = nudge
        """ν > 0, the nudge of the model."""
        self.each = nudge
        """ν/P; ν before P is counted."""
        self.longest_path = 1
        """P, the number of lifted activations on the longest path."""
        self.calls = 0
        """Calls of lifted activations in the forward pass in which P was counted."""
        self.counted = False
        """Whether P has been counted."""
        self.stale = False
        """Whether a later pass made another number of calls, so that P has to be counted again."""

    def count(self, calls: int, longest_path: int) -> None:
        """Sets P >= 1, as counted in a forward pass with `calls` calls."""
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
    """Module and line of the call, for messages."""
    penalty: Penalty | None = None
    """R on the output, if any."""


def sizes(z: Tensor) -> Tensor:
    """‖z_i‖ of each sample, (samples, 1, ..), in float32 at least.

    Where z_i = 0 it is the norm of a sample whose numbers are all √eps.
    """
    precision = torch.promote_types(z.dtype, torch.float32)
    return _norms(z, precision).clamp(min=least_norm(z, precision))


def answer(call: Call, G: Tensor, z: Tensor, size: Tensor) -> Tensor:
    """(σ(z) - prox_{Ψ + νR}(z - ν c G))/(ν c) in place of σ'(z) G, with one ν for each sample.

    G     (samples, ...), the gradient of the loss in x = σ(z)
    z     (samples, ...), float32 or float64
    size  ‖z_i‖, as `sizes` gives it

        ν_i = min(ν/P, 0.3 ‖z_i‖/‖c G_i‖)

    The code computes ν_i c.
    """
    # ν_i c = min(ν c/P, 0.3 ‖z_i‖/‖G_i‖)
    length = _norms(G)
    # The last summand is 0, or NaN where G has overflowed: a GradScaler tests gradients for NaN.
    steps = (LARGEST_NUDGE * size / length).clamp(max=call.share.each * call.terms) + 0.0 * length
    if call.penalty is None:
        return quotient(call.activation, z, G, steps, dim=call.dim, function=call.function)
    # With a penalty: one ν for all samples, because the proximal map of Ψ + νR takes one number
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
    """`LiftedActivation` that overwrites z with σ(z)."""

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
        # torch.compile and torch.func have no functions that write into their inputs
        result = z.copy_(LiftedActivation.apply(z.clone(), call))  # type: ignore[no-untyped-call]
    else:
        result = LiftedInPlace.apply(z, call)  # type: ignore[no-untyped-call]
    return result


def _save(ctx: Any, z: Tensor) -> None:
    # The second tensor has a shape that torch's own activations never save.  Activation checkpointing compares shapes,
    # and so notices a forward pass that it repeats without the lifted activations.
    ctx.save_for_backward(z, sizes(z))


def _once(E: Tensor, G: Tensor) -> Tensor:
    if not torch.is_grad_enabled():  # a backward pass without create_graph=True
        return E
    result: Tensor = _NoSecondDerivative.apply(E, G)  # type: ignore[no-untyped-call]
    return result


class _NoSecondDerivative(torch.autograd.Function):
    """Returns its first argument, E.  Differentiating it raises; G is an argument to keep it in the graph."""

    generate_vmap_rule = True

    @staticmethod
    def forward(E: Tensor, G: Tensor) -> Tensor:
        return E.clone()

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
        """Saves nothing."""

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
