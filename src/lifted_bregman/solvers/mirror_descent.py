"""Mirror descent on the parameters, the base of LinBreg and AdaBreg: Θ = prox_{δR}(δv) and target sparsities."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar, TypeVar

import torch
from torch import Tensor

from lifted_bregman._arguments import positive
from lifted_bregman._no_graph import no_graph
from lifted_bregman.errors import CompatibilityError, SettingError
from lifted_bregman.maps import LayerMap
from lifted_bregman.penalties import GroupL2, Penalty
from lifted_bregman.problem import LiftedProblem, Point
from lifted_bregman.problem.blocks import layers
from lifted_bregman.problem.curvature import PowerMemory
from lifted_bregman.problem.subgradients import critical_weights, minimal_subgradient
from lifted_bregman.solvers._descent import rms
from lifted_bregman.solvers._inner_solver import require_no_anchor
from lifted_bregman.solvers.directions import Direction, LiftedDirection
from lifted_bregman.solvers.interface import Batch, Solver, SolverState, lacking
from lifted_bregman.solvers.parameters import LayerTensors
from lifted_bregman.solvers.sparsity import TargetSparsity

Regulariser = Penalty | TargetSparsity
Regularisers = Regulariser | Mapping[int, Regulariser] | None
Group = tuple[tuple[int, ...], Regulariser]
"""Layers that share a regulariser, and the regulariser."""


@dataclass
class MirrorState(SolverState):
    """The subgradient variable v and the weights of the regularisers."""

    subgradients: LayerTensors = field(default_factory=dict)
    """v_l, with v - Θ/δ in ∂R(Θ), for every trained parameter."""
    weights: dict[int, float] = field(default_factory=dict)
    """The current weight of each layer that has a target sparsity."""
    direction: PowerMemory = field(default_factory=dict)
    """The memory of the `Direction`."""


S = TypeVar("S", bound=MirrorState)


@dataclass(frozen=True)
class MirrorDescent(Solver[S]):
    """v ← v - u, Θ = prox_{δR}(δv), where subclasses compute the update u from ∇_Θ E."""

    minibatch: ClassVar[bool] = True
    weighted: ClassVar[bool] = True
    shared_parameters: ClassVar[bool] = True
    training_mode: ClassVar[bool] = True
    data_parallel: ClassVar[bool] = True

    step_size: float = 0.1
    penalties: Regularisers = None
    scale: float = 1.0
    direction: Direction = field(default_factory=LiftedDirection)

    def __post_init__(self) -> None:
        positive(self.step_size, "step_size")
        positive(self.scale, "scale")
        given = self.penalties.values() if isinstance(self.penalties, Mapping) else (self.penalties,)
        for entry in given:
            if entry is not None and not isinstance(entry, Penalty | TargetSparsity):
                raise SettingError(
                    f"penalties has {entry!r}; expected a penalty such as lb.penalties.L1(0.1) or TargetSparsity(0.9), "
                    "for all layers, or {layer: penalty}."
                )

    def require(self, problem: LiftedProblem) -> None:
        require_no_anchor(self, problem, "it regularises iteratively; give it to the outer solver instead")
        if problem.parameter_penalties:
            raise lacking(
                self,
                "a problem without parameter_penalties, for it regularises iteratively what they add to the energy",
                f"layers {sorted(problem.parameter_penalties)} have one: give them to the solver instead",
            )
        for chosen, regulariser in groups(problem, self.penalties):
            for layer in chosen:
                if isinstance(regulariser, TargetSparsity):
                    require_counted(regulariser.penalty(1.0))
                    require_regularisable(self, problem, layer, regulariser.penalty(1.0))
                else:
                    require_regularisable(self, problem, layer, regulariser)

    @abstractmethod
    def _empty(self) -> S:
        """A new state."""

    @abstractmethod
    def _gather(self, problem: LiftedProblem, state: S, layer: int, point: Point) -> None:
        """Stores ∇_{Θ_l} E at the point in the state."""

    @abstractmethod
    def _advance(self, state: S) -> None:
        """Updates v of all layers by the stored gradients."""

    def init(self, problem: LiftedProblem, batch: Batch) -> S:
        state = self._empty()
        for chosen, regulariser in groups(problem, self.penalties):
            if isinstance(regulariser, TargetSparsity):
                first = regulariser.start or _typical_size(problem, chosen, regulariser.penalty(1.0)) / self.scale
                state.weights.update(dict.fromkeys(chosen, first))
        penalties = self.current_penalties(problem, state)
        for layer in layers(problem.depth):
            f = problem.network[layer].map
            state.subgradients[layer] = {
                name: initial_subgradient(f, p.detach(), penalties.get(layer), self.scale)
                for name, p in f.parameters.items()
            }
        return state

    @no_graph
    def step(self, problem: LiftedProblem, state: S, batch: Batch) -> S:
        for layer, point in self.direction.visit(problem, batch, state.direction):
            if layer == problem.depth:
                state.metrics["output_residual"] = rms(point.residual(layer), point.shard)
            self._gather(problem, state, layer, point)
        state.steps += 1
        self._advance(state)
        self._steer(problem, state, limited=True)
        self._recover(problem, state)
        return state

    @no_graph
    def finish(self, problem: LiftedProblem, state: S) -> None:
        """Moves the penalty weights to the target sparsities without the limit of `rate`, as a short run needs."""
        if state.steps and state.weights:
            self._steer(problem, state, limited=False)
            self._recover(problem, state)

    def current_penalties(self, problem: LiftedProblem, state: S) -> dict[int, Penalty]:
        """R_l by layer; a target sparsity has its present weight."""
        found: dict[int, Penalty] = {}
        for chosen, regulariser in groups(problem, self.penalties):
            for layer in chosen:
                if isinstance(regulariser, TargetSparsity):
                    found[layer] = regulariser.penalty(state.weights[layer])
                else:
                    found[layer] = regulariser
        return found

    def _steer(self, problem: LiftedProblem, state: S, limited: bool) -> None:
        for chosen, regulariser in groups(problem, self.penalties):
            if not isinstance(regulariser, TargetSparsity):
                continue
            weight = state.weights[chosen[0]]
            penalty = regulariser.penalty(weight)
            critical = [
                critical_weights(penalty, problem.network[l].map.unit_rows(v))
                for l in chosen
                for v in state.subgradients[l].values()
                if v.ndim > 1
            ]
            state.weights.update(dict.fromkeys(chosen, regulariser.adjusted(weight, critical, limited)))

    def _recover(self, problem: LiftedProblem, state: S) -> None:
        """Θ = prox_{δR}(δv)."""
        penalties = self.current_penalties(problem, state)
        zeros = total = 0
        for layer in layers(problem.depth):
            f = problem.network[layer].map
            for name, parameter in f.parameters.items():
                theta, penalty = parameter.detach(), penalties.get(layer)
                recover(f, theta, state.subgradients[layer][name], penalty, self.scale)
                if penalty is not None and theta.ndim > 1:
                    total += theta.numel()
                    zeros += theta.numel() - int(theta.count_nonzero())
        if total:
            state.metrics["parameter_sparsity"] = zeros / total
        state.metrics["weight"] = dict(state.weights)


def groups(problem: LiftedProblem, penalties: Regularisers) -> list[Group]:
    """Layers by shared regulariser: all layers with a trained weight as one group, or each named layer alone."""
    if penalties is None:
        return []
    if isinstance(penalties, Mapping):
        return [((layer,), entry) for layer, entry in penalties.items()]
    return [(tuple(l for l in layers(problem.depth) if any(_weights(problem, l))), penalties)]


def require_regularisable(solver: Solver[Any], problem: LiftedProblem, layer: int, penalty: Penalty) -> None:
    """Raises an error unless the layer has a trained weight on which the penalty fits and has a known subgradient."""
    if layer not in layers(problem.depth) or not any(_weights(problem, layer)):
        raise lacking(solver, "a trained weight in each regularised layer", f"that of layer {layer}")
    f = problem.network[layer].map
    weight = next(p.detach() for p in f.parameters.values() if p.ndim > 1)
    minimal_subgradient(penalty, penalty.prox(torch.zeros_like(f.unit_rows(weight)[:1])))


def require_counted(penalty: Penalty) -> None:
    """Raises an error unless the penalty can have a target sparsity."""
    critical_weights(penalty, torch.zeros(1, penalty.group_size or 1 if isinstance(penalty, GroupL2) else 1))


@no_graph
def initial_subgradient(f: LayerMap, theta: Tensor, penalty: Penalty | None, scale: float) -> Tensor:
    """v in ∂R(Θ) + Θ/δ with the shortest subgradient of R; R = 0 without a penalty and for biases."""
    v = theta / scale
    if penalty is not None and theta.ndim > 1:
        v += f.from_unit_rows(minimal_subgradient(penalty, f.unit_rows(theta)), theta)
    return v


@no_graph
def recover(f: LayerMap, theta: Tensor, v: Tensor, penalty: Penalty | None, scale: float) -> None:
    """Θ ← prox_{δR}(δv), in place; Θ = δv where R = 0."""
    torch.mul(v, scale, out=theta)
    if penalty is not None and theta.ndim > 1:
        theta.copy_(f.from_unit_rows(penalty.prox(f.unit_rows(theta), scale), theta))


def _weights(problem: LiftedProblem, layer: int) -> list[bool]:
    return [p.ndim > 1 for p in problem.network[layer].map.parameters.values()]


def _typical_size(problem: LiftedProblem, chosen: tuple[int, ...], penalty: Penalty) -> float:
    """The mean size of the entries, groups or singular values that are not zero."""
    maps = [problem.network[l].map for l in chosen]
    weights = [f.unit_rows(p.detach()) for f in maps for p in f.parameters.values() if p.ndim > 1]
    sizes = torch.cat([critical_weights(penalty, W) for W in weights])
    count = int(sizes.count_nonzero())
    if count == 0:
        raise CompatibilityError(
            f"the weights of layers {chosen} are all zero, so that a target sparsity has no first weight: give `start`."
        )
    return float(sizes.sum()) / count
