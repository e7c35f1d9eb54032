"""A solver's state where layers are shared: what a process keeps of it, and how all of it is put together.

In the `state_dict` of a state whatever belongs to a layer has a key that is the layer's number, or ends with it: 3 of
copied parameters, "x_3" of the variables, "Θ_3" and "x_3" of power iterations (the latter on the layer above), "step_3"
of the metrics.  What counts something is added up, and goes on in the first process.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from lifted_bregman.problem import Span
from lifted_bregman.problem.span import absent

_OF_A_LAYER = re.compile(r"(.+)_(\d+)")
_VARIABLES = "LiftedState"


def own_part(entries: Mapping[str, Any], span: Span, counts: Sequence[str]) -> dict[str, Any]:
    """What the process of `span` keeps of a whole state, as `state_dict` gives it."""
    own = {key: _own(value, span, key) for key, value in entries.items()}
    if span.rank < span.count - 1:  # numbers of the whole run are then the last process's, until the next step
        own["metrics"] = {key: value for key, value in own["metrics"].items() if _layer(key) is not None}
    return own | {name: 0 for name in counts if name in own and span.rank > 0}


def _own(value: Any, span: Span, name: str) -> Any:
    if not isinstance(value, Mapping):
        return value
    if name == _VARIABLES:
        return {key: x if _layer(key) in span.held else absent(x) for key, x in value.items()}
    return {key: _own(entry, span, key) for key, entry in value.items() if _is_own(key, span, name)}


def _is_own(key: str | int, span: Span, name: str) -> bool:
    layer = _layer(key)
    on_the_layer_above = name == "power" and str(key).startswith("x_")
    return layer is None or (layer + 1 if on_the_layer_above else layer) in span.layers


def _layer(key: str | int) -> int | None:
    if isinstance(key, int):
        return key
    found = _OF_A_LAYER.fullmatch(key)
    return int(found[2]) if found else None


def collected(entries: Mapping[str, Any], span: Span, counts: Sequence[str]) -> dict[str, Any]:
    """The whole state from the parts of all processes, in the first one; one's own part in the others."""
    flat = {json.dumps(path): value for path, value in _leaves(entries, ()) if any(map(_layer, path))}
    whole = {path: value for path, value in _leaves(entries, ()) if not any(map(_layer, path))}
    whole |= {tuple(json.loads(name)): value for name, value in (span.collect(flat) or flat).items()}
    metrics = span.merged(entries["metrics"]) | added_up(entries["metrics"], span, counts)
    return _nested(whole) | added_up(entries, span, counts) | {"metrics": metrics}


def added_up(entries: Mapping[str, Any], span: Span, counts: Sequence[str]) -> dict[str, Any]:
    """The counts that are among the entries of any process, as sums over those that share the layers."""
    if not counts:
        return {}
    own = [entries.get(name, 0) for name in counts]
    there, *totals = span.total_of(any(name in entries for name in counts), *map(float, own))
    if not there:
        return {}
    return {name: _alike(total, value) for name, value, total in zip(counts, own, totals, strict=True)}


def _alike(total: float, value: Any) -> Any:
    """A total as the number or tensor () that it was made of."""
    return torch.full_like(value, total) if isinstance(value, Tensor) else type(value)(total)


def _leaves(value: Any, path: tuple[str | int, ...]) -> Iterator[tuple[tuple[str | int, ...], Any]]:
    if isinstance(value, Mapping) and value:
        for key, entry in value.items():
            yield from _leaves(entry, (*path, key))
    elif not (isinstance(value, Tensor) and path[-2:-1] == (_VARIABLES,) and value.ndim == 2 and value.shape[1] == 0):
        yield path, value


def _nested(entries: Mapping[tuple[str | int, ...], Any]) -> dict[str, Any]:
    found: dict[Any, Any] = {}
    for path, value in entries.items():
        place = found
        for key in path[:-1]:
            place = place.setdefault(key, {})
        place[path[-1]] = value
    return found
