"""Which checkpoints are kept, which one is loaded, and what is never saved."""

import math
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from lifted_bregman.errors import CheckpointError, SettingError
from lifted_bregman.training.checkpoints import Checkpoints, Snapshot, verify_checkpoint
from tests.training.checkpoint_helpers import bits, content, memory_folder, sign, snapshot


@pytest.fixture
def tmp_path() -> Iterator[Path]:
    with memory_folder() as folder:
        yield folder


def saved(folder: Path, *steps: int, best: tuple[int, ...] = (), keep: int = 2) -> Checkpoints:
    checkpoints = Checkpoints(folder, keep)
    for step in steps:
        checkpoints.save(snapshot(step), best=step in best)
    return checkpoints


def damage(folder: Path, step: int, name: str = "model.safetensors") -> None:
    path = folder / f"step-{step:08d}" / name
    data = bytearray(path.read_bytes())
    data[-1] ^= 1
    path.write_bytes(data)


@pytest.mark.parametrize(
    ("keep", "best", "left"),
    [
        (2, (), [4, 5]),
        (1, (), [5]),
        (3, (), [3, 4, 5]),
        (9, (), [1, 2, 3, 4, 5]),
        (2, (1,), [1, 4, 5]),
        (2, (1, 2), [2, 4, 5]),  # a better one came
        (2, (2, 4), [4, 5]),
        (2, (1, 5), [4, 5]),
        (1, (3,), [3, 5]),
        (1, (1, 2, 3, 4, 5), [5]),
    ],
)
def test_the_last_ones_and_the_best_are_kept(tmp_path: Path, keep: int, best: tuple[int, ...], left: list[int]) -> None:
    checkpoints = saved(tmp_path, 1, 2, 3, 4, 5, best=best, keep=keep)
    assert checkpoints.steps() == left
    assert {entry.name for entry in tmp_path.iterdir()} == {"LATEST", *(f"step-{step:08d}" for step in left)}
    loaded = checkpoints.best()
    if best:
        assert loaded is not None
        assert loaded.warning is None
        assert bits(loaded.snapshot) == bits(snapshot(max(best)))
    else:
        assert loaded is None
    assert bits(checkpoints.load().snapshot) == bits(snapshot(5))
    for step in left:
        assert verify_checkpoint(tmp_path / f"step-{step:08d}").best == (step in best)
        assert bits(checkpoints.load(step).snapshot) == bits(snapshot(step))


def test_a_step_saved_again_replaces_itself_and_stays_the_best(tmp_path: Path) -> None:
    checkpoints = saved(tmp_path, 1, 2, best=(2,))
    other = Snapshot(2, {"model": {"w": torch.tensor([3.0])}}, {"again": True}, {})
    checkpoints.save(other)
    assert checkpoints.steps() == [1, 2]
    assert bits(checkpoints.load().snapshot) == bits(other)
    best = checkpoints.best()
    assert best is not None and bits(best.snapshot) == bits(other)
    assert not [entry for entry in tmp_path.iterdir() if entry.name.startswith(".")]


def test_without_damage_there_is_no_warning(tmp_path: Path) -> None:
    loaded = saved(tmp_path, 1, 2, 3).load()
    assert (loaded.path, loaded.warning) == (tmp_path / "step-00000003", None)


def test_loading_falls_back_and_says_so(tmp_path: Path) -> None:
    checkpoints = saved(tmp_path, 1, 2, 3, keep=3)
    damage(tmp_path, 3)
    loaded = checkpoints.load()
    assert bits(loaded.snapshot) == bits(snapshot(2))
    assert loaded.warning is not None
    for words in (str(tmp_path / "step-00000002"), str(tmp_path / "step-00000003" / "model.safetensors"), "sha256"):
        assert words in loaded.warning
    (tmp_path / "step-00000002" / "state.json").unlink()
    loaded = checkpoints.load()
    assert bits(loaded.snapshot) == bits(snapshot(1))
    assert loaded.warning is not None
    assert "step-00000003" in loaded.warning and "state.json is listed in it and missing" in loaded.warning
    damage(tmp_path, 1, "solver.safetensors")
    with pytest.raises(CheckpointError) as caught:
        checkpoints.load()
    for words in ("no sound checkpoint", "step-00000003", "step-00000002", "step-00000001/solver.safetensors"):
        assert words in str(caught.value)


@pytest.mark.parametrize("step", [3, 4, 5])
def test_a_damaged_checkpoint_does_not_count_as_kept(tmp_path: Path, step: int) -> None:
    checkpoints = saved(tmp_path, 1, 2, 3)
    damage(tmp_path, 3)
    assert checkpoints.load().snapshot.step == 2
    checkpoints.save(snapshot(step))
    assert checkpoints.steps() == [2, step]
    assert checkpoints.load().warning is None
    checkpoints.save(snapshot(6))
    assert checkpoints.steps() == [step, 6]


