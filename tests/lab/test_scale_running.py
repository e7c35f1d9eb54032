"""`run_scale` in real worker processes; what it stores, goes on with, and makes of it."""

import dataclasses
import math
from pathlib import Path

import pytest
import torch

from lifted_bregman.errors import CheckpointError, SettingError
from lifted_bregman_lab import scale
from lifted_bregman_lab.scale import analysis, target
from lifted_bregman_lab.scale import tables as scale_tables
from lifted_bregman_lab.scale.cases import Case, Use
from lifted_bregman_lab.scale.measuring import ALONE, BESIDE, SHARED
from lifted_bregman_lab.scale.results import Arrival, Measured, Scale

CASES = (
    Case("back-propagation", "data", 2, 8, 6, use=Use.CALIBRATE),
    Case("simultaneous sweep", "layer", 4, 8, 6, goal=1e-9),
)
SETTINGS = scale.ScaleSettings(rounds=2, seconds=1e-3, repetitions=0)


@pytest.fixture(scope="module")
def measured() -> Scale:
    return scale.run_scale(CASES, SETTINGS)


def test_every_turn_is_timed_and_what_is_sent_is_counted(measured: Scale) -> None:
    assert [found.case for found in measured.measured] == list(CASES)
    for found in measured.measured:
        assert {name: len(times) for name, times in found.times.items()} == {ALONE: 2, BESIDE: 2, SHARED: 2}
        assert all(time > 0.0 for times in found.times.values() for time in times)
        assert max(found.sent) == analysis.bytes_by_formula(found.case)
    parameters, rows = 2 * 9 * 8, 6 * 8
    assert [list(found.sent) for found in measured.measured] == [[4 * (parameters + 1)] * 2, [4 * rows, 4 * rows + 8]]
    assert measured.links is not None
    assert all(time > 0.0 for found in measured.links.values() for _, time in found)


def test_what_is_stored_is_not_measured_again(measured: Scale, tmp_path: Path) -> None:
    scale.write_scale(tmp_path / "scale.json", measured)
    stored = scale.read_scale(tmp_path / "scale.json")
    assert analysis.gains(stored) == analysis.gains(measured) and stored.links == measured.links
    said: list[str] = []
    again = scale.run_scale(CASES, SETTINGS, lambda what, part: said.append(what), stored=stored)
    assert said == [] and again == stored


@pytest.mark.parametrize(
    "content", ["", "{", "[]", '{"kind": "lifted race, format 1"}', '{"kind": "lifted scale, format 1"}']
)
def test_another_file_is_refused(content: str, tmp_path: Path) -> None:
    path = tmp_path / "scale.json"
    path.write_text(content)
    with pytest.raises(CheckpointError, match=r"scale\.json is not what 'lifted bench scale' writes"):
        scale.read_scale(path)
    with pytest.raises(CheckpointError, match="cannot be read"):
        scale.read_scale(tmp_path / "nowhere")


@pytest.mark.parametrize("wrong", [{"rounds": 0}, {"seconds": 0.0}, {"repetitions": -1}, {"rounds": 1.5}])
def test_impossible_settings(wrong: dict[str, float]) -> None:
    with pytest.raises(SettingError, match=next(iter(wrong))):
        dataclasses.replace(SETTINGS, **wrong)  # type: ignore[arg-type]


def made_up(case: Case, alone: float, beside: float, shared: float) -> Measured:
    times = {ALONE: [alone] * 3, BESIDE: [beside] * 3, SHARED: [shared, shared, 2 * shared]}
    return Measured(case, times, [5, 7], [1, 1])


def test_gains_are_ratios_of_rounds() -> None:
    case = dataclasses.replace(CASES[0], goal=1.6)
    found = Scale({}, 0.0, 3, [made_up(case, 3.0, 4.0, 2.0)])
    (gain,) = analysis.gains(found)
    assert (gain.speed_up, gain.ceiling, gain.efficiency, gain.sent) == (1.5, 1.5, 0.75, 7)
    assert (gain.low, gain.high, gain.reached) == (0.75, 1.5, False)


def test_the_model_says_what_it_was_not_fitted_to() -> None:
    """Times that follow the model are predicted to rounding; a link that is twice as slow is seen."""
    true = scale.ComputingCost(1e-11, 1e-9, 0.0, 1e-5)
    link = scale.Link(1e-5, 1e9)
    cases = [case for case in scale.CASES if case.algorithm == "back-propagation"]
    found = []
    for case in cases:
        network, layout = analysis.network_of(case), analysis.layout_of(case)
        links = analysis.Links(link, link)
        seconds = scale.step_seconds(case.algorithm, true, network, layout, links)
        found.append(made_up(case, 1.0, true.seconds(network), seconds))
    sizes = [4**power for power in range(1, 12)]
    sums = {"sum": [(size, 2e-5 + size / 1e9) for size in sizes], "rows": [(size, 1e-5 + size / 1e9) for size in sizes]}
    whole = Scale({}, 0.0, 3, found, sums)
    checked = analysis.checks(whole)
    assert [check.case for check in checked] == [case for case in cases if case.use is Use.CHECK]
    assert all(abs(check.error) < 1e-6 for check in checked)
    slow = dataclasses.replace(
        whole, links={"sum": [(size, 2 * time) for size, time in sums["sum"]], "rows": sums["rows"]}
    )
    assert all(check.error > 0.01 for check in analysis.checks(slow))
    assert analysis.calibrated(dataclasses.replace(whole, links=None)) is None


