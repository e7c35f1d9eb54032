"""One HTML file that shows text, figures and tables, and needs nothing else: no network, no script, no other file.

Pictures are embedded as data.  The page follows the reader's light or dark setting, and a figure may bring a version of
itself for each.  Everything a caller passes is escaped: a page never contains markup it did not write itself.
"""

from __future__ import annotations

import base64
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from lifted_bregman.errors import SettingError

_MEDIA_TYPES = {".png": "image/png", ".svg": "image/svg+xml"}


@dataclass(frozen=True)
class Text:
    """A paragraph."""

    text: str


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
    """A table with a caption.  Cells that are numbers are aligned to the right.

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


@dataclass(frozen=True)
class Section:
    """A heading and what stands below it, in order."""

    title: str
    blocks: Sequence[Text | Figure | Table]


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
        except ImportError as error:
            raise ImportError("pages need jinja2: install lifted-bregman with the extra 'plot'.") from error
        environment = jinja2.Environment(
            autoescape=True, undefined=jinja2.StrictUndefined, trim_blocks=True, lstrip_blocks=True
        )
        environment.filters.update(data_uri=_data_uri, cell=_cell)
        environment.tests.update(
            figure=lambda block: isinstance(block, Figure),
            table=lambda block: isinstance(block, Table),
            numeric=lambda value: isinstance(value, int | float),
        )
        return environment.from_string(_TEMPLATE).render(page=self)


def _data_uri(path: Path) -> str:
    return f"data:{_MEDIA_TYPES[path.suffix.lower()]};base64,{base64.b64encode(path.read_bytes()).decode('ascii')}"


def _cell(value: str | float) -> str:
    return f"{value:.4g}" if isinstance(value, float) else str(value)


_TEMPLATE = """\
<!doctype html>
<html lang="en-GB">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="color-scheme" content="light dark">
<title>{{ page.title }}</title>
<style>
:root { color-scheme: light dark; --ink: #1c2430; --soft: #566173; --paper: #ffffff; --rule: #d9dee6; --link: #00589c; }
@media (prefers-color-scheme: dark) {
  :root { --ink: #e4e8ee; --soft: #a2adbd; --paper: #12161c; --rule: #323a46; --link: #7cc0ff; }
}
* { box-sizing: border-box; }
body { margin: 0; background: var(--paper); color: var(--ink); font: 1.0625rem/1.6 system-ui, sans-serif; }
main { max-width: 62rem; margin: 0 auto; padding: 2.5rem 1.25rem 4rem; }
h1 { font-size: clamp(1.6rem, 4vw, 2.3rem); line-height: 1.2; margin: 0 0 .75rem; text-wrap: balance; }
h2 { font-size: 1.35rem; line-height: 1.3; margin: 3rem 0 .75rem; }
section { border-top: 1px solid var(--rule); margin-top: 3rem; }
section h2 { margin-top: 1rem; }
p { margin: .75rem 0; max-width: 46rem; }
.summary { font-size: 1.15rem; color: var(--soft); }
a { color: var(--link); }
nav ol { padding-left: 1.4rem; margin: 1.25rem 0; }
figure { margin: 1.75rem 0; }
img { display: block; width: 100%; height: auto; }
img.white { background: #ffffff; border-radius: .5rem; }
figcaption { color: var(--soft); font-size: .95rem; line-height: 1.5; margin: .75rem 0; max-width: 46rem; }
.scroll { overflow-x: auto; }
table { border-collapse: collapse; font-variant-numeric: tabular-nums; }
th, td { padding: .45rem 1.1rem .45rem 0; text-align: left; border-bottom: 1px solid var(--rule); }
th { font-weight: 600; border-bottom-width: 2px; vertical-align: bottom; }
.number { text-align: right; }
td.number { white-space: nowrap; }
</style>
</head>
<body>
<main>
<h1>{{ page.title }}</h1>
<p class="summary">{{ page.summary }}</p>
<nav aria-label="Contents">
<ol>
{% for section in page.sections %}
<li><a href="#section-{{ loop.index }}">{{ section.title }}</a></li>
{% endfor %}
</ol>
</nav>
{% for section in page.sections %}
<section aria-labelledby="section-{{ loop.index }}">
<h2 id="section-{{ loop.index }}">{{ section.title }}</h2>
{% for block in section.blocks %}
{% if block is figure %}
<figure>
<picture>
{% if block.dark %}
<source media="(prefers-color-scheme: dark)" srcset="{{ block.dark | data_uri }}">
{% endif %}
<img{% if not block.dark %} class="white"{% endif %} src="{{ block.path | data_uri }}" alt="{{ block.alt }}">
</picture>
<figcaption>{{ block.caption }}</figcaption>
</figure>
{% elif block is table %}
<figure>
<figcaption>{{ block.caption }}</figcaption>
<div class="scroll" tabindex="0" role="region" aria-label="{{ block.caption }}">
<table>
<thead><tr>
{% for name in block.header %}
<th scope="col"{% if block.rows and block.rows[0][loop.index0] is numeric %} class="number"{% endif %}>{{ name }}</th>
{% endfor %}
</tr></thead>
<tbody>
{% for row in block.rows %}
<tr>
{% for value in row %}
<td{% if value is numeric %} class="number"{% endif %}>{{ value | cell }}</td>
{% endfor %}
</tr>
{% endfor %}
</tbody>
</table>
</div>
</figure>
{% else %}
<p>{{ block.text }}</p>
{% endif %}
{% endfor %}
</section>
{% endfor %}
</main>
</body>
</html>
"""
