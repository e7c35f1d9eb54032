"""Variables in a data-parallel run: the state keeps those of the whole batch, a step moves the rows of a shard."""

from __future__ import annotations

import math

import torch

from lifted_bregman.problem import LiftedState, Shard


def own_variables(shard: Shard, variables: LiftedState) -> LiftedState:
    """The shard's rows of the batch's variables, not copied."""
    return variables if shard.whole else LiftedState(shard.own_rows(x) for x in variables)


def whole_variables(shard: Shard, variables: LiftedState) -> LiftedState:
    """The variables of the whole batch, gathered from the shards in one message."""
    if shard.whole or not len(variables):
        return variables
    widths = [math.prod(x.shape[1:]) for x in variables]
    rows = shard.all_rows(torch.cat([x.reshape(len(x), width) for x, width in zip(variables, widths, strict=True)], 1))
    parts = rows.split(widths, 1)
    return LiftedState(part.reshape(len(rows), *x.shape[1:]) for part, x in zip(parts, variables, strict=True))
