"""The theory figures of the paper: the numbers behind them, the files and the page.

Expected values are the paper's closed forms, computed here with numpy alone.
"""

import struct
import subprocess
import sys
import zlib
from html.parser import HTMLParser
from pathlib import Path

import numpy as np
import pytest

from lifted_bregman import reports
from lifted_bregman.errors import SettingError
from lifted_bregman_lab.paper import theory

ALPHA, X = 0.5, 0.5


# The numbers.


def test_figure_1_shows_the_activations() -> None:
    relu, soft, tanh = theory.activation_curves()
    z = relu.z.numpy()
    assert (z.min(), z.max()) == (-3.0, 3.0)
    np.testing.assert_allclose(relu.value, np.maximum(z, 0.0), rtol=0, atol=0)
    np.testing.assert_allclose(soft.value, np.sign(z) * np.maximum(np.abs(z) - ALPHA, 0.0), rtol=0, atol=1e-15)
    np.testing.assert_allclose(tanh.value, np.tanh(z), rtol=1e-15)


def test_figure_1_shows_both_components_of_softmax() -> None:
    grid, sigma = theory.softmax_components(points=9)
    line = grid.numpy()
    assert (line.min(), line.max()) == (-4.0, 4.0)
    z1, z2 = np.meshgrid(line, line)  # the columns of the picture are z₁, its rows z₂
    np.testing.assert_allclose(sigma[..., 0], 1.0 / (1.0 + np.exp(z2 - z1)), rtol=1e-14)
    np.testing.assert_allclose(sigma[..., 1], 1.0 / (1.0 + np.exp(z1 - z2)), rtol=1e-14)


def test_figure_2_shows_the_losses() -> None:
    relu, soft, tanh, softmax = theory.loss_curves()
    z = relu.t.numpy()
    assert (z.min(), z.max()) == (-2.0, 2.0)

    squared = 0.5 * (X - np.maximum(z, 0.0)) ** 2
    np.testing.assert_allclose(relu.squared, squared, atol=1e-16)
    np.testing.assert_allclose(relu.bregman, squared + X * np.maximum(-z, 0.0), atol=1e-15)

    shrunk = np.maximum(np.abs(z) - ALPHA, 0.0)
    np.testing.assert_allclose(soft.squared, 0.5 * (X - np.sign(z) * shrunk) ** 2, atol=1e-15)
    np.testing.assert_allclose(soft.bregman, 0.5 * X**2 + ALPHA * X + 0.5 * shrunk**2 - X * z, atol=1e-15)

    np.testing.assert_allclose(tanh.squared, 0.5 * (X - np.tanh(z)) ** 2, atol=1e-15)
    quotient = (1.0 - X**2) / (1.0 - np.tanh(z) ** 2)
    np.testing.assert_allclose(tanh.bregman, 0.5 * np.log(quotient) + X * (np.arctanh(X) - z), atol=2e-15)

    # Softmax along z = (t, 0), x = (½, ½): Σ x log x = -log 2.
    p = 1.0 / (1.0 + np.exp(-z))
    np.testing.assert_allclose(softmax.squared, 0.5 * ((0.5 - p) ** 2 + (p - 0.5) ** 2), atol=1e-15)
    np.testing.assert_allclose(softmax.bregman, np.log1p(np.exp(z)) - np.log(2.0) - 0.5 * z, atol=2e-15)


def test_figure_2_marks_the_point_where_both_losses_vanish() -> None:
    for curve, zero in zip(theory.loss_curves(), (0.5, 1.0, np.log(3.0) / 2.0, 0.0), strict=True):
        assert curve.zero == pytest.approx(zero, abs=1e-15)
        nearest = (curve.t - curve.zero).abs().argmin()
        assert curve.bregman[nearest] <= 1e-5
        assert bool((curve.bregman >= curve.squared).all())


# The files.


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    return {path.name: path for path in theory.build(tmp_path_factory.mktemp("demo") / "new" / "folder")}


def pixels(path: Path) -> np.ndarray:
    """The bytes of each row of a PNG file before decoding its filters, by the PNG specification."""
    data = path.read_bytes()
    assert data[:8] == b"\x89PNG\r\n\x1a\n"
    width, height, depth, colour = struct.unpack(">IIBB", data[16:26])
    assert (depth, colour) == (8, 6)
    compressed, place = b"", 8
    while place < len(data):
        (length,) = struct.unpack(">I", data[place : place + 4])
        if data[place + 4 : place + 8] == b"IDAT":
            compressed += data[place + 8 : place + 8 + length]
        place += 12 + length
    return np.frombuffer(zlib.decompress(compressed), np.uint8).reshape(height, 1 + 4 * width)