def test_a_step_that_was_asked_for_is_not_replaced_by_another(tmp_path: Path) -> None:
    checkpoints = saved(tmp_path, 1, 2)
    damage(tmp_path, 2)
    with pytest.raises(CheckpointError, match=r"step-00000002/model\.safetensors is damaged"):
        checkpoints.load(2)
    with pytest.raises(CheckpointError, match=r"no checkpoint of step 7; there are \[1, 2\]"):
        checkpoints.load(7)


def test_a_missing_checkpoint_is_noticed_by_what_latest_names(tmp_path: Path) -> None:
    checkpoints = saved(tmp_path, 1, 2)
    shutil.rmtree(tmp_path / "step-00000002")
    loaded = checkpoints.load()
    assert bits(loaded.snapshot) == bits(snapshot(1))
    assert loaded.warning is not None and "step-00000002, which LATEST names, is missing" in loaded.warning


@pytest.mark.parametrize("text", [b"", b"step-2\n", b"step-00000002\n\n", b"../step-00000002", b"\xff", b"x" * 10**6])
def test_a_damaged_latest_costs_a_warning_and_nothing_else(tmp_path: Path, text: bytes) -> None:
    checkpoints = saved(tmp_path, 1, 2)
    (tmp_path / "LATEST").write_bytes(text)
    loaded = checkpoints.load()
    assert bits(loaded.snapshot) == bits(snapshot(2))
    assert loaded.warning is not None and "LATEST is damaged" in loaded.warning
    checkpoints.save(snapshot(3))
    assert (tmp_path / "LATEST").read_text() == "step-00000003\n"
    assert checkpoints.load().warning is None


def test_loading_works_without_latest(tmp_path: Path) -> None:
    checkpoints = saved(tmp_path, 1, 2)
    (tmp_path / "LATEST").unlink()
    assert bits(checkpoints.load().snapshot) == bits(snapshot(2))


def test_a_damaged_best_gives_way_to_an_older_one(tmp_path: Path) -> None:
    checkpoints = saved(tmp_path, 1, 2, 3, best=(1, 2), keep=3)
    damage(tmp_path, 2)
    loaded = checkpoints.best()
    assert loaded is not None and bits(loaded.snapshot) == bits(snapshot(1))
    assert loaded.warning is not None and "step-00000002/model.safetensors" in loaded.warning
    damage(tmp_path, 1)
    with pytest.raises(CheckpointError, match="may have lost its best checkpoint"):
        checkpoints.best()


def test_a_checkpoint_that_may_be_the_best_is_not_removed(tmp_path: Path) -> None:
    checkpoints = saved(tmp_path, 1, 2, best=(1,))
    damage(tmp_path, 1, "manifest.json")
    checkpoints.save(snapshot(3))
    assert checkpoints.steps() == [1, 2, 3]


def test_saving_an_earlier_step_leaves_the_later_ones(tmp_path: Path) -> None:
    checkpoints = saved(tmp_path, 1, 2, 3, 4, best=(4,))
    checkpoints.save(snapshot(2))
    assert checkpoints.steps() == [2, 3, 4]
    assert bits(checkpoints.load().snapshot) == bits(snapshot(4))


def test_going_back_drops_what_came_later(tmp_path: Path) -> None:
    checkpoints = saved(tmp_path, 1, 2, 3, 4, best=(4,), keep=4)
    assert checkpoints.rewind(2) == [3, 4]
    assert checkpoints.steps() == [1, 2]
    assert (tmp_path / "LATEST").read_text() == "step-00000002\n"
    loaded = checkpoints.load()
    assert bits(loaded.snapshot) == bits(snapshot(2))
    assert loaded.warning is None
    assert checkpoints.best() is None
    before = content(tmp_path)
    with pytest.raises(CheckpointError, match="no checkpoint of step 3"):
        checkpoints.rewind(3)
    assert content(tmp_path) == before


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize(
    ("part", "dtype"),
    [
        ("model", torch.float32),
        ("variables", torch.float64),
        ("multipliers", torch.float16),
        ("solver", torch.bfloat16),
        ("solver", torch.complex64),
        ("solver", torch.complex128),
        ("solver", torch.float8_e5m2),
    ],
)
def test_what_is_not_finite_is_never_saved(tmp_path: Path, part: str, dtype: torch.dtype, value: float) -> None:
    checkpoints = saved(tmp_path, 1)
    before = content(tmp_path)
    tensor = torch.ones(4, 5).to(torch.complex64 if dtype.is_complex else torch.float32)
    tensor[2, 3] = complex(0, value) if dtype.is_complex else value
    parts: dict[str, Any] = {"model": {"fine": torch.ones(2)}}
    parts.setdefault(part, {})["layers"] = [torch.zeros(1), {"weight": tensor.to(dtype).t()}]
    with pytest.raises(CheckpointError) as caught:
        checkpoints.save(Snapshot(2, parts, {}, {}), best=True)
    assert f"{part}['layers'][1]['weight'] holds NaN or infinity" in str(caught.value)
    assert content(tmp_path) == before


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.float16, torch.bfloat16], ids=str)
def test_the_largest_numbers_are_finite(tmp_path: Path, dtype: torch.dtype) -> None:
    largest = torch.tensor([torch.finfo(dtype).max, torch.finfo(dtype).min] * 100, dtype=dtype)  # their sum is not
    checkpoints = Checkpoints(tmp_path)
    checkpoints.save(Snapshot(1, {"model": {"w": largest}}, {}, {}))
    assert torch.equal(checkpoints.load().snapshot.parts["model"]["w"], largest)


