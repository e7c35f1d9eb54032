"""The stochastic primal-dual hybrid gradient method on the lifted energy as a saddle-point problem.

φ_l* is a supremum, φ_l*(z) = sup_q <z, q> - φ_l(q), attained at q = σ_l(z).  So the lifted energy is

    E(Θ, X) = sup_Q  (1/s) Σ_i Σ_l λ_l [ φ_l(x_l) - φ_l(q_l) + <z_l, q_l - x_l> ] + Σ_l R_l(x_l) + Σ_l P_l(Θ_l)

with a dual variable q_l for each sample and term, in the domain of φ_l as x_l is: x_l minimises and q_l maximises.  The
gradient in Θ_l is (λ_l/s) Σ_i J_Θᵀ p_l with p_l = q_l - x_l, and that in x_{l-1} is λ_l J_xᵀ p_l - λ_{l-1} z_{l-1}:
those of E with p_l in place of σ_l(z_l) - x_l.  The ascent in q_l with step σ is a proximal map of the activation's
potential,

    q⁺ = argmax_q  <z, q> - φ(q) - (1/2σ)‖q - q_old‖² = prox_{σΨ/(1+σ)}( (q_old + σz) / (1 + σ) ),

which tends to σ_l(z) as σ → ∞.

For one layer x_L = y and z = AΘ, so that the saddle function is convex in Θ and concave in Q.  A step draws a batch B
of a partition into m parts and is that of Chambolle, Ehrhardt, Richtárik and Schönlieb (2018):

    q_i ← q_i⁺  for i in B,        Θ ← prox_{τP}( Θ - τ [ g⁺ + m (g⁺ - g) ] ),     g = (1/s) Σ_i A_iᵀ p_i

where g and g⁺ are the means over all samples before and after.  With the norms ‖Θ‖² and (1/s) Σ_i ‖q_i‖², the operator
of the part B has the squared norm ‖A_B‖²/s, and the condition τσ‖A_B‖²/s < 1/m of the method reads

    τ σ L_B < 1,        L_B = ‖A_B‖₂²/|B|,

the curvature of the batch.  As σ → ∞ with τ kept the direction is SAGA's but for the 1 in g⁺ + m(g⁺ - g).  The
table of `SAGA` holds p_i, and the same function moves Θ.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar, NamedTuple

import torch
from torch import Tensor

from lifted_bregman._arguments import positive
from lifted_bregman._no_graph import no_graph
from lifted_bregman.errors import CompatibilityError, SettingError
from lifted_bregman.penalties.sums import split
from lifted_bregman.problem import LiftedProblem, Point
from lifted_bregman.problem.blocks import VariableBlock, blocks_of, hidden_layers, layers
from lifted_bregman.problem.curvature import step_for, variable_curvature
from lifted_bregman.solvers._descent import moved_variable
from lifted_bregman.solvers._gradient_table import REBUILT, TableState, advance, start_table
from lifted_bregman.solvers._persistent import set_rows
from lifted_bregman.solvers.interface import Batch, Solver
from lifted_bregman.solvers.requirements import require_affine
from lifted_bregman.solvers.steps import CurvatureStep


class DualityGap(NamedTuple):
    """A bound on how far E(Θ) is above its minimum: E(Θ) - E(Θ') <= value·max(1, ‖Θ' - Θ‖/radius) for every Θ'."""

    value: float
    radius: float
    """Infinity where the bound holds without the factor."""


