"""A file appears under its final name complete or not at all, whichever call of the file system fails."""

import errno
import os

import pytest

from lifted_bregman.data import files
from lifted_bregman.errors import DataError

CALLS = ("open", "fdopen", "fsync", "replace")


def write(path, content, fail=None):
    with files.replacing(path) as file:
        file.write(content[:2])
        if fail is not None:
            raise fail
        file.write(content[2:])


def test_a_file_is_written_and_replaced(tmp_path):
    path = tmp_path / "new" / "file"
    for content in (b"first", b"second, longer"):
        write(path, content)
        assert path.read_bytes() == content and os.listdir(path.parent) == ["file"]
    (tmp_path / "ordinary").write_bytes(b"")
    assert path.stat().st_mode == (tmp_path / "ordinary").stat().st_mode


@pytest.mark.parametrize("before", [None, b"what was there"])
@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EIO])
def test_a_failing_write_leaves_what_was_there(tmp_path, before, number):
    path = tmp_path / "file"
    if before is not None:
        path.write_bytes(before)
    said = "free some space" if number == errno.ENOSPC else "make it writable"
    with pytest.raises(DataError, match=f"cannot be written to .*: {said}"):
        write(path, b"content", OSError(number, os.strerror(number)))
    with pytest.raises(KeyboardInterrupt):
        write(path, b"content", KeyboardInterrupt())
    assert os.listdir(tmp_path) == ([] if before is None else ["file"])
    assert before is None or path.read_bytes() == before


@pytest.mark.parametrize("call", CALLS)
def test_every_failing_call_leaves_a_whole_file(tmp_path, monkeypatch, call):
    path = tmp_path / "file"
    path.write_bytes(b"old")
    real, calls = getattr(os, call), 0

    def failing(*arguments, **more):
        nonlocal calls
        calls += 1
        if calls == fails:
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        return real(*arguments, **more)

    for fails in range(1, 9):
        calls = 0
        with monkeypatch.context() as patch:
            patch.setattr(os, call, failing)
            try:
                write(path, b"new")
                assert calls < fails
                break
            except DataError:
                pass
        assert path.read_bytes() in (b"old", b"new") and os.listdir(tmp_path) == ["file"]
    assert fails > 1 and path.read_bytes() == b"new"


def test_a_scratch_folder_and_unfinished_files_of_others_are_removed(tmp_path):
    with pytest.raises(ValueError, match="inside"), files.scratch_folder(tmp_path) as work:
        (work / "part").write_bytes(b"x")
        raise ValueError("inside")
    assert os.listdir(tmp_path) == []
    (tmp_path / ".lifted-dead.part").write_bytes(b"x")
    (tmp_path / ".lifted-folder.part").mkdir()
    (tmp_path / ".mine.part").write_bytes(b"x")
    with files.locked(tmp_path):
        assert os.listdir(tmp_path) == [".mine.part"]  # the name of another program


def test_the_content_is_on_disk_before_the_name_and_the_name_before_the_return(tmp_path, monkeypatch):
    calls, fsync, replace = [], os.fsync, os.replace
    monkeypatch.setattr(os, "fsync", lambda handle: (fsync(handle), calls.append(os.fstat(handle).st_ino))[0])
    monkeypatch.setattr(os, "replace", lambda *names: (replace(*names), calls.append("rename"))[0])
    write(tmp_path / "file", b"content")
    assert calls == [(tmp_path / "file").stat().st_ino, "rename", tmp_path.stat().st_ino]
