"""The recipes: settings as the paper has them, and every one of them run end to end in its tiny variant."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path

import pytest
from rich.console import Console

from lifted_bregman.solvers import ImplicitSGD
from lifted_bregman.solvers.implicit_sgd import Coupling
from lifted_bregman.solvers.inner_steps import Corrected, LayerByLayer, Literal, Sweeps
from lifted_bregman_lab.paper.paper import paper
from lifted_bregman_lab.reproduction import (
    Deadline,
    Evidence,
    Job,
    Places,
    Priority,
    Recipe,
    ResultStore,
    Status,
    plan,
    work_through,
)
from lifted_bregman_lab.reproduction.packing import unpack
from tests.lab.paper.worlds import ONE

PAPER = paper()
READINGS = {reading.title: reading for reading in PAPER.readings}
RECIPES = {recipe.name: recipe for recipe in PAPER.recipes}
AFFINE_OR_NOT = ("lifted-nonlinear", "classical-affine")
# Steps that are printed and exceed 2 over the Lipschitz constant: what they do is a result.
MAY_DIVERGE = {name for name in RECIPES if "printed" in name and not name.startswith("classify")}


def of(name: str) -> tuple[object, ...]:
    """What the paper says about a run: samples, widths, batch, epochs, and the solver's numbers."""
    settings = RECIPES[name].settings
    given = settings.solver_settings
    numbers = tuple(given.get(key) for key in ("prox_weight", "inner_steps", "learning_rate", "normalisation"))
    return settings.data, settings.hidden, settings.batch_size, settings.epochs, settings.code_penalty, *numbers


WIDE, SPARSE = (784, 64, 64), (784, 784, 784)


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("classify-mnist-lifted", ("mnist", WIDE, 100, 100, None, 100.0 / 100, 15, None, None)),
        ("classify-fashion-lifted", ("fashion-mnist", WIDE, 100, 100, None, 100.0 / 100, 15, None, None)),
        ("classify-mnist-lifted-narrow", ("mnist", (64, 64, 64), 100, 100, None, 100.0 / 100, 15, None, None)),
        ("classify-mnist-lifted-two-hidden", ("mnist", (64, 64), 100, 100, None, 100.0 / 100, 15, None, None)),
        ("classify-fashion-sgd-two-hidden", ("fashion-mnist", (64, 64), 100, 100, None, None, None, 1e-3, "sum")),
        ("classify-mnist-lifted-mean", ("mnist", WIDE, 100, 100, None, 100.0, 15, None, None)),
        ("classify-fashion-lifted-printed", ("fashion-mnist", WIDE, 100, 100, None, 100.0, 15, None, None)),
        ("classify-mnist-sgd", ("mnist", WIDE, 100, 100, None, None, None, 1e-3, "sum")),
        ("classify-fashion-sgd-mean", ("fashion-mnist", WIDE, 100, 100, None, None, None, 1e-3, "mean")),
        ("sparse-ae-lbn-s", ("mnist-1k", SPARSE, 20, 100, 0.09, 1.0, 15, None, None)),
        ("sparse-ae-lbn-s-sum", ("mnist-1k", SPARSE, 20, 100, 0.09, 1.0 / 20, 15, None, None)),
        ("sparse-ae-lbn-d", ("mnist-1k", SPARSE, 1000, 100, 0.09, 0.0, 15, None, None)),
        ("sparse-ae-gd", ("mnist-1k", SPARSE, None, 100, 0.09, None, None, 4e-2, "mean")),
        ("sparse-ae-sgd", ("mnist-1k", SPARSE, 20, 100, 0.09, None, None, 3e-2, "mean")),
        ("denoise-1k-lbn", ("fashion-mnist-1k", SPARSE, 20, 50, 0.09, 0.5, 15, None, None)),
        ("denoise-1k-lbn-sum", ("fashion-mnist-1k", SPARSE, 20, 50, 0.09, 0.5 / 20, 15, None, None)),
        ("denoise-1k-isgd", ("fashion-mnist-1k", SPARSE, 20, 50, 0.09, 0.5, 15, 1e-3, "mean")),
        ("denoise-1k-sgd", ("fashion-mnist-1k", SPARSE, 20, 50, 0.09, None, None, 1e-3, "mean")),
        ("denoise-10k-lbn", ("fashion-mnist-10k", SPARSE, 200, 50, 0.055, 1.0, 30, None, None)),
        ("denoise-10k-lbn-sum", ("fashion-mnist-10k", SPARSE, 200, 50, 0.055, 1.0 / 200, 30, None, None)),
        ("denoise-10k-isgd", ("fashion-mnist-10k", SPARSE, 200, 50, 0.055, 1.0, 30, 4e-4, "mean")),
        ("denoise-10k-sgd", ("fashion-mnist-10k", SPARSE, 200, 50, 0.055, None, None, 4e-4, "mean")),
        ("denoise-10k-sgd-1500", ("fashion-mnist-10k", SPARSE, 200, 1500, 0.055, None, None, 4e-4, "mean")),
        ("denoise-10k-uae-lbn", ("fashion-mnist-10k", (784, 70, 784), 200, 50, 0.0, 1.0, 30, None, None)),
        ("denoise-10k-uae-sgd", ("fashion-mnist-10k", (784, 70, 784), 200, 50, 0.0, None, None, 4e-4, "mean")),
    ],
)
def test_settings_are_the_papers(name: str, expected: tuple[object, ...]) -> None:
    assert of(name) == expected


