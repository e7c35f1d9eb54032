"""Damaged files of a run: refused with a named error, or the predictions are the same; never others in silence."""

from __future__ import annotations

import hashlib
import json
import random
import re
import shutil
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from lifted_bregman.cli import main
from lifted_bregman.errors import CheckpointError, DataError
from lifted_bregman.experiments import StoredRun, TrainedRun
from lifted_bregman.training import manifest
from lifted_bregman.training.files import replace_file
from tests.cli.program import call
from tests.training.test_checkpoint_mutations import IN_A_FILE

Capture = pytest.CaptureFixture[str]
NUMBERS = ("0", "-1", "2", "1e300", "1e-300", "1e999", "NaN", "null", "true", '"a"', "[]", "1" + "0" * 400, "9" * 5000)
COUNTS = {"data.json": 5, "settings.toml": 2, "manifest.json": 2, "result.json": 2, "model.safetensors": 1}  # rounds


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Short runs of a classifier, a regression and an autoencoder: raw pixels, a table with columns, a named set."""
    folder = tmp_path_factory.mktemp("damaged")
    generator = np.random.default_rng(0)
    images = generator.integers(0, 255, size=(30, 3, 2), dtype=np.uint8)
    np.savez(folder / "images.npz", X=images, y=np.arange(30) % 3)
    lines = [",".join(f"{x:.3f}" for x in row) for row in generator.normal(size=(30, 3))]
    (folder / "houses.csv").write_text("\n".join(["rooms,area,price", *lines]) + "\n")
    np.save(folder / "digits.npy", generator.integers(0, 16, size=(5, 8, 8), dtype=np.uint8))
    for command in (
        f"--data {folder}/images.npz --out {folder}/classify",
        f"--task regress --data {folder}/houses.csv --out {folder}/regress",
        f"--task autoencode --data digits-60 --validation none --out {folder}/autoencode",
    ):
        assert main(["train", "--hidden", "4", "--epochs", "1", "--threads", "1", "--quiet", *command.split()]) == 0
    return folder


APPLIED: dict[str, Callable[[Path], NDArray[np.float64]]] = {
    "classify": lambda run: TrainedRun(run).predict(run.parent / "images.npz"),
    "regress": lambda run: TrainedRun(run).predict(run.parent / "houses.csv"),
    "autoencode": lambda run: TrainedRun(run).reconstruct(run.parent / "digits.npy"),
}


def another_number(data: bytearray, draw: random.Random) -> None:
    """Another value where a number stands, as a careless edit would leave it."""
    places = [found.span() for found in re.finditer(rb"-?\d+(\.\d+)?", bytes(data))]
    if places:
        start, end = draw.choice(places)
        data[start:end] = draw.choice(NUMBERS).encode()


def another_line(data: bytearray, draw: random.Random) -> None:
    """A line left out, or written twice."""
    lines = bytes(data).split(b"\n")
    place = draw.randrange(len(lines))
    lines[place : place + 1] = draw.choice([[], [lines[place]] * 2])
    data[:] = b"\n".join(lines)


@pytest.mark.filterwarnings("error")  # an overflow on the way to other predictions would be one
@pytest.mark.parametrize("task", APPLIED)
def test_no_damage_changes_predictions_in_silence(world: Path, task: str) -> None:
    run, apply = world / task, APPLIED[task]
    expected, draw = apply(run), random.Random(20240601)
    found: Counter[str] = Counter()
    mutations = (*IN_A_FILE, another_number, another_number, another_line)
    for name, rounds in COUNTS.items():
        path = run / name
        sound = path.read_bytes()
        for mutation in mutations * rounds:
            damaged = bytearray(sound)
            mutation(damaged, draw)
            path.write_bytes(damaged)
            what = f"{mutation.__name__} in {name}: {bytes(damaged)!r}"
            try:
                assert np.array_equal(apply(run), expected), what
                found[f"{name} same"] += 1
            except (CheckpointError, DataError):
                found[f"{name} refused"] += 1
            except Exception as error:
                raise AssertionError(what) from error
        path.write_bytes(sound)
        assert found[f"{name} same"] + found[f"{name} refused"] == rounds * len(mutations)
    for name in ("data.json", "settings.toml", "model.safetensors", "result.json"):
        assert found[f"{name} refused"] > 5 * found[f"{name} same"], found  # the others left every byte as it was
    assert np.array_equal(apply(run), expected)


@pytest.mark.parametrize("task", APPLIED)
def test_a_damaged_record_without_manifest_is_never_a_crash(world: Path, tmp_path: Path, task: str) -> None:
    """No hash says that it is another record: its entries have to fit each other, the settings and the model."""
    run, draw = tmp_path / task, random.Random(20240602)
    shutil.copytree(world / task, run)
    for file in world.glob("*.*"):
        shutil.copy(file, tmp_path)
    (run / "manifest.json").unlink()
    sound, refused = (run / "data.json").read_bytes(), 0
    for mutation in (another_number, another_line, IN_A_FILE[0]) * 20:
        damaged = bytearray(sound)
        mutation(damaged, draw)
        (run / "data.json").write_bytes(damaged)
        try:
            APPLIED[task](run)
        except (CheckpointError, DataError):
            refused += 1
        except Exception as error:
            raise AssertionError(f"{mutation.__name__}: {bytes(damaged)!r}") from error
    assert refused > 20


def test_files_of_another_run_are_refused(world: Path, tmp_path: Path) -> None:
    """Each is sound by itself: the manifest says that they do not belong together."""
    for name in ("data.json", "settings.toml"):
        run = tmp_path / name
        shutil.copytree(world / "classify", run)
        shutil.copy(world / "regress" / name, run / name)
        with pytest.raises(CheckpointError, match=rf"{name} is not what the run wrote .*restore it"):
            StoredRun.open(run)


def test_a_deleted_record_is_named(world: Path, tmp_path: Path) -> None:
    shutil.copytree(world / "classify", tmp_path / "run")
    (tmp_path / "run" / "data.json").unlink()
    with pytest.raises(CheckpointError, match=r"data\.json is missing.*restore it"):
        TrainedRun(tmp_path / "run")


def test_a_folder_without_manifest_is_used_with_a_warning_until_it_is_resumed(
    world: Path, tmp_path: Path, capsys: Capture
) -> None:
    """As older versions have left them."""
    shutil.copytree(world / "classify", tmp_path / "run")
    run, images = tmp_path / "run", world / "images.npz"
    verified = call(capsys, "predict", run, images)
    assert verified.code == 0 and not verified.err
    (run / "manifest.json").unlink()
    unverified = call(capsys, "predict", run, images)
    assert unverified.code == 0 and unverified.out == verified.out
    assert (
        unverified.err.startswith("warning: ") and "settings.toml and data.json could not be verified" in unverified.err
    )
    resumed = call(capsys, "resume", run, "--epochs", 2, "--quiet")
    assert resumed.code == 0 and "could not be verified" in resumed.err
    assert not call(capsys, "predict", run, images).err


def test_a_deleted_history_does_not_make_a_run_shorter(world: Path, tmp_path: Path, capsys: Capture) -> None:
    run = tmp_path / "run"
    shutil.copytree(world / "classify", run)
    (run / "history.jsonl").unlink()
    assert "has 1 already: ask for more" in call(capsys, "resume", run, "--epochs", 1).err
    resumed = call(capsys, "resume", run, "--epochs", 2, "--quiet")
    assert resumed.code == 0 and "1 of 1 rows are lost, and the run continues" in resumed.err
    assert [row["epoch"] for row in map(json.loads, (run / "history.jsonl").read_text().splitlines())] == [2]


def test_the_manifest_lists_size_and_sha256_of_all_that_predictions_depend_on(world: Path) -> None:
    run = world / "classify"
    listed = json.loads((run / "manifest.json").read_text())["files"]
    for name in ("data.json", "settings.toml", "model.safetensors", "result.json"):
        content = (run / name).read_bytes()
        assert listed.pop(name) == {"size": len(content), "sha256": hashlib.sha256(content).hexdigest()}
    assert not listed


def test_a_manifest_that_was_changed_together_with_a_file_is_refused(world: Path, tmp_path: Path) -> None:
    """It has a hash of its own content."""
    run = tmp_path / "run"
    shutil.copytree(world / "classify", run)
    before = (run / "data.json").read_bytes()
    (run / "data.json").write_bytes(before.replace(b'"0"', b'"5"'))
    manifest = (run / "manifest.json").read_text()
    hashes = [hashlib.sha256(content).hexdigest() for content in (before, (run / "data.json").read_bytes())]
    (run / "manifest.json").write_text(manifest.replace(*hashes))
    with pytest.raises(CheckpointError, match=r"manifest\.json is damaged .*restore it"):
        TrainedRun(run)


def test_a_kill_while_the_description_is_written_leaves_a_run_that_loads(
    world: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`--epochs` changes settings.toml: at every file that is written, the folder is not refused."""
    run = tmp_path / "run"
    shutil.copytree(world / "classify", run)
    before = TrainedRun(run).predict(world / "images.npz")
    files = {name: (run / name).read_bytes() for name in ("settings.toml", "data.json")}
    files["settings.toml"] = files["settings.toml"].replace(b"epochs = 1", b"epochs = 2", 1)
    files["data.json"] += b"\n"
    for written in range(4):  # the manifest without the two, the two, the manifest with them
        shutil.rmtree(run)
        shutil.copytree(world / "classify", run)
        with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
            patch.setattr(manifest, "replace_file", _killed_after(written))
            manifest.update_files(run, files)
        killed = TrainedRun(run)
        assert np.array_equal(killed.predict(world / "images.npz"), before)
        assert (killed.notice is None) == (written == 0)
        assert killed.notice is None or "could not be verified" in killed.notice
        assert killed.stored.settings.epochs == (1 if written < 2 else 2)
    manifest.update_files(run, files)
    assert TrainedRun(run).notice is None


def _killed_after(count: int) -> Callable[[Path, bytes], None]:
    left = iter(range(count))

    def write(path: Path, content: bytes) -> None:
        if next(left, None) is None:
            raise KeyboardInterrupt
        replace_file(path, content)

    return write