def test_an_empty_or_missing_folder_has_no_checkpoint(tmp_path: Path) -> None:
    for folder in (tmp_path, tmp_path / "nowhere"):
        checkpoints = Checkpoints(folder)
        assert checkpoints.steps() == []
        assert checkpoints.sweep() == []
        assert checkpoints.best() is None
        with pytest.raises(CheckpointError, match="has no checkpoint: train first"):
            checkpoints.load()
    assert not (tmp_path / "nowhere").exists()


def test_other_things_in_the_folder_are_no_checkpoints(tmp_path: Path) -> None:
    checkpoints = saved(tmp_path, 1)
    for name in ("step-1", "step-000000002", "step-00000003.bak", "notes", ".tmp-notes"):
        (tmp_path / name).mkdir()
    (tmp_path / "step-00000009").write_text("a file")
    assert checkpoints.steps() == [1]
    checkpoints.save(snapshot(2))
    assert checkpoints.steps() == [1, 2]
    assert (tmp_path / "notes").is_dir() and (tmp_path / ".tmp-notes").is_dir()


def test_a_checkpoint_under_another_steps_name_is_refused(tmp_path: Path) -> None:
    checkpoints = saved(tmp_path, 1, 2)
    (tmp_path / "step-00000002").rename(tmp_path / "step-00000003")
    with pytest.raises(CheckpointError, match="it belongs to step 2"):
        checkpoints.load(3)
    with pytest.raises(CheckpointError, match="it belongs to step 2"):
        verify_checkpoint(tmp_path / "step-00000003")
    (tmp_path / "step-00000003").rename(tmp_path / "a copy")
    assert verify_checkpoint(tmp_path / "a copy").step == 2


def test_a_newer_format_is_refused_with_the_one_that_is_known(tmp_path: Path) -> None:
    checkpoints = saved(tmp_path, 1)
    sign(tmp_path / "step-00000001", format=2, something="new")
    with pytest.raises(CheckpointError, match="format 2 and this version of the library reads format 1"):
        checkpoints.load()


def test_signing_by_hand_gives_what_the_library_accepts(tmp_path: Path) -> None:
    # The hostile tests rest on this: what they forge is refused for the reason they name, not for a wrong signature.
    checkpoints = saved(tmp_path, 1)
    sign(tmp_path / "step-00000001", library="another")
    assert verify_checkpoint(tmp_path / "step-00000001").library == "another"
    assert bits(checkpoints.load().snapshot) == bits(snapshot(1))


def test_droppings_of_file_managers_are_ignored_and_other_files_are_not(tmp_path: Path) -> None:
    checkpoints = saved(tmp_path, 1)
    (tmp_path / "step-00000001" / ".DS_Store").write_text("x")
    assert checkpoints.load().warning is None
    (tmp_path / "step-00000001" / "extra.safetensors").write_text("x")
    with pytest.raises(CheckpointError, match=r"extra.safetensors is not listed"):
        checkpoints.load()


def test_verify_names_what_it_wants(tmp_path: Path) -> None:
    saved(tmp_path, 1)
    for path in (tmp_path / "nowhere", tmp_path / "LATEST"):
        with pytest.raises(CheckpointError, match="a checkpoint is a directory such as step-00001234"):
            verify_checkpoint(path)
    with pytest.raises(CheckpointError, match=r"manifest.json cannot be read \(No such file"):
        verify_checkpoint(tmp_path)


@pytest.mark.parametrize("keep", [0, -1, 1.5, True])
def test_at_least_one_is_kept(tmp_path: Path, keep: Any) -> None:
    with pytest.raises(SettingError, match="keep is"):
        Checkpoints(tmp_path, keep)
