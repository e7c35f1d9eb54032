"""Any call to the file system may fail, at any moment: the folder is then as it was before."""

import errno
import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from lifted_bregman.errors import CheckpointError
from lifted_bregman.training import files
from lifted_bregman.training.checkpoints import Checkpoints
from tests import fresh
from tests.training.checkpoint_helpers import bits, content, memory_folder, snapshot

CALLS = ("open", "write", "fsync", "rename", "replace", "mkdir", "unlink", "rmdir", "listdir", "scandir", "lstat")


@pytest.fixture
def tmp_path() -> Iterator[Path]:
    with memory_folder() as folder:
        yield folder


class Faults:
    """Counts the calls of the writer to the file system; the k-th one fails, and all later ones if `for_good`."""

    def __init__(
        self,
        patch: pytest.MonkeyPatch,
        fail_at: int,
        fault: BaseException,
        after: bool = False,
        for_good: bool = False,
    ) -> None:
        self.calls: list[str] = []
        self.failed = False
        self._fail_at, self._fault, self._after, self._for_good = fail_at, fault, after, for_good
        for name in CALLS:
            patch.setattr(os, name, self._wrapped(name, getattr(os, name)))

    def _wrapped(self, name: str, function: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: Any, **named: Any) -> Any:
            self.calls.append(name)
            if len(self.calls) < self._fail_at or (len(self.calls) > self._fail_at and not self._for_good):
                return function(*args, **named)
            self.failed = True
            if self._after:
                with suppress(OSError):
                    result = function(*args, **named)
                    if name == "open":
                        os.close(result)
                    elif name == "scandir":
                        result.close()
            raise self._fault

        return call


def filled(folder: Path) -> Checkpoints:
    checkpoints = Checkpoints(folder)
    for step in (1, 2, 3):
        checkpoints.save(snapshot(step), best=step == 1)
    return checkpoints


FAULTS = {
    "EIO": (OSError(errno.EIO, os.strerror(errno.EIO)), False),
    "ENOSPC": (OSError(errno.ENOSPC, os.strerror(errno.ENOSPC)), False),
    "interrupt before": (KeyboardInterrupt(), False),
    "interrupt after": (KeyboardInterrupt(), True),
}


@pytest.mark.parametrize("step", [4, 3], ids=["a new step", "a step saved again"])
@pytest.mark.parametrize("kind", FAULTS)
def test_the_kth_call_fails(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str, step: int) -> None:
    fault, after = FAULTS[kind]
    previous, new = bits(snapshot(3)), bits(snapshot(step + 100).parts["model"])
    raised = survived = 0
    template = tmp_path / "template"
    filled(template)
    before = content(template)
    for k in range(1, 500):
        folder = tmp_path / str(k)
        shutil.copytree(template, folder)
        checkpoints = Checkpoints(folder)
        saving = snapshot(step)
        saving.parts["model"] = dict(snapshot(step + 100).parts["model"])  # so that it differs from the one there
        error: BaseException | None = None
        with monkeypatch.context() as patch:
            faults = Faults(patch, k, fault, after)
            try:
                checkpoints.save(saving)
            except (CheckpointError, KeyboardInterrupt) as caught:
                error = caught
        assert not [entry for entry in folder.iterdir() if entry.name.startswith(".")], faults.calls
        loaded = checkpoints.load()
        assert loaded.warning is None
        now = bits(loaded.snapshot.parts["model"])
        if error is None:
            assert (loaded.snapshot.step, now) == (step, new)
            if not faults.failed:
                break
            survived += 1
        elif isinstance(error, CheckpointError):
            assert error.__cause__ is fault
            assert content(folder) == before, faults.calls
            assert bits(loaded.snapshot) == previous
            raised += 1
        elif content(folder) == before:
            raised += 1
        else:  # interrupted while it was tidying up: the new one is there, and whole
            assert (loaded.snapshot.step, now) == (step, new), faults.calls
            survived += 1
        best = checkpoints.best()
        assert best is not None and bits(best.snapshot) == bits(snapshot(1))
        shutil.rmtree(folder)
    else:
        pytest.fail("the save never passed")
    # Every kind of call was met, most of them before the checkpoint counted as saved.
    assert set(faults.calls) >= {"open", "write", "fsync", "mkdir", "unlink", "rmdir", "rename", "replace"}
    assert raised > 25
    assert checkpoints.steps() == ([1, 3, 4] if step == 4 else [1, 2, 3])


@pytest.mark.parametrize("step", [4, 3], ids=["a new step", "a step saved again"])
def test_a_disk_that_is_gone_from_the_kth_call_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, step: int) -> None:
    # Nothing can be tidied up then, but whatever is there under its final name is whole.
    template = tmp_path / "template"
    filled(template)
    for k in range(1, 500):
        folder = tmp_path / str(k)
        shutil.copytree(template, folder)
        checkpoints = Checkpoints(folder)
        with monkeypatch.context() as patch:
            faults = Faults(patch, k, FAULTS["EIO"][0], for_good=True)
            with suppress(CheckpointError):
                checkpoints.save(snapshot(step))
        loaded = checkpoints.load()
        assert loaded.warning is None
        assert bits(loaded.snapshot) == bits(snapshot(loaded.snapshot.step))
        assert loaded.snapshot.step in (3, step)
        if not faults.failed:
            break
        shutil.rmtree(folder)
    assert k > 25


