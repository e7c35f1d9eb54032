"""Block coordinate descent: exact minimisation of one block after another, and its explicit variant (Appendix B)."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from lifted_bregman._arguments import require_count, require_not_negative
from lifted_bregman.graph import Links
from lifted_bregman.maps import Dense
from lifted_bregman.problem import LiftedProblem, Point
from lifted_bregman.problem.blocks import Block, ParameterBlock, independent
from lifted_bregman.solvers.block_solvers import minimise_block
from lifted_bregman.solvers.interface import Batch, Solver, SolverState, lacking
from lifted_bregman.solvers.requirements import require_affine
from lifted_bregman.solvers.steps import CurvatureStep
from lifted_bregman.solvers.sweeps import OddEven, Sweep


@dataclass
class CoordinateDescentState(SolverState):
    """The variables, and how exactly each block was minimised, by names such as "parameters_2" and "variables_1"."""

    residuals: dict[str, float] = field(default_factory=dict)
    iterations: dict[str, int] = field(default_factory=dict)


@dataclass(frozen=True)
class CoordinateDescent(Solver[CoordinateDescentState]):
    """min over (Θ, X) of E by exact minimisation over one block after another, others fixed.

        Θ_l ← argmin_{Θ_l} E + (τ/2)‖Θ_l - Θ_l^k‖²          x_l ← argmin_{x_l} E

    Each block is convex and is solved by `minimise_block` to the tolerance, with its certificate.  One step is one
    sweep.  E never increases.  Where every block has one minimiser (x-blocks always have; Θ-blocks with a SquaredL2
    penalty, with τ > 0, or with independent columns of [X_{l-1} 1] and a strictly increasing σ_l) limit points of the
    iterates are stationary.

    sweep             `OddEven` (the appendix: all Θ, odd x, even x), `TopDown`, `BottomUp` or `Permutation`; blocks of
                      one group must not share a term of E, which rules out `Jacobi`
    tolerance         >= 0; a block is solved when its prox-gradient residual is at most this
    block_iterations  at least 1; a block that has not converged after these keeps its last iterate, and
                      `block_residual` shows its residual
    prox_weight       τ >= 0; makes Θ-blocks strongly convex without moving the stationary points

    Metrics: `block_residual`, the largest residual of a block after its minimisation; `sweep_residual`, the largest one
    before it, which tends to 0; `block_iterations`, in total.  Appendix B; its Θ_l-block is printed without λ_l/s and
    without penalties, for one sample.

    Example:
        >>> X = torch.linspace(-1, 1, 20).reshape(-1, 1)
        >>> problem = lb.lift(nn.Sequential(nn.Linear(1, 8), nn.ReLU(), nn.Linear(8, 1)), loss=lb.SquaredError())
        >>> result = lb.fit(problem, (X, X.abs()), solver=lb.CoordinateDescent(), epochs=3)
        >>> result.history[-1]["energy"] < result.history[0]["energy"]
        True
    """

    sweep: Sweep = field(default_factory=OddEven)
    tolerance: float = 1e-9
    block_iterations: int = 1000
    prox_weight: float = 0.0

    def __post_init__(self) -> None:
        require_block_settings(self.tolerance, self.block_iterations)
        require_not_negative(self.prox_weight, "prox_weight")

    def require(self, problem: LiftedProblem) -> None:
        require_affine(self, problem, "which make every block convex")
        require_independent(self, self.sweep, problem.links)

    def init(self, problem: LiftedProblem, batch: Batch) -> CoordinateDescentState:
        return CoordinateDescentState(variables=problem.forward_state(batch.X, check=False))

    def step(self, problem: LiftedProblem, state: CoordinateDescentState, batch: Batch) -> CoordinateDescentState:
        assert state.variables is not None
        point = problem.point(state.variables, batch.X, batch.Y)
        met = 0.0
        for group in self.sweep.groups(problem.links):
            for block in group:
                met = max(met, self._solve(problem, point, block, state))
        state.variables = point.state
        state.metrics = {
            "block_residual": max(state.residuals.values()),
            "sweep_residual": met,
            "block_iterations": float(sum(state.iterations.values())),
        }
        state.steps += 1
        return state

    def _solve(self, problem: LiftedProblem, point: Point, block: Block, state: CoordinateDescentState) -> float:
        prox_weight = self.prox_weight if isinstance(block, ParameterBlock) else 0.0
        solution = minimise_block(
            problem, point, block, tolerance=self.tolerance, iterations=self.block_iterations, prox_weight=prox_weight
        )
        name = block_name(block)
        state.residuals[name], state.iterations[name] = solution.residual, solution.iterations
        return solution.initial_residual


@dataclass
class BregmanCoordinateDescentState(SolverState):
    """The variables, and the memory of the step rule."""

    step_memory: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class BregmanCoordinateDescent(Solver[BregmanCoordinateDescentState]):
    """Coordinate descent with a Bregman distance that makes the block updates explicit (Appendix B).

        Θ_l ← argmin_{Θ_l} E + D_J(Θ_l, Θ_l^k),   J = (1/2t)‖·‖² - H,   E = G + H with H the smooth part

    H cancels except for its linearisation, so that this is the proximal gradient step (eq. 17) with step t:

        G(Θ) + H(Θ) + D_J(Θ, Θ^k) = G(Θ) + <∇H(Θ^k), Θ> + (1/2t)‖Θ - Θ^k‖² + constant .

    With `explicit_variables` the method is `ProximalGradient` with the same sweep and `CurvatureStep(factor)`; without,
    Θ is explicit and x exact, as the appendix proposes.  J is convex for t <= 1/L, factor <= 1; E never increases for
    factor < 2.  The appendix prints J with E for H, which is the same where Θ has no penalty.

    sweep               as for `CoordinateDescent`
    factor              t = factor/L, in (0, 2)
    explicit_variables  whether the x-blocks are explicit too
    tolerance           of exact x-blocks
    block_iterations    of exact x-blocks

    Metrics: `block_residual`, the largest residual of an exact x-block after its minimisation; 0 if there are none.

    Example:
        >>> solver = lb.BregmanCoordinateDescent()
        >>> X = torch.linspace(-1, 1, 20).reshape(-1, 1)
        >>> line = nn.Linear(1, 1)
        >>> result = lb.fit(lb.lift(line, loss=lb.SquaredError()), (X, 2 * X + 1), solver=solver, epochs=20)
        >>> round(line.weight.item(), 1), round(line.bias.item(), 1)
        (2.0, 1.0)
    """

    sweep: Sweep = field(default_factory=OddEven)
    factor: float = 1.0
    explicit_variables: bool = True
    tolerance: float = 1e-9
    block_iterations: int = 1000

    def __post_init__(self) -> None:
        CurvatureStep(self.factor)
        require_block_settings(self.tolerance, self.block_iterations)

    def require(self, problem: LiftedProblem) -> None:
        require_affine(self, problem, "which make every block convex")
        require_independent(self, self.sweep, problem.links)

    def init(self, problem: LiftedProblem, batch: Batch) -> BregmanCoordinateDescentState:
        return BregmanCoordinateDescentState(variables=problem.forward_state(batch.X, check=False))

    def step(
        self, problem: LiftedProblem, state: BregmanCoordinateDescentState, batch: Batch
    ) -> BregmanCoordinateDescentState:
        assert state.variables is not None
        point, rule, left = problem.point(state.variables, batch.X, batch.Y), CurvatureStep(self.factor), 0.0
        for group in self.sweep.groups(problem.links):
            explicit = [block for block in group if self.explicit_variables or isinstance(block, ParameterBlock)]
            if explicit:
                rule.update(problem, point, explicit, state.step_memory)
            for block in group:
                if block not in explicit:
                    found = minimise_block(
                        problem, point, block, tolerance=self.tolerance, iterations=self.block_iterations
                    )
                    left = max(left, found.residual)
        state.variables = point.state
        state.metrics = {"block_residual": left}
        state.steps += 1
        return state


def block_name(block: Block) -> str:
    """The name of a block in states and metrics, such as parameters_2 or variables_1."""
    return f"{'parameters' if isinstance(block, ParameterBlock) else 'variables'}_{block.layer}"


def require_block_settings(tolerance: float, block_iterations: int) -> None:
    """Raises `SettingError` unless tolerance >= 0 and block_iterations >= 1."""
    require_not_negative(tolerance, "tolerance")
    require_count(block_iterations, "block_iterations")


def require_dense(solver: Solver[Any], problem: LiftedProblem, instead: str) -> None:
    """Raises `CompatibilityError` unless every map is dense; `instead` names solvers that take others."""
    others = [layer.path for layer in problem.network if not isinstance(layer.map, Dense)]
    if others:
        required = "dense layers (nn.Linear, also after Flatten), whose ridge problems it solves"
        raise lacking(solver, required, f"{', '.join(others)} is none; take {instead}")


def require_independent(solver: Solver[Any], sweep: Sweep, links: Links) -> None:
    """Raises `CompatibilityError` unless blocks that are updated together share no term of E."""
    coupled = next((group for group in sweep.groups(links) if not independent(group, links)), None)
    if coupled is not None:
        required = "a sweep whose groups hold no two blocks of one term (OddEven, TopDown, BottomUp, Permutation)"
        raise lacking(solver, required, f"{sweep} updates {coupled} at once")
