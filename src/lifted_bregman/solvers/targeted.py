"""Target sparsity for penalties in the energy: adjusts their weights between the steps of any solver."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar, Self

import torch
from torch import Tensor

from lifted_bregman.errors import SettingError
from lifted_bregman.penalties import Penalty
from lifted_bregman.problem import LiftedProblem
from lifted_bregman.problem.blocks import hidden_layers, layers
from lifted_bregman.problem.composite import require_composable
from lifted_bregman.problem.settings import check_penalties
from lifted_bregman.problem.subgradients import critical_weights
from lifted_bregman.solvers.interface import Batch, Solver, SolverState, lacking, of_inner
from lifted_bregman.solvers.mirror_descent import MirrorDescent, require_counted, require_regularisable
from lifted_bregman.solvers.sparsity import TargetSparsity


@dataclass
class TargetedState(SolverState):
    """The inner solver's state and the weights."""

    inner: SolverState = field(default_factory=SolverState)
    """The state of the wrapped solver."""
    parameter_weights: dict[int, float] = field(default_factory=dict)
    """The present weights of penalties on parameters, by layer."""
    variable_weights: dict[int, float] = field(default_factory=dict)
    """The present weights of penalties on variables, by layer."""

    def state_dict(self) -> dict[str, Any]:
        return {
            "steps": self.steps,
            "metrics": dict(self.metrics),
            "parameter_weights": dict(self.parameter_weights),
            "variable_weights": dict(self.variable_weights),
            "inner": self.inner.state_dict(),
        }

    def load_state_dict(self, entries: Mapping[str, Any]) -> None:
        """Takes over what `state_dict` returned; `inner` must be a state of the same solver, as `init` makes it."""
        if set(entries) != set(self.state_dict()):
            raise SettingError(
                f"the saved state has {sorted(entries)}; load it with the solver that saved it, {type(self).__name__} "
                f"has {sorted(self.state_dict())}."
            )
        self.inner.load_state_dict(entries["inner"])
        self.steps, self.variables = entries["steps"], self.inner.variables
        for name in ("metrics", "parameter_weights", "variable_weights"):
            setattr(self, name, dict(entries[name]))


