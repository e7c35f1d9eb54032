"""The page of a reproduction shows what is in its rows, and only what can be believed."""

from __future__ import annotations

import base64
import html
import io
import math
import re
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from lifted_bregman.errors import CheckpointError, SettingError
from lifted_bregman_lab.reports import write_any_report
from lifted_bregman_lab.reproduction import (
    All,
    Cause,
    Counted,
    Job,
    Less,
    Near,
    Paper,
    Quoted,
    ResultStore,
    Rule,
    Status,
)
from lifted_bregman_lab.reproduction.exhibits import (
    Drawing,
    Exhibit,
    ShownChart,
    ShownCurve,
    ShownImages,
    ShownRow,
    ShownTable,
)
from lifted_bregman_lab.reproduction.report import results as paper_results
from lifted_bregman_lab.reproduction.report.charts import charts_block, codes_block, curve_of, images_block
from lifted_bregman_lab.reproduction.report.claims import failures, open_claims, sentence
from lifted_bregman_lab.reproduction.report.page import paper_page
from lifted_bregman_lab.reproduction.report.results import NO_CAUSE, Results, load_results
from lifted_bregman_lab.reproduction.report.summary import summary
from lifted_bregman_lab.reproduction.report.tables import (
    cause_rows,
    counted,
    machine_rows,
    number_rows,
    run_rows,
    shown_rows,
    verdict_rows,
    within,
)
from lifted_bregman_lab.reproduction.store import job_entries
from tests.lab import paper_stores as stores
from tests.lab.paper_stores import PAPER, codes_run, digits_run, every_run, spoil_hash, write_store
from tests.reports.svg import read_chart

FULL = stores.results(*every_run())


def written(results: Results, folder: Path) -> str:
    return paper_page(results, folder).write(folder / "index.html").read_text(encoding="utf-8")


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> str:
    return written(FULL, tmp_path_factory.mktemp("page"))


@pytest.fixture(scope="module")
def page(source: str) -> str:
    return html.unescape(re.sub(r"<[^>]*>", " ", source)).replace("\N{NO-BREAK SPACE}", " ")


