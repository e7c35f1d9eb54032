"""Variables in a data-parallel run: a state has those of the whole batch, a step works on one's own."""

from __future__ import annotations

import math

import torch

from lifted_bregman.problem import LiftedProblem, LiftedState


def own_variables(problem: LiftedProblem, variables: LiftedState) -> LiftedState:
    """One's own rows of the batch's variables, not copied."""
    peers = problem.peers
    return variables if peers.count == 1 else LiftedState(peers.own(x) for x in variables)


def whole_variables(problem: LiftedProblem, variables: LiftedState) -> LiftedState:
    """The variables of the whole batch from one's own, in one message."""
    peers = problem.peers
    if peers.count == 1 or not len(variables):
        return variables
    widths = [math.prod(x.shape[1:]) for x in variables]
    rows = peers.gather(torch.cat([x.reshape(len(x), width) for x, width in zip(variables, widths, strict=True)], 1))
    parts = rows.split(widths, 1)
    return LiftedState(part.reshape(len(rows), *x.shape[1:]) for part, x in zip(parts, variables, strict=True))
