"""The majorise-minimise step on a parameter block, with its linear system on the side of the samples.

For one dense layer, m rows A = [X 1] and c = λ/m the implicit step is

    min_Θ  c Σ [ φ*(AΘ) - <X_l, AΘ> ] + (τ/2)‖Θ - Θ⁰‖²         Θ = Θ⁰ + AᵀC, C of shape (m, out) .

σ = ∇φ* is 1-Lipschitz, so that c AᵀA + τI majorises its curvature.  With G = c (σ(Z) - X_l) + τC, which makes AᵀG the
gradient in Θ, the minimiser of the majorant at Z = AΘ is Θ - AᵀP with

    P = (c K + τI)⁻¹ G,   K = A Aᵀ          C ← C - P          Z ← Z - KP = Z - (G - τP)/c .

The objective never increases.  With samples' weights w_i, take √w_i times the rows of A and of σ(Z) - X_l.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

_FLOOR = {torch.float32: (1e-6, 3e-5), torch.float64: (2e-15, 1e-8)}  # in weight space and in sample space
_ATTEMPTS = 4


class GuardedFactor:
    """G ↦ (c K + (τ + ε) I)⁻¹ G for K = A Aᵀ (samples) or K = AᵀA, of shape (k, k), c > 0 and τ >= 0.

    ε is 0 unless τ is lost in the rounding of c K.  Then τ + ε is c tr K times a number of the size of the rounding
    (float64: 2e-15), and a hundred times more as long as there is no Cholesky factor.  In sample space the number is
    near its square root (1e-8): what dependent samples do not agree on is divided by τ + ε, and cancels only in AᵀP.
    ε belongs to a term (ε/2)‖Θ - Θ_n‖² around the present iterate: the step is shorter, still decreases the objective,
    and has the same fixed points.

    Where K is not finite, or a solution is not, `fallback` is set and the answer is the gradient step with a bound of
    the curvature, G / (c tr K + τ), or 0 where there is no finite one.
    """

    def __init__(self, K: Tensor, weight: float, prox_weight: float, samples: bool = False) -> None:
        trace = float(K.diagonal().sum(dtype=torch.float64))
        self.curvature = weight * trace + prox_weight
        """c tr K + τ, not below the largest eigenvalue."""
        self.fallback = not math.isfinite(self.curvature)
        """Whether a gradient step has replaced the solution of the system."""
        floor = _FLOOR[K.dtype][samples] * weight * trace
        for _ in range(0 if self.fallback else _ATTEMPTS):
            diagonal = max(prox_weight, floor) or 1.0
            S = K * weight
            S.diagonal().add_(diagonal)
            self._factor, info = torch.linalg.cholesky_ex(S)
            if int(info) == 0:
                break
            floor = 100.0 * diagonal
        else:
            self.fallback, diagonal = True, prox_weight
        self.added = diagonal - prox_weight
        """ε >= 0."""

    def solve(self, G: Tensor) -> Tensor:
        """(c K + (τ + ε) I)⁻¹ G for G of shape (k, ...), in new memory."""
        if not self.fallback:
            P = torch.cholesky_solve(G, self._factor)
            if bool(P.sum().isfinite()) or bool(P.isfinite().all()):
                return P
            self.fallback = True
        return G / self.curvature if 0.0 < self.curvature < math.inf else torch.zeros_like(G)


class SampleSpaceStep(GuardedFactor):
    """G ↦ P = (c A Aᵀ + (τ + ε) I)⁻¹ G for rows A of shape (m, n): Θ ← Θ - AᵀP decreases the objective above.

    `K` is A Aᵀ, for Z ← Z - KP.  Meant for m <= n; for m > n `GuardedFactor(A.t() @ A, c, τ)` is smaller, and its
    solution for a gradient (n, out) is the same step.
    """

    def __init__(self, A: Tensor, weight: float, prox_weight: float) -> None:
        self.K = A @ A.t()
        super().__init__(self.K, weight, prox_weight, samples=True)


_PASS = 20.0  # operations in the time of reading or writing one number of a weight that is not in the cache


def samples_are_cheaper(rows: int, inputs: int, outputs: int, steps: int, moving: bool) -> bool:
    """Whether `steps` gradient steps on W (outputs, inputs) cost less with W = W⁰ + (sum of low-rank factors).

    moving: whether the rows of X change between the steps, so that each step adds a factor.  In weight space a step
    takes four products (z before and after, the pull-back, the gradient) and a dozen passes over W (these, the proximal
    term, power iterations).  In sample space it takes two products with W⁰ and four with the factors, none with W⁰ if
    X stays; and the factors are multiplied out once.
    """
    entries = inputs * outputs
    if not moving:
        in_weights = steps * entries * (6.0 * rows + 9.0 * _PASS)
        in_samples = entries * (4.0 * rows + 3.0 * _PASS) + 2.0 * rows * rows * (inputs + steps * outputs)
        return in_samples < in_weights
    in_weights = steps * entries * (8.0 * rows + 12.0 * _PASS)
    in_samples = steps * entries * (4.0 * rows + 2.0 * _PASS) + entries * (2.0 * rows * steps + 2.0 * _PASS)
    rank = 0.5 * (steps + 1) * rows
    return in_samples + steps * 4.0 * rows * rank * (inputs + outputs) < in_weights
