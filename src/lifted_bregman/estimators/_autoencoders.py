"""The autoencoders of a detector: dense for tables, convolutional for pictures, or the user's."""

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
from lifted_bregman.data.preparation import shape_remedy
from lifted_bregman.errors import DataError, SettingError
from lifted_bregman.estimators._training import dense_network

_CHANNELS = (8, 16, 16)


def dense_autoencoder(
    features: int, encoder: Sequence[int] | None, activation: Activation, dtype: torch.dtype, seed: int
) -> nn.Sequential:
    """Return dense layers of the encoder's widths, the last a linear code, followed by the same in reverse."""
    widths = (2 * features, math.ceil(features / 2)) if encoder is None else tuple(encoder)
    every = (features, *widths, *reversed(widths[:-1]), features)
    activations = [activation] * (len(every) - 2)
    activations[len(widths) - 1] = Identity()
    return dense_network(every, activations, dtype, seed)


def convolutional_autoencoder(
    shape: tuple[int, int, int], encoder: Sequence[int] | None, activation: Activation, dtype: torch.dtype, seed: int
) -> nn.Sequential:
    """Return convolutions of stride 2, a dense linear code, and transposed convolutions; pictures may have any size.

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
            # A transposed convolution returns 2⌈h/2⌉ - 1 rows; one row of output padding makes them h for even h.
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
    """Return a copy of the user's module, or call the user's function with the shape of a sample."""
    if isinstance(network, nn.Module):
        return copy.deepcopy(network).to(dtype)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        made = network(shape)
    if not isinstance(made, nn.Module):
        raise SettingError(f"network returned a {type(made).__name__}; it must return a torch.nn.Module.")
    return made.to(dtype)


def image_shape(images: Any) -> tuple[int, int, int] | None:
    """Return (channels, height, width) of `images`, with one channel for (height, width); None for tables."""
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
    """Reshape pictures (samples, [channels,] height, width) to rows; return a table unchanged."""
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
    if found != shape:
        raise DataError(
            f"X holds pictures of shape {found}, and the detector takes {shape}: {shape_remedy(found, shape)}."
        )
    return X.reshape(len(X), -1)