def test_readings_of_algorithm_1() -> None:
    def solver(name: str) -> ImplicitSGD:
        made = RECIPES[name].settings.make_solver()
        assert isinstance(made, ImplicitSGD)
        return made

    main = solver("classify-mnist-lifted")
    assert (main.order, main.reading, main.coupling) == (Sweeps(), Corrected(), Coupling.AFTER)
    printed = solver("classify-mnist-lifted-printed")
    assert (printed.order, printed.reading, printed.coupling) == (LayerByLayer(), Literal(), Coupling.BEFORE)
    for name, weight in {"sparse-ae-lbn-s": 1 / 20, "sparse-ae-lbn-d": 0.0, "denoise-1k-lbn": 0.5 / 20}.items():
        autoencoder = solver(f"{name}-printed")
        assert autoencoder.reading == Literal(batch_factor=True, bias_step=1.99, anchored_bias=False)
        assert (autoencoder.order, autoencoder.coupling) == (LayerByLayer(), Coupling.BEFORE)
        assert autoencoder.prox_weight == weight


def test_the_main_readings_and_their_variants_share_one_weight() -> None:
    """What differs in one choice does not differ in the scale of τ as well, unless its name says so."""
    for start in ("classify-mnist", "classify-fashion", "sparse-ae-lbn-s", "denoise-1k-lbn", "denoise-10k-lbn"):
        main = f"{start}-lifted" if start.startswith("classify") else start
        given = {name: RECIPES[name].settings.solver_settings for name in RECIPES if name.startswith(main)}
        others = {n: s["prox_weight"] for n, s in given.items() if not n.endswith(("-sum", "-mean", "-printed"))}
        assert len(others) >= 3 and set(others.values()) == {given[main]["prox_weight"]}


def test_every_core_recipe_of_the_shorter_experiments_has_a_counterpart_by_the_mean_image() -> None:
    reading = READINGS["images centred by the mean image"]
    core = {name for name, recipe in RECIPES.items() if recipe.priority is Priority.CORE}
    one_mean = {name for name in core if name.endswith(ONE)}
    assert set(reading.recipes) == core and len(one_mean) == 22
    for name, other in reading.recipes.items():
        main, found = RECIPES[name], RECIPES[other]
        assert name == (f"{other}{ONE}" if name in one_mean else other)
        assert main.settings == replace(found.settings, prepare="centre-together" if name in one_mean else "centre")
        assert (found.figures, found.pictures, found.relaxed) == (main.figures, main.pictures, main.relaxed)
        assert found.seeds == main.seeds
    judged = {claim.name for claim in PAPER.claims if reading.verdict(claim, Evidence(())) is not None}
    assert len(judged) == 72 and not [name for name in judged if "10k" in name or name.startswith("undercomplete")]


