"""A slow step of `GramSweep` on a chain of dense layers, on one page; the tests compare the fast solver with it.

Every layer is a matrix Θ = [W b], (units, n), every system is solved as it stands, and nothing is done in place.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

Function = Callable[[Tensor], Tensor]


@dataclass
class ReferenceLayer:
    """Θ of a layer, the activation after it, and its moments and Gram matrices."""

    theta: Tensor
    """[W b], (units, n)."""
    activate: Function
    """σ; of the last layer that of the loss."""
    M: Tensor = field(init=False)
    V: Tensor = field(init=False)
    R_A: Tensor = field(init=False)
    R_E: Tensor = field(init=False)
    P_A: Tensor = field(init=False)
    P_E: Tensor = field(init=False)

    def __post_init__(self) -> None:
        units, n = self.theta.shape
        like = self.theta
        self.M, self.V = torch.zeros_like(like), torch.zeros_like(like)
        self.R_A, self.R_E = like.new_zeros(n, n), like.new_zeros(units, units)
        self.P_A, self.P_E = torch.eye(n, dtype=like.dtype), torch.eye(units, dtype=like.dtype)


@dataclass
class Reference:
    """The chain, the settings of `GramSweep`, and three constants of `rule` and `moves`."""

    layers: Sequence[ReferenceLayer]
    total_steps: int
    step_size: float = 0.6
    nudge: float = 0.5
    damping: float = 0.5
    weight_decay: float = 0.15
    epochs: float = 0.0
    inputs: int = 256
    signals: int = 128
    block: int = 256
    k: int = 0
    updates: int = 0
    inverted: int = 0

    def step(self, X: Tensor, Y: Tensor, weights: Tensor | None = None) -> None:
        """One step on a batch of m rows, with weights w_i of the samples."""
        self.k += 1
        k, m, L = self.k, len(X), len(self.layers)
        w = torch.ones(m, dtype=X.dtype) if weights is None else weights
        inverting = k <= 3 or k - self.inverted >= min(20, k // 8)
        updating = inverting or k % 3 == 0
        self.inverted, self.updates = (k if inverting else self.inverted), self.updates + updating
        # Forward
        A, z, x = [], [], X
        for layer in self.layers:
            A.append(torch.cat((x, torch.ones(m, 1, dtype=X.dtype)), 1))
            z.append(A[-1] @ layer.theta.T)
            x = layer.activate(z[-1])
        # Signals, with Θ before it moves
        signals = [x - Y]
        for l in reversed(range(1, L)):
            g = signals[0] @ self.layers[l].theta[:, :-1]
            limit = 0.3 * z[l - 1].norm(dim=1, keepdim=True) / g.norm(dim=1, keepdim=True)
            nu = torch.minimum(limit, torch.tensor(self.nudge / (L - 1), dtype=X.dtype))
            sigma = self.layers[l - 1].activate
            signals.insert(0, (sigma(z[l - 1]) - sigma(z[l - 1] - nu * g)) / nu)
        # Moves
        warm = max(1.0, 0.05 * self.total_steps)
        fall = 1.0 - max(0.0, k - warm) / max(1.0, self.total_steps - warm)
        s = min(1.0, k / warm) * fall**1.5
        for l, layer in enumerate(self.layers):
            a, E = A[l] * w.sqrt()[:, None], signals[l] * w.sqrt()[:, None]
            (units, n), wide = layer.theta.shape, A[l].shape[1] - 1 > self.inputs
            has_P_E = l < L - 1 and units <= self.signals
            share = max(0.05, 1.0 / self.updates)
            if updating:
                layer.R_A = (1.0 - share) * layer.R_A + share * a.T @ a / m
                layer.R_E = (1.0 - share) * layer.R_E + share * E.T @ E / m
            if inverting:
                layer.P_A = damped(layer.R_A, self.damping)
                layer.P_E = damped(layer.R_E, self.damping) if has_P_E else layer.P_E
            E = E @ layer.P_E
            if wide:
                size = math.ceil(m / math.ceil(m / self.block))
                parts = [slice(i, i + size) for i in range(0, m, size)]
                blocks = [damped(a[p] @ a[p].T / len(a[p]), self.damping * len(a[p]) / n) for p in parts]
                G = torch.stack([(P @ E[p]).T @ a[p] for p, P in zip(parts, blocks, strict=True)]).sum(0) / m
                squares = (G * G).mean(1, keepdim=True).expand_as(G)
            else:
                G = E.T @ a @ layer.P_A / m
                squares = G * G
            layer.M, layer.V = 0.9 * layer.M + 0.1 * G, 0.95 * layer.V + 0.05 * squares
            root = layer.V.sqrt() + 1e-3 * layer.V.mean().sqrt() + 1e-12
            U = layer.M / root * math.sqrt(1.0 - 0.95**k) / (1.0 - 0.9**k)
            few = min(1.0, 3.0 / L) * min(1.0, self.total_steps / max(4.0 * self.epochs, 1e-12))
            decay = 2.0 * self.weight_decay * math.sqrt(self.epochs) * s / self.total_steps * few
            kept = 1.0 if k % 8 else 1.0 - 8.0 * decay
            layer.theta = torch.cat((kept * layer.theta[:, :-1], layer.theta[:, -1:]), 1)
            size_of_theta = max(float(layer.theta[:, :-1].square().mean().sqrt()), 0.1 / math.sqrt(n))
            eta = self.step_size * s * math.sqrt(size_of_theta / (self.total_steps**0.25 * math.sqrt(n) * min(L, 20)))
            eta = min(eta, 0.5 * s * size_of_theta / math.sqrt(min(L, 20)))
            layer.theta = layer.theta - eta * U


def damped(R: Tensor, tau: float) -> Tensor:
    """(R + τtI)⁻¹ t(1 + τ), t the mean eigenvalue of R."""
    t = float(R.diagonal().mean())
    inverse: Tensor = torch.linalg.inv(R + tau * t * torch.eye(len(R), dtype=R.dtype))
    return inverse * t * (1.0 + tau)
