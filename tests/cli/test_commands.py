"""The commands as a user types them: what they write, what they say, and that they say it plainly."""

from __future__ import annotations

import dataclasses
import json
import os
import shutil
import signal
import subprocess
from collections.abc import Iterator
from importlib.metadata import version
from pathlib import Path

import numpy as np
import pytest
import torch
from rich.console import Console
from safetensors.torch import load_file
from torch import nn

import lifted_bregman as lb
from lifted_bregman import data, experiments
from lifted_bregman.cli import main
from lifted_bregman.experiments.solver_names import SOLVERS
from tests.cli.program import PATIENCE, PROGRAM, Warm, call, environment, program, wait_for
from tests.cli.test_user_mistakes import tree
from tests.experiments.test_names import REQUIRED

Capture = pytest.CaptureFixture[str]
EVERYDAY = ("adabreg", "implicit-sgd", "admm", "saga", "sgd", "bregman-iterations")  # one of each family


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Data and four short runs: a classifier, one whose solver has its length, an autoencoder and a regression."""
    folder = tmp_path_factory.mktemp("commands")
    data.get("digits", data_dir=folder / "sets")
    images = data.load("digits", data_dir=folder / "sets").test.X.reshape(-1, 8, 8)
    np.save(folder / "images.npy", (16 * images).round().to(torch.uint8).numpy())
    generator = np.random.default_rng(0)
    X = generator.normal(size=(50, 3)) * [1.0, 10.0, 0.1] + 5.0
    price = 1000.0 * X[:, 0] + 20.0 * X[:, 1] + 7.0
    lines = [f"{a},{b},{c},{d}" for (a, b, c), d in zip(X, price, strict=True)]
    (folder / "houses.csv").write_text("\n".join(["rooms,area,age,price", *lines]) + "\n")
    for command in (
        f"--data digits --data-dir {folder}/sets --hidden 16,12 --epochs 4 --seed 3 --batch-size 90 --out {folder}/a",
        f"--config {folder}/a/settings.toml --set total_steps=64 --set epochs=4 --out {folder}/stated",
        f"--task autoencode --data digits --data-dir {folder}/sets --hidden 20,10,20 --epochs 2 --out {folder}/ae",
        f"--task regress --data {folder}/houses.csv --epochs 30 --out {folder}/houses",
    ):
        assert main(["train", "--quiet", *command.split()]) == 0
    return folder


@pytest.fixture(scope="module")
def warm(world: Path) -> Iterator[Warm]:
    server = Warm(world)
    yield server
    server.close()


def parameters(run: Path) -> list[bytes]:
    return [value.numpy().tobytes() for _, value in sorted(load_file(run / "model.safetensors").items())]


def test_the_train_command_of_the_documentation_works(world: Path, tmp_path: Path, capsys: Capture) -> None:
    """The example of the documentation, on a part of a set that is on every machine."""
    command = (
        "train --task classify --data digits-200 --hidden 784,64,64 --solver implicit-sgd --epochs 2 --batch-size 100 "
        f"--seed 0 --dtype float32 --out {tmp_path}/runs/a"
    )
    called = call(capsys, *command.split())
    assert called.code == 0
    run = tmp_path / "runs" / "a"
    rows = [json.loads(line) for line in (run / "history.jsonl").read_text().splitlines()]
    assert [row["epoch"] for row in rows] == [1, 2]
    for line in ("objective ", "validation accuracy ", "zeros in the middle layer ", "outcome ", "seconds in steps "):
        assert line in called.out
    assert f"{rows[-1]['objective']:.6g}" in called.out and "The run took all the steps it was asked for." in called.out
    assert f"lifted predict {run} FILE" in called.out
    assert "training: epoch 2/2" in called.err
    held = {path.name for path in run.iterdir()}
    assert {"settings.toml", "data.json", "history.jsonl", "checkpoints", "model.safetensors", "result.json"} <= held


def test_training_is_that_of_fit(world: Path) -> None:
    """The same network by hand: images centred by NumPy, PyTorch's own ReLU, `lb.fit`."""
    settings = experiments.read_settings(world / "a" / "settings.toml")
    digits = data.load("digits", data_dir=world / "sets")
    mean = digits.train.X.numpy().astype(np.float64).mean(0)
    X, X_test = (part.X - torch.from_numpy(mean).float() for part in (digits.train, digits.test))
    model = nn.Sequential(nn.Linear(64, 16), nn.ReLU(), nn.Linear(16, 12), nn.ReLU(), nn.Linear(12, 10))
    initial = experiments.build.build_model(settings, 64, 10)
    model.load_state_dict(initial.state_dict())
    problem = lb.lift(model, loss=lb.CrossEntropy())
    result = lb.fit(problem, (X, digits.train.y), epochs=4, batch_size=90, seed=3, validation=(X_test, digits.test.y))
    stored = load_file(world / "a" / "model.safetensors")
    assert all(torch.equal(value, stored[name]) for name, value in model.state_dict().items())
    last = json.loads((world / "a" / "history.jsonl").read_text().splitlines()[-1])
    assert last["objective"] == result.history[-1]["objective"]
    assert last["validation_accuracy"] == result.history[-1]["validation_accuracy"] > 0.3


