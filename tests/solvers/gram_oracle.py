"""`GramSweep` written a second time: rows [X 1], full linear systems, blocks one by one, V, Θ̄ and Θ kept apart."""

from __future__ import annotations

import copy
import itertools
import math
from dataclasses import dataclass, field

import pytest
import torch
from torch import Tensor, nn

from lifted_bregman import solvers

F64 = torch.float64
TIGHT = {"rtol": 1e-10, "atol": 1e-10}
BATCHES = [(0, 7), (7, 14), (3, 8), (14, 15), (8, 15)]
"""Of 7, 7, 5, 1 and 7 samples; with blocks of at most 4, 3 or 2 the last block is often filled up."""


def relu(z: Tensor) -> Tensor:
    return torch.where(z > 0.0, z, torch.zeros_like(z))


def soft(threshold: float):
    def shrink(z: Tensor) -> Tensor:
        return torch.sign(z) * relu(z.abs() - threshold)

    return shrink


@dataclass
class Blocks:
    """What a layer's move is made of: Δ (out, n), s_j, and the root mean square of the change of z without lengths."""

    delta: Tensor
    units: Tensor
    squares: Tensor
    scale: float


def block_move(A: Tensor, E: Tensor, size: int, tau: float, left=None, steps: int = 1, dimension: int | None = None):
    """Δ, C, t and the last right-hand side of the implicit step of one block whose rows count 1/size each.

    t is τ times the mean eigenvalue of a matrix of that dimension, that of A Aᵀ/size if it is not given.
    """
    t = tau * float((A * A).sum()) / (size * (dimension or size))
    M = A.T @ A / size + t * torch.eye(A.shape[1], dtype=A.dtype)
    G = E
    delta = torch.linalg.solve(M, A.T @ G / size)
    for _ in range(steps - 1):
        G = A @ delta + left(A @ delta)
        delta = torch.linalg.solve(M, A.T @ G / size)
    C = torch.linalg.solve(A @ A.T / size + t * torch.eye(len(A), dtype=A.dtype), G)
    return delta, C, t, G


