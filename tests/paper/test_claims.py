"""Every published number and finding, its rule and its verdict, on stored runs written by hand."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import fields, is_dataclass, replace
from typing import Any

import pytest
from torch import nn

from lifted_bregman.experiments.reproduction import All, Between, Claim, Evidence, Less, Near, Priority, Status
from lifted_bregman.experiments.reproduction.quantities import AtEpoch
from lifted_bregman_paper.paper import paper
from tests.paper.worlds import ROWS, stored, swapped, world

PAPER = paper()
CLAIMS = {claim.name: claim for claim in PAPER.claims}
TABLES = [claim for claim in PAPER.claims if claim.name.startswith("table")]
FINDINGS = [claim for claim in PAPER.claims if not claim.name.startswith("table")]
NOT_TRUE = {"sparse-ae-parameters": Status.NOT_REPRODUCED, "denoising-10k-code-scale": Status.NOT_APPLICABLE}


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


def test_the_numbers_are_those_of_the_tables() -> None:
    for recipe, (train, test, *layers) in ROWS.items():
        _, key, method = recipe.split("-")
        expected = {f"table1-{key}-train-{method}": train, f"table1-{key}-test-{method}": test}
        expected |= {f"table2-{key}-layer{l}-{method}": share for l, share in enumerate(layers, start=1)}
        for name, value in expected.items():
            rule = CLAIMS[name].rule
            assert isinstance(rule, Near) and rule.value == value and rule.recipes == (recipe,)


def test_core_runs_answer_every_claim_and_every_core_run_answers_one() -> None:
    core = {recipe.name for recipe in PAPER.recipes if recipe.priority is Priority.CORE}
    assert {name for claim in PAPER.claims for name in claim.recipes} == core


def test_every_epoch_that_a_claim_reads_is_recorded() -> None:
    recipes = {recipe.name: recipe.settings for recipe in PAPER.recipes}
    read = [part for claim in PAPER.claims for part in parts(claim.rule) if isinstance(part, AtEpoch)]
    assert len(read) > 50
    for quantity in read:
        settings = recipes[quantity.recipe]
        assert quantity.epoch <= settings.epochs
        assert quantity.epoch % settings.record_every == 0 or quantity.epoch == settings.epochs


@pytest.mark.parametrize("claim", PAPER.claims, ids=lambda claim: claim.name)
def test_in_a_world_as_the_paper_has_it_every_claim_is_reproduced(claim: Claim) -> None:
    verdict = claim.verdict(world(PAPER))
    assert verdict.status is NOT_TRUE.get(claim.name, Status.REPRODUCED), verdict.sentence
    assert verdict.sentence


@pytest.mark.parametrize("claim", TABLES, ids=lambda claim: claim.name)
def test_a_number_of_the_tables_is_refused_beyond_its_tolerance(claim: Claim) -> None:
    assert isinstance(claim.rule, Near)
    tolerance = claim.rule.tolerance
    assert tolerance <= 5.0
    for sign in (-1.0, 1.0):
        assert claim.verdict(world(PAPER, shift=0.99 * sign * tolerance)).status is Status.REPRODUCED
        assert claim.verdict(world(PAPER, shift=1.01 * sign * tolerance)).status is Status.NOT_REPRODUCED


@pytest.mark.parametrize("name", [claim.name for claim in TABLES if claim.name.endswith("-lifted")])
def test_no_tolerance_lets_an_affine_network_pass_for_a_lifted_one(name: str) -> None:
    key = name.split("-")[1]
    evidence = swapped(world(PAPER), f"classify-{key}-lifted", f"classify-{key}-classical")
    assert CLAIMS[name].verdict(evidence).status is Status.NOT_REPRODUCED


ALIKE = {"1k-isgd-reaches", "matches-isgd", "lifted-like-sgd", "equal-iterations", "similar-sparsity"}
COMPARED = [c for c in FINDINGS if len(c.recipes) == 2 and not any(word in c.name for word in ALIKE)]
OF_EACH = {"gradient-methods", "objective-falls", "10k-code"}  # said of each method alone


@pytest.mark.parametrize(
    "claim", [c for c in COMPARED if not any(w in c.name for w in OF_EACH)], ids=lambda claim: claim.name
)
def test_a_comparison_fails_when_the_two_are_exchanged(claim: Claim) -> None:
    assert claim.verdict(swapped(world(PAPER), *claim.recipes)).status is Status.NOT_REPRODUCED


def is_strict(claim: Claim) -> bool:
    rules = claim.rule.rules if isinstance(claim.rule, All) else (claim.rule,)
    return all(isinstance(rule, Less) for rule in rules)


@pytest.mark.parametrize("claim", filter(is_strict, COMPARED), ids=lambda claim: claim.name)
def test_a_comparison_of_equals_fails(claim: Claim) -> None:
    """Inequalities are strict: the same run on both sides is no evidence."""
    one, other = claim.recipes
    run = stored(PAPER, one)
    same = Evidence((run, replace(run, recipe=other)))
    assert claim.verdict(same).status is Status.NOT_REPRODUCED


SEVERAL = [c for c in FINDINGS if len(c.recipes) > 2 and c.name not in NOT_TRUE]


@pytest.mark.parametrize("claim", SEVERAL, ids=lambda claim: claim.name)
def test_a_finding_about_several_needs_each_of_them(claim: Claim) -> None:
    for name in claim.recipes:
        assert claim.verdict(world(PAPER, without=name)).status is Status.NOT_RUN
        assert claim.verdict(world(PAPER, diverged=name)).status is Status.NOT_REPRODUCED


def test_without_runs_nothing_is_claimed() -> None:
    for claim in PAPER.claims:
        assert claim.verdict(Evidence(())).status is NOT_TRUE.get(claim.name, Status.NOT_RUN)


def test_the_printed_number_of_parameters_is_not_that_of_the_network() -> None:
    layers = nn.Sequential(*(nn.Linear(784, 784) for _ in range(4)))
    verdict = CLAIMS["sparse-ae-parameters"].verdict(Evidence(()))
    assert verdict.measured == sum(p.numel() for p in layers.parameters()) == 2_461_760
    assert verdict.status is Status.NOT_REPRODUCED and "3,136" in verdict.sentence


def test_several_seeds_are_judged_by_their_mean_and_their_spread_is_given() -> None:
    claim = CLAIMS["table1-mnist-test-lifted"]
    shifts = (-2.0, 0.5, 2.1)
    runs = tuple(stored(PAPER, "classify-mnist-lifted", seed, shift=shift) for seed, shift in enumerate(shifts))
    verdict = claim.verdict(Evidence(runs))
    assert verdict.status is Status.REPRODUCED and verdict.seeds == 3
    assert verdict.measured == pytest.approx(97.0) and verdict.spread == pytest.approx(2.0663979, rel=1e-6)
    assert claim.verdict(Evidence(runs[:1])).status is Status.NOT_REPRODUCED


def test_bounds_of_findings_can_be_missed() -> None:
    """Of each bound in the rules there is a world on its wrong side: none is so wide that anything passes."""
    bounds = [part for claim in FINDINGS for part in parts(claim.rule) if isinstance(part, Between)]
    assert len(bounds) > 20
    for bound in bounds:
        assert bound.low is None or bound.high is None or bound.low < bound.high
    assert {b.high for b in bounds if b.what.startswith("the ratio")} == {1.15, 1.1}
