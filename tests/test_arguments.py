"""Checks of arguments: what each accepts, what it returns, and that the error names the argument and its range."""

from __future__ import annotations

import math

import numpy as np
import pytest

import lifted_bregman as lb
from lifted_bregman._arguments import positive, require_count, require_not_negative, whole
from lifted_bregman.errors import SettingError


@pytest.mark.parametrize(("value", "least"), [(1, 1), (np.int64(7), 1), (0, 0), (-3, None)])
def test_whole_returns_an_int(value, least):
    found = whole(value, "epochs", least)
    assert found == value and type(found) is int


@pytest.mark.parametrize("value", [0, -1, 1.0, True, "3", None, math.nan])
def test_whole_refuses_everything_else(value):
    with pytest.raises(SettingError, match=r"^epochs is .*; it must be a whole number of at least 1\.$"):
        whole(value, "epochs")


def test_the_message_names_no_least_value_if_there_is_none():
    with pytest.raises(SettingError, match=r"^seed is 0\.5; it must be a whole number\.$"):
        whole(0.5, "seed", least=None)


@pytest.mark.parametrize("value", [1, 5e-324, np.float32(0.5), "2.5"])
def test_positive_returns_a_float(value):
    found = positive(value, "scale")
    assert found == float(value) and type(found) is float


@pytest.mark.parametrize("value", [0.0, -1.0, math.inf, math.nan, None, "fast"])
def test_positive_refuses_everything_else(value):
    with pytest.raises(SettingError, match=r"^scale is .*; it must be a finite number greater than 0\.$"):
        positive(value, "scale")


@pytest.mark.parametrize(("value", "least"), [(1, 1), (0, 0), (5, 5)])
def test_require_count_refuses_what_is_no_int_of_that_size(value, least):
    require_count(value, "steps", least)
    for wrong in (value - 1, float(value), np.int64(value), None):
        with pytest.raises(SettingError, match=rf"^steps is .*; it must be a whole number of at least {least}\.$"):
            require_count(wrong, "steps", least)


def test_require_not_negative_refuses_negative_and_infinite_numbers():
    require_not_negative(0.0, "decay")
    for wrong in (-1e-300, math.inf, math.nan, None, "fast"):
        with pytest.raises(SettingError, match=r"^decay is .*; it must be a finite number of at least 0\.$"):
            require_not_negative(wrong, "decay")


@pytest.mark.parametrize(
    ("solver", "name"),
    [
        (lb.StochasticADMM, "damping"),
        (lb.ADMM, "prox_weight"),
        (lb.CoordinateDescent, "tolerance"),
        (lb.CoordinateDescent, "prox_weight"),
    ],
)
def test_settings_that_may_be_0_are_said_to_be_at_least_0(solver, name):
    assert getattr(solver(**{name: 0}), name) == 0
    with pytest.raises(SettingError, match=rf"^{name} is -1; it must be a finite number of at least 0\.$"):
        solver(**{name: -1})


@pytest.mark.parametrize("wrong", [-1, 1.5, "a", math.nan])
def test_importance_is_a_number_from_0_to_1(wrong):
    assert lb.RandomCoordinateDescent(importance=0).importance == 0
    with pytest.raises(SettingError, match=r"^importance is .*; it must be a number from 0 to 1\.$"):
        lb.RandomCoordinateDescent(importance=wrong)
