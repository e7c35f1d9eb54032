"""A solver's state where ranks share the terms: the part of each rank, and how the parts are gathered.

A state declares by its types what belongs to a term (see `SolverState`).  In the entries of `state_dict` that is

    a mapping with integer keys    one entry for each term: copies of Θ_l, vectors of power iterations, metrics by term
    {"LiftedState": ...}           the variables, of which a rank holds those of `Partition.held`

All other entries are the same on every rank.  Counters are summed over ranks; a resumed run keeps them on rank 0.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from lifted_bregman.graph import Partition
from lifted_bregman.problem import Border, LiftedState
from lifted_bregman.problem.border import absent

_VARIABLES = "LiftedState"


def own_terms(entries: Mapping[str, Any], partition: Partition, counts: Sequence[str]) -> dict[str, Any]:
    """The part of a rank of the whole state, in the form of `state_dict`."""
    own: dict[str, Any] = _own(entries, partition)
    if partition.rank < partition.count - 1:  # until the next step only the last rank has metrics of the whole run
        own["metrics"] = {name: value for name, value in own["metrics"].items() if is_by_term(value)}
    return own | {name: 0 for name in counts if name in own and partition.rank > 0}


def collected(entries: Mapping[str, Any], border: Border, counts: Sequence[str]) -> dict[str, Any]:
    """The whole state, gathered on rank 0; other ranks return their own part."""
    terms: dict[Any, Any] = {}
    for part in border.collect(_terms_only(entries, border.partition)):
        terms = _union(terms, part)
    numbers = {name: value for name, value in entries["metrics"].items() if not is_by_term(value)}
    metrics = border.all_names(numbers) | added_up(numbers, border, counts) | terms.pop("metrics", {})
    return _replaced(entries, terms) | added_up(entries, border, counts) | {"metrics": metrics}


def added_up(entries: Mapping[str, Any], border: Border, counts: Sequence[str]) -> dict[str, Any]:
    """The counters among the entries, summed over the ranks that share the terms."""
    if not counts:
        return {}
    own = [entries.get(name, 0) for name in counts]
    there, *totals = border.sum_numbers(any(name in entries for name in counts), *map(float, own))
    if not there:
        return {}
    return {name: _alike(total, value) for name, value, total in zip(counts, own, totals, strict=True)}


def is_by_term(value: Any) -> bool:
    """Whether an entry of a state is a mapping by term."""
    return isinstance(value, Mapping) and any(isinstance(key, int) for key in value)


def _own(value: Any, partition: Partition) -> Any:
    """The entries of this rank's terms; variables that it does not hold are empty tensors of shape (samples, 0)."""
    if not isinstance(value, Mapping):
        return value
    if is_by_term(value):
        return {term: entry for term, entry in value.items() if term in partition.terms}
    if set(value) == {_VARIABLES}:
        variables = enumerate(LiftedState.from_state_dict(value[_VARIABLES]), start=1)
        held = LiftedState(x if layer in partition.held else absent(x) for layer, x in variables)
        return {_VARIABLES: held.state_dict()}
    return {key: _own(entry, partition) for key, entry in value.items()}


def _terms_only(value: Mapping[Any, Any], partition: Partition) -> dict[Any, Any]:
    """The entries that belong to a term; variables by layer."""
    if is_by_term(value):
        return dict(value)
    if set(value) == {_VARIABLES}:
        variables = LiftedState.from_state_dict(value[_VARIABLES])
        return {_VARIABLES: {layer: variables[layer] for layer in partition.held}}
    found = {key: _terms_only(entry, partition) for key, entry in value.items() if isinstance(entry, Mapping)}
    return {key: entry for key, entry in found.items() if entry}


def _union(first: Mapping[Any, Any], second: Mapping[Any, Any]) -> dict[Any, Any]:
    """The entries of both; the first takes precedence."""
    shared = {key: _union(first[key], entry) for key, entry in second.items() if isinstance(first.get(key), Mapping)}
    return {**second, **first, **shared}


def _replaced(entries: Mapping[str, Any], terms: Mapping[str, Any]) -> dict[str, Any]:
    """The entries, with those that belong to a term replaced by `terms`."""
    found = dict(entries)
    for key, entry in terms.items():
        if key == _VARIABLES:
            found[key] = LiftedState(entry[layer] for layer in sorted(entry)).state_dict()
        else:
            found[key] = entry if is_by_term(entry) else _replaced(entries.get(key, {}), entry)
    return found


def _alike(total: float, value: Any) -> Any:
    """A total in the type of `value`: a number, or a tensor of shape ()."""
    return torch.full_like(value, total) if isinstance(value, Tensor) else type(value)(total)
