"""What tests of pages in a browser share: whether there is one, the views of a reader, widths and contrasts."""

from __future__ import annotations

import os

from tests.reports.chromium import Browser, executable

CHROMIUM = executable()
REASON = "no browser: install chromium (Debian: apt-get install chromium) to test the page in it"
REQUIRED = os.environ.get("LIFTED_BREGMAN_BROWSER") == "required"
VIEWS = [(width, dark) for width in (390, 1280) for dark in (False, True)]


def fits(tab: Browser) -> bool:
    """Whether the page is no wider than the window; a telephone's innerWidth would grow with the page."""
    width, page = tab.evaluate("(e => [e.clientWidth, e.scrollWidth])(document.documentElement)")
    assert width == tab.width
    return page <= width


def luminance(colour: str) -> float:
    """The relative luminance of WCAG 2."""
    channels = [int(part) / 255 for part in colour[colour.index("(") + 1 : -1].split(",")[:3]]
    linear = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in channels]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


def contrast(one: str, other: str) -> float:
    light, dark = sorted((luminance(one), luminance(other)), reverse=True)
    return (light + 0.05) / (dark + 0.05)
