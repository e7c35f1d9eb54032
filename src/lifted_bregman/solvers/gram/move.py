"""From the rows A of a layer's inputs and its error signal E to the move Δ of its parameters.

With m rows A = [X 1], and E of shape (m, units), so that AᵀE/m is the gradient in Θ, the move is the minimiser of the
majorant of one implicit step (σ is 1-Lipschitz),

    Δ = (AᵀA/m + tI)⁻¹ AᵀE/m          t = τ times the mean eigenvalue of the matrix that is inverted .

`weight_move` solves this system.  In sample space (`sample_move`) Δ = AᵀC/m with (A Aᵀ/m + tI) C = E, and nothing has
the size of Θ until Δ is subtracted.  There the batch is cut into blocks of b samples, and Δ is the mean of the blocks'
moves, as if each were the batch of one worker of Section 4.2.2: a system costs b/m of the whole one, and the systems of
all layers of a size are solved in one call.

    ‖Δ_j‖² <= C_jᵀE_j/m, which stands for it in sample space          change of the pre-activations   ‖AΔ‖ <= ‖E‖

Inner steps after the first use the signal E(H) that is left once the pre-activations have changed by H = AΔ = E - tC:
(..) C = H + E(H), which decreases the implicit problem of each block monotonically.

A convolution moves in the metric of some of its patches (`patch_move`), other maps along their gradient
(`gradient_move`, and `plain_move` for a dense layer, τ = ∞).

These are functions of tensors.  In a data-parallel run a rank passes its own rows, and `all_sum` makes sums over rows
those over all ranks, in place: every rank then has the same move.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar, NamedTuple, TypeVar

import torch
from torch import Tensor

from lifted_bregman._linalg import damped_inverse
from lifted_bregman.solvers.gram.rows import Rows, by_row, in_blocks

Left = Callable[[Tensor], Tensor]
"""H (rows, units) ↦ E(H), the error signal once the pre-activations have changed by H."""
Place = Callable[[Tensor], Mapping[str, Tensor]]
"""A matrix (units, n) ↦ its parts by name, in the shapes of the parameters."""
AllSum = Callable[..., None]
AnyFailed = Callable[[bool], bool] | None
"""Whether something failed on any rank, from whether it failed here; None where no rank has other rows."""
Key = TypeVar("Key", bound=Hashable)


def sum_alone(*sums: Tensor) -> None:
    """`all_sum` of one process."""


@dataclass(frozen=True, eq=False)
class Move(ABC):
    """Δ of one layer, before its units get their lengths.  Its numbers stay on the device."""

    squares: Mapping[str, Tensor]
    """s_j, mean squares of the entries of Δ_j or a bound: of each unit, or of each row of each parameter by name."""
    change: Mapping[str, Tensor]
    """q_j, by the same names: with lengths f_j the move changes the layer by √Σ_j f_j² q_j, in root mean square."""
    fallback: Tensor | None
    """Whether a gradient step replaced the solution of a linear system, () of bool; None where there is no system."""

    of_parameters: ClassVar[bool] = False
    """Whether `change` is that of the parameters, and not of the pre-activations."""

    @abstractmethod
    def subtract(self, into: Mapping[str, Tensor], lengths: Mapping[str, Tensor]) -> None:
        """into ← into - lengths·Δ, in place."""


@dataclass(frozen=True, eq=False)
class LowRankMove(Move):
    """Δ = AᵀC/m, multiplied out when it is subtracted."""

    rows: Rows
    C: Tensor
    all_sum: AllSum

    def subtract(self, into: Mapping[str, Tensor], lengths: Mapping[str, Tensor]) -> None:
        D, X, ones, step = (self.C * lengths["unit"]).t(), self.rows.X, self.rows.ones, -1.0 / self.rows.total
        if self.all_sum is sum_alone:
            if X is not None:
                into["weight"].addmm_(D, X, alpha=step)
            if ones is not None:
                into["bias"].addmv_(D, ones.view(-1), alpha=step)
            return
        parts = {} if X is None else {"weight": D @ X}
        if ones is not None:
            parts["bias"] = D @ ones.view(-1)
        self.all_sum(*parts.values())
        for name, part in parts.items():
            into[name].add_(part, alpha=step)


@dataclass(frozen=True, eq=False)
class UnitMove(Move):
    """Δ as a matrix (units, n)."""

    delta: Tensor
    place: Place

    def subtract(self, into: Mapping[str, Tensor], lengths: Mapping[str, Tensor]) -> None:
        for name, part in self.place(self.delta * lengths["unit"][:, None]).items():
            into[name].sub_(part)


@dataclass(frozen=True, eq=False)
class GradientMove(Move):
    """Δ = J_Θᵀ E/m by name, with lengths by name."""

    gradient: Mapping[str, Tensor]

    of_parameters: ClassVar[bool] = True

    def subtract(self, into: Mapping[str, Tensor], lengths: Mapping[str, Tensor]) -> None:
        for name, g in self.gradient.items():
            into[name].addcmul_(by_row(lengths[name], g), g, value=-1.0)


# Sample space


class Metric(NamedTuple):
    """(A Aᵀ/b + tI)⁻¹ of the blocks of one layer."""

    inverse: Tensor
    """(blocks, b, b)."""
    t: Tensor
    """(blocks, 1, 1)."""
    fallback: Tensor
    """Whether a multiple of the identity replaced an inverse of the stack, () of bool."""


def metrics(layers: Sequence[Rows], block: int, damping: float, any_failed: AnyFailed = None) -> list[Metric]:
    """The metrics of layers with equally many rows, in one call for all; `can_stack` says which layers fit.

    block       b >= 1
    damping     τ > 0
    any_failed  whether a factorisation failed on any rank
    """
    first = layers[0]
    count, weighted = -(-len(first) // block), first.root is not None
    filled = len(first) % block > 0
    K = first.present.new_zeros(len(layers) * count, block, block)
    # K = A Aᵀ = X Xᵀ + 1 1ᵀ, block by block
    for rows, part in zip(layers, K.split(count), strict=True):
        if rows.X is not None:
            A = in_blocks(rows.X, block)
            torch.bmm(A, A.mT, out=part)
        if rows.ones is not None and (filled or weighted):
            column = in_blocks(rows.ones, block)
            part.add_(column * column.mT)
    if first.ones is not None and not (filled or weighted):
        K.add_(1.0)
    inverse, t, fallback = damped_inverse(K.div_(block), damping, any_failed)
    parts = zip(inverse.split(count), t.split(count), strict=True)
    return [Metric(M, own, fallback) for M, own in parts]


def stacked_metrics(layers: Mapping[Key, tuple[Rows, int, AnyFailed]], damping: float) -> dict[Key, Metric]:
    """The metrics of layers by key, from their rows and the size b of their blocks; equal ones are solved together."""
    alike: dict[tuple[int | bool, ...], list[Key]] = {}
    for key, (rows, block, _) in layers.items():
        alike.setdefault(can_stack(rows, block), []).append(key)
    found: dict[Key, Metric] = {}
    for group in alike.values():
        _, block, any_failed = layers[group[0]]
        made = metrics([layers[key][0] for key in group], block, damping, any_failed)
        found.update(zip(group, made, strict=True))
    return found


def can_stack(rows: Rows, block: int) -> tuple[int | bool, ...]:
    """Layers with equal answers fit into one call of `metrics`."""
    return rows.columns, block, rows.X is None, rows.ones is None, rows.root is None, len(rows)


def sample_move(
    rows: Rows, metric: Metric, E: Tensor, left: Left | None = None, steps: int = 1, all_sum: AllSum = sum_alone
) -> Move:
    """The mean over blocks of AᵀC/b with (A Aᵀ/b + tI) C = E.

    E      (rows, units), times √w where samples have weights
    left   E(H); needed for more than one step
    steps  inner steps, >= 1
    """
    (here, width), m, b = E.shape, rows.total, metric.inverse.shape[-1]
    blocks = -(-m // b)
    # C = (A Aᵀ/b + tI)⁻¹ G with G = E, then G = H + E(H), H = G - tC
    G = in_blocks(E, b)
    C = torch.bmm(metric.inverse, G)
    for _ in range(steps - 1):
        assert left is not None
        H = torch.addcmul(G, metric.t, C, value=-1.0)
        G = H + in_blocks(left(H.view(-1, width)[:here]), b)
        C = torch.bmm(metric.inverse, G)
    C, G = C.view(-1, width)[:here], G.view(-1, width)[:here]
    along, squares = torch.linalg.vecdot(C, G, dim=0), torch.linalg.vecdot(G, G, dim=0)
    all_sum(along, squares)
    # The mean of independent moves is shorter than each of them by the root of their number.
    along.clamp_(min=0.0).div_(m * rows.columns * blocks)  # rounding may leave less than 0
    squares.div_(m * width * blocks)
    return LowRankMove({"unit": along}, {"unit": squares}, metric.fallback, rows, C, all_sum)


# Weight space


def weight_move(
    rows: Rows, E: Tensor, damping: float, left: Left | None = None, steps: int = 1, all_sum: AllSum = sum_alone
) -> Move:
    """(AᵀA/m + tI)⁻¹ AᵀE/m of the whole batch; arguments as of `sample_move`."""
    m, A = rows.total, rows.matrix
    K, AtG, squares = A.t() @ A, A.t() @ E, torch.linalg.vecdot(E, E, dim=0)
    all_sum(*((AtG, K, squares) if steps == 1 else (AtG, K)))
    inverse, _, fallback = damped_inverse(K.div_(m)[None], damping)
    delta = inverse[0] @ AtG.div_(m)  # (n, units)
    for more in reversed(range(steps - 1)):
        # G = H + E(H) with H = AΔ
        assert left is not None
        H = A @ delta
        G = H + left(H)
        AtG, squares = A.t() @ G, torch.linalg.vecdot(G, G, dim=0)
        all_sum(*((AtG, squares) if more == 0 else (AtG,)))
        delta = inverse[0] @ AtG.div_(m)
    squares.div_(m * E.shape[1])
    place = _dense_place(rows)
    return UnitMove({"unit": delta.square().mean(0)}, {"unit": squares}, fallback, delta.t(), place)


def _dense_place(rows: Rows) -> Place:
    def place(matrix: Tensor) -> dict[str, Tensor]:
        parts = {} if rows.X is None else {"weight": matrix[:, : rows.X.shape[1]]}
        return parts if rows.ones is None else parts | {"bias": matrix[:, -1]}

    return place


def plain_move(rows: Rows, E: Tensor, all_sum: AllSum = sum_alone) -> Move:
    """AᵀE/m, the limit τ → ∞; its mean squares are those for rows of A that are orthogonal to each other."""
    m = rows.total
    # ‖A‖² and Σ_i E_ij²
    inputs = E.new_zeros(()) if rows.X is None else torch.linalg.vector_norm(rows.X).square_()
    if rows.ones is not None:
        inputs = inputs + (len(rows) if rows.root is None else rows.ones.square().sum())
    squares = torch.linalg.vecdot(E, E, dim=0)
    all_sum(inputs, squares)
    # ‖A AᵀE‖ <= ‖A‖² ‖E‖
    change = squares * (inputs.square() / (m**3 * E.shape[1]))
    return LowRankMove({"unit": squares * (inputs / (m**3 * rows.columns))}, {"unit": change}, None, rows, E, all_sum)


# Convolutions, and everything else


def patch_move(A: Tensor, gradient: Tensor, squares: Tensor, places: int, damping: float, place: Place) -> Move:
    """∇ (AᵀA/r + tI)⁻¹ of a convolution, with r of the patches of the batch as the rows A of its inputs.

    With more columns than rows, ∇ (AᵀA/r + tI)⁻¹ = (∇ - ∇Aᵀ (AAᵀ/r + tI)⁻¹ A/r) / t .

    A         (groups, r, n)
    gradient  ∇ = AᵀE/m of all patches, (units, n)
    squares   Σ E² of each unit, over samples and places
    places    how many samples and places these are
    """
    (groups, r, n), units = A.shape, len(gradient)
    G = gradient.view(groups, units // groups, n)
    if n <= r:
        inverse, _, fallback = damped_inverse((A.mT @ A).div_(r), damping)
        delta = torch.bmm(G, inverse)
    else:
        # The trace of AAᵀ/r is that of AᵀA/r: its mean over n is r/n times its mean over r.
        inverse, t, fallback = damped_inverse((A @ A.mT).div_(r), damping * r / n)
        delta = torch.baddbmm(G, torch.bmm(torch.bmm(G, A.mT), inverse), A, alpha=-1.0 / r).div_(t)
    delta = delta.view(units, n)
    change = squares / (places * units)
    return UnitMove({"unit": delta.square().mean(1)}, {"unit": change}, fallback, delta, place)


def gradient_move(gradient: Mapping[str, Tensor], together: bool = False) -> Move:
    """J_Θᵀ E/m itself: for other maps, for shared parameters, and for parameters with a penalty.

    together  one length for all parameters, since a penalty's proximal map belongs to one step size
    """
    count = sum(g.numel() for g in gradient.values())
    if together:
        totals = {name: g.square().sum() for name, g in gradient.items()}
        squares = dict.fromkeys(gradient, torch.stack(list(totals.values())).sum() / count)
        return GradientMove(squares, {name: q / count for name, q in totals.items()}, None, gradient)
    squares = {name: g.square() if g.ndim < 2 else g.flatten(1).square().mean(1) for name, g in gradient.items()}
    change = {name: s * (gradient[name].numel() / (s.numel() * count)) for name, s in squares.items()}
    return GradientMove(squares, change, None, gradient)


def embedding_move(gradient: Tensor, counts: Tensor, places: int, damping: float) -> Move:
    """∇ (AᵀA/m + tI)⁻¹ of an embedding, whose rows A are unit vectors: AᵀA/m = diag(counts/m).

    gradient  ∇ = AᵀE/m, (entries, features)
    counts    how often each entry was looked up, (entries,)
    places    m, the sum of the counts
    """
    share = counts / places
    delta = gradient / (share + damping / len(counts))[:, None]  # the mean eigenvalue is 1/entries
    squares = delta.square().mean(1)
    return UnitMove({"unit": squares}, {"unit": share * squares}, None, delta, lambda matrix: {"weight": matrix})
