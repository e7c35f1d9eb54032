"""`lifted bench scale`: tables, files, mistakes; and that it goes on after Ctrl-C.  Also the page in the docs."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

import pytest

from lifted_bregman_lab import scale
from lifted_bregman_lab.scale import tables as scale_tables
from lifted_bregman_lab.scale.cases import Case
from lifted_bregman_lab.scale.results import read_scale
from tests.cli.program import call, environment, wait_for

Capture = pytest.CaptureFixture[str]
DOCS = Path(__file__).parents[2] / "docs"
STORED = DOCS / "figures" / "scale.json"
TINY = (Case("back-propagation", "data", 2, 8, 6), Case("simultaneous sweep", "layer", 4, 8, 6, goal=1e6))


@pytest.mark.long
def test_tables_and_files(tmp_path: Path, capsys: Capture, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scale, "QUICK", TINY)
    called = call(capsys, "bench", "scale", "--quick", "--rounds", 1, "--out", tmp_path / "out")
    assert called.code == 0
    assert "2 layers of 8      6" in called.out and "1e+06, missed" in called.out
    assert "580         580" in called.out and "200         200" in called.out  # bytes, counted and by formula
    assert [found.case for found in read_scale(tmp_path / "out" / "scale.json").measured] == list(TINY)
    assert "| back-propagation | 2 layers of 8 | 6 |" in (tmp_path / "out" / "scale.inc").read_text()


@pytest.mark.parametrize(
    ("more", "sentence"),
    [(["--rounds", "0"], "rounds is 0"), (["--repetitions", "-1"], "repetitions is -1")],
    ids=["rounds", "repetitions"],
)
def test_mistakes_are_told_before_anything_is_measured(more: list[str], sentence: str, capsys: Capture) -> None:
    called = call(capsys, "bench", "scale", "--quick", *more)
    assert (called.code, called.out) == (2, "") and sentence in called.err


def test_a_file_that_is_something_else_is_left_alone(tmp_path: Path, capsys: Capture) -> None:
    (tmp_path / "scale.json").write_text("{}")
    called = call(capsys, "bench", "scale", "--quick", "--out", tmp_path)
    assert called.code != 0 and "scale.json is not what 'lifted bench scale' writes" in called.err
    assert (tmp_path / "scale.json").read_text() == "{}"


@pytest.mark.long
def test_after_ctrl_c_what_is_done_is_kept(tmp_path: Path) -> None:
    """The first case is tiny, and the second would take for ever."""
    code = (
        "from lifted_bregman_lab import scale; from lifted_bregman_lab.scale.cases import Case; "
        "scale.QUICK = Case('back-propagation', 'data', 2, 8, 6), Case('simultaneous sweep', 'layer', 2, 2048, 10**5); "
        "from lifted_bregman.cli import main; raise SystemExit(main(['bench', 'scale', '--quick', '--out', 'out']))"
    )
    command = [sys.executable, "-c", code]
    process = subprocess.Popen(command, cwd=tmp_path, stderr=subprocess.PIPE, text=True, env=environment())
    stored = tmp_path / "out" / "scale.json"
    wait_for(stored)
    process.send_signal(signal.SIGINT)
    _, said = process.communicate(timeout=60)
    assert process.returncode == 130 and "out keeps what is done, and the same command continues" in said
    assert [found.case.algorithm for found in read_scale(stored).measured] == ["back-propagation"]


def test_the_page_in_the_docs_is_what_its_measurements_say() -> None:
    found = read_scale(STORED)
    assert (DOCS / "figures" / "scale.inc").read_text(encoding="utf-8") == scale_tables.page(found)
    assert {measured.case for measured in found.measured} == set(scale.CASES)


def test_the_bytes_in_the_docs_are_those_of_the_formulas() -> None:
    for measured in read_scale(STORED).measured:
        formula = scale_tables.bytes_by_formula(measured.case)
        assert formula in (None, max(measured.sent)), measured.case
