"""`run_scale` in real worker processes: stored measurements, missing ones, and the tables."""

import dataclasses
from pathlib import Path

import pytest
import torch

from lifted_bregman.errors import CheckpointError, SettingError
from lifted_bregman_lab import scale
from lifted_bregman_lab.scale import tables as scale_tables
from lifted_bregman_lab.scale import target
from lifted_bregman_lab.scale.cases import Case, Use
from lifted_bregman_lab.scale.measuring import ALONE, BESIDE, SHARED
from lifted_bregman_lab.scale.results import Arrival, Measured, ScaleStudy

CASES = (
    Case("back-propagation", "data", 2, 8, 6, use=Use.CALIBRATE),
    Case("simultaneous sweep", "layer", 4, 8, 6, goal=1e-9),
)
SETTINGS = scale.ScaleSettings(rounds=2, seconds=1e-3, repetitions=0)


@pytest.fixture(scope="module")
def measured() -> ScaleStudy:
    return scale.run_scale(CASES, SETTINGS)


@pytest.mark.long
def test_every_turn_is_timed_and_what_is_sent_is_counted(measured: ScaleStudy) -> None:
    assert [found.case for found in measured.measured] == list(CASES)
    for found in measured.measured:
        assert {name: len(times) for name, times in found.times.items()} == {ALONE: 2, BESIDE: 2, SHARED: 2}
        assert all(time > 0.0 for times in found.times.values() for time in times)
        assert max(found.sent) == scale_tables.bytes_by_formula(found.case)
    parameters, rows = 2 * 9 * 8, 6 * 8
    assert [list(found.sent) for found in measured.measured] == [[4 * (parameters + 1)] * 2, [4 * rows, 4 * rows + 8]]
    assert measured.links is not None
    assert all(time > 0.0 for found in measured.links.values() for _, time in found)


@pytest.mark.long
def test_what_is_stored_is_not_measured_again(measured: ScaleStudy, tmp_path: Path) -> None:
    scale.write_scale(tmp_path / "scale.json", measured)
    stored = scale.read_scale(tmp_path / "scale.json")
    assert stored.links == measured.links
    for shared in ("data", "layer"):
        assert scale_tables.gain_rows(stored, shared) == scale_tables.gain_rows(measured, shared)
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
    found = ScaleStudy({}, 0.0, 3, [made_up(dataclasses.replace(CASES[0], goal=1.6), 3.0, 4.0, 2.0)])
    header, (row,) = scale_tables.gain_rows(found, "data")
    assert dict(zip(header[3:], row[3:], strict=True)) == {
        "one, ms": "3,000",
        "two, ms": "2,000",
        "speed-up": "1.50",
        "10 % to 90 %": "0.75 to 1.50",
        "ceiling": "1.50",
        "goal": "1.6, missed",
    }
    assert scale_tables.gain_rows(found, "layer")[1] == []
    assert scale_tables.byte_rows(found)[1] == [("back-propagation", "data", "2 layers of 8", "6", "7", "580")]


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


def test_runs_to_the_target_that_are_missing() -> None:
    """One competitor has made two runs and another one; with two repetitions the others have all to make."""
    first, second, *others = target.COMPETITORS
    stored = ScaleStudy({}, 0.0, 3, arrivals=[Arrival(first, []), Arrival(second, []), Arrival(first, [])])
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
    _, rows = scale_tables.arrival_rows(ScaleStudy({}, 0.0, 3, arrivals=runs))
    assert rows == [
        ("a", "3.00", "2.00", "4.00", "1.5", "2 of 2", f"{low:.3g}"),
        ("b", "-", "-", "-", "-", "0 of 1", f"{high:.3g}"),
    ]
