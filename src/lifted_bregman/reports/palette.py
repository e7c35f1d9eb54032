"""The colours of pages and figures, for light and dark pages."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Palette:
    """Colours of a page and its figures.  Colour-blind readers can tell the curves apart (Okabe and Ito).

    suffix  ends the names of picture files in these colours
    paper   the background
    ink     text
    soft    less important text
    rule    lines of tables and grids
    link    links
    curves  one colour for each curve, in the order of use
    """

    suffix: str
    paper: str
    ink: str
    soft: str
    rule: str
    link: str
    curves: tuple[str, str, str, str, str, str]

    @property
    def first(self) -> str:
        """The colour of the first curve."""
        return self.curves[0]

    @property
    def second(self) -> str:
        """The colour of the second curve."""
        return self.curves[1]

    def variables(self) -> dict[str, str]:
        """Return the value of each colour by the name of its CSS variable."""
        named = {"ink": self.ink, "soft": self.soft, "paper": self.paper, "rule": self.rule, "link": self.link}
        return named | {f"curve-{number}": colour for number, colour in enumerate(self.curves, start=1)}


LIGHT = Palette(
    suffix="",
    paper="#ffffff",
    ink="#1c2430",
    soft="#566173",
    rule="#d9dee6",
    link="#00589c",
    curves=("#0072b2", "#d55e00", "#00855f", "#a8478a", "#6b7280", "#8a6d00"),
)
DARK = Palette(
    suffix="_dark",
    paper="#12161c",
    ink="#e4e8ee",
    soft="#a2adbd",
    rule="#323a46",
    link="#7cc0ff",
    curves=("#56b4e9", "#e69f00", "#3ecf9f", "#e08cc4", "#9aa4b2", "#f0e442"),
)
