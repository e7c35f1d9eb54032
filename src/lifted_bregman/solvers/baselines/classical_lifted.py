"""Classical lifted networks (Askari et al. 2018): eq. 7, which train an affine network."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import ClassVar

from torch import Tensor

from lifted_bregman._arguments import require_count
from lifted_bregman.activations import Activation, BallProjection, Box, Identity, ReLU, Sparsemax
from lifted_bregman.problem import LiftedProblem
from lifted_bregman.problem.blocks import hidden_layers
from lifted_bregman.solvers._inner_solver import require_no_anchor
from lifted_bregman.solvers._shares import own_variables, whole_variables
from lifted_bregman.solvers.baselines._block_descent import BlockDescentState, sweep_blocks
from lifted_bregman.solvers.interface import Batch, Solver, lacking
from lifted_bregman.solvers.steps import CurvatureStep, StepRule
from lifted_bregman.solvers.sweeps import Sweep, TopDown

PROJECTIONS: tuple[type[Activation], ...] = (Identity, ReLU, Box, Sparsemax, BallProjection)
"""The activations that are projections onto their domain."""


@dataclass(frozen=True)
class ClassicalLifted(Solver[BlockDescentState]):
    """min over (Θ, X) of the classical lifted energy by block coordinate descent.

        (1/s) Σ_i [ ℓ(y, z_L) + Σ_{l<L} ( (λ_l/2) ‖x_l - z_l‖² + R_l(x_l) ) ] + Σ_l P_l(Θ_l)      with x_l in dom Ψ_l

    It takes λ_l/2 where eq. 7 prints the factor 1: the printed problem has λ_l = 2.  The activation is kept only as the
    constraint, so it must be a projection: σ_l(z) is then the nearest x_l to z, and

        ½‖x - z‖² = B_l(x, z) + ½‖z - σ_l(z)‖²      for x in dom Ψ_l .

    The second term, which the Bregman loss takes off, pulls z_l into the domain.  With a bias, stationary points have
    mean(z_l - x_l) = 0, for one sample z_l = x_l: the trained network acts affinely on almost all samples (Table 2).

    One step is one sweep.  The energy never increases for Gauss-Seidel sweeps with `CurvatureStep` over affine maps,
    and for any sweep with `Backtracking`; limit points are stationary.  `metrics["start_energy"]` is the energy
    before the step.

    sweep        the order of the blocks
    step_rule    the step-size rule
    inner_steps  proximal gradient steps on each block before the next one, at least 1

    Example:
        >>> from lifted_bregman.solvers import CurvatureStep
        >>> solver = lb.baselines.ClassicalLifted(step_rule=CurvatureStep(1.0))
        >>> X = torch.linspace(-1, 1, 20).reshape(-1, 1)
        >>> line = nn.Linear(1, 1)
        >>> result = lb.fit(lb.lift(line, loss=lb.SquaredError()), (X, 2 * X + 1), solver=solver, epochs=30)
        >>> round(line.weight.item(), 1), round(line.bias.item(), 1)
        (2.0, 1.0)
    """

    data_parallel: ClassVar[bool] = True

    sweep: Sweep = field(default_factory=TopDown)
    step_rule: StepRule = field(default_factory=CurvatureStep)
    inner_steps: int = 1

    def __post_init__(self) -> None:
        require_count(self.inner_steps, "inner_steps")

    def require(self, problem: LiftedProblem) -> None:
        self.sweep.groups(problem.links)
        missing = "its energy (eq. 7) is made from the penalties alone; take ProximalGradient() or prox_weight=0"
        require_no_anchor(self, problem, missing)
        for layer in hidden_layers(problem.depth):
            own = problem.network[layer]
            if not isinstance(own.activation, PROJECTIONS):
                names = ", ".join(kind.__name__ for kind in PROJECTIONS)
                raise lacking(
                    self,
                    f"hidden activations that are projections onto a convex set ({names})",
                    f"{own.activation} after {own.path} (layer {layer}) is none",
                )

    def init(self, problem: LiftedProblem, batch: Batch) -> BlockDescentState:
        return BlockDescentState(variables=whole_variables(batch.shard, problem.forward_state(batch.X, check=False)))

    def step(self, problem: LiftedProblem, state: BlockDescentState, batch: Batch) -> BlockDescentState:
        assert state.variables is not None
        relaxed = classical_problem(problem)
        point = batch.point(relaxed, own_variables(batch.shard, state.variables))
        state.metrics["start_energy"] = float(relaxed.energy_at(point))
        sweep_blocks(relaxed, point, self.sweep, self.step_rule, self.inner_steps, state.step_memory)
        state.variables = whole_variables(batch.shard, point.state)
        state.steps += 1
        return state


def classical_problem(problem: LiftedProblem) -> LiftedProblem:
    """The classical lifted problem on the same parameters: energy, gradients and proximal maps of eq. 7.

    Its energy does not count the constraints x_l in dom Ψ_l; its proximal maps satisfy them.

    Example:
        >>> problem = lb.lift(nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 2)), loss=lb.SquaredError())
        >>> classical = lb.baselines.classical_problem(problem)
        >>> X, Y = torch.randn(10, 3), torch.randn(10, 2)
        >>> state = problem.forward_state(X)
        >>> (classical.energy(state, X, Y) >= problem.energy(state, X, Y)).item()
        True
    """
    return _ClassicalProblem(problem)


class _ClassicalProblem(LiftedProblem):
    """½‖x - z‖² is the Bregman loss of the identity; the constraint enters through the proximal map alone."""

    def __init__(self, original: LiftedProblem) -> None:
        *hidden, top = original.network.layers
        network = replace(original.network, layers=(*(replace(layer, activation=Identity()) for layer in hidden), top))
        super().__init__(network, original.loss, original.weights, original.penalties, original.parameter_penalties)
        self.work, self.border = original.work, original.border
        self._original = original

    def variable_prox(self, layer: int, v: Tensor, step: float, smooth_quadratic: bool = False) -> Tensor:
        # Ψ_l is an indicator, so that its scale λ_l is immaterial: the original's proximal map is this problem's too.
        return self._original.variable_prox(layer, v, step, smooth_quadratic)
