"""The README: its code runs, its links lead somewhere, and its tables and picture are those of the stored rows."""

from __future__ import annotations

import math
import re
from pathlib import Path
from statistics import fmean, median
from typing import Any

import pytest

from lifted_bregman.errors import SettingError
from lifted_bregman_lab.front.__main__ import filled, main, with_blocks
from lifted_bregman_lab.front.compared import NETWORKS, Compared, Spread
from lifted_bregman_lab.front.networks import SIGNALS, network_rows
from lifted_bregman_lab.front.picture import PANELS, curve, write_picture
from lifted_bregman_lab.front.tables import RIVALS, FrontEvidence, blocks, opening
from lifted_bregman_lab.race.opponents import OURS, REFERENCE
from lifted_bregman_lab.race.problems import PROBLEMS
from lifted_bregman_lab.race.store import final
from lifted_bregman_lab.text import markdown
from tests.lab.races import race_row

REPOSITORY = Path(__file__).parents[2]
DOCS = REPOSITORY / "docs"
README = (REPOSITORY / "README.md").read_text(encoding="utf-8")


@pytest.fixture(scope="module")
def evidence() -> FrontEvidence:
    return FrontEvidence.read(DOCS)


def test_the_code_in_the_readme_runs() -> None:
    code = re.findall(r"```python\n(.*?)```", README, re.DOTALL)
    assert len(code) == 2
    for block in code:
        exec(compile(block, "README.md", "exec"), {})
    (commands,) = re.findall(r"```console\n(.*?)```", README, re.DOTALL)
    rules = re.findall(r"^([\w-]+):", (REPOSITORY / "Makefile").read_text(encoding="utf-8"), re.MULTILINE)
    assert [line.split()[0:2] for line in commands.splitlines()] == [["make", "demo"], ["make", "test"]]
    assert {"demo", "test", "docs"} <= set(rules)


def test_the_links_of_the_readme_lead_somewhere() -> None:
    links = re.findall(r"\]\(([^)#]+)\)", README) + re.findall(r'src(?:set)?="([^"]+)"', README)
    assert {"docs/figures/evidence.svg", "docs/figures/evidence_dark.svg", "docs/when-not.md"} <= set(links)
    for link in links:
        assert link.startswith("https://") or (REPOSITORY / link).is_file(), link


def test_tables_and_picture_are_those_of_the_stored_rows(evidence: FrontEvidence, tmp_path: Path) -> None:
    """`make report` writes them again."""
    assert with_blocks(README, evidence) == README
    write_picture(evidence, tmp_path)
    for name in ("evidence.svg", "evidence_dark.svg"):
        assert (tmp_path / name).read_bytes() == (DOCS / "figures" / name).read_bytes(), name


