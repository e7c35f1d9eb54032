"""The device of a run: which names are taken, and which are refused with the names that can be."""

from __future__ import annotations

import pytest
import torch

from lifted_bregman._device import resolve_device
from lifted_bregman.errors import SettingError


def test_none_and_cpu_are_the_processor() -> None:
    for name in (None, "cpu", torch.device("cpu")):
        assert resolve_device(name) == torch.device("cpu")


@pytest.mark.parametrize("name", ["cuda:99", "gpu", "", "cpu:x", "meta"])
def test_a_device_that_cannot_be_used_is_refused_with_one_that_can(name: str) -> None:
    with pytest.raises(SettingError, match=rf"device is '{name}'.*take 'cpu'"):
        resolve_device(name)
