"""What the processes of a crew do in the tests of layer-parallel solvers."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import torch
from torch import nn

import lifted_bregman as lb
from lifted_bregman import solvers
from lifted_bregman.distributed.balance import balanced, layer_costs
from lifted_bregman.problem import Border
from lifted_bregman.solvers import DataRanks
from tests.distributed.bodies import BATCH, SAMPLES, problem_of
from tests.distributed.crew import Mate
from tests.distributed.numbers import outcome_of


def deep(samples: int) -> tuple[lb.LiftedProblem, torch.Tensor, torch.Tensor]:
    """Six layers of different widths, with penalties on both kinds of blocks."""
    torch.manual_seed(9)
    widths = (5, 9, 7, 8, 6, 7, 3)
    modules: list[nn.Module] = []
    for inputs, outputs in itertools.pairwise(widths):
        modules += [nn.Linear(inputs, outputs), nn.ReLU() if outputs % 2 else nn.Tanh()]
    problem = lb.lift(
        nn.Sequential(*modules[:-1]).double(),
        loss=lb.SquaredError(),
        weights=[0.7, 1.3, 0.9, 1.1, 0.8],
        penalties={2: lb.penalties.L1(0.02)},
        parameter_penalties={4: lb.penalties.L1(1e-3)},
    )
    return problem, torch.randn(samples, 5, dtype=torch.float64), torch.randn(samples, 3, dtype=torch.float64)


def _problem(name: str, dtype: torch.dtype) -> tuple[lb.LiftedProblem, Any, Any]:
    problem, X, Y = deep(SAMPLES) if name == "deep" else problem_of(name, dtype)
    problem.model.to(dtype)
    return problem, X.to(dtype), Y.to(dtype) if Y.is_floating_point() else Y


def company(mate: Mate, problem: lb.LiftedProblem, X: torch.Tensor, data: int) -> tuple[DataRanks, Border]:
    """Ranks and border of a mate, where `data` processes share the samples and the others the layers."""
    if mate.size == 1:
        return DataRanks(), problem.border
    from lifted_bregman.distributed import ProcessBorder, ProcessRanks

    with_layers, with_samples = (None, mate.group) if data == 1 else mate.pairs
    count = mate.size // data
    border = problem.border
    if count > 1:
        border = ProcessBorder(problem.links, balanced(layer_costs(problem, X), count), with_samples)
    return (ProcessRanks(with_layers) if data > 1 else DataRanks()), border


def run_of(
    mate: Mate, name: str, solver: Any, dtype: torch.dtype = torch.float64, data: int = 1, **settings: Any
) -> solvers.Run:
    """A run with weights of samples and a validation set."""
    problem, X, Y = _problem(name, dtype)
    weights = torch.linspace(0.4, 1.9, len(X), dtype=dtype)
    batch = solvers.Batch.whole(problem, X, Y, weights)
    ranks, border = company(mate, problem, X, data)
    return solvers.Run(
        problem,
        solver,
        batch,
        batch_size=BATCH if solver.minibatch else None,
        seed=3,
        validation=batch.slice(0, 6),
        classify=name == "classes",
        ranks=ranks,
        border=border,
        agreement=mate.agreement(),
        **{"epochs": 3, "tolerance": None if solver.minibatch else 1e-9, **settings},
    )


def train(mate: Mate, name: str, solver: Any, **settings: Any) -> Any:
    """All that a run leaves, brought together; the history in all processes, the rest in the first."""
    run = run_of(mate, name, solver, **settings)
    found = outcome_of(run)
    run.collect()
    whole = run.state_dict()
    found |= {"state": whole["solver"], "work": whole["work"]}
    return found if mate.rank == 0 else {key: found[key] for key in ("outcome", "parameters", "history")}


def without_solutions(mate: Mate, body: Callable[..., Any], *arguments: Any) -> Any:
    """One of these bodies where no matrix has a factor: each metric is a multiple of the identity, and counted."""
    real = torch.linalg.cholesky_ex
    torch.linalg.cholesky_ex = lambda K: (real(K)[0], torch.ones(K.shape[:-2], dtype=torch.int))  # type: ignore[assignment]
    try:
        return body(mate, *arguments)
    finally:
        torch.linalg.cholesky_ex = real


def parameters_before_the_end(mate: Mate, name: str, solver: Any) -> Any:
    """The parameters of each process after a few steps, without any collecting; and its own layers."""
    run = run_of(mate, name, solver, tolerance=None)
    start = [p.detach().clone() for p in run.problem.model.parameters()]
    batch = run.source.first
    for _ in range(8):  # a step carries the error one layer further down
        run.state = solver.step(run.rank_problem, run.state, batch)
    network = run.problem.network
    moved = [
        layer
        for layer in range(1, len(network) + 1)
        if any(
            not torch.equal(p, q)
            for p, q in zip(
                (p for p in network[layer].map.parameters.values()),
                (q for q, p in zip(start, run.problem.model.parameters(), strict=True) if _is_of(p, network[layer])),
                strict=True,
            )
        )
    ]
    return moved, list(run.partition.terms), [tuple(x.shape) for x in run.state.variables or ()]


def _is_of(parameter: torch.Tensor, layer: Any) -> bool:
    return any(parameter is own for own in layer.map.parameters.values())


def places(mate: Mate, name: str, solver: Any, entries: Any = None) -> Any:
    """Where the tensors of a state stand after three steps, or once `entries` were loaded; and the layers here."""
    run = run_of(mate, name, solver, tolerance=None)
    if entries is not None:
        run.load_state_dict(entries)
    else:
        for _ in range(3):
            if run.epoch_over:
                run.start_epoch(run.epoch + 1)
            run.take_step()
    found = _tensors(run.state.state_dict(), ())
    run.collect()
    return found, list(run.partition.terms), run.state_dict() if mate.rank == 0 else None


def _tensors(value: Any, path: tuple[Any, ...]) -> list[tuple[Any, ...]]:
    """The paths of all tensors that hold numbers."""
    if isinstance(value, torch.Tensor):
        return [path] if value.numel() else []
    entries = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    return [found for key, entry in entries for found in _tensors(entry, (*path, key))]


def resume(mate: Mate, name: str, solver: Any, entries: Any, data: int = 1, **settings: Any) -> Any:
    """Goes on from parameters, state and history of another run."""
    run = run_of(mate, name, solver, data=data, **settings)
    run.problem.model.load_state_dict(entries["parameters"])
    run.history += entries["history"]
    run.load_state_dict(entries["run"])
    found = outcome_of(run)
    run.collect()
    return found | {"state": run.state_dict()["solver"], "work": run.state_dict()["work"]}


def stop_early(mate: Mate, name: str, solver: Any, steps: int, data: int = 1) -> Any:
    """A run that is stopped after some steps: what a checkpoint would keep, from the first process."""
    run = run_of(mate, name, solver, data=data)
    run.callbacks.append(_StopAfter(steps))
    run.execute()
    run.collect()
    return {"parameters": dict(run.problem.model.state_dict()), "run": run.state_dict(), "history": run.history}


class _StopAfter(solvers.Callback):
    reads_parameters = False

    def __init__(self, steps: int) -> None:
        self.steps = steps

    def stepped(self, run: solvers.Run) -> None:
        if run.state.steps == self.steps:
            run.stop(solvers.Outcome.STOPPED, "here.")


def sent(mate: Mate, name: str, solver: Any) -> Any:
    """Bytes and messages of two steps with known variables."""
    run = run_of(mate, name, solver, tolerance=None)
    batch = run.source.first
    counts = []
    for _ in range(3):
        before = run.border.sent, run.border.messages
        run.state = solver.step(run.rank_problem, run.state, batch)
        counts.append((run.border.sent - before[0], run.border.messages - before[1]))
    return counts, len(batch)
