"""What the report shows of the paper, and that README and documentation say what the stored rows say."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from statistics import mean

import pytest

from lifted_bregman.reports.page import Text
from lifted_bregman.reports.strips import Strips
from lifted_bregman_lab.paper.paper import paper
from lifted_bregman_lab.reproduction import Evidence, Priority
from lifted_bregman_lab.reproduction.exhibits import Drawing, ShownCharts, ShownImages, ShownTable
from lifted_bregman_lab.reproduction.report.charts import images_block
from lifted_bregman_lab.reproduction.report.results import Results, load_results
from lifted_bregman_lab.reproduction.report.summary import BEGIN, between_marks, headline, summary
from lifted_bregman_lab.reproduction.report.tables import shown_rows
from tests.lab.paper.worlds import ROWS
from tests.lab.paper.worlds import stored as world_run
from tests.lab.paper_stores import whole_world

ROOT = Path(__file__).parents[3]
PAPER = paper()
EXHIBITS = {exhibit.figure: exhibit for exhibit in PAPER.exhibits}


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
    measured = [row for row in rows if row[1] == "here, 2 seeds"]
    assert len(measured) == 3 and all(cell.endswith(" ✓") for row in measured for cell in row[2:])


@pytest.mark.parametrize("figure", ["table1", "table2"])
def test_the_second_table_is_the_other_width_with_every_seed(figure: str) -> None:
    first, second, *_ = EXHIBITS[figure].shown
    assert isinstance(first, ShownTable) and isinstance(second, ShownTable)
    methods = ("lifted-narrow", "sgd-narrow")
    assert set(second.recipes) == {f"classify-{key}-{method}" for key in ("mnist", "fashion") for method in methods}
    assert second.columns == first.columns and second.headline is first.headline is (figure == "table1")
    seeds = {recipe.name: len(recipe.seeds) for recipe in PAPER.recipes}
    assert all(seeds[name] >= 3 for name in second.recipes)


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
    expected = {f"{start}-{method}" for method in methods}
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
    assert caption("denoise-1k-sgd") == f"{shown.caption} {lost}: SGD-BP."
    both = caption("denoise-1k-isgd", without="denoise-1k-lbn")
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
        ("denoising-1k-lbn-finer-validation", "denoise-1k-lbn"),
        ("denoising-10k-lbn-below-isgd-validation", "denoise-10k-lbn"),
        ("sparse-ae-good-reconstructions", "sparse-ae-lbn-s"),
    ],
)
def test_notes_have_the_numbers_of_the_stored_rows(claim: str, recipe: str) -> None:
    """Of seed 0, so that other seeds do not change them."""
    run = stored().evidence.runs(recipe)[0]
    values = run.column("validation_loss")
    lowest = values.min()
    note = PAPER.notes[claim]
    assert f"lowest after {run.column('epoch')[values.idxmin()]:.0f} epochs" in note
    part = run.measures["validation_unexplained"] * lowest / values.iloc[-1] if claim.startswith("sparse") else lowest
    assert f"{part:.3g}" in note


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

    def paper(method: str) -> list[float]:
        return [*ROWS[f"classify-mnist-{method}"][:2], *ROWS[f"classify-fashion-{method}"][:2]]

    main, published = accuracies("sgd"), paper("sgd")
    assert "less than half a point" in note and "all four accuracies of SGD-BP are within a point" in note
    assert all(max(distances(main, accuracies(f"sgd-{rate}"))) < 0.5 for rate in ("5e-4", "5e-3"))
    assert max(distances(published, accuracies("sgd-two-hidden"))) < 1.0 < max(distances(published, main))

    (mnist, _, fashion, _), short = paper("lifted"), accuracies("lifted-two-hidden")
    here, there = distances(paper("lifted"), accuracies("lifted")), distances(paper("lifted"), short)
    told = f"{short[0]:.1f} % of the MNIST and {short[2]:.1f} % of the Fashion-MNIST train images right"
    assert f"{told}, published {mnist} and {fashion} %" in note
    assert there[0] > here[0] and there[2] > here[2]


@pytest.mark.parametrize("key", ["mnist", "fashion"])
def test_the_note_on_linear_nodes_has_those_of_the_stored_rows(key: str) -> None:
    runs = [run for seed, run in stored().evidence.runs(f"classify-{key}-lifted").items() if seed < 3]
    note = PAPER.notes[f"table2-{key}-layer3-lifted"]
    assert note == PAPER.notes[f"classification-{key}-lifted-nonlinear"]

    def told(column: str, epoch: int) -> str:
        first, second, third = (run.column(column)[run.column("epoch") == epoch].item() for run in runs)
        return f"{first:.1f}, {second:.1f} and {third:.1f} %"

    assert (
        f"{told('linear_3', 5)} of layer 3 act linearly after 5 epochs, and {told('linear_3', 100)} after 100" in note
    )
    assert f"{told('always_linear_3', 100)} of its units act linearly on all training images" in note


def stored() -> Results:
    """What this repository holds."""
    return load_results(ROOT / "results", PAPER.name)


def test_every_run_of_the_plan_is_stored_and_no_file_is_ignored() -> None:
    results = stored()
    assert {(run.recipe, run.seed) for run in results.evidence.found} == {
        (recipe.name, seed) for recipe in PAPER.recipes for seed in recipe.seeds
    }
    assert not results.ignored


def check_headline(readme: str, results: Results) -> str | None:
    """What is wrong with the headline of a README; None if nothing is."""
    if between_marks(readme) is None:
        return f"README.md lacks the headline table: add {BEGIN} ..., then make report"
    return None if between_marks(readme) == headline(results) else "README.md and the stored rows differ: make report"


def test_the_readme_says_what_the_stored_rows_say() -> None:
    assert check_headline((ROOT / "README.md").read_text(encoding="utf-8"), stored()) is None


def full_world() -> Results:
    """The runs that the claims need, and those that stand beside them in the headline."""
    results = whole_world(PAPER)
    shown = [one for exhibit in PAPER.exhibits for one in exhibit.shown if isinstance(one, ShownTable) and one.headline]
    left = dict.fromkeys(name for table in shown for name in table.recipes if not results.evidence.runs(name))
    return replace(results, evidence=Evidence((*results.evidence.found, *(world_run(PAPER, name) for name in left))))


def test_a_readme_that_drifts_would_be_noticed() -> None:
    full = full_world()
    assert "lifted Bregman, 784-64-64-64-10" in headline(full)
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