def test_predictions_are_those_of_the_network(world: Path, tmp_path: Path, capsys: Capture) -> None:
    stored = {name: value.numpy() for name, value in load_file(world / "a" / "model.safetensors").items()}
    digits = data.load("digits", data_dir=world / "sets")
    x = digits.test.X.numpy() - digits.train.X.numpy().mean(0)
    for layer in (0, 2):
        x = np.maximum(x @ stored[f"{layer}.weight"].T + stored[f"{layer}.bias"], 0.0)
    expected = (x @ stored["4.weight"].T + stored["4.bias"]).argmax(1)
    shown = call(capsys, "predict", world / "a", world / "images.npy")
    assert shown.code == 0 and [int(line) for line in shown.out.splitlines()] == expected.tolist()
    out = tmp_path / "predictions.npy"
    assert call(capsys, "predict", world / "a", world / "images.npy", "--out", out).code == 0
    assert np.load(out).tolist() == expected.tolist()
    assert float(np.mean(expected == digits.test.y.numpy())) > 0.3


def test_images_of_0_and_1_are_not_taken_as_raw_pixels_and_that_is_said(
    world: Path, tmp_path: Path, capsys: Capture
) -> None:
    binary = np.load(world / "images.npy") > 7
    shown = {}
    for dtype in (np.uint8, np.float32):
        np.save(tmp_path / "binary.npy", binary.astype(dtype))
        shown[dtype] = call(capsys, "predict", world / "a", tmp_path / "binary.npy")
    assert shown[np.uint8].code == 0 and shown[np.uint8].out == shown[np.float32].out
    assert shown[np.uint8].err.startswith("warning: ") and "raw pixels from 0 to 16" in shown[np.uint8].err
    assert shown[np.float32].err == ""


def test_codes_and_reconstructions_are_those_of_the_network(
    world: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Capture
) -> None:
    monkeypatch.chdir(tmp_path)
    for command in ("encode", "reconstruct"):
        assert call(capsys, command, world / "ae", world / "images.npy").code == 0
    stored = {name: value.numpy() for name, value in load_file(world / "ae" / "model.safetensors").items()}
    mean = data.load("digits", data_dir=world / "sets").train.X.numpy().mean(0)
    images = np.load(world / "images.npy")
    x = images.reshape(-1, 64) / np.float32(16) - mean
    x = np.maximum(x @ stored["0.weight"].T + stored["0.bias"], 0.0)
    z = x @ stored["2.weight"].T + stored["2.bias"]
    code = np.sign(z) * np.maximum(np.abs(z) - 0.09, 0.0)
    x = np.maximum(code @ stored["4.weight"].T + stored["4.bias"], 0.0)
    expected = (x @ stored["6.weight"].T + stored["6.bias"] + mean).reshape(-1, 8, 8)
    codes = np.load("images-codes.npy")
    assert codes.shape == (len(images), 10) and (codes == 0).any()
    np.testing.assert_allclose(codes, code, atol=1e-5)
    np.testing.assert_allclose(np.load("images-reconstructed.npy"), expected, atol=1e-5)