def test_the_program_fills_the_readme_and_draws_the_picture(
    evidence: FrontEvidence, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(FrontEvidence, "read", staticmethod(lambda docs: evidence))
    (tmp_path / "figures").mkdir()
    emptied = README
    for name in blocks(evidence):
        emptied = filled(emptied, name, "")
    (tmp_path / "README.md").write_text(emptied, encoding="utf-8")
    main([str(tmp_path / "README.md"), str(tmp_path)])
    assert (tmp_path / "README.md").read_text(encoding="utf-8") == README != emptied
    written = sorted(path.name for path in (tmp_path / "figures").iterdir())
    assert written == ["evidence.svg", "evidence_dark.svg", "networks.inc"]


def test_what_the_first_sentence_says_holds_in_the_stored_rows(evidence: FrontEvidence) -> None:
    """About as well as a tuned AdamW on new samples, that is on four of five problems, and more wins than losses."""
    assert "on new samples it does about as well as with a tuned AdamW, and better more often than worse" in README
    for race in evidence.races.values():
        lower, equal, higher = race.verdicts(race.problems, "adamw")
        assert lower + equal >= 4 * higher and lower > higher


def test_the_table_of_networks_is_that_of_the_stored_rows(evidence: FrontEvidence) -> None:
    """`make report` writes it again."""
    text = (DOCS / "figures" / "networks.inc").read_text(encoding="utf-8")
    assert text == f"{markdown(network_rows(evidence))}\n"
    assert "LeNet-5" in text and "GPT" in text and "residual" in text


def test_what_the_pages_say_of_networks_holds_in_the_stored_rows(evidence: FrontEvidence) -> None:
    """README.md, networks.md, speed.md and when-not.md, in words."""
    race, long = evidence.races["short"], evidence.races["long"]

    def average(problem: str, name: str, criterion: str = "error", race: Compared = race) -> float:
        return fmean(final(row, criterion) for row in race.runs(criterion, problem, name))

    for problem in ("mnist-lenet", "cifar-lenet", "cifar-cnn", "shakespeare", "deep-autoencoder"):
        assert average(problem, OURS) < average(problem, REFERENCE)
    assert average("deep-autoencoder", OURS, "loss") == pytest.approx(
        0.75 * average("deep-autoencoder", REFERENCE, "loss"), rel=0.05
    )
    (ours,), (other,) = (long.runs("loss", "deep-autoencoder", name) for name in (OURS, REFERENCE))
    assert final(ours, "loss") == pytest.approx(1.25 * final(other, "loss"), rel=0.05)
    losses = {step: loss for step, _, loss, _ in ours["trace"]}
    assert losses[300] == pytest.approx(65.0, abs=0.5) and max(losses[k] for k in losses if k >= 300) > 80.0
    assert average("deep-autoencoder", OURS, race=long) > average("deep-autoencoder", REFERENCE, race=long)
    assert average("cifar-lenet", OURS) < 1.0 - 0.625  # published, with Adam
    assert average("residual-128", OURS) > average("residual-128", REFERENCE)
    assert average("residual-128", OURS, "loss") < 0.1 * average("residual-128", REFERENCE, "loss")
    step = race.step(["residual-128"], OURS)
    assert 2.5 < min(step.values) <= max(step.values) < 4.0  # a third of the time
    assert (
        1.0
        < min(race.time_to_reference(["shakespeare"]).values)
        <= max(race.time_to_reference(["shakespeare"]).values)
        < 1.15
    )
    assert 1.9 < min(race.step(["shakespeare"], OURS).values) <= max(race.step(["shakespeare"], OURS).values) < 2.0
    for problem in ("mnist-lenet", "cifar-lenet", "shakespeare", "residual-128"):
        assert average(problem, SIGNALS) == pytest.approx(average(problem, REFERENCE), rel=0.1)


def test_the_picture_shows_the_opponents_that_raced(evidence: FrontEvidence) -> None:
    shown = []
    for problem, budget, *_ in PANELS:
        shown.append({name for name in (OURS, *RIVALS) if evidence.races[budget].runs("error", problem, name)})
        assert {OURS, REFERENCE} <= shown[-1]
    assert set.union(*shown) == {OURS, *RIVALS}


def test_schedule_free_adamw_is_faster_on_small_layers(evidence: FrontEvidence) -> None:
    """The first of the lines that say what lifted training is not good for."""
    assert "schedule-free AdamW is faster" in README
    small = next(iter(NETWORKS.values()))
    ours, other = (evidence.races["short"].step(small, name).values for name in ("lifted", "schedule-free"))
    assert median(ours) > median(other)


def test_long_runs_have_the_epochs_that_the_readme_says(evidence: FrontEvidence) -> None:
    assert "A long run has five times the epochs of a short one, or four." in README
    assert {PROBLEMS[name].long / PROBLEMS[name].short for name in evidence.races["long"].problems} == {4.0, 5.0}


def test_every_problem_of_the_race_is_in_one_line() -> None:
    listed = [name for problems in NETWORKS.values() for name in problems]
    assert sorted(listed) == sorted(PROBLEMS)


def races() -> list[dict[str, Any]]:
    """Two problems with two seeds: ours takes twice AdamW's time, and is at AdamW's last loss after half of it."""
    rows = []
    for problem, error in (("iris", 0.5), ("wine", 1.0)):
        for seed in range(2):
            same = {"problem": problem, "seed": seed}
            rows.append(race_row("adamw", **same, loss=1.0, error=1.0, trace=[[0, 0.0, 9.0, 2.0], [4, 2.0, 1.0, 1.0]]))
            trace = [[0, 0.0, 9.0, 2.0], [2, 1.0 + seed, 1.0, 1.0], [4, 4.0, 0.5, error]]
            rows.append(race_row("lifted", **same, loss=0.5, error=error, seconds=4.0, trace=trace))
            rows.append(race_row("muon", **same, loss=0.1, error=0.25, seconds=6.0))
    rows[1]["trace"] = [[0, 0.0, 9.0, 2.0]]  # this one never shows AdamW's last loss
    return rows


def test_ratios_and_verdicts_of_rows_by_hand() -> None:
    race = Compared(races(), "short")
    both = ("iris", "wine")
    assert race.problems == both
    assert race.step(both, "lifted").values == (2.0,) * 4 and race.step(both, "muon").values == (3.0,) * 4
    assert race.time_to_reference(both).values == (math.inf, 1.0, 0.5, 1.0)
    assert race.error(both, "adamw").values == (0.5, 0.5, 1.0, 1.0)
    assert race.error(("wine",), "muon").values == (4.0, 4.0)
    assert race.verdicts(both, "adamw") == (1, 1, 0) and race.verdicts(both, "muon") == (0, 0, 2)
    assert Compared(races(), "long").problems == ()


def test_a_spread_is_the_median_with_the_least_and_the_most() -> None:
    assert Spread((3.0, 1.0, 2.0)).text() == "2.00 (1.00 to 3.00)"
    assert Spread((1.0, math.inf, 3.0)).text() == "2.00 (1.00 to 3.00) in 2 of 3"
    assert Spread((math.inf,)).text() == "in 0 of 1" and Spread(()).text() == "-"


def test_a_curve_is_the_median_over_seeds_in_units_of_adamws_time() -> None:
    traces = [[[0, 0.0, 9.0, 5.0], [2, 2.0, 1.0, error], [4, 4.0, 1.0, 1.0]] for error in (1.0, 4.0, 2.0)]
    runs = [race_row("lifted", seed, 1.0, trace=trace) for seed, trace in enumerate(traces)]
    runs[0]["reference_seconds"] = 1.0  # the others have 2
    assert curve(runs) == ([0.0, 1.0, 2.0], [5.0, 2.0, 1.0])


def test_the_verdict_counts_the_problems(evidence: FrontEvidence) -> None:
    small = FrontEvidence(
        {"short": Compared(races(), "short")}, evidence.denoising, evidence.detection, evidence.estimators
    )
    assert "in short runs lower on 1 of 2 problems, equal on 1, higher on 0." in opening(small)


def test_a_block_needs_one_place() -> None:
    text = "a\n<!-- x: begin -->\nold\n<!-- x: end -->\nb"
    assert filled(text, "x", r"new \1") == "a\n<!-- x: begin -->\nnew \\1\n<!-- x: end -->\nb"
    for wrong in ("nothing", text + text):
        with pytest.raises(SettingError, match="one place for 'x'"):
            filled(wrong, "x", "new")
