"""What the report shows of the paper, and that README and documentation say what the stored rows say."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import cache
from pathlib import Path
from statistics import mean

import pytest

from lifted_bregman.reports.page import Text
from lifted_bregman.reports.strips import Strips
from lifted_bregman_lab.paper.paper import paper
from lifted_bregman_lab.reproduction import Evidence, Near, Priority, Status, Verdict
from lifted_bregman_lab.reproduction.exhibits import Drawing, ShownCharts, ShownImages, ShownTable
from lifted_bregman_lab.reproduction.quantities import LowestEpoch
from lifted_bregman_lab.reproduction.report.charts import images_block
from lifted_bregman_lab.reproduction.report.results import JUDGED, NO_CAUSE, Results, load_results
from lifted_bregman_lab.reproduction.report.summary import BEGIN, between_marks, headline, summary
from lifted_bregman_lab.reproduction.report.tables import shown_rows
from tests.lab.paper.worlds import ONE, ROWS
from tests.lab.paper_stores import whole_world

ROOT = Path(__file__).parents[3]
PAPER = paper()
EXHIBITS = {exhibit.figure: exhibit for exhibit in PAPER.exhibits}
NOT_RUN_YET = {"sparse-ae-lbn-s-five-layers-001", "classify-mnist-sgd-2e-3-one-mean"}
NOT_RUN_YET |= {f"classify-{key}-sgd-1e-2-one-mean" for key in ("mnist", "fashion")}
"""Recipes of the plan that have not been run, which the report says."""


def test_every_table_and_figure_is_shown_with_its_runs() -> None:
    assert set(PAPER.figures) <= set(EXHIBITS)
    shown = {name for exhibit in PAPER.exhibits for name in exhibit.recipes}
    assert shown == {recipe.name for recipe in PAPER.recipes}
    for figure in PAPER.figures:
        core = {one.name for one in PAPER.recipes_of(figure) if one.priority is Priority.CORE and figure in one.figures}
        elsewhere = {name for other in PAPER.figures if other != figure for name in EXHIBITS[other].recipes}
        assert core <= set(EXHIBITS[figure].recipes) | elsewhere


@pytest.mark.parametrize(("figure", "columns"), [("table1", slice(0, 2)), ("table2", slice(2, 5))])
def test_the_first_table_is_the_papers(figure: str, columns: slice) -> None:
    """The rows "paper" have the published numbers, transcribed apart from the claims, in the order of the columns."""
    table = EXHIBITS[figure].shown[0]
    assert isinstance(table, ShownTable)
    _, rows = shown_rows(whole_world(PAPER), table)
    published = [row for row in rows if row[1] == "paper"]
    for method, row in zip(("classical", "lifted", "sgd"), published, strict=True):
        expected = [number for key in ("mnist", "fashion") for number in ROWS[f"classify-{key}-{method}"][columns]]
        assert [float(cell) for cell in row[2:]] == expected
    assert len([row for row in rows if row[1] == "here, 2 seeds"]) == 3
    assert table.headline and set(table.recipes) == {f"{recipe}{ONE}" for recipe in ROWS}


@pytest.mark.parametrize("figure", ["table1", "table2"])
def test_the_third_table_is_by_the_mean_image_with_every_seed(figure: str) -> None:
    first, _, third, *_ = EXHIBITS[figure].shown
    assert isinstance(first, ShownTable) and isinstance(third, ShownTable)
    methods = ("classical", "lifted", "sgd", "lifted-narrow", "sgd-narrow")
    assert set(third.recipes) == {f"classify-{key}-{method}" for key in ("mnist", "fashion") for method in methods}
    assert third.columns == first.columns and not third.headline
    seeds = {recipe.name: len(recipe.seeds) for recipe in PAPER.recipes}
    assert all(seeds[name] >= 3 for name in third.recipes)


def test_errors_are_drawn_on_log_axes_and_zeros_are_not() -> None:
    charts = [
        chart
        for exhibit in PAPER.exhibits
        for shown in exhibit.shown
        if isinstance(shown, ShownCharts)
        for chart in shown.charts
    ]
    assert len(charts) >= 15
    assert len({(chart.title, chart.x_label) for chart in charts}) == len(charts)
    for chart in charts:
        zeros = all(curve.column == "sparsity" for curve in chart.curves)
        assert (chart.log, chart.fraction) == (not zeros, zeros)


@pytest.mark.parametrize(
    ("figure", "start", "methods"),
    [
        ("fig-sparse-ae", "sparse-ae", {"lbn-s", "lbn-d", "sgd", "gd"}),
        ("fig-denoising-1k", "denoise-1k", {"lbn", "isgd", "sgd"}),
        ("fig-denoising-10k", "denoise-10k", {"lbn", "isgd", "sgd"}),
        ("fig-denoising-1500", "denoise-10k", {"lbn", "isgd", "sgd-1500"}),
        ("fig-undercomplete", "denoise-10k", {"lbn", "sgd", "uae-lbn", "uae-sgd"}),
    ],
)
def test_the_first_charts_have_the_curves_of_the_papers_figure(figure: str, start: str, methods: set[str]) -> None:
    charts, *others = EXHIBITS[figure].shown
    assert isinstance(charts, ShownCharts)
    expected = {f"{start}-{method}" + ("" if "10k" in start else ONE) for method in methods}
    for chart in charts.charts:
        assert {curve.recipe for curve in chart.curves} == expected
        levels = {curve.recipe for curve in chart.curves if curve.level}
        assert levels == ({"denoise-10k-lbn", "denoise-10k-isgd"} if figure == "fig-denoising-1500" else set())
    drawn = [curve.column for chart in charts.charts for curve in chart.curves]
    kinds = (
        {"loss", "validation_loss"} if figure == "fig-undercomplete" else {"objective", "validation_loss", "sparsity"}
    )
    assert set(drawn) == kinds
    parts = {
        one.part: set(one.recipes) for one in others if isinstance(one, ShownImages) and expected >= set(one.recipes)
    }
    if figure not in ("fig-undercomplete", "fig-denoising-10k"):
        assert parts == {"train": expected, "validation": expected}


def test_images_come_from_runs_that_store_them() -> None:
    pictured = {recipe.name for recipe in PAPER.recipes if recipe.pictures}
    noisy = {recipe.name for recipe in PAPER.recipes if recipe.settings.noise is not None}
    blocks = [one for exhibit in PAPER.exhibits for one in exhibit.shown if isinstance(one, ShownImages)]
    assert {block.part for block in blocks} == {"train", "validation"}
    for block in blocks:
        assert set(block.recipes) <= pictured
        assert all((name in noisy) is block.inputs for name in block.recipes)


def test_a_run_that_diverged_is_not_called_missing_where_its_images_would_be() -> None:
    full = whole_world(PAPER)
    shown = next(one for one in EXHIBITS["fig-denoising-1k"].shown if isinstance(one, ShownImages))

    def caption(*diverged: str, without: str = "") -> str:
        runs = [
            replace(run, outcome="DIVERGED", rows=(), pictures={}) if run.recipe in diverged else run
            for run in full.evidence.found
            if run.recipe != without
        ]
        block = images_block(replace(full, evidence=Evidence(tuple(runs))), shown)
        assert isinstance(block, Text | Strips)
        return block.text if isinstance(block, Text) else block.caption

    lost = "Diverged, and left no picture"
    assert caption() == shown.caption
    assert caption(f"denoise-1k-sgd{ONE}") == f"{shown.caption} {lost}: SGD-BP."
    both = caption(f"denoise-1k-isgd{ONE}", without=f"denoise-1k-lbn{ONE}")
    assert both == f"{shown.caption} Not run yet: LBN. {lost}: ISGD-BP."
    assert caption(*shown.recipes) == f"{shown.caption} {lost}: LBN, ISGD-BP, SGD-BP."


def test_the_theory_figures_are_drawn(tmp_path: Path) -> None:
    drawings = [one for one in EXHIBITS["theory"].shown if isinstance(one, Drawing)]
    assert len(drawings) == 2
    path = drawings[1].draw(tmp_path / "losses.png", True)
    assert path.read_bytes().startswith(b"\x89PNG")


def test_notes_are_on_claims_and_end_in_full_stops() -> None:
    assert set(PAPER.notes) <= {claim.name for claim in PAPER.claims}
    assert all(note.endswith(".") for note in PAPER.notes.values())


@pytest.mark.parametrize(
    ("claim", "recipe"),
    [
        ("denoising-1k-lbn-finer-validation", f"denoise-1k-lbn{ONE}"),
        ("denoising-10k-lbn-below-isgd-validation", "denoise-10k-lbn"),
    ],
)
def test_notes_have_the_numbers_of_the_stored_rows(claim: str, recipe: str) -> None:
    """Of seed 0, so that other seeds do not change them."""
    run = stored().evidence.runs(recipe)[0]
    values = run.column("validation_loss")
    lowest = values.min()
    note = PAPER.notes[claim]
    assert f"lowest after {run.column('epoch')[values.idxmin()]:.0f} epochs" in note
    assert f"{lowest:.3g}" in note


def test_the_note_on_zeros_has_those_of_the_stored_rows() -> None:
    zeros = stored().evidence.runs("denoise-10k-lbn")[0].column("sparsity").tolist()
    note = PAPER.notes["denoising-10k-sparsity"]
    assert f"{100 * zeros[12]:.1f} % after 13 epochs to {100 * zeros[-1]:.1f} % after {len(zeros)}" in note


def test_the_note_on_rates_says_what_the_stored_rows_say() -> None:
    note, evidence = PAPER.notes["table1-mnist-test-sgd"], stored().evidence

    def accuracies(method: str) -> list[float]:
        pairs = [(key, column) for key in ("mnist", "fashion") for column in ("accuracy", "validation_accuracy")]
        runs = [(evidence.runs(f"classify-{key}-{method}").values(), column) for key, column in pairs]
        return [100 * mean(run.column(column).iloc[-1] for run in found) for found, column in runs]

    def distances(first: Sequence[float], second: Sequence[float]) -> list[float]:
        return [abs(a - b) for a, b in zip(first, second, strict=True)]

    published = [*ROWS["classify-mnist-sgd"][:2], *ROWS["classify-fashion-sgd"][:2]]
    assert "less than half a point, and 5e-3 diverges on Fashion-MNIST" in note
    assert max(distances(accuracies(f"sgd{ONE}"), accuracies(f"sgd-5e-4{ONE}"))) < 0.5
    assert all(run.diverged for run in evidence.runs(f"classify-fashion-sgd-5e-3{ONE}").values())
    assert "all four accuracies of SGD-BP with two hidden layers are within a point" in note
    assert max(distances(published, accuracies("sgd-two-hidden"))) < 1.0
    assert max(distances(published, accuracies(f"sgd{ONE}"))) > 1.0

    mnist, fashion = ROWS["classify-mnist-lifted"][0], ROWS["classify-fashion-lifted"][0]
    short, main = accuracies("lifted-two-hidden"), accuracies(f"lifted{ONE}")
    told = f"{short[0]:.1f} % of the MNIST and {short[2]:.1f} % of the Fashion-MNIST train images right"
    assert f"{told}, published {mnist} and {fashion} %" in note
    for place, target in ((0, mnist), (2, fashion)):
        assert abs(short[place] - target) > abs(main[place] - target)


@pytest.mark.parametrize("key", ["mnist", "fashion"])
def test_the_note_on_linear_nodes_has_those_of_the_stored_rows(key: str) -> None:
    run = stored().evidence.runs(f"classify-{key}-lifted{ONE}")[0]
    note = PAPER.notes[f"table2-{key}-layer3-lifted"]

    def told(column: str, epoch: int) -> str:
        return f"{run.column(column)[run.column('epoch') == epoch].item():.1f} %"

    linear = f"{told('linear_3', 5)} of layer 3 act linearly after 5 epochs, and {told('linear_3', 100)} after 100"
    assert linear in note and f"{told('always_linear_3', 100)} of its units act linearly on all training" in note


def test_what_the_causes_say_is_what_the_stored_rows_say() -> None:
    evidence, claims = stored().evidence, {claim.name: claim for claim in PAPER.claims}
    texts = {cause.title: cause.text for cause in PAPER.causes}

    def last(recipe: str, column: str) -> float:
        return mean(run.column(column).iloc[-1] for run in evidence.runs(recipe).values())

    better = "networks classify better than the paper's"
    assert "All of these accuracies are above" in texts[better]
    for claim in stored().failed[better]:
        measured = claim.verdict(evidence).measured
        assert isinstance(claim.rule, Near) and measured is not None and measured > claim.rule.value
    assert "for the sum it diverges" in texts["ISGD-BP is slower"]
    assert all(run.diverged for run in evidence.runs("denoise-1k-isgd-sum").values())
    assert last(f"denoise-1k-isgd{ONE}", "objective") > last(f"denoise-1k-lbn{ONE}", "objective")
    assert "LBN-S ends with more zeros than the others" in texts["codes have other numbers of zeros"]
    zeros = {name: last(f"sparse-ae-{name}{ONE}", "sparsity") for name in ("lbn-s", "lbn-d", "sgd", "gd")}
    assert max(zeros, key=lambda name: zeros[name]) == "lbn-s"
    shares = [claim for name, claim in claims.items() if "-layer3-" in name and not name.endswith("classical")]
    assert len(shares) == 4
    for claim in shares:
        others = (reading.verdict(claim, evidence) for reading in PAPER.readings)
        found = [one.status for one in (claim.verdict(evidence), *others) if one and one.status in JUDGED]
        assert set(found) == {Status.NOT_REPRODUCED} and len(found) >= 4


def test_what_was_decided_later_names_what_the_stored_rows_show() -> None:
    """One number agrees better than the mean image, above all in the claims that are named."""
    results = stored()
    before = results.readings["images centred by the mean image"]

    def reproduced(verdicts: Mapping[str, Verdict]) -> set[str]:
        return {name for name in before if verdicts[name].status is Status.REPRODUCED}

    here, there = reproduced(results.verdicts), reproduced(before)
    assert len(here) > len(there)
    named = {"table2-mnist-layer1-sgd", "table2-fashion-layer1-sgd", "sparse-ae-gd-best-rate"}
    named |= {f"classification-{key}-sgd-best-rate" for key in ("mnist", "fashion")}
    assert named <= here and not named & there
    lowest = LowestEpoch(f"sparse-ae-lbn-s{ONE}", "validation_loss").values(results.evidence)[0]
    assert f"the epoch, {lowest:.0f}, after which LBN-S overfits" in PAPER.decided_later[0]


def test_every_claim_that_is_not_reproduced_has_a_cause() -> None:
    assert NO_CAUSE not in stored().failed


@cache
def stored() -> Results:
    """What this repository holds."""
    return load_results(ROOT / "results", PAPER.name)


def test_every_recipe_is_stored_and_no_file_is_ignored() -> None:
    """With its first seed, but for those that are named; what is missing is counted in the report."""
    results = stored()
    found = {run.recipe for run in results.evidence.found if run.seed == 0}
    assert {recipe.name for recipe in PAPER.recipes} - found == NOT_RUN_YET
    core = {recipe.name for recipe in PAPER.recipes if recipe.priority is Priority.CORE}
    assert {job.recipe.name for job in results.missing} <= core | NOT_RUN_YET and not results.ignored
    assert f"the other {len(results.missing)} would take about" in summary(results) or not results.missing


def check_headline(readme: str, results: Results) -> str | None:
    """What is wrong with the headline of a README; None if nothing is."""
    if between_marks(readme) is None:
        return f"README.md lacks the headline table: add {BEGIN} ..., then make report"
    return None if between_marks(readme) == headline(results) else "README.md and the stored rows differ: make report"


def test_the_readme_says_what_the_stored_rows_say() -> None:
    assert check_headline((ROOT / "README.md").read_text(encoding="utf-8"), stored()) is None


def test_a_readme_that_drifts_would_be_noticed() -> None:
    full = whole_world(PAPER)
    right = f"# Title\n{BEGIN}\n{headline(full)}\n<!-- headline of the reproduction: end -->\n"
    assert check_headline(right, full) is None
    assert check_headline(right.replace("96.8", "96.9", 1), full) is not None
    assert check_headline("# Title\n", full) is not None
    partly = Results(
        PAPER, Evidence(tuple(run for run in full.evidence.found if "fashion" not in run.recipe)), {}, full.jobs
    )
    assert check_headline(right, partly) is not None


def test_the_summary_in_the_documentation_says_what_the_stored_rows_say() -> None:
    results, text = stored(), (ROOT / "docs" / "reproduction-results.md").read_text(encoding="utf-8")
    assert all(claim.name in text for claim in PAPER.claims)
    assert text == summary(results), "docs/reproduction-results.md and the stored rows differ: make report"
