"""Pages: one HTML file with text, figures and tables, without scripts, network access or other files.

Pictures are embedded as data, charts as SVG.  The page follows the reader's light or dark setting, and a figure may
have a version for each.  All text of a caller is escaped, so that it cannot add markup.
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
    """A paragraph.

    Example:
        >>> from lifted_bregman.reports import Page, Section, Text
        >>> "a &lt; b" in Page("A run", "", [Section("Result", [Text("a < b")])]).html()
        True
    """

    text: str


@dataclass(frozen=True)
class Heading:
    """A heading inside a section.

    Example:
        >>> from lifted_bregman.reports import Heading, Page, Section
        >>> "In short" in Page("A run", "", [Section("Result", [Heading("In short")])]).html()
        True
    """

    text: str


@dataclass(frozen=True)
class Finding:
    """A statement with a verdict and a bar in its colour.

    Args:
        verdict: one or two words.
        statement: the sentence that the verdict is about.
        colour: of the bar, by its name in the palette.
        lines: sentences below the statement.
        code: names and commands below the sentences.
        more: the summary and the lines of a part that opens on a click.

    Example:
        >>> from lifted_bregman.reports import Finding, Page, Section
        >>> finding = Finding("held", "The loss fell.", "first", ["From 1.0 to 0.1."])
        >>> "The loss fell." in Page("A run", "", [Section("Findings", [finding])]).html()
        True
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
        alt: what the picture shows, for readers who cannot see it.
        dark: the same picture for a dark page; without it the light one is shown on white.
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
class PageTable:
    """A table with a caption.  Columns of numbers are aligned to the right.

    Args:
        header: the name of each column.
        rows: one sequence of cells for each row, as long as the header; a float is written as `{:.4g}`.
        caption: the sentence above the table.

    Example:
        >>> from lifted_bregman.reports import PageTable
        >>> table = PageTable(["solver", "error"], [["lifted", 0.0625]], "Errors.")
        >>> table.is_numeric(0), table.is_numeric(1)
        (False, True)
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
        """Whether every cell of the column is a number or the text of one, such as 12.50, 1,000 or 57.2 %."""
        return bool(self.rows) and all(_NUMBER.fullmatch(_cell(row[column])) for row in self.rows)


@dataclass(frozen=True)
class Listing:
    """Preformatted lines, such as commands.

    Example:
        >>> from lifted_bregman.reports import Listing, Page, Section
        >>> "lifted demo" in Page("A run", "", [Section("Commands", [Listing("lifted demo")])]).html()
        True
    """

    text: str


Block = Text | Heading | Finding | Figure | PageTable | Charts | Strips | Listing


@dataclass(frozen=True)
class Section:
    """A heading and the blocks below it, in order.

    Example:
        >>> from lifted_bregman.reports import Heading, Page, Section, Text
        >>> section = Section("Result", [Heading("In short"), Text("It converged.")])
        >>> "In short" in Page("A run", "What it found.", [section]).html()
        True
    """

    title: str
    blocks: Sequence[Block]


@dataclass(frozen=True)
class Page:
    """A page: title, a summary of one or two sentences, and sections.  `write` makes the file.

    Example:
        >>> from pathlib import Path
        >>> from lifted_bregman.reports import Page, Section, Text
        >>> page = Page("A run", "What it found.", [Section("Result", [Text("It converged.")])])
        >>> "It converged." in page.write(Path("page.html")).read_text()
        True
    """

    title: str
    summary: str
    sections: Sequence[Section]

    def write(self, path: Path) -> Path:
        """Write the page to `path`, whose folder is made if it is missing, and return the path."""
        html = self.html()
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(html, encoding="utf-8")
        return path

    def html(self) -> str:
        """Return the page as one string, pictures included."""
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
            # Trusted markup: matplotlib has escaped the labels of the chart.
            drawing=lambda chart: Markup(chart.svg()),
        )
        kinds: dict[str, type] = {"figure": Figure, "table": PageTable, "charts": Charts, "strips": Strips}
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
