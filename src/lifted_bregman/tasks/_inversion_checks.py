"""Checks of the arguments of `invert`, before any work starts."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from lifted_bregman._arguments import whole
from lifted_bregman.activations import Identity
from lifted_bregman.errors import CompatibilityError, DomainError, SettingError, TensorError
from lifted_bregman.graph import read_network
from lifted_bregman.losses import BregmanLoss, SquaredError
from lifted_bregman.maps import Borrowing, Convolution, Dense, TracedMap
from lifted_bregman.penalties import Penalty, Sum, TotalVariation
from lifted_bregman.problem import LiftedProblem
from lifted_bregman.problem.data_checks import require_plain
from lifted_bregman.problem.lift import lift
from lifted_bregman.problem.settings import Weights

_NAMED = 5  # samples that an error lists at most


def lift_model(
    model: nn.Module, loss: BregmanLoss | None, weights: Weights | None, example: Tensor | None
) -> LiftedProblem:
    """Lift a model; the default loss is that of its last activation, or the squared error if it ends in a map."""
    if not isinstance(model, nn.Module):
        raise SettingError(
            f"model is a {type(model).__name__}; it must be a torch.nn.Module or a problem that lb.lift has made."
        )
    if loss is None:
        final = read_network(model, example).final_activation
        loss = SquaredError() if final is None else BregmanLoss(final)
    return lift(model, loss=loss, weights=weights, example=example)


def require_one_input(problem: LiftedProblem) -> None:
    """Raise an error unless the model takes one tensor of real numbers."""
    inputs = problem.network.inputs
    if len(inputs) > 1:
        names = ", ".join(own.name for own in inputs)
        raise CompatibilityError(
            f"the model takes {len(inputs)} tensors ({names}), and inversion finds one: wrap it in a module that holds "
            "the others."
        )
    if problem.network.takes_indices():
        raise CompatibilityError(
            "the model looks its input up in an embedding, and inversion finds real numbers: invert the part of the "
            "model after the embedding."
        )


def require_shape(shape: Any) -> tuple[int, ...]:
    """Return the shape of one input as a tuple of whole numbers."""
    given = (shape,) if isinstance(shape, int) else shape
    if not isinstance(given, Sequence) or isinstance(given, str) or not given:
        raise SettingError(f"shape is {shape!r}; it must be the shape of one input, such as (1, 28, 28).")
    return tuple(whole(size, "a size in shape") for size in given)


def input_shape(problem: LiftedProblem) -> tuple[int, ...]:
    """Return the shape of one input as the model's first dense layer determines it."""
    first = [problem.network[term] for term in problem.links.readers[0]]
    dense = [layer for layer in first if isinstance(layer.map, Dense)]
    if not dense:
        raise SettingError(
            f"the shape of the model's input is not known from {first[0].path}: give shape=(channels, height, width), "
            "or the shape that one input has, or start=, a guess of the inputs."
        )
    module = dense[0].map.module  # type: ignore[attr-defined]
    return (int(module.in_features),)


def require_penalty(penalty: Any, problem: LiftedProblem, shape: tuple[int, ...]) -> None:
    """Raise an error unless the penalty is a `Penalty` that acts on the problem's inputs, of this shape."""
    if penalty is None:
        return
    if not isinstance(penalty, Penalty):
        raise SettingError(
            f"penalty is {penalty!r}; it must be one of lb.penalties, such as lb.penalties.TotalVariation(0.015)."
        )
    first, path = _first_module(problem)
    for part in penalty.parts if isinstance(penalty, Sum) else (penalty,):
        if part.of_matrices and len(shape) < 2:
            other = ", or take dims=1" if isinstance(part, TotalVariation) else ""
            flatten = "" if isinstance(first, nn.Flatten) else "put nn.Flatten() before the model and "
            raise CompatibilityError(
                f"{part!r} acts on pictures (height, width), and an input of the model has shape {shape}: {flatten}"
                f"give shape=(height, width){other}."
            )
        if isinstance(part, TotalVariation) and part.dims == 2 and isinstance(first, nn.Conv1d | nn.ConvTranspose1d):
            raise CompatibilityError(
                f"{part!r} acts on pictures (height, width), and {path} takes signals (channels, length): take dims=1."
            )
        if isinstance(part, TotalVariation) and part.dims == 1 and len(shape) > 2:
            raise CompatibilityError(
                f"{part!r} acts on signals, and an input of the model has shape {shape}: take dims=2 for pictures."
            )
    penalty.value(torch.zeros((1, *shape)))  # raises an error for a group size that does not divide the features


