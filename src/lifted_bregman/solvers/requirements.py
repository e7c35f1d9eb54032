"""Checks before a run that a solver can take the problem, its data and its ranks."""

from __future__ import annotations

from typing import Any

from lifted_bregman._autocast import autocast_dtype
from lifted_bregman.graph import Partition
from lifted_bregman.problem import LiftedProblem
from lifted_bregman.solvers.data_ranks import DataRanks
from lifted_bregman.solvers.interface import Batch, Solver, lacking


def require_streamable(solver: Solver[Any]) -> None:
    """Raises `CompatibilityError` unless the solver can take a stream of batches."""
    required = None
    if solver.indexed:
        required = "samples that have a place in a set, because its state has a row for each of them"
    elif not solver.minibatch:
        required = "the whole set at every step"
    if required is not None:
        raise lacking(
            solver,
            required,
            "the data are a stream of batches, which come and go: give tensors (X, Y), or hold the set in memory by "
            "lb.data.gathered(data), or use GramSweep, ImplicitSGD or a baseline such as AdamW",
        )


def require_compatible(
    solver: Solver[Any], problem: LiftedProblem, data: Batch, ranks: DataRanks, partition: Partition
) -> None:
    """Raises `CompatibilityError`, which says what is required, what is missing, and which solvers to use instead."""
    network = problem.network
    # dtype of the maps
    if (half := autocast_dtype(like := next(problem.model.parameters()))) is not None and not solver.autocast:
        kind = like.device.type
        raise lacking(
            solver,
            f"maps that compute in the model's {like.dtype}",
            f"autocast is active for {kind}, so that layers would return {half}; put the call into `with "
            f"torch.autocast({kind!r}, enabled=False):`, or use GramSweep or a baseline such as AdamW",
        )
    # Sample weights
    if data.weights is not None and not solver.weighted:
        raise lacking(solver, "samples that all count the same", "sample weights were given; leave them out")
    if data.weights is not None and network.couples_samples:
        raise lacking(
            solver,
            "maps that treat each sample alone where samples have weights",
            f"{_first(problem, 'couples_samples')} couples them; call model.eval(), or leave the weights out",
        )
    # Parameters that occur in several terms
    if network.shared and not solver.shared_parameters:
        name, terms = next(iter(network.shared.items()))
        raise lacking(
            solver,
            "parameters that occur in one term each",
            f"{name} occurs in {len(terms)}; use GramSweep, ImplicitSGD, ProximalGradient or a baseline such as AdamW",
        )
    # Training or evaluation mode: the one in which the model was lifted
    if network.in_other_mode:
        raise lacking(
            solver,
            "a model in the mode in which it was lifted",
            "its forward does something else in the other mode, and the mode has changed since; call model.train() or "
            "model.eval() before lift, and lift it again",
        )
    if (left_out := network.skipped_active) is not None:
        raise lacking(
            solver,
            "a model in the mode in which it was lifted",
            f"its {left_out} was left out in evaluation mode and is active now; call model.train() before lift, or "
            "model.eval() now",
        )
    # Batch normalisation, dropout and noise in training mode
    if (network.couples_samples or network.random) and not solver.training_mode:
        kind = "couples_samples" if network.couples_samples else "random"
        raise lacking(
            solver,
            "maps that are functions of each sample alone",
            f"{_first(problem, kind)} is none in training mode; call model.eval(), or use GramSweep, ImplicitSGD or "
            "a baseline such as AdamW",
        )
    parts = getattr(solver, "micro_batches", 1)
    if (network.couples_samples or network.random) and parts > 1:
        raise lacking(
            solver,
            "batches in one part where maps couple samples or are random",
            f"it has micro_batches={parts}; use micro_batches=1, or call model.eval()",
        )
    # Ranks that share the batch, or the terms
    if ranks.count > 1:
        _require_data_parallel(solver, problem, ranks)
    if partition.count > 1:
        _require_layer_parallel(solver, problem, partition)


def require_affine(solver: Solver[Any], problem: LiftedProblem, purpose: str) -> None:
    """Raises `CompatibilityError` unless every map is affine; `purpose` says what the solver needs that for."""
    others = [layer.path for layer in problem.network if not layer.map.affine]
    if others:
        required = f"affine maps (nn.Linear, convolutions, average pooling, Flatten), {purpose}"
        raise lacking(solver, required, f"{', '.join(others)} may not be affine")


def _require_data_parallel(solver: Solver[Any], problem: LiftedProblem, ranks: DataRanks) -> None:
    if not solver.data_parallel:
        required = "the whole of each batch in one process"
        missing = f"{ranks.count} processes share it; use one, or GramSweep, ImplicitSGD or ProximalGradient"
        raise lacking(solver, required, missing)
    if problem.network.couples_samples or problem.network.random:
        kind = "couples_samples" if problem.network.couples_samples else "random"
        required = "maps that are functions of each sample alone where several processes share a batch"
        raise lacking(solver, required, f"{_first(problem, kind)} is none; use one process, or call model.eval()")


def _require_layer_parallel(solver: Solver[Any], problem: LiftedProblem, partition: Partition) -> None:
    if not solver.layer_parallel:
        required = "all layers in one process, for it moves them one after another"
        instead = "GramSweep, PipelinedSweep, or ProximalGradient with Jacobi sweeps"
        raise lacking(solver, required, f"{partition.count} processes share them; use one, or {instead}")
    if not problem.links.is_chain:
        required = "a chain of layers, where several processes share them"
        raise lacking(solver, required, "the model is none; use Parallel(data=...) or one process")
    if problem.network.couples_samples or problem.network.random:
        kind = "couples_samples" if problem.network.couples_samples else "random"
        required = "maps that are functions of each sample alone where several processes share the layers"
        raise lacking(solver, required, f"{_first(problem, kind)} is none; use one process, or call model.eval()")


def _first(problem: LiftedProblem, flag: str) -> str:
    """The path of the first map that has a flag."""
    return next((layer.path for layer in problem.network if getattr(layer.map, flag)), "dropout")
