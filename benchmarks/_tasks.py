"""The networks that steps are measured on, with data of their size, and a step of a solver on them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from itertools import cycle, pairwise
from typing import Any

import torch
from torch import Tensor, nn

import lifted_bregman as lb
from lifted_bregman.solvers import Batch, Solver


@dataclass(frozen=True)
class Task:
    """A dense ReLU network with a squared error, or a sparse autoencoder where there is a code.

    name    as people read it
    widths  of the input and of every layer
    batch   samples per step
    code    the layer with a soft threshold and an l1 penalty, both of weight `alpha`; None for a network of ReLU
    """

    name: str
    widths: tuple[int, ...]
    batch: int
    code: int | None = None
    alpha: float = 0.09
    dtype: torch.dtype = torch.float32

    def model(self) -> nn.Sequential:
        """Glorot's uniform weights and biases 0, the same for every competitor."""
        generator = torch.Generator().manual_seed(0)
        modules: list[nn.Module] = []
        for layer, (below, width) in enumerate(pairwise(self.widths), start=1):
            linear = nn.Linear(below, width, dtype=self.dtype)
            nn.init.xavier_uniform_(linear.weight, generator=generator)
            nn.init.zeros_(linear.bias)
            modules += [linear, nn.Softshrink(self.alpha) if layer == self.code else nn.ReLU()]
        return nn.Sequential(*modules[:-1])

    def data(self, samples: int) -> tuple[Tensor, Tensor]:
        """Centred inputs of rank 12 with some noise; as targets themselves for a code, else one-hot vectors."""
        generator = torch.Generator().manual_seed(1)
        patterns = torch.rand(12, self.widths[0], generator=generator, dtype=self.dtype)
        X = torch.rand(samples, 12, generator=generator, dtype=self.dtype) @ patterns / 6.0
        X += 0.1 * torch.rand(X.shape, generator=generator, dtype=self.dtype)
        X -= X.mean(0)
        if self.code is not None:
            return X, X
        labels = torch.randint(0, self.widths[-1], (samples,), generator=generator)
        return X, nn.functional.one_hot(labels, self.widths[-1]).to(self.dtype)

    def problem(self) -> lb.LiftedProblem:
        penalties = {} if self.code is None else {self.code: lb.penalties.L1(self.alpha)}
        return lb.lift(self.model(), loss=lb.SquaredError(), penalties=penalties)


def solver_step(task: Task, solver: Solver[Any], batches: int = 8) -> Callable[[], object]:
    """One step of a solver of the library, as `fit` takes it, on one batch after the other."""
    problem = task.problem()
    solver.require(problem)
    whole = Batch.whole(problem, *task.data(batches * task.batch))
    all_batches = [whole.slice(start, start + task.batch) for start in range(0, len(whole), task.batch)]
    state = solver.init(problem, all_batches[0])
    solver.attach(problem, state)
    turn = cycle(all_batches)

    def step() -> object:
        nonlocal state
        state = solver.step(problem, state, next(turn))
        return state

    return step
