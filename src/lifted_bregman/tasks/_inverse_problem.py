"""The energy of an inversion: the lifted energy of a fixed network in its input and its hidden variables."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from torch import Tensor

from lifted_bregman._no_graph import no_graph
from lifted_bregman.graph.terms import sum_features
from lifted_bregman.penalties import Penalty
from lifted_bregman.penalties.sums import prox_from
from lifted_bregman.problem import LiftedProblem, LiftedState, Point
from lifted_bregman.problem.energies import sample_energies

_PROX_STEPS = 200  # at most, on the dual of total variation, which starts from the dual variable of the last call


class InverseProblem:
    """min over u and x_1 .. x_{L-1} of E(u, X) = Σ_v λ_v B_v(x_v, f_v(...)) + R_v(x_v) + J(u), x_0 = u and x_L = y.

    Samples are independent: energies, penalties and residuals have one number per sample.  Block 0 is the input u,
    block l the hidden variable x_l.  Parameters are never changed, and activations never differentiated.
    """

    def __init__(self, problem: LiftedProblem, y: Tensor, penalty: Penalty | None) -> None:
        self.problem = problem
        self.y = y
        """The outputs, as the loss encodes them: (samples, ...)."""
        self.penalty = penalty
        """J; None for 0."""
        self.blocks = range(problem.depth)
        self._prox_memory: Any = None

    @property
    def convex(self) -> bool:
        """Whether E is convex in all its variables, as with one term and an affine map."""
        return self.problem.depth == 1 and self.problem.network[1].map.affine

    @property
    def affine(self) -> bool:
        """Whether every map is affine, so that each block's gradient has a known Lipschitz constant."""
        return all(layer.map.affine for layer in self.problem.network)

    def point(self, u: Tensor, hidden: Iterable[Tensor]) -> Point:
        """Return the point x_0 = u, x_1 .. x_{L-1}, x_L = y."""
        return self.problem.point(LiftedState(hidden), u, self.y)

    def forward_point(self, u: Tensor) -> Point:
        """Return the point of a forward pass from u, at which every term but the last is 0."""
        return self.point(u, self.problem.forward_state(u, check=False))

    @no_graph
    def penalties(self, u: Tensor) -> Tensor:
        """J(u), (samples,)."""
        return u.new_zeros(len(u)) if self.penalty is None else sum_features(self.penalty.value(u))

    @no_graph
    def energies(self, point: Point) -> Tensor:
        """E, (samples,)."""
        return sample_energies(self.problem, point) + self.penalties(point.x[0])

    @no_graph
    def residuals(self, u: Tensor) -> Tensor:
        """‖N(u) - y‖ with N the network, its last activation included, (samples,)."""
        difference = self.problem.network.forward(u)[-1] - self.y
        norms: Tensor = difference.flatten(1).norm(dim=1)
        return norms

    @no_graph
    def gradient(self, point: Point, block: int) -> Tensor:
        """∇ of the smooth part: Σ_t λ_t J_xᵀ d_t over the terms t that read the block, and -λ_l z_l of a hidden one."""
        if block > 0:
            return self.problem.variable_gradient(point, block)
        return self.problem.pulled_back(point, 0).clone()  # it may share memory with a residual

    @no_graph
    def prox(self, block: int, v: Tensor, step: float) -> Tensor:
        """argmin_x ‖x - v‖²/2t + J(x) for the input, + λ_l φ_l(x) + R_l(x) for a hidden variable."""
        if block > 0:
            return self.problem.variable_prox(block, v, step)
        if self.penalty is None:
            return v
        moved, self._prox_memory = prox_from(self.penalty, v, step, self._prox_memory, _PROX_STEPS)
        return moved

    def curvature(self, point: Point, block: int) -> float:
        """A guaranteed Lipschitz constant of `gradient` in the block; every map must be affine."""
        return self.problem.variable_curvature(point, block, upper=True)


def per_sample(values: Tensor, like: Tensor) -> Tensor:
    """Reshape numbers (samples,) so that they multiply `like` (samples, ...)."""
    return values.view(-1, *[1] * (like.ndim - 1))


def inner_product(a: Tensor, b: Tensor) -> Tensor:
    """Return <a, b> of each sample, (samples,)."""
    return (a * b).flatten(1).sum(1)