def test_only_the_initial_parameters_differ_from_those_of_the_mean_image() -> None:
    reading = READINGS["initial parameters of PyTorch"]
    rates = ("gd-1e-2", "gd-1e-1", "sgd-1e-2", "sgd-1e-1")
    expected = {f"sparse-ae-{name}" for name in ("gd", "sgd", "lbn-d", "lbn-s", *rates)}
    expected |= {f"denoise-1k-{name}" for name in ("sgd", "isgd", "lbn")}
    expected |= {f"classify-{key}-{name}" for key in ("mnist", "fashion") for name in ("sgd", "lifted")}
    changed = {name.removesuffix(ONE): other for name, other in reading.recipes.items()}
    assert set(changed) == expected
    for name, other in changed.items():
        main, found = RECIPES[name], RECIPES[other]
        assert found.settings == replace(main.settings, initialisation="torch")
        assert found.smoke == replace(main.smoke, initialisation="torch")
        assert (found.figures, found.pictures, found.relaxed) == (main.figures, main.pictures, main.relaxed)
        assert found.priority is Priority.READINGS and other == f"{name}-torch-init"


def test_without_its_half_the_squared_error_has_rates_twice_as_large() -> None:
    """Near 1e-3 the paper's grid has 5e-4 and 5e-3."""
    recipes = READINGS["rates for the squared error without ½"].recipes
    changed = {name: other for name, other in recipes.items() if "-sgd" in name}
    assert len(changed) == 6 and {n: o for n, o in recipes.items() if n not in changed} == {
        f"classify-{key}-{method}{ONE}": f"classify-{key}-{method}{ONE}"
        for key in ("mnist", "fashion")
        for method in ("lifted", "classical")
    }
    for name, other in changed.items():
        main, found = RECIPES[name].settings, RECIPES[other].settings
        doubled = dict(main.solver_settings) | {"learning_rate": 2.0 * main.solver_settings["learning_rate"]}
        assert found == replace(main, solver_settings=doubled)


def test_five_affine_layers_have_the_code_in_layer_3_with_a_threshold_of_its_own() -> None:
    reading = READINGS["five affine layers, the code in layer 3 with the threshold 0.01"]
    ((name, other),) = reading.recipes.items()
    main, found = RECIPES[name], RECIPES[other]
    assert name == f"sparse-ae-lbn-s{ONE}" and found.code_layer == 3 and found.settings.hidden == (784,) * 4
    assert found.settings.activation == ("relu", "relu", "soft-threshold:0.01", "relu")
    assert found.settings.code_penalty == main.settings.code_penalty and found.settings.solver == main.settings.solver
    assert dict(found.settings.solver_settings) == dict(main.settings.solver_settings)
    judged = [claim.name for claim in PAPER.claims if reading.verdict(claim, Evidence(())) is not None]
    assert judged == ["sparse-ae-sparsity", "sparse-ae-lbn-s-overfits-after-7"]


