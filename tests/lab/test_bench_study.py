"""`lifted bench optimiser-or-architecture`: crossings, rates, the analysis of variance, files; and the stored page."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from scipy.stats import f_oneway
from torch import nn

from lifted_bregman.errors import CheckpointError, DataError
from lifted_bregman_lab import study
from lifted_bregman_lab.race.problems import RaceProblem
from lifted_bregman_lab.race.samples import RaceSamples
from lifted_bregman_lab.study import running, summary
from lifted_bregman_lab.study.running import Crossings, chosen_rate
from lifted_bregman_lab.study.variance import explain_variance
from tests.cli.program import call

DOCS = Path(__file__).parents[2] / "docs"
STORED = DOCS / "figures" / "optimiser_or_architecture.json"
Capture = pytest.CaptureFixture[str]


def by_least_squares(errors: np.ndarray) -> dict[str, float]:
    """Sums of squares as falls of the residual when a factor's indicators join a regression: another way to them."""
    i, j, k = (axis.ravel() for axis in np.indices(errors.shape))
    both = i * errors.shape[1] + j
    y, columns, found = errors.ravel(), [np.ones((errors.size, 1))], {}

    def residual() -> float:
        A = np.hstack(columns)
        return float(np.square(y - A @ np.linalg.lstsq(A, y, rcond=None)[0]).sum())

    last = residual()
    for name, factor in (("optimiser", i), ("architecture", j), ("optimiser x architecture", both), ("seed", k)):
        columns.append(np.eye(factor.max() + 1)[factor])
        found[name] = last - residual()
        last -= found[name]
    return found | {"rest": last}


def test_the_sums_of_squares_are_those_of_nested_regressions() -> None:
    errors = np.random.default_rng(0).normal(size=(4, 3, 5))
    errors += np.arange(4)[:, None, None] * 0.3 + np.arange(5) * 0.2
    table = explain_variance(errors)
    expected = by_least_squares(errors)
    assert {effect.source: effect.squares for effect in table} == pytest.approx(expected, rel=1e-10)
    assert [effect.source for effect in table] == list(expected)
    assert [effect.degrees for effect in table] == [3, 2, 6, 4, 44]
    assert sum(effect.share for effect in table) == pytest.approx(1.0)
    rest = table[-1].squares / table[-1].degrees
    for effect in table[:-1]:
        assert effect.F == pytest.approx(effect.squares / effect.degrees / rest)
        omega = (effect.squares - effect.degrees * rest) / (float(np.square(errors - errors.mean()).sum()) + rest)
        assert effect.beyond == pytest.approx(omega)


def test_p_is_that_of_scipys_analysis_where_only_one_factor_is_left() -> None:
    """With seeds and architectures that differ in nothing but noise, pooled into the rest by hand."""
    errors = np.random.default_rng(1).normal(size=(3, 2, 4)) + np.arange(3)[:, None, None]
    table = explain_variance(errors)
    pooled = sum(effect.squares for effect in table[1:]) / sum(effect.degrees for effect in table[1:])
    assert f_oneway(*errors.reshape(3, -1)).statistic == pytest.approx(table[0].squares / 2 / pooled)
    from scipy.stats import f

    assert table[0].p == pytest.approx(1.0 - f.cdf(table[0].F, 2, table[-1].degrees))


def test_effects_that_are_exact_leave_nothing_to_others() -> None:
    errors = np.zeros((2, 3, 4)) + np.array([0.0, 1.0, 5.0])[:, None]
    shares = {effect.source: effect.share for effect in explain_variance(errors)}
    assert shares == pytest.approx(
        {"optimiser": 0, "architecture": 1, "optimiser x architecture": 0, "seed": 0, "rest": 0}
    )
    with pytest.raises(DataError, match=r"shape \(2, 3\)"):
        explain_variance(errors[:, :, 0])
    with pytest.raises(DataError, match="finite"):
        explain_variance(np.full((2, 2, 2), np.nan))


