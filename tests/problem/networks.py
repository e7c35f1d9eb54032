"""Networks for the tests: every layer has its own width, its own activation and its own weight λ."""

from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise

import torch
from torch import Tensor, nn

import lifted_bregman as lb

from .oracle import CLOSED_FORMS

F64 = torch.float64
MODULES = {
    "relu": nn.ReLU,
    "leaky 0.2": lambda: nn.LeakyReLU(0.2),
    "soft 0.3": lambda: nn.Softshrink(0.3),
    "tanh": nn.Tanh,
    "sigmoid": nn.Sigmoid,
    "elu 0.7": lambda: nn.ELU(0.7),
    "softmax": lambda: nn.Softmax(dim=1),
}


@dataclass
class Case:
    """A model with its stages for the oracle, λ_1 .. λ_L, data, and a point that is far from consistent."""

    model: nn.Sequential
    stages: list[tuple[Callable[[Tensor], Tensor], str]]
    weights: list[float]
    loss: lb.BregmanLoss
    X: Tensor
    Y: Tensor
    variables: list[Tensor]

    @property
    def xs(self) -> list[Tensor]:
        return [self.X, *self.variables, self.Y]

    def problem(self, **settings):
        return lb.lift(self.model, loss=self.loss, weights=self.weights[:-1], **settings)

    def state(self):
        return lb.LiftedState(x.clone() for x in self.variables)


def dense_case(widths=(5, 7, 4, 6, 3, 2), names=("tanh", "soft 0.3", "relu", "sigmoid"), bias=True, samples=9, seed=0):
    """Dense layers with the given activations and squared error at the end."""
    torch.manual_seed(seed)
    linears = [nn.Linear(a, b, bias=bias, dtype=F64) for a, b in pairwise(widths)]
    modules = [module for linear, name in zip(linears, names, strict=False) for module in (linear, MODULES[name]())]
    return _case([*modules, linears[-1]], linears, [*names, "identity"], lb.SquaredError(), (widths[0],), samples)


def conv_case(samples=4, seed=0):
    """Two convolutions (one joint activation over channels), pooling, flattening, a dense layer, cross-entropy."""
    torch.manual_seed(seed)
    first, second = nn.Conv2d(2, 3, 3, padding=1, dtype=F64), nn.Conv2d(3, 4, 2, stride=2, bias=False, dtype=F64)
    third, last = nn.Linear(4, 5, dtype=F64), nn.Linear(5, 3, bias=False, dtype=F64)
    pool, flatten = nn.AvgPool2d(2), nn.Flatten()
    maps = [first, nn.Sequential(pool, second), nn.Sequential(flatten, third), last]
    modules = [first, nn.ELU(0.7), pool, second, nn.Softmax(dim=1), flatten, third, nn.LeakyReLU(0.2), last]
    names = ["elu 0.7", "softmax", "leaky 0.2", "softmax"]
    return _case(modules, maps, names, lb.CrossEntropy(), (2, 4, 4), samples)


def _case(modules, maps, names, loss, shape, samples):
    stages = list(zip(maps, names, strict=True))
    weights = [0.5 + 0.75 * l for l in range(len(stages) - 1)] + [1.0]
    X = torch.randn(samples, *shape, dtype=F64)
    with torch.no_grad():
        xs = [X]
        for f, name in stages:
            z = f(xs[-1])
            xs.append(CLOSED_FORMS[name][2](z + torch.randn_like(z)))  # in the domain, not consistent
    return Case(nn.Sequential(*modules), stages, weights, loss, X, xs[-1], xs[1:-1])


CASES = {
    "dense": dense_case,
    "dense, no bias": lambda: dense_case(bias=False),
    "dense, equal widths": lambda: dense_case((4, 4, 4, 4, 4, 4), ("tanh", "leaky 0.2", "relu", "soft 0.3"), samples=4),
    "convolutions": conv_case,
    "one layer": lambda: dense_case((4, 3), ()),
}
