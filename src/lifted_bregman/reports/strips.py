"""Strips: rows of small images, such as digits and their reconstructions.  Needs the extra `plot`."""

from __future__ import annotations

import io
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from lifted_bregman.errors import SettingError

_GAP = 2  # transparent pixels between two images
_POSITIVE, _NEGATIVE = (30, 136, 208), (224, 108, 20)  # visible on light and on dark pages


@dataclass(frozen=True, eq=False)
class Strip:
    """Images side by side, of shape (count, height, width).

    label   the name of the row
    images  grey values, 0 for black and 1 for white; with `signed`, numbers around 0
    signed  whether to draw positive numbers blue, negative ones orange, and zeros in a faint grey; the opacity grows
      with the absolute value

    Example:
        >>> from lifted_bregman.reports import Strip
        >>> Strip("inputs", np.zeros((5, 8, 8))).images.shape
        (5, 8, 8)
    """

    label: str
    images: NDArray[np.floating[Any]]
    signed: bool = False

    def __post_init__(self) -> None:
        if self.images.ndim != 3 or 0 in self.images.shape:
            raise SettingError(
                f"the strip '{self.label}' has images of shape {self.images.shape}; expected (count, height, width)."
            )

    def png(self) -> bytes:
        """Return the row as a PNG file with one pixel for each number."""
        try:
            from PIL import Image
        except ImportError as error:
            raise ImportError("pictures need pillow: install lifted-bregman with the extra 'plot'.") from error
        count, height, width = self.images.shape
        tiles = _signed(self.images) if self.signed else _grey(self.images)
        row = np.zeros((height, count * (width + _GAP) - _GAP, tiles.shape[-1]), np.uint8)
        for place in range(count):
            row[:, place * (width + _GAP) : place * (width + _GAP) + width] = tiles[place]
        target = io.BytesIO()
        Image.fromarray(row).save(target, format="PNG", optimize=True)
        return target.getvalue()


@dataclass(frozen=True)
class Strips:
    """Rows of images below each other.

    strips   at least one
    caption  the sentences below them
    alt      what they show, for readers who cannot see it

    Example:
        >>> from lifted_bregman.reports import Page, Section, Strip, Strips
        >>> strips = Strips([Strip("inputs", np.zeros((5, 8, 8)))], "Five black images.", "five black squares")
        >>> "five black squares" in Page("A run", "", [Section("Images", [strips])]).html()
        True
    """

    strips: Sequence[Strip]
    caption: str
    alt: str

    def __post_init__(self) -> None:
        if not self.strips:
            raise SettingError(f"the strips '{self.caption}' are empty: give at least one.")
        if not self.alt.strip():
            raise SettingError(f"the strips '{self.caption}' have no alt text: say in a sentence what they show.")


def _grey(images: NDArray[np.floating[Any]]) -> NDArray[np.uint8]:
    """Return grey values and opacity, (count, height, width, 2)."""
    grey = np.rint(255 * np.nan_to_num(images).clip(0.0, 1.0)).astype(np.uint8)
    return np.stack([grey, np.full_like(grey, 255)], axis=-1)


def _signed(images: NDArray[np.floating[Any]]) -> NDArray[np.uint8]:
    """Return colours by sign and opacity by √|value|, (count, height, width, 4); zeros are a faint grey."""
    values = np.nan_to_num(images)
    largest = np.abs(values).max() or 1.0
    opacity = np.where(values == 0.0, 28, 80 + np.rint(175 * np.sqrt(np.abs(values) / largest)))
    colours = np.where((values > 0)[..., None], _POSITIVE, np.where((values < 0)[..., None], _NEGATIVE, (128,) * 3))
    return np.concatenate([colours, opacity[..., None]], axis=-1).astype(np.uint8)
