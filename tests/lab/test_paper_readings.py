"""Claims judged in another reading of the text: by the same rules, on runs that stand for those of the main one."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from lifted_bregman.errors import SettingError
from lifted_bregman.solvers import Outcome
from lifted_bregman_lab.reproduction import All, Evidence, Near, NotApplicable, Reading, RecipeRun, Status
from lifted_bregman_lab.reproduction.quantities import Final
from lifted_bregman_lab.reproduction.report.claims import readings_in_brief
from lifted_bregman_lab.reproduction.report.page import FAILURES, READINGS, paper_page
from lifted_bregman_lab.reproduction.report.results import Results
from lifted_bregman_lab.reproduction.report.summary import summary
from lifted_bregman_lab.reproduction.report.tables import reading_rows
from tests.lab.paper_stores import CLAIMS, PAPER, digits_run, every_run, results

OTHERWISE = Reading("other pixels", {"tiny-digits": "tiny-other"})
READ = replace(PAPER, readings=(OTHERWISE,))
TRAIN, TEST, WORSE, UNITS, *_ = CLAIMS


def other_run(validation: float) -> RecipeRun:
    """The run of the first seed in the other reading: it learns 90 %, and gets so many per cent of new ones."""
    run = digits_run(0)
    rows = tuple({**row, "validation_accuracy": validation / 100.0} for row in run.rows)
    return replace(run, recipe="tiny-other", rows=rows)


def read(*others: RecipeRun) -> Results:
    return results(*every_run(), *others, paper=READ)


def test_the_same_rule_is_asked_of_the_runs_that_stand_for_the_others() -> None:
    evidence = Evidence((*every_run(), other_run(80.5)))
    assert TEST.verdict(evidence).status is Status.NOT_REPRODUCED  # 70 in the main reading, 80 published
    verdict = OTHERWISE.verdict(TEST, evidence)
    assert verdict is not None and verdict.status is Status.REPRODUCED
    assert verdict.measured == pytest.approx(80.5) and verdict.seeds == 1  # and no run of the main reading
    missed = OTHERWISE.verdict(TRAIN, evidence)
    assert missed is not None and missed.status is Status.NOT_REPRODUCED and missed.measured == pytest.approx(90.0)


def test_a_stand_in_that_diverged_is_called_by_its_own_name() -> None:
    lost = replace(other_run(80.5), outcome="DIVERGED", message=f"{Outcome.DIVERGED.value} W is inf after step 2.")
    verdict = OTHERWISE.verdict(TEST, Evidence((*every_run(), lost)))
    assert verdict is not None
    assert verdict.sentence == "the run tiny-other/0 diverged: W is inf after step 2" and verdict.brief == "diverged"
    silent = OTHERWISE.verdict(TEST, Evidence((*every_run(), replace(lost, message=Outcome.DIVERGED.value))))
    assert silent is not None and silent.sentence.endswith(
        "diverged: The run diverged; the last good parameters were kept"
    )


def test_a_run_may_stand_for_itself_where_another_changes() -> None:
    evidence = Evidence((*every_run(), other_run(80.5)))
    codes = OTHERWISE.recipes | {"tiny-codes": "tiny-codes"}
    mixed = Reading("other pixels", codes | {"tiny-other": "tiny-other"})
    both = mixed.verdict(WORSE, evidence)
    assert both is not None and both.status is not Status.NOT_RUN and both.seeds == 1
    assert Reading("the same", {name: name for name in ("tiny-digits", "tiny-other")}).verdict(WORSE, evidence) is None


def test_a_reading_beside_another_is_compared_with_that_one() -> None:
    """The main reading has 70 %, other pixels 80.5 %, and these with notes 50 %; 80 % are published."""
    notes = Reading("notes", {"tiny-digits": "tiny-codes"}, base=OTHERWISE)
    noted = replace(other_run(50.0), recipe="tiny-codes")
    found = results(
        *every_run()[:3],
        other_run(80.5),
        noted,
        paper=replace(PAPER, claims=(TRAIN, TEST), readings=(OTHERWISE, notes)),
    )
    assert [row[1:] for row in reading_rows(found)[1]] == [("2", "1", "0", "0"), ("2", "0", "1", "0")]
    reproduced = {title: verdicts["test-number"].status for title, verdicts in found.readings.items()}
    assert reproduced == {"other pixels": Status.REPRODUCED, "notes": Status.NOT_REPRODUCED}
    assert found.verdicts["test-number"].status is Status.NOT_REPRODUCED


def test_a_reading_that_changes_nothing_in_its_base_judges_nothing() -> None:
    same = Reading("the same pixels", OTHERWISE.recipes, base=OTHERWISE)
    assert same.verdict(TEST, Evidence((*every_run(), other_run(80.5)))) is None


def test_readings_that_do_not_reproduce_a_claim_are_counted_and_not_listed() -> None:
    letters, words = (Reading(title, OTHERWISE.recipes) for title in ("letters", "words"))
    missed = Reading("codes", {"tiny-digits": "tiny-codes"})
    noted = replace(other_run(50.0), recipe="tiny-codes")
    for readings, brief in (
        ((letters, missed, words), "reproduced with letters (80.5), words (80.5); not in 1 other reading."),
        ((missed,), "not reproduced in 1 other reading."),
    ):
        paper = replace(PAPER, claims=(TRAIN, TEST), readings=readings)
        found = results(*every_run()[:3], other_run(80.5), noted, paper=paper)
        assert readings_in_brief(found, TEST) == f"Read otherwise: {brief}"


def test_readings_are_not_mixed() -> None:
    evidence = Evidence((*every_run(), other_run(80.5)))
    assert OTHERWISE.verdict(WORSE, evidence) is None  # one of its two recipes has no counterpart
    assert OTHERWISE.verdict(UNITS, evidence) is None  # it needs no run
    without = OTHERWISE.verdict(TEST, Evidence(every_run()))
    assert without is not None and without.status is Status.NOT_RUN


def test_the_page_tells_both_verdicts(tmp_path: Path) -> None:
    html = paper_page(read(other_run(80.5)), tmp_path).html()
    brief, full = (
        "Read otherwise: reproduced with other pixels (80.5).",
        "With other pixels, ✓ reproduced: 80.5; published 80, allowed",
    )
    assert html.count(brief) == 2  # among what was not reproduced, and with the claim
    assert f"<summary>{brief}</summary>" in html and html.count(full) == 1
    assert "Read otherwise: not reproduced in 1 other reading." in html
    assert "With other pixels, ✗ not reproduced: 90; published 92.5" in html
    assert READINGS in html and FAILURES in html
    assert reading_rows(read(other_run(80.5)))[1] == [("other pixels", "2", "1", "0", "0")]
    assert reading_rows(read(other_run(50.0)))[1] == [("other pixels", "2", "0", "0", "0")]


def test_the_summary_tells_both_verdicts() -> None:
    text = summary(read(other_run(80.5)))
    assert "| other pixels | 2 | 1 | 0 | 0 |" in text and READINGS in text and FAILURES in text
    first, second, third = text[text.index("- `test-number`:") :].splitlines()[:3]
    assert "published 80" in first
    assert second == "  - Read otherwise: reproduced with other pixels (80.5)." and third.startswith(
        "  - What was tried"
    )


def test_what_cannot_be_judged_is_not_judged_in_a_reading_either() -> None:
    pictures = replace(TEST, rule=NotApplicable("Only pictures.", of=("tiny-digits",)))
    both = replace(TRAIN, rule=All((TRAIN.rule, Near(Final("tiny-codes", "sparsity"), 0.1, 0.01))))
    half = Reading("other codes", {"tiny-digits": "tiny-digits", "tiny-codes": "tiny-other"})
    paper = replace(PAPER, claims=(pictures, both), notes={}, readings=(OTHERWISE, half))
    found = results(*every_run(), paper=paper)
    assert found.verdicts[both.name].status is Status.NOT_REPRODUCED  # by the run that the second reading changes
    assert found.readings == {}


def test_a_claim_that_says_nothing_in_a_reading_is_not_judged_in_it() -> None:
    found = [*every_run(), other_run(80.5)]
    silent = replace(OTHERWISE, silent=frozenset({TEST.name}))
    judged, left = (
        set(results(*found, paper=replace(PAPER, readings=(reading,))).readings[OTHERWISE.title])
        for reading in (OTHERWISE, silent)
    )
    assert judged == {TRAIN.name, TEST.name} and left == {TRAIN.name}


def test_without_its_runs_a_reading_is_not_mentioned(tmp_path: Path) -> None:
    for text in (paper_page(read(), tmp_path).html(), summary(read())):
        assert "Read otherwise" not in text and "other pixels" not in text and FAILURES not in text


def test_two_readings_of_one_title_are_refused() -> None:
    with pytest.raises(SettingError, match="two readings of 'tiny' are called 'other pixels'"):
        replace(PAPER, readings=(OTHERWISE, OTHERWISE))


@pytest.mark.parametrize("recipes", [{"tiny-digits": "tiny-letters"}, {"tiny-letters": "tiny-other"}])
def test_a_reading_of_recipes_that_there_are_not_is_refused(recipes: dict[str, str]) -> None:
    with pytest.raises(SettingError, match="'tiny-letters', which there is not"):
        replace(PAPER, readings=(Reading("letters", recipes),))


def test_a_reading_that_is_silent_about_no_claim_is_refused() -> None:
    silent = replace(OTHERWISE, silent=frozenset({TEST.name, "test-letters"}))
    with pytest.raises(SettingError, match="'other pixels' names the claim 'test-letters', which there is not"):
        replace(PAPER, readings=(silent,))
