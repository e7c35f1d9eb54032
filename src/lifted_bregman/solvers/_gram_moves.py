"""How a layer's error signal becomes a move of its parameters: for a dense map, in the metric of the batch's inputs.

With rows A = [X 1] of m samples and the signal E, (m, out), which makes AᵀE/m the gradient in Θ, the move is the
minimiser of the majorant of one implicit step (σ is 1-Lipschitz; `_sample_space` has the derivation),

    Δ = (AᵀA/m + tI)⁻¹ AᵀE/m          t = τ times the mean eigenvalue of the matrix that is inverted .

In sample space it is AᵀC/m with (A Aᵀ/m + tI) C = E, and nothing is as large as Θ until it is added.  There the batch
is cut into blocks of b samples, and Δ is the mean of the blocks' moves, as if each were the batch of one worker of
Section 4.2.2: the system costs b/m of the whole one, and the systems of all layers of a size are solved in one call.

    ‖Δ_j‖² <= C_jᵀE_j/m, which stands for it in sample space          change of the pre-activations   ‖AΔ‖ <= ‖E‖

Further inner steps take the signal E(H) that is left when the pre-activations have changed by H = E - tC: (..) C = H +
E(H), which decreases the implicit problem of each block monotonically.

Where samples are shared with peers, m and the blocks are those of the whole batch, and `Design` says which rows are
here: everyone makes the same move, either from all rows, or from sums that are added up.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping

import torch
from torch import Tensor

from lifted_bregman._linalg import damped_inverse
from lifted_bregman.maps import Convolution, Dense
from lifted_bregman.problem import Peers
from lifted_bregman.solvers._gram_design import Design, Metric, blocks_of, design, metrics
from lifted_bregman.solvers._packing import unpacked

__all__ = [
    "Design",
    "GradientMove",
    "Metric",
    "Move",
    "PatchMove",
    "PlainMove",
    "SampleMove",
    "WeightMove",
    "by_row",
    "dense_move",
    "design",
    "joint_root_mean_square",
    "metrics",
]

PATCHES = 512
"""Rows of a convolution's inputs that its metric is made of, at most."""
Left = Callable[[Tensor], Tensor]
"""H ↦ E(H), the error signal once the pre-activations have changed by H."""
Lengths = Mapping[str, Tensor]
"""A factor for each unit, or for each row of each parameter."""


class Move(ABC):
    """Δ of one layer, before each of its units is given a length.

    Its numbers stay on the device, as tensors (): nothing waits for them.
    """

    fallback: Tensor | None = None
    """Whether a gradient step has replaced the solution of a linear system, () of bool; None where there is none."""
    of_parameters: bool = False
    """Whether `size` is that of the parameters' change, not of the pre-activations'."""
    units: Lengths
    """Mean squares of the entries of Δ, or a bound: one number for each unit, or for each row of each parameter."""

    @abstractmethod
    def size(self, lengths: Lengths) -> Tensor:
        """Root mean square of the change that `lengths`·Δ makes: of the pre-activations, or of the parameters."""

    @abstractmethod
    def subtract(self, into: Mapping[str, Tensor], lengths: Lengths, factor: Tensor | float) -> None:
        """into ← into - factor·lengths·Δ, in place."""


