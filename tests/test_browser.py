"""Pages in a real browser: what a reader sees, on a telephone or a desk, light or dark.

They are those of a short `lifted demo` and of a reproduction.

Where there is no chromium the tests are skipped; `LIFTED_BREGMAN_BROWSER=required` makes that a failure.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from lifted_bregman import reports
from lifted_bregman.reports.demo_page import HEADER
from lifted_bregman_lab.paper.paper import paper
from lifted_bregman_lab.reports import write_paper_report
from tests.lab.paper_stores import whole_world
from tests.reports.chromium import Browser, browser
from tests.reports.looking import CHROMIUM, REASON, REQUIRED, VIEWS, contrast, fits, luminance
from tests.reports.short_demo import ShortDemo, one_short_demo

pytestmark = pytest.mark.skipif(CHROMIUM is None and not REQUIRED, reason=REASON)


@pytest.fixture(scope="session")
def short_demo(tmp_path_factory: pytest.TempPathFactory) -> ShortDemo:
    return one_short_demo(tmp_path_factory)


@pytest.fixture(scope="module")
def tab() -> Iterator[Browser]:
    assert CHROMIUM is not None, REASON
    with browser(CHROMIUM) as opened:
        yield opened


@pytest.fixture(params=VIEWS, ids=lambda view: f"{view[0]}px-{'dark' if view[1] else 'light'}")
def view(request: pytest.FixtureRequest, tab: Browser, short_demo: ShortDemo) -> Browser:
    width, dark = request.param
    tab.show(short_demo.page, width, dark=dark)
    return tab


def test_the_page_loads_without_complaint_and_asks_for_nothing(view: Browser, short_demo: ShortDemo) -> None:
    assert view.complaints() == []
    outside = [address for address in view.addresses() if not address.startswith("data:image/png;base64,")]
    assert outside == [short_demo.page.absolute().as_uri()]


def test_sections_table_and_charts_are_there(view: Browser) -> None:
    assert view.evaluate("document.title") == "A sparse autoencoder of digits: lifted training, SGD and Adam"
    headings = view.evaluate("[...document.querySelectorAll('h2')].map(h => h.innerText)")
    assert headings == ["Result", "Progress", "Reconstructions", "Codes", "Settings", "How to rerun"]
    cells = view.evaluate("[...document.querySelector('table').rows].map(r => [...r.cells].map(c => c.innerText))")
    assert cells[0] == ["", "lifted", "SGD", "Adam"]
    assert tuple(row[0] for row in cells[1:]) == HEADER[1:]
    assert all(cell.strip() for row in cells[1:] for cell in row)
    targets = "[...document.querySelectorAll('nav a')].every(a => document.querySelector(a.getAttribute('href')))"
    assert view.evaluate(targets) is True


def test_every_picture_is_shown(view: Browser) -> None:
    pictures = view.evaluate(
        "[...document.images].map(i => [i.complete, i.naturalWidth, i.naturalHeight, i.clientWidth, i.clientHeight])"
    )
    assert len(pictures) == 12
    for complete, width, height, shown_width, shown_height in pictures:
        assert complete and (width, height) == (10 * 28 + 9 * 2, 28)
        assert shown_width >= 290 and shown_height / shown_width == pytest.approx(height / width, rel=0.05)
    charts = view.evaluate(
        "[...document.querySelectorAll('svg')].map(s => [s.getBoundingClientRect().width, s.getBBox().width])"
    )
    assert len(charts) == 4 and all(shown >= 300 and drawn >= 250 for shown, drawn in charts)


def nothing_sticks_out(tab: Browser) -> None:
    # What is wider than the window has to scroll in a box of its own.
    sticking_out = """[...document.querySelectorAll('body *')].filter(e => !e.closest('.scroll, pre, svg *')
        && e.getBoundingClientRect().right > document.documentElement.clientWidth + 0.5)
        .map(e => e.outerHTML.slice(0, 80))"""
    assert tab.evaluate(sticking_out) == []
    assert fits(tab)


def test_nothing_sticks_out_to_the_right(view: Browser) -> None:
    nothing_sticks_out(view)
    # The result itself needs no scrolling.
    assert view.evaluate("(s => s.scrollWidth <= s.clientWidth)(document.querySelector('.scroll'))") is True


def test_the_words_in_charts_can_be_read(view: Browser) -> None:
    words_can_be_read(view)


def words_can_be_read(tab: Browser) -> None:
    """Those of charts are large enough and do not overlap."""
    boxes: list[list[dict[str, Any]]] = tab.evaluate("""[...document.querySelectorAll('svg')].map(s =>
        [...s.querySelectorAll('text')].map(t => { const b = t.getBoundingClientRect();
            return {text: t.textContent, left: b.left, right: b.right, top: b.top, bottom: b.bottom}; }))""")
    for texts in boxes:
        assert len(texts) >= 6
        for text in texts:
            assert text["bottom"] - text["top"] >= 11, f"{text} is too small"
        for number, one in enumerate(texts):
            for other in texts[:number]:
                apart = (
                    one["right"] <= other["left"]
                    or other["right"] <= one["left"]
                    or one["bottom"] <= other["top"] + 1
                    or other["bottom"] <= one["top"] + 1
                )
                assert apart, f"{one} overlaps {other}"


@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
def test_text_and_curves_stand_out_from_the_paper(tab: Browser, short_demo: ShortDemo, dark: bool) -> None:
    tab.show(short_demo.page, 1280, dark=dark)
    assert colours_of_curves(tab, dark) == 3


def colours_of_curves(tab: Browser, dark: bool) -> int:
    """How many there are; words, curves and legends stand out from the paper, and curves have the legends' colours."""
    ground = tab.evaluate("getComputedStyle(document.body).backgroundColor")
    assert (luminance(ground) < 0.1) is dark
    words = tab.evaluate("""[...new Set([...document.querySelectorAll('body *')]
        .filter(e => [...e.childNodes].some(n => n.nodeType == 3 && n.data.trim()))
        .map(e => e.closest('svg') ? getComputedStyle(e).fill : getComputedStyle(e).color))]""")
    assert len(words) >= 3
    assert min(contrast(colour, ground) for colour in words) >= 4.5
    curves = tab.evaluate("""[...new Set([...document.querySelectorAll('svg path')].filter(p =>
        p.getAttribute('style')?.includes('stroke: var(--curve')).map(p => getComputedStyle(p).stroke))]""")
    keys = tab.evaluate("[...document.querySelectorAll('.legend i')].map(i => getComputedStyle(i).borderTopColor)")
    assert sorted(curves) == sorted(set(keys))
    assert min(contrast(colour, ground) for colour in curves) >= 3.0
    return len(curves)


