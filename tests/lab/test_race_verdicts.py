"""Verdicts, ranks and times, against SciPy and rows worked out by hand."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from scipy import stats

from lifted_bregman_lab.race.summary import overview_rows, race_markdown, race_tables, time_rows, value_rows
from lifted_bregman_lab.race.verdicts import (
    SIGMAS,
    average_ranks,
    chosen_rows,
    compare_seeds,
    finals,
    times_to_reference,
    verdicts,
)  # fmt: skip
from tests.lab.races import race_row

INF = math.inf


@pytest.mark.parametrize("seed", range(40))
def test_a_win_is_a_paired_t_statistic_of_at_least_3_09(seed: int) -> None:
    generator = np.random.default_rng(seed)
    ours, noise = generator.normal(1.0, 0.3, 5), generator.normal(0.0, 0.1, 5)
    rival = ours + noise + generator.choice([-1, 1]) * generator.uniform(0.0, 0.4)
    statistic = stats.ttest_rel(rival, ours).statistic
    expected = "win" if statistic >= 3.09 else "loss" if statistic <= -3.09 else "tie"
    assert compare_seeds(list(ours), list(rival)) == expected
    opposite = {"win": "loss", "loss": "win", "tie": "tie"}[expected]
    assert compare_seeds(list(rival), list(ours)) == opposite


def test_the_limit_is_the_one_in_a_thousand_point_of_the_normal_distribution() -> None:
    assert pytest.approx(stats.norm.isf(1e-3), abs=5e-3) == SIGMAS


def test_verdicts_without_spread_and_with_divergence() -> None:
    assert compare_seeds([1.0, 1.0], [1.5, 1.5]) == "win" and compare_seeds([1.5, 1.5], [1.0, 1.0]) == "loss"
    assert compare_seeds([1.0, 2.0], [1.0, 2.0]) == "tie"
    assert compare_seeds([1.0], [9.0]) is None
    assert compare_seeds([1.0, 1.0], [0.5, INF]) == "win" and compare_seeds([0.5, INF], [1.0, 1.0]) == "loss"
    assert compare_seeds([INF, 1.0], [1.0, INF]) == "tie"
    with pytest.raises(ValueError, match="same seeds"):
        compare_seeds([1.0, 2.0], [1.0])


def by_hand() -> list[dict[str, Any]]:
    """Two problems and three seeds.  AdamW was tuned to the rate 1 by the loss and to the rate 2 by the error."""
    rows = []
    for problem, scale in (("p", 1.0), ("q", 10.0)):
        tuned = {"part": "tune", "seed": 1000, "problem": problem}
        rows += [
            race_row("adamw", **(tuned | {"loss": loss, "error": error, "rate": rate}))
            for rate, loss, error in ((1.0, 0.1, 0.9), (2.0, 0.2, 0.3), (3.0, None, None))
        ]
        for seed in range(3):
            same = {"problem": problem, "seed": seed}
            trace = [[0, 0.0, 9.0, 1.0], [2, 1.0, scale * 0.4, 0.9], [4, 2.0, scale * 0.5, 0.8]]
            rows.append(race_row("adamw", **same, loss=scale * 0.5, error=0.8, rate=1.0, trace=trace))
            rows.append(race_row("adamw", **same, loss=scale * 0.6, error=0.2, rate=2.0, seconds=2.5))
            quick = [[0, 0.0, 9.0, 1.0], [2, 0.5, scale * 0.5, 0.9], [4, 5.0, scale * 0.1, 0.3]]
            mine = {"loss": scale * 0.1, "error": 0.25 + 0.1 * seed, "seconds": 5.0, "reference_seconds": 2.5}
            rows.append(race_row("lifted", **same, **mine, trace=quick))
            lost = None if problem == "q" and seed == 1 else 0.7 * scale
            rows.append(race_row("adam", **same, loss=lost, error=lost, trace=[[0, 0.0, 9.0, 1.0]]))
    return rows


def value(rows: list[dict[str, Any]], criterion: str, problem: str, opponent: str) -> list[float]:
    found = finals(rows, "short").set_index(["criterion", "problem", "opponent"]).sort_index()
    return list(found.loc[(criterion, problem, opponent)]["value"])


def test_each_criterion_takes_the_rate_that_was_tuned_for_it() -> None:
    rows = by_hand()
    assert value(rows, "loss", "q", "adamw") == [5.0] * 3 and value(rows, "error", "q", "adamw") == [0.2] * 3
    assert value(rows, "seconds", "p", "adamw") == [1.0] * 3 and value(rows, "seconds", "p", "lifted") == [2.0] * 3
    assert value(rows, "loss", "q", "adam") == [7.0, INF, 7.0]
    assert finals(rows, "long").empty


def test_of_equal_runs_the_last_one_counts() -> None:
    rows = [*by_hand(), race_row("lifted", 0, 0.01, problem="p", settings="lifted, of another day")]
    assert value(rows, "loss", "p", "lifted") == [0.01, 0.1, 0.1]
    assert len([row for row in chosen_rows(rows, "short")["loss"] if row["opponent"] == "lifted"]) == 6


def test_verdicts_of_a_race() -> None:
    found = verdicts(finals(by_hand(), "short"), "lifted").set_index(["criterion", "problem", "rival"])["verdict"]
    assert found["loss", "p", "adamw"] == "win" and found["loss", "q", "adam"] == "win"
    # error: adamw 0.2 against 0.25, 0.35, 0.45: mean -0.15, σ = 0.1, |t| = 2.6
    assert found["error", "p", "adamw"] == "tie" and found["seconds", "p", "adamw"] == "loss"


def test_average_ranks_are_those_of_scipy() -> None:
    ranks = average_ranks(finals(by_hand(), "short"))
    # Means over the seeds of lifted, adamw and adam, on p and on q; who diverged has an infinite error and time.
    for criterion, means in {
        "error": [(0.35, 0.2, 0.7), (0.35, 0.2, INF)],
        "seconds": [(2.0, 1.0, 1.0), (2.0, 1.0, INF)],
    }.items():
        expected = np.mean([stats.rankdata(values) for values in means], axis=0)
        assert list(ranks.loc[["lifted", "adamw", "adam"], criterion]) == list(expected)
    assert list(ranks["problems"]) == [2, 2, 2] and ranks.index[0] == "lifted"


def test_time_to_the_final_loss_of_adamw() -> None:
    """AdamW ends at 0.5, which it has at 1 s of 2 s.  Lifted has it at 0.5 s, while AdamW took 2.5 s beside it."""
    times = times_to_reference(by_hand(), "short")
    assert times.loc["p", "adamw"] == 0.5 and times.loc["p", "lifted"] == pytest.approx(0.2)
    assert times.loc["q", "adam"] == INF


def test_the_tables() -> None:
    rows = by_hand()
    header, lines = overview_rows(rows, "short")
    own = dict(zip(header, next(line for line in lines if line[0] == "adamw"), strict=True))
    assert own["rank by error"] == "1.0" and own["lifted by loss"] == "2-0-0" and own["lifted by error"] == "0-2-0"
    assert own["time of its steps"] == "1.00" and own["time to AdamW's loss"] == "0.50"
    assert value_rows(rows, "short", "loss") == (
        ("problem", "lifted", "adamw", "adam"),
        [("p", "0.1*", "0.5", "0.7"), ("q", "1*", "5", "7")],
    )
    scaled = [row | {"unit": 20.0} for row in rows]
    assert value_rows(scaled, "short", "error")[1][0] == ("p", "0.35 (7)", "0.2 (4)*", "0.7 (14)")
    assert time_rows(rows, "short")[1] == [("p", "0.20", "0.50", "-"), ("q", "0.20", "0.50", "-")]
    assert [caption.split()[0] for caption, _ in race_tables(rows)] == ["Short", "Training", "Error", "Time"]
    page = race_markdown(rows)
    assert "| p | 0.1* | 0.5 | 0.7 |" in page and "| adamw | AdamW, fused" in page and "0.0001, 0.0003" in page
