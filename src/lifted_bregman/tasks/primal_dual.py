"""Inversion of one layer: a convex problem, solved by the primal-dual hybrid gradient method with a certified gap."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from lifted_bregman._arguments import positive
from lifted_bregman._no_graph import no_graph
from lifted_bregman.errors import CompatibilityError
from lifted_bregman.graph.terms import sum_features
from lifted_bregman.penalties import TotalVariation
from lifted_bregman.penalties.plane import SQUARED_NORM, differences, differences_adjoint, project
from lifted_bregman.penalties.scalar import Scalar
from lifted_bregman.penalties.sums import prox_from, split
from lifted_bregman.tasks._inverse_problem import InverseProblem, inner_product
from lifted_bregman.tasks.inversion_solver import InversionProgress, InversionSolver, InversionState

_FIRST_BALANCE = 40  # steps before the ratio of dual to primal steps is changed for the first time


class _Penalty(NamedTuple):
    """J in two parts: total variation, which gets a dual variable, and g, which enters by its proximal map."""

    tv: TotalVariation | None
    g: Scalar | None
    """g, a function of each number; None if it is another penalty, of which only the proximal map is known."""


@dataclass
class PrimalDualState(InversionState):
    """Primal and dual variables, and the ratio of their steps."""

    z: Tensor
    """Wu + b."""
    p: Tensor
    """The dual variable of the layer: at a solution σ(z) - y."""
    q: Tensor | None
    """The dual variable of total variation, |q| <= its weight."""
    slope: Tensor
    """(v - u)/τ, a subgradient of g at u, from the last proximal map u = prox_{τg}(v)."""
    ratio: float
    """ω: σ = ω σ_0 and τ = τ_0/ω."""
    norm: float
    """An upper bound of ‖W‖₂²."""
    steps: int = 0
    anchor: tuple[Tensor, ...] = ()
    """u, p and q when the ratio was chosen last."""


@dataclass(frozen=True)
class PrimalDualInversion(InversionSolver[PrimalDualState]):
    """min_u B_Ψ(y, Wu + b) + w TV(u) + g(u), for one layer with an affine map: a convex problem.

    With G(z) = B_Ψ(y, z), whose conjugate is G*(p) = φ(p + y) - φ(y), a step is (Chambolle and Pock, 2011)

        u⁺ = prox_{τg}( u - τ(Wᵀp + Dᵀq) )
        p⁺ = prox_{σG*}( p + σ(W(2u⁺ - u) + b) ),    prox_{σG*}(v) = prox_{σΨ/(1+σ)}( (v + y)/(1 + σ) ) - y
        q⁺ = P_{|q| <= w}( q + σ' D(2u⁺ - u) ),      τ(σ‖W‖² + σ'‖D‖²) <= 1

    so that the activation enters only by its proximal map.  The norms are guaranteed bounds.  After 40, 80, 160,
    .. steps the ratio of dual to primal steps is set to that of the distances the variables have moved since.

    Certified: with r = Wᵀp + Dᵀq split into r_in, for which m = min_v <r_in, v> + g(v) is finite, and the rest r_ex,

        gap = E(u) + G*(p) - <b, p> - m - <r_ex, u> + radius·‖r_ex‖,    E(u) - E(v) <= gap·max(1, ‖v - u‖/radius)

    for every input v, whatever the iterates are.  Where g has `SquaredL2` or bounds both sides, r_ex = 0 and the factor
    is 1 (radius is infinity).  Otherwise radius = max(1, ‖u‖), and the factor comes from convexity along the line from
    u to v.  It holds up to the rounding of the model's dtype.

    ratio  > 0, the first ω

    Example:
        >>> layer, u = nn.Linear(3, 4), torch.rand(1, 3)
        >>> found = lb.invert(layer, layer(u).detach(), solver=lb.PrimalDualInversion(ratio=2.0))
        >>> torch.allclose(found.input, u, atol=1e-2)
        True
    """

    ratio: float = 1.0

    def __post_init__(self) -> None:
        positive(self.ratio, "ratio")

    def require(self, inverse: InverseProblem) -> None:
        if not inverse.convex:
            terms = inverse.problem.depth
            which = f"{terms} layers" if terms > 1 else "a map that is not affine"
            raise CompatibilityError(
                f"PrimalDualInversion inverts one layer with an affine map, and the model has {which}: leave solver "
                "out, or take DescentInversion()."
            )

    @no_graph
    def init(self, inverse: InverseProblem, start: Tensor) -> PrimalDualState:
        point = inverse.point(start, ())
        tv = _split_penalty(inverse).tv
        q = None if tv is None else start.new_zeros((tv.dims, *start.shape))
        p = point.sigma(1) - inverse.y
        norm = max(_squared_norm(inverse, start), torch.finfo(start.dtype).tiny)
        return PrimalDualState(start, [], point.z(1), p, q, torch.zeros_like(start), self.ratio, norm)

    @no_graph
    def step(self, inverse: InverseProblem, state: PrimalDualState) -> PrimalDualState:
        layer, (tv, g) = inverse.problem.network[1], _split_penalty(inverse)
        u, z, p, q, y = state.u, state.z, state.p, state.q, inverse.y
        sigma = state.ratio / state.norm
        tau = 1.0 / (state.ratio * (1.0 if tv is None else 2.0))
        # u⁺ = prox_{τg}(u - τ(Wᵀp + Dᵀq))
        v = u - tau * _pull_back(inverse, state)
        if g is None:
            assert inverse.penalty is not None
            new, _ = prox_from(inverse.penalty, v, tau)
        else:
            new = g.prox(v, tau)
        slope = (v - new) / tau
        # p⁺ = prox_{σΨ/(1+σ)}((v + y)/(1 + σ)) - y, with W(2u⁺ - u) + b = 2z⁺ - z
        new_z = layer.map.apply(new)
        v = p + sigma * (2.0 * new_z - z) + y
        new_p = layer.prox(v / (1.0 + sigma), sigma / (1.0 + sigma)) - y
        # q⁺ = P(q + σ' D(2u⁺ - u)), σ' = ω/‖D‖²
        new_q = q
        if tv is not None and q is not None:
            ahead = q + (state.ratio / SQUARED_NORM[tv.dims]) * differences(2.0 * new - u, tv.dims)
            new_q = project(ahead, float(tv.weight), tv.isotropic)
        following = PrimalDualState(
            new, [], new_z, new_p, new_q, slope, state.ratio, state.norm, state.steps + 1, state.anchor
        )
        return _balance(following)

    @no_graph
    def progress(self, inverse: InverseProblem, state: PrimalDualState) -> InversionProgress:
        layer, g = inverse.problem.network[1], _split_penalty(inverse).g
        u, p, y = state.u, state.p, inverse.y
        energies = layer.bregman(y, state.z) + inverse.penalties(u)
        # G*(p) - <b, p>, where <b, p> = <z, p> - <Wu, p>
        pulled_p = layer.map.pull_back_input(u, p)
        lower = layer.phi(p + y) - layer.phi(y) - inner_product(state.z, p) + inner_product(u, pulled_p)
        # m and r_ex
        r = _pull_back(inverse, state)
        if g is None:
            least, rest = inverse.penalties(u) - inner_product(u, state.slope), r + state.slope
        else:
            inside, rest = g.split_slope(r)
            least = sum_features(g.least_value(inside))
        bounded = g is not None and (g.l2 > 0.0 or (math.isfinite(g.low) and math.isfinite(g.high)))
        radius = torch.full_like(energies, math.inf) if bounded else u.flatten(1).norm(dim=1).clamp(min=1.0)
        beyond = 0.0 if bounded else radius * rest.flatten(1).norm(dim=1) - inner_product(rest, u)
        gap = (energies + lower - least + beyond).clamp(min=0.0)
        return InversionProgress(energies, gap / (1.0 + energies.abs()), gap, radius)


def _split_penalty(inverse: InverseProblem) -> _Penalty:
    if inverse.penalty is None:
        return _Penalty(None, Scalar())
    base, g = split(inverse.penalty)
    if isinstance(base, TotalVariation):
        return _Penalty(base, g)
    return _Penalty(None, g if base is None else None)


def _pull_back(inverse: InverseProblem, state: PrimalDualState) -> Tensor:
    """Return Wᵀp + Dᵀq."""
    pulled: Tensor = inverse.problem.network[1].map.pull_back_input(state.u, state.p)
    return pulled if state.q is None else pulled + differences_adjoint(state.q)


def _squared_norm(inverse: InverseProblem, u: Tensor) -> float:
    """Return an upper bound of ‖W‖₂²; if the map gives none, an estimate times 1.05."""
    point = inverse.point(u, ())
    try:
        return inverse.problem.variable_curvature(point, 0, upper=True)
    except CompatibilityError:
        return 1.05 * inverse.problem.variable_curvature(point, 0)


def _balance(state: PrimalDualState) -> PrimalDualState:
    """Return the state, with the new ratio √(ω·|dual moved|/|primal moved|) after 40, 80, 160, .. steps."""
    duals = (state.p,) if state.q is None else (state.p, state.q)
    if not state.anchor:
        state.anchor = (state.u, *duals)
    since, remainder = divmod(state.steps, _FIRST_BALANCE)
    if remainder == 0 and since & (since - 1) == 0:
        moved, *others = (float((new - old).norm()) for new, old in zip((state.u, *duals), state.anchor, strict=True))
        dual = math.hypot(*others)
        if moved > 0.0 and dual > 0.0 and math.isfinite(moved) and math.isfinite(dual):
            state.ratio = math.sqrt(state.ratio * dual / moved)
        state.anchor = (state.u, *duals)
    return state
