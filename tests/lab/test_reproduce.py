"""`lifted reproduce` as a user types it: what is missing is run, what is there is judged, and nothing is lost."""

from __future__ import annotations

import json
import signal
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from lifted_bregman_lab.commands import reproduce
from lifted_bregman_lab.reproduction import Paper
from lifted_bregman_lab.reproduction.store import settings_hash
from tests.cli.program import Called, Warm, call
from tests.data.server import closed_port
from tests.data.tiny import tiny as tiny_set
from tests.lab.reproductions import CLASSIFIER, DIGITS, PAPER
from tests.sampling import every

pytest.importorskip("sklearn")
Capture = pytest.CaptureFixture[str]
CODES = {signal.SIGINT: 130, signal.SIGTERM: 143}


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty folder to work in, and a tiny paper as the only one."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(reproduce, "find_papers", lambda: {PAPER.name: PAPER})
    return tmp_path


def lines(called: Called, word: str) -> list[str]:
    return [line for line in called.out.splitlines() if line.startswith(word)]


def test_runs_are_stored_and_claims_are_judged(here: Path, capsys: Capture) -> None:
    first = call(capsys, "reproduce", "table1", "--seeds", 1)
    assert first.code == 0, first.err
    assert sorted(path.relative_to(here).as_posix() for path in here.glob("results/*/*")) == [
        "results/tiny-digits/0.jsonl",
        "results/tiny-other/0.jsonl",
    ]
    (verdict,) = lines(first, "digits-rate")
    assert "reproduced" in verdict and "faster" in verdict and "1 seed" in verdict
    assert (
        "1 claim: 1 reproduced, 0 not reproduced, 0 undecided, 0 erratum, 0 not applicable, 0 not run yet." in first.out
    )
    assert "1 of 2: tiny-digits/0 (digits; about 12 min)" in first.err
    stored = {path: path.read_bytes() for path in here.glob("results/*/*")}
    again = call(capsys, "reproduce", "table1", "--seeds", 1)
    assert again.code == 0 and again.out == first.out and "tiny" not in again.err
    assert {path: path.read_bytes() for path in here.glob("results/*/*")} == stored


def test_all_the_seeds_of_what_is_wanted(here: Path, capsys: Capture) -> None:
    called = call(capsys, "reproduce", "all", "--priority", "seeds")
    assert called.code == 0, called.err
    files = sorted(path.relative_to(here / "results").as_posix() for path in here.glob("results/*/*"))
    codes = [f"tiny-codes/{seed}.jsonl" for seed in range(5)]
    assert files == [*codes, *(f"tiny-digits/{seed}.jsonl" for seed in range(3))]
    assert "5 seeds" in lines(called, "codes-sparse")[0]
    assert "not run yet" in lines(called, "digits-rate")[0]


def test_a_claim_or_a_run_by_its_name(here: Path, capsys: Capture) -> None:
    claim = call(capsys, "reproduce", "codes-sparse", "--seeds", 2)
    assert claim.code == 0, claim.err
    assert "2 seeds" in lines(claim, "codes-sparse")[0] and "1 claim: 1 reproduced" in claim.out
    run = call(capsys, "reproduce", "tiny-other", "--out", "again")
    assert run.code == 0 and "not run yet" in lines(run, "digits-rate")[0]
    files = [path.relative_to(here).as_posix() for path in here.rglob("*.jsonl")]
    assert sorted(files) == ["again/tiny-other/0.jsonl", "results/tiny-codes/0.jsonl", "results/tiny-codes/1.jsonl"]
    nothing = call(capsys, "reproduce", "tiny-other", "--priority", "core")
    assert nothing.code == 2 and "tiny-other has only readings" in nothing.err


def test_a_run_that_no_claim_rests_on(here: Path, capsys: Capture, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reproduce, "find_papers", lambda: {"x": replace(PAPER, claims=PAPER.claims[1:])})
    called = call(capsys, "reproduce", "tiny-other")
    assert called.code == 0 and "No claim is judged by tiny-other; what is stored of it is in results." in called.out


def test_the_list_says_how_everything_stands(here: Path, capsys: Capture) -> None:
    before = call(capsys, "reproduce", "--list")
    assert before.code == 0 and list(here.iterdir()) == []
    assert "0 of 3" in lines(before, "tiny-digits")[0] and "12 min" in lines(before, "tiny-digits")[0]
    assert lines(before, "core:") == ["core: 2 runs, 12 min left on one thread"]
    call(capsys, "reproduce", "table1", "--priority", "core")
    after = call(capsys, "reproduce", "--list")
    assert "1 of 3" in lines(after, "tiny-digits")[0]
    assert lines(after, "core:") == ["core: 2 runs, 1 s left on one thread"]


def test_time_that_is_over_is_no_failure(here: Path, capsys: Capture) -> None:
    called = call(capsys, "reproduce", "all", "--minutes", 1e-9)
    assert called.code == 0
    assert "9 of 9 runs are left" in called.out and "The same command continues." in called.out
    assert not (here / "results").exists()
    assert "not run yet" in lines(called, "digits-rate")[0]


