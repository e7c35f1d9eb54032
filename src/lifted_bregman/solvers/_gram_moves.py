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
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from lifted_bregman.networks import Dense, LayerMap
from lifted_bregman.solvers._ridge import rows, unpacked

Left = Callable[[Tensor], Tensor]
"""H ↦ E(H), the error signal once the pre-activations have changed by H."""
Lengths = Mapping[str, Tensor]
"""A factor for each unit, or for each row of each parameter."""
_NOTHING = 1e-30  # mean squares of inputs below it are taken for 0


class Move(ABC):
    """Δ of one layer, before each of its units is given a length."""

    fallback: bool = False
    """Whether a gradient step has replaced the solution of a linear system."""
    of_parameters: bool = False
    """Whether `size` is that of the parameters' change, not of the pre-activations'."""
    units: Lengths
    """Mean squares of the entries of Δ, or a bound: one number for each unit, or for each row of each parameter."""

    @abstractmethod
    def size(self, lengths: Lengths) -> float:
        """Root mean square of the change that `lengths`·Δ makes: of the pre-activations, or of the parameters."""

    @abstractmethod
    def subtract(self, into: Mapping[str, Tensor], lengths: Lengths, factor: float) -> None:
        """into ← into - factor·lengths·Δ, in place."""


@dataclass(frozen=True)
class Design:
    """The rows A = [X 1] of a dense layer, or what is trained of them, times the roots of the samples' weights."""

    X: Tensor | None
    """(m, in); None where the weight is frozen."""
    ones: Tensor | None
    """(m, 1); None where there is no bias to train."""
    root: Tensor | None
    """√w_i, (m, 1); None for samples that all count the same."""
    block: int
    """b; 0 for weight space."""

    @property
    def columns(self) -> int:
        """n."""
        return (0 if self.X is None else self.X.shape[1]) + (self.ones is not None)

    @property
    def rows(self) -> int:
        """m."""
        return len(_one(self.X, self.ones))

    @property
    def filled(self) -> bool:
        """Whether the last block is filled up with zeros."""
        return self.rows % self.block > 0

    @property
    def key(self) -> tuple[int, ...]:
        """Designs with the same key can be stacked."""
        return self.columns, self.block, self.X is None, self.ones is None, self.root is None, self.rows

    def subtract(self, into: Mapping[str, Tensor], D: Tensor, factor: float) -> None:
        """into ← into - factor·AᵀD/m, in place."""
        step = -factor / len(D)
        if self.X is not None:
            into["weight"].addmm_(D.t(), self.X, alpha=step)
        if self.ones is not None:
            into["bias"].addmv_(D.t(), self.ones.view(-1), alpha=step)