def test_inputs_that_a_network_takes_for_given_classes(
    world: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Capture
) -> None:
    monkeypatch.chdir(tmp_path)
    labels = np.array([7, 0, 3])
    np.save("labels.npy", labels)
    penalties = ["--penalty", "squared-l2:0.01", "--penalty", "tv:0.01"]
    said = call(capsys, "invert", world / "a", "labels.npy", *penalties, "--steps", 150, "--picture", "found.png")
    assert said.code == 0 and "labels-inverted.npy: inputs of shape (3, 8, 8)" in said.out and "residual" in said.out
    assert Path("found.png").stat().st_size > 1000
    # the forward pass in NumPy gives these classes
    stored = {name: value.numpy() for name, value in load_file(world / "a" / "model.safetensors").items()}
    x = np.load("labels-inverted.npy").reshape(3, 64) - data.load(
        "digits", data_dir=world / "sets"
    ).train.X.numpy().mean(0)
    for layer in ("0", "2", "4"):
        x = x @ stored[f"{layer}.weight"].T + stored[f"{layer}.bias"]
        x = x if layer == "4" else np.maximum(x, 0.0)
    assert x.argmax(1).tolist() == labels.tolist()


def test_outputs_of_regressions_and_autoencoders_are_in_their_own_units(
    world: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Capture
) -> None:
    monkeypatch.chdir(tmp_path)
    np.save("prices.npy", np.array([5000.0, 6000.0]))
    assert call(capsys, "invert", world / "houses", "prices.npy", "--penalty", "squared-l2:0.0001").code == 0
    assert call(capsys, "predict", world / "houses", "prices-inverted.npy", "--out", "again.npy").code == 0
    np.testing.assert_allclose(np.load("again.npy"), [5000.0, 6000.0], rtol=0.02)
    np.save("few.npy", np.load(world / "images.npy")[:2])
    assert call(capsys, "invert", world / "ae", "few.npy", "--steps", 20, "--out", "made.npy").code == 0
    assert np.load("made.npy").shape == (2, 8, 8)


def test_samples_of_another_kind_have_higher_scores(
    world: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Capture
) -> None:
    monkeypatch.chdir(tmp_path)
    images = np.load(world / "images.npy")[:8]
    np.save("mixed.npy", np.concatenate([images, 16 - images]))  # the latter with black and white exchanged
    said = call(capsys, "detect", world / "ae", "mixed.npy", "--picture", "why.png")
    assert (
        said.code == 0 and "mixed-scores.npy: scores of shape (16,)" in said.out and "of 16 samples, above" in said.out
    )
    scores = np.load("mixed-scores.npy")
    assert scores[8:].min() > scores[:8].max() and Path("why.png").stat().st_size > 5000
    assert call(capsys, "detect", world / "ae", "mixed.npy", "--energy", "minimum", "--steps", 3).code == 0
    # a classifier: -log Σ exp of its logits, in NumPy
    assert call(capsys, "detect", world / "a", "mixed.npy", "--out", "free.npy").code == 0
    stored = {name: value.numpy() for name, value in load_file(world / "a" / "model.safetensors").items()}
    mean = data.load("digits", data_dir=world / "sets").train.X.numpy().mean(0)
    x = np.load("mixed.npy").reshape(16, 64) / np.float32(16) - mean
    for layer in ("0", "2", "4"):
        x = x @ stored[f"{layer}.weight"].T + stored[f"{layer}.bias"]
        x = x if layer == "4" else np.maximum(x, 0.0)
    np.testing.assert_allclose(np.load("free.npy"), -np.log(np.exp(x).sum(1)), rtol=1e-4)
    told = call(capsys, "detect", world / "houses", "mixed.npy")
    assert told.code != 0 and "'lifted detect' is for autoencoders and classifiers" in told.err
    told = call(capsys, "detect", world / "a", "mixed.npy", "--picture", "why.png")
    assert told.code == 2 and "--picture explains the layers of an autoencoder" in told.err
    # the range of the detectors, with their sentence
    for wrong in (0, 0.6):
        told = call(capsys, "detect", world / "ae", "mixed.npy", "--contamination", wrong)
        said = f"contamination is {float(wrong)}; it must be in (0, 0.5], the part of abnormal samples."
        assert told.code == 2 and said in " ".join(told.err.split())


