"""The model of many workers: limits that follow from theory, a simulated pipeline, fits against another library."""

import itertools
import math

import numpy as np
import pytest
import scipy.optimize
from hypothesis import given
from hypothesis import strategies as st

from lifted_bregman_lab.scale import analysis, model
from lifted_bregman_lab.scale.cases import ALGORITHMS, CASES, MICRO_BATCHES, QUICK, Use
from lifted_bregman_lab.scale.layouts import SCENES, SHARING_BOTH, SHARING_LAYERS, Scene, best_layouts
from lifted_bregman_lab.scale.model import ComputingCost, Layout, Link, Links, Network, step_seconds

FREE = Links(Link(0.0, math.inf), Link(0.0, math.inf))
PRODUCTS = ComputingCost(1e-11, 0.0, 0.0, 0.0)
NETWORK = Network(depth=16, width=64, samples=128)


@given(st.integers(0, 10**6), st.integers(2, 6), st.integers(1, 4))
def test_fits_are_those_of_another_library(seed, rows, columns):
    matrix = np.random.default_rng(seed).normal(size=(rows, columns))
    expected, _ = scipy.optimize.nnls(matrix, np.ones(rows))
    found = np.array(model._least_squares(matrix))
    assert (found >= 0.0).all()
    residuals = (np.linalg.norm(matrix @ x - 1.0) for x in (found, expected))
    assert next(residuals) == pytest.approx(next(residuals), rel=1e-9, abs=1e-9)


def test_costs_are_found_from_times_that_follow_them():
    true = ComputingCost(1.1e-11, 2e-9, 3e-10, 4e-5)
    networks = [Network(4, 784, 400), Network(4, 784, 1600), Network(8, 256, 400), Network(6, 512, 800), NETWORK]
    found = ComputingCost.fit([(network, true.seconds(network)) for network in networks])
    for name, value in vars(true).items():
        assert getattr(found, name) == pytest.approx(value, rel=1e-6)
    L, m, n = 6, 512, 800
    by_hand = L * (1.1e-11 * n * m * m + 2e-9 * n * m + 3e-10 * m * m + 4e-5)
    assert true.seconds(Network(L, m, n)) == pytest.approx(by_hand)
    assert true.faster(10.0).seconds(NETWORK) == pytest.approx(true.seconds(NETWORK) / 10)


def test_links_are_found_from_times_that_follow_them():
    sizes = [4**power for power in range(1, 12)]
    found = Link.fit([(size, 2 * 40e-6 + size / 2.5e9) for size in sizes], messages=2)
    assert found.latency == pytest.approx(40e-6) and found.bandwidth == pytest.approx(2.5e9)
    assert found.sum(10**6, 2) == pytest.approx(2 * 40e-6 + 10**6 / 2.5e9)  # what it was fitted to


@pytest.mark.parametrize("algorithm", ["back-propagation", "Gram sweep", *SHARING_LAYERS])
def test_one_worker_only_computes(algorithm):
    slow = Links(Link(1.0, 1.0), Link(1.0, 1.0))
    assert step_seconds(algorithm, PRODUCTS, NETWORK, Layout(), slow) == PRODUCTS.seconds(NETWORK)


@pytest.mark.parametrize("algorithm", ["back-propagation", "Gram sweep", *SHARING_BOTH])
def test_messages_that_cost_nothing_share_a_batch_perfectly(algorithm):
    assert step_seconds(algorithm, PRODUCTS, NETWORK, Layout(data=8), FREE) == pytest.approx(
        PRODUCTS.seconds(NETWORK) / 8
    )


def test_messages_that_cost_nothing_share_layers_as_theory_says():
    whole, p, M = PRODUCTS.seconds(NETWORK), 4, MICRO_BATCHES
    waits = {"simultaneous sweep": 1.0, "pipelined sweep": (M + p - 1) / M}
    waits["Gram sweep in parts"] = (2 * (M + p - 1) / M + 1) / 3
    for algorithm, factor in waits.items():
        found = step_seconds(algorithm, PRODUCTS, NETWORK, Layout(layer=p), FREE)
        assert found == pytest.approx(whole / p * factor)
    with pytest.raises(ValueError, match="does not share layers"):
        step_seconds("back-propagation", PRODUCTS, NETWORK, Layout(layer=2), FREE)