class SampleMove(Move):
    """The mean over blocks of AᵀC/b, never multiplied out before it is subtracted."""

    def __init__(self, own: Design, metric: Metric, E: Tensor, left: Left, steps: int) -> None:
        here, width = E.shape
        m, blocks = own.total, -(-own.total // own.block)
        self._design, self.fallback = own, metric.fallback
        G = blocks_of(E, own.block)
        C = torch.bmm(metric.inverse, G)
        for _ in range(steps - 1):
            H = torch.addcmul(G, metric.t, C, value=-1.0)
            G = H + blocks_of(left(H.view(-1, width)[:here]), own.block)
            C = torch.bmm(metric.inverse, G)
        self._C, E = C.view(-1, width)[:here], G.view(-1, width)[:here]
        along, self._squares = torch.linalg.vecdot(self._C, E, dim=0), torch.linalg.vecdot(E, E, dim=0)
        own.add_up(along, self._squares)
        # The mean of independent moves is shorter than each of them by the root of their number.
        along.clamp_(min=0.0)  # rounding may leave less than 0
        self.units = {"unit": along.div_(m * own.columns * blocks)}
        self._scale = 1.0 / math.sqrt(m * width * blocks)

    def size(self, lengths: Lengths) -> Tensor:
        return _weighted_norm(self._squares, lengths["unit"]).mul_(self._scale)

    def subtract(self, into: Mapping[str, Tensor], lengths: Lengths, factor: Tensor | float) -> None:
        self._design.subtract(into, self._C.mul_(lengths["unit"] * factor))


class PlainMove(Move):
    """AᵀE/m, the limit τ → ∞; its units' mean squares are those for rows of A that are orthogonal to each other."""

    def __init__(self, own: Design, E: Tensor) -> None:
        m = own.total
        self._design, self._E = own, E
        inputs = E.new_zeros(()) if own.X is None else torch.linalg.vector_norm(own.X).square_()
        if own.ones is not None:
            inputs = inputs + (own.rows if own.root is None else own.ones.square().sum())
        self._squares = torch.linalg.vecdot(E, E, dim=0)
        own.add_up(inputs, self._squares)
        self.units = {"unit": self._squares * (inputs / (m**3 * own.columns))}
        self._scale = inputs / (m * math.sqrt(m * E.shape[1]))  # ‖AAᵀE‖ <= ‖A‖²‖E‖

    def size(self, lengths: Lengths) -> Tensor:
        return _weighted_norm(self._squares, lengths["unit"]).mul_(self._scale)

    def subtract(self, into: Mapping[str, Tensor], lengths: Lengths, factor: Tensor | float) -> None:
        self._design.subtract(into, self._E * (lengths["unit"] * factor))


class WeightMove(Move):
    """(AᵀA/m + tI)⁻¹ AᵀE/m for the whole batch."""

    def __init__(self, f: Dense, own: Design, E: Tensor, damping: float, left: Left, steps: int) -> None:
        m, A = own.total, torch.cat([part for part in (own.X, own.ones) if part is not None], 1)
        K = A.t() @ A
        AtG = self._sums(own, A, E, steps == 1, K)
        inverse, _, self.fallback = damped_inverse(K.div_(m)[None], damping)
        delta = inverse[0] @ AtG.div_(m)  # (n, out)
        for more in reversed(range(steps - 1)):
            H = A @ delta
            G = H + left(H)
            delta = inverse[0] @ self._sums(own, A, G, more == 0).div_(m)
        self._f, self._delta = f, delta
        self.units = {"unit": delta.square().mean(0)}
        self._scale = 1.0 / math.sqrt(m * E.shape[1])

    def _sums(self, own: Design, A: Tensor, G: Tensor, last: bool, *others: Tensor) -> Tensor:
        """AᵀG, added up in one message with `others` and, for the last G, the squares of its columns."""
        AtG = A.t() @ G
        if last:
            self._squares = torch.linalg.vecdot(G, G, dim=0)
            others = (*others, self._squares)
        own.add_up(AtG, *others)
        return AtG

    def size(self, lengths: Lengths) -> Tensor:
        return _weighted_norm(self._squares, lengths["unit"]).mul_(self._scale)

    def subtract(self, into: Mapping[str, Tensor], lengths: Lengths, factor: Tensor | float) -> None:
        for name, part in unpacked(self._f, (self._delta * (lengths["unit"] * factor)).t()).items():
            into[name].sub_(part)


class PatchMove(Move):
    """∇ (AᵀA/r + tI)⁻¹ of a convolution, with r of the patches of the batch as the rows A of its inputs.

    ∇ is the gradient AᵀE/m of the whole batch; the metric is that of some patches, evenly spread.  With more columns
    than rows, ∇ (AᵀA/r + tI)⁻¹ = (∇ - ∇Aᵀ (AAᵀ/r + tI)⁻¹ A/r) / t .

    gradient  J_Θᵀ E/m of the samples of this process, by name
    x         the inputs of the whole batch
    squares   Σ E² of each channel, over the samples and places of the whole batch
    places    how many samples and places these are
    weights   w_i of the samples of the whole batch, which the squares have too; None for all equal to 1
    """

    def __init__(
        self,
        f: Convolution,
        gradient: Mapping[str, Tensor],
        x: Tensor,
        squares: Tensor,
        places: int,
        damping: float,
        weights: Tensor | None = None,
    ) -> None:
        A, (groups, units) = f.some_rows(x, PATCHES, weights), (f.module.groups, len(squares))
        G = _columns(f, gradient).view(groups, units // groups, -1)
        r, n = A.shape[1:]
        if n <= r:
            inverse, _, self.fallback = damped_inverse((A.mT @ A).div_(r), damping)
            delta = torch.bmm(G, inverse)
        else:
            # The trace of AAᵀ/r is that of AᵀA/r: its mean over n is r/n times its mean over r.
            inverse, t, self.fallback = damped_inverse((A @ A.mT).div_(r), damping * r / n)
            delta = torch.baddbmm(G, torch.bmm(torch.bmm(G, A.mT), inverse), A, alpha=-1.0 / r).div_(t)
        self._f, self._delta, self._squares = f, delta.view(units, n), squares
        self.units = {"unit": self._delta.square().mean(1)}
        self._scale = 1.0 / math.sqrt(places * units)

    def size(self, lengths: Lengths) -> Tensor:
        return _weighted_norm(self._squares, lengths["unit"]).mul_(self._scale)

    def subtract(self, into: Mapping[str, Tensor], lengths: Lengths, factor: Tensor | float) -> None:
        step = self._delta.mul_((lengths["unit"] * factor)[:, None])
        if "weight" in self._f.parameters:
            columns = step.shape[1] - ("bias" in self._f.parameters)
            into["weight"].sub_(self._f.from_unit_rows(step[:, :columns], into["weight"]))
        if "bias" in self._f.parameters:
            into["bias"].sub_(step[:, -1])


def _columns(f: Convolution, gradient: Mapping[str, Tensor]) -> Tensor:
    """The gradient of a convolution as one matrix (units, n), the bias last."""
    parts = [f.unit_rows(gradient["weight"])] if "weight" in gradient else []
    return torch.cat([*parts, *([gradient["bias"][:, None]] if "bias" in gradient else [])], 1)


class GradientMove(Move):
    """J_Θᵀ E/m itself, for maps that are not dense, for parameters with a penalty, and for shared ones.

    gradient  J_Θᵀ E/m of the samples of this process, by name
    together  whether all parameters have one length
    peers     who has the other samples

    A penalty's proximal map belongs to one step size, so that a layer with a penalty has one length for all.
    """

    of_parameters = True

    def __init__(self, gradient: Mapping[str, Tensor], together: bool, peers: Peers) -> None:
        self._gradient = gradient
        peers.total(*self._gradient.values())
        self._count = sum(g.numel() for g in self._gradient.values())
        if together:
            total = torch.stack([g.square().sum() for g in self._gradient.values()]).sum()
            self.units = dict.fromkeys(self._gradient, total / self._count)
        else:
            self.units = {
                name: g.square() if g.ndim < 2 else g.flatten(1).square().mean(1) for name, g in self._gradient.items()
            }

    def size(self, lengths: Lengths) -> Tensor:
        moves = [by_row(lengths[name], g) * g for name, g in self._gradient.items()]
        return joint_root_mean_square(moves)

    def subtract(self, into: Mapping[str, Tensor], lengths: Lengths, factor: Tensor | float) -> None:
        for name, g in self._gradient.items():
            into[name].addcmul_(by_row(lengths[name] * factor, g), g, value=-1.0)


def dense_move(f: Dense, own: Design, metric: Metric | None, E: Tensor, damping: float, left: Left, steps: int) -> Move:
    """The move of a dense layer.

    own      its design
    metric   of the design's blocks; None in weight space
    E        error signal (s, ...) of one's own samples, for which J_Θᵀ E/s is the gradient
    damping  τ > 0, inf for the gradient
    left     E once the pre-activations, (s, ...), have changed; E itself for no change
    steps    inner steps, >= 1
    """
    shape, root = E.shape, own.root
    peers = own.peers
    if own.gathered:
        E = peers.gather(E)
    E = E.reshape(-1, shape[-1])

    def left_of_rows(H: Tensor) -> Tensor:
        H = H if root is None else H / root
        if own.gathered:
            G = peers.gather(left(peers.own(H.view(-1, *shape[1:])))).reshape(E.shape)
        else:
            G = left(H.view(shape)).reshape(E.shape)
        return G if root is None else G * root

    if root is not None:
        E = E * root
    if math.isinf(damping):
        return PlainMove(own, E)
    if metric is not None:
        return SampleMove(own, metric, E, left_of_rows, steps)
    return WeightMove(f, own, E, damping, left_of_rows, steps)


def _weighted_norm(squares: Tensor, factors: Tensor) -> Tensor:
    """√Σ_j f_j² q_j."""
    return torch.dot(squares, factors.square()).sqrt_()


def joint_root_mean_square(tensors: list[Tensor]) -> Tensor:
    """The root mean square of all entries of several tensors, ()."""
    norm: Tensor = torch.linalg.vector_norm(torch.stack(torch._foreach_norm(tensors)))
    return norm.div_(math.sqrt(sum(t.numel() for t in tensors)))


def by_row(values: Tensor, like: Tensor) -> Tensor:
    """values (n,) or () in a shape that multiplies the rows of `like`."""
    return values if values.ndim == 0 else values.view(-1, *[1] * (like.ndim - 1))
