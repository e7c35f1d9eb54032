"""The folder of a demonstration: `lifted report` makes the same page of it, and refuses a damaged one."""

import json
import math
import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from lifted_bregman.errors import CheckpointError, SettingError
from lifted_bregman.experiments import demo_folder
from lifted_bregman.reports.report import write_report
from tests.reports.short_demo import ShortDemo, lifted
from tests.reports.test_demo import KEYS, rows


def test_the_report_makes_the_same_page_from_the_rows(short_demo: ShortDemo, copy: Path) -> None:
    before = {path.name: path.read_bytes() for path in copy.iterdir()}
    run = lifted("report", copy)
    assert (run.returncode, run.stdout) == (0, f"page: {copy / 'index.html'}\n"), run.stderr
    assert (copy / "index.html").read_bytes() == short_demo.page.read_bytes()
    assert {path.name: path.read_bytes() for path in copy.iterdir() if path.name != "index.html"} == before


def test_text_from_the_folder_is_escaped(copy: Path) -> None:
    evil = "<script>alert(1)</script>"
    stored = json.loads((copy / "settings.json").read_text())
    stored["source"] = stored["environment"]["processor"] = evil
    for entry in stored["methods"]:
        entry |= {"name": evil, "settings": evil, "grid": evil, "command": evil, "outcome": "DIVERGED", "message": evil}
    (copy / "settings.json").write_text(json.dumps(stored))
    assert "<script" not in write_report(copy).read_text()


def rewrite(name: str, change: Callable[[dict], None]) -> Callable[[Path], None]:
    def damage(folder: Path) -> None:
        entries = json.loads((folder / name).read_text())
        change(entries)
        (folder / name).write_text(json.dumps(entries))

    return damage


def cut(name: str, size: int) -> Callable[[Path], None]:
    return lambda folder: (folder / name).write_bytes((folder / name).read_bytes()[:size]) and None


def without_pictures(folder: Path) -> None:
    pictures = load_file(folder / "pictures.safetensors")
    save_file({"train": pictures["train"]}, folder / "pictures.safetensors")


def small_pictures(folder: Path) -> None:
    pictures = load_file(folder / "pictures.safetensors")
    save_file(pictures | {"adam/codes": np.zeros((10, 784))}, folder / "pictures.safetensors")


def method_outside(folder: Path) -> None:
    """A whole demonstration, but for a method whose files would be those of another folder."""
    shutil.copy(folder / "sgd.jsonl", folder.parent / "x.jsonl")
    pictures = load_file(folder / "pictures.safetensors")
    stolen = {name.replace("sgd/", "../x/"): images for name, images in pictures.items() if name.startswith("sgd/")}
    save_file(pictures | stolen, folder / "pictures.safetensors")
    rewrite("settings.json", lambda entries: entries["methods"][1].update(key="../x"))(folder)


DAMAGES: dict[str, Callable[[Path], None]] = {
    "settings cut": cut("settings.json", 100),
    "settings of another kind": rewrite("settings.json", lambda entries: entries.update(kind="other")),
    "settings without kind": rewrite("settings.json", lambda entries: entries.pop("kind")),
    "settings a list": lambda folder: (folder / "settings.json").write_text("[]") and None,
    "no seed": rewrite("settings.json", lambda entries: entries.pop("seed")),
    "an unknown entry": rewrite("settings.json", lambda entries: entries.update(colour="red")),
    "seconds a word": rewrite("settings.json", lambda entries: entries.update(seconds="long")),
    "environment of numbers": rewrite("settings.json", lambda entries: entries.update(environment={"cores": 2})),
    "a method of another folder": method_outside,
    "a method without files": rewrite("settings.json", lambda entries: entries["methods"][0].update(key="other")),
    "a row cut": cut("sgd.jsonl", 50),
    "no rows": cut("sgd.jsonl", 0),
    "rows of words": lambda folder: (folder / "sgd.jsonl").write_text('{"epoch": "one"}\n') and None,
    "rows without entries": lambda folder: (folder / "sgd.jsonl").write_text('{"epoch": 1}\n') and None,
    "rows of lists": lambda folder: (folder / "sgd.jsonl").write_text("[1, 2]\n") and None,
    "rows deep": lambda folder: (folder / "sgd.jsonl").write_text("[" * 100_000 + "\n") and None,
    "rows not text": lambda folder: (folder / "sgd.jsonl").write_bytes(b"\xff\xfe\n") and None,
    "pictures cut": cut("pictures.safetensors", 1000),
    "pictures missing": without_pictures,
    "pictures of another shape": small_pictures,
}


@pytest.mark.parametrize("damage", DAMAGES.values(), ids=DAMAGES)
def test_a_damaged_demonstration_is_refused(copy: Path, damage: Callable[[Path], None]) -> None:
    damage(copy)
    with pytest.raises(CheckpointError, match=r"holds no whole demonstration .* again"):
        write_report(copy)
    assert not (copy / "index.html").exists()


def test_rows_with_numbers_that_are_not_finite_make_a_page(copy: Path) -> None:
    stored = rows(copy, "adam")
    stored[-1] |= {"objective": math.nan, "validation_error": math.inf}
    (copy / "adam.jsonl").write_text("".join(json.dumps(row) + "\n" for row in stored))
    assert "nan" in write_report(copy).read_text()


def test_a_run_of_lifted_train_is_not_overwritten(tmp_path: Path) -> None:
    (tmp_path / "checkpoints").mkdir()
    with pytest.raises(CheckpointError, match="choose another folder"):
        demo_folder.clear_demo(tmp_path, KEYS)


def test_a_folder_that_cannot_be_written_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(SettingError, match="choose another folder"):
        demo_folder.clear_demo(tmp_path / "file" / "below", KEYS)


def test_an_earlier_demonstration_is_removed_before_the_next_one_starts(copy: Path) -> None:
    (copy / "notes.txt").touch()
    demo_folder.clear_demo(copy, KEYS)
    assert [path.name for path in copy.iterdir()] == ["notes.txt"]
    assert not demo_folder.is_demo(copy)


@pytest.mark.parametrize("name", ["settings.json", "pictures.safetensors", "adam.jsonl", "index.html"])
@pytest.mark.parametrize("content", ["mine", '{"kind": "mine"}', "[]"])
def test_files_of_the_user_are_not_removed(tmp_path: Path, name: str, content: str) -> None:
    (tmp_path / name).write_text(content)
    with pytest.raises(SettingError, match=f"{name}.*choose another folder"):
        demo_folder.begin_demo(tmp_path, KEYS)
    assert [(path.name, path.read_text()) for path in tmp_path.iterdir()] == [(name, content)]


def test_an_interrupted_demonstration_is_replaced(tmp_path: Path) -> None:
    demo_folder.begin_demo(tmp_path, KEYS)
    demo_folder.append_row(tmp_path, "adam", {"epoch": 0})
    assert not demo_folder.is_demo(tmp_path)
    demo_folder.begin_demo(tmp_path, KEYS)
    assert not (tmp_path / "adam.jsonl").exists()
