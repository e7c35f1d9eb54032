"""The default solver a second time, for chains of dense layers: slow, with nothing shared with the fast version.

Rows are [X 1], linear systems are solved in full, blocks one after the other, and V, Θ̄ and Θ are stored apart.  The
tests demand that every step of `GramSweep` equals a step of this.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple

import torch
from torch import Tensor, nn

if TYPE_CHECKING:
    from lifted_bregman.solvers.gram.sweep import GramSweep

Function = Callable[[Tensor], Tensor]


class LayerMove(NamedTuple):
    """What a layer's move is made of."""

    delta: Tensor
    """Δ, (units, n)."""
    squares: Tensor
    """s_j, (units,)."""
    change: Tensor
    """q_j, (units,): with lengths f_j the pre-activations change by about √Σ f_j² q_j in root mean square."""


@dataclass
class ReferenceSweep:
    """Steps of a `GramSweep` on a chain z_l = [x_{l-1} 1] Θ_lᵀ, x_l = σ_l(z_l).

    settings     of the solver
    linears      the layers' modules, whose parameters are copied
    activations  σ_1 .. σ_L as functions
    weights      λ_1 .. λ_{L-1}
    proxes       (v, ν/λ) ↦ prox_{Ψ_l + (ν/λ) R_l}(v) of the layers l with a penalty
    """

    settings: GramSweep
    linears: Sequence[nn.Linear]
    activations: Sequence[Function]
    weights: Sequence[float]
    proxes: Mapping[int, Callable[[Tensor, Tensor], Tensor]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.theta = [pack(module) for module in self.linears]
        """Θ_l = [W b], where the signals are computed."""
        self.fast = [theta.clone() for theta in self.theta]
        """V_l."""
        self.mean = [theta.clone() for theta in self.theta]
        """Θ̄_l."""
        self.origin = [theta.clone() for theta in self.theta]
        """V_l⁰."""
        self.trained = [trained_columns(module) for module in self.linears]
        """The columns of Θ_l that are trained."""
        self.sums = [theta.new_zeros(len(theta)) for theta in self.theta]
        """Σ s_j of each unit."""
        self.distance = self.settings.step_size
        """r_k."""
        self.residual = 0.0
        """Root mean square of σ_L(z_L) - y in the last step."""
        self.steps = 0

    def step(self, X: Tensor, Y: Tensor, w: Tensor | None = None) -> None:
        """One step on a batch; w > 0 are the weights of its samples."""
        self.steps += 1
        L = len(self.linears)
        # r_k² = max mean_l ‖V_l - V_l⁰‖²/m_l
        self.update_distance()
        # z_l = [x_{l-1} 1] Θ_lᵀ, x_l = σ_l(z_l)
        x, z = [X], [X]
        for theta, sigma in zip(self.theta, self.activations, strict=True):
            z.append(x[-1] @ theta[:, :-1].T + theta[:, -1])
            x.append(sigma(z[-1]))
        w = X.new_ones(len(X)) if w is None else w
        sizes = [root_mean_square(v, w) for v in z]
        # E_L = σ_L(z_L) - y
        E, target, nudge = x[L] - Y, Y, per_sample(X.new_ones(len(X)), X)
        self.residual = root_mean_square(E, w)
        sizes[L] += self.residual
        moves = {}
        for l in range(L, 0, -1):
            # Δ_l, with all Θ where they were
            if self.trained[l - 1]:
                moves[l] = self.move(l, x[l - 1], z[l], E, target, nudge, w)
            # x_{l-1}⁺ = prox(z_{l-1} - (ν/λ) g) with g = E_l W_l, and E_{l-1} = (λ/ν) (x_{l-1} - x_{l-1}⁺)
            if l > 1:
                g = E @ self.theta[l - 1][:, :-1]
                nudge = self.nudge(l - 1, z[l - 1], g)
                v = z[l - 1] - nudge * g
                target = self.proxes[l - 1](v, nudge) if l - 1 in self.proxes else self.activations[l - 2](v)
                E = (x[l - 1] - target) / nudge
        for l, move in moves.items():
            self.sums[l - 1] += move.squares
            self.take(l, self.lengths(l, move, sizes[l])[:, None] * move.delta)

    def update_distance(self) -> None:
        """Every step up to 15, every 2nd up to 31, every 4th up to 63, and so on."""
        every = 1
        while 16 * every <= self.steps:
            every *= 2
        if self.steps % every == 0:
            layers = [l for l, columns in enumerate(self.trained) if columns]
            squares = [float((self.fast[l] - self.origin[l]).square().sum()) / len(self.origin[l]) for l in layers]
            self.distance = max(self.distance, math.sqrt(sum(squares) / len(squares)))

    def nudge(self, l: int, z: Tensor, g: Tensor) -> Tensor:
        """ν_l/λ_l of each sample: a share of ν, with ‖νg_i‖ <= 0.3 ‖z_i‖; that of a penalty is fixed."""
        own, weight = self.settings, self.weights[l - 1]
        if l in self.proxes:
            return per_sample(z.new_full((len(z),), own.penalised_nudge / weight), z)
        least = math.sqrt(torch.finfo(z.dtype).eps * math.prod(z.shape[1:]))
        longest = [0.3 * max(float(z[i].norm()), least) / float(g[i].norm()) for i in range(len(z))]
        share = own.nudge / (len(self.linears) - 1) / weight
        return per_sample(z.new_tensor([min(share, nu) for nu in longest]), z)

    def move(self, l: int, x: Tensor, z: Tensor, E: Tensor, target: Tensor, nudge: Tensor, w: Tensor) -> LayerMove:
        """Δ_l from the layer's inputs and its signal; a sequence is as many rows as it has places."""
        own, sigma, inputs = self.settings, self.activations[l - 1], x.shape[-1]
        each = math.prod(x.shape[1:-1])
        root = w.sqrt().repeat_interleave(each)[:, None]
        X = x.reshape(-1, inputs)
        A = root * torch.cat([X, torch.ones_like(X[:, :1])], 1)[:, self.trained[l - 1]]
        z, E, target = (v.reshape(len(A), -1) for v in (z, E, target))
        nudge = nudge.reshape(-1).repeat_interleave(each)[:, None]

        def left(H: Tensor, rows: Tensor) -> Tensor:
            """E(H) = (σ(z - νH) - x⁺)/ν, in rows that are multiplied by √w."""
            changed = sigma(z[rows] - nudge[rows] * H / root[rows])
            return root[rows] * (changed - target[rows]) / nudge[rows]

        narrow = inputs <= own.block and not math.isinf(own.damping)
        damping = own.narrow_damping if narrow else own.damping
        return layer_move(A, root * E, inputs, own.block, damping, left, own.inner_steps)

    def lengths(self, l: int, move: LayerMove, size: float) -> Tensor:
        """r_k/√(n Σ s_j) of each unit, 0 of one that never moved; all shorter where z_l changes by over κ."""
        inputs = self.linears[l - 1].in_features if self.linears[l - 1].weight.requires_grad else 1
        total = self.sums[l - 1]
        lengths = torch.where(total > 0.0, self.distance / (inputs * total).sqrt(), 0.0)
        change, limit = float((lengths.square() * move.change).sum().sqrt()), self.settings.trust * size
        return lengths * limit / change if change > limit else lengths

    def take(self, l: int, step: Tensor) -> None:
        """V ← V - step, Θ̄ ← (1 - c) Θ̄ + cV, Θ ← (1 - β) V + βΘ̄."""
        own, i = self.settings, l - 1
        self.fast[i][:, self.trained[i]] -= step
        c = (1.0 + own.power) / (self.steps + own.power)
        self.mean[i] = (1.0 - c) * self.mean[i] + c * self.fast[i]
        self.theta[i] = (1.0 - own.average) * self.fast[i] + own.average * self.mean[i]


def layer_move(
    A: Tensor, E: Tensor, inputs: int, block: int, damping: float, left: Callable[[Tensor, Tensor], Tensor], steps: int
) -> LayerMove:
    """Δ of a layer with rows A (m, n) and signal E (m, units): of the whole batch, or the mean over blocks."""
    (m, n), units = A.shape, E.shape[1]
    rows = torch.arange(m)
    if math.isinf(damping):
        squares, size = E.square().sum(0), float(A.square().sum())
        return LayerMove(E.T @ A / m, squares * size / (m**3 * n), squares * size**2 / (m**3 * units))
    if inputs <= block:
        delta, _, _, G = block_move(A, E, m, damping, lambda H: left(H, rows), steps, dimension=n)
        return LayerMove(delta.T, delta.square().sum(0) / n, G.square().sum(0) / (m * units))
    number = math.ceil(m / min(block, max(inputs // 2, 1)))
    size_of_block = math.ceil(m / number)
    blocks = rows.split(size_of_block)
    delta, along, squares = A.new_zeros(n, units), A.new_zeros(units), A.new_zeros(units)
    for own in blocks:
        d, C, t, G = block_move(A[own], E[own], size_of_block, damping, lambda H, own=own: left(H, own), steps)  # type: ignore[misc]
        delta += d * size_of_block / m
        along += size_of_block * d.square().sum(0) + t * C.square().sum(0)  # = CᵀG
        squares += G.square().sum(0)
    return LayerMove(delta.T, along / (m * n * len(blocks)), squares / (m * units * len(blocks)))


def block_move(
    A: Tensor,
    E: Tensor,
    size: int,
    damping: float,
    left: Function | None = None,
    steps: int = 1,
    dimension: int | None = None,
) -> tuple[Tensor, Tensor, float, Tensor]:
    """Δ (n, units), C, t and the last right-hand side of the implicit step of one block whose rows count 1/size each.

    t is `damping` times the mean eigenvalue of a matrix of that dimension, by default A Aᵀ/size.
    """
    t = damping * float(A.square().sum()) / (size * (dimension or size))
    M = A.T @ A / size + t * torch.eye(A.shape[1], dtype=A.dtype)
    G = E
    delta = torch.linalg.solve(M, A.T @ G / size)
    for _ in range(steps - 1):
        assert left is not None
        G = A @ delta + left(A @ delta)
        delta = torch.linalg.solve(M, A.T @ G / size)
    C = torch.linalg.solve(A @ A.T / size + t * torch.eye(len(A), dtype=A.dtype), G)
    return delta, C, t, G


def pack(module: nn.Linear) -> Tensor:
    """[W b] in new memory; b = 0 where there is none."""
    W = module.weight.detach()
    bias = W.new_zeros(len(W)) if module.bias is None else module.bias.detach()
    return torch.cat([W, bias[:, None]], 1)


def trained_columns(module: nn.Linear) -> list[int]:
    """The columns of [W b] that are trained."""
    last = module.in_features
    columns = list(range(last)) if module.weight.requires_grad else []
    return columns + ([last] if module.bias is not None and module.bias.requires_grad else [])


def per_sample(values: Tensor, like: Tensor) -> Tensor:
    """values (s,) in a shape that multiplies `like` (s, ...)."""
    return values.view(-1, *[1] * (like.ndim - 1))


def root_mean_square(v: Tensor, w: Tensor) -> float:
    """Over all entries of v (s, ...), samples counting by w (s,)."""
    return float((per_sample(w, v) * v.square()).mean().sqrt())