PICTURES = ("activations.png", "activations_dark.png", "bregman_losses.png", "bregman_losses_dark.png")


def test_all_files_are_written(files: dict[str, Path]) -> None:
    assert set(files) == {*PICTURES, "index.html"}


@pytest.mark.parametrize("name", PICTURES)
def test_a_picture_is_not_blank(files: dict[str, Path], name: str) -> None:
    rows = pixels(files[name])
    assert rows.shape[0] >= 800 and rows.shape[1] >= 4 * 1200
    # Most rows of a drawing differ from the row above; the rows of a blank picture all look alike.
    assert len({row.tobytes() for row in rows[:: len(rows) // 100]}) > 50


def test_light_and_dark_pictures_differ(files: dict[str, Path]) -> None:
    assert files["activations.png"].read_bytes() != files["activations_dark.png"].read_bytes()


# The page.


class Collector(HTMLParser):
    def __init__(self, html: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.feed(html)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))

    def all(self, tag: str) -> list[dict[str, str | None]]:
        return [attributes for name, attributes in self.tags if name == tag]


def test_the_page_needs_no_other_file(files: dict[str, Path]) -> None:
    html = files["index.html"].read_text(encoding="utf-8")
    page = Collector(html)
    assert not page.all("script") and not page.all("link") and not page.all("iframe")
    for attributes in (attributes for _, attributes in page.tags):
        for name in ("src", "srcset", "href", "data", "poster"):
            value = attributes.get(name)
            assert value is None or value.startswith(("data:image/png;base64,", "#")), value
    assert "url(" not in html and "@import" not in html


def test_the_page_holds_both_figures_and_the_table(files: dict[str, Path]) -> None:
    page = Collector(files["index.html"].read_text(encoding="utf-8"))
    assert len(page.all("img")) == 2 == len(page.all("source"))
    assert all(attributes["alt"] for attributes in page.all("img"))
    assert len(page.all("figcaption")) == 3
    assert len(page.all("table")) == 1
    targets = {attributes["href"] for attributes in page.all("a")}
    assert targets == {"#" + str(attributes["id"]) for attributes in page.all("h2")}


def test_what_a_caller_passes_is_escaped(tmp_path: Path) -> None:
    evil = "<script>alert('&')</script>\" onload=\"x"
    picture = theory.draw_losses(tmp_path / "picture.png")
    blocks = [reports.Text(evil), reports.Figure(picture, evil, evil), reports.PageTable([evil], [[evil]], evil)]
    html = reports.Page(evil, evil, [reports.Section(evil, blocks)]).html()
    page = Collector(html)
    assert not page.all("script")
    assert not any("onload" in attributes for _, attributes in page.tags)


def test_a_figure_without_alt_text_or_of_another_kind_is_refused() -> None:
    with pytest.raises(SettingError, match="alt text"):
        reports.Figure(Path("a.png"), "caption", " ")
    with pytest.raises(SettingError, match=r"neither \.png nor \.svg"):
        reports.Figure(Path("a.gif"), "caption", "a picture")


def test_a_ragged_table_is_refused() -> None:
    with pytest.raises(SettingError, match=r"row 2 .* has 1 cells"):
        reports.PageTable(["a", "b"], [["1", "2"], ["3"]], "numbers")


def test_numbers_in_a_table_are_rounded_and_aligned() -> None:
    table = reports.PageTable(["name", "value"], [["pi", 3.14159265], ["answer", 42]], "numbers")
    html = reports.Page("t", "s", [reports.Section("one", [table])]).html()
    assert '<td class="number">3.142</td>' in html
    assert '<td class="number">42</td>' in html
    assert "<td>pi</td>" in html


# The command.


def test_the_command_says_where_the_files_are(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert theory.main(["--out", str(tmp_path / "demo")]) == 0
    printed = capsys.readouterr().out
    for name in (*PICTURES, "index.html"):
        assert str(tmp_path / "demo" / name) in printed


def test_importing_the_figures_does_not_import_matplotlib() -> None:
    script = "import sys; from lifted_bregman_lab.paper import theory; assert 'matplotlib' not in sys.modules"
    subprocess.run([sys.executable, "-c", script], check=True, timeout=120)
