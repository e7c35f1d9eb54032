"""The built documentation: in a real browser on a telephone and a desk, light and dark, from the file system alone.

`make docs` builds it, and `make test` runs that first. Where it is not built, or there is no chromium, the tests are
skipped; `LIFTED_BREGMAN_BROWSER=required` makes that a failure.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import unquote

import pytest

from tests.reports.chromium import Browser, browser
from tests.reports.looking import CHROMIUM, REASON, REQUIRED, VIEWS, fits, luminance

HTML = Path(__file__).parent.parent / "docs" / "_build" / "html"
BUILT = (HTML / "index.html").is_file()
PAGES = sorted(path for path in HTML.rglob("*.html") if "_static" not in path.parts)
pytestmark = pytest.mark.skipif(not BUILT and not REQUIRED, reason="the documentation is not built: make docs")
needs_browser = pytest.mark.skipif(CHROMIUM is None and not REQUIRED, reason=REASON)

# What is wider than the window has to lie in a box that scrolls. Buttons open the menus beside a narrow window.
STICKS_OUT = """[...document.querySelectorAll('body *')].filter(e => {
    const box = e.getBoundingClientRect();
    if (!box.width || box.right <= document.documentElement.clientWidth + 0.5) return false;
    if (e.closest('.sidebar-drawer, .toc-drawer, svg *, math *')) return false;
    for (let p = e.parentElement; p; p = p.parentElement)
        if (/auto|scroll/.test(getComputedStyle(p).overflowX)) return false;
    return true;
}).map(e => e.outerHTML.slice(0, 80))"""
NOT_SHOWN = "[...document.images].filter(i => !i.complete || !i.naturalWidth).map(i => i.getAttribute('src'))"


@pytest.fixture(scope="module")
def tab() -> Iterator[Browser]:
    assert CHROMIUM is not None, REASON
    with browser(CHROMIUM) as opened:
        yield opened


def elsewhere(tab: Browser) -> list[str]:
    """What a page has asked for that is no file of the documentation."""
    home = HTML.absolute().as_uri()
    return [address for address in tab.addresses() if not address.startswith((home, "data:"))]


def faults(tab: Browser) -> list[str]:
    """What is wrong with the page that is shown."""
    found = [f"asks for {address}" for address in elsewhere(tab)] + tab.complaints()
    found += [f"sticks out: {element}" for element in tab.evaluate(STICKS_OUT)]
    found += [f"is not shown: {source}" for source in tab.evaluate(NOT_SHOWN)]
    return found + ([] if fits(tab) else ["scrolls to the right"])


def test_the_documentation_is_whole() -> None:
    assert len(PAGES) > 70
    assert {"index.html", "genindex.html", "search.html", "maths.html"} <= {page.name for page in PAGES}


@needs_browser
@pytest.mark.parametrize(
    ("width", "dark"), [view if view == (390, False) else pytest.param(*view, marks=pytest.mark.long) for view in VIEWS]
)
def test_every_page_can_be_read_and_asks_for_nothing(tab: Browser, width: int, dark: bool) -> None:
    wrong = {}
    for page in PAGES:
        tab.show(page, width, dark=dark)
        if found := faults(tab):
            wrong[str(page.relative_to(HTML))] = found[:5]
        ground = tab.evaluate("getComputedStyle(document.body).backgroundColor")
        assert (luminance(ground) < 0.1) is dark
    assert wrong == {}


@needs_browser
@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
def test_the_landing_page_has_three_doors_and_the_picture_of_the_readers_colours(tab: Browser, dark: bool) -> None:
    tab.show(HTML / "index.html", 1280, dark=dark)
    doors = tab.evaluate("[...document.querySelectorAll('.door a')].map(a => a.getAttribute('href'))")
    assert doors == ["#i-have-a-pytorch-model", "#i-read-the-paper", "#i-use-scikit-learn"]
    assert all(tab.evaluate(f"document.querySelector('{door}') !== null") for door in doors)
    shown = tab.evaluate("[...document.images].filter(i => i.clientWidth > 300).map(i => i.getAttribute('src'))")
    ending = "_dark" if dark else ""
    assert shown == [f"_images/evidence{ending}.svg", f"_images/bregman_losses{ending}.png"]


@needs_browser
def test_the_search_works_from_the_file_system(tab: Browser) -> None:
    tab.show(HTML / "search.html", 1280)
    tab.evaluate("location.search = '?q=proximal'")
    tab.wait_for("Page.loadEventFired")
    found = tab.evaluate("""new Promise(answer => { const look = () => {
        const links = [...document.querySelectorAll('#search-results li a')].map(a => a.getAttribute('href'));
        links.length > 5 ? answer(links) : setTimeout(look, 50); }; look(); })""")
    assert any(link.startswith("maths.html") for link in found)
    assert tab.complaints() == [] and elsewhere(tab) == []


def test_no_page_loads_anything_from_elsewhere() -> None:
    """What a browser would fetch for links of another kind than those that a reader follows."""
    fetched = re.compile(r"<(?:script|img|iframe|source|link)\b[^>]*?\b(?:src|srcset|href)=\"((?:https?:)?//[^\"]+)")
    for page in PAGES:
        assert fetched.findall(page.read_text(encoding="utf-8")) == [], page.name
    for sheet in HTML.rglob("*.css"):
        text = sheet.read_text(encoding="utf-8")
        assert re.findall(r"(?:url\(|@import)\s*[\"']?(?:https?:)?//", text) == [], sheet.name


def test_every_link_to_a_page_or_a_place_leads_there() -> None:
    texts = {page: page.read_text(encoding="utf-8") for page in PAGES}
    places = {page: set(re.findall(r'\bid="([^"]+)"', text)) for page, text in texts.items()}
    for page, text in texts.items():
        for link in re.findall(r'<a\b[^>]*?\bhref="([^"]+)"', text):
            path, _, place = link.partition("#")
            if re.match(r"\w+:", link) or (page.name in ("search.html", "genindex.html") and not path):
                continue
            target = (page.parent / unquote(path)).resolve() if path else page
            assert target.is_file(), f"{page.name}: {link}"
            if place and target in places:
                assert unquote(place) in places[target] or place == "", f"{page.name}: {link}"


def test_every_example_has_a_picture_of_its_own() -> None:
    """Sphinx-gallery gives the same picture to all that draw none."""
    pictures = [path.read_bytes() for path in (HTML / "_images").glob("sphx_glr_*_thumb.png")]
    assert len(pictures) >= 22 and len(set(pictures)) == len(pictures)
