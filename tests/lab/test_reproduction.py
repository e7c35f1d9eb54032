"""Quantities, rules, papers and plans: numbers worked out by hand."""

from __future__ import annotations

import math
from dataclasses import replace

import pandas as pd
import pytest

from lifted_bregman.errors import CheckpointError, SettingError
from lifted_bregman_lab.reproduction import (
    All,
    Between,
    Cause,
    Claim,
    Counted,
    Evidence,
    Less,
    Near,
    NotApplicable,
    Paper,
    Priority,
    Quoted,
    RecipeRun,
    Rule,
    Status,
    choose_paper,
    find_papers,
    plan,
)
from lifted_bregman_lab.reproduction.quantities import (
    AtEnd,
    AtEpoch,
    ChangeCorrelation,
    Difference,
    Final,
    FinalOverLowest,
    LowestEpoch,
    Missing,
    OrInfinite,
    Oscillation,
    Quantity,
    Ratio,
    Scaled,
    SecondsPerEpoch,
    Smallest,
    spread,
)
from tests.lab.reproductions import CLASSIFIER, CODES, DIGITS, OTHER, PAPER


def run(recipe: str, values: list[float], seed: int = 0, others: list[float] | None = None) -> RecipeRun:
    """Rows of "a" (and "b") at epochs 2, 4, 6, ...; ten seconds an epoch."""
    rows = [{"epoch": 2.0 * k, "seconds": 20.0 * k, "a": a} for k, a in enumerate(values, start=1)]
    for row, b in zip(rows, others or [], strict=False):
        row["b"] = b
    return RecipeRun(recipe, seed, {}, {}, {}, tuple(rows), "FINISHED", "", 1.0, {"size": 7.0})


def evidence(*runs: RecipeRun) -> Evidence:
    return Evidence(runs)


ONE = run("one", [5.0, 2.0, 3.0, 2.5], others=[1.0, 0.0, 0.5, 0.25])
TWO = run("two", [10.0, 8.0, 4.0, 5.0])


def test_a_pause_does_not_make_epochs_longer() -> None:
    """Epochs of 3, 3, 5 and 100 seconds, the second row two epochs after the first."""
    rows = tuple({"epoch": e, "seconds": s} for e, s in ((1.0, 3.0), (3.0, 9.0), (4.0, 14.0), (5.0, 114.0)))
    assert SecondsPerEpoch("one").of(replace(ONE, rows=rows)) == (3.0 + 5.0) / 2


@pytest.mark.parametrize(
    ("quantity", "expected"),
    [
        (Final("one", "a"), 2.5),
        (AtEpoch("one", "a", 4), 2.0),
        (AtEnd("one", "size"), 7.0),
        (LowestEpoch("one", "a"), 4.0),
        (FinalOverLowest("one", "a"), 1.25),
        (Oscillation("one", "a"), 3.0 + 1.0 + 0.5 - 2.5),
        (Oscillation("two", "a"), 2.0 + 4.0 + 1.0 - 5.0),
        (SecondsPerEpoch("one"), 10.0),
        (OrInfinite(AtEpoch("one", "a", 4)), 2.0),
        (Difference(Final("two", "a"), Final("one", "a")), 2.5),
        (Ratio(Final("two", "a"), Final("one", "a")), 2.0),
        (Scaled(Final("one", "a"), -2.0, 10.0), 5.0),
        (Smallest((Final("two", "a"), Final("one", "a"), AtEpoch("one", "a", 2))), 2.5),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, Quantity) else "",
)
def test_a_quantity_is_what_it_says(quantity: Quantity, expected: float) -> None:
    assert quantity.values(evidence(ONE, TWO)).to_dict() == {0: expected}


