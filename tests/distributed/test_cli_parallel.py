"""`lifted train --parallel` and `lifted resume --parallel`: the run of one process, told once, with its exit codes."""

from __future__ import annotations

import fcntl
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

from lifted_bregman.cli import main
from lifted_bregman.distributed import world
from tests.cli.program import PATIENCE, Called, call, environment, program
from tests.distributed.processes import forked

Capture = pytest.CaptureFixture[str]


@pytest.fixture(scope="module")
def table(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("parallel") / "table.npz"
    X = np.random.default_rng(0).normal(size=(60, 6))
    np.savez(path, X=X, y=(X[:, 0] + X[:, 1] > 0).astype(np.int64))
    return path


OF_FIVE = ("--set", "total_steps=20", "--set", "epochs=5")
"""Rates and decay of 5 epochs, however many are asked for: so a run of 3 that goes on to 5 is one of 5."""


def training(table: Path, out: Path, *more: object) -> list[object]:
    """A run of the default solver, unless another is named."""
    settings = "--hidden 8,7 --batch-size 13 --dtype float64 --epochs 3 --patience 50 --threads 1 --quiet"
    planned = () if "--solver" in more else OF_FIVE
    return ["train", "--data", table, *settings.split(), *planned, "--out", out, *more]


@pytest.fixture(scope="module")
def alone(table: Path) -> Path:
    """The run of one process."""
    out = table.with_name("alone")
    assert main([str(argument) for argument in training(table, out)]) == 0
    return out


def require_close(run: Path, other: Path, accuracy: float = 1e-12) -> None:
    found, expected = (load_file(folder / "model.safetensors") for folder in (run, other))
    for name, value in expected.items():
        torch.testing.assert_close(found[name], value, rtol=accuracy, atol=accuracy)
    histories = [
        [json.loads(line) for line in (folder / "history.jsonl").read_text().splitlines()] for folder in (run, other)
    ]
    assert len(histories[0]) == len(histories[1])
    for row, other_row in zip(*histories, strict=True):
        assert row | {"seconds": 0.0} == pytest.approx(other_row | {"seconds": 0.0}, rel=accuracy, abs=accuracy)


def require_told_once(called: Called, out: Path) -> None:
    assert called.code == 0, called.err
    assert called.out.count("objective ") == 2 and called.out.count(f"lifted predict {out}") == 1
    assert called.err == ""


def test_workers_make_the_run_of_one_process(table: Path, alone: Path, tmp_path: Path, capsys: Capture) -> None:
    out = tmp_path / "run"
    require_told_once(program(*training(table, out, "--parallel", "data=2")), out)
    require_close(out, alone)
    assert '\nparallel = "data=2"\n' in (out / "settings.toml").read_text()

    longer = tmp_path / "longer"
    assert call(capsys, *training(table, longer, "--epochs", 5)).code == 0
    resumed = call(capsys, "resume", out, "--epochs", 5, "--parallel", "data=1", "--quiet")
    assert resumed.code == 0, resumed.err
    require_close(out, longer)
    assert '\nparallel = "data=1"\n' in (out / "settings.toml").read_text()


@pytest.mark.long
def test_a_run_of_one_process_goes_on_in_workers(table: Path, tmp_path: Path, capsys: Capture) -> None:
    out, longer = tmp_path / "run", tmp_path / "longer"
    assert call(capsys, *training(table, out)).code == 0
    assert call(capsys, *training(table, longer, "--epochs", 5)).code == 0
    require_told_once(program("resume", out, "--epochs", 5, "--parallel", "data=2", "--quiet"), out)
    require_close(out, longer)


@pytest.mark.long
def test_lifted_train_with_layers_in_two_workers_has_the_bits_of_one_process(
    table: Path, tmp_path: Path, capsys: Capture
) -> None:
    """Without a solver named it is one that can; the bits are those of one process, whoever goes on."""
    out, alone = tmp_path / "run", tmp_path / "alone"
    require_told_once(program(*training(table, out, "--parallel", "layer=2")), out)
    chosen = ("--solver", "gram-sweep", "--set", "micro_batches=4", *OF_FIVE)
    assert all(text in (out / "settings.toml").read_text() for text in ('name = "gram-sweep"', "micro_batches = 4"))
    assert call(capsys, *training(table, alone, *chosen, "--epochs", 5)).code == 0
    assert call(capsys, "resume", out, "--epochs", 5, "--parallel", "data=1", "--quiet").code == 0
    found, expected = (load_file(folder / "model.safetensors") for folder in (out, alone))
    assert all(torch.equal(found[name], value) for name, value in expected.items())
    require_close(out, alone)


def test_lifted_train_under_torchrun_gives_the_run_of_one_process(table: Path, alone: Path, tmp_path: Path) -> None:
    out = tmp_path / "run"
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    command += ["-m", "lifted_bregman.cli", *map(str, training(table, out, "--parallel", "data=2"))]
    done = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE, env=environment())
    require_told_once(Called(done.returncode, done.stdout, done.stderr), out)
    require_close(out, alone)


def in_world(size: int, *arguments: object, absent: int | None = None, **more: str) -> list[Any]:
    """(exit code, what was said) of each of the processes that torchrun would start; forks of this one."""

    def work(rank: int) -> tuple[int, str] | None:
        import io
        import sys

        if rank == absent:
            return None
        sys.stdout, sys.stderr = io.StringIO(), io.StringIO()
        code = main([str(argument) for argument in arguments])
        return int(code), sys.stdout.getvalue() + sys.stderr.getvalue()

    return forked(size, work, **more)


