"""Networks as rows of layers, each a map and an activation, that share the parameters of the user's model."""

from lifted_bregman.networks.dense import Dense
from lifted_bregman.networks.layers import Layer, Network
from lifted_bregman.networks.maps import LayerMap, Map
from lifted_bregman.networks.module_map import ModuleMap
from lifted_bregman.networks.reader import read_network
from lifted_bregman.networks.spectral import PowerIteration

__all__ = ["Dense", "Layer", "LayerMap", "Map", "ModuleMap", "Network", "PowerIteration", "read_network"]
