"""LinBreg: stochastic linearised Bregman iterations on the parameters (Section 4.1.2, iterative regularisation)."""

from __future__ import annotations

from dataclasses import dataclass, field

import torch

from lifted_bregman.errors import SettingError
from lifted_bregman.problem import LiftedProblem, Point
from lifted_bregman.solvers.mirror_descent import MirrorDescent, MirrorState
from lifted_bregman.solvers.parameters import LayerTensors


@dataclass
class LinBregState(MirrorState):
    """The subgradient variable and, with momentum, the averaged gradient."""

    momentum: LayerTensors = field(default_factory=dict)


@dataclass(frozen=True)
class LinBreg(MirrorDescent[LinBregState]):
    """min_Θ min_X E(Θ, X), with iterates Θ that R makes sparse or of low rank, although R is not part of the energy.

        v ← v - τ ∇_Θ E(Θ, X)                  Θ = prox_{δR}(δv),   that is   v - Θ/δ in ∂R(Θ)
        with momentum:   m ← β m + (1-β) τ ∇_Θ E(Θ, X),   v ← v - m

    (Bungert et al. 2022, who take the back-propagated gradient.)  It is the Bregman proximal method (16) with R(Θ) +
    ‖Θ‖²/2δ in its distance.  For a norm R, Θ = δ prox_R(v).  R acts on weights as matrices (units, rest); biases have R
    = 0.  Without penalties it is lifted gradient descent of step δτ.

    Guaranteed: v - Θ/δ in ∂R(Θ) after every step.  For fixed x, the whole set, no momentum and 0 < δτ < 2/L, L the
    Lipschitz constant of ∇_Θ E, E does not increase.  One layer: E is convex, and for δτ <= 1/L E - min E falls like
    1/k; with squared error and from v = 0 the iterates tend to the minimiser of E with the smallest R(Θ) + ‖Θ‖²/2δ.
    With batches and several layers convergence is observed, not proven.  R changes the iterates, but not the stationary
    points of E.  It therefore does not make layers inconsistent, as a penalty in the energy does.

    step_size  τ > 0
    penalties  R: one penalty or `TargetSparsity` for all weights together, or {layer: ...}; None for R = 0
    scale      δ > 0
    direction  where ∇_Θ E is read for each batch
    momentum   β in [0, 1)

    Example:
        >>> solver = lb.LinBreg(step_size=0.5)
        >>> X = torch.linspace(-1, 1, 20).reshape(-1, 1)
        >>> line = nn.Linear(1, 1)
        >>> result = lb.fit(lb.lift(line, loss=lb.SquaredError()), (X, 2 * X + 1), solver=solver, epochs=30)
        >>> round(line.weight.item(), 1), round(line.bias.item(), 1)
        (2.0, 1.0)
    """

    momentum: float = 0.0

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 0.0 <= self.momentum < 1.0:
            raise SettingError(f"momentum is {self.momentum!r}; it must be in [0, 1).")

    def _empty(self) -> LinBregState:
        return LinBregState()

    def _gather(self, problem: LiftedProblem, state: LinBregState, layer: int, point: Point) -> None:
        v, tau, beta = state.subgradients[layer], self.step_size, self.momentum
        if beta == 0.0:
            problem.accumulate_parameter_gradient(point, layer, v, scale=-tau)
            return
        if layer not in state.momentum:
            state.momentum[layer] = {name: torch.zeros_like(value) for name, value in v.items()}
        problem.accumulate_parameter_gradient(point, layer, state.momentum[layer], scale=(1.0 - beta) * tau, decay=beta)

    def _advance(self, state: LinBregState) -> None:
        for layer, averages in state.momentum.items():
            for name, m in averages.items():
                state.subgradients[layer][name].sub_(m)
