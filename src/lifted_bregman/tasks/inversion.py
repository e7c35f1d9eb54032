"""`invert`: inputs of a fixed network whose outputs are given."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from lifted_bregman._arguments import whole
from lifted_bregman.errors import LiftedBregmanError, SettingError, TensorError, UnsupportedModuleError
from lifted_bregman.losses import BregmanLoss
from lifted_bregman.maps.determinism import require_pure
from lifted_bregman.penalties import Penalty
from lifted_bregman.problem import LiftedProblem
from lifted_bregman.problem.settings import Weights
from lifted_bregman.tasks import _inversion_checks as checks
from lifted_bregman.tasks._inverse_problem import InverseProblem
from lifted_bregman.tasks._run_inversion import Row, run_inversion
from lifted_bregman.tasks.descent import DescentInversion
from lifted_bregman.tasks.inversion_result import Inversion
from lifted_bregman.tasks.inversion_solver import InversionSolver
from lifted_bregman.tasks.primal_dual import PrimalDualInversion


def invert(
    model: nn.Module | LiftedProblem,
    y: Tensor,
    *,
    penalty: Penalty | None = None,
    loss: BregmanLoss | None = None,
    weights: Weights | None = None,
    shape: tuple[int, ...] | int | None = None,
    example: Tensor | None = None,
    start: Tensor | None = None,
    solver: InversionSolver[Any] | None = None,
    steps: int = 2000,
    tolerance: float = 1e-6,
    record_every: int = 10,
    callback: Callable[[Row], bool | None] | None = None,
) -> Inversion:
    """Finds inputs u whose outputs are close to y, with the model's parameters fixed and its activations proximal maps.

        min over u and x_1 .. x_{L-1} of  Σ_v λ_v B_v(x_v, f_v(...)) + J(u),    x_0 = u, x_L = y

    One layer with an affine map is a convex problem: `PrimalDualInversion` solves it and certifies the gap.  Deeper
    networks are not convex: `DescentInversion` finds a stationary point.  Samples are independent of each other.

    Args:
        model: a network in evaluation mode, or the problem that `lift` makes of it.  It is not changed.
        y: outputs, (samples, ...), in the range of the last activation; labels where the loss takes them.
        penalty: J, its weight α included, such as `TotalVariation(0.015)`; sums are written with +.  None for no
            penalty: then the input is not unique in general, and depends on the start.
        loss: B_L; by default that of the model's last activation, or `SquaredError()` after a map.
        weights: λ_1 .. λ_{L-1} > 0, as for `lift`.
        shape: that of one input, such as (1, 28, 28); needed if the first map is not dense.
        example: inputs that `lift` runs the model on, if its code reads shapes; they also give the shape.
        start: a guess of the inputs, (samples, ...); 0 by default.  The hidden variables start from its forward pass.
        solver: `PrimalDualInversion()` or `DescentInversion()`; by default the first where the problem is convex.
        steps: the maximum number of steps.
        tolerance: where to stop: for `PrimalDualInversion` at gap <= tolerance·(1 + E), for `DescentInversion` at
            ‖x - x⁺‖ <= tolerance·max(1, ‖x‖), of every sample.
        record_every: steps between rows of the history; the tolerance is checked at each row.
        callback: called with each new row; a true value ends the inversion.

    Example:
        >>> layer, u = nn.Linear(3, 4), torch.rand(1, 3)
        >>> found = lb.invert(layer, layer(u).detach())
        >>> torch.allclose(found.input, u, atol=1e-2)
        True
        >>> found.outcome.name
        'CONVERGED'
    """
    steps, record_every = whole(steps, "steps"), whole(record_every, "record_every")
    tolerance = checks.require_tolerance(tolerance)
    if solver is not None and not isinstance(solver, InversionSolver):
        raise SettingError(f"solver is {solver!r}; it must be PrimalDualInversion() or DescentInversion().")
    given_shape = None if shape is None else checks.require_shape(shape)
    # Lift the model; its parameters are fixed.
    if isinstance(model, LiftedProblem):
        if loss is not None or weights is not None:
            raise SettingError("a lifted problem has its loss and weights already: give them to lb.lift.")
        problem = model
    else:
        problem = _lifted(model, loss, weights, given_shape, example, start)
    checks.require_one_input(problem)
    require_pure(problem.model)  # in training mode the shape of the input may be unknown too
    # The start u_0, which has the shape of the inputs.
    u = _start(problem, y, given_shape, example, start)
    problem.forward_state(u)  # checks the start
    checks.require_penalty(penalty, problem, tuple(u.shape[1:]))
    inverse = InverseProblem(problem, checks.encode_outputs(problem, y, u), penalty)
    if solver is None:
        solver = PrimalDualInversion() if inverse.convex else DescentInversion()
    solver.require(inverse)
    # Steps from u_0 until the tolerance holds.
    if penalty is not None:
        u = inverse.prox(0, u, 1e-9)  # prox_{tJ}(u_0) with a tiny t projects u_0 onto the constraints of J
    return run_inversion(inverse, solver, u, steps, tolerance, record_every, callback)


def _lifted(
    model: Any,
    loss: BregmanLoss | None,
    weights: Weights | None,
    shape: tuple[int, ...] | None,
    example: Tensor | None,
    start: Tensor | None,
) -> LiftedProblem:
    """Lift the model at the example; if none is given, at the start or at zeros of the given shape."""
    like = next(model.parameters(), None) if isinstance(model, nn.Module) else None
    if example is not None or like is None or (shape is None and not isinstance(start, Tensor)):
        return checks.lift_model(model, loss, weights, example)
    tried = (
        start if isinstance(start, Tensor) else torch.zeros((2, *(shape or ())), dtype=like.dtype, device=like.device)
    )
    try:
        return checks.lift_model(model, loss, weights, tried)
    except UnsupportedModuleError as error:
        # If the model can be lifted without an example, the shape is wrong: `forward_state` then names it.
        try:
            return checks.lift_model(model, loss, weights, None)
        except LiftedBregmanError:
            raise error from None


def _start(
    problem: LiftedProblem, y: Any, shape: tuple[int, ...] | None, example: Tensor | None, start: Tensor | None
) -> Tensor:
    """Return the guess, or zeros of the given or known shape, one for each output."""
    samples = len(y) if isinstance(y, Tensor) and y.ndim else 1
    if samples == 0:
        raise TensorError(f"y has shape {tuple(y.shape)}, which holds no sample: give at least one, (samples, ...).")
    if start is not None:
        if not isinstance(start, Tensor) or start.ndim == 0 or len(start) != samples:
            given = tuple(start.shape) if isinstance(start, Tensor) else type(start).__name__
            raise TensorError(f"start is {given} and y has {samples} samples: give one guess for each output.")
        if shape is not None and tuple(start.shape[1:]) != shape:
            raise TensorError(f"start is {tuple(start.shape)} and shape is {shape}: leave one of the two out.")
        return start.detach().clone()
    if shape is None:
        shape = tuple(example.shape[1:]) if isinstance(example, Tensor) else checks.input_shape(problem)
    like = next(problem.model.parameters())
    return torch.zeros((samples, *shape), dtype=like.dtype, device=like.device)
