"""One HTML file that shows text, figures and tables, and needs nothing else: no network, no script, no other file.

Pictures are embedded as data, charts as SVG.  The page follows the reader's light or dark setting, and a figure may
bring a version of itself for each.  Everything a caller passes is escaped: a page never contains markup it did not
write itself.
"""

from __future__ import annotations

import base64
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from lifted_bregman.errors import SettingError
from lifted_bregman.reports._template import TEMPLATE
from lifted_bregman.reports.charts import Charts
from lifted_bregman.reports.palette import DARK, LIGHT, Palette
from lifted_bregman.reports.strips import Strip, Strips

_MEDIA_TYPES = {".png": "image/png", ".svg": "image/svg+xml"}
_NUMBER = re.compile(r"[-−+]?(\d[\d,]*(\.\d+)?(e[-+]?\d+)?|inf|nan)( %| s)?")


@dataclass(frozen=True)
class Text:
    """A paragraph."""

    text: str


@dataclass(frozen=True)
class Heading:
    """A heading inside a section."""

    text: str


@dataclass(frozen=True)
class Finding:
    """A statement with a verdict and a bar in its colour.

    Args:
        verdict: in a word or two.
        statement: what is judged.
        colour: of the bar, by its name in the palette.
        lines: what is said of it, below.
        code: names and commands, below those.
        more: a line, and those that it opens.
    """

    verdict: str
    statement: str
    colour: str
    lines: Sequence[str]
    code: Sequence[str] = ()
    more: tuple[str, Sequence[str]] | None = None


@dataclass(frozen=True)
class Figure:
    """A picture with a caption.

    Args:
        path: a PNG or SVG file.
        caption: the sentences below the picture.
        alt: what the picture shows, for those who cannot see it.
        dark: the same picture for readers who prefer a dark page; without it the first one is shown on white.
    """

    path: Path
    caption: str
    alt: str
    dark: Path | None = None

    def __post_init__(self) -> None:
        for path in (self.path, self.dark):
            if path is not None and path.suffix.lower() not in _MEDIA_TYPES:
                raise SettingError(f"the figure {path} is neither .png nor .svg: save it as one of them.")
        if not self.alt.strip():
            raise SettingError(f"the figure {self.path} has no alt text: say in a sentence what it shows.")


@dataclass(frozen=True)
class Table:
    """A table with a caption.  Columns of numbers are aligned to the right.

    Args:
        header: the name of each column.
        rows: one sequence of cells for each row, as long as the header; a float is written as `{:.4g}`.
        caption: the sentence above the table.
    """

    header: Sequence[str]
    rows: Sequence[Sequence[str | float]]
    caption: str

    def __post_init__(self) -> None:
        for number, row in enumerate(self.rows, start=1):
            if len(row) != len(self.header):
                raise SettingError(
                    f"row {number} of the table '{self.caption}' has {len(row)} cells and its header has "
                    f"{len(self.header)}: give one cell for each column."
                )

    def is_numeric(self, column: int) -> bool:
        """Whether every cell of the column is a number, or text that is one, such as 12.50, 1,000 or 57.2 %."""
        return bool(self.rows) and all(_NUMBER.fullmatch(_cell(row[column])) for row in self.rows)


@dataclass(frozen=True)
class Listing:
    """Lines as they stand, such as commands."""

    text: str


Block = Text | Heading | Finding | Figure | Table | Charts | Strips | Listing


@dataclass(frozen=True)
class Section:
    """A heading and what stands below it, in order."""

    title: str
    blocks: Sequence[Block]


@dataclass(frozen=True)
class Page:
    """A title, a sentence or two that say what the page shows, and sections.  `write` makes the file."""

    title: str
    summary: str
    sections: Sequence[Section]

    def write(self, path: Path) -> Path:
        """Writes the page to `path`, whose folder is made if it is missing, and returns it."""
        html = self.html()
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(html, encoding="utf-8")
        return path

    def html(self) -> str:
        """The page as one string, with every picture inside it."""
        try:
            import jinja2
            from markupsafe import Markup
        except ImportError as error:
            raise ImportError("pages need jinja2: install lifted-bregman with the extra 'plot'.") from error
        environment = jinja2.Environment(
            autoescape=True, undefined=jinja2.StrictUndefined, trim_blocks=True, lstrip_blocks=True
        )
        environment.filters.update(
            data_uri=_data_uri,
            cell=_cell,
            strip_uri=_strip_uri,
            colours=lambda palette: Markup(_colours(palette)),
            # Our own drawing of a chart: matplotlib has escaped the labels in it.
            drawing=lambda chart: Markup(chart.svg()),
        )
        kinds: dict[str, type] = {"figure": Figure, "table": Table, "charts": Charts, "strips": Strips}
        kinds |= {"listing": Listing, "heading": Heading, "finding": Finding}
        for name, kind in kinds.items():
            environment.tests[name] = lambda value, kind=kind: isinstance(value, kind)
        return environment.from_string(TEMPLATE).render(page=self, light=LIGHT, dark=DARK)


def _data_uri(path: Path) -> str:
    return _uri(_MEDIA_TYPES[path.suffix.lower()], path.read_bytes())


def _strip_uri(strip: Strip) -> str:
    return _uri("image/png", strip.png())


def _uri(media_type: str, content: bytes) -> str:
    return f"data:{media_type};base64,{base64.b64encode(content).decode('ascii')}"


def _colours(palette: Palette) -> str:
    return " ".join(f"--{name}: {colour};" for name, colour in palette.variables().items())


def _cell(value: str | float) -> str:
    return f"{value:.4g}" if isinstance(value, float) else str(value)
