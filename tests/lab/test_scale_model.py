"""The model of clusters: limits that follow from theory, a simulated pipeline, and the tables in the documentation."""

from __future__ import annotations

import dataclasses
import importlib.util
import itertools
import math
import sys
from pathlib import Path
from typing import Any

import pytest

from lifted_bregman_lab.scale import CASES, QUICK, ScaleStudy, read_scale
from lifted_bregman_lab.scale.cases import ALGORITHMS, MICRO_BATCHES, Case, Use
from tests.lab.test_scale_running import made_up

ROOT = Path(__file__).parents[2]


def script() -> Any:
    specification = importlib.util.spec_from_file_location("cluster_model", ROOT / "lab/scripts/cluster_model.py")
    module = sys.modules["cluster_model"] = importlib.util.module_from_spec(specification)  # which dataclasses look up
    specification.loader.exec_module(module)
    return module


SCRIPT = script()
Link, Model, Network = SCRIPT.Link, SCRIPT.Model, SCRIPT.Network
FREE, NETWORK = Link(0.0, math.inf), Network(depth=16, width=64, samples=128)
BACKPROP, SHARING_BOTH, SHARING_LAYERS = SCRIPT.BACKPROP, SCRIPT.SHARING_BOTH, SCRIPT.SHARING_LAYERS


def products(sums: Any = FREE, rows: Any = FREE) -> Any:
    """A model in which only products of matrices take time."""
    return Model(dict.fromkeys(ALGORITHMS, (1e-11, 0.0, 0.0, 0.0)), sums, rows)


WHOLE = 1e-11 * 16 * 128 * 64 * 64


def test_costs_and_links_are_found_from_times_that_follow_them() -> None:
    a, b, c, e = true = (1.1e-11, 2e-9, 3e-10, 4e-5)
    sizes = [(4, 784, 400), (4, 784, 1600), (8, 256, 400), (6, 512, 800), (16, 64, 128)]
    seconds = [L * (a * n * m * m + b * n * m + c * m * m + e) for L, m, n in sizes]
    assert SCRIPT.fit([Network(*size).features() for size in sizes], seconds) == pytest.approx(true, rel=1e-6)
    found = Link.fit([(size, 2 * 40e-6 + size / 2.5e9) for size in (4**power for power in range(1, 12))], messages=2)
    assert (found.latency, found.bandwidth) == pytest.approx((40e-6, 2.5e9))
    assert found.sum(10**6, 2) == pytest.approx(2 * 40e-6 + 10**6 / 2.5e9)  # what it was fitted to


@pytest.mark.parametrize("algorithm", [BACKPROP, "Gram sweep", *SHARING_LAYERS])
def test_one_worker_only_computes(algorithm: str) -> None:
    slow = Link(1.0, 1.0)
    assert products(slow, slow).step(algorithm, NETWORK) == pytest.approx(WHOLE, rel=1e-12)


def test_messages_that_cost_nothing_share_perfectly_up_to_the_waits_of_a_pipeline() -> None:
    for algorithm in (BACKPROP, "Gram sweep", *SHARING_BOTH):
        assert products().step(algorithm, NETWORK, data=8) == pytest.approx(WHOLE / 8)
    p, M = 4, MICRO_BATCHES
    waits = {"simultaneous sweep": 1.0, "pipelined sweep": (M + p - 1) / M}
    waits["Gram sweep in parts"] = (2 * (M + p - 1) / M + 1) / 3
    for algorithm, factor in waits.items():
        assert products().step(algorithm, NETWORK, layer=p) == pytest.approx(WHOLE / p * factor)
    with pytest.raises(ValueError, match="does not share layers"):
        products().step(BACKPROP, NETWORK, layer=2)


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
def test_a_pipeline_takes_as_long_as_a_simulated_one(p: int) -> None:
    pass_of_a_part, travel = WHOLE / p / MICRO_BATCHES, 3e-5 + 4 * 128 * 64 / MICRO_BATCHES / 1e9
    expected = simulated(p, MICRO_BATCHES, 0.4 * pass_of_a_part, 0.6 * pass_of_a_part, travel)
    found = products(rows=Link(3e-5, 1e9)).step("pipelined sweep", NETWORK, layer=p)
    assert found == pytest.approx(expected, rel=1e-12)


def test_a_simultaneous_sweep_hides_one_message_waits_for_the_other_and_gathers_shared_batches() -> None:
    """Of 4 workers each sends 32 rows of 64 numbers to 3 others, for 16 layers; sums cost nothing here."""
    for latency in (0.01 * WHOLE / 2, 5 * WHOLE / 2):
        found = products(rows=Link(latency, math.inf)).step("simultaneous sweep", NETWORK, layer=2)
        assert found == pytest.approx(max(WHOLE / 2, latency) + latency)
    found = products(rows=Link(0.0, 1e6)).step("simultaneous sweep", NETWORK, data=4)
    assert found == pytest.approx(WHOLE / 4 + 3 * 16 * 4 * 32 * 64 / 1e6)


def test_sums_of_back_propagation_are_added_or_hidden() -> None:
    model, size = products(sums=Link(1e-4, 1e8)), 4 * (16 * 65 * 64 + 1)
    summing = 2 * 2 * 1e-4 + 2 * 3 / 4 * size / 1e8
    assert model.step(BACKPROP, NETWORK, data=4) == pytest.approx(WHOLE / 4 + summing)
    assert model.step(BACKPROP, NETWORK, data=4, hidden=True) == pytest.approx(max(WHOLE / 4, summing))


