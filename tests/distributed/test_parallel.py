"""Degrees that cannot be are refused in a sentence, before anything starts."""

from __future__ import annotations

import math
from typing import Any

import pytest
from hypothesis import given, strategies

import lifted_bregman as lb
from lifted_bregman.errors import SettingError

DEGREES = strategies.integers(1, 64)


@pytest.mark.parametrize(
    ("setting", "wrong"),
    [
        *(("data", wrong) for wrong in (0, -1, 2.0, "2", True, None)),
        *(("layer", wrong) for wrong in (0, -3, 1.5, None)),
        *(("restarts", wrong) for wrong in (-1, 0.5, True, None)),
        *(("timeout", wrong) for wrong in (0, -1.0, math.inf, math.nan, "60", True, None)),
        *(("interface", wrong) for wrong in ("", 0, b"lo")),
    ],
)
def test_a_setting_out_of_range_is_named(setting: str, wrong: Any) -> None:
    with pytest.raises(SettingError, match=f"^{setting} of parallel is .*; it must be .*\\.$"):
        lb.Parallel(**{setting: wrong})


@given(DEGREES, DEGREES, strategies.floats(1e-3, 1e6), strategies.integers(0, 9), strategies.sampled_from([None, "lo"]))
def test_text_and_parse_are_inverse(
    data: int, layer: int, timeout: float, restarts: int, interface: str | None
) -> None:
    chosen = lb.Parallel(data, layer, float(f"{timeout:g}"), restarts, interface)
    assert lb.Parallel.parse(str(chosen)) == chosen and chosen.size == data * layer


def test_text_of_the_command_line() -> None:
    assert lb.Parallel.parse("data=2") == lb.Parallel(data=2)
    assert lb.Parallel.parse(" layer=3 , data=2 ") == lb.Parallel(data=2, layer=3)
    assert lb.Parallel.parse("data=2,timeout=5,restarts=0,interface=lo") == lb.Parallel(2, 1, 5.0, 0, "lo")
    assert str(lb.Parallel(data=2, layer=2)) == "data=2,layer=2" and str(lb.Parallel()) == "data=1"


@pytest.mark.parametrize("text", ["", "2", "data", "data=", "=2", "data=2,", "dat=2", "data:2"])
def test_malformed_text_is_refused_with_an_example(text: str) -> None:
    with pytest.raises(SettingError, match="data=2"):
        lb.Parallel.parse(text)


@pytest.mark.parametrize(
    "text", ["data=two", "data=1.5", "data=2 layer=2", "layer=0", "timeout=soon", "restarts=-1", "timeout=nan"]
)
def test_values_in_text_are_checked_too(text: str) -> None:
    with pytest.raises(SettingError, match=f"^{text.partition('=')[0]} of parallel is"):
        lb.Parallel.parse(text)


def test_a_wrong_value_is_told_as_it_was_written() -> None:
    with pytest.raises(SettingError, match=r"^data of parallel is 'true'; it must be a whole number of at least 1\.$"):
        lb.Parallel.parse("data=true")


def test_a_degree_is_named_once() -> None:
    with pytest.raises(SettingError, match="names data twice"):
        lb.Parallel.parse("data=2,data=3")


@given(DEGREES, DEGREES, DEGREES)
def test_a_world_must_be_data_times_layer(data: int, layer: int, size: int) -> None:
    parallel = lb.Parallel(data, layer)
    if size == data * layer:
        parallel.require_world(size)
    else:
        with pytest.raises(SettingError, match=f"{data * layer} processes in all, and there are {size}"):
            parallel.require_world(size)


def test_every_process_needs_a_sample_and_a_layer() -> None:
    lb.Parallel(data=4, layer=3).require_work(batch=4, layers=3)
    with pytest.raises(SettingError, match="data=4 processes and a batch has 3 samples"):
        lb.Parallel(data=4).require_work(batch=3, layers=3)
    with pytest.raises(SettingError, match="layer=4 processes and the network has 3"):
        lb.Parallel(layer=4).require_work(batch=4, layers=3)


def test_the_interface_must_be_of_this_machine() -> None:
    lb.Parallel(interface="lo").require_interface()
    lb.Parallel().require_interface()
    with pytest.raises(SettingError, match=r"'nowhere9', which this machine does not have; it has .*lo"):
        lb.Parallel(interface="nowhere9").require_interface()
