"""Every message of a step of the default solver: the one file of it that talks to other ranks.

Data-parallel ranks have the same parameters and different samples.  Layer-parallel ranks have different terms; x goes
up from rank to rank in the forward pass, and Σ J_xᵀ E comes down.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from lifted_bregman.problem import LiftedProblem
from lifted_bregman.problem.shard import Shard, join_norms, sum_numbers
from lifted_bregman.solvers.gram.move import AllSum, AnyFailed, Left, sum_alone

# Samples


@dataclass(frozen=True, eq=False)
class SharedRows:
    """The rows of one layer's system: those of this rank, or of all ranks."""

    shard: Shard
    gathered: bool
    """Whether every rank has all rows."""

    @classmethod
    def of(cls, shard: Shard, samples: int, each: int, block: int) -> SharedRows:
        """In sample space ranks keep their own rows if all of their parts end where blocks end.

        samples  of this rank
        each     rows of a sample
        block    b; 0 where no system in sample space is solved
        """
        if shard.whole or not block:
            return cls(shard, False)
        total = shard.samples(samples)
        return cls(shard, any(end * each % block for end in shard.ends(samples) if end < total))

    @property
    def all_sum(self) -> AllSum:
        """Sums over the rows here, made those over all rows."""
        return sum_alone if self.gathered or self.shard.whole else self.shard.all_sum

    def gather(self, values: Tensor, keep: bool = False) -> Tensor:
        """Values (samples, ...) of the samples whose rows are here."""
        return self.shard.all_rows(values, keep=keep) if self.gathered else values

    def left(self, left: Left) -> Left:
        """E(H) of the samples whose rows are here, from a function for those of this rank."""
        if not self.gathered:
            return left
        return lambda H: self.shard.all_rows(left(self.shard.own_rows(H)))

    @property
    def any_failed(self) -> AnyFailed:
        """Whether something failed on any rank, from whether it failed here; None where no rank has other rows."""
        if self.all_sum is sum_alone:
            return None
        return lambda failed: sum_numbers(self.shard, float(failed)) != (0.0,)


def root_mean_squares(
    norms: Sequence[Tensor], features: Sequence[int], weights: Tensor | None, shard: Shard
) -> list[Tensor]:
    """Root mean squares () over all entries on all ranks, from the norms (samples,) of samples with so many entries."""
    if weights is not None:
        root = weights.sqrt()
        norms = [norm * root for norm in norms]
    totals = list(torch._foreach_norm(list(norms)))
    if not shard.whole:
        totals = [norms[0].new_full((), norm) for norm in join_norms(shard, *map(float, totals))]
    samples = shard.samples(len(norms[0]))
    torch._foreach_div_(totals, [math.sqrt(samples * count) for count in features])
    return totals


# Terms


def receive_inputs(problem: LiftedProblem, like: Tensor) -> Tensor:
    """x_{a-1} of a micro-batch from the rank below, a being the first term here."""
    return problem.border.from_below(like)


def send_outputs(problem: LiftedProblem, x: Mapping[int, Tensor]) -> None:
    """Sends x_b of a micro-batch to the rank above, if there is one."""
    for layer in problem.partition.lent:
        problem.border.send_above(x[layer])


def receive_signal(problem: LiftedProblem, like: Tensor) -> Tensor:
    """Σ J_xᵀ E for the last variable here, from the rank above."""
    return problem.border.from_above(like)


def send_signals(problem: LiftedProblem, pulled: Mapping[int, Tensor]) -> None:
    """Sends Σ J_xᵀ E for the variable that this rank has received, if there is one."""
    for layer in problem.partition.borrowed:
        problem.border.send_below(pulled[layer])


def all_terms(problem: LiftedProblem, numbers: Sequence[Tensor]) -> Tensor:
    """One number for each term of the network, (L,), from those of the terms here."""
    return problem.border.all_terms(torch.stack(list(numbers)))


def spread_parameters(problem: LiftedProblem) -> None:
    """Gives every rank the parameters of all terms."""
    terms = range(1, problem.depth + 1)
    problem.border.spread({l: [p.detach() for p in problem.network[l].map.parameters.values()] for l in terms})
