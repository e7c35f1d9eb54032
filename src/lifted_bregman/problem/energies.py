"""The lifted energy and its parts at a point, without checks; `LiftedProblem` has the checked methods.

E(Θ, X) = (1/s) Σ_i [ ℓ(y, z_L) + Σ_{l<L} ( λ_l B_l(x_l, z_l) + R_l(x_l) ) ] + Σ_l P_l(Θ_l)          (eq. 13)

plus (τ/2)‖Θ - Θ⁰‖² in the problem of an implicit step (`LiftedProblem.anchored`); `objective` is without this term.

With sample weights every mean (1/s) Σ_i becomes (1/s) Σ_i w_i, divided by s whatever the sum of the w_i.
`layer_energies` and `objective` also serve layer-parallel runs.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from lifted_bregman._no_graph import no_graph
from lifted_bregman.graph.terms import half_square, sum_features
from lifted_bregman.problem.blocks import hidden_layers, layers
from lifted_bregman.problem.point import Point

if TYPE_CHECKING:
    from lifted_bregman.problem.lifted import LiftedProblem


@no_graph
def layer_energies(problem: LiftedProblem, point: Point) -> Tensor:
    """The parts of E by layer, (L,): mean of λ_l B_l + R_l, or of the loss for l = L, plus P_l; their sum is E."""
    return problem.border.all_terms(torch.stack(_parts(problem, point, problem.partition.terms)))


@no_graph
def layer_objectives(problem: LiftedProblem, point: Point) -> Tensor:
    """The parts of `objective` by layer, (L,): mean of R_l, or of the loss for l = L, plus P_l; their sum is its value.

    At a forward pass they are the parts of E, because B_l = 0 there.
    """
    return problem.border.all_terms(torch.stack(_objective_parts(problem, point)))


@no_graph
def partial_energy(problem: LiftedProblem, point: Point, terms: Iterable[int]) -> Tensor:
    """The sum of the parts of E of some terms: all that changes when a block moves that occurs in no other term."""
    return torch.stack(_parts(problem, point, terms)).sum()


@no_graph
def sample_energies(problem: LiftedProblem, point: Point) -> Tensor:
    """The parts of E by sample, (s,), not multiplied by w_i; their (weighted) mean plus Σ_l P_l(Θ_l) is E."""
    return torch.stack([_term(problem, point, layer) for layer in layers(problem.depth)]).sum(0)


@no_graph
def objective(problem: LiftedProblem, point: Point) -> Tensor:
    """Mean loss plus penalties; at a forward pass, where every B_l vanishes, the value of the nested network.

    Constraints on variables are left out: where the forward pass violates one, the value would be infinite.  In a
    layer-parallel run it is the part of this rank; the sum over ranks is the value.
    """
    return torch.stack(_objective_parts(problem, point)).sum()


@no_graph
def nonsmooth(problem: LiftedProblem, point: Point, smooth_quadratic: bool) -> Tensor:
    """G of the split E = G + H, which the proximal maps handle.

        G = (1/s) Σ_i Σ_{l<L} ( λ_l φ_l(x_l) + R_l(x_l) ) + Σ_l P_l(Θ_l),   φ = ½‖·‖² + Ψ

    smooth_quadratic moves ½‖x_l‖² to H, which leaves Ψ_l in place of φ_l.
    """
    per_sample = _on_variables(problem, point)
    for layer in hidden_layers(problem.depth):
        own = problem.network[layer]
        potential = own.psi(point.x[layer]) if smooth_quadratic else own.phi(point.x[layer])
        per_sample = per_sample + problem.weight(layer) * potential
    (value,) = point.means([per_sample])
    for layer in layers(problem.depth):
        value = value + _on_parameters(problem, layer) + _to_anchors(problem, layer)
    return value


@no_graph
def smooth(problem: LiftedProblem, point: Point, smooth_quadratic: bool) -> Tensor:
    """H of the split E = G + H, which gradients handle.

        H = (1/s) Σ_i [ φ_L(y) + Σ_l λ_l ( φ_l*(z_l) - <x_l, z_l> ) ]

    smooth_quadratic adds λ_l ½‖x_l‖² for l < L.
    """
    depth = problem.depth
    per_sample = problem.network[depth].phi(point.x[depth])
    for layer in layers(depth):
        x, z = point.x[layer], point.z(layer)
        term = problem.network[layer].phi_star(z) - sum_features(x * z)
        if smooth_quadratic and layer != depth:
            term = term + half_square(x)
        per_sample = per_sample + problem.weight(layer) * term
    return point.means([per_sample])[0]


def _parts(problem: LiftedProblem, point: Point, terms: Iterable[int]) -> list[Tensor]:
    """The mean of λ_l B_l + R_l, plus P_l, for each of the layers."""
    terms = tuple(terms)
    means = point.means(_term(problem, point, layer) for layer in terms)
    return [
        mean + _on_parameters(problem, layer) + _to_anchors(problem, layer)
        for layer, mean in zip(terms, means, strict=True)
    ]


def _objective_parts(problem: LiftedProblem, point: Point) -> list[Tensor]:
    """The mean of R_l, or of the loss for l = L, plus P_l, for each layer of this rank; without constraints R_l.

    The only map that is evaluated is f_L.
    """
    partition, depth = problem.partition, problem.depth
    counted = [l for l, penalty in problem.penalties.items() if l in partition.hidden and not penalty.constraint]
    terms = {layer: _on_variable(problem, point, layer) for layer in counted}
    if depth in partition.terms:
        terms[depth] = _term(problem, point, depth)
    means, nothing = dict(zip(terms, point.means(terms.values()), strict=True)), point.x[-1].new_zeros(())
    return [means.get(layer, nothing) + _on_parameters(problem, layer) for layer in partition.terms]


def _term(problem: LiftedProblem, point: Point, layer: int) -> Tensor:
    """λ_l B_l(x_l, z_l) + R_l(x_l) of each sample."""
    value = problem.network[layer].bregman(point.x[layer], point.z(layer))
    weight = problem.weight(layer)
    if weight != 1.0:
        value = weight * value
    return value + _on_variable(problem, point, layer) if layer in problem.penalties else value


def _on_variable(problem: LiftedProblem, point: Point, layer: int) -> Tensor:
    """R_l(x_l) of each sample."""
    return sum_features(problem.penalties[layer].value(problem.network[layer].arrange(point.x[layer])))


def _on_variables(problem: LiftedProblem, point: Point) -> Tensor:
    """Σ_l R_l(x_l) of each sample."""
    total: Tensor = point.x[-1].new_zeros(len(point.x[-1]))
    for layer in problem.penalties:
        if layer in problem.partition.hidden:
            total = total + _on_variable(problem, point, layer)
    return total


def _on_parameters(problem: LiftedProblem, layer: int) -> Tensor | float:
    """P_l(Θ_l), applied to weights as (units, rest) matrices, and not to biases."""
    penalty = problem.parameter_penalties.get(layer)
    if penalty is None:
        return 0.0
    f = problem.network[layer].map
    weights = [f.unit_rows(p.detach()) for p in f.parameters.values() if p.ndim > 1]
    return torch.stack([penalty.value(weight).sum() for weight in weights]).sum() if weights else 0.0


def quadratic_terms(problem: LiftedProblem) -> Tensor | float:
    """Σ (τ/2)‖Θ - Θ⁰‖² over the terms of this rank."""
    return sum((_to_anchors(problem, layer) for layer in problem.partition.terms), 0.0)


def _to_anchors(problem: LiftedProblem, layer: int) -> Tensor | float:
    """Σ (τ/2)‖Θ_l - Θ_l⁰‖² over the quadratic terms."""
    total: Tensor | float = 0.0
    for centre, tau in problem.anchors:
        for name, p in problem.network[layer].map.parameters.items():
            total = total + 0.5 * tau * torch.dist(p.detach(), centre[layer][name]).square()
    return total
