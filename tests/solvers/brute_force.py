"""Block updates by brute force from the lifted energy, written a second time.

Nothing here calls the library.  Potentials are plain formulas, gradients come from autograd, and proximal maps are
found by bisection on the derivative of the function that they minimise.
"""

from __future__ import annotations

import copy
from dataclasses import dataclass, field

import torch
from torch import Tensor

# name: (φ inside its domain, φ*, σ, the domain's ends)
POTENTIALS = {
    "identity": (lambda x: x**2 / 2, lambda z: z**2 / 2, lambda z: z, (-torch.inf, torch.inf)),
    "relu": (lambda x: x**2 / 2, lambda z: z.clamp(min=0) ** 2 / 2, lambda z: z.clamp(min=0), (0.0, torch.inf)),
    "soft": (
        lambda x: x**2 / 2 + 0.2 * x.abs(),
        lambda z: (z.abs() - 0.2).clamp(min=0) ** 2 / 2,
        lambda z: z.sign() * (z.abs() - 0.2).clamp(min=0),
        (-torch.inf, torch.inf),
    ),
    "tanh": (
        lambda x: x * torch.atanh(x) + torch.log1p(-(x**2)) / 2,
        lambda z: torch.log(torch.cosh(z)),
        torch.tanh,
        (-1.0, 1.0),
    ),
    "leaky": (
        lambda x: torch.where(x >= 0, x**2 / 2, x**2 / 0.6),
        lambda z: torch.where(z >= 0, z**2 / 2, 0.15 * z**2),
        lambda z: torch.where(z >= 0, z, 0.3 * z),
        (-torch.inf, torch.inf),
    ),
}


@dataclass
class Brute:
    """A network as lists over l = 1 .. L (place 0 is unused): W_l (out, in), b_l, names, λ_l, and l1 penalties."""

    W: list[Tensor]
    b: list[Tensor | None]
    names: list[str]
    weights: list[float]
    on_variables: dict[int, float] = field(default_factory=dict)
    on_weights: dict[int, float] = field(default_factory=dict)

    @property
    def depth(self) -> int:
        return len(self.W) - 1

    @property
    def theta(self) -> dict[int, list[Tensor]]:
        return {l: [p for p in (self.W[l], self.b[l]) if p is not None] for l in range(1, self.depth + 1)}

    def copy(self) -> Brute:
        return copy.deepcopy(self)

    def z(self, l: int, x: list[Tensor]) -> Tensor:
        z = x[l - 1] @ self.W[l].T
        return z if self.b[l] is None else z + self.b[l]

    def forward(self, X: Tensor, Y: Tensor) -> list[Tensor]:
        x = [X]
        for l in range(1, self.depth):
            x.append(POTENTIALS[self.names[l]][2](self.z(l, x)))
        return [*x, Y]

    def smooth(self, x: list[Tensor]) -> Tensor:
        """Σ_i Σ_l λ_l ( φ*(z_l) - <x_l, z_l> ), a sum over samples."""
        total = torch.zeros((), dtype=x[0].dtype)
        for l in range(1, self.depth + 1):
            z = self.z(l, x)
            total = total + self.weights[l] * (POTENTIALS[self.names[l]][1](z) - x[l] * z).sum()
        return total

    def nonsmooth(self, l: int, x: Tensor) -> Tensor:
        """λ_l φ_l(x) + R_l(x), of each component."""
        return self.weights[l] * POTENTIALS[self.names[l]][0](x) + self.on_variables.get(l, 0.0) * x.abs()

    def energy(self, x: list[Tensor]) -> Tensor:
        """E(Θ, X) without P: the mean over samples."""
        total = self.smooth(x) + POTENTIALS[self.names[self.depth]][0](x[self.depth]).sum()
        for l in range(1, self.depth):
            total = total + self.nonsmooth(l, x[l]).sum()
        return total / len(x[0])

    def distance(self, other: Brute) -> Tensor:
        """½‖Θ - Θ_other‖²."""
        pairs = [(p, q) for l in self.theta for p, q in zip(self.theta[l], other.theta[l], strict=True)]
        return sum(((p - q) ** 2).sum() for p, q in pairs) / 2

    def objective(self, x: list[Tensor], anchor: Brute, tau: float) -> Tensor:
        """E + P + (τ/2)‖Θ - Θ⁰‖²."""
        penalty = sum(alpha * self.W[l].abs().sum() for l, alpha in self.on_weights.items())
        return self.energy(x) + penalty + tau * self.distance(anchor)

    def moved_theta(self, l: int, x: list[Tensor], anchor: Brute, tau: float, t: float) -> list[Tensor]:
        """Θ_l after a proximal gradient step on E + P + (τ/2)‖Θ - Θ⁰‖², (W, b) jointly."""
        leaf = self.copy()
        for p in leaf.theta[l]:
            p.requires_grad_(True)
        gradients = torch.autograd.grad(leaf.energy(x) + tau * leaf.distance(anchor), leaf.theta[l])
        moved = [p - t * g for p, g in zip(self.theta[l], gradients, strict=True)]
        if l in self.on_weights:
            moved[0] = argmin(lambda w: (w - moved[0]) ** 2 / (2 * t) + self.on_weights[l] * w.abs(), moved[0], None)
        return moved

    def set_theta(self, l: int, values: list[Tensor]) -> None:
        self.W[l] = values[0]
        if len(values) > 1:
            self.b[l] = values[1]

    def moved_x(self, l: int, x: list[Tensor], t: float) -> Tensor:
        """x_l after a proximal gradient step on each sample's energy."""
        leaf = [v.clone() for v in x]
        leaf[l].requires_grad_(True)
        (g,) = torch.autograd.grad(self.smooth(leaf), leaf[l])
        ahead = x[l] - t * g
        model = lambda u: (u - ahead) ** 2 / (2 * t) + self.nonsmooth(l, u)  # noqa: E731
        return argmin(model, ahead, POTENTIALS[self.names[l]][3])


def argmin(function, near: Tensor, ends: tuple[float, float] | None) -> Tensor:
    """The minimiser of a strictly convex function of each component, by bisection on the sign of its derivative."""
    reach = 1.0 + 3.0 * float(near.abs().max())
    low, high = (max(ends[0], -reach), min(ends[1], reach)) if ends else (-reach, reach)
    lower, upper = torch.full_like(near, low), torch.full_like(near, high)
    for _ in range(58):
        middle = ((lower + upper) / 2).requires_grad_(True)
        (slope,) = torch.autograd.grad(function(middle).sum(), middle)
        middle = middle.detach()
        lower, upper = torch.where(slope < 0, middle, lower), torch.where(slope < 0, upper, middle)
    return (lower + upper) / 2
