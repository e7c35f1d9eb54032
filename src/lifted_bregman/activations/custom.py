"""An activation from any non-decreasing 1-Lipschitz function of one number.

Exactly these functions are proximal maps of one number.  The conjugate comes from a table of integrals, the potential
and the proximal maps from roots between the table's edges.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from dataclasses import dataclass, field, replace

import numpy as np
import torch
from torch import Tensor, nn

from lifted_bregman.activations.base import Separable
from lifted_bregman.activations.roots import increasing_root
from lifted_bregman.errors import NotProximalError, SettingError

ScalarFunction = Callable[[Tensor], Tensor]


@dataclass(frozen=True)
class FromScalar(Separable):
    """σ = any non-decreasing 1-Lipschitz function of one number, for instance `FromScalar(F.logsigmoid)`.

    function  maps float32 and float64 tensors, number by number, to new tensors of the same shape and dtype
    name      shown in messages; the function's own name by default

    Both properties are checked at construction, in both precisions, on about 17,000 points of [-1e6, 1e6], denser near
    0, at random places and where the function is steepest and flattest.  A counter-example raises `NotProximalError`.

    φ*(z) = ∫_0^z σ(t) dt, so that φ*(0) = 0, which fixes the additive constant that σ leaves open.  A table holds the
    integral at the edges of cells that grow with their distance from 0 and are halved where two Gauss rules
    disagree, as at kinks; from an edge to z the 16-point rule is used.

    Ψ(x) = x s - φ*(s) - ½x² for any s with σ(s) = x.  Near pieces of slope 1 it is computed as
    ∫_0^s (t - σ(t)) dt - ½(s - x)², which does not cancel there.  The ends of the range belong to the domain, as the
    function returns them in the working precision.

    prox_{cΨ}(v) = σ(s) with σ(s) + c (s - σ(s)) = v, whose left side increases in s with slopes between min(1, c) and
    max(1, c).  It is solved in float64 between two edges of the table, with at most 66 evaluations of the left side,
    about 10 as a rule.  The result is as good as the function: near slope 1, c > 1 magnifies its rounding error by c.

    Example:
        >>> act = lb.activations.FromScalar(lambda z: z.clamp(min=0.0) / 2)
        >>> z = torch.linspace(-3, 3, 7)
        >>> act(z)
        tensor([0.0000, 0.0000, 0.0000, 0.0000, 0.5000, 1.0000, 1.5000])
        >>> act.conjugate(torch.tensor([2.0]))
        tensor(1.)
        >>> lb.activations.FromScalar(torch.square)
        Traceback (most recent call last):
            ...
        lifted_bregman.errors.NotProximalError: FromScalar(square) is no proximal map: it decreases ...
    """

    function: ScalarFunction
    name: str | None = None
    _table: _Table = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        if not callable(self.function):
            raise SettingError(f"FromScalar was given {self.function!r}; it needs a function from tensors to tensors.")
        label = f"FromScalar({self.name or getattr(self.function, '__name__', type(self.function).__name__)})"
        if isinstance(self.function, nn.Module) and any(True for _ in self.function.parameters()):
            raise SettingError(
                f"{label} has parameters; a potential must stay the same while a network is trained: give it a "
                "function whose numbers are fixed."
            )
        with torch.no_grad(), torch.device("cpu"):
            ranges = {dtype: _examine(self.function, label, dtype) for dtype in (torch.float64, torch.float32)}
            object.__setattr__(self, "_table", _tabulate(self.function, ranges))

    def __repr__(self) -> str:
        """The same text in every process, so that a run can be resumed in another one."""
        of = self.function
        own = repr(of) if isinstance(of, nn.Module) else getattr(of, "__qualname__", type(of).__qualname__)
        return f"FromScalar({own}{'' if self.name is None else f', name={self.name!r}'})"

    def compute_map(self, z: Tensor) -> Tensor:
        u = self.function(z)
        return u.clone() if u.data_ptr() == z.data_ptr() else u

    def compute_prox(self, z: Tensor, scale: float) -> Tensor:
        table, v, c = self._table.to(z.device), z.double().flatten(), scale

        def residual(s: Tensor, rows: Tensor) -> Tensor:
            u = self.function(s)
            return u + c * (s - u) - v[rows]

        # The cell of the table in which σ(s) + c (s - σ(s)) = v has its root, then the root
        at_edges = (table.values + c * (table.edges - table.values)).cummax(0).values
        cell = (torch.searchsorted(at_edges, v) - 1).clamp(0, len(at_edges) - 2)
        low, high, below, above = increasing_root(residual, table.edges[cell], table.edges[cell + 1])
        if c < 1.0:  # where u is small beside s, the equation gives more digits of u than σ at a rounded s
            u = ((v - c * low) / (1.0 - c)).clamp(self.function(low), self.function(high))
        else:
            u = self.function(torch.where(below.abs() < above.abs(), low, high))
        return torch.where(v.isnan(), v, u).to(z.dtype).view(z.shape)

    def _psi(self, x: Tensor) -> Tensor:
        table = self._table.to(x.device)
        y = x.double().flatten().clamp(float(table.values[0]), float(table.values[-1]))
        # s with σ(s) = y, in the cell nearest to 0
        right = (torch.searchsorted(table.values, y) - 1).clamp(min=table.zero)
        left = torch.searchsorted(table.values, y, right=True) - 1
        cell = torch.where(y >= table.values[table.zero], right, left).clamp(0, len(table.edges) - 2)
        s = increasing_root(lambda s, rows: self.function(s) - y[rows], table.edges[cell], table.edges[cell + 1])[1]
        # y s - φ*(s) - ½y², or ∫ (t - σ(t)) dt - ½(s - y)² where that cancels less
        phi_star, gap = table.integral(self.function, s), table.integral(self.function, s, of_gap=True)
        half_gap, half_square = 0.5 * (s - y).square(), 0.5 * y * y
        cancelling = (y * s).abs() + phi_star.abs() + half_square
        psi = torch.where(gap.abs() + half_gap <= cancelling, gap - half_gap, y * s - phi_star - half_square)
        return psi.to(x.dtype).view(x.shape)

    def _phi_star(self, z: Tensor) -> Tensor:
        return self._table.to(z.device).integral(self.function, z.double()).to(z.dtype)

    def _inside(self, x: Tensor) -> Tensor:
        low, high = self._table.ranges[x.dtype]
        return (x >= low) & (x <= high)


# The property


def _examine(function: ScalarFunction, label: str, dtype: torch.dtype) -> tuple[float, float]:
    """The range of `function` in `dtype`; raises if it is no proximal map."""
    magnitudes = torch.cat([torch.logspace(-12, 6, 3601, dtype=dtype), torch.linspace(0, 12, 3073, dtype=dtype)])
    z = (torch.cat([-magnitudes, magnitudes]) + 0.0).unique()  # -0.0 becomes 0.0
    u = _evaluate(function, z, label)
    _require_elementwise(function, z, u, label)
    generator = torch.Generator().manual_seed(0)
    for _ in range(8):
        _require_proximal(function, z, u, label)
        slack = _rounding(z, u)
        rise, run, slack = u.diff(), z.diff(), slack[1:] + slack[:-1]
        extreme = [((sign * rise - slack) / run).topk(128).indices for sign in (1.0, -1.0)]  # steepest, flattest
        cell = torch.cat([*extreme, torch.randint(len(run), (256,), generator=generator)])
        fraction = torch.rand(len(cell), generator=generator, dtype=dtype)
        z = torch.cat([z, z[cell] + fraction * (z[cell + 1] - z[cell])]).unique()
        u = _evaluate(function, z, label)
    far = [function(_far_points(function, precision)).to(dtype) for precision in (dtype, torch.float64)]
    reached = torch.cat([u, *far])
    reached = reached[reached.isfinite()]
    return float(reached.min()), float(reached.max())


def _evaluate(function: ScalarFunction, z: Tensor, label: str) -> Tensor:
    # It runs on tensors
    given = z.clone()
    try:
        u = function(given)
    except Exception as error:
        known = getattr(function, "__name__", "")
        use = f"use torch.{known}" if callable(getattr(torch, known, None)) else "write it with functions of torch"
        raise SettingError(
            f"{label} raised {type(error).__name__} for a tensor of shape {tuple(z.shape)} ({error}); it must take "
            f"tensors and treat each number alone: {use}."
        ) from error
    # It returns a new, finite tensor of the same shape and dtype
    if not isinstance(u, Tensor) or u.shape != z.shape or u.dtype != z.dtype:
        returned = f"{tuple(u.shape)} of {u.dtype}" if isinstance(u, Tensor) else type(u).__name__
        raise NotProximalError(
            f"{label} turned a tensor of shape {tuple(z.shape)} of {z.dtype} into {returned}; it must return a tensor "
            "of the same shape and dtype."
        )
    if not torch.equal(given, z):
        raise NotProximalError(f"{label} changed its input in place; it must return a new tensor.")
    if not bool(u.isfinite().all()):
        first = int((~u.isfinite()).flatten().nonzero()[0])
        raise NotProximalError(
            f"{label} is {float(u.flatten()[first])} at z = {float(z.flatten()[first]):.6g} in {z.dtype}; it must be "
            "finite on [-1e6, 1e6]: write it so that it does not overflow, as F.softplus does for log(1 + e^z)."
        )
    return u


def _require_elementwise(function: ScalarFunction, z: Tensor, u: Tensor, label: str) -> None:
    some, one = slice(None, None, 7), slice(9000, 9001)
    elsewhere = torch.cat(
        [_evaluate(function, z[some].view(1, -1, 1), label).flatten(), _evaluate(function, z[one], label)]
    )
    apart = float((elsewhere - torch.cat([u[some], u[one]])).abs().max())
    if apart > 1e-4:
        raise NotProximalError(
            f"{label} returns other values, by up to {apart:.3g}, when the same numbers come in another tensor; it "
            "must act on each number alone and without randomness.  For softmax use Softmax()."
        )


def _rounding(z: Tensor, u: Tensor) -> Tensor:
    """A bound of the rounding errors in the evaluation of u = σ(z)."""
    return 16.0 * torch.finfo(z.dtype).eps * (1.0 + z.abs() + u.abs())


def _require_proximal(function: ScalarFunction, z: Tensor, u: Tensor, label: str) -> None:
    """Raises `NotProximalError` with the worst pair z1 < z2 between which σ falls, or rises by more than z2 - z1."""
    slack = _rounding(z, u)
    for rising in (u, z - u):
        highest = (rising - slack).cummax(0)  # over all points further left
        excess = highest.values - (rising + slack)
        second = int(excess.argmax())
        first = int(highest.indices[second])
        if float(excess[second]) <= 0.0:
            continue
        ends, images = z[[first, second]], u[[first, second]]
        if rising is u:
            verdict = "decreases"
            remedy = "Take a non-decreasing function instead, such as Softplus() or ELU() for GELU, SiLU and Mish"
        else:
            ends, images, verdict, remedy = _steep(function, ends, images)
        (z1, z2), (u1, u2) = ends.tolist(), images.tolist()
        raise NotProximalError(
            f"{label} is no proximal map: it {verdict} between z1 = {z1!r} and z2 = {z2!r}, where it is {u1!r} and "
            f"{u2!r} (in {z.dtype}).  A scalar function is one exactly when it is non-decreasing and 1-Lipschitz.  "
            f"{remedy}."
        )


def _steep(function: ScalarFunction, ends: Tensor, images: Tensor) -> tuple[Tensor, Tensor, str, str]:
    """The interval within `ends` where σ rises most above slope 1, its images, what σ does there, and the remedy.

    The interval is halved, towards the half with the larger (u2 - u1) - (z2 - z1), down to 1e-12.  A jump keeps its
    height under halving.  A slope that grows with every halving is unbounded.
    """
    z, u = ends, images
    excess, slope = float(u.diff() - z.diff()), float(u.diff() / z.diff())
    while float(z.diff()) > 1e-12 * (1.0 + float(z.abs().max())):
        middle = 0.5 * (z[:1] + z[1:])
        if not bool((z[:1] < middle) & (middle < z[1:])):
            break
        z, u = torch.cat([z[:1], middle, z[1:]]), torch.cat([u[:1], function(middle), u[1:]])
        half = int((u.diff() - z.diff()).argmax())
        z, u = z[half : half + 2], u[half : half + 2]
    if float(u.diff() - z.diff()) >= 0.5 * excess:
        remedy = (
            "A jump has no largest slope to divide by: take a continuous function instead, such as Box(), a ramp, for "
            "sign and steps, or SoftThreshold() for a hard threshold"
        )
        return z, u, f"jumps by {float(u.diff()):.3g}", remedy
    if float(u.diff() / z.diff()) > 1e3 * slope:
        remedy = "It has no largest slope to divide by: take a function whose slopes are bounded"
        return z, u, f"has slopes that grow without bound, {float(u.diff() / z.diff()):.3g}", remedy
    remedy = "Divide it by its largest slope; the weights of the next layer make up for the factor"
    return ends, images, f"has slope {slope:.6g}, above 1,", remedy


def _far_points(function: ScalarFunction, dtype: torch.dtype) -> Tensor:
    """±2^k from 2^20 to the largest number, as far out on each side as the function keeps its property."""
    largest = torch.finfo(dtype).max
    powers = torch.tensor([2.0**k for k in range(20, math.frexp(largest)[1])] + [largest], dtype=dtype)
    sides = []
    for z in (-powers, powers):
        u = function(z)
        slope, unit = u.diff() / z.diff(), 16.0 * torch.finfo(dtype).eps
        kept = u.isfinite()[1:] & (slope >= -unit * (1.0 + u[1:].abs()) / z.diff().abs()) & (slope <= 1.0 + unit)
        sides.append(z[: 1 + int(kept.long().cumprod(0).sum())])
    return torch.cat([sides[0].flip(0), sides[1]])


# The table of integrals


@functools.cache
def _gauss(points: int) -> list[tuple[float, float]]:
    """Nodes in [0, 1] and weights of the Gauss-Legendre rule."""
    nodes, weights = np.polynomial.legendre.leggauss(points)
    return [(0.5 + 0.5 * float(node), 0.5 * float(weight)) for node, weight in zip(nodes, weights, strict=True)]


def _integrate(function: ScalarFunction, start: Tensor, length: Tensor, points: int = 16) -> Tensor:
    total = torch.zeros_like(start)
    for node, weight in _gauss(points):
        total += weight * function(start + node * length)
    return total * length


@dataclass(frozen=True, eq=False)
class _Table:
    """σ, ∫_0 σ(t) dt and ∫_0 (t - σ(t)) dt at the edges of cells, in float64."""

    edges: Tensor
    values: Tensor
    integrals: Tensor
    gaps: Tensor
    zero: int
    """The index of the edge 0."""
    ranges: dict[torch.dtype, tuple[float, float]]
    """The least and the largest value of σ in each precision."""

    def to(self, device: torch.device) -> _Table:
        if self.edges.device == device:
            return self
        names = ("edges", "values", "integrals", "gaps")
        return replace(self, **{name: getattr(self, name).to(device) for name in names})

    def integral(self, function: ScalarFunction, y: Tensor, of_gap: bool = False) -> Tensor:
        """∫_0^y of σ(t), or of t - σ(t): from the table up to the last edge before y, then by quadrature."""
        last = torch.searchsorted(self.edges, y, right=True) - 1
        edge = torch.where(y < 0.0, torch.searchsorted(self.edges, y), last).clamp(max=len(self.edges) - 1)
        start = self.edges[edge]
        if of_gap:
            return self.gaps[edge] + _integrate(lambda t: t - function(t), start, y - start)
        return self.integrals[edge] + _integrate(function, start, y - start)


_ROUNDS, _CELLS_PER_ROUND = 128, 256


def _tabulate(function: ScalarFunction, ranges: dict[torch.dtype, tuple[float, float]]) -> _Table:
    """Cells from 2^-30 outwards, eight for each factor of 2, halved until two Gauss rules agree up to rounding."""
    far, zero = _far_points(function, torch.float64), torch.zeros(1, dtype=torch.float64)
    near = torch.tensor([2.0**k * (1.0 + j / 8.0) for k in range(-30, 20) for j in range(8)], dtype=torch.float64)
    edges = torch.cat([far[far < 0.0], -near.flip(0), zero, near, far[far > 0.0]])
    start, end = edges[:-1], edges[1:]
    # Halve the cells with the largest errors
    error = _quadrature_error(function, start, end)
    for _ in range(_ROUNDS):
        worst = error.topk(min(_CELLS_PER_ROUND, len(error)))
        chosen = worst.indices[worst.values > 0.0]
        if not chosen.numel():
            break
        middle = _middle(start, end)[chosen]
        kept = torch.ones_like(error, dtype=torch.bool).index_fill(0, chosen, False)
        halves = torch.cat([start[chosen], middle]), torch.cat([middle, end[chosen]])
        start, end = torch.cat([start[kept], halves[0]]), torch.cat([end[kept], halves[1]])
        error = torch.cat([error[kept], _quadrature_error(function, *halves)])
    # Integrals from 0 outwards, of σ(t) and of t - σ(t)
    edges = torch.cat([start, edges[-1:]]).sort().values
    start, length, first = edges[:-1], edges.diff(), int((edges < 0.0).sum())
    sums = []
    for integrand in (function, lambda t: t - function(t)):
        cells = _integrate(integrand, start, length)
        outwards = -cells[:first].flip(0).cumsum(0).flip(0), cells[first:].cumsum(0)
        sums.append(torch.cat([outwards[0], zero, outwards[1]]))
    return _Table(edges, function(edges).cummax(0).values, sums[0], sums[1], first, ranges)


def _middle(start: Tensor, end: Tensor) -> Tensor:
    return start + 0.5 * (end - start)


def _quadrature_error(function: ScalarFunction, start: Tensor, end: Tensor) -> Tensor:
    """How far two Gauss rules differ on each cell, relative to 1 + z², the growth of φ*; 0 if rounding explains it."""
    length, middle = end - start, _middle(start, end)
    error = (_integrate(function, start, length) - _integrate(function, start, length, points=10)).abs()
    size = torch.maximum(start.abs() + function(start).abs(), end.abs() + function(end).abs())
    rounding = 8.0 * torch.finfo(torch.float64).eps * size * length
    real = (error > rounding) & error.isfinite() & (middle > start) & (middle < end)
    return torch.where(real, error / (1.0 + size.square()), 0.0)
