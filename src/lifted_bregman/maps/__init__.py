"""The map f of a term, z = f(x, Θ): apply it, pull back through it, bound its curvature."""

from lifted_bregman.maps.base import LayerMap, Map
from lifted_bregman.maps.convolution import Convolution
from lifted_bregman.maps.dense import Dense
from lifted_bregman.maps.embedding import EmbeddingMap
from lifted_bregman.maps.modules import ModuleMap
from lifted_bregman.maps.spectral import PowerIteration

__all__ = ["Convolution", "Dense", "EmbeddingMap", "LayerMap", "Map", "ModuleMap", "PowerIteration"]
