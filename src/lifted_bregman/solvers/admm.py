"""The alternating direction method of multipliers on the blocks of E: Appendix B, corrected."""

from __future__ import annotations

from dataclasses import dataclass, field

import torch

from lifted_bregman._arguments import positive, require_count, require_not_negative
from lifted_bregman.problem import LiftedProblem, Point
from lifted_bregman.problem.blocks import Block, ParameterBlock, terms
from lifted_bregman.problem.energies import partial_energy
from lifted_bregman.solvers._admm_blocks import InnerSettings, ResidualBalancing, parameter_block, variable_block
from lifted_bregman.solvers._inner_solver import require_no_anchor
from lifted_bregman.solvers.block_solvers import minimise_block
from lifted_bregman.solvers.coordinate_descent import block_name, require_dense, require_independent
from lifted_bregman.solvers.interface import Batch, Solver, SolverState
from lifted_bregman.solvers.steps import block_values, set_block
from lifted_bregman.solvers.sweeps import OddEven, Sweep


@dataclass
class ADMMState(SolverState):
    """The variables; residuals of the last inner iteration and δ, by names such as "parameters_2", "variables_1"."""

    primal: dict[str, float] = field(default_factory=dict)
    dual: dict[str, float] = field(default_factory=dict)
    coupling: dict[str, float] = field(default_factory=dict)


@dataclass(frozen=True)
class ADMM(Solver[ADMMState]):
    """Coordinate descent on E whose block problems are attacked by ADMM: proximal maps of φ and φ*, and ridge solves.

        Θ_l:  Θ ← argmin (δ/2)‖AΘ - z - μ/δ‖²,     z ← prox_{φ_l*/δ}( AΘ + (x_l - μ)/δ ),     μ ← μ + δ(z - AΘ)
        x_l:  x ← argmin λ_l [ φ_l(x) - <x, z_l + ν> + (δ/2)‖x - v‖² ] + R_l(x),
              z ← prox_{φ*_{l+1}/δ}( f_{l+1}(v) + (x_{l+1} - μ)/δ ),
              v ← argmin λ_{l+1} (δ/2)‖f_{l+1}(v) - z - μ/δ‖² + λ_l (δ/2)‖v - x + ν/δ‖²,
              μ ← μ + δ(z - f_{l+1}(v)),     ν ← ν + δ(v - x)

    with A = [X_{l-1} 1].  One step is one sweep with `inner_steps` iterations for each block.  The ridge is factorised
    once per block visit on its smaller side; only a SquaredL2 penalty or `prox_weight` makes it depend on δ.

    sweep        as for `CoordinateDescent`
    coupling     δ > 0, relative to φ*, whose curvature is at most 1: the first value for every block
    inner_steps  at least 1: the most iterations a block gets in one sweep
    tolerance    >= 0; a block stops early when both residuals are at most this
    balancing    `ResidualBalancing`, or None for a fixed δ
    prox_weight  τ >= 0: adds (τ/2)‖Θ - Θ^j‖² to the Θ-update, which does not move the minimiser
    monotone     a block whose energy rose goes back and takes one step of `minimise_block` instead, which descends

    Each block's iteration converges to its exact minimiser (two blocks, convex; constant δ from `balancing.until` on).
    A point that minimises every block is left where it is.  With `monotone` E never increases.  With one inner step the
    Θ-update is the step of length 1/δ in the ridge metric, and the x-update the proximal gradient step 1/(λ_l δ).

    The residuals are in the norm of the augmented Lagrangian, √(λ_l/s)‖z - AΘ‖ and so on; the certificate of Θ_l is at
    most √L (primal + dual), L the block's curvature.  Metrics: `primal_residual` and `dual_residual`, the largest over
    blocks; `inner_iterations`, in total.  Corrections of the print: (W, b) are one solve, with z + μ/δ; v keeps its
    coupling to x; multipliers are added to; (x, z), then v, then the multipliers.

    Example:
        >>> X = torch.linspace(-1, 1, 20).reshape(-1, 1)
        >>> line = nn.Linear(1, 1)
        >>> result = lb.fit(lb.lift(line, loss=lb.SquaredError()), (X, 2 * X + 1), solver=lb.ADMM(), epochs=5)
        >>> round(line.weight.item(), 1), round(line.bias.item(), 1)
        (2.0, 1.0)
    """

    sweep: Sweep = field(default_factory=OddEven)
    coupling: float = 1.0
    inner_steps: int = 20
    tolerance: float = 0.0
    balancing: ResidualBalancing | None = field(default_factory=ResidualBalancing)
    prox_weight: float = 0.0
    monotone: bool = True

    def __post_init__(self) -> None:
        positive(self.coupling, "coupling")
        require_count(self.inner_steps, "inner_steps")
        for name in ("tolerance", "prox_weight"):
            require_not_negative(getattr(self, name), name)

    def require(self, problem: LiftedProblem) -> None:
        require_independent(self, self.sweep, problem.links)
        require_dense(self, problem, "CoordinateDescent or ProximalGradient")
        biased = [layer.path for layer in problem.network if "bias" in layer.map.parameters]
        if biased:
            missing = f"the bias of {biased[0]} is moved without it; take CoordinateDescent() or prox_weight=0"
            require_no_anchor(self, problem, missing)

    def init(self, problem: LiftedProblem, batch: Batch) -> ADMMState:
        return ADMMState(variables=problem.forward_state(batch.X, check=False))

    def step(self, problem: LiftedProblem, state: ADMMState, batch: Batch) -> ADMMState:
        assert state.variables is not None
        point, inner = problem.point(state.variables, batch.X, batch.Y), 0
        for group in self.sweep.groups(problem.links):
            for block in group:
                inner += self._solve(problem, point, block, state)
        state.variables = point.state
        state.metrics = {
            "primal_residual": max(state.primal.values(), default=0.0),
            "dual_residual": max(state.dual.values(), default=0.0),
            "inner_iterations": float(inner),
        }
        state.steps += 1
        return state

    def _solve(self, problem: LiftedProblem, point: Point, block: Block, state: ADMMState) -> int:
        values = block_values(problem, point, block)
        if not values:
            return 0  # a frozen layer
        touched = terms(block, problem.links)
        if self.monotone:
            before = float(partial_energy(problem, point, touched))
            kept = {name: value.clone() for name, value in values.items()}
        name = block_name(block)
        run = parameter_block if isinstance(block, ParameterBlock) else variable_block
        settings = InnerSettings(self.inner_steps, self.tolerance, self.prox_weight, self.balancing)
        result = run(problem, point, block.layer, state.coupling.get(name, self.coupling), settings)
        state.primal[name], state.dual[name], state.coupling[name] = result.primal, result.dual, result.coupling
        rounding = 4.0 * torch.finfo(point.dtype).eps
        if self.monotone and not float(partial_energy(problem, point, touched)) <= before * (1.0 + rounding):
            set_block(problem, point, block, kept)
            minimise_block(problem, point, block, tolerance=0.0, iterations=1)
        return result.iterations
