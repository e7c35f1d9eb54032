"""How a layer's error signal becomes a move of its parameters: for a dense map, in the metric of the batch's inputs.

With rows A = [X 1] of m samples and the signal E, (m, out), which makes AᵀE/m the gradient in Θ, the move is the
minimiser of the majorant of one implicit step (σ is 1-Lipschitz; `_sample_space` has the derivation),

    Δ = (AᵀA/m + tI)⁻¹ AᵀE/m          t = τ ‖A‖²_F/m², τ times the mean eigenvalue of A Aᵀ/m .

For m <= n, the number of columns, it is AᵀC/m with (A Aᵀ/m + tI) C = E, and nothing is as large as Θ until it is added:

    change of the pre-activations   AΔ = E - tC          squared norm of unit j's move   C_jᵀ(E - tC)_j/m
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Mapping

import torch
from torch import Tensor

from lifted_bregman.networks import Dense, LayerMap
from lifted_bregman.solvers._ridge import design, rows, unpacked
from lifted_bregman.solvers._sample_space import GuardedFactor


class Move(ABC):
    """Δ of one layer, before each of its units is given a length."""

    fallback: bool = False
    """Whether a gradient step has replaced the solution of a linear system."""
    of_parameters: bool = False
    """Whether `size` is that of the parameters' change, not of the pre-activations'."""

    @property
    @abstractmethod
    def units(self) -> dict[str, Tensor]:
        """Mean squares of the entries of Δ: one number for each unit, or for each row of each parameter."""

    @abstractmethod
    def size(self, lengths: Mapping[str, Tensor]) -> float:
        """Root mean square of the change that `lengths`·Δ makes: of the pre-activations, or of the parameters."""

    @abstractmethod
    def subtract(self, into: Mapping[str, Tensor], lengths: Mapping[str, Tensor]) -> None:
        """into ← into - lengths·Δ, in place."""


class SampleMove(Move):
    """AᵀC/m, never multiplied out before it is subtracted."""

    def __init__(self, f: Dense, X: Tensor, E: Tensor, damping: float, root: Tensor | None) -> None:
        self._X, self._root, self._names = X, root, tuple(f.parameters)
        m, n = len(X), X.shape[1] * ("weight" in self._names) + ("bias" in self._names)
        K = X @ X.t() if "weight" in self._names else X.new_zeros(m, m)
        if "bias" in self._names:
            K += 1.0 if root is None else torch.outer(root, root)
        t = damping * float(K.diagonal().mean()) / m
        factor = GuardedFactor(K, 1.0 / m, t, samples=True)
        self._C = factor.solve(E)
        self.fallback = factor.fallback
        self._change = K @ self._C / m if factor.fallback else torch.sub(E, self._C, alpha=t + factor.added)
        self._units = {"unit": torch.linalg.vecdot(self._C, self._change, dim=0).clamp_(min=0.0).div_(m * n)}

    @property
    def units(self) -> dict[str, Tensor]:
        return self._units

    def size(self, lengths: Mapping[str, Tensor]) -> float:
        return _rms(self._change * lengths["unit"])

    def subtract(self, into: Mapping[str, Tensor], lengths: Mapping[str, Tensor]) -> None:
        D = self._C.mul_(lengths["unit"]).t()
        if "weight" in into:
            into["weight"].addmm_(D, self._X, alpha=-1.0 / len(self._X))
        if "bias" in into:
            ones = D.new_ones(D.shape[1]) if self._root is None else self._root
            into["bias"].addmv_(D, ones, alpha=-1.0 / len(self._X))


class WeightMove(Move):
    """(AᵀA/m + tI)⁻¹ AᵀE/m for more rows than columns: the same Δ."""

    def __init__(self, f: Dense, A: Tensor, E: Tensor, damping: float) -> None:
        m = len(A)
        S = A.t() @ A
        t = damping * float(S.diagonal().sum()) / m**2
        factor = GuardedFactor(S, 1.0 / m, t)
        self._f, self._A = f, A
        self._delta = factor.solve(A.t() @ E / m)  # (n, out)
        self.fallback = factor.fallback

    @property
    def units(self) -> dict[str, Tensor]:
        return {"unit": self._delta.square().mean(0)}

    def size(self, lengths: Mapping[str, Tensor]) -> float:
        return _rms((self._A @ self._delta) * lengths["unit"])

    def subtract(self, into: Mapping[str, Tensor], lengths: Mapping[str, Tensor]) -> None:
        for name, part in unpacked(self._f, (self._delta * lengths["unit"]).t()).items():
            into[name].sub_(part)


class GradientMove(Move):
    """J_Θᵀ E/m itself: for maps that are not dense, and for parameters with a penalty, whose proximal map belongs to
    one step size: then the layer has one length for all."""

    of_parameters = True

    def __init__(self, f: LayerMap, x: Tensor, E: Tensor, together: bool) -> None:
        self._gradient = f.pull_back_parameters(x, E, 1.0 / len(x))
        self._together = together

    @property
    def units(self) -> dict[str, Tensor]:
        if self._together:
            count = sum(g.numel() for g in self._gradient.values())
            total = torch.stack([g.square().sum() for g in self._gradient.values()]).sum()
            return dict.fromkeys(self._gradient, total / count)
        return {name: g.square() if g.ndim < 2 else g.flatten(1).square().mean(1) for name, g in self._gradient.items()}

    def size(self, lengths: Mapping[str, Tensor]) -> float:
        moves = [_by_row(lengths[name], g) * g for name, g in self._gradient.items()]
        count = sum(g.numel() for g in moves)
        return math.sqrt(sum(float(g.square().sum()) for g in moves) / count)

    def subtract(self, into: Mapping[str, Tensor], lengths: Mapping[str, Tensor]) -> None:
        for name, g in self._gradient.items():
            into[name].sub_(_by_row(lengths[name], g) * g)


def move(f: LayerMap, x: Tensor, E: Tensor, damping: float, weights: Tensor | None, penalised: bool) -> Move:
    """The move of a layer with trained parameters.

    f        its map
    x        inputs (s, ...)
    E        error signal (s, ...), for which J_Θᵀ E/s is the gradient
    damping  τ > 0
    weights  of the samples (s,), or None
    penalised  whether the parameters have a penalty
    """
    if penalised or not isinstance(f, Dense):
        return GradientMove(f, x, E if weights is None else E * _by_row(weights, E), penalised)
    root = None if weights is None else weights.sqrt()
    if root is not None:
        x, E = x * _by_row(root, x), E * _by_row(root, E)
    X = rows(f, x)
    E = E.reshape(len(X), -1)
    if root is not None:
        root = root.repeat_interleave(len(X) // len(root))
    if len(X) <= X.shape[1] + 1:
        return SampleMove(f, X, E, damping, root)
    A = design(f, x)
    if root is not None and "bias" in f.parameters:
        A[:, -1] = root
    return WeightMove(f, A, E, damping)


def _by_row(values: Tensor, like: Tensor) -> Tensor:
    """values (n,) or () in a shape that multiplies the rows of `like`."""
    return values if values.ndim == 0 else values.view(-1, *[1] * (like.ndim - 1))


def _rms(t: Tensor) -> float:
    return float(torch.linalg.vector_norm(t)) / math.sqrt(t.numel())
