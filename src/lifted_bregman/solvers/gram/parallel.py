"""The messages between ranks that share the layers: x goes up in the forward pass, and Σ J_xᵀ E comes down."""

from __future__ import annotations

from collections.abc import Mapping

from torch import Tensor

from lifted_bregman.problem import LiftedProblem


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