@pytest.mark.parametrize(
    ("title", "changed", "same", "absent"),
    [
        (
            "64 units in the first layer",
            {f"classify-mnist-{name}": f"classify-mnist-{name}-narrow" for name in ("sgd", "lifted", "classical")},
            (),
            ("classify-mnist-sgd-5e-4", "sparse-ae-lbn-s", "classify-mnist-sgd-narrow"),
        ),
        (
            "two hidden layers, of 64 units",
            {f"classify-fashion-{name}": f"classify-fashion-{name}-two-hidden" for name in ("sgd", "lifted")},
            (),
            ("classify-fashion-classical", "classify-fashion-sgd-5e-3"),
        ),
        (
            "τ beside the mean over the batch",
            {"classify-fashion-lifted": "classify-fashion-lifted-mean"},
            ("classify-fashion-sgd", "classify-fashion-classical"),
            ("classify-fashion-lifted-narrow", "denoise-1k-lbn"),
        ),
        (
            "τ beside the sum over the batch",
            {f"{name}": f"{name}-sum" for name in ("sparse-ae-lbn-s", "denoise-1k-lbn", "denoise-10k-lbn")},
            ("sparse-ae-sgd", "denoise-1k-isgd", "denoise-10k-sgd-1500"),
            ("sparse-ae-lbn-d", "denoise-10k-uae-lbn"),
        ),
        (
            "rates for the sum over the batch",
            {f"denoise-1k-{name}": f"denoise-1k-{name}-sum" for name in ("sgd", "isgd")},
            ("denoise-1k-lbn", "sparse-ae-lbn-s"),
            ("sparse-ae-gd", "classify-mnist-sgd"),
        ),
        (
            "loops, indices and steps as printed",
            {name: f"{name}-printed" for name in ("sparse-ae-lbn-s", "sparse-ae-lbn-d", "classify-mnist-lifted")},
            ("sparse-ae-gd", "sparse-ae-sgd-1e-1"),
            ("sparse-ae-lbn-d-long",),
        ),
        (
            "noise of 0.3",
            {name: f"{name}-noise-03" for name in ("denoise-1k-lbn", "denoise-10k-isgd", "denoise-1k-sgd")},
            (),
            ("denoise-10k-sgd-1500", "sparse-ae-sgd"),
        ),
    ],
)
def test_a_reading_changes_what_it_concerns_and_leaves_out_what_was_not_run(
    title: str, changed: dict[str, str], same: tuple[str, ...], absent: tuple[str, ...]
) -> None:
    """Names without the end of those that are centred by one number: the choice is run beside the mean image."""
    recipes = {name.removesuffix(ONE): other for name, other in READINGS[title].recipes.items()}
    expected = changed | {name: name for name in same}
    assert {name: recipes[name] for name in expected} == expected
    assert not set(absent) & set(recipes)


def test_two_hidden_layers_say_nothing_about_a_third() -> None:
    about = {f"table2-{key}-layer3-{name}" for key in ("mnist", "fashion") for name in ("classical", "lifted", "sgd")}
    about |= {f"classification-{key}-{what}" for key in ("mnist", "fashion") for what in AFFINE_OR_NOT}
    reading = READINGS["two hidden layers, of 64 units"]
    assert reading.silent == about
    judged = {claim.name for claim in PAPER.claims if reading.verdict(claim, Evidence(())) is not None}
    assert {"table2-mnist-layer2-lifted", "table1-fashion-test-sgd"} < judged and not judged & about


def test_every_reading_judges_claims_and_differs_from_its_base_by_settings_alone() -> None:
    for reading in PAPER.readings:
        base = {} if reading.base is None else reading.base.recipes
        before = {name: base.get(name, name) for name in reading.recipes}
        changed = {name: other for name, other in reading.recipes.items() if other != before[name]}
        judged = [claim for claim in PAPER.claims if reading.verdict(claim, Evidence(())) is not None]
        assert changed and judged and all(set(claim.recipes) & set(changed) for claim in judged)
        for name, other in changed.items():
            main, found = RECIPES[before[name]], RECIPES[other]
            assert (found.title.split(",")[0].split(" at ")[0], found.relaxed) == (
                main.title.split(",")[0].split(" at ")[0],
                main.relaxed,
            )
            assert found.settings != main.settings
            assert found.settings.epochs == (15 if found.code_layer else main.settings.epochs)


def test_rates_of_denoising_reach_over_the_largest_stable_one() -> None:
    """Sharpness about depth times the largest eigenvalue of the inputs' second moments, 80: stable below 2/80."""
    for size in ("1k", "10k"):
        published = RECIPES[f"denoise-{size}-sgd"].settings.solver_settings["learning_rate"]
        rates = [
            recipe.settings.solver_settings["learning_rate"]
            for recipe in PAPER.recipes
            if recipe.name.startswith(f"denoise-{size}-sgd-") and recipe.title.startswith("SGD-BP at")
        ]
        assert sorted(rates) == [1e-2, 2e-2, 5e-2, 1e-1]
        assert published < min(rates) < 2 / 80 < max(rates)


