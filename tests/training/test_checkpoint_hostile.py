"""Checkpoints made by somebody hostile: nothing is executed, nothing outside is read, memory stays bounded.

Each case spoils a sound checkpoint and signs it anew, so that hashes give no protection.  One process with a hook on
every sensitive operation then tries to load and to verify them all.
"""

from __future__ import annotations

import json
import os
import shutil
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from lifted_bregman.errors import CheckpointError
from lifted_bregman.training.checkpoints import Checkpoints, verify_checkpoint
from tests import fresh
from tests.training.checkpoint_helpers import memory_folder, snapshot
from tests.training.hostile_checkpoints import CASES, PICKLE

STEP = "step-00000001"


LOADER = """
import json, sys
from pathlib import Path
import torch
from lifted_bregman.errors import CheckpointError
from lifted_bregman.training.checkpoints import Checkpoints, verify_checkpoint
root = Path(sys.argv[1])
Checkpoints(root / "sound").load(), verify_checkpoint(root / "sound" / "step-00000001")
inside, suspicious = ["-"], []
def hook(event, args):
    if event == "open" and isinstance(args[0], (str, bytes)):
        name = args[0] if isinstance(args[0], str) else args[0].decode()
        if inside[0] != "-" and "/" in name and not name.startswith(str(root)) and not name.startswith("/proc/"):
            suspicious.append([inside[0], event, name])
    elif event.split(".")[0] in ("pickle", "exec", "compile", "import", "subprocess", "socket", "ctypes") or event in (
        "os.system", "os.exec", "os.posix_spawn", "os.fork", "os.remove", "os.rename", "os.mkdir"
    ):
        if inside[0] != "-":
            suspicious.append([inside[0], event, str(args)[:200]])
sys.addaudithook(hook)
def peak():
    # not getrusage: its maximum includes that of the process that started this one
    return next(int(line.split()[1]) for line in open("/proc/self/status") if line.startswith("VmHWM")) * 1024
results, before = {}, peak()
for folder in sorted(entry for entry in root.iterdir() if entry.name != "sound"):
    answers = []
    for attempt in (lambda: Checkpoints(folder).load(1), lambda: verify_checkpoint(folder / "step-00000001")):
        start = peak()
        inside[0] = folder.name
        try:
            attempt()
            answers.append("accepted")
        except CheckpointError as error:
            answers.append(str(error))
        except BaseException as error:
            answers.append(f"CRASH {type(error).__name__}: {error}")
        inside[0] = "-"
        answers.append(peak() - start)
    results[folder.name] = answers
json.dump({"results": results, "suspicious": suspicious, "growth": peak() - before}, sys.stdout)
"""


@pytest.fixture(scope="module")
def folder() -> Iterator[Path]:
    with memory_folder() as root:
        for number, (spoil, _) in enumerate([(lambda path: None, ""), *CASES.values()]):
            parent = root / ("sound" if number == 0 else f"{number:03d}")
            Checkpoints(parent).save(snapshot(1))
            spoil(parent / STEP)
        yield root


@pytest.fixture(scope="module")
def report(folder: Path) -> dict[str, Any]:
    run = fresh.run(LOADER, folder, cwd=folder)
    return dict(json.loads(run.stdout))


def test_every_case_is_refused_with_the_reason(report: dict[str, Any]) -> None:
    wrong = []
    for number, (name, (_, words)) in enumerate(CASES.items(), start=1):
        loaded, _, verified, _ = report["results"][f"{number:03d}"]
        if words not in loaded:
            wrong.append(f"{name}: load said {loaded[:300]!r}")
        if words not in verified:
            wrong.append(f"{name}: verify said {verified[:300]!r}")
    assert wrong == []


def test_nothing_is_executed_and_nothing_outside_is_opened(folder: Path, report: dict[str, Any]) -> None:
    assert report["suspicious"] == []
    assert not list(folder.rglob("executed"))


def test_the_hook_would_have_seen_a_pickle(tmp_path: Path) -> None:
    (tmp_path / "sound").mkdir()
    Checkpoints(tmp_path / "sound").save(snapshot(1))
    (tmp_path / "bad").mkdir()
    (tmp_path / "bad" / "x").write_bytes(PICKLE)
    script = LOADER.replace(
        "lambda: Checkpoints(folder).load(1)", "lambda: __import__('pickle').load(open(folder / 'x', 'rb'))"
    )
    run = fresh.run(script, tmp_path, cwd=tmp_path)
    assert {event for _, event, _ in json.loads(run.stdout)["suspicious"]} >= {"pickle.find_class", "os.system"}
    assert (tmp_path / "executed").exists()


def test_memory_stays_bounded(report: dict[str, Any]) -> None:
    growth = {name: max(answers[1], answers[3]) for name, answers in report["results"].items()}
    assert report["growth"] < 100e6, sorted(growth.items(), key=lambda item: -item[1])[:5]


def test_a_linked_checkpoint_is_not_followed(tmp_path: Path) -> None:
    checkpoints = Checkpoints(tmp_path / "here")
    checkpoints.save(snapshot(1))
    Checkpoints(tmp_path / "there").save(snapshot(2))
    (tmp_path / "here" / "step-00000002").symlink_to(tmp_path / "there" / "step-00000002")
    assert checkpoints.steps() == [1]
    assert checkpoints.load().snapshot.step == 1
    with pytest.raises(CheckpointError, match="is a link"):
        verify_checkpoint(tmp_path / "here" / "step-00000002")
    checkpoints.save(snapshot(2))  # takes the link's place and leaves what it points to
    assert not (tmp_path / "here" / "step-00000002").is_symlink()
    assert verify_checkpoint(tmp_path / "there" / "step-00000002").step == 2
    shutil.rmtree(tmp_path / "there")
    assert checkpoints.load().snapshot.step == 2


@pytest.mark.parametrize("make", [os.mkfifo, os.mkdir, lambda path: os.symlink("/dev/zero", path)])
def test_latest_may_be_anything(tmp_path: Path, make: Callable[[Path], None]) -> None:
    checkpoints = Checkpoints(tmp_path)
    checkpoints.save(snapshot(1))
    (tmp_path / "LATEST").unlink()
    make(tmp_path / "LATEST")
    loaded = checkpoints.load()
    assert loaded.snapshot.step == 1
    assert loaded.warning is not None and "LATEST" in loaded.warning
    checkpoints.save(snapshot(2))
    assert (tmp_path / "LATEST").read_text() == "step-00000002\n"
    assert checkpoints.load().warning is None


def test_the_modules_do_not_know_of_pickles() -> None:
    training = Path(sys.modules[Checkpoints.__module__].__file__ or "").parent
    for name in ("checkpoints", "files", "history_file", "manifest", "run_folder", "snapshot"):
        module = training / f"{name}.py"
        source = module.read_text()
        assert "import pickle" not in source and "torch.load" not in source, module
