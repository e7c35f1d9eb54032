"""What the processes of a crew do in the tests of data-parallel solvers."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

import lifted_bregman as lb
from lifted_bregman import solvers
from tests.distributed.crew import Mate
from tests.distributed.numbers import digest, outcome_of
from tests.solvers.problems import make

SAMPLES, BATCH = 13, 5
"""Batches of 5, 5 and 3 samples: 2 processes share them as 3 + 2 and 2 + 1, 4 as 2 + 1 + 1 + 1 and 1 + 1 + 1 + 0."""


def problem_of(name: str, dtype: torch.dtype, samples: int = SAMPLES) -> tuple[lb.LiftedProblem, Any, Any]:
    """A problem and its data, the same in every process."""
    if name in PROBLEMS:
        problem, X, Y = PROBLEMS[name](samples)
    else:
        case = make(name, samples)
        problem, X, Y = case.problem, case.X, case.Y
    problem.model.to(dtype)
    return problem, X.to(dtype), Y.to(dtype) if Y.is_floating_point() else Y


def convolutions(samples: int) -> tuple[lb.LiftedProblem, torch.Tensor, torch.Tensor]:
    torch.manual_seed(5)
    model = nn.Sequential(
        nn.Conv2d(1, 2, 3), nn.ReLU(), nn.AvgPool2d(2), nn.Conv2d(2, 3, 2), nn.Tanh(), nn.Flatten(), nn.Linear(3, 4)
    ).double()
    problem = lb.lift(model, loss=lb.SquaredError(), weights=[0.8, 1.4], penalties={2: lb.penalties.L1(0.01)})
    X = torch.randn(samples, 1, 6, 6, dtype=torch.float64)
    return problem, X, 0.5 * torch.randn(samples, 4, dtype=torch.float64)


def sequences(samples: int) -> tuple[lb.LiftedProblem, torch.Tensor, torch.Tensor]:
    """Dense layers on three rows for each sample."""
    torch.manual_seed(6)
    model = nn.Sequential(
        nn.Linear(5, 7), nn.ReLU(), nn.Linear(7, 4), nn.Tanh(), nn.Flatten(), nn.Linear(12, 3)
    ).double()
    problem = lb.lift(model, loss=lb.SquaredError(), weights=[0.8, 1.4])
    return problem, torch.randn(samples, 3, 5, dtype=torch.float64), torch.randn(samples, 3, dtype=torch.float64)


def any_map(samples: int) -> tuple[lb.LiftedProblem, torch.Tensor, torch.Tensor]:
    """A map that is not affine, whose curvature differs from sample to sample."""
    torch.manual_seed(7)
    model = nn.Sequential(nn.Linear(5, 6), nn.ReLU(), lb.Map(_Wave(6, 4)), nn.Tanh(), nn.Linear(4, 3)).double()
    problem = lb.lift(model, loss=lb.SquaredError())
    return problem, torch.randn(samples, 5, dtype=torch.float64), torch.randn(samples, 3, dtype=torch.float64)


class _Wave(nn.Module):
    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__()
        self.inner = nn.Linear(inputs, outputs)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        z: torch.Tensor = self.inner(x + 0.3 * x.sin())
        return z


def penalised(samples: int) -> tuple[lb.LiftedProblem, torch.Tensor, torch.Tensor]:
    """Penalties on parameters, in each layer another one."""
    torch.manual_seed(8)
    model = nn.Sequential(nn.Linear(5, 7), nn.ReLU(), nn.Linear(7, 4), nn.Softplus(), nn.Linear(4, 3)).double()
    on_parameters = {1: lb.penalties.L1(1e-2), 3: lb.penalties.SquaredL2(0.1)}
    problem = lb.lift(model, loss=lb.SquaredError(), weights=[0.7, 1.2], parameter_penalties=on_parameters)
    return problem, torch.randn(samples, 5, dtype=torch.float64), torch.randn(samples, 3, dtype=torch.float64)


PROBLEMS = {f.__name__: f for f in (convolutions, sequences, any_map, penalised)}


def train(mate: Mate, name: str, solver: Any, **settings: Any) -> Any:
    """A run: all that it leaves from rank 0, and a digest of it from the others."""
    found = outcome_of(run_of(mate, name, solver, **settings))
    return found if mate.rank == 0 else digest(found)


def run_of(
    mate: Mate,
    name: str,
    solver: Any,
    dtype: torch.dtype = torch.float64,
    epochs: int = 2,
    samples: int = SAMPLES,
    batch: int = BATCH,
    **settings: Any,
) -> solvers.Run:
    """Samples with weights, where the solver takes them; the ranks are those of the mate."""
    problem, X, Y = problem_of(name, dtype, samples)
    weights = torch.linspace(0.4, 1.9, samples, dtype=dtype) if solver.weighted else None
    data = solvers.Batch.whole(problem, X, Y, weights)
    return solvers.Run(
        problem,
        solver,
        data,
        epochs=epochs,
        batch_size=batch if solver.minibatch else None,
        seed=3,
        tolerance=None if solver.init(problem, data).variables is None else 1e-9,
        validation=data.slice(0, 6),
        classify=name == "classes",
        ranks=mate.ranks(),
        **settings,
    )