def test_all_images_are_centred_and_all_noise_is_published_or_visible() -> None:
    by_name = {recipe.name: (recipe.settings.prepare, recipe.smoke.prepare) for recipe in PAPER.recipes}
    together = {name for name, found in by_name.items() if found == ("centre-together",) * 2}
    assert together == {name for name in by_name if name.endswith(ONE) or "five-layers" in name}
    assert all(by_name[name] == ("centre", "centre") for name in by_name if name not in together)
    assert {recipe.settings.noise for recipe in PAPER.recipes} == {None, 1e-3, 0.1, 0.3}
    for recipe in PAPER.recipes:
        assert ("-noise-" in recipe.name) == (recipe.settings.noise in (0.1, 0.3))


def test_the_core_set_takes_less_than_nine_hours_and_every_figure_has_runs() -> None:
    """Without rates beside the best it takes less than eight."""
    core = [recipe for recipe in PAPER.recipes if recipe.priority is Priority.CORE]
    assert sum(recipe.seconds for recipe in core) <= 9 * 3600
    rates = ("-1e-1", "-1e-2", "-5e-3", "-5e-4")
    found = [recipe for recipe in core if not recipe.name.removesuffix(ONE).endswith(rates)]
    assert sum(recipe.seconds for recipe in found) <= 8 * 3600
    assert set(PAPER.figures) >= {"table1", "table2", "fig-sparse-ae", "fig-denoising-1k", "fig-undercomplete"}
    for figure in PAPER.figures:
        assert PAPER.recipes_of(figure)
    assert PAPER.recipes_of("all") == PAPER.recipes


# A classifier, its relaxed problem, a sparse autoencoder and a denoiser; lifted training and baselines.
FEW = ("classify-mnist-sgd", "classify-mnist-classical", "sparse-ae-sgd", "sparse-ae-lbn-s", "denoise-1k-lbn-noise-03")
_EVERY = pytest.param(tuple(RECIPES), marks=pytest.mark.long, id="every recipe")
few_and_every = pytest.mark.parametrize("smoke", [pytest.param(FEW, id="few"), _EVERY], indirect=True, scope="module")
every_recipe = pytest.mark.parametrize("smoke", [_EVERY], indirect=True, scope="module")


