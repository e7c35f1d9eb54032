"""The settings of a lifted problem: weights λ and penalties, checked before anything is built."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from numbers import Integral, Real

from lifted_bregman.activations._base import positive
from lifted_bregman.errors import SettingError
from lifted_bregman.penalties import Penalty
from lifted_bregman.problem.blocks import hidden_layers


def check_weights(weights: float | Sequence[float] | None, depth: int) -> tuple[float, ...]:
    """λ_1 .. λ_{L-1}, each > 0: 1 by default, or one number for all, or one for each hidden layer."""
    count = len(hidden_layers(depth))
    if weights is None:
        return (1.0,) * count
    if isinstance(weights, Real):
        return (positive(float(weights), "weights"),) * count
    if isinstance(weights, str) or not isinstance(weights, Iterable) or len(values := tuple(weights)) != count:
        raise SettingError(
            f"weights is {weights!r}; the model has {depth} layers, so give {count} numbers λ_1 .. λ_{{L-1}}, one for "
            "each hidden layer, or a single number for all of them (the loss has weight 1)."
        )
    return tuple(positive(value, f"λ_{layer}") for layer, value in zip(hidden_layers(depth), values, strict=True))


def check_penalties(given: Mapping[int, Penalty] | None, allowed: range, name: str, kind: str) -> dict[int, Penalty]:
    """{layer: penalty} with layers in `allowed`; `name` and `kind` are for the error messages."""
    if given is None:
        return {}
    if not isinstance(given, Mapping):
        raise SettingError(f"{name} is {given!r}; expected {{layer: penalty}}, e.g. {{1: lb.penalties.L1(0.1)}}.")
    for layer, penalty in given.items():
        if isinstance(layer, bool) or not isinstance(layer, Integral) or layer not in allowed:
            span = f"count from {allowed[0]} to {allowed[-1]}" if allowed else "do not exist in this model"
            raise SettingError(f"{name} names layer {layer!r}; {kind} {span}.")
        if not isinstance(penalty, Penalty):
            raise SettingError(f"{name}[{layer}] is {penalty!r}; expected a penalty such as lb.penalties.L1(0.1).")
    return {int(layer): penalty for layer, penalty in given.items()}
