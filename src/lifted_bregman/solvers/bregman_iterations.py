"""Linearised Bregman iterations on (Θ, X): iterative regularisation of parameters and of variables (Section 4.1)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import ClassVar

import torch
from torch import Tensor

from lifted_bregman._arguments import positive
from lifted_bregman._no_graph import no_graph
from lifted_bregman.activations import Activation
from lifted_bregman.errors import CompatibilityError, SettingError
from lifted_bregman.penalties import L1, GroupL2, Penalty, SquaredL2
from lifted_bregman.problem import LiftedProblem, Point
from lifted_bregman.problem.blocks import ParameterBlock, VariableBlock, hidden_layers, layers, top_down
from lifted_bregman.problem.composite import composite_prox, find_rule, penalty_first, penalty_last
from lifted_bregman.problem.curvature import PowerMemory, best_curvature
from lifted_bregman.problem.settings import check_penalties
from lifted_bregman.problem.subgradients import minimal_subgradient
from lifted_bregman.solvers.interface import Batch, Solver, SolverState, lacking
from lifted_bregman.solvers.mirror_descent import initial_subgradient, recover, require_regularisable
from lifted_bregman.solvers.parameters import LayerTensors


@dataclass
class BregmanIterationsState(SolverState):
    """Variables, and the subgradients of the regularisers at parameters and variables."""

    subgradients: LayerTensors = field(default_factory=dict)
    """v_l, with v - Θ/δ in ∂R(Θ), for layers with a parameter penalty."""
    variable_subgradients: dict[int, Tensor] = field(default_factory=dict)
    """q_l in ∂R(x_l), for layers with a penalty."""
    power: PowerMemory = field(default_factory=dict)


@dataclass(frozen=True)
class BregmanIterations(Solver[BregmanIterationsState]):
    """min over (Θ, X) of E by the Bregman proximal method (16), with regularisers in its distance and not in E.

        Θ_l:  v ← v - (t/δ) ∇_{Θ_l} H,   Θ_l = prox_{δR}(δv)
        x_l:  w = x_l + q - t ∇_{x_l} H,   x_l ← prox_{tG_l + R}(w),   q ← the part of w - x_l that is in ∂R(x_l)

    One step is one top-down sweep with t = factor/L, L being twice an estimate where a map is not affine.  Blocks
    without a regulariser take the step of eq. 17.  That is (16) with J = (R(Θ) + ‖Θ‖²/2δ)/t - H, or
    J = (R(x) + ½‖x‖²)/t - H.  J does not change the stationary points of E.  It changes the iterates, and which
    stationary point they reach (Benning et al. 2021).  Regularised variables start at prox_R of the forward pass, v at
    the shortest subgradient of R plus Θ/δ.

    Guaranteed over affine maps: q in ∂R(x) and v - Θ/δ in ∂R(Θ) after every step, and with a factor below 2 E never
    increases: the step of a block lowers it by (1/t - L/2)‖Δ‖² at least.  Cost per step: 2L-1 forward maps, L-1
    adjoints, L parameter gradients, 3L-2 proximal maps.

    parameter_penalties  R on weights, as matrices (units, rest), by layer from 1 to L
    penalties            R on variables, by layer from 1 to L-1: SquaredL2; L1 after activations with σ(0) = 0; GroupL2
      after Identity, ReLU, soft thresholds, BallProjection.  For these w - x has a split into subgradients of tG and R
    factor               in (0, 2), of the step sizes
    scale                δ > 0, for parameters

    Example:
        >>> solver = lb.BregmanIterations()
        >>> X = torch.linspace(-1, 1, 20).reshape(-1, 1)
        >>> line = nn.Linear(1, 1)
        >>> result = lb.fit(lb.lift(line, loss=lb.SquaredError()), (X, 2 * X + 1), solver=solver, epochs=20)
        >>> round(line.weight.item(), 1), round(line.bias.item(), 1)
        (2.0, 1.0)
    """

    weighted: ClassVar[bool] = True
    shared_parameters: ClassVar[bool] = True
    training_mode: ClassVar[bool] = True

    parameter_penalties: Mapping[int, Penalty] = field(default_factory=dict)
    penalties: Mapping[int, Penalty] = field(default_factory=dict)
    factor: float = 1.0
    scale: float = 1.0

    def __post_init__(self) -> None:
        positive(self.scale, "scale")
        if not 0.0 < positive(self.factor, "factor") < 2.0:
            raise SettingError(f"factor is {self.factor!r}; descent needs a factor below 2.")

    def require(self, problem: LiftedProblem) -> None:
        depth = problem.depth
        check_penalties(self.parameter_penalties, problem.network, layers(depth), "parameter_penalties", "layers")
        check_penalties(self.penalties, problem.network, hidden_layers(depth), "penalties", "hidden layers")
        twice = set(self.penalties) & set(problem.penalties)
        twice |= set(self.parameter_penalties) & set(problem.parameter_penalties)
        if twice:
            raise lacking(
                self, "layers that are regularised once", f"layers {sorted(twice)} have a penalty in the energy too"
            )
        for layer, penalty in self.parameter_penalties.items():
            require_regularisable(self, problem, layer, penalty)
        for layer, penalty in self.penalties.items():
            activation = problem.network[layer].activation
            if not _splittable(activation, penalty):
                raise lacking(
                    self,
                    "on variables L1 with σ(0) = 0, GroupL2 with a positively homogeneous or radial activation, or "
                    "SquaredL2",
                    f"a rule for {penalty} after {activation}",
                )

    def init(self, problem: LiftedProblem, batch: Batch) -> BregmanIterationsState:
        state = BregmanIterationsState(variables=problem.forward_state(batch.X, check=False))
        assert state.variables is not None
        for layer, penalty in self.penalties.items():
            own, forward = problem.network[layer], state.variables[layer]
            state.variables[layer] = own.restore(penalty.prox(own.arrange(forward)))
            state.variable_subgradients[layer] = forward - state.variables[layer]
        for layer, penalty in self.parameter_penalties.items():
            f = problem.network[layer].map
            state.subgradients[layer] = {
                name: initial_subgradient(f, p.detach(), penalty, self.scale) for name, p in f.parameters.items()
            }
        return state

    @no_graph
    def step(self, problem: LiftedProblem, state: BregmanIterationsState, batch: Batch) -> BregmanIterationsState:
        assert state.variables is not None
        point = batch.point(problem, state.variables)
        for block in top_down(problem.depth):
            if isinstance(block, ParameterBlock):
                self._move_parameters(problem, point, state, block.layer)
            else:
                self._move_variable(problem, point, state, block.layer)
        state.variables = point.state
        state.steps += 1
        return state

    def _move_parameters(self, problem: LiftedProblem, point: Point, state: BregmanIterationsState, layer: int) -> None:
        f = problem.network[layer].map
        parameters = {name: p.detach() for name, p in f.parameters.items()}
        if not parameters:
            return
        tiny = torch.finfo(torch.float32).tiny
        t = self.factor / max(best_curvature(problem, point, ParameterBlock(layer), state.power), tiny)
        if layer in self.parameter_penalties:
            v = state.subgradients[layer]
            problem.accumulate_parameter_gradient(point, layer, v, scale=-t / self.scale)
            for name, theta in parameters.items():
                recover(f, theta, v[name], self.parameter_penalties[layer], self.scale)
        else:
            problem.accumulate_parameter_gradient(point, layer, parameters, scale=-t)
            if problem.has_parameter_prox(layer):
                for name, value in problem.parameter_prox(layer, parameters, t).items():
                    parameters[name].copy_(value)
        point.parameters_changed(layer)

    def _move_variable(self, problem: LiftedProblem, point: Point, state: BregmanIterationsState, layer: int) -> None:
        curvature = best_curvature(problem, point, VariableBlock(layer), state.power)
        t = self.factor / max(curvature, 1e-3 * problem.weight(layer))
        w = torch.sub(point.x[layer], problem.variable_gradient(point, layer), alpha=t)
        if layer not in self.penalties:
            point.set_variable(layer, problem.variable_prox(layer, w, t))
            return
        own, k = problem.network[layer], 1.0 + t * problem.weight(layer)
        v = w.add_(state.variable_subgradients[layer]).div_(k)
        x, q = split_prox(own.activation, self.penalties[layer], own.arrange(v), (k - 1.0) / k, 1.0 / k)
        problem.work.prox_maps += 1
        point.set_variable(layer, own.restore(x))
        state.variable_subgradients[layer] = own.restore(q)


@no_graph
def split_prox(
    activation: Activation, penalty: Penalty, v: Tensor, activation_scale: float, penalty_scale: float
) -> tuple[Tensor, Tensor]:
    """u = prox_{aΨ + bR}(v) with a q in ∂R(u) such that (v - u - bq)/a is in ∂Ψ(u).

    Where R comes first, y = prox_{bR}(v) and u = prox_{aΨ}(y), (v - y)/b is in ∂R(y), and in ∂R(u) too, because u
    is y with each component (L1) or the whole vector (GroupL2) multiplied by a number >= 0.  Where Ψ comes first,
    u = prox_{bR}(y) with y = prox_{aΨ}(v), (y - u)/b is in ∂R(u), and (v - y)/a in ∂Ψ(y), hence in ∂Ψ(u).
    """
    if not _splittable(activation, penalty):
        raise CompatibilityError(f"the subgradients of {activation} and {penalty} cannot be separated.")
    a, b = activation_scale, penalty_scale
    if isinstance(penalty, SquaredL2):
        u = composite_prox(activation, penalty, v, a, b)
        return u, minimal_subgradient(penalty, u)
    if find_rule(activation, penalty) is penalty_first:
        y = penalty.prox(v, b)
        return activation.prox(y, a), (v - y).div_(b)
    y = activation.prox(v, a)
    u = penalty.prox(y, b)
    return u, y.sub_(u).div_(b)


def _splittable(activation: Activation, penalty: Penalty) -> bool:
    if isinstance(penalty, SquaredL2):
        return True
    return isinstance(penalty, L1 | GroupL2) and find_rule(activation, penalty) in (penalty_first, penalty_last)