@pytest.mark.parametrize(
    ("arguments", "code", "said"),
    [
        (("--penalty", "tv:-1"), 2, "weight is -1.0"),
        (("--penalty", "tvv:1"), 2, "did you mean 'tv'"),
        (("--penalty", "nuclear:1"), 2, "there is no penalty 'nuclear'"),
        (("--out", "found.txt"), 2, ".npy or .csv"),
        (("--picture", "found.gif"), 2, ".png, .pdf, .svg"),
        (("--steps", "0"), 2, "steps is 0"),
    ],
    ids=str,
)
def test_mistakes_of_an_inversion(
    world: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: Capture,
    arguments: tuple[str, ...],
    code: int,
    said: str,
) -> None:
    monkeypatch.chdir(tmp_path)
    np.save("outputs.npy", np.zeros((2, 10)))
    told = call(capsys, "invert", world / "a", "outputs.npy", *arguments)
    assert told.code == code and said in told.err
    np.save("outputs.npy", np.zeros((2, 9)))
    told = call(capsys, "invert", world / "a", "outputs.npy")
    assert told.code == 3 and "9 numbers for each sample; expected 10" in told.err


@pytest.mark.parametrize(
    ("shape", "said"),
    [
        ((2, 9, 7), "(samples, 8, 8), as in training: scale or crop them to that size."),
        ((2, 3, 8, 8), "as in training: convert them from colour (3 channels) to grey (1 channel)."),
    ],
    ids=["odd size", "colour"],
)
@pytest.mark.parametrize(("command", "run"), [("detect", "ae"), ("detect", "a"), ("invert", "ae")])
def test_pictures_of_another_shape_are_one_sentence(
    world: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: Capture,
    command: str,
    run: str,
    shape: tuple[int, ...],
    said: str,
) -> None:
    monkeypatch.chdir(tmp_path)
    np.save("pictures.npy", np.zeros(shape))
    told = call(capsys, command, world / run, "pictures.npy")
    assert told.code == 3 and told.err.rstrip().replace("\n", " ").endswith(said)


def test_a_label_without_an_output_is_named(
    world: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Capture
) -> None:
    monkeypatch.chdir(tmp_path)
    np.save("labels.npy", np.array([0, 11]))
    told = call(capsys, "invert", world / "a", "labels.npy")
    assert told.code == 3 and "the label of sample 1 is 11; with 10 outputs, labels run from 0 to 9" in told.err


@pytest.mark.parametrize(("command", "run"), [("predict", "a"), ("encode", "ae"), ("reconstruct", "ae")])
def test_a_csv_file_has_the_numbers_of_the_npy_file(
    command: str, run: str, world: Path, tmp_path: Path, capsys: Capture
) -> None:
    for name in ("found.npy", "found.csv"):
        assert call(capsys, command, world / run, world / "images.npy", "--out", tmp_path / name).code == 0
    expected = np.load(tmp_path / "found.npy")
    found = np.loadtxt(tmp_path / "found.csv", delimiter=",", ndmin=2)
    np.testing.assert_array_equal(found.astype(expected.dtype), expected.reshape(len(expected), -1))


