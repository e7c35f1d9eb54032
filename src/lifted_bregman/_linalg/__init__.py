"""Linear algebra that is safe on any input: factors with a floor, bounds of eigenvalues, singular values, norms."""

from lifted_bregman._linalg.cholesky import Cholesky, GuardedFactor, Ridge, damped_inverse, factorise
from lifted_bregman._linalg.norms import joint_norm, norm
from lifted_bregman._linalg.power import (
    FollowedPower,
    NormalOperator,
    PowerIteration,
    PowerVectors,
    RememberedPower,
    Vector,
)
from lifted_bregman._linalg.spectral import (
    certified_bound,
    least_squares,
    map_singular_values,
    positive_bound,
    singular_values,
    squared_norm,
)

__all__ = [
    "Cholesky",
    "FollowedPower",
    "GuardedFactor",
    "NormalOperator",
    "PowerIteration",
    "PowerVectors",
    "RememberedPower",
    "Ridge",
    "Vector",
    "certified_bound",
    "damped_inverse",
    "factorise",
    "joint_norm",
    "least_squares",
    "map_singular_values",
    "norm",
    "positive_bound",
    "singular_values",
    "squared_norm",
]
