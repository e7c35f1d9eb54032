"""The map f of a term, z = f(x, Θ): apply it, pull back through it, bound its curvature."""

from lifted_bregman._linalg import PowerIteration
from lifted_bregman.maps.base import LayerMap, Map
from lifted_bregman.maps.borrowing import Borrowing
from lifted_bregman.maps.convolution import Convolution
from lifted_bregman.maps.dense import Dense
from lifted_bregman.maps.embedding import EmbeddingMap
from lifted_bregman.maps.noise import GaussianNoise
from lifted_bregman.maps.traced import TracedMap

__all__ = [
    "Borrowing",
    "Convolution",
    "Dense",
    "EmbeddingMap",
    "GaussianNoise",
    "LayerMap",
    "Map",
    "PowerIteration",
    "TracedMap",
]
