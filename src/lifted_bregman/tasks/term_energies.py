"""The energy of each term of a network at samples, unit by unit."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, get_args

import torch
from torch import Tensor

from lifted_bregman._arguments import whole
from lifted_bregman._no_graph import no_graph
from lifted_bregman.errors import CompatibilityError, SettingError, TensorError
from lifted_bregman.problem import LiftedProblem
from lifted_bregman.problem.blocks import hidden_layers, layers
from lifted_bregman.tasks._hidden_problem import minimise_hidden

Where = Literal["forward", "minimum"]
"""The point at which energies are taken."""


@dataclass(frozen=True)
class TermEnergies:
    """The energies of samples, by term and unit.

    Example:
        >>> problem = lb.lift(nn.Sequential(nn.Linear(4, 2), nn.Tanh(), nn.Linear(2, 4)), loss=lb.SquaredError())
        >>> energies = lb.tasks.term_energies(problem, torch.randn(10, 4))
        >>> [tuple(unit.shape) for unit in energies.units]
        [(10, 2), (10, 4)]
    """

    units: tuple[Tensor, ...]
    """E_lj of the terms l = 1 .. L, (samples, units of x_l) each; a group of a joint activation is one unit."""
    code: Tensor
    """x_c, the narrowest hidden variable, (samples, units)."""

    def layers(self) -> Tensor:
        """Σ_j E_lj, (samples, L)."""
        return torch.stack([units.sum(1) for units in self.units], 1)


def narrowest_layer(problem: LiftedProblem, x: Tensor) -> int:
    """Return c, the hidden layer with the fewest units (the first of several): an autoencoder's code."""
    if problem.depth == 1:
        raise CompatibilityError(
            "the network has no hidden variable, and energies by layer need one: put an activation between two maps."
        )
    shapes = problem.shapes(x[:1])
    return min(hidden_layers(problem.depth), key=lambda layer: shapes[layer - 1].numel())


def require_where(at: object, steps: object) -> None:
    """Raise SettingError unless `at` is "forward" or "minimum" and `steps` a whole number of at least 1."""
    if at not in get_args(Where):
        raise SettingError(f"energy is {at!r}; it must be 'forward' or 'minimum'.")
    whole(steps, "steps")


def require_autoencoder(problem: LiftedProblem, x: Tensor) -> None:
    """Raise TensorError unless the network's outputs have the shape of its inputs."""
    returned = tuple(problem.shapes(x[:1])[-1])
    if returned != tuple(x.shape[1:]):
        raise TensorError(
            f"the network returns {returned} for samples of shape {tuple(x.shape[1:])}: the output of "
            "an autoencoder has the shape of its input, so pad or crop the samples, or set output_padding of its "
            "transposed convolutions."
        )


@no_graph
def term_energies(problem: LiftedProblem, x: Tensor, *, at: Where = "forward", steps: int = 20) -> TermEnergies:
    """Return the energies of an autoencoder's terms at samples, with its parameters fixed.

    At the forward pass every term but the last is 0.  The energies therefore compare the variables x̂_l of the
    reconstruction x̂ = N(x) with the maps z_l of the sample:

        E_l = B_l(x̂_l, z_l),  l < L,        E_L = B_L(x, z_L),

    which are all 0 if the network returns the sample.  At the minimum, E_l = λ_l B_l(x_l, z_l) at variables that
    minimise the lifted energy of the sample, x_0 = x_L = x; the minimisation includes penalties R_l of the problem.

    Args:
        problem: of an autoencoder in evaluation mode, as `lift` made it.
        x: (samples, ...).
        at: "forward" or "minimum".
        steps: sweeps of `DescentInversion` towards the minimum.

    Example:
        >>> model, x = nn.Sequential(nn.Linear(4, 2), nn.Tanh(), nn.Linear(2, 4)), torch.randn(10, 4)
        >>> energies = lb.tasks.term_energies(lb.lift(model, loss=lb.SquaredError()), x)
        >>> torch.allclose(energies.units[-1].sum(1), (model(x) - x).square().sum(1) / 2)
        True
    """
    require_where(at, steps)
    require_autoencoder(problem, x)
    code, last = narrowest_layer(problem, x), problem.depth
    if at == "minimum":
        point = minimise_hidden(problem, x, x, steps)
        units = []
        for layer in layers(last):
            energies = problem.network[layer].bregman_units(point.x[layer], point.z(layer))
            units.append(problem.weight(layer) * energies)
        return TermEnergies(tuple(units), point.x[code].flatten(1))
    point = problem.point(problem.forward_state(x), x, x)
    again = problem.forward_state(problem.network.forward(x)[-1], check=False)
    compared = [*again, x]
    units = [problem.network[layer].bregman_units(compared[layer - 1], point.z(layer)) for layer in layers(last)]
    return TermEnergies(tuple(units), point.x[code].flatten(1))
