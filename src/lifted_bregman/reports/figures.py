"""Matplotlib figures in the page's colours: made without pyplot, saved so that the same numbers give the same bytes."""

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
    """An empty figure of `width` x `height` inches.  Needs the extra `plot`."""
    # No pyplot: nothing global, and no display needed.
    try:
        from matplotlib.backends.backend_agg import FigureCanvasAgg
        from matplotlib.figure import Figure as Drawing
    except ImportError as error:
        raise ImportError("figures need matplotlib: install lifted-bregman with the extra 'plot'.") from error

    figure = Drawing(figsize=(width, height), facecolor=palette.paper)
    FigureCanvasAgg(figure)
    return figure


def style(axes: Axes, palette: Palette, title: str = "") -> None:
    """A title at the left, a faint grid, and two quiet axes."""
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
    """Writes the figure as a PNG file."""
    # Without the date and version that matplotlib adds, the same numbers give the same file.
    figure.savefig(path, dpi=160, facecolor=figure.get_facecolor(), metadata={"Software": None})
    return path


def inline_svg(figure: Drawing, name: str) -> str:
    """The figure as an <svg> element of a page, whose colours and font it follows: draw it in the colours of `LIGHT`.

    It has no width, so that it fills its place.  Text stays text.  Nothing is clipped: what is drawn must lie inside.

    Args:
        figure: without pictures.
        name: unlike that of any other figure on the page; what the element refers to inside itself is named after it.
    """
    import matplotlib

    target = io.BytesIO()
    nothing = dict.fromkeys(("Creator", "Date", "Format", "Type"))
    with matplotlib.rc_context({"svg.fonttype": "none", "svg.hashsalt": f"lifted-bregman {name}"}):
        figure.savefig(target, format="svg", transparent=True, metadata=nothing)
    root = ElementTree.fromstring(target.getvalue())  # what matplotlib has just written, and nobody else
    attributes = {"viewBox": root.attrib["viewBox"], "aria-hidden": "true", "focusable": "false"}
    svg = ElementTree.Element("svg", attributes)
    svg.extend(_tidied(root, defined=False))
    return ElementTree.tostring(svg, encoding="unicode")


def _tidied(element: ElementTree.Element, defined: bool) -> list[ElementTree.Element]:
    """The children without what a page has no use for: namespaces, clipping, identifiers, layout, empty groups."""
    kept = []
    for child in element:
        tag = child.tag.rpartition("}")[2]
        inside = _tidied(child, defined or tag == "defs")
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
    """Colours by the page's names; the font's family is the page's too."""
    for name, colour in LIGHT.variables().items():
        text = text.replace(colour, f"var(--{name})")
    entries = [entry.strip() for entry in text.split(";")]
    return "; ".join(entry for entry in entries if entry and not entry.startswith("font-family"))
