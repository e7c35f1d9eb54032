"""ADMM on one block: the two augmented Lagrangians of Appendix B, as two-block methods.

Both sub-problems have a smooth term of an affine image and a rest, min_v h(Kv) + g(v).  They become

    min h(z) + g(u)  subject to  z = Kv,  u = v

with multipliers μ of the first and ν of the second constraint.  One iteration computes v by a ridge solve, (z, u) by
proximal maps, then μ and ν.  z and u are not coupled.  This is therefore ADMM with two blocks, and converges in either
order of the two.  It starts with z = Kv, u = v and the multipliers that make z and v optimal there, so that a minimiser
is a fixed point.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from lifted_bregman._arguments import positive
from lifted_bregman._linalg import Ridge, norm
from lifted_bregman.errors import SettingError
from lifted_bregman.graph import Layer
from lifted_bregman.maps import Dense
from lifted_bregman.penalties import SquaredL2
from lifted_bregman.problem import LiftedProblem, Point
from lifted_bregman.solvers._packing import design, packed, rows, unpacked, weight_columns


@dataclass(frozen=True)
class ResidualBalancing:
    """Keeps primal and dual residual within a ratio of each other.

        δ ← factor·δ  if primal > ratio·dual,     δ ← δ/factor  if dual > ratio·primal

    after every `every` iterations of a block, up to iteration `until`: convergence needs a δ that is constant in the
    end.  The multipliers are not scaled by δ, and need no change.  (Boyd et al. 2011, Section 3.4.1.)

    ratio   > 1
    factor  > 1
    every   at least 1
    until   at least 0

    Example:
        >>> from lifted_bregman.solvers import ResidualBalancing
        >>> X = torch.linspace(-1, 1, 20).reshape(-1, 1)
        >>> problem = lb.lift(nn.Sequential(nn.Linear(1, 8), nn.ReLU(), nn.Linear(8, 1)), loss=lb.SquaredError())
        >>> result = lb.fit(problem, (X, X.abs()), solver=lb.ADMM(balancing=ResidualBalancing(ratio=5.0)), epochs=5)
        >>> result.history[-1]["energy"] < result.history[0]["energy"]
        True
    """

    ratio: float = 10.0
    factor: float = 2.0
    every: int = 5
    until: int = 100

    def __post_init__(self) -> None:
        for name in ("ratio", "factor"):
            if not positive(getattr(self, name), name) > 1.0:
                raise SettingError(f"{name} is {getattr(self, name)!r}; it must be a number above 1.")
        if not (isinstance(self.every, int) and self.every >= 1 and isinstance(self.until, int) and self.until >= 0):
            raise SettingError(
                f"every is {self.every!r} and until is {self.until!r}; they must be whole numbers of at least 1 and 0."
            )

    def adjusted(self, delta: float, primal: float, dual: float, iteration: int) -> float:
        """δ for the next iteration."""
        if iteration > self.until or iteration % self.every:
            return delta
        if primal > self.ratio * dual:
            return min(delta * self.factor, 1e8)
        return max(delta / self.factor, 1e-8) if dual > self.ratio * primal else delta


@dataclass(frozen=True)
class InnerSettings:
    """The settings of `ADMM` that both block iterations use."""

    iterations: int
    tolerance: float
    prox_weight: float
    balancing: ResidualBalancing | None


@dataclass(frozen=True)
class InnerResult:
    """How the iterations on one block ended."""

    primal: float
    """The primal residual of the last iteration."""
    dual: float
    """The dual residual of the last iteration."""
    coupling: float
    """δ for the next visit of the block."""
    iterations: int
    """The number of iterations done."""


def conjugate_prox(layer: Layer, r: Tensor, delta: float) -> tuple[Tensor, Tensor]:
    """prox_{φ*/δ}(r/δ) and p = prox_{δφ}(r), which make r = δ·(the first) + p (Moreau).

    φ = ½‖·‖² + Ψ, so that p = prox_{δΨ/(1+δ)}( r/(1+δ) ).
    """
    p = layer.prox(r / (1.0 + delta), delta / (1.0 + delta))
    return (r - p).div_(delta), p


def parameter_block(
    problem: LiftedProblem, point: Point, layer: int, delta: float, settings: InnerSettings
) -> InnerResult:
    """Θ_l: min (λ_l/s) Σ [ φ_l*(z) - <x_l, z> ] + P_l(V)  subject to  z = AΘ, V = W, with A = [X_{l-1} 1].

        L = c Σ [ φ*(z) - <x, z> + <μ, z - AΘ> + (δ/2)‖z - AΘ‖² ] + P(V) + ca [ <ν, V - W> + (δ/2)‖V - W‖² ]

    c = λ_l/s, and a is the mean of ‖A_j‖² over the columns of X_{l-1}, which puts both constraints on one scale.  V and
    ν exist only where P_l is neither absent nor SquaredL2; otherwise P_l goes into the ridge solve.  The order is that
    of the appendix: Θ, then (z, V), then the multipliers.  Correction of the print: (W, b) are one solve over [X 1].
    """
    # A = [X_{l-1} 1], Θ and views of it by name, c = λ_l/s
    own, x, c = problem.network[layer], point.x[layer], problem.weight(layer) / point.samples
    f = own.map
    assert isinstance(f, Dense)
    inputs, penalty = point.read(layer), problem.parameter_penalties.get(layer)
    A = design(f, inputs)
    on_weight, theta = weight_columns(f, A), packed(f)
    views = unpacked(f, theta)
    # Where P_l is treated: α of SquaredL2 in the ridge solve, any other P_l in the copy V; a = mean_j ‖A_j‖²
    alpha = float(penalty.weight) if isinstance(penalty, SquaredL2) and not problem.anchors else 0.0
    copied = problem.has_parameter_prox(layer) and (problem.anchors or not isinstance(penalty, SquaredL2))
    a = float(A.square().sum(0).mul_(on_weight).sum() / on_weight.sum().clamp(min=1.0)) or 1.0

    def factorise(delta: float) -> Ridge:
        shared = a * on_weight if copied else torch.zeros_like(on_weight)
        return Ridge(A, c, c * shared + (alpha * on_weight + settings.prox_weight) / delta)

    # Start: z = AΘ, V = W, and the multipliers for which z and Θ are optimal there
    z, mu, slope = point.z(layer), -point.residual(layer), torch.empty_like(theta)
    into = unpacked(f, slope)
    V = views["weight"].clone() if copied else theta
    nu = problem.parameter_gradient(point, layer)["weight"].div_(c * a) if copied else theta
    ridge, eps = factorise(delta), torch.finfo(theta.dtype).eps
    gap = torch.empty_like(V)

    def iterate(delta: float) -> tuple[float, float]:
        nonlocal z, mu, V
        # Θ ← Θ - (Hessian of L in Θ)⁻¹ ∂L/∂Θ, the exact minimiser of L over Θ
        f.accumulate_parameters(inputs, torch.add(mu, z - point.z(layer), alpha=delta), into, scale=-c, decay=0.0)
        problem.work.parameter_gradients += 1
        if alpha:
            into["weight"].add_(views["weight"], alpha=alpha)
        if copied:
            torch.sub(V, views["weight"], out=gap)
            into["weight"].sub_(nu, alpha=c * a).sub_(gap, alpha=c * a * delta)
        size = norm(x) + norm(x - mu) + delta * (norm(z) + norm(point.z(layer)))
        if norm(slope) > eps * c * norm(A) * size:  # a smaller slope is rounding, which would add up in the kernel of A
            theta.sub_(ridge.solve(slope).div_(delta))
            write_parameters(f, views)
            point.parameters_changed(layer)
        # z ← prox_{φ*/δ}( AΘ + (x - μ)/δ ),  μ ← μ + δ(z - AΘ)
        image, last = point.z(layer), z
        z, p = conjugate_prox(own, torch.add(x - mu, image, alpha=delta), delta)
        problem.work.prox_maps += 1
        mu = x - p  # by Moreau's identity
        # Residuals: primal ‖z - AΘ‖², dual ‖z - z_last‖²
        primal, dual = _square(z - image), _square(z - last)
        # V ← prox_{P/(caδ)}( W - ν/δ ),  ν ← ν + δ(V - W)
        if copied:
            moved = V
            ahead = torch.sub(views["weight"], nu, alpha=1.0 / delta)
            V = problem.parameter_prox(layer, {"weight": ahead}, 1.0 / (c * a * delta))["weight"]
            torch.sub(V, views["weight"], out=gap)
            nu.add_(gap, alpha=delta)
            primal, dual = primal + a * _square(gap), dual + a * _square(V - moved)
        return math.sqrt(c * primal), delta * math.sqrt(c * dual)

    def rescaled(delta: float) -> None:
        nonlocal ridge
        if alpha or settings.prox_weight:
            ridge = factorise(delta)

    # Iterations, then W = V
    result = _iterate(iterate, delta, settings, rescaled)
    if copied:
        views["weight"].copy_(V)  # feasible, and exactly sparse where P_l makes it so
        write_parameters(f, views)
        point.parameters_changed(layer)
    return result


def variable_block(
    problem: LiftedProblem, point: Point, layer: int, delta: float, settings: InnerSettings
) -> InnerResult:
    """x_l: min λ_u [ φ_u*(z) - <x_u, z> ] + λ_l [ φ_l(x) - <x, z_l> ] + R_l(x)  subject to  z = f_u(v), v = x; u = l+1.

        L = ... + λ_u [ <μ, z - f_u(v)> + (δ/2)‖z - f_u(v)‖² ] + λ_l [ <ν, v - x> + (δ/2)‖v - x‖² ]

    Corrections of the print: the v-update keeps its coupling to x, and the multipliers are added to.
    """
    # u, the term that reads x_l, and the ridge system of the v-update
    (above,) = problem.links.readers[layer]
    upper = problem.network[above]
    f, own_weight, upper_weight = upper.map, problem.weight(layer), problem.weight(above)
    assert isinstance(f, Dense)
    x_upper, z_own, v = point.x[above], point.z(layer), point.x[layer]
    W = f.module.weight.detach()
    ridge = Ridge(W, upper_weight, W.new_full((W.shape[1],), own_weight))  # the same for every δ
    # Start: z = f_u(v), x = v, and the multipliers for which z and v are optimal there
    image, mu = point.z(above), -point.residual(above)
    nu = f.pull_back_input(v, mu).mul(upper_weight / own_weight)
    problem.work.adjoints += 1
    x = v

    def iterate(delta: float) -> tuple[float, float]:
        nonlocal x, v, image, mu, nu
        # x and z by proximal maps
        x = problem.variable_prox(layer, torch.add(v, z_own + nu, alpha=1.0 / delta), 1.0 / (own_weight * delta))
        z, _ = conjugate_prox(upper, torch.add(x_upper - mu, image, alpha=delta), delta)
        # v ← v - (Hessian of L in v)⁻¹ ∂L/∂v, the exact minimiser of L over v
        pulled = f.pull_back_input(v, torch.add(mu, z - image, alpha=delta))
        slope = torch.add(nu, v - x, alpha=delta).mul_(own_weight).sub_(pulled, alpha=upper_weight)
        move = ridge.solve(rows(f, slope)).div_(delta).reshape(v.shape)
        v = v - move
        last, image = image, f.apply(v)
        problem.work.prox_maps += 1
        problem.work.adjoints += 1
        problem.work.forward_maps += 1
        # μ ← μ + δ(z - f_u(v)),  ν ← ν + δ(v - x); then the residuals
        mu = torch.add(mu, z - image, alpha=delta)
        nu = torch.add(nu, v - x, alpha=delta)
        primal = upper_weight * _square(z - image) + own_weight * _square(v - x)
        dual = upper_weight * _square(image - last) + own_weight * _square(move)
        samples = max(1, len(v))  # a rank may have none
        return math.sqrt(primal / samples), delta * math.sqrt(dual / samples)

    result = _iterate(iterate, delta, settings, lambda delta: None)
    point.set_variable(layer, x)
    return result


def _iterate(
    iterate: Callable[[float], tuple[float, float]],
    delta: float,
    settings: InnerSettings,
    rescaled: Callable[[float], None],
) -> InnerResult:
    for count in range(1, settings.iterations + 1):
        primal, dual = iterate(delta)
        if max(primal, dual) < settings.tolerance or not math.isfinite(primal + dual):
            break
        if settings.balancing is not None:
            adjusted = settings.balancing.adjusted(delta, primal, dual, count)
            if adjusted != delta:
                delta = adjusted
                rescaled(delta)
    return InnerResult(primal, dual, delta, count)


def write_parameters(f: Dense, views: dict[str, Tensor]) -> None:
    """Θ ← values by name, in place."""
    with torch.no_grad():
        for name, parameter in f.parameters.items():
            parameter.copy_(views[name])


def _square(t: Tensor) -> float:
    return float(t.square().sum())