def test_changes_correlate_by_the_textbook_formula() -> None:
    """Changes of a are (-3, 1, -½), of b (-1, ½, -¼); NumPy's own correlation is the oracle."""
    import numpy as np

    found = ChangeCorrelation("one", "a", "b").values(evidence(ONE))[0]
    assert found == pytest.approx(np.corrcoef([-3.0, 1.0, -0.5], [-1.0, 0.5, -0.25])[0, 1], rel=1e-12)
    relative = ChangeCorrelation("one", "a", "b", log=True).values(evidence(ONE))[0]
    logs = np.diff(np.log([5.0, 2.0, 3.0, 2.5]))
    assert relative == pytest.approx(np.corrcoef(logs, [-1.0, 0.5, -0.25])[0, 1], rel=1e-12) != pytest.approx(found)
    flat = run("flat", [1.0, 1.0, 1.0], others=[1.0, 2.0, 3.0])
    assert ChangeCorrelation("flat", "a", "b").values(evidence(flat)).to_dict() == {0: 0.0}


def claim(rule: Rule) -> Claim:
    return Claim("a-claim", "table1", "It is so.", rule, "because")


def judged(rule: Rule, *runs: RecipeRun) -> Status:
    return claim(rule).verdict(evidence(*runs)).status


@pytest.mark.parametrize(
    ("rule", "status"),
    [
        (Near(Final("one", "a"), 2.0, 0.5), Status.REPRODUCED),
        (Near(Final("one", "a"), 3.1, 0.5), Status.NOT_REPRODUCED),
        (Near(Final("one", "a"), 1.9, 0.5), Status.NOT_REPRODUCED),
        (Between(Final("one", "a"), "a", low=2.5), Status.REPRODUCED),
        (Between(Final("one", "a"), "a", low=2.6), Status.NOT_REPRODUCED),
        (Between(Final("one", "a"), "a", high=2.4), Status.NOT_REPRODUCED),
        (Between(Final("one", "a"), "a", 2.0, 2.6), Status.REPRODUCED),
        (Less(Final("one", "a"), Final("two", "a"), "one", "two"), Status.REPRODUCED),
        (Less(Final("two", "a"), Final("one", "a"), "two", "one"), Status.NOT_REPRODUCED),
        (Less(Final("one", "a"), Final("one", "a"), "one", "one"), Status.NOT_REPRODUCED),
        (Less(Final("one", "a"), Final("three", "a"), "one", "three"), Status.NOT_RUN),
        (Near(AtEpoch("one", "a", 3), 2.0, 0.5), Status.NOT_RUN),
        (Counted(3, 3, "things"), Status.REPRODUCED),
        (Counted(3, 4, "things"), Status.ERRATUM),
        (Quoted(Final("one", "a"), 2.5, "from elsewhere"), Status.NOT_APPLICABLE),
        (Quoted(Final("three", "a"), 9.0, "from elsewhere"), Status.NOT_APPLICABLE),
        (NotApplicable("nothing is said"), Status.NOT_APPLICABLE),
    ],
)
def test_a_rule_gives_the_verdict(rule: Rule, status: Status) -> None:
    assert judged(rule, ONE, TWO) is status


@pytest.mark.parametrize(
    ("rule", "brief"),
    [
        (Near(Final("one", "a"), 2.0, 0.5), "2.5"),
        (Between(Final("one", "a"), "a", low=2.6), "2.5"),
        (Less(Final("one", "a"), Final("two", "a"), "one", "two"), "2.5 against 5"),
        (All((Between(Final("one", "a"), "a", low=2.0), Between(Final("two", "a"), "b", high=4.0))), "1 of 2 hold"),
        (Counted(3, 4000, "things"), "4,000"),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, Rule) else "",
)
def test_a_verdict_in_brief(rule: Rule, brief: str) -> None:
    assert claim(rule).verdict(evidence(ONE, TWO)).brief == brief


def test_all_needs_each_and_says_which_does_not_hold() -> None:
    good, bad = Between(Final("one", "a"), "the good", low=2.0), Between(Final("two", "a"), "the bad", high=4.0)
    assert judged(All((good, good)), ONE, TWO) is Status.REPRODUCED
    verdict = claim(All((good, bad))).verdict(evidence(ONE, TWO))
    assert verdict.status is Status.NOT_REPRODUCED
    assert verdict.sentence.startswith("does not hold: the bad is 5") and "holds: the good is 2.5" in verdict.sentence


