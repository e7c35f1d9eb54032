"""Algorithm 1 written out as it is printed, in plain torch: what a first implementation would look like.

One batch B of dense layers z_l = x_{l-1} W_lᵀ + b_l.  X_B starts at the forward pass; then N sweeps from the top layer
down take one step on Θ_l and one on x_{l-1}, with step sizes from spectral norms that are computed anew each time,

    Θ_l ← Θ_l - t ( J_Θᵀ d_l / |B| + τ (Θ_l - Θ_l^{k-1}) )                      t = 1.99 / ( ‖[X_{l-1} 1]‖₂² / |B| + τ )
    x_l ← prox_{cΨ_l}( ( x_l - t ( d_{l+1} W_{l+1} - z_l ) ) / (1 + t) )        t = 1.99 / ‖W_{l+1}‖₂²,  c = t / (1 + t)

where d_l = σ_l(z_l) - x_l.  `norms=svd_norm` takes them from singular values, `PowerNorms()` from power iterations that
start where the last one of the same matrix ended, and `step_sizes` replaces both by fixed numbers, for comparisons of
iterates.  Nothing here is shared with the library but the activations.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from lifted_bregman.activations import Activation

Norm = Callable[[str, Tensor], float]
"""(name of a matrix, the matrix) -> its squared spectral norm."""


def svd_norm(name: str, matrix: Tensor) -> float:
    """The square of the largest singular value."""
    return float(torch.linalg.matrix_norm(matrix, ord=2)) ** 2


class PowerNorms:
    """Power iterations on AᵀA with a warm start, until the relative change is 1e-4; one per cent is added."""

    def __init__(self, tolerance: float = 1e-4, limit: int = 100) -> None:
        self.tolerance, self.limit = tolerance, limit
        self.vectors: dict[str, Tensor] = {}

    def __call__(self, name: str, matrix: Tensor) -> float:
        v = self.vectors.get(name)
        if v is None:
            v = torch.ones(matrix.shape[1], dtype=matrix.dtype)
            v = v / torch.linalg.vector_norm(v)
        value = previous = 0.0
        for _ in range(self.limit):
            v = matrix.t() @ (matrix @ v)
            value = float(torch.linalg.vector_norm(v))
            if not (math.isfinite(value) and value > 0.0):
                return value
            v = v / value
            if abs(value - previous) <= self.tolerance * value:
                break
            previous = value
        self.vectors[name] = v
        return 1.01 * value


class Algorithm1:
    """Weights (out, in), biases and activations by layer; `activations` has one for each hidden layer."""

    def __init__(
        self,
        weights: Sequence[Tensor],
        biases: Sequence[Tensor],
        activations: Sequence[Activation],
        *,
        prox_weight: float = 100.0,
        inner_steps: int = 15,
        norms: Norm = svd_norm,
        step_sizes: tuple[float, float] | None = None,
    ) -> None:
        self.W = [w.detach().clone() for w in weights]
        self.b = [b.detach().clone() for b in biases]
        self.activations = list(activations)
        self.tau, self.inner_steps, self.norms, self.step_sizes = prox_weight, inner_steps, norms, step_sizes

    def step(self, X: Tensor, Y: Tensor) -> list[Tensor]:
        """One batch; returns x_0 .. x_L."""
        depth, samples = len(self.W), len(X)
        W_last = [w.clone() for w in self.W]
        b_last = [b.clone() for b in self.b]
        x = [X]
        for l in range(depth - 1):
            x.append(self.activations[l](x[l] @ self.W[l].t() + self.b[l]))
        x.append(Y)
        for _ in range(self.inner_steps):
            for l in reversed(range(depth)):
                d = self.residual(l, x)
                gradient_W = d.t() @ x[l] / samples + self.tau * (self.W[l] - W_last[l])
                gradient_b = d.mean(0) + self.tau * (self.b[l] - b_last[l])
                t = self.parameter_step(l, x[l])
                self.W[l] = self.W[l] - t * gradient_W
                self.b[l] = self.b[l] - t * gradient_b
                if l > 0:
                    t = self.variable_step(l)
                    z = x[l - 1] @ self.W[l - 1].t() + self.b[l - 1]
                    gradient = self.residual(l, x) @ self.W[l] - z
                    x[l] = self.activations[l - 1].prox((x[l] - t * gradient) / (1 + t), t / (1 + t))
        return x

    def residual(self, l: int, x: Sequence[Tensor]) -> Tensor:
        """σ(z) - x of the layer that reads x[l]; the last layer is linear."""
        z = x[l] @ self.W[l].t() + self.b[l]
        return (z if l == len(self.W) - 1 else self.activations[l](z)) - x[l + 1]

    def parameter_step(self, l: int, x: Tensor) -> float:
        if self.step_sizes is not None:
            return self.step_sizes[0]
        with_ones = torch.cat((x, x.new_ones(len(x), 1)), 1)
        return 1.99 / (self.norms(f"X_{l}", with_ones) / len(x) + self.tau)

    def variable_step(self, l: int) -> float:
        if self.step_sizes is not None:
            return self.step_sizes[1]
        return 1.99 / self.norms(f"W_{l}", self.W[l])
