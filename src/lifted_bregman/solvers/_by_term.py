"""A solver's state where ranks share the terms: what a rank keeps of it, and how the whole is put together.

A state declares by its types what belongs to a term (see `SolverState`).  In the entries of `state_dict` that is

    a mapping with integer keys    one entry for each term: copies of Θ_l, vectors of power iterations, metrics by term
    {"LiftedState": ...}           the variables, of which a rank holds those of `Partition.held`

and everything else is the same on every rank.  What counts something is added up, and continues on rank 0.
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
    """What a rank keeps of a whole state, as `state_dict` gives it."""
    own: dict[str, Any] = _own(entries, partition)
    if partition.rank < partition.count - 1:  # numbers of the whole run are then the last rank's, until the next step
        own["metrics"] = {name: value for name, value in own["metrics"].items() if is_by_term(value)}
    return own | {name: 0 for name in counts if name in own and partition.rank > 0}


def collected(entries: Mapping[str, Any], border: Border, counts: Sequence[str]) -> dict[str, Any]:
    """The whole state from the parts of all ranks, on rank 0; the part of this rank on the others."""
    terms: dict[Any, Any] = {}
    for part in border.collect(_terms_only(entries, border.partition)):
        terms = _union(terms, part)
    numbers = {name: value for name, value in entries["metrics"].items() if not is_by_term(value)}
    metrics = border.all_names(numbers) | added_up(numbers, border, counts) | terms.pop("metrics", {})
    return _replaced(entries, terms) | added_up(entries, border, counts) | {"metrics": metrics}


def added_up(entries: Mapping[str, Any], border: Border, counts: Sequence[str]) -> dict[str, Any]:
    """The counts that are among the entries of any rank, as sums over those that share the terms."""
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
    """What belongs to a term, without the rest; variables by layer."""
    if is_by_term(value):
        return dict(value)
    if set(value) == {_VARIABLES}:
        variables = LiftedState.from_state_dict(value[_VARIABLES])
        return {_VARIABLES: {layer: variables[layer] for layer in partition.held}}
    found = {key: _terms_only(entry, partition) for key, entry in value.items() if isinstance(entry, Mapping)}
    return {key: entry for key, entry in found.items() if entry}


def _union(first: Mapping[Any, Any], second: Mapping[Any, Any]) -> dict[Any, Any]:
    """The entries of both; of what both have, that of the first."""
    shared = {key: _union(first[key], entry) for key, entry in second.items() if isinstance(first.get(key), Mapping)}
    return {**second, **first, **shared}


def _replaced(entries: Mapping[str, Any], terms: Mapping[str, Any]) -> dict[str, Any]:
    """The entries, with what belongs to a term as `terms` has it."""
    found = dict(entries)
    for key, entry in terms.items():
        if key == _VARIABLES:
            found[key] = LiftedState(entry[layer] for layer in sorted(entry)).state_dict()
        else:
            found[key] = entry if is_by_term(entry) else _replaced(entries.get(key, {}), entry)
    return found


def _alike(total: float, value: Any) -> Any:
    """A total as the number or tensor () that it was made of."""
    return torch.full_like(value, total) if isinstance(value, Tensor) else type(value)(total)