@pytest.mark.parametrize("cluster", SCRIPT.CLUSTERS, ids=lambda cluster: cluster.name)
def test_layouts_are_possible_and_the_best(cluster: Any) -> None:
    """Against all products of two numbers."""
    cost = tuple(value / cluster.faster for value in (1e-11, 1e-9, 1e-9, 1e-5))
    here = Model(dict.fromkeys(ALGORITHMS, cost), cluster.link, cluster.link)
    model = Model(dict.fromkeys(ALGORITHMS, (1e-11, 1e-9, 1e-9, 1e-5)), FREE, FREE)
    found = SCRIPT.predict(model, cluster)["seconds"]
    depth, samples = cluster.network.depth, cluster.network.samples
    for workers, least in found.iterrows():
        mixed = [
            here.step(name, cluster.network, data, layer)
            for data, layer in itertools.product(range(2, workers), repeat=2)
            if data * layer == workers and data <= samples and layer <= depth
            for name in SHARING_BOTH
        ]
        assert least["both"] == pytest.approx(min(mixed), rel=1e-12) if mixed else math.isnan(least["both"])
        for kind in ("layers", "layers, Gram sweep"):
            assert math.isnan(least[kind]) == (workers == 1 or workers > depth)
        for kind in ("data", BACKPROP):
            assert math.isnan(least[kind]) == (workers > samples)


def test_the_model_predicts_what_it_was_not_fitted_to() -> None:
    """Times that follow the model are predicted to rounding; a link that is twice as slow is seen."""
    true = Model({BACKPROP: (1e-11, 1e-9, 0.0, 1e-5)}, Link(1e-5, 1e9), Link(1e-5, 1e9))
    found = []
    for case in (case for case in CASES if case.algorithm == BACKPROP):
        network = SCRIPT.network_of(case)
        alone, shared = true.step(BACKPROP, network), true.step(BACKPROP, network, data=2)
        found.append(made_up(case, 1.0, alone, shared))
    sizes = [4**power for power in range(1, 12)]
    links = {
        "sum": [(size, 2e-5 + size / 1e9) for size in sizes],
        "rows": [(size, 1e-5 + size / 1e9) for size in sizes],
    }
    whole = ScaleStudy({}, 0.0, 3, found, links)
    _, rows = SCRIPT.check_rows(whole, Model.fit(whole))
    assert len(rows) == 2 and {row[6] for row in rows} <= {"+0%", "-0%"} and {row[7] for row in rows} == {"yes"}
    slow = dataclasses.replace(whole, links=links | {"sum": [(size, 2 * time) for size, time in links["sum"]]})
    assert all(int(row[6].rstrip("%")) > 0 for row in SCRIPT.check_rows(slow, Model.fit(slow))[1])
    with pytest.raises(SystemExit, match="without --quick"):
        Model.fit(dataclasses.replace(whole, links=None))


def test_relief_takes_from_measured_times_what_the_model_says_sums_cost() -> None:
    """Sums of 4 · 145 bytes: 2 · 1 ms and 580 bytes at 1 MB/s are 2.58 ms of 10 ms."""
    model = Model({BACKPROP: (0.0,) * 4}, Link(1e-3, 1e6), FREE)
    found = ScaleStudy({}, 0.0, 3, [made_up(Case(BACKPROP, "data", 2, 8, 6), 15e-3, 15e-3, 10e-3)])
    _, (row,) = SCRIPT.relief_rows(found, model)
    times = (10.0, 10.0 - 0.29, 10.0 - 0.75 * 2.58, 10.0 - 2.58)
    assert row[3:] == tuple(f"{15.0 / time:.2f}" for time in times)


def test_the_sentence_names_the_workers_with_which_shared_layers_are_ahead() -> None:
    """By the numbers of the table, with links that make sums slow; and with one layer, which cannot be shared."""
    predicted = SCRIPT.predict(products(), SCRIPT.Cluster("", Network(16, 256, 64), Link(1e-6, 1e9)))
    header, rows = SCRIPT.cluster_rows(predicted)
    table = [
        {name: float(cell) for name, cell in zip(header, row, strict=True) if cell and "x" not in cell} for row in rows
    ]

    def ahead(*kinds: str) -> list[int]:
        least = ((row, min((row[kind] for kind in kinds if kind in row), default=math.inf)) for row in table)
        return [int(row["workers"]) for row, own in least if own < row.get(BACKPROP, -math.inf)]

    both, passes = ahead("layers", "both"), ahead("layers, Gram sweep")
    assert 1 < len(passes) <= len(both)
    said = SCRIPT.ahead(predicted)
    assert f"or both with {both[0]} to {both[-1]} workers; one of the Gram" in said
    assert said.endswith(f"shared layers with {passes[0]} to {passes[-1]} workers.")
    one = SCRIPT.predict(products(), SCRIPT.Cluster("", Network(1, 256, 2048), FREE))
    assert SCRIPT.ahead(one).count("with no number of workers") == 2


def test_the_tables_in_the_docs_are_those_of_the_script() -> None:
    folder = ROOT / "docs" / "figures"
    assert (folder / "cluster_model.inc").read_text(encoding="utf-8") == SCRIPT.page(read_scale(folder / "scale.json"))


def test_the_cases_are_different_and_some_are_kept_for_checking() -> None:
    assert len({case.name for case in CASES}) == len(CASES)
    for algorithm in (BACKPROP, "Gram sweep", *SHARING_LAYERS):
        uses = [case.use for case in CASES if case.algorithm == algorithm]
        assert uses.count(Use.CALIBRATE) >= 4 and uses.count(Use.CHECK) >= 2
    goals = {(case.shared, case.depth, case.width, case.samples): case.goal for case in CASES if case.goal}
    assert goals == {("data", 4, 784, 1600): 1.6, ("layer", 20, 784, 200): 1.8}
    assert {case.goal for case in QUICK if case.goal} == {1.6, 1.8}
