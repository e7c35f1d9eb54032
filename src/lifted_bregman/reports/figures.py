"""Matplotlib figures in the page's colours.  The same numbers give the same file, byte for byte."""

from __future__ import annotations

import io
from pathlib import Path
from typing import TYPE_CHECKING
from xml.etree import ElementTree

from lifted_bregman.reports.palette import LIGHT, Palette

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure as Drawing


def new_figure(width: float, height: float, palette: Palette = LIGHT) -> Drawing:
    """Return an empty figure of `width` x `height` inches.  Needs the extra `plot`."""
    # Without pyplot there is no global state, and no display is needed.
    try:
        from matplotlib.backends.backend_agg import FigureCanvasAgg
        from matplotlib.figure import Figure as Drawing
    except ImportError as error:
        raise ImportError("figures need matplotlib: install lifted-bregman with the extra 'plot'.") from error

    figure = Drawing(figsize=(width, height), facecolor=palette.paper)
    FigureCanvasAgg(figure)
    return figure


def style(axes: Axes, palette: Palette, title: str = "") -> None:
    """Give the axes a title on the left, a faint grid, and thin left and bottom lines."""
    axes.set_facecolor(palette.paper)
    axes.set_title(title, fontsize=11, color=palette.ink, loc="left", pad=7)
    axes.grid(color=palette.rule, linewidth=0.6)
    axes.set_axisbelow(True)
    axes.tick_params(colors=palette.ink, labelsize=9, length=0, pad=5)
    axes.xaxis.label.set_color(palette.ink)
    axes.yaxis.label.set_color(palette.ink)
    for side, spine in axes.spines.items():
        spine.set_visible(side in ("left", "bottom"))
        spine.set_color(palette.rule)


def save_png(figure: Drawing, path: Path) -> Path:
    """Write the figure to a PNG file."""
    # Without the date and version that matplotlib adds, the same numbers give the same file.
    figure.savefig(path, dpi=160, facecolor=figure.get_facecolor(), metadata={"Software": None})
    return path


def inline_svg(figure: Drawing, name: str) -> str:
    """Return the figure as an <svg> element that uses the colours and the font of the page.

    Draw the figure in the colours of `LIGHT`.  The element has no width, so that it fills its container.  Text stays
    text.  Clip paths are removed: everything drawn must lie inside the figure.

    Args:
        figure: without pictures.
        name: unique on the page, because identifiers inside the element are derived from it.
    """
    import matplotlib

    target = io.BytesIO()
    nothing = dict.fromkeys(("Creator", "Date", "Format", "Type"))
    with matplotlib.rc_context({"svg.fonttype": "none", "svg.hashsalt": f"lifted-bregman {name}"}):
        figure.savefig(target, format="svg", transparent=True, metadata=nothing)
    root = ElementTree.fromstring(target.getvalue())  # trusted: matplotlib has written it
    attributes = {"viewBox": root.attrib["viewBox"], "aria-hidden": "true", "focusable": "false"}
    svg = ElementTree.Element("svg", attributes)
    svg.extend(_tidy(root, defined=False))
    return ElementTree.tostring(svg, encoding="unicode")


def _tidy(element: ElementTree.Element, defined: bool) -> list[ElementTree.Element]:
    """Return the children without namespaces, clip paths, unused identifiers, metadata and empty groups."""
    kept = []
    for child in element:
        tag = child.tag.rpartition("}")[2]
        inside = _tidy(child, defined or tag == "defs")
        if tag in ("style", "clipPath", "metadata") or (tag in ("g", "defs") and not inside):
            continue
        attributes = {name.rpartition("}")[2]: value for name, value in child.attrib.items()}
        attributes.pop("clip-path", None)
        if not defined:
            attributes.pop("id", None)
        if "style" in attributes:
            attributes["style"] = _page_style(attributes["style"])
        if tag == "g" and not attributes:
            kept.extend(inside)
            continue
        copy = ElementTree.Element(tag, attributes)
        copy.text = child.text if child.text and child.text.strip() else None
        copy.extend(inside)
        kept.append(copy)
    return kept


def _page_style(text: str) -> str:
    """Replace colours by the page's CSS variables, and remove the font family."""
    for name, colour in LIGHT.variables().items():
        text = text.replace(colour, f"var(--{name})")
    entries = [entry.strip() for entry in text.split(";")]
    return "; ".join(entry for entry in entries if entry and not entry.startswith("font-family"))
