"""Rows of images: the pixels of the PNG files are those of the numbers."""

import io
import re

import numpy as np
import pytest
from PIL import Image

from lifted_bregman.errors import SettingError
from lifted_bregman.reports import Page, Section, Strip, Strips

GENERATOR = np.random.default_rng(0)


def decoded(strip: Strip) -> Image.Image:
    image = Image.open(io.BytesIO(strip.png()))
    image.load()
    return image


def test_grey_values_are_kept_and_gaps_are_transparent() -> None:
    images = GENERATOR.uniform(0.0, 1.0, (3, 5, 4))
    picture = decoded(Strip("row", images))
    assert picture.mode == "LA" and picture.size == (3 * 4 + 2 * 2, 5)
    pixels = np.asarray(picture)
    for number in range(3):
        tile = pixels[:, 6 * number : 6 * number + 4]
        assert np.abs(tile[..., 0] / 255 - images[number]).max() <= 0.5 / 255 + 1e-9
        assert (tile[..., 1] == 255).all()
    assert (pixels[:, [4, 5, 10, 11], 1] == 0).all()


def test_values_outside_the_range_are_cut_off() -> None:
    pixels = np.asarray(decoded(Strip("row", np.array([[[-3.0, 0.5, 7.0, np.nan]]]))))
    assert pixels[0, :, 0].tolist() == [0, 128, 255, 0]


def test_signs_are_colours_and_sizes_are_strengths() -> None:
    pixels = np.asarray(decoded(Strip("row", np.array([[[-4.0, -1.0, 0.0, 1.0, 4.0]]]), signed=True))).astype(int)[0]
    red, blue = pixels[:, 0], pixels[:, 2]
    assert (red[:2] > blue[:2]).all() and (blue[3:] > red[3:]).all() and red[2] == blue[2]
    strength = pixels[:, 3]
    assert strength[0] == strength[4] == 255 and strength[1] == strength[3]
    assert strength[2] < 50 < strength[1] < strength[0]


def test_codes_of_zeros_alone_can_be_shown() -> None:
    pixels = np.asarray(decoded(Strip("row", np.zeros((2, 3, 3)), signed=True)))
    assert len(np.unique(pixels[:, :3].reshape(-1, 4), axis=0)) == 1


def test_a_page_holds_each_row_with_its_label() -> None:
    strips = [Strip("first & only", np.eye(3)[None]), Strip("<b>", np.eye(4)[None], signed=True)]
    html = Page("t", "s", [Section("one", [Strips(strips, "caption", "units")])]).html()
    assert len(re.findall(r'<img src="data:image/png;base64,', html)) == 2
    assert "first &amp; only: units" in html and "&lt;b&gt;" in html and "<b>" not in html


@pytest.mark.parametrize("shape", [(3, 3), (0, 3, 3), (1, 3, 0)])
def test_images_of_another_shape_are_refused(shape: tuple[int, ...]) -> None:
    with pytest.raises(SettingError, match=r"expected \(count, height, width\)"):
        Strip("row", np.zeros(shape))


def test_strips_without_rows_or_words_are_refused() -> None:
    with pytest.raises(SettingError, match="at least one"):
        Strips([], "caption", "alt")
    with pytest.raises(SettingError, match="alt text"):
        Strips([Strip("row", np.zeros((1, 2, 2)))], "caption", "")