def test_seeds_are_paired_and_judged_by_their_mean() -> None:
    ones = [run("one", [a], seed) for seed, a in enumerate((1.0, 4.0, 100.0))]
    twos = [run("two", [a], seed) for seed, a in enumerate((2.0, 5.5))]
    verdict = claim(Less(Final("one", "a"), Final("two", "a"), "one", "two")).verdict(evidence(*ones, *twos))
    assert (verdict.status, verdict.measured, verdict.seeds) == (Status.REPRODUCED, 2.5, 2)
    assert verdict.spread == pytest.approx(4.5**0.5)
    alone = claim(Near(Final("one", "a"), 35.0, 0.1)).verdict(evidence(*ones))
    assert (alone.status, alone.measured, alone.seeds) == (Status.UNDECIDED, 35.0, 3)
    assert judged(Less(Final("one", "a"), Final("two", "a"), "", ""), ones[2], twos[0]) is Status.NOT_RUN


def seeds(recipe: str, *values: float) -> list[RecipeRun]:
    return [run(recipe, [value], seed) for seed, value in enumerate(values)]


# Values 9, 11, 10, 10: mean 10, s = √(2/3), two standard errors 2 √(2/3) / √4 = 0.8165.
FOUR = seeds("one", 9.0, 11.0, 10.0, 10.0)


@pytest.mark.parametrize(
    ("bound", "status"),
    [(10.82, Status.REPRODUCED), (10.81, Status.UNDECIDED), (9.19, Status.UNDECIDED), (9.18, Status.NOT_REPRODUCED)],
)
def test_a_bound_within_two_standard_errors_of_the_mean_is_undecided(bound: float, status: Status) -> None:
    quantity = Final("one", "a")
    assert judged(Between(quantity, "a", high=bound), *FOUR) is status
    opposite = {Status.REPRODUCED: Status.NOT_REPRODUCED, Status.NOT_REPRODUCED: Status.REPRODUCED}
    assert judged(Between(quantity, "a", low=bound), *FOUR) is opposite.get(status, status)
    # Published so that the upper or lower end of the tolerance is the bound.
    assert judged(Near(quantity, bound - 50.0, 50.0), *FOUR) is status
    assert judged(Near(quantity, bound + 50.0, 50.0), *FOUR) is opposite.get(status, status)


@pytest.mark.parametrize(
    ("others", "status"),
    [
        ((11.0, 13.0, 12.0, 12.0), Status.REPRODUCED),  # each 2 more: a difference without spread
        ((10.0, 14.0, 10.0, 10.0), Status.UNDECIDED),  # differences 1, 3, 0, 0: mean 1, two standard errors √2
        ((9.9, 12.1, 11.0, 11.0), Status.REPRODUCED),  # 0.9, 1.1, 1, 1, although the means overlap
        ((9.0, 11.0, 10.0, 10.0), Status.NOT_REPRODUCED),
    ],
)
def test_a_comparison_is_decided_by_the_differences_of_equal_seeds(others: tuple[float, ...], status: Status) -> None:
    rule = Less(Final("one", "a"), Final("two", "a"), "one", "two")
    assert judged(rule, *FOUR, *seeds("two", *others)) is status


def test_one_seed_is_never_undecided() -> None:
    assert judged(Between(Final("one", "a"), "a", high=5.0), *seeds("one", 5.0)) is Status.REPRODUCED


def test_all_is_undecided_where_no_part_fails_and_one_is_undecided() -> None:
    holds, open_, fails = (Between(Final("one", "a"), f"bound {bound}", high=bound) for bound in (12.0, 10.5, 9.0))
    verdict = claim(All((holds, open_))).verdict(evidence(*FOUR))
    assert verdict.status is Status.UNDECIDED and verdict.brief == "1 of 2 hold"
    assert verdict.sentence.startswith("is undecided: bound 10.5 is 10") and "holds: bound 12" in verdict.sentence
    assert judged(All((open_, fails, holds)), *FOUR) is Status.NOT_REPRODUCED


def test_the_smallest_is_taken_seed_by_seed() -> None:
    twos = seeds("two", 20.0, 1.0)
    found = Smallest((Final("one", "a"), Final("two", "a"))).values(evidence(*FOUR, *twos))
    assert found.to_dict() == {0: 9.0, 1: 1.0}
    with pytest.raises(Missing, match="one and two"):
        Smallest((Final("one", "a"), Final("two", "a"))).values(evidence(FOUR[2], *twos))


