"""The problems every solver is tried on: different widths and activations in each layer, so that no index can hide."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn

import lifted_bregman as lb
from lifted_bregman import activations as act


@dataclass(frozen=True)
class Case:
    """A problem with its data."""

    name: str
    problem: lb.LiftedProblem
    X: Tensor
    Y: Tensor

    @property
    def data(self) -> tuple[Tensor, Tensor]:
        return self.X, self.Y


def make(name: str, samples: int = 12, seed: int = 0) -> Case:
    """A fresh copy of the problem `name`, in float64."""
    torch.manual_seed(seed)
    penalties: dict[int, lb.penalties.Penalty] = {}
    weights: float | list[float] = 1.0
    loss: lb.BregmanLoss = lb.SquaredError()
    if name == "relu":
        model = nn.Sequential(nn.Linear(5, 7), nn.ReLU(), nn.Linear(7, 4), nn.ReLU(), nn.Linear(4, 3))
    elif name == "smooth":
        model = nn.Sequential(nn.Linear(5, 6), nn.Tanh(), nn.Linear(6, 4), nn.Softplus(), nn.Linear(4, 3))
        weights = [0.7, 2.0]
    elif name == "sparse code":
        model = nn.Sequential(nn.Linear(5, 6), nn.ReLU(), nn.Linear(6, 4), nn.Softshrink(0.05), nn.Linear(4, 3))
        penalties = {2: lb.penalties.L1(0.05)}
    elif name == "classes":
        model = nn.Sequential(nn.Linear(5, 4), nn.ELU(), nn.Linear(4, 3))
        loss = lb.CrossEntropy()
    elif name == "joint":
        model = nn.Sequential(
            nn.Linear(5, 4), nn.Softmax(-1), nn.Linear(4, 3), act.Arctan().as_module(), nn.Linear(3, 3)
        )
        weights = [1.5, 0.6]
    elif name == "frozen and bias-free":
        model = nn.Sequential(
            nn.Linear(5, 6, bias=False), nn.LeakyReLU(0.2), nn.Linear(6, 4), nn.Hardtanh(), nn.Linear(4, 3)
        )
        model[2].weight.requires_grad_(False)
    else:
        raise KeyError(name)
    model.double()
    X = torch.randn(samples, 5, dtype=torch.float64)
    Y = torch.randint(0, 3, (samples,)) if name == "classes" else 0.5 * torch.randn(samples, 3, dtype=torch.float64)
    return Case(name, lb.lift(model, loss=loss, weights=weights, penalties=penalties), X, Y)


NAMES = ["relu", "smooth", "sparse code", "classes", "joint", "frozen and bias-free"]