@pytest.fixture
def store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The runs as files, and the tiny paper as the only one."""
    monkeypatch.setattr(paper_results, "find_papers", lambda: {PAPER.name: PAPER})
    return write_store(tmp_path / "results", *every_run())


def test_the_page_needs_nothing_else(source: str) -> None:
    assert "<script" not in source and "http" not in source.replace("http://www.w3.org", "")
    assert "prefers-color-scheme: dark" in source


def test_words_of_a_paper_are_never_markup(source: str, page: str) -> None:
    assert "<b>" not in source and "<of beads>" not in source
    assert "Another rate is worse <b>by far</b>." in page and "an abacus <of beads>" in page


def test_tables_have_means_spreads_and_the_papers_numbers() -> None:
    header, rows = shown_rows(FULL, stores.TABLE)
    accuracy = list(stores.ACCURACY.values())
    assert header == ("", "", "train", "test")
    mean, deviation = np.mean(accuracy), np.std(accuracy, ddof=1)
    assert rows == [
        ("digits", "paper", "92.5", "80.0"),
        ("", "here, 3 seeds", f"{mean:.2f} ± {deviation:.2f}", "70.00 ± 1.00"),
        ("other | rate", "paper", "", ""),
        ("", "here, 0 seeds", "", "not run"),
    ]
    assert rows[1][2] == "93.00 ± 3.61"  # √13 by hand


def test_a_line_says_how_many_numbers_of_a_table_are_reproduced() -> None:
    """Of 92.5 ± 1 and 80 ± 2 in three seeds, 93 ± 3.6 is undecided and 70 ± 1 is not reproduced; of one seed 92 is."""
    assert within(FULL, stores.TABLE) == "0 of 2 numbers of the paper are reproduced, within ±1 or ±2; 1 undecided."
    one = stores.results(digits_run(1))
    assert within(one, stores.TABLE) == "1 of 2 numbers of the paper are reproduced, within ±1 or ±2."
    first, second, *others = PAPER.claims
    quoted = replace(second, rule=Quoted(stores.TEST, 80.0, "from elsewhere"))
    paper = replace(PAPER, claims=(first, quoted, *others))
    assert within(stores.results(digits_run(1), paper=paper), stores.TABLE) == (
        "1 of 1 numbers of the paper are reproduced, within ±1; 1 other quoted from earlier work and not judged."
    )
    table = ShownTable("", ("error",), (ShownRow("a", (stores.LOSS_QUANTITY,)),))
    assert within(FULL, table) == ""


def test_a_quoted_number_stands_beside_ours_and_is_not_judged() -> None:
    quoted = replace(PAPER.claims[1], rule=Quoted(stores.TEST, 80.0, "from elsewhere"))
    results = stores.results(*every_run(), paper=replace(PAPER, claims=(quoted,)))
    assert shown_rows(results, stores.TABLE)[1][:2] == [
        ("digits", "paper", "", "80.0"),
        ("", "here, 3 seeds", "93.00 ± 3.61", "70.00 ± 1.00"),
    ]
    (row,) = number_rows(results, (quoted,))[1]
    assert row[2:] == ("80, quoted", "70 ± 1", "3", "– not applicable")


def test_causes_count_what_was_not_reproduced_and_facts_once() -> None:
    """Four claims that fail, two of them for one fact, and one that holds."""
    failing = tuple(
        replace(PAPER.claims[1], name=f"number-{n}", same_as="number-0" if n == 1 else "") for n in range(4)
    )
    holding = replace(PAPER.claims[3], name="count")
    causes = (
        Cause("wrong pixels", "They are.", ("number-0", "number-1", "count")),
        Cause("no reason at all", "None.", ("count-2",)),
        Cause("late", "It was.", ("number-3",)),
    )
    extra = replace(PAPER.claims[3], name="count-2")
    paper = replace(PAPER, claims=(*failing, holding, extra), causes=causes, notes={})
    results = stores.results(*every_run(), paper=paper)
    assert cause_rows(results) == (
        ("cause", "claims", "facts", "evidence"),
        [("wrong pixels", "2", "1", "They are."), ("late", "1", "1", "It was."), (NO_CAUSE, "1", "1", "")],
    )
    listed = {title: [claim.name for claim in claims] for title, claims in failures(results).items()}
    assert listed == {"wrong pixels": ["number-0", "number-1"], "late": ["number-3"], NO_CAUSE: ["number-2"]}
    assert counted(results) == (
        "6 claims: 2 reproduced, 4 not reproduced. Where several claims state one fact, it is counted once: 5 facts: "
        "2 reproduced, 3 not reproduced."
    )


def test_one_fact_with_two_verdicts_is_counted_in_both() -> None:
    fails, holds = PAPER.claims[1], replace(PAPER.claims[3], same_as="test-number")
    results = stores.results(*every_run(), paper=replace(PAPER, claims=(fails, holds), notes={}))
    assert results.facts == results.counts == {Status.NOT_REPRODUCED: 1, Status.REPRODUCED: 1}


def test_what_was_decided_later_is_said_where_verdicts_are(tmp_path: Path) -> None:
    later = "The pixels, which agree better."
    results = stores.results(*every_run(), paper=replace(PAPER, decided_later=(later,)))
    text, said = html.unescape(written(results, tmp_path)), "but for what was decided after results had been seen:"
    assert f"<p>{later}</p>" in text and said in text
    assert said not in html.unescape(written(FULL, tmp_path))
    assert f"{said}\n\n- {later}\n" in summary(results) and said not in summary(FULL)


def test_undecided_claims_and_errata_are_listed_apart(page: str) -> None:
    words = " ".join(page.split())
    assert "train-number Undecided. It learns 92.5 %. 93 ± 3.6; published 92.5, allowed ±1; 3 seeds." in words
    wrong = replace(PAPER.claims[3], rule=Counted(6, 7, "units"))
    results = stores.results(*every_run(), paper=replace(PAPER, claims=(wrong,), notes={}))
    assert open_claims(results) == {wrong: "Erratum. It has 6 units. Units: 7; published 6."}


def test_a_table_without_published_numbers_has_its_seeds_in_a_column() -> None:
    table = ShownTable("", ("error", "epochs"), (ShownRow("a", (stores.LOSS_QUANTITY, stores.EPOCHS)),))
    header, rows = shown_rows(FULL, table)
    losses = [values[-1] for values in stores.LOSSES.values()]
    assert header == ("", "seeds", "error", "epochs")
    assert rows == [("a", "3", f"{np.mean(losses):.4g} ± {np.std(losses, ddof=1):.2g}", "3 ± 0")]
    assert shown_rows(stores.results(digits_run(1)), table)[1] == [("a", "1", "2", "3")]
    cells = (stores.EPOCHS, replace(stores.EPOCHS, recipe="tiny-codes"), replace(stores.EPOCHS, recipe="tiny-other"))
    mixed = ShownTable("", ("a", "b", "c"), (ShownRow("m", cells), ShownRow("n", (cells[0], None, cells[2]))))
    assert shown_rows(FULL, mixed)[1] == [("m", "1 to 3", "3 ± 0", "2", "not run"), ("n", "3", "3 ± 0", "", "not run")]


def test_a_diverged_run_is_called_so() -> None:
    results = stores.results(digits_run(0), digits_run(1, "DIVERGED"))
    assert shown_rows(results, stores.TABLE)[1][1][2:] == ("diverged", "diverged")
    block = charts_block(results, stores.EXHIBITS[0].shown[1])
    assert "Diverged, and shown as far as it went: tiny-digits with seed 1." in block.caption


def test_verdicts_are_counted_by_figure() -> None:
    header, rows = verdict_rows(FULL)
    assert header == ("", *(status.value for status in Status), "claims")
    assert rows == [
        ("Table 1: digits", "0", "1", "1", "0", "0", "1", "3"),
        ("Figure 2: codes", "2", "0", "0", "0", "1", "0", "3"),
        ("all", "2", "1", "1", "0", "1", "1", "6"),
    ]
    assert counted(FULL) == "6 claims: 2 reproduced, 1 not reproduced, 1 undecided, 1 not applicable, 1 not run yet."


def test_every_claim_is_on_the_page_with_verdict_reason_and_command(page: str) -> None:
    words = " ".join(page.split())
    for claim in PAPER.claims:
        verdict = FULL.verdicts[claim.name]
        assert claim.name in words and claim.statement in words
        assert sentence(claim.why) in words and sentence(verdict.sentence) in words
        assert not claim.recipes or f"lifted reproduce {claim.name} --out out/again" in words
    assert "lifted reproduce table1 --priority seeds --out out/again" in words
    assert "≈ undecided · It learns 92.5 %. 93 ± 3.6; published 92.5, allowed ±1; 3 seeds." in words
    assert "✗ not reproduced · It gets 80 % of new ones. 70 ± 1; published 80, allowed ±2; 3 seeds." in words
    assert "○ not run yet · Another rate" in words and "– not applicable · Codes are beautiful." in words
    assert counted(FULL) in words


def test_what_was_tried_stands_where_a_number_was_not_reached(page: str) -> None:
    failed = page.split("What was not reproduced")[2].split("Undecided, and errata")[0]
    assert "test-number" in failed and "train-number" not in failed
    assert page.count("What was tried: Two other rates, which came no closer.") == 2
    assert "What was tried: Three other codes." in page


def test_what_was_tried_for_several_is_said_once_among_what_was_not_reproduced() -> None:
    """Three numbers that are not reached: two with one note, one with another."""
    claims = tuple(replace(PAPER.claims[1], name=f"number-{n}") for n in range(3))
    notes = {"number-0": "A walk.", "number-1": "A swim.", "number-2": "A walk."}
    found = failures(stores.results(*every_run(), paper=replace(PAPER, claims=claims, notes=notes)))
    said = {claim.name: lines[-1] for claim, lines in found[NO_CAUSE].items()}
    assert said == {
        "number-0": "What was tried: A walk.",
        "number-1": "What was tried: A swim.",
        "number-2": "What was tried: the same as for number-0.",
    }
    without = failures(stores.results(*every_run(), paper=replace(PAPER, claims=claims, notes={})))
    assert [len(lines) for lines in without[NO_CAUSE].values()] == [1, 1, 1]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("one. two", "One. Two."),
        ("the run a/0 diverged: residual_4 is inf", "The run a/0 diverged: residual_4 is inf."),
        ("it ended. residual_4 is inf.", "It ended. residual_4 is inf."),
        ("Why?", "Why?"),
    ],
)
def test_sentences_begin_with_capitals_and_names_stay(text: str, expected: str) -> None:
    assert sentence(text) == expected


def test_many_numbers_are_a_table(tmp_path: Path) -> None:
    again = tuple(replace(PAPER.claims[0], name=f"number-{n}") for n in range(7))
    notes = {"number-3": "a walk", "number-4": "a walk"}
    results = stores.results(*every_run(), paper=replace(PAPER, claims=again, notes=notes))
    header, rows = number_rows(results, again)
    assert header == ("claim", "the paper says", "allowed", "here", "seeds", "verdict")
    assert rows[0] == ("number-0", "It learns 92.5 %.", "92.5 ± 1", "93 ± 3.6", "3", "≈ undecided")
    text = html.unescape(written(results, tmp_path))
    assert text.count("Judged by: A point.") == text.count("What was tried: A walk.") == 1
    assert "lifted reproduce table1 --priority seeds" in text and text.count("number-6") == 2  # undecided too


@pytest.mark.parametrize(
    ("rule", "said"),
    [
        (Near(stores.TRAIN, 92.5, 1.0), "92.5 ± 1"),
        (Less(stores.TRAIN, stores.TEST, "a", "b"), "strictly less"),
        (PAPER.claims[3].rule, "6"),
        (PAPER.claims[4].rule, "no measure"),
        (stores.BETWEEN, "at least 1 and at most 2.5"),
        (PAPER.claims[5].rule, "0.75 ± 0.01"),
        (All((Near(stores.TRAIN, 92.5, 1.0),) * 2), "92.5 ± 1, 2 times"),
        (All((Near(stores.TRAIN, 92.5, 1.0), stores.BETWEEN)), "92.5 ± 1; at least 1 and at most 2.5"),
    ],
)
def test_what_is_required_in_few_words(rule: Rule, said: str) -> None:
    assert rule.required == said


def test_charts_are_means_of_the_rows_on_the_axes_that_were_asked_for(source: str) -> None:
    charts = re.findall(r"<h3>([^<]*)</h3>\s*<div role[^>]*>(<svg .*?</svg>)", source, re.S)
    assert [title for title, _ in charts] == ["Training error (log scale)", "Zeros"]
    end, losses = read_chart(charts[0][1], True)
    means = np.mean(list(stores.LOSSES.values()), axis=0)
    assert [x for x, _ in losses.points] == pytest.approx([1, 2, 3], abs=1e-3)
    assert [y for _, y in losses.points] == pytest.approx(means, rel=2e-3)
    assert [x for x, _ in end.points] == pytest.approx([1, 3], abs=1e-3)
    assert [y for _, y in end.points] == pytest.approx([means[-1]] * 2, rel=2e-3)
    (zeros,) = read_chart(charts[1][1], False)
    assert [y for _, y in zeros.points] == pytest.approx(stores.SPARSITY, abs=2e-3)


def test_bands_reach_from_the_least_to_the_most() -> None:
    curve, (low, high) = curve_of(FULL, stores.LOSS.curves[0], "epoch")
    assert low == [8.0, 4.0, 1.0] and high == [12.0, 6.0, 6.0]
    assert curve.y == [10.0, 5.0, 3.0]
    curve, (low, high) = curve_of(FULL, stores.LOSS.curves[0], "seconds")
    assert curve.x == [2.0, 4.0, 6.0]


def test_a_curve_goes_as_far_as_all_its_seeds() -> None:
    short = digits_run(1)
    results = stores.results(digits_run(0), replace(short, rows=short.rows[:2]))
    curve, _ = curve_of(results, stores.LOSS.curves[0], "epoch")
    assert curve.x == [1, 2] and curve.y == [9.0, 4.5]


def test_images_are_those_that_are_stored(source: str) -> None:
    shown = [
        np.asarray(Image.open(io.BytesIO(base64.b64decode(content))))
        for content in re.findall(r'<img src="data:image/png;base64,([^"]+)"', source)
    ]
    labels = re.findall(r"<p>(original|input|codes[^<]*)</p>", source)
    assert labels == ["original", "input", "codes", "codes: 2 of 36, up to 2"]
    for picture, name in zip(shown, ("target", "input", "output"), strict=False):
        assert picture.shape == (4, 6 * 5 + 5 * 2, 2)
        assert (picture[:, :5, 0] == stores.IMAGES[f"validation_{name}"]).all()
    code = shown[3]
    assert code.shape == (3, 12, 4)  # a row is at least four times as long as high
    blue, orange = code[0, 0], code[2, 11]
    assert blue[2] > blue[0] and orange[0] > orange[2] and orange[3] == 255  # the largest is opaque
    assert len(np.unique(code.reshape(-1, 4)[1:-1], axis=0)) == 1  # all others are zeros, and grey


def test_what_was_not_run_is_said_and_does_not_stop_the_report(tmp_path: Path) -> None:
    results = stores.results(digits_run(2))
    text = " ".join(html.unescape(re.sub(r"<[^>]*>", " ", written(results, tmp_path))).split())
    assert "Zeros grow. None of these runs is stored yet." in text
    assert "Digits. None of these runs is stored yet." in text and "One code. None of" in text
    assert "1 stored run of 3 recipes" in text and "1 of 9 runs are stored; the other 8" in text
    assert "there is no finished run of tiny-codes" in text or "There is no finished run of tiny-codes" in text
    assert " ± " not in shown_rows(results, stores.TABLE)[1][1][2]
    images = replace(stores.EXHIBITS[1].shown[1], outputs=(("codes", "tiny-codes"), ("other", "tiny-other")))
    assert images_block(FULL, images).caption == "Digits. Not run yet: other."
    codes = replace(stores.EXHIBITS[1].shown[2], codes=(("other", "tiny-other"), ("codes", "tiny-codes")))
    assert codes_block(FULL, codes).caption == "One code. Not run yet: other."


def test_curves_that_are_missing_are_named_in_the_legend(tmp_path: Path) -> None:
    chart = replace(stores.LOSS, curves=(ShownCurve("other", "tiny-other", "loss"), *stores.LOSS.curves))
    block = charts_block(FULL, replace(stores.EXHIBITS[0].shown[1], charts=(chart,)))
    (drawn,) = block.charts
    assert [name for name, _, _ in drawn.legend()] == ["other (not run)", "digits", "end"]
    lines = read_chart(drawn.svg(), True)
    assert len(lines) == 2 and "curve-2" in lines[-1].style  # colours stay with their recipes


def test_runs_and_machine() -> None:
    header, rows = run_rows(FULL)
    assert header == ("recipe", "what", "seeds", "seconds a run", "ended")
    assert rows == [
        ("tiny-digits", "digits", "3 of 3", "6", "finished"),
        ("tiny-codes", "codes", "1 of 5", "2", "finished"),
        ("tiny-other", "other rate", "0 of 1", "-", "not run"),
    ]
    mixed = stores.results(digits_run(0), replace(digits_run(1, "DIVERGED"), environment={"threads": "2"}))
    assert run_rows(mixed)[1][0][2:] == ("2 of 3", "6", "1 diverged, 1 finished")
    assert machine_rows(mixed)[1] == [
        ("processor", "an abacus <of beads> (1 runs), unknown (1 runs)"),
        ("threads", "1 (1 runs), 2 (1 runs)"),
        ("runs", "2"),
        ("seconds in steps", "12"),
    ]
    assert len(FULL.missing) == 5 and FULL.missing[0].name == "tiny-codes/1"


def test_the_report_of_a_folder_with_rows_is_the_page(store: Path, source: str, tmp_path: Path) -> None:
    before = sorted(store.rglob("*"))
    path = write_any_report(store, tmp_path / "out")
    assert path == tmp_path / "out" / "index.html" and path.read_text(encoding="utf-8") == source
    assert sorted(store.rglob("*")) == before and list(path.parent.iterdir()) == [path]


def test_a_file_with_a_wrong_hash_is_named_and_ignored(store: Path, tmp_path: Path) -> None:
    spoil_hash(store / "tiny-digits" / "2.jsonl")
    results = load_results(store)
    assert list(results.ignored) == ["tiny-digits/2.jsonl"]
    assert "its hash is not that of its settings" in results.ignored["tiny-digits/2.jsonl"]
    assert str(tmp_path) not in results.ignored["tiny-digits/2.jsonl"]
    assert shown_rows(results, stores.TABLE)[1][1][1:3] == ("here, 2 seeds", f"91.00 ± {math.sqrt(2):.2f}")
    text = written(results, tmp_path)
    ignored = text.split("Files that were ignored</h2>")[1].split("</section>")[0]
    assert "tiny-digits/2.jsonl" in ignored and "hash" in ignored


def test_files_that_are_damaged_changed_or_of_no_recipe_are_named(store: Path) -> None:
    (store / "tiny-digits" / "0.jsonl").write_text("{")
    changed = store / "tiny-codes" / "0.jsonl"
    job = Job(stores.CODES, 0)
    ResultStore(store).write(job, replace(codes_run(), settings=job_entries(job) | {"epochs": 7}))
    (store / "unknown").mkdir()
    (store / "unknown" / "3.jsonl").write_text(changed.read_text())
    (store / "tiny-digits" / "11.jsonl").write_text("")
    results = load_results(store)
    assert list(results.ignored) == [
        "tiny-codes/0.jsonl",
        "tiny-digits/0.jsonl",
        "tiny-digits/11.jsonl",
        "unknown/3.jsonl",
    ]
    reasons = list(results.ignored.values())
    assert "epochs = 7" in reasons[0] and "holds no finished run" in reasons[1]
    assert all("has no run of this recipe and seed" in reason for reason in reasons[2:])
    assert {(run.recipe, run.seed) for run in results.evidence.found} == {("tiny-digits", 1), ("tiny-digits", 2)}


def test_a_folder_without_a_run_that_can_be_believed_is_refused(store: Path, tmp_path: Path) -> None:
    for path in store.glob("*/*.jsonl"):
        spoil_hash(path)
    with pytest.raises(CheckpointError, match=r"'lifted reproduce' makes some.*tiny-codes/0.jsonl|tiny-digits/0.jsonl"):
        write_any_report(store, tmp_path / "out")
    (tmp_path / "empty").mkdir()
    for folder in (tmp_path / "empty", tmp_path / "nowhere"):
        with pytest.raises(CheckpointError, match="reproduc"):
            write_any_report(folder)
    assert not (tmp_path / "out").exists()


def test_the_paper_is_the_one_whose_recipes_are_stored(store: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    strange = Paper("strange", "Another", (replace(stores.OTHER, name="strange-run"),), ())
    monkeypatch.setattr(paper_results, "find_papers", lambda: {"strange": strange, "tiny": PAPER})
    assert load_results(store).paper is PAPER
    with pytest.raises(CheckpointError, match="'strange' has no run"):
        load_results(store, "strange")
    twin = replace(PAPER, name="twin")
    monkeypatch.setattr(paper_results, "find_papers", lambda: {"twin": twin, "tiny": PAPER})
    with pytest.raises(SettingError, match="--paper"):
        load_results(store)
    assert load_results(store, "twin").paper is twin


def test_drawings_are_made_for_light_and_dark_pages(tmp_path: Path) -> None:
    made = []

    def draw(path: Path, dark: bool) -> Path:
        made.append(dark)
        Image.new("L", (2, 2), 0 if dark else 255).save(path)
        return path

    exhibit = Exhibit("theory", "Theory", "No run.", (Drawing("A square.", "a square", draw),))
    text = written(stores.results(digits_run(0), paper=replace(PAPER, exhibits=(exhibit,))), tmp_path)
    assert made == [False, True]
    light, dark = (tmp_path / f"theory-0.{word}.png" for word in ("light", "dark"))
    for path in (light, dark):
        assert base64.b64encode(path.read_bytes()).decode() in text
    assert re.search(r"<h2[^>]*>table1</h2>", text)  # claims without an exhibit are not lost


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"exhibits": (*stores.EXHIBITS, stores.EXHIBITS[0])}, "two exhibits"),
        ({"exhibits": (Exhibit("x", "", "", (ShownImages("", "train", (("a", "nothing"),)),)),)}, "recipe 'nothing'"),
        ({"notes": {"nothing": "."}}, "note on the claim 'nothing'"),
    ],
)
def test_a_paper_that_shows_what_there_is_not_is_refused(change: dict[str, object], said: str) -> None:
    with pytest.raises(SettingError, match=said):
        replace(PAPER, **change)


def test_exhibits_that_make_no_sense_are_refused() -> None:
    with pytest.raises(SettingError, match="2 cells"):
        ShownTable("", ("a",), (ShownRow("row", (None, None)),))
    with pytest.raises(SettingError, match="no row"):
        ShownTable("", ("a",), ())
    with pytest.raises(SettingError, match="names that differ"):
        ShownChart("t", (ShownCurve("a", "r", "loss"), ShownCurve("a", "s", "loss")))
    with pytest.raises(SettingError, match="train or validation"):
        ShownImages("", "test", ())