def test_a_diverged_run_reproduces_nothing() -> None:
    diverged = replace(ONE, outcome="DIVERGED", message="W is not finite.")
    verdict = claim(Near(Final("one", "a"), 2.5, 0.5)).verdict(evidence(diverged))
    assert verdict.status is Status.NOT_REPRODUCED and "W is not finite" in verdict.sentence


def test_a_run_that_diverged_is_above_any_other_where_that_is_asked_for() -> None:
    lost = replace(TWO, outcome="DIVERGED", rows=())
    quantity = OrInfinite(AtEpoch("two", "a", 8))
    assert quantity.recipes == ("two",) and quantity.values(evidence(lost)).to_dict() == {0: math.inf}
    rule = Less(Final("one", "a"), quantity, "one", "two")
    assert judged(rule, ONE) is Status.NOT_RUN
    verdict = claim(rule).verdict(evidence(ONE, lost))
    assert (verdict.status, verdict.measured, verdict.sentence) == (
        Status.REPRODUCED,
        2.5,
        "one 2.5, two diverged; 1 seed",
    )
    assert judged(rule, replace(ONE, outcome="DIVERGED"), TWO) is Status.NOT_REPRODUCED
    worse = Less(quantity, Final("one", "a"), "two", "one")
    assert judged(worse, ONE, lost) is Status.NOT_REPRODUCED
    low = [run("two", [0.0, 0.0, 0.0, 0.0], seed) for seed in (1, 2)]
    ones = [replace(ONE, seed=seed) for seed in range(3)]
    verdict = claim(rule).verdict(evidence(*ones, lost, *low))
    assert verdict.status is Status.REPRODUCED and "two diverged with 1 of 3 seeds; 3 seeds" in verdict.sentence
    assert judged(rule, *ones, *low) is Status.NOT_REPRODUCED


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        ([0.1, 0.1, 0.1], 0.0),
        ([0.7] * 5, 0.0),
        ([0.0, 0.0], 0.0),
        ([0.3, 0.1 + 0.2], 0.0),  # they differ in the last bit
        ([1.0, 1.0 + 1e-12], 1e-12 / math.sqrt(2.0)),
        ([1.0, 2.0, 3.0], 1.0),
        ([1.0], None),
        ([1.0, math.inf], None),
    ],
)
def test_a_spread_is_a_standard_deviation_and_never_rounding(values: list[float], expected: float | None) -> None:
    assert spread(pd.Series(values)) == (None if expected is None else pytest.approx(expected, rel=1e-3, abs=0.0))


def test_equal_seeds_have_no_spread_in_words() -> None:
    same = [run("one", [0.1], seed) for seed in range(3)]
    assert claim(Near(Final("one", "a"), 0.1, 0.5)).verdict(evidence(*same)).sentence.startswith("0.1 ± 0;")


def test_a_column_that_is_not_there_is_named() -> None:
    with pytest.raises(CheckpointError, match="no 'accuracy', only a, b, epoch"):
        Final("one", "accuracy").values(evidence(ONE))


def test_the_plan_answers_everything_once_then_other_seeds_then_readings() -> None:
    jobs = plan(PAPER.recipes)
    assert [job.name for job in jobs] == [
        "tiny-digits/0", "tiny-codes/0",
        "tiny-digits/1", "tiny-codes/1", "tiny-digits/2", "tiny-codes/2", "tiny-codes/3", "tiny-codes/4",
        "tiny-other/0",
    ]  # fmt: skip
    assert [job.name for job in plan(PAPER.recipes, Priority.CORE)] == ["tiny-digits/0", "tiny-codes/0"]
    assert len(plan(PAPER.recipes, Priority.SEEDS, seeds=2)) == 4
    assert {job.settings.seed for job in plan((DIGITS,))} == {0, 1, 2}
    with pytest.raises(SettingError, match="seeds is 0"):
        plan(PAPER.recipes, seeds=0)


