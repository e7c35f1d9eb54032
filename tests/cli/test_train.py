"""`lifted train` with settings of the solver that are infinite or let it diverge, and its help."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from safetensors.torch import load_file

from lifted_bregman.experiments.solver_names import default_name
from lifted_bregman.training import RunFolder
from tests.cli.program import call

Capture = pytest.CaptureFixture[str]


def test_an_infinite_setting_of_the_solver(tmp_path: Path, capsys: Capture) -> None:
    """With total_steps inf GramSweep plans no end: stored, repeated from the file and continued as such."""
    pytest.importorskip("sklearn")
    run, again, finite = (tmp_path / name for name in ("run", "again", "finite"))
    chosen = ["--data", "digits-60", "--hidden", "5", "--batch-size", "20", "--threads", "1", "--quiet"]
    infinite = ["--solver", "gram-sweep", "--set", "total_steps=inf"]
    assert call(capsys, "train", *chosen, *infinite, "--epochs", 1, "--out", run).code == 0
    assert "\ntotal_steps = inf\n" in (run / "settings.toml").read_text()
    called = call(capsys, "train", "--config", run / "settings.toml", "--epochs", 2, "--quiet", "--out", again)
    assert called.code == 0 and call(capsys, "resume", run, "--epochs", 2, "--quiet").code == 0
    assert call(capsys, "train", *chosen, "--set", "total_steps=6", "--epochs", 2, "--out", finite).code == 0
    weights = [load_file(folder / "model.safetensors") for folder in (run, again, finite)]
    for name, value in weights[0].items():
        assert value.equal(weights[1][name])
    assert any(not value.equal(weights[2][name]) for name, value in weights[0].items())
    assert "Infinity" not in "".join(path.read_text() for path in run.rglob("*.json"))


@pytest.mark.parametrize("wrong", ["damping=nan", "damping=-inf", "step_size=inf", "block=inf", f"damping={10**400}"])
def test_what_is_no_number_there_is_refused(wrong: str, tmp_path: Path, capsys: Capture) -> None:
    called = call(capsys, "train", "--data", "digits", "--set", wrong, "--out", tmp_path / "run")
    assert called.code == 2 and called.err.count("\n") == 1 and wrong.partition("=")[0] in called.err
    assert not (tmp_path / "run").exists()


def test_printed_steps_that_end_far_above_the_start_are_exit_code_5(tmp_path: Path, capsys: Capture) -> None:
    """The printed steps with τ = 100 beside the mean over the batch: the cross-entropy rises from 2.3 to about 60."""
    pytest.importorskip("sklearn")
    printed = ["--solver", "implicit-sgd", "--set", "reading=literal", "--set", "prox_weight=100"]
    called = call(capsys, "train", "--data", "digits", *printed, "--epochs", 3, "--quiet", "--out", tmp_path / "run")
    assert called.code == 5 and "give ImplicitSGD a larger prox_weight" in called.err
    folder = RunFolder(tmp_path / "run")
    assert folder.result()["outcome"] == "DIVERGED" and len(folder.history()) == 3


def test_the_help_begins_with_the_default_solver(capsys: Capture) -> None:
    shown = " ".join(call(capsys, "train", "--help").out.split())
    assert f"--solver NAME {default_name()}, implicit-sgd" in shown


def test_dropout_and_input_noise_are_resumed_bit_by_bit_and_end_with_training(tmp_path: Path, capsys: Capture) -> None:
    pytest.importorskip("sklearn")
    chosen = ["--data", "digits-60", "--hidden", "5", "--batch-size", "20", "--threads", "1", "--quiet"]
    noisy = ["--solver", "adam", "--dropout", "0.2", "--input-noise", "0.1"]
    whole, cut, plain = (tmp_path / name for name in ("whole", "cut", "plain"))
    assert call(capsys, "train", *chosen, *noisy, "--epochs", 2, "--out", whole).code == 0
    assert call(capsys, "train", *chosen, *noisy, "--epochs", 1, "--out", cut).code == 0
    assert call(capsys, "resume", cut, "--epochs", 2, "--quiet").code == 0
    assert call(capsys, "train", *chosen, "--solver", "adam", "--epochs", 2, "--out", plain).code == 0
    weights = [load_file(folder / "model.safetensors") for folder in (whole, cut, plain)]
    assert weights[0].keys() == weights[2].keys()  # modules of noise do not change the names
    assert all(value.equal(weights[1][name]) for name, value in weights[0].items())
    assert any(not value.equal(weights[2][name]) for name, value in weights[0].items())
    np.save(tmp_path / "X.npy", np.random.default_rng(0).random((4, 64)))
    first, second = (call(capsys, "predict", whole, tmp_path / "X.npy") for _ in range(2))
    assert first.code == 0 and first.out == second.out


@pytest.mark.parametrize(("flag", "value"), [("--dropout", "1"), ("--dropout", "-0.1"), ("--input-noise", "-1")])
def test_noise_out_of_range_is_one_sentence(flag: str, value: str, tmp_path: Path, capsys: Capture) -> None:
    called = call(capsys, "train", "--data", "digits", f"{flag}={value}", "--out", tmp_path / "run")
    assert called.code == 2 and called.err.count("\n") == 1 and not (tmp_path / "run").exists()
    assert flag.strip("-").replace("-", "_") in called.err or flag in called.err
