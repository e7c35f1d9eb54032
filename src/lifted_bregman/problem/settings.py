"""Checks of the settings of a lifted problem: weights λ and penalties."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from numbers import Integral, Real

from lifted_bregman._arguments import positive
from lifted_bregman._text import did_you_mean
from lifted_bregman.errors import SettingError
from lifted_bregman.graph import Network
from lifted_bregman.penalties import Penalty
from lifted_bregman.problem.blocks import hidden_layers

Place = int | str
"""A term by its number, or by the name of a module or value in it."""
Weights = float | Sequence[float] | Mapping[int, float] | Mapping[str, float]
Penalties = Mapping[int, Penalty] | Mapping[str, Penalty] | Mapping[Place, Penalty]


def check_weights(weights: Weights | None, network: Network) -> tuple[float, ...]:
    """λ_1 .. λ_{L-1}, each > 0: 1 by default, or one number for all, or one for each hidden layer, or some by name."""
    depth = len(network)
    hidden = hidden_layers(depth)
    if weights is None:
        return (1.0,) * len(hidden)
    if isinstance(weights, Real):
        return (positive(float(weights), "weights"),) * len(hidden)
    if isinstance(weights, Mapping):
        given = {find(network, place, hidden, "weights", "hidden layers"): value for place, value in weights.items()}
        return tuple(positive(given.get(layer, 1.0), f"λ_{layer}") for layer in hidden)
    if isinstance(weights, str) or not isinstance(weights, Iterable) or len(values := tuple(weights)) != len(hidden):
        raise SettingError(
            f"weights is {weights!r}; the model has {depth} layers, so give {len(hidden)} numbers λ_1 .. λ_{{L-1}}, "
            "one for each hidden layer, or a single number for all of them (the loss has weight 1)."
        )
    return tuple(positive(value, f"λ_{layer}") for layer, value in zip(hidden, values, strict=True))


def check_penalties(
    given: Penalties | None, network: Network, allowed: range, name: str, kind: str
) -> dict[int, Penalty]:
    """{layer: penalty} with layers in `allowed`; `name` and `kind` are words of the error messages."""
    if given is None:
        return {}
    if not isinstance(given, Mapping):
        raise SettingError(f"{name} is {given!r}; expected {{layer: penalty}}, e.g. {{1: lb.penalties.L1(0.1)}}.")
    found: dict[int, Penalty] = {}
    for place, penalty in given.items():
        layer = find(network, place, allowed, name, kind)
        if not isinstance(penalty, Penalty):
            raise SettingError(f"{name}[{place!r}] is {penalty!r}; expected a penalty such as lb.penalties.L1(0.1).")
        if layer in found:
            raise SettingError(f"{name} names layer {layer} twice, the second time as {place!r}: give it once.")
        found[layer] = penalty
    return found


def find(network: Network, place: Place, allowed: range, name: str, kind: str) -> int:
    """The number of a term, which is given as a number or by the name of one of its modules or of its value."""
    span = f"count from {allowed[0]} to {allowed[-1]}" if allowed else "do not exist in this model"
    if isinstance(place, str):
        found = network.named(place)
        if found is None:
            known = sorted({known for layer in allowed for known in network[layer].names})
            raise SettingError(
                f"{name} names {place!r}, which this model does not have{did_you_mean(place, known)}; {kind} {span}, "
                "and problem.summary() lists their names."
            )
        place = found
    if isinstance(place, bool) or not isinstance(place, Integral) or place not in allowed:
        raise SettingError(f"{name} names layer {place!r}; {kind} {span}.")
    return int(place)
