"""Fenchel lifted networks (Gu et al. 2020), Appendix A: the lifted Bregman energy of monotone scalar activations."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar

from lifted_bregman._arguments import require_count
from lifted_bregman.activations import (
    ELU,
    ISRU,
    Activation,
    Arctan,
    Asinh,
    Identity,
    LeakyReLU,
    ReLU,
    Sigmoid,
    Softplus,
    Softsign,
    Tanh,
)
from lifted_bregman.problem import LiftedProblem
from lifted_bregman.problem.blocks import hidden_layers, layers
from lifted_bregman.solvers._shares import own_variables, whole_variables
from lifted_bregman.solvers.baselines._block_descent import (
    BlockDescentState,
    sweep_blocks,
)
from lifted_bregman.solvers.interface import Batch, Solver, lacking
from lifted_bregman.solvers.steps import CurvatureStep, StepRule
from lifted_bregman.solvers.sweeps import Sweep, TopDown

STRICTLY_INCREASING: tuple[type[Activation], ...] = (
    Identity, LeakyReLU, Tanh, Sigmoid, Softplus, ELU, Softsign, Arctan, ISRU, Asinh
)  # fmt: skip


@dataclass(frozen=True)
class FenchelLifted(Solver[BlockDescentState]):
    """min over (Θ, X) of the Fenchel lifted energy by block coordinate descent.

        (1/s) Σ_i [ ℓ(y, z_L) + Σ_{l<L} λ_l B_l(x_l, z_l) ]

    The constraint x = σ(z) is written as B(x, z) <= 0 with a biconvex B, and moved into the objective by multipliers
    λ_l.  For ReLU B(v, u) = ½v² + ½max(u, 0)² - uv, v >= 0.  For strictly increasing σ it is, number by number,

        B(v, u) = ∫_0^u σ(t) dt + ∫_{σ(0)}^v σ⁻¹(t) dt - uv + const = φ*(u) + φ(v) - uv

    with the constant that makes its minimum 0.  Both are the Bregman loss (eq. 12), so the energy is that of the lifted
    problem, and what is Gu's own is the restriction, enforced here: ReLU or strictly increasing scalar activations,
    affine maps, no penalties on variables.  The printed Lagrangian has λ_l B(x_{l+1}, ..): its indices are off by one.

    One step is one sweep over the blocks, each of which is convex and is improved by several proximal gradient steps.
    The energy never increases for Gauss-Seidel sweeps with `CurvatureStep`, and for any sweep with `Backtracking`;
    limit points are stationary.  The order of the blocks is ours.  `metrics["start_energy"]` is the energy before the
    step.

    sweep        the order of the blocks
    step_rule    the step-size rule
    inner_steps  proximal gradient steps on each block before the next one, at least 1

    Example:
        >>> X = torch.linspace(-1, 1, 20).reshape(-1, 1)
        >>> problem = lb.lift(nn.Sequential(nn.Linear(1, 8), nn.ReLU(), nn.Linear(8, 1)), loss=lb.SquaredError())
        >>> result = lb.fit(problem, (X, X.abs()), solver=lb.baselines.FenchelLifted(), epochs=5)
        >>> result.history[-1]["energy"] < result.history[0]["energy"]
        True
    """

    data_parallel: ClassVar[bool] = True

    sweep: Sweep = field(default_factory=TopDown)
    step_rule: StepRule = field(default_factory=CurvatureStep)
    inner_steps: int = 10

    def __post_init__(self) -> None:
        require_count(self.inner_steps, "inner_steps")

    def require(self, problem: LiftedProblem) -> None:
        self.sweep.groups(problem.links)
        for layer in hidden_layers(problem.depth):
            own = problem.network[layer]
            if not isinstance(own.activation, (ReLU, *STRICTLY_INCREASING)):
                names = ", ".join(kind.__name__ for kind in STRICTLY_INCREASING)
                raise lacking(
                    self,
                    f"hidden activations that are ReLU or known to be strictly increasing ({names})",
                    f"{own.activation} after {own.path} (layer {layer}) is neither",
                )
        for layer in layers(problem.depth):
            if not problem.network[layer].map.affine:
                raise lacking(
                    self,
                    "maps that are affine in x and in Θ, so that every block is convex",
                    f"{problem.network[layer].path} (layer {layer}) is not known to be",
                )
        if problem.penalties:
            raise lacking(
                self,
                "a problem without penalties on variables",
                f"penalties are set for layers {sorted(problem.penalties)}; use ProximalGradient",
            )

    def init(self, problem: LiftedProblem, batch: Batch) -> BlockDescentState:
        return BlockDescentState(variables=whole_variables(batch.shard, problem.forward_state(batch.X, check=False)))

    def step(self, problem: LiftedProblem, state: BlockDescentState, batch: Batch) -> BlockDescentState:
        assert state.variables is not None
        point = batch.point(problem, own_variables(batch.shard, state.variables))
        state.metrics["start_energy"] = float(problem.energy_at(point))
        sweep_blocks(problem, point, self.sweep, self.step_rule, self.inner_steps, state.step_memory)
        state.variables = whole_variables(batch.shard, point.state)
        state.steps += 1
        return state