def design(f: Dense, x: Tensor, weights: Tensor | None, block: int) -> Design:
    """The design of a dense layer with inputs x (s, ...).

    Blocks have at most `block` samples, and half as many as the layer has inputs.  Layers with at most `block` inputs
    are left in weight space, where the metric is that of the whole batch.
    """
    trained, X = f.parameters, rows(f, x)
    root = None
    if weights is not None:
        root = weights.sqrt().repeat_interleave(len(X) // len(weights))[:, None]
    ones = None
    if "bias" in trained:
        ones = X.new_ones(len(X), 1) if root is None else root
    A = None if "weight" not in trained else X if root is None else X * root
    n = X.shape[1]
    blocks = -(-len(X) // min(block, n // 2 or 1))
    return Design(A, ones, root, 0 if n <= block else -(-len(X) // blocks))


class Metric:
    """(A Aᵀ/b + tI)⁻¹ of the blocks of one layer."""

    def __init__(self, inverse: Tensor, t: Tensor, fallback: bool) -> None:
        self.inverse = inverse
        """(blocks, b, b)."""
        self.t = t
        """(blocks, 1, 1)."""
        self.fallback = fallback
        """Whether a multiple of the identity has taken its place."""


def metrics(designs: Sequence[Design], damping: float) -> list[Metric]:
    """The metrics of layers whose designs have the same key, in one call for all."""
    first, b = designs[0], designs[0].block
    each = -(-first.rows // b)
    K = _one(first.X, first.ones).new_zeros(len(designs) * each, b, b)
    for own, part in zip(designs, K.split(each), strict=True):
        if own.X is not None:
            A = _blocks(own.X, b)
            torch.bmm(A, A.mT, out=part)
        if own.ones is not None and (own.filled or own.root is not None):
            column = _blocks(own.ones, b)
            part.add_(column * column.mT)
    if first.ones is not None and not (first.filled or first.root is not None):
        K.add_(1.0)
    inverse, t, fallback = _inverse(K.div_(b), damping)
    parts = zip(inverse.split(each), t.split(each), strict=True)
    return [Metric(M, own, fallback) for M, own in parts]


def _inverse(K: Tensor, damping: float) -> tuple[Tensor, Tensor, bool]:
    """(K + tI)⁻¹ for a stack K (k, n, n) that it uses up, t (k, 1, 1), and whether a multiple of I stands for it."""
    n = K.shape[-1]
    diagonal = K.diagonal(dim1=1, dim2=2)
    mean = diagonal.mean(1, keepdim=True)
    t = mean * max(damping, 100.0 * torch.finfo(K.dtype).eps * n)
    t.masked_fill_(mean < _NOTHING, 1.0 / _NOTHING)  # inputs that are 0 move nothing
    diagonal.add_(t)
    factor, info = torch.linalg.cholesky_ex(K)
    if not info.any():
        return torch.cholesky_inverse(factor), t[:, :, None], False
    identity = torch.eye(n, dtype=K.dtype, device=K.device)  # nothing finite
    return identity / (n * mean + t)[:, :, None], t[:, :, None], True


class SampleMove(Move):
    """The mean over blocks of AᵀC/b, never multiplied out before it is subtracted."""

    def __init__(self, own: Design, metric: Metric, E: Tensor, left: Left, steps: int) -> None:
        m, width = E.shape
        self._design, self.fallback = own, metric.fallback
        G = _blocks(E, own.block)
        C = torch.bmm(metric.inverse, G)
        for _ in range(steps - 1):
            H = torch.addcmul(G, metric.t, C, value=-1.0)
            G = H + _blocks(left(H.view(-1, width)[:m]), own.block)
            C = torch.bmm(metric.inverse, G)
        self._C, E = C.view(-1, width)[:m], G.view(-1, width)[:m]
        # The mean of independent moves is shorter than each of them by the root of their number.
        along = torch.linalg.vecdot(self._C, E, dim=0).clamp_(min=0.0)  # rounding may leave less than 0
        self.units = {"unit": along.div_(m * own.columns * len(G))}
        self._scale = 1.0 / math.sqrt(E.numel() * len(G))
        self._squares = torch.linalg.vecdot(E, E, dim=0)

    def size(self, lengths: Lengths) -> float:
        return _weighted_norm(self._squares, lengths["unit"]) * self._scale

    def subtract(self, into: Mapping[str, Tensor], lengths: Lengths, factor: float) -> None:
        self._design.subtract(into, self._C.mul_(lengths["unit"]), factor)


class PlainMove(Move):
    """AᵀE/m, the limit τ → ∞; its units' mean squares are those for rows of A that are orthogonal to each other."""

    def __init__(self, own: Design, E: Tensor) -> None:
        m = len(E)
        self._design, self._E = own, E
        inputs = 0.0 if own.X is None else float(torch.linalg.vector_norm(own.X)) ** 2
        if own.ones is not None:
            inputs += m if own.root is None else float(own.ones.square().sum())
        self._squares = torch.linalg.vecdot(E, E, dim=0)
        self.units = {"unit": self._squares * (inputs / (m**3 * own.columns))}
        self._scale = inputs / (m * math.sqrt(E.numel()))  # ‖AAᵀE‖ <= ‖A‖²‖E‖

    def size(self, lengths: Lengths) -> float:
        return _weighted_norm(self._squares, lengths["unit"]) * self._scale

    def subtract(self, into: Mapping[str, Tensor], lengths: Lengths, factor: float) -> None:
        self._design.subtract(into, self._E * lengths["unit"], factor)


class WeightMove(Move):
    """(AᵀA/m + tI)⁻¹ AᵀE/m for the whole batch."""

    def __init__(self, f: Dense, own: Design, E: Tensor, damping: float, left: Left, steps: int) -> None:
        m, A = len(E), torch.cat([part for part in (own.X, own.ones) if part is not None], 1)
        inverse, _, self.fallback = _inverse((A.t() @ A).div_(m)[None], damping)
        G = E
        delta = inverse[0] @ (A.t() @ G).div_(m)  # (n, out)
        for _ in range(steps - 1):
            H = A @ delta
            G = H + left(H)
            delta = inverse[0] @ (A.t() @ G).div_(m)
        self._f, self._delta = f, delta
        self.units = {"unit": delta.square().mean(0)}
        self._squares = torch.linalg.vecdot(G, G, dim=0)
        self._scale = 1.0 / math.sqrt(G.numel())

    def size(self, lengths: Lengths) -> float:
        return _weighted_norm(self._squares, lengths["unit"]) * self._scale

    def subtract(self, into: Mapping[str, Tensor], lengths: Lengths, factor: float) -> None:
        for name, part in unpacked(self._f, (self._delta * lengths["unit"]).t()).items():
            into[name].sub_(part, alpha=factor)


class GradientMove(Move):
    """J_Θᵀ E/m itself, for maps that are not dense and for parameters with a penalty.

    A penalty's proximal map belongs to one step size, so that a layer with a penalty has one length for all.
    """

    of_parameters = True

    def __init__(self, f: LayerMap, x: Tensor, E: Tensor, together: bool) -> None:
        self._gradient = f.pull_back_parameters(x, E, 1.0 / len(x))
        self._count = sum(g.numel() for g in self._gradient.values())
        if together:
            total = torch.stack([g.square().sum() for g in self._gradient.values()]).sum()
            self.units = dict.fromkeys(self._gradient, total / self._count)
        else:
            self.units = {
                name: g.square() if g.ndim < 2 else g.flatten(1).square().mean(1) for name, g in self._gradient.items()
            }

    def size(self, lengths: Lengths) -> float:
        moves = [_by_row(lengths[name], g) * g for name, g in self._gradient.items()]
        squares = math.fsum(float(g.square().sum()) for g in moves)
        return math.sqrt(squares / self._count)

    def subtract(self, into: Mapping[str, Tensor], lengths: Lengths, factor: float) -> None:
        for name, g in self._gradient.items():
            into[name].addcmul_(_by_row(lengths[name], g), g, value=-factor)


def dense_move(f: Dense, own: Design, metric: Metric | None, E: Tensor, damping: float, left: Left, steps: int) -> Move:
    """The move of a dense layer.

    own      its design
    metric   of the design's blocks; None in weight space
    E        error signal (s, ...), for which J_Θᵀ E/s is the gradient
    damping  τ > 0, inf for the gradient
    left     E once the pre-activations, (s, ...), have changed; E itself for no change
    steps    inner steps, >= 1
    """
    shape, root = E.shape, own.root
    E = E.reshape(-1, shape[-1])

    def left_of_rows(H: Tensor) -> Tensor:
        if root is None:
            return left(H.view(shape)).reshape(E.shape)
        return left((H / root).view(shape)).reshape(E.shape) * root

    if root is not None:
        E = E * root
    if math.isinf(damping):
        return PlainMove(own, E)
    if metric is not None:
        return SampleMove(own, metric, E, left_of_rows, steps)
    return WeightMove(f, own, E, damping, left_of_rows, steps)


def gradient_move(f: LayerMap, x: Tensor, E: Tensor, weights: Tensor | None, penalised: bool) -> GradientMove:
    """The move of any layer along its gradient; with one length for all of it where the parameters have a penalty."""
    return GradientMove(f, x, E if weights is None else E * _by_row(weights, E), penalised)


def _weighted_norm(squares: Tensor, factors: Tensor) -> float:
    """√Σ_j f_j² q_j."""
    return math.sqrt(float(torch.dot(squares, factors.square())))


def _blocks(values: Tensor, block: int) -> Tensor:
    """Rows (m, k) as (blocks, b, k), filled up with zeros."""
    missing = -len(values) % block
    if missing:
        values = torch.cat((values, values.new_zeros(missing, values.shape[1])))
    return values.view(-1, block, values.shape[1])


def _one(*values: Tensor | None) -> Tensor:
    """The first that is there."""
    return next(value for value in values if value is not None)


def _by_row(values: Tensor, like: Tensor) -> Tensor:
    """values (n,) or () in a shape that multiplies the rows of `like`."""
    return values if values.ndim == 0 else values.view(-1, *[1] * (like.ndim - 1))
