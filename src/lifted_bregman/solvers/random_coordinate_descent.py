"""Randomised coordinate descent: proximal gradient steps on blocks of layers, samples and units, drawn by curvature.

Blocks.  Θ_l is cut by the units that it reads: W_l[:, S] for groups S of units of layer l - 1, and the bias.  x_l is
cut by units and by samples.  With the norm ‖Θ‖² + (1/s) Σ_i ‖x_i‖² the gradient of the smooth part H in a block has the
Lipschitz constant

    W_l[:, S]:  (λ_l/s) ‖X_{l-1}[:, S]‖₂²        b_l:  λ_l        x_l[i, S]:  λ_{l+1} ‖W_{l+1}[:, S]‖₂² of each sample,

because φ* is 1-smooth.  The constants of parts are smaller than that of the whole, so that steps are longer, and a step
costs its share of a sweep: z_l is kept for all samples and changed by what a block changes of it.

Descent.  For a step of length 1/L on a block with change Δ, convexity of the block gives

    E(before) - E(after) >= (L_b/2)‖Δ‖²,     L_b = L for parameters,     L_b = L + λ_l for variables,

where λ_l is due to the strong convexity of λ_l φ_l, which the proximal map handles.  A length of f/L, f < 2, leaves
(2/f - 1)(L/2)‖Δ‖² for parameters, and at least as much for variables.

Importance.  If block b is drawn with probability p_b, the expected decrease is at least Σ_b p_b (L_b/2)‖Δ_b‖².  With
p_b = L_b/ΣL it is Σ_b ‖L_bΔ_b‖²/(2ΣL), the squared norm of the whole proximal gradient residual over 2ΣL: for a smooth
E

    E[E(after)] <= E(before) - ‖∇E‖²/(2ΣL),

and for a μ-strongly convex one the expected distance to the minimum falls like (1 - μ/ΣL)^k (Nesterov 2012; Richtárik
and Takáč 2014).  Uniform sampling replaces ΣL by (number of blocks)·max L."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from numbers import Real
from typing import ClassVar, NamedTuple

import torch
from torch import Tensor

from lifted_bregman._arguments import require_count, whole
from lifted_bregman._generators import named_generator
from lifted_bregman._no_graph import no_graph
from lifted_bregman.errors import SettingError
from lifted_bregman.penalties import Penalty
from lifted_bregman.penalties.sums import split
from lifted_bregman.problem import LiftedProblem, Point
from lifted_bregman.problem.blocks import Block, ParameterBlock, VariableBlock, hidden_layers, layers
from lifted_bregman.problem.curvature import step_for, unit_curvature, weight_curvature
from lifted_bregman.solvers._inner_solver import require_no_anchor
from lifted_bregman.solvers._packing import dense_map
from lifted_bregman.solvers.coordinate_descent import require_dense
from lifted_bregman.solvers.interface import Batch, Solver, SolverState
from lifted_bregman.solvers.steps import CurvatureStep

_LEAST = 0.01
"""Fraction of the mean L_b: a block of less curvature is drawn as if it had this much, so that every block is drawn."""


class UnitBlock(NamedTuple):
    """A part of Θ_l or of x_l."""

    block: Block
    units: slice | None
    """S: the columns of W_l, or the units of x_l; None for the bias of layer l."""
    samples: slice = slice(None)
    """The samples of x_l."""


@dataclass(frozen=True)
class RandomCoordinateDescent(Solver[SolverState]):
    """min over (Θ, X) of E by proximal gradient steps on random blocks, drawn more often where the curvature is larger.

        b ~ p,   p_b ∝ L_b^α        block b ← prox_{tG_b}( block b - t ∇_b H ),   t = factor/L

    Blocks are groups of units of a layer, for x_l also groups of samples (top of this module, with L and L_b).  One
    step draws as many blocks as there are, with replacement, so that it costs about a sweep; p is computed anew at the
    beginning of each step, L before each update, as a bound.  What is coupled is not cut: x_l of a joint activation
    such as softmax, or with a penalty such as `GroupL2`, has groups of samples only, and a W_l with such a penalty is
    one block.  L_b below a hundredth of their mean counts as that.

    Guaranteed for factor < 2: E never increases, and almost surely limit points are stationary.  An update decreases E
    by (2/factor - 1)(L/2)‖Δ‖² or more, with factor = 1 by (L_b/2)‖Δ‖², so that then with α = 1 the expected decrease is
    at least the squared norm of the proximal gradient residual over 2ΣL.  One layer without a penalty: E[E - min E] <=
    (1 - μ/ΣL)^k (E_0 - min E) after k updates, with μ the strong convexity of E.  That importance helps is only
    observed, and depends on the network: curvature in Θ is often larger than in X, so that with α = 1 variables have to
    wait.

    parts         at least 1: groups of units of each layer; fewer where it has fewer units
    sample_parts  at least 1: groups of samples
    importance    α in [0, 1]: 1 for probabilities proportional to L_b, 0 for equal ones
    factor        in (0, 2)
    updates       at least 1: blocks drawn in a step; None for as many as there are
    seed          the blocks of a step are drawn from the seed and the number of the step

    Metrics: `total_curvature`, ΣL_b at the beginning of the step.

    Example:
        >>> solver = lb.RandomCoordinateDescent()
        >>> X = torch.linspace(-1, 1, 20).reshape(-1, 1)
        >>> line = nn.Linear(1, 1)
        >>> result = lb.fit(lb.lift(line, loss=lb.SquaredError()), (X, 2 * X + 1), solver=solver, epochs=40)
        >>> round(line.weight.item(), 1), round(line.bias.item(), 1)
        (2.0, 1.0)
    """

    weighted: ClassVar[bool] = True

    parts: int = 8
    sample_parts: int = 4
    importance: float = 0.5
    factor: float = 1.5
    updates: int | None = None
    seed: int = 0

    def __post_init__(self) -> None:
        require_count(self.parts, "parts")
        require_count(self.sample_parts, "sample_parts")
        if not isinstance(self.importance, Real) or not 0.0 <= self.importance <= 1.0:
            raise SettingError(f"importance is {self.importance!r}; it must be a number from 0 to 1.")
        CurvatureStep(self.factor)
        if self.updates is not None:
            require_count(self.updates, "updates")
        whole(self.seed, "seed", least=None)

    def require(self, problem: LiftedProblem) -> None:
        require_dense(self, problem, "CoordinateDescent or ProximalGradient")
        require_no_anchor(self, problem, "it moves parts of a layer without it; take CoordinateDescent()")

    def init(self, problem: LiftedProblem, batch: Batch) -> SolverState:
        return SolverState(variables=problem.forward_state(batch.X, check=False))

    @no_graph
    def step(self, problem: LiftedProblem, state: SolverState, batch: Batch) -> SolverState:
        assert state.variables is not None
        # z_l of all samples; from here on x, z and Θ change in place, part by part
        point = batch.point(problem, state.variables.clone()).complete()
        blocks = list(self.blocks(problem, point))
        curvature = _Curvature(problem, point)
        sizes = [curvature.of(block) for block in blocks]
        places = torch.multinomial(
            probabilities(sizes, self.importance),
            self.updates or len(blocks),
            replacement=True,
            generator=named_generator(self.seed, "blocks", state.steps),
        )
        drawn = [blocks[place] for place in places.tolist()]
        for chosen in drawn:
            t = step_for(self.factor, curvature.of(chosen, smooth=True), point)
            move(problem, point, chosen, t)
            curvature.forget(chosen.block)
        _count_work(problem, blocks, drawn)
        state.variables = point.state
        state.metrics = {"total_curvature": sum(sizes)}
        state.steps += 1
        return state

    def blocks(self, problem: LiftedProblem, point: Point) -> Iterator[UnitBlock]:
        """All blocks, in a fixed order: W_1, b_1, .., W_L, b_L, x_1, .., x_{L-1}."""
        for layer in layers(problem.depth):
            f = dense_map(problem, layer)
            if "weight" in f.parameters:
                alone = _separable(problem.parameter_penalties.get(layer))
                for columns in _groups(f.module.in_features, self.parts if alone else 1):
                    yield UnitBlock(ParameterBlock(layer), columns)
            if "bias" in f.parameters:
                yield UnitBlock(ParameterBlock(layer), None)
        for layer in hidden_layers(problem.depth):
            x = point.x[layer]
            alone = not problem.network[layer].activation.joint and _separable(problem.penalties.get(layer))
            for units in _groups(x.shape[-1], self.parts) if alone and x.ndim == 2 else [slice(None)]:
                for samples in _groups(len(x), self.sample_parts):
                    yield UnitBlock(VariableBlock(layer), units, samples)


def probabilities(curvatures: Sequence[float], importance: float) -> Tensor:
    """p_b ∝ max(L_b, mean/100)^α, in float64."""
    L = torch.tensor(curvatures, dtype=torch.float64)
    weights = L.clamp(min=_LEAST * float(L.mean()) or 1.0).pow(importance)
    return weights / weights.sum()


def move(problem: LiftedProblem, point: Point, chosen: UnitBlock, t: float) -> None:
    """One proximal gradient step of length t on a block; x, z and Θ are changed in place, for all else at the point."""
    layer = chosen.block.layer
    if isinstance(chosen.block, VariableBlock):
        assert chosen.units is not None
        _move_units(problem, point, layer, chosen.units, chosen.samples, t)
    elif chosen.units is None:
        _move_bias(problem, point, layer, t)
    else:
        _move_weights(problem, point, layer, chosen.units, t)


def _move_weights(problem: LiftedProblem, point: Point, layer: int, columns: slice, t: float) -> None:
    """W[:, S] ← prox_{tP}( W[:, S] - t (λ/s) dᵀX[:, S] ),   z ← z + X[:, S] ΔWᵀ."""
    f, z, d = dense_map(problem, layer), point.z(layer), _weighted_residual(problem, point, layer)
    X, W = f.rows(point.read(layer))[:, columns], f.module.weight.detach()[:, columns]
    ahead = torch.addmm(W, d.t(), X, alpha=-t * problem.weight(layer) / point.samples)
    new = problem.parameter_prox(layer, {"weight": ahead}, t)["weight"]
    z.view(-1, z.shape[-1]).addmm_(X, (new - W).t())
    W.copy_(new)


def _move_bias(problem: LiftedProblem, point: Point, layer: int, t: float) -> None:
    """b ← b - t (λ/s) Σ_i d_i,   z ← z + Δb."""
    f, d = dense_map(problem, layer), _weighted_residual(problem, point, layer)
    change = d.sum(0).mul_(-t * problem.weight(layer) / point.samples)
    f.module.bias.detach().add_(change)
    point.z(layer).add_(change)


def _move_units(problem: LiftedProblem, point: Point, variable: int, units: slice, samples: slice, t: float) -> None:
    """x[i, S] ← prox_{tG}( x[i, S] - t ( Σ_u λ_u d_u W_u[:, S] - λ z[i, S] ) ),   z_u ← z_u + Δx W_u[:, S]ᵀ."""
    x = point.x[variable][samples][..., units]
    ahead = torch.add(x, point.z(variable)[samples][..., units], alpha=t * problem.weight(variable))
    readers = [
        (term, dense_map(problem, term).module.weight.detach()[:, units]) for term in problem.links.readers[variable]
    ]
    for term, W in readers:
        d = problem.network[term].activate(point.z(term)[samples]) - point.x[term][samples]
        ahead.sub_((d @ W).view_as(x), alpha=t * problem.weight(term))
    new = problem.variable_prox(variable, ahead, t)
    for term, W in readers:
        z = point.z(term)[samples]
        z.add_((dense_map(problem, term).rows(new - x) @ W.t()).view_as(z))
    x.copy_(new)


def _weighted_residual(problem: LiftedProblem, point: Point, layer: int) -> Tensor:
    """w_i d_l as rows, from z_l as it stands now."""
    d = point.weigh(problem.network[layer].activate(point.z(layer)) - point.x[layer])
    return d.reshape(-1, d.shape[-1])


class _Curvature:
    """The Lipschitz constants of blocks, cached until a block that they depend on moves."""

    def __init__(self, problem: LiftedProblem, point: Point) -> None:
        self._problem, self._point = problem, point
        self._known: dict[Block, dict[str, float]] = {}

    def of(self, chosen: UnitBlock, smooth: bool = False) -> float:
        """L_b, or L if `smooth`: they differ by λ_l for variables."""
        known = self._known.setdefault(chosen.block, {})
        if (key := repr(chosen.units)) not in known:
            known[key] = self._computed(chosen)
        strong = isinstance(chosen.block, VariableBlock) and not smooth
        return known[key] + (self._problem.weight(chosen.block.layer) if strong else 0.0)

    def _computed(self, chosen: UnitBlock) -> float:
        layer, problem, point = chosen.block.layer, self._problem, self._point
        if isinstance(chosen.block, VariableBlock):
            assert chosen.units is not None
            return unit_curvature(problem, layer, chosen.units)
        if chosen.units is not None:
            return weight_curvature(problem, point, layer, chosen.units)
        positions = point.z(layer)[0, ..., 0].numel()
        total = point.samples if point.weights is None else float(point.weights.sum())
        return problem.weight(layer) * positions * total / point.samples

    def forget(self, moved: Block) -> None:
        """Drops the cached constants next to a moved block: Θ_l's after x_{l-1} moved, x_{l-1}'s after Θ_l moved."""
        links = self._problem.links
        if isinstance(moved, VariableBlock):
            for term in links.readers[moved.layer]:
                self._known.pop(ParameterBlock(term), None)
        else:
            for variable in links.inputs[moved.layer]:
                self._known.pop(VariableBlock(variable), None)


def _groups(count: int, parts: int) -> list[slice]:
    """0 .. count-1 in `parts` parts whose sizes differ by at most 1; fewer where there are fewer numbers."""
    parts = min(parts, count)
    ends = [count * k // parts for k in range(parts + 1)] if parts else [0]
    return [slice(start, stop) for start, stop in pairwise(ends)]


def _separable(penalty: Penalty | None) -> bool:
    """Whether a penalty is a sum over single numbers."""
    return penalty is None or split(penalty).base is None


def _count_work(problem: LiftedProblem, blocks: Sequence[UnitBlock], drawn: Sequence[UnitBlock]) -> None:
    """Adds up the work of a step in operations on whole layers, as if the blocks of a kind were of one size."""

    def share(kind: type[Block], whole_layers: int) -> int:
        total, chosen = (sum(isinstance(b.block, kind) for b in some) for some in (blocks, drawn))
        return round(whole_layers * chosen / total) if total else 0

    parameters, variables = share(ParameterBlock, problem.depth), share(VariableBlock, problem.depth - 1)
    problem.work.parameter_gradients += parameters
    problem.work.adjoints += variables
    problem.work.forward_maps += parameters + variables
    problem.work.prox_maps += parameters + 2 * variables