def test_a_run_to_the_target(monkeypatch: pytest.MonkeyPatch) -> None:
    """Labels that one input tells: the objective falls below the target, where the run ends."""
    generator = torch.Generator().manual_seed(0)
    Y = torch.randint(0, 10, (400,), generator=generator)
    X = torch.eye(10)[Y] + 0.01 * torch.randn(400, 10, generator=generator)
    arrival = target.approach("Gram sweep, one process", (X, Y), 0, epochs=30, depth=2)
    objectives = [row[2] for row in arrival.rows]
    assert objectives[-1] <= target.OBJECTIVE < min(objectives[:-1])
    monkeypatch.setattr(target, "OBJECTIVE", -1.0)
    assert len(target.approach("Gram sweep, one process", (X, Y), 0, epochs=2, depth=2).rows) == 2


def test_relief_takes_from_measured_times_what_the_model_says_sums_cost() -> None:
    """Sums of 4 · 145 bytes: 2 · 1 ms and 580 bytes at 1 MB/s are 2.58 ms of 10 ms."""
    link = scale.Link(1e-3, 1e6)
    model = analysis.Model({"back-propagation": scale.ComputingCost(0.0, 0.0, 0.0, 0.0)}, analysis.Links(link, link))
    found = Scale({}, 0.0, 3, [made_up(CASES[0], 15e-3, 15e-3, 10e-3)])
    _, (row,) = scale_tables.relief_rows(found, model)
    times = (10.0, 10.0 - 0.29, 10.0 - 0.75 * 2.58, 10.0 - 2.58)
    assert row[3:] == tuple(f"{15.0 / time:.2f}" for time in times)


def test_with_how_many_workers_shared_layers_are_ahead() -> None:
    """By the numbers of the table, with links that make sums slow; and with one layer, which cannot be shared."""
    costs = dict.fromkeys({case.algorithm for case in scale.CASES}, scale.ComputingCost(1e-11, 0, 0, 0))
    model = analysis.Model(costs, analysis.Links(scale.Link(0.0, 1.0), scale.Link(0.0, 1.0)))
    slow = scale.Scene("", scale.Network(16, 256, 64), scale.Link(1e-6, 1e9))
    header, rows = scale_tables.layout_rows(model, slow)
    numbers = [
        {name: float(cell) for name, cell in zip(header, row, strict=True) if cell and "x" not in cell} for row in rows
    ]

    def ahead(*kinds: str) -> list[int]:
        return [
            int(row["workers"])
            for row in numbers
            if "back-propagation" in row
            and min((row[kind] for kind in kinds if kind in row), default=math.inf) < row["back-propagation"]
        ]

    both, passes = ahead("layers", "both"), ahead("layers, Gram sweep")
    assert 1 < len(passes) <= len(both)
    said = scale_tables.ahead(model, slow)
    assert f"or both with {both[0]} to {both[-1]} workers; one of the Gram" in said
    assert said.endswith(f"shared layers with {passes[0]} to {passes[-1]} workers.")
    one = scale.Scene("", scale.Network(1, 256, 2048), scale.Link(0.0, math.inf))
    assert scale_tables.ahead(model, one).count("with no number of workers") == 2


def test_runs_to_the_target_that_are_missing() -> None:
    """One competitor has made two runs and another one; with two repetitions the others have all to make."""
    first, second, *others = target.COMPETITORS
    stored = Scale({}, 0.0, 3, arrivals=[Arrival(first, []), Arrival(second, []), Arrival(first, [])])
    expected = [(name, 0) for name in others] + [(name, 1) for name in (second, *others)]
    assert scale.missing_arrivals(stored, 2) == expected
    assert scale.missing_arrivals(stored, 0) == []


def test_arrivals_are_the_first_rows_at_the_target() -> None:
    high, low = 2 * target.OBJECTIVE, target.OBJECTIVE
    runs = [
        Arrival("a", [(1, 1.0, high), (2, 2.0, low), (3, 3.0, low)]),
        Arrival("a", [(1, 4.0, low)]),
        Arrival("b", [(1, 1.0, high)]),
    ]
    _, rows = scale_tables.arrival_rows(Scale({}, 0.0, 3, arrivals=runs))
    assert rows == [
        ("a", "3.00", "2.00", "4.00", "1.5", "2 of 2", f"{low:.3g}"),
        ("b", "-", "-", "-", "-", "0 of 1", f"{high:.3g}"),
    ]