@dataclass(frozen=True)
class PrimalDual(Solver[TableState]):
    """min over (Θ, X), max over Q of the lifted energy as a saddle function (top of this module), by stochastic PDHG.

        q_l ← prox_{σΨ_l/(1+σ)}( (q_l + σ z_l) / (1 + σ) ),    p_l = q_l - x_l                    for i in B, l = L .. 1
        x_l ← prox_{tG_l}( x_l - t [ Σ_u λ_u J_xᵀ (p_u + q_u - q_u^old) - λ_l z_l ] )                for i in B, l < L
        Θ_l ← prox_{τP_l}( Θ_l - τ [ g_l⁺ + (s/|B|)(g_l⁺ - g_l) ] ),    g_l = (λ_l/s) Σ_i J_Θᵀ p_l over all samples

    u are the terms that read x_l.  Every sample keeps its x_l and p_l from visit to visit; they start at the forward
    pass and at 0.  The steps satisfy the condition of the method term by term, τσL + tσL_x <= factor, in equal shares:

        τ = factor / (n σ L_l),     t = factor / (n σ L_x),     n the number of blocks that move z_l (1 for one layer)

    with L_l the largest curvature of Θ_l over the batches so far and L_x that of x_l, both estimated and enlarged by
    1 %.

    Guaranteed for one layer and batches drawn at random from a partition into equal parts, where L_l is a bound: Θ
    converges to a minimiser almost surely, and the expected gap of the averaged iterates falls like 1/k (Chambolle et
    al. 2018; Alacaoglu, Fercoq, Cevher 2022).  For strongly convex P_l, and for squared errors, it falls linearly.
    With the batches of an epoch in a random order without replacement, and for deeper networks, convergence is only
    observed.

    dual_step  σ > 0: a large one follows σ_l(z_l) at once and makes τ short
    factor     in (0, 1)

    `gap` certifies how far a network of one layer is from its minimum.

    Example:
        >>> solver = lb.PrimalDual()
        >>> X = torch.linspace(-1, 1, 20).reshape(-1, 1)
        >>> line = nn.Linear(1, 1)
        >>> problem = lb.lift(line, loss=lb.SquaredError())
        >>> result = lb.fit(problem, (X, 2 * X + 1), solver=solver, epochs=20, batch_size=5)
        >>> round(line.weight.item(), 1), round(line.bias.item(), 1)
        (2.0, 1.0)
    """

    minibatch: ClassVar[bool] = True
    indexed: ClassVar[bool] = True
    weighted: ClassVar[bool] = True
    data_parallel: ClassVar[bool] = True

    dual_step: float = 1.0
    factor: float = 0.99

    def __post_init__(self) -> None:
        positive(self.dual_step, "dual_step")
        if not positive(self.factor, "factor") < 1.0:
            raise SettingError(f"factor is {self.factor!r}; the step sizes need a factor below 1.")

    def require(self, problem: LiftedProblem) -> None:
        require_affine(self, problem, REBUILT)

    def init(self, problem: LiftedProblem, batch: Batch) -> TableState:
        return start_table(problem, batch, frozen=True)

    def step(self, problem: LiftedProblem, state: TableState, batch: Batch) -> TableState:
        advance(
            problem,
            state,
            batch,
            step=CurvatureStep(self.factor, upper=False),
            divisor=lambda term: self.dual_step * _moving(problem, term),
            correction=1.0 + batch.total / batch.samples,
            signals=lambda old, point: self._ascend(problem, state, batch, old, point),
        )
        return state

    def _ascend(
        self, problem: LiftedProblem, state: TableState, batch: Batch, old: Point, point: Point
    ) -> dict[int, Tensor]:
        """The batch's q_l and x_{l-1} from the top down; p_l of every term."""
        sigma, index, duals = self.dual_step, set_rows(batch), {}
        ahead: dict[int, Tensor] = {}
        for term in reversed(layers(problem.depth)):
            if term in hidden_layers(problem.depth):  # all terms that read it have their new q
                for reader in problem.links.readers[term]:
                    point.set_residual(reader, ahead[reader])
                point.set_variable(term, self._moved(problem, point, term, state))
            # q⁺ = prox_{σΨ/(1+σ)}( (q + σz)/(1 + σ) ), q = p + x
            q = _unweighted(state.residuals[term].index_select(0, index), batch) + old.x[term]
            ascended = torch.add(q, point.z(term), alpha=sigma).div_(1.0 + sigma)
            new = problem.network[term].prox(ascended, sigma / (1.0 + sigma))
            problem.work.prox_maps += 1
            duals[term] = new - point.x[term]
            ahead[term] = duals[term] + (new - q)
        return duals

    def _moved(self, problem: LiftedProblem, point: Point, variable: int, state: TableState) -> Tensor:
        most = max(_moving(problem, reader) for reader in problem.links.readers[variable])
        bound = variable_curvature(problem, point, variable, state.power, upper=False)
        return moved_variable(problem, point, variable, step_for(self.factor / (most * self.dual_step), bound, point))

    @no_graph
    def gap(self, problem: LiftedProblem, state: TableState, batch: Batch) -> DualityGap:
        """How far Θ is from a minimiser of E, for one layer; the batch is the whole set, in its own order.

        With r = (1/s) Σ_i A_iᵀ p_i split into r_in, for which m = min_V <r_in, V> + P(V) is finite, and the rest r_ex,

            gap = E(Θ) + (1/s) Σ_i [ φ(y + p) - φ(y) - <z - AΘ, p> ] - m - <r_ex, Θ> + radius·‖r_ex‖

        z - AΘ is what frozen parameters contribute.  Where r_ex = 0 whatever p is (P has `SquaredL2` or bounds both
        sides, and no bias is trained) the radius is infinity; otherwise it is max(1, ‖Θ‖), and the factor of
        `DualityGap` comes from convexity along the line from Θ to Θ'.  It holds up to rounding of the model's dtype.
        """
        if problem.depth != 1:
            raise CompatibilityError(
                f"the gap is that of a convex problem, of one layer, and the model has {problem.depth}: look at "
                "problem.certificates instead."
            )
        penalty = problem.parameter_penalties.get(1)
        parts = None if penalty is None else split(penalty)
        if parts is not None and parts.base is not None:
            raise CompatibilityError(
                f"the conjugate of {parts.base!r} is not known, which the gap needs; it is for L1, SquaredL2, "
                "NonNegative, Bounds and their sums."
            )
        layer, point = problem.network[1], batch.point(problem, problem.forward_state(batch.X, check=False))
        p, y = _unweighted(state.residuals[1], batch), batch.Y
        # E(Θ) + (1/s) Σ_i [ φ(y + p) - φ(y) - <z, p> ]
        (lower,) = point.means([layer.phi(y + p) - layer.phi(y) - (point.z(1) * p).flatten(1).sum(1)])
        total = float(problem.energy_at(point)) + float(lower)
        # + <r_in, Θ> - m, where (1/s) Σ_i <AΘ, p> = <r, Θ>; r_ex adds up
        beyond, length, bounded = 0.0, 0.0, True
        for name, theta in layer.map.parameters.items():
            rest, V = state.mean[1][name], theta.detach()
            if parts is not None and V.ndim > 1:
                g = parts.scalar
                inside, rest = g.split_slope(rest)
                total += float((inside * V - g.least_value(inside)).sum())
                bounded = bounded and (g.l2 > 0.0 or (math.isfinite(g.low) and math.isfinite(g.high)))
            else:
                bounded = False
            beyond += float(rest.square().sum())
            length += float(V.square().sum())
        radius = math.inf if bounded else max(1.0, math.sqrt(length))
        return DualityGap(max(0.0, total + (0.0 if bounded else radius * math.sqrt(beyond))), radius)


def _moving(problem: LiftedProblem, term: int) -> int:
    """n, the number of blocks that move z_l: Θ_l and the hidden variables that the term reads."""
    return sum(block != VariableBlock(term) for block in blocks_of(term, problem.links))


def _unweighted(rows: Tensor, batch: Batch) -> Tensor:
    """Rows of the table, which has each sample's weight in it, without the weights."""
    return rows if batch.weights is None else rows / batch.weights.view(-1, *[1] * (rows.ndim - 1))