def test_a_regression_predicts_in_the_units_of_its_targets(world: Path, tmp_path: Path, capsys: Capture) -> None:
    run = tmp_path / "houses"
    command = ["train", "--task", "regress", "--data", world / "houses.csv", "--target", "price", "--quiet"]
    command += ["--epochs", 30, "--batch-size", 5, "--validation", "none", "--out", run]
    assert call(capsys, *command).code == 0
    shown = call(capsys, "predict", run, world / "houses.csv")
    price = np.genfromtxt(world / "houses.csv", delimiter=",", skip_header=1)[:, 3]
    found = np.array([float(line) for line in shown.out.split()])
    assert found.shape == price.shape
    assert np.sqrt(np.mean((found - price) ** 2)) < 0.1 * price.std()


def test_columns_are_found_by_name(world: Path, tmp_path: Path, capsys: Capture) -> None:
    rows = [line.split(",") for line in (world / "houses.csv").read_text().split()]
    other = tmp_path / "other.csv"
    first = call(capsys, "predict", world / "houses", world / "houses.csv")
    assert first.code == 0 and len(first.out.split()) == 50
    for place in ("somewhere", "7"):  # text in a column that is not asked for does no harm
        lines = [",".join([age, place, area, rooms]) for rooms, area, age, _ in rows[1:]]
        other.write_text("\n".join(["age,place,area,rooms", *lines]) + "\n")
        assert call(capsys, "predict", world / "houses", other).out == first.out


def test_the_stored_settings_make_the_same_run(world: Path, tmp_path: Path, capsys: Capture) -> None:
    again = ["train", "--config", world / "a" / "settings.toml", "--quiet", "--out", tmp_path / "again"]
    assert call(capsys, *again).code == 0
    assert parameters(tmp_path / "again") == parameters(world / "a")
    assert (tmp_path / "again" / "settings.toml").read_text() == (world / "a" / "settings.toml").read_text()
    other = [*again[:-1], tmp_path / "other", "--seed", "1"]
    assert call(capsys, *other).code == 0
    assert parameters(tmp_path / "other") != parameters(world / "a")


def test_flags_override_the_file(world: Path, tmp_path: Path, capsys: Capture) -> None:
    file = tmp_path / "run.toml"
    file.write_text(
        f'data = "digits"\ndata_dir = "{world}/sets"\nhidden = [6]\nepochs = 7\n[solver]\nname = "sgd"\n'
        "learning_rate = 0.5\nmomentum = 0.25\n"
    )
    command = ["train", "--config", file, "--epochs", 1, "--quiet"]
    assert call(capsys, *command, "--set", "learning_rate=0.125", "--out", tmp_path / "a").code == 0
    first = experiments.read_settings(tmp_path / "a" / "settings.toml")
    assert (first.epochs, first.hidden, first.solver) == (1, (6,), "sgd")
    assert first.solver_settings["learning_rate"] == 0.125 and first.solver_settings["momentum"] == 0.25
    assert call(capsys, *command, "--solver", "adam", "--out", tmp_path / "b").code == 0
    second = experiments.read_settings(tmp_path / "b" / "settings.toml")
    assert second.solver == "adam" and "momentum" not in second.solver_settings


