"""Scores of abnormal samples: the energies of an autoencoder's terms, divided by their means on usual samples."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from numbers import Real
from typing import Any

import torch
from torch import Tensor

from lifted_bregman._no_graph import no_graph
from lifted_bregman.errors import SettingError, TensorError
from lifted_bregman.problem import LiftedProblem
from lifted_bregman.tasks.explanation import Explanation
from lifted_bregman.tasks.term_energies import (
    TermEnergies,
    Where,
    narrowest_layer,
    require_autoencoder,
    require_where,
    term_energies,
)

ROWS = 1000
"""Energies are computed for this many samples at a time, to bound the memory."""
_RIDGE = 0.01  # added to the diagonal of the code's covariance, times its mean variance


@dataclass(frozen=True)
class EnergyScale:
    """The weights of an autoencoder's energies in a score, computed from usual samples by `EnergyScale.of`.

        score(x) = S_out + S_code + mean over l <= c of S_l
        S_l      = Σ_j w_lj E_lj(x),     w_lj proportional to 1 / (m_lj + mean over j of m_lj)
        S_code   proportional to (x_c - μ)ᵀ C⁻¹ (x_c - μ)

    c is the code, the narrowest variable.  The terms above it depend on the sample only through the code; of these only
    the output's counts.  m_lj is the mean of E_lj over usual samples, μ and C are mean and covariance of their codes.
    Every S has mean 1 over usual samples, so that a usual sample scores about 3.  Labels are not used.

    Example:
        >>> X = torch.randn(100, 1) @ torch.ones(1, 4)
        >>> problem = lb.lift(nn.Sequential(nn.Linear(4, 1), nn.Tanh(), nn.Linear(1, 4)), loss=lb.SquaredError())
        >>> result = lb.fit(problem, (X, X), epochs=20, batch_size=20)
        >>> scale = lb.tasks.EnergyScale.of(problem, X)
        >>> scale.explain(torch.tensor([[1.0, 1.0, 1.0, 1.0], [1.0, -1.0, 1.0, -1.0]])).scores.argmax().item()
        1
    """

    problem: LiftedProblem
    """The autoencoder's problem, in evaluation mode."""
    at: Where
    """Where the energies are taken: at the forward pass or at the minimum."""
    steps: int
    """Number of sweeps towards the minimum."""
    code: int
    """c, the number of the code's layer."""
    unit_weights: tuple[Tensor, ...]
    """w_lj of the layers 1 .. c and L, (units of x_l,) each, float64."""
    centre: Tensor
    """μ, (units of the code,), float64."""
    whitening: Tensor
    """A triangular matrix W with S_code = ‖W(x_c - μ)‖², (units, units), float64."""
    names: tuple[str, ...] = field(default=())
    """Names of the parts: the layers 1 .. c, "code" and "output"."""
    shape: tuple[int, ...] = field(default=())
    """The shape of one sample."""

    @classmethod
    @no_graph
    def of(cls, problem: LiftedProblem, x: Tensor, *, at: Where = "forward", steps: int = 20) -> EnergyScale:
        """Compute the scale of an autoencoder from usual samples x, (samples, ...), at least two."""
        require_where(at, steps)
        require_autoencoder(problem, x)
        if len(x) < 2:
            raise SettingError(
                f"{len(x)} sample is too few for a mean and a covariance: give two or more usual samples."
            )
        code = narrowest_layer(problem, x)
        # One pass over the samples: sums for m_lj, and the codes.
        sums: list[Tensor] = []
        codes = []
        for found in _pieces(problem, x, at, steps):
            units = [part.double().sum(0) for part in _kept(found.units, code)]
            sums = units if not sums else [a + b for a, b in zip(sums, units, strict=True)]
            codes.append(found.code.double())
        # w_lj = a_lj / Σ_j a_lj m_lj with a_lj = 1/(m_lj + mean of m_l): the mean of S_l is 1.  The floor, the energy
        # of rounding errors, avoids 0/0 for a layer whose energy is always 0.
        floor = torch.finfo(x.dtype).eps ** 2 * max(1.0, float(x.double().square().mean()))
        means = [total / len(x) + floor for total in sums]
        relative = [1.0 / (mean + mean.mean()) for mean in means]
        weights = [a / (a @ mean) for a, mean in zip(relative, means, strict=True)]
        # C = LLᵀ with a ridge; W = L⁻¹/√n makes the mean of S_code 1.
        stacked = torch.cat(codes)
        centre = stacked.mean(0)
        deviations = stacked - centre
        covariance = deviations.T @ deviations / len(x)
        variance = float(covariance.diagonal().mean())
        identity = torch.eye(len(centre), dtype=torch.float64, device=centre.device)
        factor = torch.linalg.cholesky(covariance + (_RIDGE * variance + floor) * identity)
        whitening = torch.linalg.solve_triangular(factor, identity, upper=False)
        whitening = whitening / max(float((deviations @ whitening.T).square().sum(1).mean()), 1e-12) ** 0.5
        labels = [problem.network[layer].label(layer) for layer in range(1, code + 1)]
        names = (*(f"layer {label}" for label in labels), "code", "output")
        return cls(problem, at, steps, code, tuple(weights), centre, whitening, names, tuple(x.shape[1:]))

    @no_graph
    def scores(self, x: Tensor) -> Tensor:
        """Return the score of each sample, (samples,), float64; higher is more abnormal."""
        return torch.cat([self._parts(found).sum(1) for found in self._energies(x)])

    @no_graph
    def explain(self, x: Tensor) -> Explanation:
        """Return the scores with their parts by layer, and the output's part by feature."""
        parts, features = [], []
        for found in self._energies(x):
            parts.append(self._parts(found))
            features.append(self.unit_weights[-1] * found.units[-1].double())
        units = torch.cat(features)
        shaped = units.view_as(x) if units.numel() == x.numel() else units
        return Explanation(torch.cat(parts).sum(1), torch.cat(parts), self.names, shaped, x)

    def _energies(self, x: Tensor) -> Iterator[TermEnergies]:
        if tuple(x.shape[1:]) != self.shape:
            raise TensorError(
                f"x has samples of shape {tuple(x.shape[1:])}, and the usual samples have {self.shape}: scale, crop or "
                "convert x to that shape."
            )
        return _pieces(self.problem, x, self.at, self.steps)

    def _parts(self, found: TermEnergies) -> Tensor:
        """Return S_1/c, .., S_c/c, S_code and S_out, (samples, c + 2), which sum to the score."""
        kept = _kept(found.units, self.code)
        *below, output = [units.double() @ w for units, w in zip(kept, self.unit_weights, strict=True)]
        code = ((found.code.double() - self.centre) @ self.whitening.T).square().sum(1)
        return torch.stack([*(part / self.code for part in below), code, output], 1)


def require_contamination(value: Any) -> None:
    """Raise SettingError unless the contamination is a number in (0, 0.5]."""
    if isinstance(value, bool) or not isinstance(value, Real) or not 0.0 < float(value) <= 0.5:
        raise SettingError(f"contamination is {value!r}; it must be in (0, 0.5], the part of abnormal samples.")


def _kept(units: Iterable[Tensor], code: int) -> tuple[Tensor, ...]:
    """Return the entries of the terms 1 .. c and L."""
    every = tuple(units)
    return (*every[:code], every[-1])


def _pieces(problem: LiftedProblem, x: Tensor, at: Where, steps: int) -> Iterator[TermEnergies]:
    for rows in x.split(ROWS):
        yield term_energies(problem, rows, at=at, steps=steps)
