"""Predictions of the model past this machine: which layout for how many workers, and against back-propagation."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from lifted_bregman_lab.scale.analysis import Model
from lifted_bregman_lab.scale.model import Layout, Link, Links, Network, step_seconds

WORKERS = tuple(2**power for power in range(11))
SHARING_BOTH = ("simultaneous sweep", "pipelined sweep")
SHARING_LAYERS = (*SHARING_BOTH, "Gram sweep in parts")


@dataclass(frozen=True)
class Scene:
    """A network, workers and their links, to which the model is applied.

    name     for people
    network  with its batch
    link     between any two workers
    faster   how many times as fast as here a worker computes
    """

    name: str
    network: Network
    link: Link
    faster: float = 1.0


ETHERNET = Link(latency=50e-6, bandwidth=1.25e9)
INFINIBAND = Link(latency=5e-6, bandwidth=12.5e9)
SCENES = (
    Scene("20 layers of 784, batch 200, 10 Gbit/s", Network(20, 784, 200), ETHERNET),
    Scene("20 layers of 784, batch 200, 100 Gbit/s", Network(20, 784, 200), INFINIBAND),
    Scene("128 layers of 2048, batch 1024, 10 Gbit/s", Network(128, 2048, 1024), ETHERNET),
    Scene("the same, workers 100 times as fast, 100 Gbit/s", Network(128, 2048, 1024), INFINIBAND, faster=100.0),
)


@dataclass(frozen=True)
class Prediction:
    """Seconds of a step by an algorithm in a layout."""

    algorithm: str
    layout: Layout
    seconds: float


@dataclass(frozen=True)
class Best:
    """For a number of workers: back-propagation, and what lifted training does best in each way of sharing.

    data    lifted, the batch shared; None where it has fewer samples than there are workers
    layer   lifted, the layers shared, by the sweep that takes least; None where there are fewer layers than workers
    passes  the same for the Gram sweep, which carries an error through all layers in one step
    mixed   lifted, both shared
    """

    workers: int
    backprop: Prediction | None
    data: Prediction | None
    layer: Prediction | None
    passes: Prediction | None
    mixed: Prediction | None


def best_layouts(model: Model, scene: Scene, workers: Sequence[int] = WORKERS) -> list[Best]:
    """One for each number of workers; back-propagation's sums are hidden behind all that it computes."""
    return [_best(model, scene, count) for count in workers]


def _best(model: Model, scene: Scene, workers: int) -> Best:
    links = Links(scene.link, scene.link)

    def predict(algorithm: str, layout: Layout) -> Prediction:
        cost = model.costs[algorithm].faster(scene.faster)
        hidden = algorithm == "back-propagation"
        return Prediction(algorithm, layout, step_seconds(algorithm, cost, scene.network, layout, links, hidden))

    def least(found: list[Prediction]) -> Prediction | None:
        return min(found, key=lambda prediction: prediction.seconds, default=None)

    layouts = [Layout(data, workers // data) for data in WORKERS if data <= workers]
    possible = [l for l in layouts if l.data <= scene.network.samples and l.layer <= scene.network.depth]
    only_data = [l for l in possible if l.layer == 1]
    only_layer = [l for l in possible if l.data == 1 and l.layer > 1]
    both = [l for l in possible if l.data > 1 and l.layer > 1]
    return Best(
        workers,
        least([predict("back-propagation", l) for l in only_data]),
        least([predict(name, l) for l in only_data for name in ("Gram sweep", *SHARING_BOTH)]),
        least([predict(name, l) for l in only_layer for name in SHARING_LAYERS]),
        least([predict("Gram sweep in parts", l) for l in only_layer]),
        least([predict(name, l) for l in both for name in SHARING_BOTH]),
    )