def test_a_run_is_extended_as_if_it_had_been_longer(world: Path, tmp_path: Path, capsys: Capture) -> None:
    short = tmp_path / "short"
    settings = ["train", "--config", world / "stated" / "settings.toml", "--quiet"]
    assert call(capsys, *settings, "--epochs", 2, "--out", short).code == 0
    before = tree(short)
    told = call(capsys, "resume", short)
    assert told.code == 0 and "has ended" in told.out and f"lifted resume {short} --epochs N" in told.out
    assert tree(short) == before
    extended = call(capsys, "resume", short, "--epochs", 4)
    assert extended.code == 0 and "4 of 4" in extended.out and "epoch 4/4" in extended.err
    assert parameters(short) == parameters(world / "stated") == parameters(world / "a")  # 64 steps are 4 epochs
    assert experiments.read_settings(short / "settings.toml").epochs == 4


def test_a_run_may_be_continued_on_another_device(world: Path, tmp_path: Path, capsys: Capture) -> None:
    """The device is stored, but it is not part of what the run is."""
    run = tmp_path / "run"
    settings = ["train", "--config", world / "stated" / "settings.toml", "--device", "cpu", "--quiet"]
    assert call(capsys, *settings, "--epochs", 2, "--out", run).code == 0
    stored = experiments.StoredRun.open(run)
    assert stored.settings.device == "cpu"
    elsewhere = dataclasses.replace(stored, settings=dataclasses.replace(stored.settings, device="cuda:99", epochs=4))
    with pytest.raises(lb.errors.SettingError, match="device is 'cuda:99'"):
        experiments.resume(elsewhere, Console(quiet=True))
    experiments.resume(elsewhere.extended(device="cpu"), Console(quiet=True))
    assert parameters(run) == parameters(world / "stated")
    for command, other in (("predict", "a"), ("encode", "ae"), ("reconstruct", "ae")):
        files = [tmp_path / f"{command}-{number}.npy" for number in range(2)]
        for device, file in zip(([], ["--device", "cpu"]), files, strict=True):
            assert call(capsys, command, world / other, world / "images.npy", "--out", file, *device).code == 0
        assert files[0].read_bytes() == files[1].read_bytes()


def test_early_stopping_and_time_limit(world: Path, tmp_path: Path, capsys: Capture) -> None:
    settings = ["train", "--config", world / "a" / "settings.toml", "--quiet", "--epochs", 500]
    stopped = call(capsys, *settings, "--patience", 1, "--set", "step_size=0.2", "--out", tmp_path / "patience")
    assert stopped.code == 0 and "has not improved in 1 rows" in stopped.out
    limited = call(capsys, *settings, "--time-limit", "0.05", "--out", tmp_path / "time")
    assert limited.code == 0 and "0.05 seconds are over" in limited.out
    rows = len((tmp_path / "time" / "history.jsonl").read_text().splitlines())
    longer = call(capsys, "resume", tmp_path / "time", "--time-limit", "0.1", "--quiet")
    assert longer.code == 0 and "0.1 seconds are over" in longer.out
    assert len((tmp_path / "time" / "history.jsonl").read_text().splitlines()) > rows


def test_a_diverged_run_is_exit_code_5(world: Path, tmp_path: Path, capsys: Capture) -> None:
    run = tmp_path / "run"
    settings = ["--data", "digits", "--data-dir", world / "sets", "--hidden", 8, "--quiet"]
    solver = ["--solver", "sgd", "--set", "learning_rate=1e30", "--loss", "squared-error"]
    called = call(capsys, "train", *settings, *solver, "--out", run)
    assert called.code == 5
    assert called.err.startswith("lifted: The run diverged") and "a smaller learning_rate" in called.err
    assert called.err.count("\n") == 1
    assert all(bool(value.isfinite().all()) for value in load_file(run / "model.safetensors").values())
    told = call(capsys, "resume", run)
    assert told.code == 5 and "diverged" in told.out


