"""Every published number and finding, its rule and its verdict, on stored runs written by hand."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import fields, is_dataclass, replace
from typing import Any

import pytest
from torch import nn

from lifted_bregman_lab.paper.paper import paper
from lifted_bregman_lab.reproduction import (
    All,
    Between,
    Claim,
    Evidence,
    Less,
    Near,
    Priority,
    Quoted,
    RecipeRun,
    Status,
)
from lifted_bregman_lab.reproduction.exhibits import ShownTable
from lifted_bregman_lab.reproduction.quantities import AtEpoch, ChangeCorrelation, Final, OrInfinite
from tests.lab.paper.worlds import ONE, ROWS, stored, swapped, world

PAPER = paper()
CLAIMS = {claim.name: claim for claim in PAPER.claims}
TABLES = [claim for claim in PAPER.claims if claim.name.startswith("table")]
WORLD = world(PAPER)
FINDINGS = [claim for claim in PAPER.claims if not claim.name.startswith("table")]
QUOTED = {claim.name for claim in TABLES if claim.name.startswith("table1") and claim.name.endswith("classical")}
NOT_TRUE = {"sparse-ae-parameters": Status.ERRATUM, "denoising-10k-code-scale": Status.NOT_APPLICABLE}
NOT_TRUE |= dict.fromkeys(QUOTED, Status.NOT_APPLICABLE)


def parts(value: Any) -> Iterator[Any]:
    """A rule and everything that it is made of."""
    yield value
    if is_dataclass(value):
        for field in fields(value):
            entry = getattr(value, field.name)
            for one in entry if isinstance(entry, tuple) else (entry,):
                if is_dataclass(one):
                    yield from parts(one)


def test_there_is_a_claim_for_every_number_and_every_finding() -> None:
    assert len([name for name in CLAIMS if name.startswith("table1-")]) == 12
    assert len([name for name in CLAIMS if name.startswith("table2-")]) == 18
    assert len(FINDINGS) >= 50
    assert "table1-mnist-test-lifted" in CLAIMS
    assert all(claim.why and claim.statement.endswith(".") for claim in PAPER.claims)


def test_what_is_compared_is_called_by_its_name() -> None:
    """With the penalty on the code it is the objective, without it the error."""
    names = {"objective": "training objective", "loss": "training error", "validation_loss": "validation error"}
    of_one_run = [
        (rule.left_name.lower(), quantity.column)
        for claim in PAPER.claims
        for rule in parts(claim.rule)
        if isinstance(rule, Less)
        for quantity in (rule.left.quantity if isinstance(rule.left, OrInfinite) else rule.left,)
        if isinstance(quantity, AtEpoch | Final) and quantity.column in names
    ]
    assert len(of_one_run) > 50 and {column for _, column in of_one_run} == set(names)
    assert not [pair for pair in of_one_run if names[pair[1]] not in pair[0]]


def test_the_numbers_are_those_of_the_tables() -> None:
    for recipe, (train, test, *layers) in ROWS.items():
        _, key, method = recipe.split("-")
        expected = {f"table1-{key}-train-{method}": train, f"table1-{key}-test-{method}": test}
        expected |= {f"table2-{key}-layer{l}-{method}": share for l, share in enumerate(layers, start=1)}
        for name, value in expected.items():
            rule = CLAIMS[name].rule
            assert isinstance(rule, Quoted if name in QUOTED else Near)
            assert rule.value == value and rule.recipes == (f"{recipe}{ONE}",)
    assert len(QUOTED) == 4


def test_core_runs_answer_every_claim() -> None:
    core = {recipe.name for recipe in PAPER.recipes if recipe.priority is Priority.CORE}
    assert core == {name for claim in PAPER.claims for name in claim.recipes}
    shown = [one for exhibit in PAPER.exhibits for one in exhibit.shown if isinstance(one, ShownTable) and one.headline]
    assert len(shown) == 2 and {name for table in shown for name in table.recipes} < core


def test_only_what_was_not_run_by_one_number_is_judged_by_the_mean_image() -> None:
    for claim in PAPER.claims:
        large = any("10k" in name for name in claim.recipes)
        assert all(name.endswith(ONE) is not large for name in claim.recipes), claim.name


def test_claims_that_state_one_fact() -> None:
    facts: dict[str, list[str]] = {}
    for claim in PAPER.claims:
        facts.setdefault(claim.fact, []).append(claim.name)
    repeated = {fact: len(names) for fact, names in facts.items() if len(names) > 1}
    assert repeated == {
        "classification-mnist-classical-affine": 8,
        "sparse-ae-lbn-d-does-not-overfit-yet": 7,
        "denoising-10k-sparsity": 2,
    }


def test_every_epoch_that_a_claim_reads_is_recorded() -> None:
    recipes = {recipe.name: recipe.settings for recipe in PAPER.recipes}
    read = [part for claim in PAPER.claims for part in parts(claim.rule) if isinstance(part, AtEpoch)]
    assert len(read) > 50
    for quantity in read:
        settings = recipes[quantity.recipe]
        assert quantity.epoch <= settings.epochs
        assert quantity.epoch % settings.record_every == 0 or quantity.epoch == settings.epochs


def check(claim: Claim, evidence: Evidence, status: Status) -> None:
    verdict = claim.verdict(evidence)
    assert verdict.status is status, f"{claim.name}: {verdict.status.value}, {verdict.sentence}"
    assert verdict.sentence, claim.name


def test_all_claims_hold_on_synthetic_runs() -> None:
    for claim in PAPER.claims:
        check(claim, WORLD, NOT_TRUE.get(claim.name, Status.REPRODUCED))


def test_a_number_of_the_tables_is_refused_beyond_its_tolerance() -> None:
    tolerances = {claim.name: claim.rule.tolerance for claim in TABLES if isinstance(claim.rule, Near)}
    assert len(tolerances) == len(TABLES) - len(QUOTED) == 26 and max(tolerances.values()) <= 5.0
    for tolerance in set(tolerances.values()):
        for factor, status in ((0.99, Status.REPRODUCED), (1.01, Status.NOT_REPRODUCED)):
            for shift in (-factor * tolerance, factor * tolerance):
                shifted = world(PAPER, shift=shift)
                for claim in TABLES:
                    if tolerances.get(claim.name) == tolerance:
                        check(claim, shifted, status)


def test_no_tolerance_lets_an_affine_network_pass_for_a_lifted_one() -> None:
    lifted = [claim for claim in TABLES if claim.name.endswith("-lifted")]
    assert len(lifted) >= 8
    for claim in lifted:
        start = f"classify-{claim.name.split('-')[1]}"
        check(claim, swapped(WORLD, f"{start}-lifted{ONE}", f"{start}-classical{ONE}"), Status.NOT_REPRODUCED)


ALIKE = {"1k-isgd-reaches", "matches-isgd", "lifted-like-sgd", "equal-iterations", "similar-sparsity"}
COMPARED = [c for c in FINDINGS if len(c.recipes) == 2 and not any(word in c.name for word in ALIKE)]
OF_EACH = {"gradient-methods", "objective-falls", "10k-code"}  # said of each method alone


def test_a_comparison_fails_when_the_two_are_exchanged() -> None:
    compared = [claim for claim in COMPARED if not any(word in claim.name for word in OF_EACH)]
    assert len(compared) >= 30
    for claim in compared:
        check(claim, swapped(WORLD, *claim.recipes), Status.NOT_REPRODUCED)


def is_strict(claim: Claim) -> bool:
    rules = claim.rule.rules if isinstance(claim.rule, All) else (claim.rule,)
    return all(isinstance(rule, Less) for rule in rules)


def test_a_comparison_of_equals_fails() -> None:
    """Inequalities are strict: the same run on both sides is no evidence."""
    strict = list(filter(is_strict, COMPARED))
    assert len(strict) >= 30
    for claim in strict:
        one, other = claim.recipes
        run = stored(PAPER, one)
        check(claim, Evidence((run, replace(run, recipe=other))), Status.NOT_REPRODUCED)


SEVERAL = [c for c in FINDINGS if len(c.recipes) > 2 and c.name not in NOT_TRUE]


def may_diverge(claim: Claim) -> set[str]:
    """The recipes that a claim is only the better for if they diverge."""
    return {name for part in parts(claim.rule) if isinstance(part, OrInfinite) for name in part.recipes}


def test_a_finding_about_several_needs_each_of_them() -> None:
    assert len(SEVERAL) >= 14
    for claim in SEVERAL:
        for name in claim.recipes:
            check(claim, world(PAPER, without=name), Status.NOT_RUN)
            expected = Status.REPRODUCED if name in may_diverge(claim) else Status.NOT_REPRODUCED
            check(claim, world(PAPER, diverged=name), expected)


BEST = {
    "classification-mnist-sgd-best-rate": ("classify-mnist-sgd", "5e-4", "5e-3"),
    "classification-fashion-sgd-best-rate": ("classify-fashion-sgd", "5e-4", "5e-3"),
    "sparse-ae-gd-best-rate": ("sparse-ae-gd", "1e-2", "1e-1"),
    "sparse-ae-sgd-best-rate": ("sparse-ae-sgd", "1e-2", "1e-1"),
}


@pytest.mark.parametrize("name", BEST)
def test_the_best_rate_is_judged_against_one_below_and_one_above(name: str) -> None:
    claim, (ours, *rates) = CLAIMS[name], BEST[name]
    recipes = {recipe.name: recipe.settings.solver_settings for recipe in PAPER.recipes}
    others, ours = [f"{ours}-{rate}{ONE}" for rate in rates], ours + ONE
    low, high = (recipes[other]["learning_rate"] for other in others)
    assert low < recipes[ours]["learning_rate"] < high
    assert {recipes[recipe]["normalisation"] for recipe in claim.recipes} == {recipes[ours]["normalisation"]}
    assert claim.recipes == (ours, *others)
    assert may_diverge(claim) == set(claim.recipes[1:])
    for other in claim.recipes[1:]:
        assert claim.verdict(swapped(WORLD, ours, other)).status is Status.NOT_REPRODUCED
    diverged = claim.verdict(world(PAPER, diverged=claim.recipes[2]))
    assert diverged.status is Status.REPRODUCED and f"at {rates[1]} diverged" in diverged.sentence


def test_only_a_rate_that_is_compared_with_may_diverge() -> None:
    assert {claim.name for claim in PAPER.claims if may_diverge(claim)} == set(BEST)


def test_relative_changes_of_the_objective_are_what_falls_with_sparsity() -> None:
    """One large fall in the first epoch, while the sparsity grows, does not hide what 98 other changes show."""
    claim, evidence = CLAIMS["sparse-ae-objective-falls-with-sparsity"], WORLD
    found = [part for part in parts(claim.rule) if isinstance(part, ChangeCorrelation)]
    assert [(part.recipe, part.column, part.other) for part in found] == [
        (recipe, "objective", "sparsity") for recipe in (f"sparse-ae-sgd{ONE}", f"sparse-ae-gd{ONE}")
    ]

    def steep(run: RecipeRun) -> RecipeRun:
        first, *rest = run.rows
        return replace(run, rows=({**first, "objective": 40.0, "sparsity": 0.8}, *rest))

    changed = Evidence(tuple(steep(run) if run.recipe in claim.recipes else run for run in evidence.found))
    assert claim.verdict(changed).status is Status.REPRODUCED
    for part in found:
        assert replace(part, log=False).values(changed)[0] < 0.3 < part.values(changed)[0]


def test_epochs_are_told_in_words_that_agree() -> None:
    for claim in PAPER.claims:
        assert " 1 epochs" not in claim.verdict(WORLD).sentence
    assert "after 1 epoch of LBN" in CLAIMS["denoising-1k-lbn-faster-than-sgd"].verdict(WORLD).sentence


def test_sgd_stays_above_lbn_and_isgd_need_not() -> None:
    """Of ISGD-BP alone the paper says that it catches up."""
    epochs = {}
    for method in ("isgd", "sgd"):
        rule = CLAIMS[f"denoising-1k-lbn-faster-than-{method}"].rule
        epochs[method] = sorted({part.epoch for part in parts(rule) if isinstance(part, AtEpoch)})
    assert epochs == {"isgd": [1, 2, 5, 10], "sgd": [1, 2, 5, 10, 25, 50]}


def test_without_runs_nothing_is_claimed() -> None:
    for claim in PAPER.claims:
        assert claim.verdict(Evidence(())).status is NOT_TRUE.get(claim.name, Status.NOT_RUN)


def test_the_printed_number_of_parameters_is_not_that_of_the_network() -> None:
    layers = nn.Sequential(*(nn.Linear(784, 784) for _ in range(4)))
    verdict = CLAIMS["sparse-ae-parameters"].verdict(Evidence(()))
    assert verdict.measured == sum(p.numel() for p in layers.parameters()) == 2_461_760
    assert verdict.status is Status.ERRATUM and "3,136" in verdict.sentence


def test_several_seeds_are_judged_by_their_mean_and_their_spread_is_given() -> None:
    claim = CLAIMS["table1-mnist-test-lifted"]

    def found(*shifts: float) -> tuple[RecipeRun, ...]:
        return tuple(stored(PAPER, f"classify-mnist-lifted{ONE}", s, shift=shift) for s, shift in enumerate(shifts))

    runs = found(1.1, -0.3, -0.3, -0.3, -0.2)
    verdict = claim.verdict(Evidence(runs))
    assert verdict.status is Status.REPRODUCED and verdict.seeds == 5
    assert verdict.measured == pytest.approx(96.8) and verdict.spread == pytest.approx((1.52 / 4) ** 0.5)
    assert claim.verdict(Evidence(runs[:1])).status is Status.NOT_REPRODUCED
    wide = claim.verdict(Evidence(found(-2.0, 0.5, 2.1)))  # 97.0, 0.8 from the bound, and two standard errors are 2.4
    assert wide.status is Status.UNDECIDED and wide.spread == pytest.approx(2.0663979, rel=1e-6)


def test_bounds_of_findings_can_be_missed() -> None:
    """Of each bound in the rules there is a world on its wrong side: none is so wide that anything passes."""
    bounds = [part for claim in FINDINGS for part in parts(claim.rule) if isinstance(part, Between)]
    assert len(bounds) > 20
    for bound in bounds:
        assert bound.low is None or bound.high is None or bound.low < bound.high
    assert {b.high for b in bounds if b.what.startswith("the ratio")} == {1.15, 1.1}
