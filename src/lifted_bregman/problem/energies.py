"""The lifted energy and its parts at an evaluated point, without checks; `LiftedProblem` has the checked methods.

E(Θ, X) = (1/s) Σ_i [ ℓ(y, z_L) + Σ_{l<L} ( λ_l B_l(x_l, z_l) + R_l(x_l) ) ] + Σ_l P_l(Θ_l)          (eq. 13)

plus (τ/2)‖Θ - Θ⁰‖² where the problem is that of an implicit step (`LiftedProblem.anchored`); `objective` has no such
term.

Where the point has sample weights, every mean (1/s) Σ_i here is (1/s) Σ_i w_i, divided by s whatever the w_i add up to.
`layer_energies` and `objective` work where layers are shared, too.
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

    For a point that is a forward pass they are the parts of E, since there B_l = 0.
    """
    return problem.border.all_terms(torch.stack(_objective_parts(problem, point)))


@no_graph
def partial_energy(problem: LiftedProblem, point: Point, terms: Iterable[int]) -> Tensor:
    """The sum of some layers' parts of E: all that a move of the blocks which touch only those can change."""
    return torch.stack(_parts(problem, point, terms)).sum()


@no_graph
def sample_energies(problem: LiftedProblem, point: Point) -> Tensor:
    """The parts of E by sample, (s,), not multiplied by w_i; their (weighted) mean plus Σ_l P_l(Θ_l) is E."""
    return torch.stack([_term(problem, point, layer) for layer in layers(problem.depth)]).sum(0)


@no_graph
def objective(problem: LiftedProblem, point: Point) -> Tensor:
    """Mean loss plus penalties; at a forward pass, where every B_l vanishes, the value of the nested network.

    Constraints on variables are left out: a forward pass need not satisfy them, and the value would be infinite.
    Where layers are shared it is the part of this process: the sum of all is the value.
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
    """The mean of R_l, or of the loss for l = L, plus P_l, for each layer of this process; no R_l that is a constraint.

    Of the maps only f_L is needed.
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
    """P_l(Θ_l): of weights as (units, rest) matrices, not of biases."""
    penalty = problem.parameter_penalties.get(layer)
    if penalty is None:
        return 0.0
    f = problem.network[layer].map
    weights = [f.unit_rows(p.detach()) for p in f.parameters.values() if p.ndim > 1]
    return torch.stack([penalty.value(weight).sum() for weight in weights]).sum() if weights else 0.0


def quadratic_terms(problem: LiftedProblem) -> Tensor | float:
    """Σ (τ/2)‖Θ - Θ⁰‖² of all layers here."""
    return sum((_to_anchors(problem, layer) for layer in problem.partition.terms), 0.0)


def _to_anchors(problem: LiftedProblem, layer: int) -> Tensor | float:
    """Σ (τ/2)‖Θ_l - Θ_l⁰‖² over the quadratic terms."""
    total: Tensor | float = 0.0
    for centre, tau in problem.anchors:
        for name, p in problem.network[layer].map.parameters.items():
            total = total + 0.5 * tau * torch.dist(p.detach(), centre[layer][name]).square()
    return total