def test_a_damaged_checkpoint_is_passed_over_with_a_warning(world: Path, tmp_path: Path, capsys: Capture) -> None:
    run = tmp_path / "run"
    shutil.copytree(world / "a", run)
    (run / "result.json").unlink()
    newest = max((run / "checkpoints").glob("step-*"))
    content = bytearray((newest / "model.safetensors").read_bytes())
    content[-1] ^= 1
    (newest / "model.safetensors").write_bytes(bytes(content))
    verified = call(capsys, "checkpoint", "verify", run)
    assert verified.code == 4 and f"{newest.name}  damaged" in verified.out and "  sound  " in verified.out
    resumed = call(capsys, "resume", run, "--quiet")
    assert resumed.code == 0 and resumed.err.startswith("warning: ") and newest.name in resumed.err
    assert resumed.err.count("\n") == 1
    assert parameters(run) == parameters(world / "a")
    assert call(capsys, "checkpoint", "verify", run).code == 0


def test_only_one_checkpoint_is_the_best(world: Path, capsys: Capture) -> None:
    rows = [json.loads(line) for line in (world / "a" / "history.jsonl").read_text().splitlines()]
    best = min(rows, key=lambda row: row["validation"])
    lines = [line for line in call(capsys, "checkpoint", "verify", world / "a").out.splitlines() if "the best" in line]
    assert [line.split()[0] for line in lines] == [f"step-{best['step']:08d}"]


def test_a_run_that_has_not_ended_predicts_with_its_newest_checkpoint(
    world: Path, tmp_path: Path, capsys: Capture
) -> None:
    run = tmp_path / "run"
    shutil.copytree(world / "a", run)
    ended = call(capsys, "predict", run, world / "images.npy")
    for name in ("result.json", "model.safetensors"):
        (run / name).unlink()
    going_on = call(capsys, "predict", run, world / "images.npy")
    assert going_on.code == 0 and going_on.out == ended.out
    assert "has not ended" in going_on.err and not ended.err


def test_a_run_without_a_folder_gets_the_next_number(
    world: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Capture
) -> None:
    monkeypatch.chdir(tmp_path)
    for number in (1, 2):
        command = ["train", "--data", world / "houses.csv", "--task", "regress", "--epochs", 1, "--quiet"]
        assert f"runs/houses-{number}" in call(capsys, *command).out
    assert sorted(path.name for path in Path("runs").iterdir()) == ["houses-1", "houses-2"]


def test_one_process_at_a_time(world: Path, tmp_path: Path, warm: Warm, capsys: Capture) -> None:
    run = tmp_path / "run"
    settings = ["train", "--config", world / "a" / "settings.toml", "--quiet", "--out", run]
    first = warm.start(*settings, "--solver", "implicit-sgd", pause="step", at=3)
    wait_for(first.folder / "paused")
    second = call(capsys, "resume", run)
    assert second.code == 4 and "another process is training" in second.err
    (first.folder / "sent").write_text("1")
    assert first.wait().code == 0


def test_a_folder_that_another_process_has_locked_is_named(
    world: Path, tmp_path: Path, warm: Warm, capsys: Capture
) -> None:
    """It is caught while it writes settings.toml; once it is killed, the folder is free."""
    run = tmp_path / "run"
    settings = ["train", "--config", world / "a" / "settings.toml", "--quiet", "--out", run]
    first = warm.start(*settings, pause="rename")
    wait_for(first.folder / "paused")
    assert [path.name for path in run.glob(".tmp-*/*")] == ["settings.toml"]
    second = call(capsys, *settings)
    assert second.code == 4 and f"another process is training in {run}" in second.err
    first.send(signal.SIGKILL)
    assert first.wait().code == -signal.SIGKILL
    assert call(capsys, *settings).code == 0
    assert not list(run.glob(".*"))