def layer_move(A: Tensor, E: Tensor, inputs: int, block: int, tau: float, left, steps: int) -> Blocks:
    """Δ of a layer with rows A (m, n) and `inputs` inputs: of the whole batch, or the mean over blocks."""
    (m, n), width = A.shape, E.shape[1]
    if math.isinf(tau):
        squares, inputs_squared = (E * E).sum(0), float((A * A).sum())
        return Blocks(
            E.T @ A / m, squares * inputs_squared / (m**3 * n), squares, inputs_squared / m / (m * width) ** 0.5
        )
    if inputs <= block:
        delta, _, _, G = block_move(A, E, m, tau, left, steps, dimension=n)
        return Blocks(delta.T, (delta * delta).sum(0) / n, (G * G).sum(0), (m * width) ** -0.5)
    number = math.ceil(m / min(block, max(inputs // 2, 1)))
    size = math.ceil(m / number)
    delta, along, squares = torch.zeros(n, width, dtype=A.dtype), torch.zeros(width, dtype=A.dtype), 0.0
    places = [torch.arange(m)[first : first + size] for first in range(0, m, size)]
    for rows in places:
        own = (lambda H, rows=rows: left(H, rows)) if left is not None else None
        d, C, t, G = block_move(A[rows], E[rows], size, tau, own, steps)
        delta += d * size / m
        along += size * (d * d).sum(0) + t * (C * C).sum(0)  # = CᵀG
        squares = squares + (G * G).sum(0)
    return Blocks(delta.T, along / (m * n * len(places)), squares, (m * width * len(places)) ** -0.5)


# All steps up to 16, every 2nd up to 32, every 4th up to 64, and so on.
LOOKS = {*range(1, 16), *range(16, 32, 2), *range(32, 64, 4), *range(64, 128, 8)}


@dataclass
class Oracle:
    """Steps on dense layers with the settings of a `GramSweep`.

    linears    the layers' modules, which are not changed
    maps       σ_1 .. σ_L as functions
    nudged     (layer, z, p, ν/λ) ↦ x_l⁺; None for σ(z - (ν/λ)p)
    """

    settings: solvers.GramSweep
    linears: list[nn.Linear]
    maps: list
    weights: list[float]
    penalised: tuple[int, ...] = ()
    nudged: object = None
    theta: list[Tensor] = field(default_factory=list)
    fast: list[Tensor] = field(default_factory=list)
    mean: list[Tensor] = field(default_factory=list)
    s: dict[int, Tensor] = field(default_factory=dict)
    steps: int = 0
    limited: list[bool] = field(default_factory=list)
    """Whether the trust limit was binding, for each move."""
    shortened: list[bool] = field(default_factory=list)
    """Whether micro-batches had different nudges, for each batch and hidden layer."""
    residual: float = 0.0
    distance: float = 0.0

    def __post_init__(self) -> None:
        self.linears = copy.deepcopy(self.linears)
        self.theta = [self._packed(module) for module in self.linears]
        self.fast = [theta.clone() for theta in self.theta]
        self.mean = [theta.clone() for theta in self.theta]
        self.origin = [theta.clone() for theta in self.theta]
        self.distance = self.settings.step_size

    def _packed(self, module: nn.Linear) -> Tensor:
        """[W b], what is frozen or missing included (as zeros)."""
        bias = torch.zeros(len(module.weight), dtype=F64) if module.bias is None else module.bias.detach()
        return torch.cat([module.weight.detach(), bias[:, None]], 1)

    def _trained(self, module: nn.Linear) -> list[int]:
        last = module.in_features
        columns = list(range(last)) if module.weight.requires_grad else []
        return columns + ([last] if module.bias is not None and module.bias.requires_grad else [])

    def step(self, X: Tensor, Y: Tensor, w: Tensor | None = None) -> None:
        own, L = self.settings, len(self.linears)
        self.steps += 1
        if self.steps in LOOKS:
            trained = [i for i, module in enumerate(self.linears) if self._trained(module)]
            away = [float((self.fast[i] - self.origin[i]).square().sum()) / len(self.origin[i]) for i in trained]
            self.distance = max(self.distance, math.sqrt(sum(away) / len(away)))
        x, z = [X], [X]
        for l in range(L):
            z.append(x[l] @ self.theta[l][:, :-1].T + self.theta[l][:, -1])
            x.append(self.maps[l](z[-1]))
        w_all = torch.ones(len(X), dtype=F64) if w is None else w

        def size(v: Tensor) -> float:
            return float((w_all.view(-1, *[1] * (v.ndim - 1)) * v * v).mean().sqrt())

        def limits(p: Tensor, largest: float) -> Tensor:
            """ν/λ of each sample: one number for each micro-batch, at most `largest` over its signals' size."""
            count = min(own.micro_batches, len(X))
            ends = [len(X) * number // count for number in range(count + 1)]
            parts = []
            for start, end in itertools.pairwise(ends):
                w_part = w_all[start:end].view(-1, *[1] * (p.ndim - 1))
                size = (w_part * p[start:end] ** 2).mean().sqrt()
                parts.append((largest / size).expand(end - start))
            return torch.cat(parts).view(-1, *[1] * (p.ndim - 1))

        rms = [size(v) for v in z]
        nudge, target = torch.ones(len(X), *[1] * (X.ndim - 1), dtype=F64), Y
        E = x[L] - Y
        self.residual = size(E)
        rms[L] += self.residual
        moves = []
        for l in range(L, 0, -1):
            moves.append((l, self._layer(l, x[l - 1], z[l], E, target, nudge, w)))
            if l > 1:
                p = E @ self.theta[l - 1][:, :-1]
                wanted = own.penalised_nudge if l - 1 in self.penalised else own.nudge / (L - 1)
                nudge = limits(p, 0.3 * rms[l - 1]).clamp(max=wanted / self.weights[l - 2])
                self.shortened.append(bool((nudge != nudge[0]).any()))
                if self.nudged is not None:
                    target = self.nudged(l - 1, z[l - 1], p, nudge)
                else:
                    target = self.maps[l - 2](z[l - 1] - nudge * p)
                E = (x[l - 1] - target) / nudge
        for l, move in moves:
            if move is not None:
                self._take(l, move, rms[l])

    def _layer(self, l: int, x: Tensor, z: Tensor, E: Tensor, target: Tensor, nudge: Tensor, w: Tensor | None):
        module, sigma = self.linears[l - 1], self.maps[l - 1]
        columns = self._trained(module)
        if not columns:
            return None
        rows, width = x.reshape(-1, x.shape[-1]), z.shape[-1]
        A = torch.cat([rows, torch.ones(len(rows), 1, dtype=F64)], 1)[:, columns]
        root = torch.ones(len(rows), 1, dtype=F64)
        if w is not None:
            root = w.sqrt()[:, None].expand(len(w), len(rows) // len(w)).reshape(-1, 1)

        def left(H: Tensor, places=slice(None)) -> Tensor:
            flat, aim = z.reshape(-1, width)[places], target.reshape(-1, width)[places]
            ratio = nudge.expand((*z.shape[:-1], 1)).reshape(-1, 1)[places]
            return root[places] * (sigma(flat - ratio * H / root[places]) - aim) / ratio

        settings = self.settings
        narrow = module.in_features <= settings.block and not math.isinf(settings.damping)
        tau = settings.narrow_damping if narrow else settings.damping
        return layer_move(
            root * A, root * E.reshape(-1, width), module.in_features, settings.block, tau, left, settings.inner_steps
        )

    def _take(self, l: int, move: Blocks, size: float) -> None:
        own, k = self.settings, self.steps
        self.s[l] = total = self.s.get(l, 0.0) + move.units
        module = self.linears[l - 1]
        inputs = module.in_features if module.weight.requires_grad else 1
        lengths = self.distance / (inputs * total).sqrt()
        lengths[total == 0.0] = 0.0  # units without a signal stay
        change = float((lengths**2 * move.squares).sum().sqrt()) * move.scale
        self.limited.append(change > own.trust * size)
        if self.limited[-1]:
            lengths = lengths * own.trust * size / change
        columns, i = self._trained(self.linears[l - 1]), l - 1
        self.fast[i][:, columns] -= lengths[:, None] * move.delta
        share = (1.0 + own.power) / (k + own.power)
        self.mean[i] = (1.0 - share) * self.mean[i] + share * self.fast[i]
        self.theta[i] = (1.0 - own.average) * self.fast[i] + own.average * self.mean[i]


def linears(problem) -> list[nn.Linear]:
    return [problem.network[l].map.module for l in range(1, problem.depth + 1)]


def packed(module: nn.Linear, values) -> torch.Tensor:
    """[W b] with `values` in place of what is trained."""
    parts = {name: p.detach() for name, p in module.named_parameters()} | values
    bias = parts.get("bias", torch.zeros(module.out_features, dtype=F64))
    return torch.cat([parts["weight"], bias[:, None]], 1)


def assert_follows(solver, problem, X, Y, oracle: Oracle, weights=None, batches=BATCHES):
    """After every batch Θ and V are the oracle's."""
    batch = solvers.Batch.whole(problem, X, Y, weights)
    state = solver.init(problem, batch)
    for start, stop in batches:
        part = batch.slice(start, stop)
        state = solver.step(problem, state, part)
        oracle.step(part.X, part.Y, part.weights)
        for l, module in enumerate(linears(problem), start=1):
            torch.testing.assert_close(packed(module, {}), oracle.theta[l - 1], **TIGHT)
            if solver.average:
                torch.testing.assert_close(packed(module, state.fast.get(l, {})), oracle.fast[l - 1], **TIGHT)
    assert bool(state.fast) == (solver.average > 0.0)  # without an average Θ is V, and nothing is kept
    assert state.steps == len(batches) and state.fallbacks == 0 and state.metrics["fallbacks"] == 0.0
    assert state.metrics["distance"] == pytest.approx(oracle.distance, rel=1e-9)
    assert state.metrics["output_residual"] == pytest.approx(oracle.residual, rel=1e-9)
