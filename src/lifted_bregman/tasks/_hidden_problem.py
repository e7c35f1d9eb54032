"""The energy of a fixed network at a fixed input and output: a function of its hidden variables alone."""

from __future__ import annotations

import torch
from torch import Tensor

from lifted_bregman._no_graph import no_graph
from lifted_bregman.problem import LiftedProblem, Point
from lifted_bregman.solvers.outcome import Stalled
from lifted_bregman.tasks._inverse_problem import InverseProblem
from lifted_bregman.tasks.descent import DescentInversion


class HiddenProblem(InverseProblem):
    """min over x_1 .. x_{L-1} of E(x, X), x_0 = x and x_L = y: an inversion whose penalty allows x_0 = x alone."""

    def __init__(self, problem: LiftedProblem, x: Tensor, y: Tensor) -> None:
        super().__init__(problem, y, None)
        self.x = x
        """The samples, (samples, ...)."""

    @no_graph
    def gradient(self, point: Point, block: int) -> Tensor:
        """Return ∇ of the smooth part in a hidden variable; 0 for the input, which is fixed."""
        return torch.zeros_like(self.x) if block == 0 else super().gradient(point, block)

    @no_graph
    def prox(self, block: int, v: Tensor, step: float) -> Tensor:
        """Return the proximal step of a hidden variable; x for the input."""
        return self.x if block == 0 else super().prox(block, v, step)

    def curvature(self, point: Point, block: int) -> float:
        """Return a Lipschitz constant of `gradient` in the block; 1 for the input, which is fixed."""
        return 1.0 if block == 0 else super().curvature(point, block)


@no_graph
def minimise_hidden(problem: LiftedProblem, x: Tensor, y: Tensor, steps: int) -> Point:
    """Return the point after at most `steps` sweeps of `DescentInversion` over the hidden variables.

    The sweeps start from a forward pass.  No sample's energy increases.  They end early if the step sizes reach their
    floor.
    """
    # A new problem estimates curvatures anew, so that equal samples give equal energies.
    hidden, solver = HiddenProblem(problem.with_weights(problem.weights), x, y), DescentInversion()
    state = solver.init(hidden, x)
    try:
        for _ in range(steps):
            state = solver.step(hidden, state)
    except Stalled:
        pass
    return state.point
