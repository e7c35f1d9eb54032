"""Sums of penalties whose proximal map is known, and the parts that solvers handle one by one."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

from torch import Tensor

from lifted_bregman.errors import CompatibilityError, SettingError
from lifted_bregman.penalties.scalar import Scalar
from lifted_bregman.penalties.total_variation import TotalVariation
from lifted_bregman.penalties.vectors import Penalty


class Parts(NamedTuple):
    """A penalty as R(u) + Σ_j g(u_j)."""

    base: Penalty | None
    """R: the part that couples numbers, or a user's penalty; None if there is none."""
    scalar: Scalar
    """g, of each number alone."""


@dataclass(frozen=True)
class Sum(Penalty):
    """The sum R_1 + R_2 + ... of penalties, also written with `+`; raises if its proximal map is not known.

    With g the sum of `L1`, `SquaredL2`, `NonNegative` and `Bounds`, each a function of one number:

        g alone                    prox_{tg}(x) = clip( soft(x, ta) / (1 + tb), low, high )
        g + TotalVariation, 1-D    prox_{tg}(prox_{tTV}(x))
        g + TotalVariation, 2-D    the dual problem with prox_{tg} inside, certified as that of `TotalVariation`
        SquaredL2 + any other R    prox_{tR/(1+tb)}( x / (1 + tb) )

    The second line is due to Friedman, Hastie, Höfling and Tibshirani (2007) for `L1`.

    parts  two or more penalties; sums among them are taken apart

    Example:
        >>> penalty = lb.penalties.L1(0.5) + lb.penalties.Bounds(-1.0, 1.0)
        >>> penalty.prox(torch.tensor([-2.0, 0.3, 1.0]), 1.0)
        tensor([-1.0000,  0.0000,  0.5000])
    """

    parts: tuple[Penalty, ...]

    def __init__(self, *parts: Penalty) -> None:
        flat: list[Penalty] = []
        for part in parts:
            if not isinstance(part, Penalty):
                raise SettingError(f"a part of the sum is {part!r}; it must be a penalty, as lb.penalties has them.")
            flat += part.parts if isinstance(part, Sum) else (part,)
        if len(flat) < 2:
            raise SettingError(f"a sum of penalties needs two or more; {len(flat)} was given.")
        object.__setattr__(self, "parts", tuple(flat))
        split(self)  # a sum that has no known proximal map is refused here

    def __repr__(self) -> str:
        return " + ".join(map(repr, self.parts))

    @property
    def constraint(self) -> bool:  # type: ignore[override]
        """Whether R is 0 or infinity."""
        return all(part.constraint for part in self.parts)

    @property
    def of_matrices(self) -> bool:  # type: ignore[override]
        """Whether R is a function of a matrix, the last two dimensions."""
        return any(part.of_matrices for part in self.parts)

    def compute_value(self, x: Tensor) -> Tensor:
        total: Any = 0.0
        for part in self.parts:
            own = part.compute_value(x)
            total = total + (own.sum(-1) if self.of_matrices and not part.of_matrices else own)
        value: Tensor = total
        return value

    def compute_prox(self, x: Tensor, scale: float) -> Tensor:
        return prox_from(self, x, scale)[0]

    def _require(self, x: Tensor) -> None:
        for part in self.parts:
            part._require(x)


def split(penalty: Penalty) -> Parts:
    """R + g of a penalty or sum; an error that names the parts whose sum has no known proximal map."""
    base: Penalty | None = None
    scalar = Scalar()
    for part in penalty.parts if isinstance(penalty, Sum) else (penalty,):
        own = Scalar.of(part)
        if own is not None:
            scalar = scalar + own
        elif base is None:
            base = part
        else:
            raise CompatibilityError(
                f"the proximal map of {base!r} + {part!r} is not known: keep one of the two, with L1, SquaredL2, "
                "NonNegative or Bounds; of two alike add the weights."
            )
    if not scalar.low <= scalar.high:
        raise SettingError(f"the constraints of {penalty!r} have no point in common: widen one of the Bounds.")
    simple = scalar == Scalar(l2=scalar.l2)
    if base is not None and not simple and not isinstance(base, TotalVariation):
        raise CompatibilityError(
            f"the proximal map of {penalty!r} is not known: {type(base).__name__} can be added to SquaredL2, and "
            "TotalVariation to L1, SquaredL2, NonNegative and Bounds."
        )
    return Parts(base, scalar)


def prox_from(
    penalty: Penalty, x: Tensor, scale: float, memory: Any = None, max_steps: int | None = None
) -> tuple[Tensor, Any]:
    """prox_{scale·R}(x), and a warm start for the next call with a similar x; arguments as for `TotalVariation`."""
    base, g = split(penalty)
    if base is None:
        return g.prox(x.clone(), scale), None
    if isinstance(base, TotalVariation):
        return base._prox_with(x, scale, g, memory, max_steps)
    shrink = 1.0 + scale * g.l2
    return base.compute_prox(x if shrink == 1.0 else x / shrink, scale / shrink), None
