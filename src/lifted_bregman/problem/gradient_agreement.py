"""A diagnostic: how close the lifted gradient is to the back-propagated one, layer by layer."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from lifted_bregman._arguments import positive
from lifted_bregman._linalg import norm
from lifted_bregman._no_graph import no_graph
from lifted_bregman.errors import CompatibilityError, SettingError
from lifted_bregman.graph.inputs import InputLike, ModelInput
from lifted_bregman.problem.blocks import hidden_layers, layers
from lifted_bregman.problem.nested import nested_gradient, not_differentiable
from lifted_bregman.problem.point import Point
from lifted_bregman.problem.state import LiftedState

if TYPE_CHECKING:
    from lifted_bregman.problem.lifted import LiftedProblem


@dataclass(frozen=True)
class GradientAgreement:
    """The lifted and the back-propagated gradient compared; entry l - 1 is for all parameters of layer l.

    Example:
        >>> problem = lb.lift(nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 2)), loss=lb.SquaredError())
        >>> agreement = lb.gradient_agreement(problem, torch.randn(10, 3), torch.randn(10, 2), weight=1000.0)
        >>> [round(cosine, 2) for cosine in agreement.cosines]
        [1.0, 1.0]
    """

    cosines: tuple[float, ...]
    """<g, b> / (‖g‖ ‖b‖) for the lifted gradient g and the back-propagated b; 1 where both vanish, 0 where one does."""
    relative_errors: tuple[float, ...]
    """‖g - b‖ / ‖b‖; 0 where both vanish, infinity where only b does."""
    variables: LiftedState
    """The x_1 .. x_{L-1} at which the lifted gradient was taken."""
    sweeps: int
    """The number of sweeps over x_1 .. x_{L-1}."""
    change: float
    """The largest ‖Δx_l‖ / ‖σ_l(z_l) - x_l‖ of the last sweep, an estimate of the signal's relative error."""


def gradient_agreement(
    problem: LiftedProblem,
    X: InputLike,
    Y: Tensor,
    weight: float | None = None,
    sweeps: int | None = None,
    tolerance: float | None = None,
    max_sweeps: int = 1000,
) -> GradientAgreement:
    """Compares ∇_{Θ_l} E at the x that minimises E for fixed Θ with the gradient of the nested objective.

    Both leave out penalties on parameters.  With all hidden λ_l = λ the signal λ d_l, d_l = σ_l(z_l) - x_l, at the
    minimiser tends to the back-propagated one, the gradient in z_l, with error O(1/λ); growing one λ_l alone is not
    enough.  Nothing is trained.  This differentiates activations, for the comparison.

    x starts at the forward pass and makes proximal gradient steps of length 1/L, from x_{L-1} down to x_1.

    Args:
        problem: Θ, the loss, penalties on variables, and λ.
        X: inputs.
        Y: targets.
        weight: λ > 0 for all hidden layers in place of the problem's own.
        sweeps: the number of sweeps over x; None to sweep until `change` is at most `tolerance`.
        tolerance: bound of `change` if `sweeps` is None, by default 1e-10 for float64 and 1e-4 for float32; rounding
            limits `change` to about λ times the precision of the dtype.
        max_sweeps: the largest number of sweeps if `sweeps` is None.

    Example:
        >>> model = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 2)).double()
        >>> problem = lb.lift(model, loss=lb.SquaredError())
        >>> X, Y = torch.randn(10, 3).double(), torch.randn(10, 2).double()
        >>> agreements = [lb.gradient_agreement(problem, X, Y, weight=weight) for weight in (10.0, 1000.0)]
        >>> agreements[1].relative_errors[0] < agreements[0].relative_errors[0] < 1
        True
    """
    if sweeps is not None and not (isinstance(sweeps, int) and sweeps >= 1):
        raise SettingError(f"sweeps is {sweeps!r}; it must be a whole number of at least 1, or None to converge.")
    missing = not_differentiable(problem)
    if missing is not None:
        raise CompatibilityError(f"gradient_agreement needs a back-propagated gradient to compare with; {missing}.")
    # x that minimises E for fixed Θ, by sweeps of proximal gradient steps
    X, Y = problem.prepare(X, Y)
    tolerance = (1e-10 if Y.dtype == torch.float64 else 1e-4) if tolerance is None else positive(tolerance, "tolerance")
    lifted = problem.with_weights(problem.weights if weight is None else weight)
    point = lifted.point(lifted.forward_state(X, check=False), X, Y)
    steps = _step_sizes(lifted, point)
    made, change = 0, math.inf
    while made < (sweeps or max_sweeps) and (sweeps is not None or change > tolerance):
        change = _sweep(lifted, point, steps)
        made += 1
    # Both gradients, layer by layer
    b = _backpropagated(problem, X, Y)
    g = [_flat(lifted.parameter_gradient(point, layer).values()) for layer in layers(problem.depth)]
    return GradientAgreement(tuple(map(_cosine, g, b)), tuple(map(_relative_error, g, b)), point.state, made, change)


@no_graph
def _step_sizes(problem: LiftedProblem, point: Point) -> dict[int, float]:
    """1/L of each x_l, for all sweeps, because Θ is fixed; half that where L is an estimate."""
    steps = {}
    for layer in hidden_layers(problem.depth):
        affine = all(problem.network[term].map.affine for term in problem.links.readers[layer])
        curvature = problem.variable_curvature(point, layer, upper=affine)
        steps[layer] = (1.0 if affine else 0.5) / max(curvature, torch.finfo(torch.float32).tiny)
    return steps


@no_graph
def _sweep(problem: LiftedProblem, point: Point, steps: dict[int, float]) -> float:
    """One proximal gradient step (eq. 17) in each x_l from the top down; the largest relative change."""
    largest = 0.0
    for layer in reversed(hidden_layers(problem.depth)):
        old, t = point.x[layer], steps[layer]
        ahead = torch.sub(old, problem.variable_gradient(point, layer), alpha=t)
        point.set_variable(layer, problem.variable_prox(layer, ahead, t))
        moved, size = norm(point.x[layer] - old), norm(point.residual(layer))
        largest = max(largest, moved / size if size > 0.0 else (0.0 if moved == 0.0 else math.inf))
    return largest


def _backpropagated(problem: LiftedProblem, X: ModelInput, Y: Tensor) -> list[Tensor]:
    """The gradient of the nested objective without penalties on parameters, by layer."""
    own = [list(problem.network[layer].map.parameters.values()) for layer in layers(problem.depth)]
    _, gradient = nested_gradient(problem, X, Y, [p for group in own for p in group], parameter_penalties=False)
    return [_flat([gradient.pop(0) for _ in group]) for group in own]


def _flat(parts: Iterable[Tensor]) -> Tensor:
    return torch.cat([part.reshape(-1) for part in parts] or [torch.zeros(0)])


def _cosine(g: Tensor, b: Tensor) -> float:
    size = norm(g) * norm(b)
    if size > 0.0:
        return float(g @ b) / size
    return 1.0 if not (bool(g.count_nonzero()) or bool(b.count_nonzero())) else 0.0


def _relative_error(g: Tensor, b: Tensor) -> float:
    gap, size = norm(g - b), norm(b)
    return gap / size if size > 0.0 else (0.0 if gap == 0.0 else math.inf)
