"""`lifted bench` as a user types it: a tiny race, its tables again, and what is refused before work."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from lifted_bregman_lab.commands import bench
from lifted_bregman_lab.race.opponents import OPPONENTS, QUICK, Opponent
from lifted_bregman_lab.race.problems import PROBLEMS
from lifted_bregman_lab.race.problems import QUICK as QUICK_PROBLEMS
from lifted_bregman_lab.race.store import Store
from lifted_bregman_lab.race.summary import race_markdown
from tests.cli.program import call
from tests.lab.races import TINY

Capture = pytest.CaptureFixture[str]
DOCS = Path(__file__).parents[2] / "docs"


@pytest.fixture
def tiny(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(PROBLEMS, TINY.name, TINY)
    monkeypatch.setitem(OPPONENTS, "needy", Opponent("needy", "T", needs=("no_such_module",)))


def test_a_tiny_race_and_its_tables_again(tiny: None, tmp_path: Path, capsys: Capture) -> None:
    rows = tmp_path / "new" / "rows.jsonl"
    command = ("bench", "race", "--problems", "tiny", "--opponents", "lifted,adam,needy", "--seeds", 2, "--rows", rows)
    called = call(capsys, *command)
    assert called.code == 0, called.err
    assert "'needy' is left out: it needs no-such-module, which the lab's extra 'race' installs" in called.err
    assert "tuning tiny, adamw, rate 0.003" in called.err and "tiny, short, seed 1" in called.err
    assert {row["opponent"] for row in Store.open(rows).select(part="race")} == {"lifted", "adam", "adamw"}
    assert "Training loss at the end" in called.out and "\nlifted " in called.out and "\nadam " in called.out
    page = tmp_path / "race.md"
    again = call(capsys, "bench", "show", rows, "--markdown", page)
    assert again.code == 0 and again.out == called.out
    assert page.read_text(encoding="utf-8") == race_markdown(Store.open(rows).rows.values())
    before = rows.read_text()
    assert call(capsys, *command).code == 0 and rows.read_text() == before


def test_names_are_refused_before_any_work(tmp_path: Path, capsys: Capture, monkeypatch: Any) -> None:
    monkeypatch.setattr(bench, "run_race", lambda *_: pytest.fail("work was done"))
    monkeypatch.setattr(bench, "fetch_missing", lambda *_: pytest.fail("work was done"))
    (tmp_path / "no.jsonl").write_text("{}\n")
    for options, code, words in (
        (("race", "--problems", "mnist-1k,nope"), 2, ("'nope'", "fashion-10k", "deep-narrow")),
        (("race", "--opponents", "adamm"), 2, ("'adamm'", "did you mean 'adam'", "schedule-free")),
        (("race", "--again", "nobody"), 2, ("'nobody'",)),
        (("race", "--budget", "huge"), 2, ("'huge'", "short", "long")),
        (("race", "--seeds", 0), 2, ("seeds is 0", "at least 1")),
        (("race", "--threads", 0), 2, ("threads is 0",)),
        (("race", "--rows", tmp_path), 2, ("is a folder",)),
        (("race", "--rows", tmp_path / "no.jsonl"), 4, ("holds no rows of a race",)),
        (("show", tmp_path / "none.jsonl"), 2, ("there is no file",)),
        (("show", DOCS / "races" / "mnist-1k.json", "--markdown", tmp_path / "m"), 2, ("does not end in .jsonl",)),
        (("show", tmp_path / "none.json"), 4, ("holds no race",)),
    ):
        called = call(capsys, "bench", *options)
        assert called.code == code and "Traceback" not in called.err, (options, called.err)
        for word in words:
            assert word in called.err, options


def test_the_quick_race_has_4_tables_4_opponents_and_3_seeds(capsys: Capture, monkeypatch: Any, tmp_path: Path) -> None:
    pytest.importorskip("sklearn")
    seen: list[Any] = []
    monkeypatch.setattr(bench, "run_race", lambda *arguments: bool(seen.append(arguments)) or True)
    called = call(capsys, "bench", "race", "--quick", "--rows", tmp_path / "r.jsonl")
    assert called.code == 0 and called.err == ""
    problems, opponents, settings, *_ = seen[0]
    assert tuple(p.name for p in problems) == QUICK_PROBLEMS and tuple(o.name for o in opponents) == QUICK
    assert (settings.seeds, settings.budget, settings.threads) == (3, "short", 1)
    assert not any(problem.sets for problem in problems)  # nothing is downloaded
    call(capsys, "bench", "race", "--budget", "both", "--problems", "iris", "--rows", tmp_path / "r.jsonl")
    assert [plan.budget for _, _, plan, *_ in seen[1:]] == ["short", "long"] and seen[1][2].seeds == 5


def test_a_race_that_is_ended_says_how_to_go_on(tiny: None, capsys: Capture, monkeypatch: Any, tmp_path: Path) -> None:
    monkeypatch.setattr(bench, "run_race", lambda *_: False)
    called = call(capsys, "bench", "race", "--problems", "tiny", "--rows", tmp_path / "r.jsonl")
    assert called.code == 130 and "the same command continues" in called.err


@pytest.mark.parametrize("name", ["deep-narrow", "fashion-10k", "fashion-1k", "fashion-classify", "mnist-1k"])
def test_races_of_the_first_format_are_shown(name: str, capsys: Capture) -> None:
    called = call(capsys, "bench", "show", DOCS / "races" / f"{name}.json")
    assert (
        called.code == 0 and called.out.startswith(f"{name}: ") and "time to the last training objective" in called.out
    )
    assert "reached by fractions of the time of adam" in called.out


@pytest.mark.parametrize("command", ["race", "show"])
def test_every_command_has_help_with_an_example(command: str, capsys: Capture) -> None:
    called = call(capsys, "bench", command, "--help")
    assert called.code == 0 and f"lifted bench {command} " in called.out


def test_the_documentation_names_all_problems_and_opponents() -> None:
    page = (DOCS / "race.md").read_text(encoding="utf-8")
    for name in (*PROBLEMS, *OPPONENTS):
        assert f"\n| `{name}` |" in page, name


def test_the_results_in_the_documentation_are_those_of_the_stored_rows() -> None:
    rows = Store.open(DOCS / "races" / "rows.jsonl").rows.values()
    assert (DOCS / "race-results.md").read_text(encoding="utf-8").endswith(race_markdown(rows))