def _first_module(problem: LiftedProblem) -> tuple[nn.Module | None, str]:
    """Return the first module that the model's input is given to, None if it is a function, and its term's path."""
    layer = problem.network[problem.links.readers[0][0]]
    f = layer.map.base if isinstance(layer.map, Borrowing) else layer.map
    if isinstance(f, Dense):
        return nn.Flatten() if f.flatten else f.module, layer.path
    if isinstance(f, Convolution):
        return f.module, layer.path
    return (f.first_module if isinstance(f, TracedMap) else None), layer.path


def encode_outputs(problem: LiftedProblem, y: Any, u: Tensor) -> Tensor:
    """Return y as the loss encodes it, (samples, ...); errors name the samples and the nearest feasible value."""
    require_plain(y, "y")
    expected = tuple(problem.shapes(u[:1])[-1])
    if not y.is_floating_point() and tuple(y.shape[1:]) == expected:
        y = y.to(u.dtype)  # whole numbers, one for each output; labels have no dimension of the classes
    floating = y.is_floating_point()
    if floating and y.dtype != u.dtype:
        raise TensorError(f"y is {y.dtype} and the model's parameters are {u.dtype}: use y.to({u.dtype}).")
    if y.device != u.device:
        raise TensorError(f"y is on {y.device} and the model on {u.device}: use y.to({str(u.device)!r}).")
    if floating and tuple(y.shape[1:]) != expected:
        single = f": give y.unsqueeze(0) for one output of shape {expected}" if tuple(y.shape) == expected else ""
        raise TensorError(
            f"y is {tuple(y.shape)}; expected (samples, {', '.join(map(str, expected))}), the outputs of the model"
            f"{single}."
        )
    if floating:
        bad = ~y.flatten(1).isfinite().all(1)
        if bool(bad.any()):
            raise TensorError(f"y holds NaN or infinity in {_samples(bad)}: leave such outputs out.")
        _require_domain(problem, y)
    return problem.prepare(u, y)[1]


def _require_domain(problem: LiftedProblem, y: Tensor) -> None:
    """Raise an error that names the samples outside the closure of the range of the last activation or gate.

    The nearest feasible value is the limit of prox_{sΨ}(y) as s → 0: the projection onto the domain of Ψ.  A gate has
    the range [least, ∞).
    """
    top, gate = problem.network[problem.depth], problem.network.final_gate
    if gate is not None and top.activation == Identity():
        rounding = 8.0 * torch.finfo(y.dtype).eps * abs(gate.least)
        outside, last = (y < gate.least - rounding).flatten(1).any(1), gate.name
    else:
        gate, outside, last = None, ~top.contains(y), repr(top.activation)
    if not bool(outside.any()):
        return
    first = int(outside.nonzero()[0])
    given_row = y[first : first + 1].double()
    nearest = (top.prox(given_row, 1e-12) if gate is None else given_row.clamp(min=gate.least)).to(y.dtype)
    difference = (nearest - y[first : first + 1]).abs().flatten()
    place = int(difference.argmax())
    given, feasible = float(y[first].flatten()[place]), float(nearest.flatten()[place])
    raise DomainError(
        f"{_samples(outside)} of y cannot be outputs of {last}: sample {first} holds {given:.6g}, and the "
        f"nearest feasible value is {feasible:.6g}; project y onto the range of the activation first."
    )


def _samples(bad: Tensor) -> str:
    """Return "samples 0, 3, 4" or "sample 7", with at most five numbers."""
    places = bad.nonzero().flatten().tolist()
    more = f" and {len(places) - _NAMED} more" if len(places) > _NAMED else ""
    return f"sample{'s' if len(places) > 1 else ''} {', '.join(map(str, places[:_NAMED]))}{more}"


def require_tolerance(tolerance: Any) -> float:
    """Return the tolerance as a float; raise an error unless it is finite and at least 0."""
    try:
        number = float(tolerance)
    except (TypeError, ValueError):
        number = math.nan
    if not 0.0 <= number < math.inf:
        raise SettingError(f"tolerance is {tolerance!r}; it must be a finite number of at least 0.")
    return number