@pytest.mark.parametrize(
    "solver",
    [name if name in EVERYDAY else pytest.param(name, marks=pytest.mark.long) for name in SOLVERS],
)
def test_every_solver_trains_and_continues(solver: str, world: Path, tmp_path: Path, capsys: Capture) -> None:
    """Two epochs, of a step each, and one followed by one.  A schedule that ends with the run is given its length."""
    length = {"gram-sweep": {"total_steps": 2, "epochs": 2}}
    given = [f"--set={name}={value}" for name, value in (REQUIRED | length).get(solver, {}).items()]
    command = ["train", "--task", "regress", "--data", world / "houses.csv", "--hidden", "4,3", "--dtype", "float64"]
    command += ["--solver", solver, *given, "--quiet"]
    assert call(capsys, *command, "--epochs", 2, "--out", tmp_path / "whole").code == 0
    assert call(capsys, *command, "--epochs", 1, "--out", tmp_path / "cut").code == 0
    assert call(capsys, "resume", tmp_path / "cut", "--epochs", 2, "--quiet").code == 0
    assert parameters(tmp_path / "cut") == parameters(tmp_path / "whole")


def test_the_program_starts(world: Path) -> None:
    assert program("--version").out.split() == ["lifted-bregman", version("lifted-bregman")]


def test_output_is_plain_where_there_is_no_terminal(world: Path, tmp_path: Path, warm: Warm) -> None:
    run = tmp_path / "run"
    trained = warm.start("train", "--config", world / "a" / "settings.toml", "--out", run).wait()
    assert trained.code == 0 and "epoch 4/4" in trained.err
    assert "\x1b" not in trained.out + trained.err and "\r" not in trained.out + trained.err


def test_colours_on_a_terminal_unless_they_are_unwanted(warm: Warm) -> None:
    shown = {}
    for colours in ({}, {"NO_COLOR": "1"}):
        ours, theirs = os.openpty()
        try:
            child = warm.start(
                "resume", "nowhere", terminal=os.ttyname(theirs), environment={"TERM": "xterm", **colours}
            )
            assert child.server.wait(child.pid) == 4
            shown[len(colours)] = os.read(ours, 10_000).decode()
        finally:
            os.close(ours)
            os.close(theirs)
    assert "\x1b[1;31mlifted:" in shown[0] and "no folder nowhere" in shown[0]
    assert "\x1b[3" not in shown[1] and "no folder nowhere" in shown[1]


@pytest.mark.parametrize("arguments", [("--version",), ("--help",), ("predict",), ("data", "list")], ids=lambda a: a[0])
def test_a_broken_pipe_is_quiet(arguments: tuple[str, ...], world: Path, warm: Warm) -> None:
    more = (world / "a", world / "images.npy") if arguments == ("predict",) else ()
    called = warm.start(*arguments, *more, closed=[1]).wait()
    assert called.err == ""
    assert called.code in (0, 1)


def test_a_broken_pipe_is_quiet_in_a_process_of_its_own() -> None:
    """To the very end of the interpreter, which writes what is left."""
    reader, writer = os.pipe()
    os.close(reader)
    command = [*PROGRAM, "data", "list"]
    done = subprocess.run(
        command, stdout=writer, stderr=subprocess.PIPE, text=True, timeout=PATIENCE, env=environment()
    )
    os.close(writer)
    assert done.stderr == ""
    assert done.returncode in (0, 1)


def test_a_closed_pipe_for_progress_does_not_stop_a_run(world: Path, tmp_path: Path, warm: Warm) -> None:
    run = tmp_path / "run"
    called = warm.start("train", "--config", world / "a" / "settings.toml", "--out", run, closed=[1, 2]).wait()
    assert called.code == 0
    assert parameters(run) == parameters(world / "a")


def test_a_read_only_folder(world: Path, tmp_path: Path, warm: Warm) -> None:
    locked = tmp_path / "locked"
    locked.mkdir()
    locked.chmod(0o555)
    settings = ["--config", world / "a" / "settings.toml", "--out", locked / "run"]
    called = warm.start("train", *settings, unprivileged=True).wait()
    assert called.code == 4, called.err
    assert "locked/run cannot be written (Permission denied)" in called.err and "another folder" in called.err
    assert called.err.count("\n") == 1 and list(locked.iterdir()) == []
