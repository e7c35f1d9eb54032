"""Exponents, table and chart of how costs grow: right slopes from made-up numbers."""

from __future__ import annotations

import json
import math
import random

import growth
import pytest
from _tasks import Task


def test_exponents_of_power_laws_are_exact_where_only_the_upper_half_is_one():
    sizes = [1, 2, 4, 8, 16, 32, 64, 128, 256]
    values = [9.0, 1.0, 7.0, 2.0, *(3.0 * size**1.7 for size in sizes[4:])]
    found = growth.fit(sizes, values)
    assert found.exponent == pytest.approx(1.7, abs=1e-13) and found.error == pytest.approx(0.0, abs=1e-13)


def test_exponents_and_their_errors_are_those_of_scipy():
    stats = pytest.importorskip("scipy.stats")
    draw = random.Random(0)
    for count, used in ((3, 3), (4, 3), (5, 3), (6, 3), (7, 4), (9, 5), (10, 5)):
        sizes = [10.0 * 1.5**n for n in range(count)]
        values = [size**0.8 * draw.uniform(0.8, 1.2) for size in sizes]
        oracle = stats.linregress([math.log(s) for s in sizes[-used:]], [math.log(v) for v in values[-used:]])
        found = growth.fit(sizes, values)
        assert found.exponent == pytest.approx(oracle.slope, rel=1e-10)
        assert found.error == pytest.approx(oracle.stderr, rel=1e-8)


def test_growing_samples_count_with_their_bytes():
    axis = growth.Axis("samples", (20, 60), (), lambda _: Task("", (8, 8, 4), batch=10), epoch=True)
    small, large = (growth.measure(axis, size, rounds=1) for size in axis.sizes)
    assert large["other_bytes"] - small["other_bytes"] == 40 * (8 + 4) * 4
    assert large["ours_bytes"] - small["ours_bytes"] >= 40 * (8 + 4) * 4
    assert small["ours_ms"] > 0.0 and small["other_ms"] > 0.0


def made_up_rows():
    exponents = {"samples": 1.0, "width": 2.0, "depth": 1.5, "batch": 0.5}
    return [
        {"axis": axis.name, "size": n, "ours_ms": 2.0 * n**p, "other_ms": n**p, "ours_bytes": n**1.25, "other_bytes": n}
        for axis in growth.AXES
        for n, p in ((n, exponents[axis.name]) for n in axis.sizes)
    ]


def test_the_table_has_the_exponents_and_the_ratios_of_the_ends():
    _, *table = growth.exponents(made_up_rows())
    assert [line[0] for line in table] == [axis.name for axis in growth.AXES for _ in range(2)]
    for line, p in zip(table[::2], ("1.00", "2.00", "1.50", "0.50"), strict=True):
        assert line[3:] == ("time", f"{p} ± 0.00", f"{p} ± 0.00", "2.00", "2.00")
    for line, axis in zip(table[1::2], growth.AXES, strict=True):
        ends = axis.sizes[0], axis.sizes[-1]
        assert line[1:3] == tuple(map(str, ends))
        assert line[3:] == ("memory", "1.25 ± 0.00", "1.00 ± 0.00", *(f"{n**0.25:.2f}" for n in ends))


def test_the_chart_has_eight_panels_with_both_curves():
    pytest.importorskip("matplotlib")
    rows = made_up_rows()
    panels = growth.figure(rows).axes
    assert len(panels) == 8
    for number, panel in enumerate(panels):
        axis, unit = growth.AXES[number % 4], ("ms", "bytes")[number // 4]
        chosen = [row for row in rows if row["axis"] == axis.name]
        assert (panel.get_xscale(), panel.get_yscale()) == ("log", "log")
        for line, method in zip(panel.lines, ("ours", "other"), strict=True):
            scale = 1e6 if unit == "bytes" else 1.0
            assert list(line.get_xdata()) == list(axis.sizes)
            assert list(line.get_ydata()) == pytest.approx([row[f"{method}_{unit}"] / scale for row in chosen])
        low, high = panel.get_ylim()
        assert any(low <= tick <= high for tick in panel.get_yticks())


def test_redrawing_gives_the_same_files(tmp_path):
    pytest.importorskip("matplotlib")
    place = {"processor": "P", "threads": "2", "torch": "9.9"}
    result = {"rows": made_up_rows(), "rounds": 9, "environment": place, "load_before": 0.25}
    made = []
    for name in ("one", "two"):
        path = tmp_path / name / "growth.json"
        path.parent.mkdir()
        path.write_text(json.dumps(result))
        growth.write(json.loads(path.read_text()), path)
        made.append([path.with_name(file).read_bytes() for file in ("growth.svg", "growth_dark.svg")])
    assert made[0] == made[1] and made[0][0] != made[0][1]
    text = path.with_suffix(".inc").read_text()
    assert "{image} two/growth.svg" in text and "{image} two/growth_dark.svg" in text
    assert "P, 2 threads, torch 9.9; 9 rounds, load before the run 0.25." in text
