"""Networks as terms in topological order: each a map and an activation, on the parameters of the user's model."""

from lifted_bregman.graph.cut import Streams
from lifted_bregman.graph.inputs import Input, InputTensors, ModelInput
from lifted_bregman.graph.partition import Partition
from lifted_bregman.graph.reader import read_network
from lifted_bregman.graph.summary import summarise
from lifted_bregman.graph.terms import Layer, Links, Network

__all__ = [
    "Input",
    "InputTensors",
    "Layer",
    "Links",
    "ModelInput",
    "Network",
    "Partition",
    "Streams",
    "read_network",
    "summarise",
]
