"""A solver's state where layers are shared: what a process keeps of it, and how all of it is put together.

In the `state_dict` of a state whatever belongs to a layer has a key that ends with the layer's number: "x_3" of the
variables, "Θ_3" and "x_3" of power iterations (the latter on the layer above), "step_3" of the metrics.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

from torch import Tensor

from lifted_bregman.problem import Span
from lifted_bregman.problem.blocks import above
from lifted_bregman.problem.span import absent

_OF_A_LAYER = re.compile(r"(.+)_(\d+)")
_VARIABLES = "LiftedState"


def own_part(entries: Mapping[str, Any], span: Span) -> dict[str, Any]:
    """What the process of `span` keeps of a whole state, as `state_dict` gives it."""
    return {key: _own(value, span, key) for key, value in entries.items()}


def _own(value: Any, span: Span, name: str) -> Any:
    if not isinstance(value, Mapping):
        return value
    if name == _VARIABLES:
        return {key: x if _layer(key) in span.held else absent(x) for key, x in value.items()}
    return {key: _own(entry, span, key) for key, entry in value.items() if _is_own(key, span, name)}


def _is_own(key: str, span: Span, name: str) -> bool:
    layer = _layer(key)
    return layer is None or (above(layer) if name == "power" and key.startswith("x_") else layer) in span.layers


def _layer(key: str) -> int | None:
    found = _OF_A_LAYER.fullmatch(key)
    return int(found[2]) if found else None


def collected(entries: Mapping[str, Any], span: Span) -> dict[str, Any]:
    """The whole state from the parts of all processes, in the first one; one's own part in the others."""
    flat = {"/".join(path): value for path, value in _leaves(entries, ()) if any(map(_layer, path))}
    whole = {path: value for path, value in _leaves(entries, ()) if not any(map(_layer, path))}
    whole |= {tuple(name.split("/")): value for name, value in (span.collect(flat) or flat).items()}
    return _nested(whole)


def _leaves(value: Any, path: tuple[str, ...]) -> Iterator[tuple[tuple[str, ...], Any]]:
    if isinstance(value, Mapping) and value:
        for key, entry in value.items():
            yield from _leaves(entry, (*path, key))
    elif not (isinstance(value, Tensor) and path[-2:-1] == (_VARIABLES,) and value.ndim == 2 and value.shape[1] == 0):
        yield path, value


def _nested(entries: Mapping[tuple[str, ...], Any]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for path, value in entries.items():
        place = found
        for key in path[:-1]:
            place = place.setdefault(key, {})
        place[path[-1]] = value
    return found