def test_a_paper_knows_what_a_figure_needs() -> None:
    assert PAPER.figures == ("table1", "fig-codes")
    assert PAPER.recipes_of("table1") == (DIGITS, OTHER) and PAPER.recipes_of("all") == PAPER.recipes
    assert [c.name for c in PAPER.claims_of("fig-codes")] == ["codes-sparse"]
    for given, meant in {"tabel1": "table1", "digit-rate": "digits-rate", "tiny-oter": "tiny-other"}.items():
        with pytest.raises(SettingError, match=f"did you mean '{meant}'.*There are table1, fig-codes, all"):
            PAPER.recipes_of(given)


def test_a_paper_knows_claims_and_recipes_by_name() -> None:
    assert PAPER.recipes_of("tiny-other") == (OTHER,) and PAPER.recipes_of("codes-sparse") == (CODES,)
    assert PAPER.recipes_of("digits-rate") == (DIGITS, OTHER)
    for name in ("digits-rate", "tiny-other", "tiny-digits"):
        assert [claim.name for claim in PAPER.claims_of(name)] == ["digits-rate"]
    untouched = Claim("beauty", "fig-codes", "It is beautiful.", NotApplicable("No number."), "taste")
    paper = replace(PAPER, claims=(*PAPER.claims, untouched))
    assert paper.recipes_of("beauty") == () and paper.claims_of("beauty") == (untouched,)


def test_mistakes_in_a_paper_are_refused() -> None:
    with pytest.raises(SettingError, match="two recipes of 'x' are called 'tiny-codes'"):
        Paper("x", "", (CODES, CODES), ())
    for name in ("table1", "tiny-codes", "all"):
        with pytest.raises(SettingError, match=f"'{name}' of 'x' names two"):
            Paper("x", "", (DIGITS, CODES), (replace(PAPER.claims[1], name=name),))
    with pytest.raises(SettingError, match="needs the recipe 'tiny-other'"):
        Paper("x", "", (DIGITS,), PAPER.claims[:1])
    for changes, words in {
        "Bad Name": "lower case",
        "name": "belongs to no figure",
    }.items():
        with pytest.raises(SettingError, match=words):
            replace(CODES, name=changes, figures=())
    with pytest.raises(SettingError, match="asks for pictures"):
        replace(DIGITS, pictures=True)
    with pytest.raises(SettingError, match="must be CORE or READINGS"):
        replace(DIGITS, priority=Priority.SEEDS)
    first, second = PAPER.claims
    for other in ("digits", "codes-sparse"):
        with pytest.raises(SettingError, match=f"'digits-rate' states the same fact as '{other}'"):
            replace(PAPER, claims=(replace(first, same_as=other), replace(second, same_as="digits-rate")))
    with pytest.raises(SettingError, match="a cause for the claim 'digits'"):
        replace(PAPER, causes=(Cause("haste", "", ("digits",)),))
    with pytest.raises(SettingError, match="'codes-sparse' of 'tiny' has two causes"):
        replace(PAPER, causes=tuple(Cause(word, "", ("codes-sparse",)) for word in ("haste", "waste")))
    with pytest.raises(SettingError, match="tolerance is 0"):
        Near(Final("one", "a"), 1.0, 0.0)
    with pytest.raises(SettingError, match="both None"):
        Between(Final("one", "a"), "a")


def test_papers_are_found_through_their_entry_point() -> None:
    papers = find_papers()
    assert len(papers["wang2023lifted"].claims) >= 35
    assert choose_paper({"tiny": PAPER}) is PAPER
    with pytest.raises(SettingError, match="several papers"):
        choose_paper({"tiny": PAPER, "other": PAPER})
    with pytest.raises(SettingError, match="did you mean 'tiny'"):
        choose_paper({"tiny": PAPER}, "tny")
    with pytest.raises(SettingError, match="no package offers"):
        choose_paper({})


def test_settings_of_a_job_are_those_of_the_recipe_with_the_job_s_own_seed() -> None:
    (job,) = plan((OTHER,), threads=1)
    settings = job.settings
    assert (settings.solver_settings["learning_rate"], settings.seed, settings.threads) == (0.05, 0, 1)
    assert settings.hidden == CLASSIFIER.hidden
