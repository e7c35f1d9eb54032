"""The majorise-minimise step on a parameter block, with its linear system on the side of the samples.

For one dense layer, m rows A = [X 1] and c = λ/m the implicit step is

    min_Θ  c Σ [ φ*(AΘ) - <X_l, AΘ> ] + (τ/2)‖Θ - Θ⁰‖²         Θ = Θ⁰ + AᵀC, C of shape (m, out) .

σ = ∇φ* is 1-Lipschitz, so that c AᵀA + τI majorises its curvature.  With G = c (σ(Z) - X_l) + τC, which makes AᵀG the
gradient in Θ, the minimiser of the majorant at Z = AΘ is Θ - AᵀP with

    P = (c K + τI)⁻¹ G,   K = A Aᵀ          C ← C - P          Z ← Z - KP = Z - (G - τP)/c .

The objective never increases.  `_linalg.GuardedFactor` solves the system.  With samples' weights w_i, take √w_i times
the rows of A and of σ(Z) - X_l.
"""

from __future__ import annotations

_PASS = 20.0  # operations in the time of reading or writing one number of a weight that is not in the cache


def samples_are_cheaper(rows: int, inputs: int, outputs: int, steps: int, moving: bool) -> bool:
    """Whether `steps` gradient steps on W (outputs, inputs) cost less with W = W⁰ + (sum of low-rank factors).

    moving: whether the rows of X change between the steps, so that each step adds a factor.  In weight space a step
    takes four products (z before and after, the pull-back, the gradient) and a dozen passes over W (these, the proximal
    term, power iterations).  In sample space it takes two products with W⁰ and four with the factors, none with W⁰ if
    X stays; and the factors are multiplied out once.
    """
    entries = inputs * outputs
    if not moving:
        in_weights = steps * entries * (6.0 * rows + 9.0 * _PASS)
        in_samples = entries * (4.0 * rows + 3.0 * _PASS) + 2.0 * rows * rows * (inputs + steps * outputs)
        return in_samples < in_weights
    in_weights = steps * entries * (8.0 * rows + 12.0 * _PASS)
    in_samples = steps * entries * (4.0 * rows + 2.0 * _PASS) + entries * (2.0 * rows * steps + 2.0 * _PASS)
    rank = 0.5 * (steps + 1) * rows
    return in_samples + steps * 4.0 * rows * rank * (inputs + outputs) < in_weights