@dataclass(frozen=True)
class TargetedPenalties(Solver[TargetedState]):
    """Variational regularisation with fractions of zeros in place of weights.

    After each step of `solver` the fraction s of zeros is counted, and the weight of the layer's penalty in the energy
    is multiplied by rate^c, c = (fraction - s)/(10 tolerance) limited to [-1, 1]: up if there are too few zeros, down
    if there are too many.  The energy changes with the weights, so that its descent holds between adjustments only.
    Convergence of s to the fraction is observed, not proven; a rate near 1 is safer.

    solver      any solver that handles penalties in the energy; for targets of variables, one that keeps variables, for
                targets of parameters one whose iterates have zeros: not gradients by back-propagation
    parameters  {layer: TargetSparsity} for weights; replaces the problem's parameter_penalties of these layers
    variables   {layer: TargetSparsity} for x_l of the last batch; replaces the problem's penalties of these layers

    Example:
        >>> from lifted_bregman.solvers import TargetedPenalties
        >>> model = nn.Linear(20, 5)
        >>> solver = TargetedPenalties(lb.ProximalGradient(), parameters={1: lb.TargetSparsity(0.5)})
        >>> problem, X = lb.lift(model, loss=lb.SquaredError()), torch.randn(100, 20)
        >>> result = lb.fit(problem, (X, X[:, :5] + torch.randn(100, 5)), solver=solver, epochs=300)
        >>> round((model.weight == 0).float().mean().item(), 1)
        0.5
    """

    minibatch: ClassVar[bool] = of_inner("minibatch")
    indexed: ClassVar[bool] = of_inner("indexed")
    shared_parameters: ClassVar[bool] = of_inner("shared_parameters")
    training_mode: ClassVar[bool] = of_inner("training_mode")
    weighted: ClassVar[bool] = of_inner("weighted")
    data_parallel: ClassVar[bool] = of_inner("data_parallel")

    solver: Solver[Any]
    parameters: Mapping[int, TargetSparsity] = field(default_factory=dict)
    variables: Mapping[int, TargetSparsity] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for target in (*self.parameters.values(), *self.variables.values()):
            if not isinstance(target, TargetSparsity):
                raise SettingError(f"{target!r} is no target; expected {{layer: TargetSparsity(fraction)}}.")

    def require(self, problem: LiftedProblem) -> None:
        if isinstance(self.solver, MirrorDescent):
            raise lacking(
                self,
                "a solver that handles penalties in the energy",
                f"{type(self.solver).__name__} regularises iteratively: give the target to its own `penalties`",
            )
        if self.parameters and problem.is_subproblem:
            raise lacking(
                self, "a problem whose penalties may change", "that of a sub-problem; wrap the outer solver in it"
            )
        first = {layer: target.penalty(1.0) for layer, target in self.parameters.items()}
        check_penalties(first, problem.network, layers(problem.depth), "parameters", "layers")
        on_variables = {layer: target.penalty(1.0) for layer, target in self.variables.items()}
        check_penalties(on_variables, problem.network, hidden_layers(problem.depth), "variables", "hidden layers")
        for layer, penalty in first.items():
            require_regularisable(self, problem, layer, penalty)
        for layer, penalty in on_variables.items():
            require_composable(problem.network[layer].activation, penalty)
        for penalty in (*first.values(), *on_variables.values()):
            require_counted(penalty)
        self.solver.require(problem)

    def require_steps(self, problem: LiftedProblem, steps: int) -> None:
        self.solver.require_steps(problem, steps)

    @property
    def ends_with_run(self) -> bool:
        """Whether the wrapped solver's numbers depend on the length of the run."""
        return self.solver.ends_with_run

    def planned(self, steps: float, epochs: float) -> Self:
        return self._changed(solver=self.solver.planned(steps, epochs))

    def init(self, problem: LiftedProblem, batch: Batch) -> TargetedState:
        inner = self.solver.init(problem, batch)
        return TargetedState(
            variables=inner.variables,
            inner=inner,
            parameter_weights={layer: target.start or 1e-3 for layer, target in self.parameters.items()},
            variable_weights={layer: target.start or 1e-3 for layer, target in self.variables.items()},
        )

    def attach(self, problem: LiftedProblem, state: TargetedState) -> None:
        for layer, target in self.parameters.items():
            problem.parameter_penalties[layer] = target.penalty(state.parameter_weights[layer])
        for layer, target in self.variables.items():
            problem.penalties[layer] = target.penalty(state.variable_weights[layer])

    def step(self, problem: LiftedProblem, state: TargetedState, batch: Batch) -> TargetedState:
        self.attach(problem, state)
        state.inner = self.solver.step(problem, state.inner, batch)
        state.steps, state.variables = state.inner.steps, state.inner.variables
        state.metrics = dict(state.inner.metrics)
        for layer, target in self.parameters.items():
            f = problem.network[layer].map
            weights = [f.unit_rows(p.detach()) for p in f.parameters.values() if p.ndim > 1]
            zeros = _zero_fraction(problem.parameter_penalties[layer], weights)
            state.parameter_weights[layer] = target.nudged(state.parameter_weights[layer], zeros)
            state.term_metric("sparsity_parameters")[layer] = zeros
            state.term_metric("weight_parameters")[layer] = state.parameter_weights[layer]
        for layer, target in self.variables.items():
            if state.variables is None:
                raise lacking(self, "a solver that keeps variables", f"those of {type(self.solver).__name__}")
            x = problem.network[layer].arrange(state.variables[layer])
            zeros = _zero_fraction(problem.penalties[layer], [x])
            state.variable_weights[layer] = target.nudged(state.variable_weights[layer], zeros)
            state.term_metric("sparsity_variables")[layer] = zeros
            state.term_metric("weight_variables")[layer] = state.variable_weights[layer]
        self.attach(problem, state)
        return state

    def finish(self, problem: LiftedProblem, state: TargetedState) -> None:
        self.solver.finish(problem, state.inner)


def _zero_fraction(penalty: Penalty, tensors: list[Tensor]) -> float:
    """The fraction of entries, groups or singular values that are zero, up to rounding."""
    sizes = torch.cat([critical_weights(penalty, t) for t in tensors])
    return float((sizes <= torch.finfo(sizes.dtype).eps * sizes.max()).double().mean())