def simulated(stages: int, parts: int, forward: float, backward: float, travel: float) -> float:
    """When the last part is through: each stage takes one at a time, in order; the last turns round after all came."""
    free = [0.0] * stages
    arrive = [0.0] * parts
    for order, duration in ((range(stages), forward), (reversed(range(stages)), backward)):
        for number, stage in enumerate(order):
            done = []
            for part in range(parts):
                free[stage] = max(free[stage], arrive[part]) + duration
                done.append(free[stage])
            last = number == stages - 1
            arrive = [max(done)] * parts if last else [time + travel for time in done]
    return max(arrive)


@pytest.mark.parametrize("p", [2, 4, 8])
def test_a_pipeline_takes_as_long_as_a_simulated_one(p):
    links = Links(FREE.sums, Link(3e-5, 1e9))
    own = NETWORK.part(Layout(layer=p))
    pass_of_a_part = PRODUCTS.seconds(own) / MICRO_BATCHES
    travel = links.rows.message(4 * own.samples * own.width / MICRO_BATCHES)
    expected = simulated(p, MICRO_BATCHES, 0.4 * pass_of_a_part, 0.6 * pass_of_a_part, travel)
    found = step_seconds("pipelined sweep", PRODUCTS, NETWORK, Layout(layer=p), links)
    assert found == pytest.approx(expected, rel=1e-12)


def test_a_simultaneous_sweep_hides_one_message_and_waits_for_the_other():
    own = PRODUCTS.seconds(NETWORK.part(Layout(layer=2)))
    for latency in (0.01 * own, 5 * own):
        links = Links(FREE.sums, Link(latency, math.inf))
        found = step_seconds("simultaneous sweep", PRODUCTS, NETWORK, Layout(layer=2), links)
        assert found == pytest.approx(max(own, latency) + latency)


def test_a_simultaneous_sweep_with_a_shared_batch_gathers_the_variables_of_all_layers():
    """Of 4 workers each sends 32 rows of 64 numbers to 3 others, for 16 layers; sums cost nothing here."""
    links = Links(FREE.sums, Link(0.0, 1e6))
    found = step_seconds("simultaneous sweep", PRODUCTS, NETWORK, Layout(data=4), links)
    assert found == pytest.approx(PRODUCTS.seconds(NETWORK) / 4 + 3 * 16 * 4 * 32 * 64 / 1e6)


def test_sums_of_back_propagation_are_added_or_hidden():
    link = Link(1e-4, 1e8)
    links, layout = Links(link, link), Layout(data=4)
    computing = PRODUCTS.seconds(NETWORK.part(layout))
    size = 4 * (16 * 65 * 64 + 1)
    reducing = 2 * 2 * 1e-4 + 2 * 3 / 4 * size / 1e8
    assert step_seconds("back-propagation", PRODUCTS, NETWORK, layout, links) == pytest.approx(computing + reducing)
    hidden = step_seconds("back-propagation", PRODUCTS, NETWORK, layout, links, overlap=True)
    assert hidden == pytest.approx(max(computing, reducing))


MODEL = analysis.Model(dict.fromkeys(ALGORITHMS, ComputingCost(1e-11, 1e-9, 1e-9, 1e-5)), FREE)


@pytest.mark.parametrize("scene", SCENES, ids=lambda scene: scene.name)
def test_layouts_are_possible_and_the_best(scene: Scene):
    links = Links(scene.link, scene.link)
    for best in best_layouts(MODEL, scene):
        mixed = []
        for data, layer in itertools.product(range(2, best.workers), repeat=2):
            if data * layer == best.workers and data <= scene.network.samples and layer <= scene.network.depth:
                for name in SHARING_BOTH:
                    cost = MODEL.costs[name].faster(scene.faster)
                    mixed.append(step_seconds(name, cost, scene.network, Layout(data, layer), links))
        found = None if best.mixed is None else best.mixed.seconds
        assert found == (min(mixed) if mixed else None)
        assert (
            (best.passes is None) == (best.layer is None) == (best.workers == 1 or best.workers > scene.network.depth)
        )
        assert (best.data is None) == (best.workers > scene.network.samples) == (best.backprop is None)


def test_the_cases_are_different_and_some_are_kept_for_checking():
    assert len({case.name for case in CASES}) == len(CASES)
    for algorithm in ("back-propagation", "Gram sweep", *SHARING_LAYERS):
        uses = [case.use for case in CASES if case.algorithm == algorithm]
        assert uses.count(Use.CALIBRATE) >= 4 and uses.count(Use.CHECK) >= 2
    goals = {(case.shared, case.depth, case.width, case.samples): case.goal for case in CASES if case.goal}
    assert goals == {("data", 4, 784, 1600): 1.6, ("layer", 20, 784, 200): 1.8}
    assert {case.goal for case in QUICK if case.goal} == {1.6, 1.8}
