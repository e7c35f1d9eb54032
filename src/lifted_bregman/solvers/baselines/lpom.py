"""Lifted proximal operator machines (LPOM; Li et al. 2019), Appendix A: fixed points for x, least squares for Θ."""

from __future__ import annotations

from dataclasses import dataclass, field

import torch

from lifted_bregman._arguments import require_count, require_not_negative
from lifted_bregman._linalg import least_squares
from lifted_bregman.activations import Separable
from lifted_bregman.maps import Dense
from lifted_bregman.problem import LiftedProblem, Point
from lifted_bregman.problem.blocks import VariableBlock, hidden_layers, layers, terms
from lifted_bregman.problem.composite import composite_prox
from lifted_bregman.problem.curvature import PowerMemory, step_for, variable_curvature
from lifted_bregman.problem.energies import partial_energy
from lifted_bregman.solvers._inner_solver import require_no_anchor
from lifted_bregman.solvers._packing import design, unpacked
from lifted_bregman.solvers.interface import Batch, Solver, SolverState, lacking


@dataclass
class LPOMState(SolverState):
    """Variables, and the vectors from which the safeguard's power iterations start."""

    power: PowerMemory = field(default_factory=dict)


@dataclass(frozen=True)
class LPOM(Solver[LPOMState]):
    """min over (Θ, X) of the LPOM energy by fixed-point steps in x and majorised least squares in Θ.

        (1/s) Σ_i [ ℓ(y, z_L) + Σ_{l<L} λ_l ( f_l(x_l) + g_l(z_l) + ½‖x_l - z_l‖² ) ]

        f(x) = ∫_0^x (σ⁻¹(t) - t) dt = Ψ(x) - Ψ(0)         g(z) = ∫_0^z (σ(t) - t) dt = φ*(z) - φ*(0) - ½z²

    number by number, so that f + g + ½(x - z)² = B(x, z) - φ(0) - φ*(0): the lifted Bregman energy up to a constant
    (print: g of the product without the bias; read g(z_l)).  Where σ is flat σ⁻¹ is set-valued, and f is infinite
    outside the domain.  Restrictions, enforced: scalar activations, dense layers, no penalties on parameters.

    One step visits x_{L-1} .. x_1, then Θ_1 .. Θ_L, each several times:

        x_l ← σ_l( z_l - (λ_{l+1}/λ_l) W_{l+1}ᵀ d_{l+1} )       Θ_l ← Θ_l - [x_{l-1} 1]⁺ d_l       d_l = σ_l(z_l) - x_l

    The x-step is a contraction, and decreases the energy, if λ_{l+1}‖W_{l+1}‖² < λ_l.  Beyond that it may not:
    `safeguard` then takes a proximal gradient step in its place, and the energy never increases.  The Θ-step never
    increases it, because σ is 1-Lipschitz; for squared error it is exact.  A penalty on x_l enters by
    prox_{Ψ_l + R_l/λ_l} in place of σ_l.  The order, `safeguard` and `prox_weight` are ours.  `metrics`: "start_energy"
    before the step, "fixed_points", the fraction of x-steps that the safeguard let pass.

    variable_steps   fixed-point steps for each x_l, at least 1
    parameter_steps  least-squares steps for each Θ_l, at least 1
    prox_weight      τ >= 0 of an added (τ/2)‖Θ_l - Θ_l^k‖²; 0 gives the pseudo-inverse, up to rounding
    safeguard        whether an x-step that increases the energy is replaced

    Example:
        >>> X = torch.linspace(-1, 1, 20).reshape(-1, 1)
        >>> problem = lb.lift(nn.Sequential(nn.Linear(1, 8), nn.ReLU(), nn.Linear(8, 1)), loss=lb.SquaredError())
        >>> result = lb.fit(problem, (X, X.abs()), solver=lb.baselines.LPOM(), epochs=10)
        >>> result.history[-1]["energy"] < result.history[0]["energy"]
        True
    """

    variable_steps: int = 1
    parameter_steps: int = 1
    prox_weight: float = 0.0
    safeguard: bool = True

    def __post_init__(self) -> None:
        for name in ("variable_steps", "parameter_steps"):
            require_count(getattr(self, name), name)
        require_not_negative(self.prox_weight, "prox_weight")

    def require(self, problem: LiftedProblem) -> None:
        for layer in hidden_layers(problem.depth):
            own = problem.network[layer]
            if not isinstance(own.activation, Separable):
                raise lacking(
                    self,
                    "hidden activations that act on each number alone, so that σ⁻¹ is a function of one number",
                    f"{own.activation} after {own.path} (layer {layer}) couples several",
                )
        for layer in layers(problem.depth):
            if not isinstance(problem.network[layer].map, Dense):
                raise lacking(
                    self,
                    "dense layers, for the least-squares step in Θ",
                    f"{problem.network[layer].path} (layer {layer}) is none",
                )
        require_no_anchor(self, problem, "its step in Θ is a least-squares problem; use ProximalGradient")
        if problem.parameter_penalties:
            raise lacking(
                self,
                "a problem without penalties on parameters",
                f"parameter_penalties are set for layers {sorted(problem.parameter_penalties)}; use ProximalGradient",
            )

    def init(self, problem: LiftedProblem, batch: Batch) -> LPOMState:
        return LPOMState(variables=problem.forward_state(batch.X, check=False))

    def step(self, problem: LiftedProblem, state: LPOMState, batch: Batch) -> LPOMState:
        assert state.variables is not None
        point = problem.point(state.variables, batch.X, batch.Y)
        state.metrics["start_energy"] = float(problem.energy_at(point))
        passed = [
            self._move_variable(problem, point, layer, state.power)
            for layer in reversed(hidden_layers(problem.depth))
            for _ in range(self.variable_steps)
        ]
        for layer in layers(problem.depth):
            for _ in range(self.parameter_steps):
                _move_parameters(problem, point, layer, self.prox_weight)
        state.metrics["fixed_points"] = sum(passed) / len(passed) if passed else 1.0
        state.variables = point.state
        state.steps += 1
        return state

    def _move_variable(self, problem: LiftedProblem, point: Point, layer: int, power: PowerMemory) -> bool:
        """One fixed-point step in x_l, or a proximal gradient step where that would increase the energy."""
        start, weight = point.x[layer], problem.weight(layer)
        gradient = problem.variable_gradient(point, layer)  # λ_{l+1} W_{l+1}ᵀ d_{l+1} - λ_l z_l
        own, penalty = problem.network[layer], problem.penalties.get(layer)
        problem.work.prox_maps += 1
        target = composite_prox(own.activation, penalty, own.arrange(gradient / -weight), 1.0, 1.0 / weight)
        touched = terms(VariableBlock(layer), problem.links)
        before = float(partial_energy(problem, point, touched)) if self.safeguard else 0.0
        point.set_variable(layer, own.restore(target))
        if not self.safeguard or float(partial_energy(problem, point, touched)) <= before:
            return True
        t = step_for(1.0, variable_curvature(problem, point, layer, power, upper=True), point)
        point.set_variable(layer, problem.variable_prox(layer, torch.sub(start, gradient, alpha=t), t))
        return False


@torch.no_grad()
def _move_parameters(problem: LiftedProblem, point: Point, layer: int, prox_weight: float) -> None:
    """Θ_l ← argmin_Θ (λ_l/2s)‖A(Θ - Θ_l) + d_l‖² + (τ/2)‖Θ - Θ_l‖², the nearest if there are several."""
    own = problem.network[layer].map
    assert isinstance(own, Dense)
    if not own.parameters:
        return
    A, d = design(own, point.read(layer)), point.residual(layer)
    ridge = prox_weight * point.samples / problem.weight(layer)
    change = least_squares(A, d.reshape(len(A), -1), ridge).t()
    for name, part in unpacked(own, change).items():
        own.parameters[name].sub_(part)
    problem.work.parameter_gradients += 1
    point.parameters_changed(layer)
