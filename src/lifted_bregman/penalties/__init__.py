"""Penalties R on auxiliary variables and on weights: their value and their proximal map."""

from lifted_bregman.penalties.matrices import Nuclear
from lifted_bregman.penalties.registry import register_prox
from lifted_bregman.penalties.sums import Sum
from lifted_bregman.penalties.total_variation import TotalVariation
from lifted_bregman.penalties.vectors import L1, Bounds, GroupL2, NonNegative, Penalty, SquaredL2

Box = Bounds  # its former name

__all__ = [
    "L1",
    "Bounds",
    "Box",
    "GroupL2",
    "NonNegative",
    "Nuclear",
    "Penalty",
    "SquaredL2",
    "Sum",
    "TotalVariation",
    "register_prox",
]