@pytest.mark.parametrize("kind", ["EIO", "interrupt before", "interrupt after"])
def test_the_kth_call_fails_on_the_way_back(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str) -> None:
    fault, after = FAULTS[kind]
    template = tmp_path / "template"
    filled(template)
    before = content(template)
    for k in range(1, 500):
        folder = tmp_path / str(k)
        shutil.copytree(template, folder)
        checkpoints = Checkpoints(folder)
        error: BaseException | None = None
        with monkeypatch.context() as patch:
            faults = Faults(patch, k, fault, after)
            try:
                checkpoints.rewind(2)
            except (CheckpointError, KeyboardInterrupt) as caught:
                error = caught
        assert not [entry for entry in folder.iterdir() if entry.name.startswith(".")], faults.calls
        assert bits(checkpoints.load().snapshot) == bits(snapshot(checkpoints.steps()[-1]))
        if error is None and not faults.failed:
            break
        if isinstance(error, CheckpointError):
            assert content(folder) == before, faults.calls
        shutil.rmtree(folder)
    assert checkpoints.steps() == [1, 2]


@pytest.mark.parametrize(
    ("number", "remedy"),
    [
        (errno.ENOSPC, "Free some disk space, then resume."),
        (errno.EDQUOT, "Free some disk space, then resume."),
        (errno.EROFS, "Choose a folder that you may write to"),
        (errno.EACCES, "Choose a folder that you may write to"),
        (errno.EIO, "Check the disk, then resume."),
    ],
)
def test_the_error_says_what_to_do(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int, remedy: str) -> None:
    checkpoints = filled(tmp_path)
    fault = OSError(number, os.strerror(number))
    with monkeypatch.context() as patch, pytest.raises(CheckpointError) as caught:
        Faults(patch, 12, fault)
        checkpoints.save(snapshot(4))
    assert caught.value.__cause__ is fault
    for words in ("the checkpoint of step 4 was not written", str(tmp_path), os.strerror(number), "untouched", remedy):
        assert words in str(caught.value)


def test_short_writes_are_continued(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    checkpoints, write, counts = Checkpoints(tmp_path), os.write, []

    def short(descriptor: int, data: Any) -> int:
        counts.append(len(data))
        return write(descriptor, bytes(data[: max(1, len(data) // 3)]))

    with monkeypatch.context() as patch:
        patch.setattr(os, "write", short)
        checkpoints.save(snapshot(1))
    assert len(counts) > 30
    assert bits(checkpoints.load().snapshot) == bits(snapshot(1))


def test_a_limit_of_the_kernel_is_an_error_that_leaves_nothing(tmp_path: Path) -> None:
    # The kernel itself cuts a write short and then refuses the rest; a limit stays for ever, hence another process.
    filled(tmp_path)
    before = content(tmp_path)
    script = (
        "import resource, sys; from pathlib import Path\n"
        "from lifted_bregman.errors import CheckpointError\n"
        "from lifted_bregman.training.checkpoints import Checkpoints\n"
        "from tests.training.checkpoint_helpers import snapshot\n"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, 100_000))\n"
        "checkpoints = Checkpoints(Path(sys.argv[1]))\n"
        "try: checkpoints.save(snapshot(4, width=300))\n"
        "except CheckpointError as error: print(error)\n"
    )
    run = fresh.run(script, tmp_path)
    assert "File too large" in run.stdout and "Free some disk space" in run.stdout
    assert content(tmp_path) == before


def test_what_is_renamed_has_reached_the_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # After a loss of power only what was fsynced is sure to be there, so the order of calls is the promise.
    paths: dict[int, Path] = {}
    events: list[tuple[str, Path]] = []
    real = {name: getattr(os, name) for name in ("open", "write", "fsync", "close", "rename", "replace")}

    def opened(path: Any, *args: Any, **named: Any) -> int:
        descriptor = int(real["open"](path, *args, **named))
        paths[descriptor] = Path(path)
        return descriptor

    def watched(name: str) -> Callable[..., Any]:
        def call(descriptor: int, *args: Any) -> Any:
            events.append((name, paths.pop(descriptor) if name == "close" else paths[descriptor]))
            return real[name](descriptor, *args)

        return call

    def moved(function: Callable[..., None]) -> Callable[..., None]:
        def call(source: Path, target: Path) -> None:
            events.append(("move", target))
            function(source, target)

        return call

    checkpoints = filled(tmp_path)
    with monkeypatch.context() as patch:
        patch.setattr(os, "open", opened)
        for name in ("write", "fsync", "close"):
            patch.setattr(os, name, watched(name))
        for name in ("rename", "replace"):
            patch.setattr(os, name, moved(real[name]))
        final = checkpoints.save(snapshot(4))
    published = events.index(("move", final))
    pointed = events.index(("move", tmp_path / "LATEST"))
    retired = [number for number, (name, _) in enumerate(events) if name == "move" and number > pointed]
    names = {path.name for path in final.iterdir()}
    assert len(names) == 5
    for name in names:
        (file,) = {path for event, path in events if event == "write" and path.name == name}
        last_write = max(number for number, event in enumerate(events) if event == ("write", file))
        synced = events.index(("fsync", file))
        directory = events.index(("fsync", file.parent))
        assert last_write < synced < directory < published
    (pointer,) = {path for event, path in events if event == "write" and path.name == "LATEST"}
    folder_synced = [number for number, event in enumerate(events) if event == ("fsync", tmp_path)]
    assert published < folder_synced[0] < pointed < folder_synced[1] < min(retired)
    assert events.index(("write", pointer)) < events.index(("fsync", pointer)) < pointed


def test_the_entries_of_new_folders_reach_the_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    synced = []

    def sync(path: Path) -> None:
        synced.append(path)

    monkeypatch.setattr(files, "sync_directory", sync)
    files.make_folder(tmp_path / "a" / "b")
    assert synced == [tmp_path, tmp_path / "a"]
    assert (tmp_path / "a" / "b").is_dir()
