"""Diagnostics of a point: certificates of optimality, consistency, linear units, sparsity."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from torch import Tensor

from lifted_bregman._arguments import positive
from lifted_bregman._linalg import joint_norm, norm
from lifted_bregman._no_graph import no_graph
from lifted_bregman.errors import SettingError, TensorError
from lifted_bregman.problem.blocks import hidden_layers
from lifted_bregman.problem.border import lend
from lifted_bregman.problem.point import Point
from lifted_bregman.problem.shard import join_norms
from lifted_bregman.problem.state import LiftedState

if TYPE_CHECKING:
    from lifted_bregman.graph import ModelInput
    from lifted_bregman.problem.lifted import LiftedProblem


@dataclass(frozen=True)
class Certificates:
    """Prox-gradient residuals of the blocks: `parameters` of Θ_1 .. Θ_L, `variables` of x_1 .. x_{L-1}.

    Example:
        >>> problem = lb.lift(nn.Linear(1, 1), loss=lb.SquaredError())
        >>> X = torch.tensor([[-1.0], [1.0]])
        >>> result = lb.fit(problem, (X, X), solver=lb.CoordinateDescent(), epochs=1)
        >>> problem.certificates(problem.forward_state(X), X, X).largest < 1e-6
        True
    """

    parameters: tuple[float, ...]
    variables: tuple[float, ...]
    names: tuple[str, ...] = ()
    """The names of the terms, as `problem.summary()` shows them."""

    @property
    def by_name(self) -> dict[str, dict[str, float]]:
        """The residuals of each term, "parameters" and "variable", by its name; the output has no variable."""
        found = {name: {"parameters": residual} for name, residual in zip(self.names, self.parameters, strict=True)}
        for name, residual in zip(self.names, self.variables, strict=False):
            found[name]["variable"] = residual
        return found

    @property
    def largest(self) -> float:
        """The largest residual of all blocks."""
        return max(*self.parameters, *self.variables, 0.0)


@dataclass(frozen=True)
class LinearUnits:
    """Percentages (0 to 100) of one hidden layer."""

    pairs: float
    """Pairs (sample, unit) with σ(z) = z; for ReLU, z >= 0."""
    units: float
    """Units with σ(z) = z for every sample."""


@no_graph
def certificates(problem: LiftedProblem, point: Point, step: float = 1.0) -> Certificates:
    """Prox-gradient residuals of the blocks of this rank, as `LiftedProblem.certificates`, without checks."""
    step = positive(step, "step")
    lend(problem, point)
    return Certificates(
        tuple(_parameter_residual(problem, point, layer, step) for layer in problem.partition.terms),
        tuple(_variable_residual(problem, point, layer, step) for layer in problem.partition.hidden),
        tuple(problem.network[layer].label(layer) for layer in problem.partition.terms),
    )


@no_graph
def consistency(problem: LiftedProblem, state: LiftedState, X: ModelInput) -> tuple[float, ...]:
    """‖x_l - σ_l(z_l)‖ / ‖σ_l(z_l)‖ of each hidden layer, as `LiftedProblem.consistency`, without checks."""
    gaps = []
    network, values = problem.network, [X, *state]
    for layer in hidden_layers(len(network)):
        sigma = network[layer].activate(network[layer].map.apply(network.read(values, layer)))
        x = state[layer]
        gap, size = norm(x - sigma), norm(sigma)
        gaps.append(gap / size if size > 0.0 else (0.0 if gap == 0.0 else math.inf))
    return tuple(gaps)


@no_graph
def linear_units(problem: LiftedProblem, X: ModelInput) -> tuple[LinearUnits, ...]:
    """The percentage of units with σ(z) = z in a forward pass, as `LiftedProblem.linear_units`, without checks."""
    found = []
    network = problem.network
    values: list[Any] = [X]
    for layer in hidden_layers(len(network)):
        z = network[layer].map.apply(network.read(values, layer))
        values.append(network[layer].activate(z))
        linear = values[-1] == z
        found.append(LinearUnits(100.0 * float(linear.double().mean()), 100.0 * float(linear.all(0).double().mean())))
    return tuple(found)


def sparsity(codes: LiftedState | Tensor, layer: int | None = None) -> float:
    """The fraction (0 to 1) of exact zeros: in x_l of a state, or in a tensor of codes."""
    if isinstance(codes, LiftedState):
        if layer is None:
            raise SettingError("sparsity of a state needs the layer: give layer=1 for x_1, and so on.")
        codes = codes[layer]
    if codes.numel() == 0:
        raise TensorError(f"the codes have shape {tuple(codes.shape)}, without any numbers; give at least one sample.")
    return float((codes == 0).double().mean())


def _parameter_residual(problem: LiftedProblem, point: Point, layer: int, step: float) -> float:
    gradient = problem.parameter_gradient(point, layer)
    if problem.has_parameter_prox(layer):
        values = {name: p.detach() for name, p in problem.network[layer].map.parameters.items()}
        moved = problem.parameter_prox(layer, {name: values[name] - step * gradient[name] for name in values}, step)
        gradient = {name: (values[name] - moved[name]) / step for name in values}
    return joint_norm(gradient.values())


def _variable_residual(problem: LiftedProblem, point: Point, layer: int, step: float) -> float:
    x = point.x[layer]
    moved = problem.variable_prox(layer, x - step * problem.variable_gradient(point, layer), step)
    (length,) = join_norms(point.shard, norm(x - moved))
    return length / (step * math.sqrt(point.samples))
