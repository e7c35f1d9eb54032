"""ADMM on the parameters with a multiplier for every sample, of which a batch is renewed at a time.

The Θ_l-block of the lifted energy is min (λ_l/s) Σ_i [ φ_l*(z_i) - <x_i, z_i> ] + P_l(V) subject to z_i = A_iΘ for
every sample i and V = Θ, where A_i is a row of [X_{l-1} 1].  Its augmented Lagrangian has the multipliers -p_i and ν,

    (λ_l/s) Σ_i [ φ*(z_i) - <x_i, z_i> - <p_i, z_i - A_iΘ> + (δ/2)‖z_i - A_iΘ‖² ] + P(V) + <ν, V - Θ> + (ρ/2)‖V - Θ‖² .

Θ minimises a quadratic, whose matrix and right-hand side are sums over samples:

    Θ M = λ_l C + ν + ρV,     M = λ_l δ K + ρI,     K = (1/s) Σ_i A_iᵀA_i,     C = (1/s) Σ_i (δz_i - p_i)ᵀA_i .

Given Θ, every z_i, and V, are proximal maps: with r_i = δA_iΘ + x_i + p_i,

    p_i⁺ = prox_{δφ}(r_i) - x_i,   z_i⁺ = (r_i - prox_{δφ}(r_i))/δ,   V⁺ = prox_{P/ρ}(Θ - ν/ρ),   ν⁺ = ν + ρ(V⁺ - Θ) .

ADMM is the Douglas-Rachford iteration v ← Tv, v_i = A_iΘ + p_i/δ and v_V = Θ - ν/ρ, for an operator T that is firmly
non-expansive in the norm Σ_i (λδ/s)‖v_i‖² + ρ‖v_V‖²; z_i, p_i, V and ν are functions of v.  This norm is a sum over
samples, so that a random part of the samples may be renewed, v_i ← (Tv)_i for i in B, while the others wait, and the
iterates still converge almost surely for every δ and ρ (Iutzeler et al. 2013; Combettes and Pesquet 2015).  K and C
stay up to date by what the batch's rows change, so that a step costs one batch and one linear system.

Without a penalty P, and with `SquaredL2`, which goes into M, V⁺ = Θ and ν = 0: then ρ is the weight of a proximal term
around the last Θ.

Rate.  If T satisfies ‖Tv - v*‖² <= (1 - κ)‖v - v*‖², a block that is drawn with probability π_b gives

    E Σ_b ‖v_b⁺ - v_b*‖²/π_b = Σ_b ‖v_b - v_b*‖²/π_b - ‖v - v*‖² + ‖Tv - v*‖² <= (1 - κ min π) Σ_b ‖v_b - v_b*‖²/π_b .

For a squared error φ*(z) = ½‖z‖², whose reflection v ↦ 2z - v has the slope (δ - 1)/(δ + 1).  Without V (ρ = 0)
T = ½(I + R'R) with R' non-expansive, and 1 - κ = ¼(1 + |δ - 1|/(δ + 1))², which is ¼ for δ = 1: one of m batches at
random makes the expected squared distance smaller by the factor 1 - 3/(4m), whatever the data.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import ClassVar

import torch
from torch import Tensor

from lifted_bregman._arguments import positive, require_count, require_not_negative
from lifted_bregman._linalg import Cholesky, factorise
from lifted_bregman._no_graph import no_graph
from lifted_bregman.penalties import SquaredL2
from lifted_bregman.problem import LiftedProblem, Point
from lifted_bregman.problem.blocks import hidden_layers, layers
from lifted_bregman.solvers._admm_blocks import InnerSettings, conjugate_prox, variable_block, write_parameters
from lifted_bregman.solvers._descent import rms
from lifted_bregman.solvers._packing import dense_map, design, packed, unpacked, weight_columns
from lifted_bregman.solvers._persistent import (
    PersistentState,
    fetch,
    set_rows,
    set_rows_of_all_ranks,
    start_variables,
    store,
)
from lifted_bregman.solvers.coordinate_descent import require_dense
from lifted_bregman.solvers.interface import Batch, Solver, lacking

_FLOOR = 1e-12  # of the mean eigenvalue of M: where ρ is smaller, this proximal term makes M definite


@dataclass
class StochasticADMMState(PersistentState):
    """Per sample x_l, the dual variables p and the targets δz - p; the sums K and C over samples that determine Θ."""

    duals: dict[int, Tensor] = field(default_factory=dict)
    """p_i by term, a row for each sample."""
    targets: dict[int, Tensor] = field(default_factory=dict)
    """δz_i - p_i by term, a row for each sample: what A_iΘ is fitted to, times δ."""
    gram: dict[int, Tensor] = field(default_factory=dict)
    """K by term, in float64; samples that were not visited yet are left out."""
    products: dict[int, Tensor] = field(default_factory=dict)
    """C by term, (out, in), in float64."""
    solution: dict[int, Tensor] = field(default_factory=dict)
    """Θ by term, (out, in), where it differs from V, the parameters of the model."""
    multipliers: dict[int, Tensor] = field(default_factory=dict)
    """ν by term, (out, in), where a penalty makes Θ and V differ."""
    known: Tensor = field(default_factory=lambda: torch.zeros(0, dtype=torch.bool))
    """Which samples are part of the sums, (samples of the set,)."""

    def __post_init__(self) -> None:
        self.factors: dict[int, Cholesky] = {}
        """Of M, while K stays the same: computed again after a state was loaded."""


@dataclass(frozen=True)
class StochasticADMM(Solver[StochasticADMMState]):
    """min over (Θ, X) of E by ADMM, whose multipliers are renewed for one batch B of samples at a time.

        x_l ← `inner_steps` iterations of ADMM on the block x_l, as in `ADMM`,                  for i in B, l = L-1 .. 1
        p_i ← prox_{δφ_l}( δA_iΘ_l + x_i + p_i ) - x_i,    z_i by Moreau's identity                       for i in B
        Θ_l ← argmin (λ_l/s) Σ_i [ <p_i, A_iΘ> + (δ/2)‖z_i - A_iΘ‖² ] + P_l(Θ) + (ρ/2)‖Θ - Θ_l‖²   over all samples

    A_i is a row of [X_{l-1} 1].  Every sample keeps x, z and p from visit to visit, so that Θ_l is solved from the
    whole set although a step reads one batch; no step size is needed.  A P_l that is neither absent nor `SquaredL2`
    acts on a copy V of Θ with a multiplier (top of this module), and the network has V: feasible, with exact zeros.

    Guaranteed for one layer and batches drawn at random: Θ converges to a minimiser almost surely, for every δ and ρ.
    For a squared error with P_l absent or `SquaredL2` and ρ = 0, batches drawn from a partition into m parts make the
    expected squared distance fall like (1 - 3/(4m))^k with δ = 1, whatever the data.  With the batches of an epoch in a
    random order without replacement, and for deeper networks, convergence is only observed.

    coupling     δ > 0, relative to φ*, whose curvature is at most 1.  Deep networks have diverged with δ below 1
    damping      ρ = damping·λ_l δ times the mean of K's diagonal, >= 0; > 0 where a penalty needs the copy V
    inner_steps  at least 1: iterations on each x_l.  One is the proximal gradient step of length 1/(λ_l δ)

    Metrics: `primal_residual`, the largest √(λ_l/|B|)‖z - AΘ‖ of a term over the batch; `residual` of the last term.

    Example:
        >>> solver = lb.StochasticADMM()
        >>> X = torch.linspace(-1, 1, 20).reshape(-1, 1)
        >>> line = nn.Linear(1, 1)
        >>> problem = lb.lift(line, loss=lb.SquaredError())
        >>> result = lb.fit(problem, (X, 2 * X + 1), solver=solver, epochs=15, batch_size=5)
        >>> round(line.weight.item(), 1), round(line.bias.item(), 1)
        (2.0, 1.0)
    """

    minibatch: ClassVar[bool] = True
    indexed: ClassVar[bool] = True
    weighted: ClassVar[bool] = True
    data_parallel: ClassVar[bool] = True

    coupling: float = 1.0
    damping: float = 0.1
    inner_steps: int = 2

    def __post_init__(self) -> None:
        positive(self.coupling, "coupling")
        require_not_negative(self.damping, "damping")
        require_count(self.inner_steps, "inner_steps")

    def require(self, problem: LiftedProblem) -> None:
        require_dense(self, problem, "CoordinateDescent or ProximalGradient")
        copied = [l for l in layers(problem.depth) if _copied(problem, l)]
        if copied and self.damping == 0.0:
            penalty = problem.parameter_penalties[copied[0]]
            required = "damping > 0 where a penalty acts on a copy of the parameters"
            raise lacking(self, required, f"damping is 0, and layer {copied[0]} has {penalty!r}")

    def init(self, problem: LiftedProblem, batch: Batch) -> StochasticADMMState:
        state = StochasticADMMState()
        start_variables(problem, state, batch)
        point = fetch(problem, state, batch)
        for layer in _trained(problem):
            z, theta = point.x[layer], packed(dense_map(problem, layer))
            state.duals[layer] = z.new_zeros((batch.total, *z.shape[1:]))
            state.targets[layer] = torch.zeros_like(state.duals[layer])
            state.gram[layer] = theta.new_zeros((theta.shape[1],) * 2, dtype=torch.float64)
            state.products[layer] = torch.zeros_like(theta, dtype=torch.float64)
            if _copied(problem, layer):
                state.solution[layer], state.multipliers[layer] = theta, torch.zeros_like(theta)
        state.known = torch.zeros_like(state.visited)
        return state

    @no_graph
    def step(self, problem: LiftedProblem, state: StochasticADMMState, batch: Batch) -> StochasticADMMState:
        old = fetch(problem, state, batch)
        point = batch.point(problem, old.state)
        # x_{L-1}, ..., x_1
        settings = InnerSettings(self.inner_steps, 0.0, 0.0, None)
        for layer in reversed(hidden_layers(problem.depth)):
            variable_block(problem, point, layer, self.coupling, settings)
        # z_i and p_i of the batch, then Θ_l
        residuals = [0.0]
        for layer in _trained(problem):
            residuals.append(self._renew(problem, state, batch, layer, old, point))
            self._solve(problem, state, layer)
            point.parameters_changed(layer)
        state.known[set_rows_of_all_ranks(batch)] = True
        store(state, batch, point)
        state.metrics["primal_residual"] = max(residuals)
        state.steps += 1
        return state

    def _renew(
        self, problem: LiftedProblem, state: StochasticADMMState, batch: Batch, layer: int, old: Point, point: Point
    ) -> float:
        """z_i and p_i of the batch from A_iΘ, and what they change of K and C; √λ times the rms of z - AΘ."""
        own, f, delta = problem.network[layer], dense_map(problem, layer), self.coupling
        A, z = design(f, point.read(layer)), point.z(layer)
        if layer in state.solution:  # the model has V
            z = z + (A @ (state.solution[layer] - packed(f)).t()).view_as(z)
        # p⁺ = prox_{δφ}(δAΘ + x + p) - x; a sample starts with p = σ(AΘ) - x, at which z = AΘ
        index = set_rows(batch)
        known = state.known[index].view(-1, *[1] * (z.ndim - 1))
        last = torch.where(known, state.duals[layer].index_select(0, index) + old.x[layer], own.activate(z))
        copies, q = conjugate_prox(own, torch.add(last, z, alpha=delta), delta)
        problem.work.prox_maps += 1
        p = q - point.x[layer]
        targets = torch.sub(delta * copies, p)
        if len(f.parameters) < len(list(f.module.parameters())):  # A_iΘ without what frozen parameters add
            theta = state.solution.get(layer, packed(f))
            targets.sub_(z - (A @ theta.t()).view_as(z), alpha=delta)
        self._update_sums(problem, state, batch, layer, old, point, targets)
        for table, values in ((state.duals[layer], p), (state.targets[layer], targets)):
            table.index_copy_(0, set_rows_of_all_ranks(batch), point.shard.all_rows(values))
        if layer == problem.depth:
            state.term_metric("residual")[layer] = rms(p, point.shard)
        return math.sqrt(problem.weight(layer)) * rms(q - last, point.shard) / delta  # z - AΘ = (q_old - q)/δ

    def _update_sums(
        self,
        problem: LiftedProblem,
        state: StochasticADMMState,
        batch: Batch,
        layer: int,
        old: Point,
        point: Point,
        targets: Tensor,
    ) -> None:
        """K ← K + (1/s) Σ_{i in B} (A_iᵀA_i - old),   C ← C + (1/s) Σ_{i in B} ((δz_i - p_i)ᵀA_i - old)."""
        f, index = dense_map(problem, layer), set_rows(batch)
        new, last = design(f, point.read(layer)).double(), design(f, old.read(layer)).double()
        was = state.targets[layer].index_select(0, index)  # 0 where the sample is not known
        sums = [_rows(point.weigh(targets)).double().t() @ new - _rows(point.weigh(was)).double().t() @ last]
        if old.read(layer) is not point.read(layer) or not bool(state.known[set_rows_of_all_ranks(batch)].all()):
            # a weight for each row, of which a sample may have several
            ones = new.new_ones(len(index), len(new) // max(1, len(index)), 1)
            now = point.weigh(ones)
            then = point.weigh(state.known[index].view(-1, 1, 1) * ones)
            sums.append((_rows(now) * new).t() @ new - (_rows(then) * last).t() @ last)
            state.factors.pop(layer, None)
        problem.work.parameter_gradients += 1
        point.shard.all_sum(*sums)
        for into, change in zip((state.products[layer], state.gram[layer]), sums, strict=False):
            into.add_(change, alpha=1.0 / batch.total)

    def _solve(self, problem: LiftedProblem, state: StochasticADMMState, layer: int) -> None:
        """Θ = V - (λ(δVK - C) + αV - ν) M⁻¹, M = λδK + α + ρ; then V and ν where a penalty acts on a copy."""
        f, K = dense_map(problem, layer), state.gram[layer]
        stiffness = problem.weight(layer) * self.coupling
        mean = stiffness * float(K.diagonal().mean())
        rho, penalty = self.damping * mean, problem.parameter_penalties.get(layer)
        alpha = float(penalty.weight) if isinstance(penalty, SquaredL2) else 0.0
        on_weights = alpha * weight_columns(f, K)
        factor = state.factors.get(layer)
        if factor is None:

            def system(shift: float) -> Tensor:
                M = stiffness * K
                M.diagonal().add_(on_weights + shift)
                return M

            factor, _ = factorise(system, max(rho, _FLOOR * mean) or 1.0, attempts=4)
            state.factors[layer] = factor
        V = packed(f)
        slope = (V.double() @ K).mul_(stiffness).sub_(state.products[layer], alpha=problem.weight(layer))
        slope += on_weights * V
        nu = state.multipliers.get(layer)
        if nu is not None:
            slope -= nu
        theta = (V - factor.solve(slope.t()).t()).to(V.dtype)
        if nu is not None:
            # V⁺ = prox_{P/ρ}(Θ - ν/ρ), ν⁺ = ν + ρ(V⁺ - Θ)
            state.solution[layer] = theta
            ahead = unpacked(f, theta - nu / rho)
            theta = torch.empty_like(theta)
            for name, value in problem.parameter_prox(layer, ahead, 1.0 / rho).items():
                unpacked(f, theta)[name].copy_(value)
            nu.add_(theta - state.solution[layer], alpha=rho)
        write_parameters(f, unpacked(f, theta))


def _trained(problem: LiftedProblem) -> list[int]:
    """The terms with trained parameters."""
    return [layer for layer in layers(problem.depth) if problem.network[layer].map.parameters]


def _copied(problem: LiftedProblem, layer: int) -> bool:
    """Whether a penalty acts on a copy of Θ_l."""
    penalty = problem.parameter_penalties.get(layer)
    trained = "weight" in problem.network[layer].map.parameters
    return trained and penalty is not None and not isinstance(penalty, SquaredL2)


def _rows(t: Tensor) -> Tensor:
    return t.reshape(-1, t.shape[-1])