def line_problem(losses: list[float], errors: list[float]) -> tuple[RaceProblem, RaceSamples, nn.Module]:
    """A network whose one number k chooses the k-th loss and error."""

    class Chooser(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.k = nn.Parameter(torch.tensor(0.0))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.k.expand(len(x))

    from lifted_bregman_lab.race.problems import CLASSES

    def pick(values: list[float]):
        return lambda z, y: torch.tensor(values[int(z[0])], dtype=torch.float64)

    task = replace(CLASSES, loss=pick(losses), error=pick(errors))
    data = RaceSamples(torch.zeros(3, 1), torch.zeros(3), torch.zeros(3, 1), torch.zeros(3), 1)
    problem = RaceProblem("line", "line", "images", lambda _: data, lambda _: Chooser(), task, 1, 4, 4)
    return problem, data, Chooser()


def test_levels_are_read_where_the_logarithm_of_the_loss_crosses_them_first() -> None:
    problem, data, model = line_problem([2.0, 0.4, 0.025, 0.5, 0.02], [0.9, 0.5, 0.1, 0.8, 0.05])
    seen = Crossings(problem, data, (0.1, 0.03, 0.021))
    for k, enough in enumerate((False, False, False, False, True)):
        model.k.data.fill_(k)
        assert seen.observe(model, 10 * k) is enough
    first, second, third = seen.found
    assert first.steps == pytest.approx(15.0) and first.error == pytest.approx(0.3)  # 0.1 is half way from 0.4 to 0.025
    t = math.log(0.4 / 0.03) / math.log(0.4 / 0.025)
    assert second.steps == pytest.approx(10 + 10 * t) and second.error == pytest.approx(0.5 - 0.4 * t)
    t = math.log(0.5 / 0.021) / math.log(0.5 / 0.02)  # a level that is not crossed on the way up again
    assert third.steps == pytest.approx(30 + 10 * t) and third.error == pytest.approx(0.8 - 0.75 * t)


def test_a_run_that_is_not_finite_ends() -> None:
    problem, data, model = line_problem([2.0, math.nan], [0.9, 0.5])
    seen = Crossings(problem, data)
    assert not seen.observe(model, 0)
    model.k.data.fill_(1)
    assert seen.observe(model, 1) and not seen.found


def test_the_rate_is_the_one_with_the_fewest_steps_or_else_the_lowest_loss() -> None:
    optimiser = study.OPTIMISERS["AdamW"]

    def chosen(*ends: tuple[float | None, float]) -> float | None:
        trials = [
            study.Trial("fashion-mnist-1k", "dense", "AdamW", rate, steps, loss)
            for rate, (steps, loss) in zip(optimiser.grid, ends, strict=True)
        ]
        return chosen_rate(study.Study({}, {}, trials), "fashion-mnist-1k", "dense", optimiser)

    assert chosen((300.0, 0.03), (200.0, 0.02), (None, 0.5)) == optimiser.grid[1]
    assert chosen((None, 0.2), (None, math.inf), (None, 0.1)) == optimiser.grid[2]
    assert chosen_rate(study.Study({}, {}), "fashion-mnist-1k", "dense", study.OPTIMISERS["ImplicitSGD"]) is None


def test_there_are_eight_optimisers_that_name_their_solvers() -> None:
    assert len(study.OPTIMISERS) == 8 and len(study.ARCHITECTURES) == 3 and len(study.SETS) == 1
    assert study.OPTIMISERS["ImplicitSGD"].described.startswith("ImplicitSGD(")


def small(data: str, architecture: str) -> RaceProblem:
    """Networks of the study for twelve pictures of 8 x 8, which every optimiser learns in a few epochs."""
    generator = torch.Generator().manual_seed(0)
    y = torch.arange(12) % 3
    X = (
        torch.randn(12, 64, generator=generator)
        + 2.0 * torch.nn.functional.one_hot(y, 3).repeat_interleave(22, 1)[:, :64]
    )
    samples = RaceSamples(X, y, X.flip(0), y.flip(0), 3)
    made = running_problem(data, architecture)
    return replace(made, load=lambda _: samples, batch_size=6, short=3, long=3)


running_problem = running.study_problem


def test_only_what_is_missing_is_run_and_every_optimiser_trains_every_network(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(running, "study_problem", small)
    kept: list[study.Study] = []
    found = study.run_study(["fashion-mnist-1k"], 1, keep=kept.append)
    assert len(found.runs) == 24 and len({run.key for run in found.runs}) == 24
    assert len(found.trials) == 3 * 6 * 3 and kept[-1] == found
    assert {run.rate is None for run in found.runs if not study.OPTIMISERS[run.optimiser].grid} == {True}
    assert sum(bool(run.crossings) for run in found.runs) > 12  # most learn the twelve samples within three epochs
    study.write_study(tmp_path / "file.json", found)
    assert study.read_study(tmp_path / "file.json") == found
    again = study.run_study(["fashion-mnist-1k"], 1, stored=replace(found, runs=found.runs[1:]))
    assert again.trials == found.trials and again.runs == (*found.runs[1:], found.runs[0])  # the same bits


def made_up(levels: tuple[float, ...] = study.LEVELS) -> study.Study:
    """Errors that depend on the architecture alone, but for a little noise; Muon never reaches the lowest level."""
    noise = np.random.default_rng(0)
    runs = []
    for data in study.SETS:
        for name in study.OPTIMISERS:
            for place, kind in enumerate(study.ARCHITECTURES):
                for seed in range(3):
                    there = levels[:-1] if name == "Muon" else levels
                    crossings = (
                        study.Crossing(level, 40.0, 0.1 + 0.05 * place + 1e-4 * noise.normal()) for level in there
                    )
                    runs.append(study.StudyRun(data, kind, name, seed, None, tuple(crossings)))
    optimisers = {name: one.described for name, one in study.OPTIMISERS.items()}
    return study.Study({"torch": "2.0", "processor": "abacus"}, optimisers, (), tuple(runs))


def test_optimisers_that_miss_a_level_are_left_out_there_and_shown() -> None:
    found = made_up()
    assert len(summary.reached(found, "fashion-mnist-1k", study.LEVELS[0])) == 8
    assert "Muon" not in summary.reached(found, "fashion-mnist-1k", study.LEVELS[-1])
    assert summary.error_rows(found, "fashion-mnist-1k")[1][-1] == ("Muon", *["reached by 0 of 3"] * 3)
    header, rows = summary.share_rows(found)
    assert rows[2][:3] == ("Fashion-MNIST", "0.03", "7") and rows[2][4] == "100 % (p < 0.001)"
    assert header[4] == "architecture"
    assert summary.spread_rows(found)[1][0][2] == "10.00"
    page = summary.page(found, "figures/name")
    assert "```{image} figures/name_dark.svg\n:class: only-dark" in page and "72 runs with 3 seeds" in page


def test_files_of_other_kinds_and_of_other_settings_are_refused(tmp_path: Path, capsys: Capture) -> None:
    (tmp_path / "other").write_text("{}")
    with pytest.raises(CheckpointError, match="other is not what 'lifted bench optimiser-or-architecture' writes"):
        study.read_study(tmp_path / "other")
    found = made_up()
    changed = replace(found, optimisers={**found.optimisers, "ImplicitSGD": "ImplicitSGD(2)"})
    study.write_study(tmp_path / "optimiser_or_architecture.json", changed)
    called = call(capsys, "bench", "optimiser-or-architecture", "--out", tmp_path)
    assert called.code != 0 and "runs of ImplicitSGD with ImplicitSGD(2)" in called.err and "--fresh" in called.err
    assert call(capsys, "bench", "optimiser-or-architecture", "--seeds", "1").code == 2


def test_tables_and_chart_of_the_page_are_those_of_the_stored_runs(tmp_path: Path) -> None:
    from lifted_bregman_lab.study import chart

    found = study.read_study(STORED)
    assert summary.seeds(found) == list(range(5)) and summary.sets(found) == list(study.SETS)
    assert STORED.with_suffix(".inc").read_text() == summary.page(found, "figures/optimiser_or_architecture")
    chart.write_charts(found, tmp_path, STORED.stem)
    for ending in (".svg", "_dark.svg"):
        assert (tmp_path / f"{STORED.stem}{ending}").read_bytes() == (
            STORED.parent / f"{STORED.stem}{ending}"
        ).read_bytes()
    text = (DOCS / "optimiser-or-architecture.md").read_text()
    assert "```{include} figures/optimiser_or_architecture.inc\n```" in text
