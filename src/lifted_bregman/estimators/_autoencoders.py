"""The autoencoders of a detector: dense for tables, convolutional for pictures, or a network that the user gives."""

from __future__ import annotations

import copy
import math
from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import torch
from torch import nn

from lifted_bregman._arguments import whole
from lifted_bregman.activations import Activation, Identity
from lifted_bregman.errors import DataError, SettingError
from lifted_bregman.estimators._training import dense_network

_CHANNELS = (8, 16, 16)


def dense_autoencoder(
    features: int, encoder: Sequence[int] | None, activation: Activation, dtype: torch.dtype, seed: int
) -> nn.Sequential:
    """Dense layers of the encoder's widths, of which the last is a linear code, and the same in reverse."""
    widths = (2 * features, math.ceil(features / 2)) if encoder is None else tuple(encoder)
    every = (features, *widths, *reversed(widths[:-1]), features)
    activations = [activation] * (len(every) - 2)
    activations[len(widths) - 1] = Identity()
    return dense_network(every, activations, dtype, seed)


def convolutional_autoencoder(
    shape: tuple[int, int, int], encoder: Sequence[int] | None, activation: Activation, dtype: torch.dtype, seed: int
) -> nn.Sequential:
    """Convolutions of stride 2, a dense linear code, and transposed convolutions back to pictures of any size.

    encoder: the channels of the convolutions and the width of the code.
    """
    *channels, code = _CHANNELS if encoder is None else tuple(encoder)
    sizes = [shape[1:]]
    for _ in channels:
        sizes.append(((sizes[-1][0] + 1) // 2, (sizes[-1][1] + 1) // 2))
    down: list[nn.Module] = []
    up: list[nn.Module] = []
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        steps = list(zip(pairwise((shape[0], *channels)), sizes, strict=False))
        for (inside, outside), (height, width) in steps:
            down += [nn.Conv2d(inside, outside, 3, stride=2, padding=1), activation.as_module()]
            # 2⌈h/2⌉ - 1 rows come out without padding: one more where h is even
            padding = (1 - height % 2, 1 - width % 2)
            back = nn.ConvTranspose2d(outside, inside, 3, stride=2, padding=1, output_padding=padding)
            up = [activation.as_module(), back, *up]
        inner = (channels[-1] if channels else shape[0], *sizes[-1])
        units = math.prod(inner)
        middle = [nn.Flatten(), nn.Linear(units, code), nn.Linear(code, units)]
        if up:
            middle += [up.pop(0), nn.Unflatten(1, inner), *up]
        else:
            middle.append(nn.Unflatten(1, inner))
        return nn.Sequential(*down, *middle).to(dtype)


def given_network(network: Any, shape: tuple[int, ...], dtype: torch.dtype, seed: int) -> nn.Module:
    """A copy of the user's module, or what the user's function makes for samples of this shape."""
    if isinstance(network, nn.Module):
        return copy.deepcopy(network).to(dtype)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        made = network(shape)
    if not isinstance(made, nn.Module):
        raise SettingError(f"network returned a {type(made).__name__}; it must return a torch.nn.Module.")
    return made.to(dtype)


def image_shape(images: Any) -> tuple[int, int, int] | None:
    """(channels, height, width) from that or (height, width); None where there are no pictures."""
    if images is None:
        return None
    try:
        sizes = tuple(whole(size, "a size") for size in images)
    except (SettingError, TypeError) as error:
        raise SettingError(
            f"images is {images!r}; it must be (channels, height, width) or (height, width), such as (1, 28, 28)."
        ) from error
    if len(sizes) not in (2, 3):
        raise SettingError(f"images is {images!r}; it must be (channels, height, width) or (height, width).")
    return (1, *sizes) if len(sizes) == 2 else sizes  # type: ignore[return-value]


def flat_images(X: Any, shape: tuple[int, int, int] | None) -> Any:
    """Pictures (samples, height, width) or (samples, channels, height, width) as rows; a table as it is."""
    given = tuple(getattr(X, "shape", ()))
    if len(given) < 3:
        if shape is not None and len(given) == 2 and given[1] != math.prod(shape):
            raise DataError(
                f"X has {given[1]} numbers a sample and images is {shape}, which makes {math.prod(shape)}: give "
                "pictures of one size, and that size as images=(channels, height, width)."
            )
        return X
    if shape is None:
        raise DataError(
            f"X has the shape {given}: for pictures give images={given[1:]}, or a table (samples, features)."
        )
    found = (1, *given[1:]) if len(given) == 3 else given[1:]
    if len(found) == 3 and found[1:] == shape[1:] and found[0] != shape[0]:
        kinds = {1: "grey pictures (1 channel)", 3: "colour pictures (3 channels)"}
        has, wants = (kinds.get(channels, f"pictures of {channels} channels") for channels in (found[0], shape[0]))
        raise DataError(f"X holds {has}, and the detector takes {wants}: convert them, or fit it to such pictures.")
    if found != shape:
        raise DataError(
            f"X holds pictures of shape {found}, and the detector takes {shape}: scale or crop them to that size."
        )
    return X.reshape(len(X), -1)