def test_in_a_world_the_first_process_speaks(table: Path, alone: Path, tmp_path: Path) -> None:
    out = tmp_path / "run"
    (code, said), (other_code, nothing) = in_world(2, *training(table, out, "--parallel", "data=2"))
    assert (code, other_code) == (0, 0) and nothing == "" and f"lifted predict {out}" in said
    require_close(out, alone)


def test_a_diverged_run_is_reported_by_rank_0_only(table: Path, tmp_path: Path) -> None:
    more = ("--solver", "sgd", "--set", "learning_rate=1e200", "--parallel", "data=2")
    (code, said), (other_code, nothing) = in_world(2, *training(table, tmp_path / "run", *more))
    assert (code, other_code) == (5, 0) and nothing == "" and "diverged" in said


def test_an_error_in_a_world_is_said_by_the_process_that_has_it(table: Path, tmp_path: Path) -> None:
    out = tmp_path / "run"
    out.mkdir()
    with (out / "lock").open("w") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        (code, said), (_, nothing) = in_world(2, *training(table, out, "--parallel", "data=2"))
    assert code == 4 and said.startswith("lifted: another process is training in") and nothing == ""


def test_a_process_that_has_nobody_speaks_for_itself(
    table: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(world, "_JOINING", 0.3)
    arguments = training(table, tmp_path / "run", "--parallel", "data=2,timeout=0.3")
    for absent, other, sentence in (
        (0, 1, "rank 1 of 2 had no answer from "),
        (1, 0, "of 2 processes rank 1 did not "),
    ):
        code, said = in_world(2, *arguments, absent=absent)[other]
        assert code == 1 and said.startswith(f"lifted: {sentence}") and said.count("\n") == 1, said


def test_a_world_of_another_size_than_the_degrees_is_refused(table: Path, tmp_path: Path) -> None:
    for code, said in in_world(2, *training(table, tmp_path / "run", "--parallel", "data=3")):
        assert code == 2 and "3 processes in all, and there are 2" in said
    nameless = [argument for argument in training(table, tmp_path, "--parallel", "data=2") if argument != tmp_path]
    for code, said in in_world(2, *(argument for argument in nameless if argument != "--out")):
        assert code == 2 and "--out" in said
    assert not list(tmp_path.iterdir())


def test_a_restarted_attempt_goes_on(table: Path, alone: Path, tmp_path: Path) -> None:
    """Where nothing was stored yet, where a run was in the middle, and where it had ended."""
    out = tmp_path / "run"
    started = in_world(2, *training(table, out, "--parallel", "data=2"), TORCHELASTIC_RESTART_COUNT="1")
    assert [code for code, _ in started] == [0, 0]
    require_close(out, alone)
    again = in_world(2, *training(table, out, "--parallel", "data=2"), TORCHELASTIC_RESTART_COUNT="2")
    assert [code for code, _ in again] == [0, 0]
    require_close(out, alone)
    resumed = in_world(2, "resume", out, "--epochs", 3, "--quiet", TORCHELASTIC_RESTART_COUNT="1")
    assert [code for code, _ in resumed] == [0, 0], resumed
    require_close(out, alone)
    held = in_world(2, *training(table, out, "--parallel", "data=2"), TORCHELASTIC_RESTART_COUNT="0")
    assert [code for code, _ in held] == [2, 2]


def test_an_error_of_a_worker_is_said_once(table: Path, tmp_path: Path) -> None:
    out = tmp_path / "run"
    out.mkdir()
    with (out / "lock").open("w") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        called = program(*training(table, out, "--parallel", "data=2"))
    assert called.code == 4 and called.out == ""
    assert called.err == f"lifted: another process is training in {out}: wait for it, or choose another folder.\n"


MISTAKES = {
    "not text of degrees": ("--parallel 2", 2, "write it as data=2"),
    "no such degree": ("--parallel date=2", 2, "write it as data=2"),
    "a degree of zero": ("--parallel data=0", 2, "data of parallel is 0"),
    "more processes than samples": ("--parallel data=14", 2, "a batch has 13 samples"),
    "layers": ("--parallel data=2,layer=2 --solver implicit-sgd", 2, "ImplicitSGD as it is set moves layers one after"),
    "more processes than layers": ("--parallel layer=9", 2, "the network has"),
    "a solver that cannot": (
        "--parallel data=2 --solver admm --set inner_steps=2",
        2,
        "ADMM as it is set needs the whole",
    ),
    "an interface": ("--parallel data=2,interface=nowhere9", 2, "nowhere9"),
    "data": ("--parallel data=2 --data no-such-set", 3, "no-such-set"),
}


@pytest.mark.parametrize("name", MISTAKES)
def test_a_mistake_is_told_before_workers_start(
    name: str, table: Path, tmp_path: Path, capsys: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "executable", "/no/such/python")  # whoever starts a worker fails
    flags, code, sentence = MISTAKES[name]
    arguments = training(table, tmp_path / "run", *flags.split())
    if "admm" in flags:
        at = arguments.index("--batch-size")
        del arguments[at : at + 2]
    called = call(capsys, *arguments)
    assert (called.code, called.out) == (code, "") and called.err.count("\n") == 1 and sentence in called.err
    assert not (tmp_path / "run").exists()
