"""Minimises E over one block, the others fixed, to a verified tolerance."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from lifted_bregman._arguments import require_count, require_not_negative
from lifted_bregman._linalg import norm
from lifted_bregman.errors import SettingError
from lifted_bregman.problem import LiftedProblem, Point
from lifted_bregman.problem.blocks import Block, ParameterBlock
from lifted_bregman.solvers._subproblems import ParameterSubproblem, Subproblem, VariableSubproblem


@dataclass(frozen=True)
class BlockSolution:
    """How exactly a block was minimised.

    Example:
        >>> from lifted_bregman.problem.blocks import ParameterBlock
        >>> from lifted_bregman.solvers import minimise_block
        >>> X = torch.linspace(-1, 1, 20).reshape(-1, 1)
        >>> problem = lb.lift(nn.Linear(1, 1), loss=lb.SquaredError())
        >>> solution = minimise_block(problem, problem.forward_point(X, 2 * X + 1), ParameterBlock(1), tolerance=1e-6)
        >>> solution.converged, solution.residual <= 1e-6
        (True, True)
    """

    residual: float
    """A bound on the block's certificate at the returned point (`LiftedProblem.certificates`), for any step size."""
    initial_residual: float
    """The prox-gradient residual at the start."""
    iterations: int
    """The number of gradients computed."""
    converged: bool
    """Whether the residual is below the tolerance."""


def minimise_block(
    problem: LiftedProblem,
    point: Point,
    block: Block,
    *,
    tolerance: float = 1e-9,
    iterations: int = 1000,
    prox_weight: float = 0.0,
    centre: Mapping[str, Tensor] | None = None,
) -> BlockSolution:
    """Minimises E over one block and moves the point there; the parameters are changed in place.

        Θ_l:  (λ_l/s) Σ_i [ φ_l*(z_l) - <x_l, z_l> ] + P_l(Θ_l) + (τ/2)‖Θ_l - Θ⁰‖²
        x_l:  λ_{l+1} [ φ*_{l+1}(z_{l+1}) - <x_{l+1}, z_{l+1}> ] + λ_l φ_l(x_l) - λ_l <x_l, z_l> + R_l(x_l), each sample

    These are the sub-problems of Appendix B, with weights and penalties.  Both are convex for affine maps, and the
    second is λ_l-strongly convex.  If the map is dense and all terms but φ* are quadratic (P_l none or SquaredL2; for
    x_l an identity σ_l and R_l none or SquaredL2), the steps are taken in the metric of the ridge problem,

        M = (λ_l/s) [X 1]ᵀ[X 1] + τ + P_l''         M = λ_{l+1} W_{l+1} W_{l+1}ᵀ + λ_l + R_l'',

    which majorises the problem because φ* has curvature at most 1.  With an identity activation above, the first step
    is then the solution.  Elsewhere they are proximal gradient steps 1/L with a guaranteed L.  Both are accelerated,
    with the momentum of strongly convex problems where the modulus is known (Chambolle and Pock 2016), and restarted
    where momentum and gradient disagree (O'Donoghue and Candès 2015).

    Stops when the residual is at most `tolerance`, or when the step is lost in rounding: ‖step‖ <= 4 eps ‖block‖, or,
    in the metric of a ridge problem for Θ_l, ‖gradient‖ <= eps (λ_l/s) ‖[X 1]‖ (‖σ_l(z_l)‖ + ‖x_l‖).  The residual is
    ‖M(y - y⁺)‖ at the last step, for x_l a root mean square over samples; where M is not 1/t it is the gradient itself.
    A block whose energy would have risen (too few iterations) is left where it was.

    tolerance    >= 0
    iterations   at least 1
    prox_weight  τ >= 0, for parameter blocks
    centre       Θ⁰ by name; the parameters at the start by default

    Example:
        >>> from lifted_bregman.problem.blocks import ParameterBlock
        >>> from lifted_bregman.solvers import minimise_block
        >>> line, X = nn.Linear(1, 1), torch.linspace(-1, 1, 20).reshape(-1, 1)
        >>> problem = lb.lift(line, loss=lb.SquaredError())
        >>> solution = minimise_block(problem, problem.forward_point(X, 2 * X + 1), ParameterBlock(1), tolerance=1e-6)
        >>> round(line.weight.item(), 1), round(line.bias.item(), 1)
        (2.0, 1.0)
    """
    require_count(iterations, "iterations")
    require_not_negative(prox_weight, "prox_weight")
    if prox_weight != 0.0 and not isinstance(block, ParameterBlock):
        raise SettingError(f"prox_weight is {prox_weight!r} for {block}; it belongs to parameter blocks.")
    if isinstance(block, ParameterBlock):
        if not problem.network[block.layer].map.parameters:
            return BlockSolution(0.0, 0.0, 0, True)
        return _accelerate(ParameterSubproblem(problem, point, block, prox_weight, centre), tolerance, iterations)
    return _accelerate(VariableSubproblem(problem, point, block), tolerance, iterations)


def _accelerate(sub: Subproblem, tolerance: float, limit: int) -> BlockSolution:
    """y⁺ = step(y), then y = y⁺ + β(y⁺ - last y⁺)."""
    start, last, eps = sub.y.clone(), sub.y.clone(), torch.finfo(sub.y.dtype).eps
    before, slack = sub.energy(start), 16.0 * eps * sub.magnitude()
    theta, initial = 1.0, math.nan
    for count in range(1, limit + 1):
        # y⁺, and the residual ‖M(y - y⁺)‖
        new, pull, distance = sub.step()
        residual = norm(pull) / sub.unit
        initial = residual if count == 1 else initial
        lost = distance <= 4.0 * eps * norm(sub.y) or norm(pull) <= sub.rounding()
        if residual <= tolerance or lost or not math.isfinite(residual):
            end = new if sub.ridge is None else sub.y  # the point of the residual; y is published already
            break
        # restart if the step opposes the momentum
        last.sub_(new)
        if float(pull.mul_(last).sum()) < 0.0:
            theta = 1.0
        # θ, β for the modulus q; y = y⁺ + β(y⁺ - last y⁺)
        damped = 1.0 - sub.q * theta * theta
        following = 0.5 * (damped + math.sqrt(damped * damped + 4.0 * theta * theta))
        beta = (theta - 1.0) / following * (1.0 - sub.q * following) / (1.0 - sub.q)
        torch.sub(new, last, alpha=beta, out=sub.y)
        last.copy_(new)
        theta = following
        if count < limit:
            sub.publish(sub.y)
    else:
        end = sub.y = last
        if sub.ridge is not None:
            sub.publish(end)
            residual = norm(sub.gradient()) / sub.unit
    if sub.ridge is None:
        sub.publish(end)
    if sub.energy(end) > before + slack:  # too few iterations, or too large a tolerance
        sub.publish(start)
        residual = initial
    return BlockSolution(residual, initial, count, residual <= tolerance)
