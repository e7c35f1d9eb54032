"""What text means: numbers come back from what Python writes for them, and other text stays what it is."""

from __future__ import annotations

import math

import pytest
from hypothesis import given, strategies

from lifted_bregman._text import from_text, is_number, number_or_text

NUMBERS = strategies.integers(-(10**30), 10**30) | strategies.floats(allow_nan=False)


@given(NUMBERS)
def test_numbers_are_read_as_they_were_written(value):
    for read in (from_text, number_or_text):
        assert read(repr(value)) == value and type(read(repr(value))) is type(value)
    assert is_number(repr(value)) and is_number(repr(value).encode())


@pytest.mark.parametrize(("text", "value"), [("true", True), ("False", False), ("TRUE", True)])
def test_true_and_false_are_booleans_and_no_numbers(text, value):
    assert from_text(text) is value and number_or_text(text) == text and not is_number(text)


@pytest.mark.parametrize("text", ["", "two", "1,5", "0x10", "1e", "--1", "relu", "none"])
def test_other_text_stays_as_it_is(text):
    assert from_text(text) == number_or_text(text) == text
    assert not is_number(text) and not is_number(text.encode())


def test_infinity_and_nan_are_numbers():
    """Callers decide whether such numbers are valid."""
    assert from_text("-inf") == -math.inf and math.isnan(from_text("nan")) and is_number(b"NaN")