@pytest.fixture(scope="module")
def report(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The page of the paper in a world in which all that it says is true, of two seeds."""
    return write_paper_report(whole_world(paper()), tmp_path_factory.mktemp("report"))


@pytest.mark.parametrize(("width", "dark"), VIEWS, ids=lambda value: str(value))
def test_the_report_of_a_reproduction_can_be_read(tab: Browser, report: Path, width: int, dark: bool) -> None:
    tab.show(report, width, dark=dark)
    assert tab.complaints() == []
    outside = [address for address in tab.addresses() if not address.startswith("data:image/png;base64,")]
    assert outside == [report.absolute().as_uri()]
    listed = tab.evaluate("[...document.querySelectorAll('nav a')].map(a => a.innerText)")
    assert listed == tab.evaluate("[...document.querySelectorAll('h2')].map(h => h.innerText)")
    assert {"Verdicts", "Table 1: classification", "Files that were ignored", "How to rerun"} <= set(listed)
    assert len(listed) == 14
    pictures = tab.evaluate("[...document.images].map(i => [i.complete, i.naturalWidth, i.clientWidth])")
    assert len(pictures) >= 25 and all(done and real > 0 and shown >= 250 for done, real, shown in pictures)
    charts = tab.evaluate(
        "[...document.querySelectorAll('svg')].map(s => [s.getBoundingClientRect().width, s.getBBox().width])"
    )
    assert len(charts) >= 15 and all(shown >= 300 and drawn >= 250 for shown, drawn in charts)
    nothing_sticks_out(tab)
    words_can_be_read(tab)
    colours_of_curves(tab, dark)


def test_claims_are_paragraphs_and_tables_stand_beside_the_papers(tab: Browser, report: Path) -> None:
    tab.show(report, 1280)
    claims = tab.evaluate("[...document.querySelectorAll('.finding')].map(c => [c.innerText, c.offsetHeight])")
    assert len(claims) + 12 + 18 == len(paper().claims)  # the numbers of the two tables are rows
    assert all(height >= 60 and "lifted re" in text and "\n" in text for text, height in claims)
    tables = tab.evaluate("""[...document.querySelectorAll('table')].map(t => [...t.rows].map(r =>
        [...r.cells].map(c => c.innerText.replaceAll('\u00a0', ' '))))""")
    assert tables[2][:3] == [
        ["", "", "MNIST train", "MNIST test", "Fashion train", "Fashion test"],
        ["classical lifted", "paper", "85.6", "86.3", "81.4", "80.0"],
        ["", "here, 2 seeds", "85.65 ± 0.07", "86.35 ± 0.07", "81.45 ± 0.07", "80.05 ± 0.07"],
    ]
    wide = "[...document.querySelectorAll('.scroll')].slice(0, 3).map(s => s.scrollWidth <= s.clientWidth)"
    assert tab.evaluate(wide) == [True] * 3  # verdicts, readings and Table 1 need no scrolling on a desk
    text = tab.evaluate("document.body.innerText")
    assert "classify-mnist-sgd/9.jsonl" in text and "its hash is not that of its settings" in text


@pytest.mark.parametrize("width", [390, 1280])
def test_short_names_of_rows_are_not_broken_at_their_hyphens(tab: Browser, report: Path, width: int) -> None:
    tab.show(report, width)
    lines = """[...document.querySelectorAll('td:first-child')].map(cell => {
        const text = cell.firstChild, name = text && text.nodeType === 3 && text.data.match(/^[A-Z]+-\\S+/);
        if (!name) return ['', 0];
        const range = document.createRange();
        range.setStart(text, 0);
        range.setEnd(text, name[0].length);
        return [name[0].replace('\\u2060', ''), new Set([...range.getClientRects()].map(box => box.top)).size];
    }).filter(found => found[1] > 0)"""
    found = tab.evaluate(lines)
    assert {"SGD-BP,", "LBN-D,"} <= {name for name, _ in found}
    assert [name for name, count in found if count > 1] == []


def test_what_is_said_in_full_opens_where_it_is_said_in_brief(tab: Browser, tmp_path: Path) -> None:
    finding = reports.Finding("so", "It is so.", "curve-3", ["Found."], ["lifted"], ("In brief.", ["In full.", "All."]))
    page = reports.Page("title", "summary", [reports.Section("one", [finding])]).write(tmp_path / "finding.html")
    tab.show(page, 390)
    words = "document.querySelector('.finding').innerText.split('\\n').filter(line => line)"
    closed = ["so · It is so.", "Found.", "In brief.", "lifted"]
    assert tab.evaluate(words) == closed
    tab.evaluate("document.querySelector('summary').click()")
    assert tab.evaluate(words) == [*closed[:3], "In full.", "All.", "lifted"]
    colours = "[...document.querySelectorAll('.finding p')].map(p => getComputedStyle(p).color)"
    first, *others = tab.evaluate(colours)
    assert len(others) == 4 and set(others) != {first} and len(set(others)) == 1  # all but the statement are softer


@pytest.mark.parametrize("width", [390, 1280])
def test_what_is_too_wide_scrolls_in_a_box_of_its_own(tab: Browser, tmp_path: Path, width: int) -> None:
    header = [f"a_long_heading_{number}" for number in range(20)]
    blocks = [reports.PageTable(header, [header], "caption"), reports.Listing("word " * 200)]
    page = reports.Page("title", "summary", [reports.Section("one", blocks)]).write(tmp_path / "wide.html")
    tab.show(page, width)
    assert fits(tab)
    boxes = tab.evaluate("[...document.querySelectorAll('.scroll, pre')].map(e => e.scrollWidth > e.clientWidth)")
    assert boxes == [True, True]


def test_the_browser_would_notice_faults(tab: Browser, tmp_path: Path) -> None:
    """The checks above can fail: a page with every fault they look for."""
    bad = tmp_path / "bad.html"
    bad.write_text(
        "<title>bad</title><meta name='viewport' content='width=device-width'>"
        "<img src='missing.png'><div style='width: 3000px'>wide</div>"
        "<script>console.error('oh'); undefinedName()</script>"
    )
    tab.show(bad, 390)
    assert len(tab.complaints()) >= 2
    assert any(address.endswith("missing.png") for address in tab.addresses())
    assert tab.evaluate("document.images[0].naturalWidth") == 0
    assert not fits(tab)
