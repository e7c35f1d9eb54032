"""Tables that would take all memory or never end are refused, and the process stays small."""

from __future__ import annotations

import json
import os
import zipfile
from pathlib import Path

import numpy as np
import pytest

from lifted_bregman.errors import DataError
from lifted_bregman.experiments.tables import read_new_inputs, read_table
from tests import fresh

MEGABYTE = 1 << 20
MEASURE = """
import json, sys
from pathlib import Path
import numpy as np
from lifted_bregman.errors import DataError
from lifted_bregman.experiments.tables import read_new_inputs, read_table

def peak():
    # not getrusage: its maximum includes that of the process that started this one
    return next(int(line.split()[1]) for line in open("/proc/self/status") if line.startswith("VmHWM")) / 1024

readers = {
    "table": lambda path: read_table(path, None, True, True),
    "inputs": lambda path: read_new_inputs(path, ("a", "b")),
    "naive": lambda path: [value for value in np.load(path).values()],
}
for kind, path in zip(sys.argv[1::2], sys.argv[2::2]):
    before = peak()
    try:
        readers[kind](Path(path))
        said = ""
    except DataError as error:
        said = str(error)
    print(json.dumps([said, peak() - before]), flush=True)
"""


@pytest.mark.parametrize("kind", ["csv", "npz", "npy"])
@pytest.mark.parametrize("reader", ["table", "inputs"])
def test_what_is_no_regular_file_is_refused_before_it_is_read(tmp_path: Path, kind: str, reader: str) -> None:
    fifo, device = tmp_path / f"fifo.{kind}", tmp_path / f"device.{kind}"
    os.mkfifo(fifo)
    device.symlink_to("/dev/zero")
    opened = os.open(fifo, os.O_RDWR | os.O_NONBLOCK)  # so that nothing waits for a writer, and a read would be seen
    try:
        os.write(opened, b"1,2\n3,4\n")
        for path in (fifo, device):
            with pytest.raises(DataError, match=rf"{path.name} is no regular file"):
                read_table(path, None, False, False) if reader == "table" else read_new_inputs(path, ("a", "b"))
        assert os.read(opened, 100) == b"1,2\n3,4\n"
    finally:
        os.close(opened)


def test_lines_and_archives_are_refused_or_read_with_little_memory_however_much_they_inflate(tmp_path: Path) -> None:
    for name, start in (("plain.csv", ""), ("headings.csv", "a,b\n")):
        (tmp_path / name).write_text(start + "1," * (2 * MEGABYTE) + "1\n")
    others = {f"other_{number}": np.zeros(8 * MEGABYTE, np.uint8) for number in range(16)}
    np.savez_compressed(tmp_path / "others.npz", X=np.eye(3), y=np.arange(3), **others)
    np.savez_compressed(tmp_path / "inputs.npz", X=np.zeros((80, MEGABYTE), np.uint8), y=np.arange(80))
    cells, bytes_ = (
        ("more than the 1,048,576 cells", ".npy"),
        (f"{80 * MEGABYTE + 80 * 8 + 2 * 128:,} bytes", "numpy.savez"),
    )
    jobs: list[tuple[str, str, tuple[str, ...]]] = [
        ("table", "plain.csv", cells),
        ("inputs", "plain.csv", cells),
        ("inputs", "headings.csv", cells),
        ("table", "inputs.npz", bytes_),
        ("table", "others.npz", ()),
        ("naive", "others.npz", ()),
    ]
    arguments = [word for kind, name, _ in jobs for word in (kind, str(tmp_path / name))]
    run = fresh.run(MEASURE, *arguments)
    for (kind, name, words), line in zip(jobs, run.stdout.splitlines(), strict=True):
        said, added = json.loads(line)
        assert bool(said) == bool(words) and all(word in said for word in words), said
        if kind == "naive":
            assert added > 80  # so the measurement sees memory
        else:
            assert added < 50, f"{kind} {name} took {added} megabytes"


def test_an_archive_with_a_directory_of_many_members_is_refused(tmp_path: Path) -> None:
    with zipfile.ZipFile(tmp_path / "many.npz", "w") as archive:
        for number in range(20_000):
            archive.writestr(zipfile.ZipInfo(f"{number:0200d}"), b"")
    with pytest.raises(DataError, match=r"many.npz is damaged .*directory"):
        read_table(tmp_path / "many.npz", None, True, True)
