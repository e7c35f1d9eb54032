"""The device and the precisions that computations run in."""

from __future__ import annotations

import torch

from lifted_bregman.errors import SettingError

SUPPORTED_DTYPES = (torch.float32, torch.float64)
"""The precisions of proximal maps and energies."""


def resolve_device(name: str | torch.device | None) -> torch.device:
    """The device of this name, with its index if it has one; None is the CPU.  Raises `SettingError` if unusable."""
    try:
        device = torch.empty(0, device=torch.device("cpu" if name is None else name)).device
    except (AssertionError, NotImplementedError, RuntimeError, TypeError) as error:
        usable = ["'cpu'", *(["'cuda'"] if torch.cuda.is_available() else [])]
        raise SettingError(f"device is {name!r}, which cannot be used here: take {' or '.join(usable)}.") from error
    if device.type == "meta":
        raise SettingError(f"device is {name!r}, whose tensors hold no numbers: take 'cpu' or 'cuda'.")
    return device
