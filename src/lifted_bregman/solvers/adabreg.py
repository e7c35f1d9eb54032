"""AdaBreg: linearised Bregman iterations with Adam's moments (Section 4.1.2, iterative regularisation)."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

import torch

from lifted_bregman._arguments import positive
from lifted_bregman.errors import SettingError
from lifted_bregman.problem import LiftedProblem, Point
from lifted_bregman.solvers.mirror_descent import MirrorDescent, MirrorState
from lifted_bregman.solvers.parameters import LayerTensors


@dataclass
class AdaBregState(MirrorState):
    """The subgradient variable and Adam's two moments."""

    first: LayerTensors = field(default_factory=dict)
    """m, the averaged gradient."""
    second: LayerTensors = field(default_factory=dict)
    """s, the averaged squared gradient."""


@dataclass(frozen=True)
class AdaBreg(MirrorDescent[AdaBregState]):
    """`LinBreg` whose gradient enters through Adam's moments, so that one step size serves layers of different scale.

        m ← β₁ m + (1-β₁) g,   s ← β₂ s + (1-β₂) g²,   g = ∇_Θ E(Θ, X)
        v ← v - τ (m/(1-β₁ᵏ)) / ( √(s/(1-β₂ᵏ)) + ε ),   Θ = prox_{δR}(δv)

    (Bungert et al. 2022, who take the back-propagated gradient.)

    Guaranteed: v - Θ/δ in ∂R(Θ) after every step.  Like Adam's, its convergence is observed, not proven.  Without
    penalties it is Adam on the lifted gradient with step δτ.

    step_size  τ > 0
    penalties  R: one penalty or `TargetSparsity` for all weights together, or {layer: ...}; None for R = 0
    scale      δ > 0
    direction  where ∇_Θ E is read for each batch
    betas      (β₁, β₂), both in [0, 1)
    epsilon    ε > 0

    Example:
        >>> solver = lb.AdaBreg(step_size=0.01, penalties=lb.penalties.L1(0.001))
        >>> X = torch.linspace(-1, 1, 20).reshape(-1, 1)
        >>> problem = lb.lift(nn.Sequential(nn.Linear(1, 8), nn.ReLU(), nn.Linear(8, 1)), loss=lb.SquaredError())
        >>> result = lb.fit(problem, (X, X.abs()), solver=solver, epochs=10, batch_size=5)
        >>> result.history[-1]["objective"] < result.history[0]["objective"]
        True
    """

    step_size: float = 1e-3
    betas: tuple[float, float] = (0.9, 0.999)
    epsilon: float = 1e-8

    def __post_init__(self) -> None:
        super().__post_init__()
        positive(self.epsilon, "epsilon")
        if len(self.betas) != 2 or not all(0.0 <= beta < 1.0 for beta in self.betas):
            raise SettingError(f"betas is {self.betas!r}; it must be two numbers in [0, 1).")

    def _empty(self) -> AdaBregState:
        return AdaBregState()

    def _gather(self, problem: LiftedProblem, state: AdaBregState, layer: int, point: Point) -> None:
        beta1, beta2 = self.betas
        if layer not in state.first:
            for moment in (state.first, state.second):
                moment[layer] = {name: torch.zeros_like(v) for name, v in state.subgradients[layer].items()}
        gradient = problem.parameter_gradient(point, layer)
        for name, g in gradient.items():
            state.first[layer][name].lerp_(g, 1.0 - beta1)
            state.second[layer][name].mul_(beta2).addcmul_(g, g, value=1.0 - beta2)

    def _advance(self, state: AdaBregState) -> None:
        beta1, beta2 = self.betas
        tau = self.step_size / (1.0 - beta1**state.steps)
        root = math.sqrt(1.0 - beta2**state.steps)
        for layer, moments in state.second.items():
            for name, s in moments.items():
                denominator = s.sqrt().div_(root).add_(self.epsilon)
                state.subgradients[layer][name].addcdiv_(state.first[layer][name], denominator, value=-tau)