def test_smoke_runs_are_kept_apart_and_judge_nothing(here: Path, capsys: Capture) -> None:
    called = call(capsys, "reproduce", "all", "--smoke")
    assert called.code == 0, called.err
    assert not (here / "results").exists()
    assert "smoke runs in out/smoke/results: 3 finished; claims are not judged by them." in called.out
    judged = call(capsys, "reproduce", "all", "--out", "out/smoke/results", "--minutes", 1e-9)
    assert "reproduced" not in lines(judged, "digits-rate")[0]
    assert judged.err.count("warning:") == 3 and "it was run with epochs = 2" in judged.err


def test_a_file_with_a_wrong_hash_is_named_and_run_again(here: Path, capsys: Capture) -> None:
    call(capsys, "reproduce", "table1", "--priority", "core", "--seeds", 1)
    path = here / "results" / "tiny-digits" / "0.jsonl"
    header, *others = path.read_text().splitlines()
    entries: dict[str, Any] = json.loads(header)
    assert entries["hash"] == settings_hash(entries["settings"])
    path.write_text("\n".join([json.dumps(entries | {"hash": "f" * 16}), *others]) + "\n")
    called = call(capsys, "reproduce", "table1", "--priority", "core", "--seeds", 1)
    assert called.code == 0 and "results/tiny-digits/0.jsonl" in called.err and "hash" in called.err
    assert json.loads(path.read_text().splitlines()[0])["hash"] == entries["hash"]


def test_missing_data_leads_to_the_sentence_that_says_how_to_get_it(
    here: Path, capsys: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    from lifted_bregman.data import _places, registry

    monkeypatch.setenv(_places.CACHE_VARIABLE, str(here / "cache"))
    monkeypatch.setattr(registry, "SETS", registry.SETS)
    before = dict(registry.SETS)
    try:
        tiny_set(mirrors=(closed_port(),))
        recipe = replace(DIGITS, settings=replace(CLASSIFIER, data="tiny", validation="test"))
        monkeypatch.setattr(reproduce, "find_papers", lambda: {"x": Paper("x", "", (recipe,), ())})
        called = call(capsys, "reproduce", "table1")
    finally:
        registry.SETS.clear()
        registry.SETS.update(before)
    assert called.code == 3 and "'tiny' cannot be had" in called.err and "--data-dir" in called.err
    assert not (here / "results").exists() and not (here / "out").exists()


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("tabel1",), "did you mean 'table1'?"),
        (("table1", "--priority", "corn"), "did you mean 'core'?"),
        (("table1", "--paper", "tny"), "did you mean 'tiny'?"),
        (("table1", "--minutes", "0"), "minutes"),
        (("table1", "--seeds", "0"), "seeds is 0"),
        (("table1", "--threads", "0"), "threads is 0"),
    ],
)
def test_mistakes_are_refused_before_any_work(
    arguments: tuple[str, ...], said: str, here: Path, capsys: Capture
) -> None:
    called = call(capsys, "reproduce", *arguments)
    assert called.code == 2 and said in called.err and called.out == ""
    assert list(here.iterdir()) == []


def test_a_folder_that_is_a_file_is_refused(here: Path, capsys: Capture) -> None:
    (here / "results").write_text("")
    called = call(capsys, "reproduce", "table1")
    assert called.code == 2 and "which is a file" in called.err


@pytest.fixture(scope="module")
def warm(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Warm]:
    server = Warm(tmp_path_factory.mktemp("warm"))
    yield server
    server.close()


def smoke(folder: Path) -> list[object]:
    """Four short runs, of which two are of Algorithm 1, with 18 steps each."""
    places = ["--out", folder / "rows", "--work", folder / "work"]
    return ["reproduce", "fig-undercomplete", "--smoke", "--priority", "core", "--data-dir", folder / "none", *places]


def rows(folder: Path) -> dict[str, list[dict[str, float]]]:
    found = {}
    for path in sorted((folder / "rows").glob("*/*.jsonl")):
        entries = [json.loads(line) for line in path.read_text().splitlines()[1:-1]]
        found[path.parent.name] = [{k: v for k, v in row.items() if k != "seconds"} for row in entries]
    return found


@pytest.fixture(scope="module")
def undisturbed(warm: Warm, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("undisturbed")
    done = warm.start(*smoke(folder)).wait()
    assert done.code == 0, done.err
    return folder


@pytest.mark.parametrize("number", every(list(CODES), 2), ids=lambda number: number.name)
def test_a_signal_stops_it_and_the_same_command_goes_on(
    number: signal.Signals, warm: Warm, undisturbed: Path, tmp_path: Path
) -> None:
    whole, cut = undisturbed, tmp_path
    stopped = warm.start(*smoke(cut), pause="step", at=8)
    stopped.send(number)
    ended = stopped.wait()
    assert ended.code == CODES[number], ended.err
    assert "runs are left" in ended.out and "The same command continues." in ended.out
    assert (cut / "work" / "denoise-10k-uae-lbn" / "0" / "checkpoints").exists()
    assert len(rows(cut)) < len(rows(whole))
    assert warm.start(*smoke(cut)).wait().code == 0
    assert rows(cut) == rows(whole) and len(rows(cut)) == 4


def test_the_command_has_help_with_an_example(capsys: Capture) -> None:
    shown = call(capsys, "reproduce", "--help")
    assert shown.code == 0 and "lifted reproduce table1 --smoke" in shown.out
