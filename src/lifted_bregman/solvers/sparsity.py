"""`TargetSparsity`, a fraction of zeros in place of a penalty's weight; `sparse_start`, sparse initial weights."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from lifted_bregman._generators import named_generator
from lifted_bregman.errors import SettingError
from lifted_bregman.penalties import L1, Penalty
from lifted_bregman.problem import LiftedProblem
from lifted_bregman.problem.blocks import layers


@dataclass(frozen=True)
class TargetSparsity:
    """A target fraction of zeros; the penalty's weight is adjusted between steps until the target is reached.

    The fraction counts the numbers that the penalty can make zero: entries for L1, groups (rows) for GroupL2,
    singular values for Nuclear, where a fraction of 1 - r/min(out, in) asks for rank r.  Several layers with one target
    are counted together and share one weight.

    The rule for subgradient methods (`LinBreg`, `AdaBreg`): here the fraction s(w) is known for every weight w, and
    grows with w.  While |s(w) - fraction| <= tolerance, w stays.  Otherwise w moves towards the weight w* at which
    s(w*) is the fraction, by a factor of at most `rate`.  So w never passes w*, and the fraction is kept once it is
    reached.  Numbers that no gradient reaches (of inputs that are always zero) stay zero, and the fraction cannot be
    smaller than theirs.

    The rule for penalties in the energy (`TargetedPenalties`), where s is only seen at the current weight:
    w ← w rate^c with c = (fraction - s)/(10 tolerance), limited to [-1, 1].

    fraction   in (0, 1)
    penalty    a function from a weight to a penalty: L1, GroupL2, Nuclear, or partial(GroupL2, group_size=4)
    tolerance  > 0, the accepted distance from the fraction
    rate       > 1, the largest factor of one adjustment
    start      > 0, the first weight; by default, for subgradient methods, the mean size of the counted numbers that are
      not zero, divided by δ; for penalties in the energy, 1e-3

    Example:
        >>> model = nn.Linear(20, 5)
        >>> target = lb.TargetSparsity(0.5, penalty=lb.penalties.L1)
        >>> problem, X = lb.lift(model, loss=lb.SquaredError()), torch.randn(100, 20)
        >>> result = lb.fit(problem, (X, X[:, :5]), solver=lb.LinBreg(step_size=0.1, penalties=target), epochs=50)
        >>> round((model.weight == 0).float().mean().item(), 1)
        0.5
    """

    fraction: float
    penalty: Callable[[float], Penalty] = L1
    tolerance: float = 0.005
    rate: float = 1.05
    start: float | None = None

    def __post_init__(self) -> None:
        if not 0.0 < self.fraction < 1.0:
            raise SettingError(f"fraction is {self.fraction!r}; the fraction of zeros must be between 0 and 1.")
        if not (0.0 < self.tolerance < 1.0 and 1.0 < self.rate < math.inf):
            raise SettingError(
                f"tolerance is {self.tolerance!r} and rate is {self.rate!r}; they must be in (0, 1) and above 1."
            )
        if self.start is not None and not 0.0 < self.start < math.inf:
            raise SettingError(f"start is {self.start!r}; it must be a finite number > 0, or None.")

    def adjusted(self, weight: float, critical: Sequence[Tensor], limited: bool = True) -> float:
        """The next weight, from the critical weights: a number is zero once its critical weight is not above it."""
        n = sum(part.numel() for part in critical)
        zeros = sum(int((part <= weight).sum()) for part in critical)
        if abs(zeros / n - self.fraction) <= self.tolerance:
            return weight
        every = torch.cat(list(critical))
        wanted = min(max(round(self.fraction * n), 1), n - 1) if n > 1 else 1
        below = float(every.kthvalue(wanted).values)
        above = float(every.kthvalue(min(wanted + 1, n)).values)
        goal = max(0.5 * (below + above), 1e-6 * float(every.max()), torch.finfo(torch.float32).tiny)
        return min(max(goal, weight / self.rate), weight * self.rate) if limited else goal

    def nudged(self, weight: float, sparsity: float) -> float:
        """The next weight, from the fraction of zeros at the present one."""
        c = (self.fraction - sparsity) / (10.0 * self.tolerance)
        return float(weight * self.rate ** min(max(c, -1.0), 1.0))


@torch.no_grad()
def sparse_start(problem: LiftedProblem, density: float, seed: int = 0, rows: bool = False) -> None:
    """Keeps a random fraction of the weights, scaled by 1/√density, and sets the others to zero, in place.

    The scaling keeps the variance of the weights, and with it the size of signals.  Bregman iterations that start like
    this make a zero weight nonzero when its gradient asks for it (Bungert et al. 2022).  Biases are not changed.

    density  in (0, 1], the fraction of each weight's entries that is kept, at least one
    seed     fixes which are kept
    rows     whole rows of the matrices (units, rest) are kept or dropped, for GroupL2; the last layer stays as it is

    Example:
        >>> from lifted_bregman.solvers import sparse_start
        >>> model = nn.Sequential(nn.Linear(10, 20), nn.ReLU(), nn.Linear(20, 10))
        >>> sparse_start(lb.lift(model, loss=lb.SquaredError()), density=0.1)
        >>> [(layer.weight != 0).sum().item() for layer in (model[0], model[2])]
        [20, 20]
    """
    if not 0.0 < density <= 1.0:
        raise SettingError(f"density is {density!r}; the fraction of weights that is kept must be in (0, 1].")
    for layer in layers(problem.depth):
        if rows and layer == problem.depth:
            continue
        generator = named_generator(seed, "sparse start", layer)
        f = problem.network[layer].map
        for parameter in f.parameters.values():
            if parameter.ndim < 2:
                continue
            W = parameter.detach()
            count = len(f.unit_rows(W)) if rows else W.numel()
            kept = torch.randperm(count, generator=generator)[: max(1, round(density * count))]
            mask = torch.zeros(count, dtype=W.dtype)
            mask[kept] = math.sqrt(count / len(kept))
            mask = mask.to(W.device)
            W.mul_(f.from_unit_rows(mask[:, None].expand_as(f.unit_rows(W)), W) if rows else mask.view(W.shape))
