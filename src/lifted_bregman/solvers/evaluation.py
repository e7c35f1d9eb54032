"""Objective, accuracy, energies and certificates at the present parameters and variables."""

from __future__ import annotations

import math
from collections.abc import Iterable
from numbers import Real
from typing import Any

from torch import Tensor

from lifted_bregman.errors import SettingError
from lifted_bregman.problem import LiftedProblem, LiftedState, energies
from lifted_bregman.problem.blocks import code_layer, layers
from lifted_bregman.problem.diagnostics import certificates
from lifted_bregman.problem.shard import sum_numbers
from lifted_bregman.solvers._meter import hits
from lifted_bregman.solvers._shares import own_variables
from lifted_bregman.solvers.data_ranks import DataRanks
from lifted_bregman.solvers.interface import Batch, Solver, SolverState

_ALONE = DataRanks()
_AT_ONCE = 4096  # samples evaluated together, which bounds the memory that a row needs


def evaluate_network(
    problem: LiftedProblem, data: Batch, classify: bool, ranks: DataRanks = _ALONE, by_layer: bool = False
) -> dict[str, float]:
    """The nested network on `data`: "objective", "sparsity" of the middle layer, and with `classify` "accuracy".

    The objective is the weighted mean where the batch has weights.  The sparsity is the fraction of exact zeros in
    x_c, c = `code_layer`; a network without hidden layers has none.  With `by_layer` there are "energy", and "energy_1"
    .. "energy_L", at the forward pass, where the energy is the objective.  Each rank evaluates its shard of the data
    and its layers of the problem; the sums are over all ranks.
    """
    partition, middle = problem.partition, code_layer(problem.depth)
    objective = zeros = numbers = right = 0.0
    parts = dict.fromkeys(_names(problem) if by_layer else (), 0.0)
    own = data.share(ranks)
    for piece in _pieces(own):
        state = problem.forward_state(piece.X, check=False)
        point, share = problem.point(state, piece.X, piece.Y, piece.weights), len(piece) / len(data)
        objective += float(energies.objective(problem, point)) * share
        if by_layer:
            for name, part in _named(energies.layer_objectives(problem, point)).items():
                parts[name] += part * share
        if middle in partition.hidden:
            code = state[middle]
            zeros += code.numel() - int(code.count_nonzero())
            numbers += code.numel()
        if classify and problem.depth in partition.terms:
            right += float(hits(point.z(problem.depth), piece.Y).sum())
    sums = sum_numbers(own.shard, objective, zeros, numbers, right)
    objective, zeros, numbers, right = problem.border.sum_numbers(*sums)
    values = {"objective": objective}
    if numbers:
        values["sparsity"] = zeros / numbers
    if classify:
        values["accuracy"] = right / len(data)
    return values | dict(zip(parts, sum_numbers(own.shard, *parts.values()), strict=True))


def evaluate_batches(problem: LiftedProblem, batches: Iterable[Batch], classify: bool) -> dict[str, float]:
    """The means of `evaluate_network` over all samples of the batches, of which one is in memory at a time."""
    sums: dict[str, float] = {}
    samples = 0
    for batch in batches:
        for name, value in evaluate_network(problem, batch, classify).items():
            sums[name] = sums.get(name, 0.0) + value * len(batch)
        samples += len(batch)
    return {name: value / samples for name, value in sums.items()}


def lifted_energies(
    problem: LiftedProblem, state: SolverState, data: Batch, last: Batch, ranks: DataRanks = _ALONE
) -> dict[str, float]:
    """ "energy", and "energy_1" .. "energy_L" by layer, at the solver's own variables; {} for a solver without any.

    The energy is that of the whole set if the solver keeps variables of all samples; samples not yet visited count at
    the forward pass.  For a solver with variables of the last batch only, it is the energy of that batch.
    """
    variables = state.variables
    if variables is not None and len(variables):
        kept = len(variables[1])
        if kept == len(data):
            return _of_state(problem, _begun(problem, variables, _visited(state), data), data, ranks)
        if kept == len(last):
            return _of_state(problem, variables, last, ranks)
    return {}


def require_certificates(solver: Solver[Any], state: SolverState, tolerance: float, whole_set: bool) -> None:
    """An error unless `tolerance` is a number >= 0 and the solver has the variables of all samples, to certify.

    whole_set: whether every step takes the whole set.
    """
    if isinstance(tolerance, bool) or not isinstance(tolerance, Real) or not 0.0 <= tolerance < math.inf:
        raise SettingError(f"tolerance is {tolerance!r}; it must be a finite number of at least 0, or None.")
    if state.variables is None and not (whole_set and solver.batch_variables):
        raise SettingError(
            f"tolerance is {tolerance!r}, but {type(solver).__name__} does not keep the variables of the whole set, "
            "whose certificates it is compared with: leave it out, or use a solver such as ProximalGradient."
        )


def largest_certificate(
    problem: LiftedProblem, state: SolverState, data: Batch, ranks: DataRanks = _ALONE
) -> float | None:
    """The largest of `LiftedProblem.certificates`, over all ranks.

    Samples not yet visited are at the forward pass.  None if the state does not have the variables of all samples.
    """
    variables = state.variables
    if variables is None or (len(variables) and len(variables[1]) != len(data)):
        return None
    variables = _begun(problem, variables, _visited(state), data)
    if ranks.count == problem.partition.count == 1:
        return problem.certificates(variables, data.X, data.Y, weights=data.weights).largest
    own = data.share(ranks)
    point = own.point(problem, own_variables(own.shard, variables))
    return problem.border.largest(certificates(problem, point).largest)


def _visited(state: SolverState) -> Tensor | None:
    """Which samples have been visited, for a solver (or a wrapped one) that starts variables batch by batch."""
    inner = getattr(state, "inner", None)
    return _visited(inner) if isinstance(inner, SolverState) else getattr(state, "visited", None)


def _begun(problem: LiftedProblem, variables: LiftedState, visited: Tensor | None, data: Batch) -> LiftedState:
    """The variables, with the forward pass for samples that were not visited."""
    if visited is None or bool(visited.all()):
        return variables
    ahead, variables = (~visited).nonzero().squeeze(1).to(data.index.device), variables.clone()
    for piece in _pieces(data.select(ahead)):
        variables.update(piece.index.to(visited.device), problem.forward_state(piece.X, check=False))
    return variables


def _of_state(problem: LiftedProblem, variables: LiftedState, batch: Batch, ranks: DataRanks) -> dict[str, float]:
    own = batch.share(ranks)
    return _named(energies.layer_energies(problem, own.point(problem, own_variables(own.shard, variables))))


def _names(problem: LiftedProblem) -> list[str]:
    return ["energy", *(f"energy_{l}" for l in layers(problem.depth))]


def _named(parts: Tensor) -> dict[str, float]:
    """An energy and its parts by layer."""
    named = {f"energy_{l}": float(part) for l, part in zip(layers(len(parts)), parts, strict=True)}
    return {"energy": float(parts.sum())} | named


def _pieces(data: Batch) -> list[Batch]:
    return [data.slice(start, start + _AT_ONCE) for start in range(0, len(data), _AT_ONCE)]
