"""A check of a penalty and its rules, for users' own and for those of the library."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import product

from torch import Tensor

from lifted_bregman.activations import Activation
from lifted_bregman.activations.checks import SCALES, require_points, require_prox
from lifted_bregman.penalties import Penalty
from lifted_bregman.problem.composite import composite_prox


def check_penalty(
    penalty: Penalty,
    x: Tensor,
    activation: Activation | None = None,
    scales: Sequence[float] = SCALES,
    tolerance: float = 1e-9,
) -> None:
    """Checks that `penalty.prox(x, b)` minimises ½‖u - x‖² + bR(u), for each scale b.

    With an activation, it checks the rule for both: `composite_prox` minimises ½‖u - x‖² + aΨ(u) + bR(u) for each pair
    of scales.  Each minimiser p must satisfy the variational inequality F(w) >= F(p) + <x - p, w - p> at other points
    w, with F = bR or aΨ + bR, and p must be firmly non-expansive in x, as in `check_prox`.

    Args:
        penalty: the penalty under test.
        x: points, (samples, features); at least two rows, spread over the region of interest.
        activation: None for the penalty alone.
        scales: the values of b, and of a.
        tolerance: allowed violation, relative to the size of the terms compared.

    Example:
        >>> x = torch.randn(10, 3, dtype=torch.float64)
        >>> lb.check_penalty(lb.penalties.L1(0.5), x)
        >>> lb.check_penalty(lb.penalties.L1(0.5), x, activation=lb.activations.ReLU())
    """
    x = require_points(x, "x")
    if activation is None:
        for b in scales:

            def penalty_value(w: Tensor, b: float = b) -> Tensor:
                return b * penalty.value(w)

            require_prox(
                penalty.prox(x, b), penalty_value, x, tolerance, f"prox(x, scale={b}) of {penalty}", f"{b}R(u)"
            )
        return
    for a, b in product(scales, scales):

        def value(w: Tensor, a: float = a, b: float = b) -> Tensor:
            return a * activation.potential(w) + b * penalty.value(w)

        name = f"composite_prox of {activation} and {penalty} with scales {a} and {b}"
        require_prox(composite_prox(activation, penalty, x, a, b), value, x, tolerance, name, f"{a}Ψ(u) + {b}R(u)")
