"""Adam with back-propagation, by torch's own fused kernel where there is one."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from lifted_bregman.problem import LiftedProblem
from lifted_bregman.solvers.baselines._backpropagation import require_differentiable
from lifted_bregman.solvers.baselines._moments import (
    AdamState,
    initial_moments,
    moment_step,
    require_moment_settings,
)
from lifted_bregman.solvers.interface import Batch, Solver, added, shown
from lifted_bregman.solvers.schedules import Schedule


@dataclass(frozen=True)
class Adam(Solver[AdamState]):
    """min over Θ of the nested objective F by Adam on batches; the same iterates as `torch.optim.Adam`.

        m ← β₁ m + (1 - β₁) g     v ← β₂ v + (1 - β₂) g²     Θ ← Θ - η m̂ / (√v̂ + ε),     g = ∇F_B(Θ) + δ Θ

    with m̂ = m/(1 - β₁^k) and v̂ = v/(1 - β₂^k) (Kingma and Ba 2015).  Differentiates activations.  ∇F_B refers to the
    mean over the batch; a sum would change nothing but the roles of ε and δ.  For decay that the moments do not see
    take `AdamW`.

    learning_rate  η > 0, or a schedule of the step such as `CosineDecay`
    first_decay    0 <= β₁ < 1
    second_decay   0 <= β₂ < 1
    epsilon        ε > 0
    weight_decay   δ >= 0, of all parameters, biases too
    clip_norm      c > 0: a longer ∇F_B is shortened to this norm over all parameters; None for no bound

    Example:
        >>> solver = lb.baselines.Adam(learning_rate=0.1)
        >>> X = torch.linspace(-1, 1, 20).reshape(-1, 1)
        >>> line = nn.Linear(1, 1)
        >>> problem = lb.lift(line, loss=lb.SquaredError())
        >>> result = lb.fit(problem, (X, 2 * X + 1), solver=solver, epochs=20, batch_size=5)
        >>> round(line.weight.item(), 1), round(line.bias.item(), 1)
        (2.0, 1.0)
    """

    minibatch: ClassVar[bool] = True
    shared_parameters: ClassVar[bool] = True
    training_mode: ClassVar[bool] = True
    weighted: ClassVar[bool] = True
    autocast: ClassVar[bool] = True
    data_parallel: ClassVar[bool] = True

    learning_rate: float | Schedule = 1e-3
    first_decay: float = 0.9
    second_decay: float = 0.999
    epsilon: float = 1e-8
    weight_decay: float = added(0.0)
    clip_norm: float | None = added(None)

    def __post_init__(self) -> None:
        require_moment_settings(self)

    def __repr__(self) -> str:
        return shown(self)

    def require(self, problem: LiftedProblem) -> None:
        require_differentiable(self, problem)

    def init(self, problem: LiftedProblem, batch: Batch) -> AdamState:
        return initial_moments(problem)

    def step(self, problem: LiftedProblem, state: AdamState, batch: Batch) -> AdamState:
        return moment_step(self, problem, state, batch, decoupled=False)