@pytest.fixture(scope="module")
def smoke(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Evidence:
    """The tiny variants of the named recipes, trained on the digits of scikit-learn."""
    pytest.importorskip("sklearn")
    folder = tmp_path_factory.mktemp("smoke")
    places = Places(folder / "results", folder / "work")
    recipes = [RECIPES[name] for name in request.param]
    jobs = plan(recipes, seeds=1, smoke=True, data_dir=folder / "no sets")
    work_through(jobs, places, Deadline(None), Console(quiet=True))
    store = ResultStore(places.results)
    evidence = store.read_all(jobs)
    assert store.ignored == {} and len(evidence.found) == len(recipes)
    return evidence


@few_and_every
def test_smoke_runs_finish_with_the_columns_that_claims_read(smoke: Evidence) -> None:
    for run in smoke.found:
        recipe = RECIPES[run.recipe]
        if recipe.name in MAY_DIVERGE:
            continue
        assert run.outcome == "FINISHED", run.message
        assert [row["epoch"] for row in run.rows] == ([1, 2, 3] if recipe.relaxed is None else [10, 20, 30, 40])
        classify = recipe.settings.task == "classify"
        names = {
            "seconds",
            "inner_iterations",
            "objective",
            "loss",
            "validation_loss",
            "sparsity",
            "validation_sparsity",
        }
        hidden = range(1, len(recipe.smoke.hidden) + 1)
        names |= {f"{word}_{l}" for l in hidden for word in ("linear", "always_linear", "validation_linear")}
        names |= {"accuracy", "validation_accuracy"} if classify else set()
        for row in run.rows:
            assert names <= set(row) and all(math.isfinite(value) for value in row.values())
            assert 0.0 <= row["sparsity"] <= 1.0 and row["loss"] <= row["objective"] + 1e-6
            for layer in hidden:
                assert 0.0 <= row[f"always_linear_{layer}"] <= row[f"linear_{layer}"] <= 100.0
        assert {"parameters", "train_unexplained", "validation_unexplained"} <= set(run.measures)


@few_and_every
def test_lifted_smoke_runs_of_the_main_reading_lower_the_objective(smoke: Evidence) -> None:
    main = {"reading": "corrected", "coupling": "after"}
    runs = [run for run in smoke.found if main.items() <= RECIPES[run.recipe].settings.solver_settings.items()]
    assert len(runs) > (1 if len(smoke.found) == len(FEW) else 10)
    for run in runs:
        assert run.rows[-1]["objective"] < run.rows[0]["objective"], run.recipe


@every_recipe
def test_classical_smoke_runs_become_affine_and_others_do_not(smoke: Evidence) -> None:
    """With τ beside the mean no layer is near affine; with the smaller weight of the sum the first two are not."""

    def linear(key: str, method: str) -> list[float]:
        (run,) = smoke.runs(f"classify-{key}-{method}").values()
        return [run.rows[-1][f"linear_{layer}"] for layer in (1, 2, 3)]

    for key in ("mnist", "fashion"):
        classical, lifted = linear(key, "classical"), linear(key, "lifted")
        assert min(classical) > 98.0 > 90.0 > max(linear(key, "lifted-mean"))
        assert max(lifted[:2]) < 90.0 and lifted[2] < 98.0 < classical[2]


@few_and_every
def test_pictures_and_the_code_of_the_first_image_are_stored(smoke: Evidence) -> None:
    (run,) = smoke.runs("denoise-1k-lbn-noise-03").values()
    images = {name: unpack(packed) for name, packed in run.pictures.items() if name != "code"}
    shown = [f"{part}_{what}" for part in ("train", "validation") for what in ("input", "target", "output")]
    assert sorted(images) == sorted(shown)
    assert all(image.shape == (6, 8, 8) for image in images.values())
    assert (images["train_input"] != images["train_target"]).any()
    code = run.pictures["code"]
    places = [place for place, _ in code["values"]]
    assert places == sorted(set(places)) and max(places) < code["width"] == 24
    (clean,) = smoke.runs("sparse-ae-sgd").values()
    assert clean.pictures["train_input"] == clean.pictures["train_target"]
    (classifier,) = smoke.runs("classify-mnist-sgd").values()
    assert classifier.pictures == {}


@few_and_every
def test_files_are_small(smoke: Evidence, tmp_path: Path) -> None:
    (run,) = smoke.runs("sparse-ae-lbn-s").values()
    job = Job(RECIPES["sparse-ae-lbn-s"], smoke=True)
    path = ResultStore(tmp_path).write(job, run)
    assert path.stat().st_size < 20_000


@every_recipe
def test_smoke_runs_do_not_answer_claims(smoke: Evidence) -> None:
    """Their epochs are too few for most, and their settings are not those of the recipes; no rule breaks on them."""
    statuses = {claim.name: claim.verdict(smoke).status for claim in PAPER.claims}
    assert statuses["sparse-ae-lbn-s-below-sgd"] is Status.NOT_RUN


def test_smoke_variants_keep_what_makes_a_recipe() -> None:
    for recipe in PAPER.recipes:
        full, tiny = recipe.settings, recipe.smoke
        assert (tiny.task, tiny.solver, tiny.noise, tiny.loss) == (full.task, full.solver, full.noise, full.loss)
        changed = {key for key, value in full.solver_settings.items() if tiny.solver_settings[key] != value}
        assert changed <= ({"inner_steps"} if recipe.relaxed is None else {"inner_steps", "prox_weight"})
        assert isinstance(recipe, Recipe)
