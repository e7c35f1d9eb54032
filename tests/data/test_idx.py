"""The IDX reader: the format, 2,000 damaged files, decompression bombs."""

import gzip
import io
import json
import zlib

import numpy as np
import pytest

from lifted_bregman import data
from lifted_bregman.data import idx
from lifted_bregman.errors import DataError
from tests import fresh
from tests.data.tiny import arrays, idx_bytes, put, tiny

TYPES = {0x08: ">u1", 0x09: ">i1", 0x0B: ">i2", 0x0C: ">i4", 0x0D: ">f4", 0x0E: ">f8"}


@pytest.mark.parametrize("code", TYPES)
@pytest.mark.parametrize("packed", [False, True])
def test_every_type_of_value_is_read(tmp_path, code, packed):
    expected = (np.arange(24).reshape(2, 3, 4) - 7).astype(TYPES[code])
    content = bytes([0, 0, code, 3, 0, 0, 0, 2, 0, 0, 0, 3, 0, 0, 0, 4]) + expected.tobytes()
    path = tmp_path / "images"
    path.write_bytes(gzip.compress(content) if packed else content)
    found = idx.read(path)
    assert found.dtype == np.dtype(TYPES[code]).newbyteorder("=") and found.dtype.isnative
    np.testing.assert_array_equal(found, expected)


def test_what_is_written_is_the_format():
    array = np.arange(24, dtype=np.uint8).reshape(2, 3, 4)
    assert idx.to_bytes(array) == idx_bytes(array)
    assert idx.to_bytes(np.zeros((300, 2), np.uint8))[:12] == bytes([0, 0, 8, 2, 0, 0, 1, 44, 0, 0, 0, 2])
    np.testing.assert_array_equal(idx.from_bytes(idx_bytes(array), (2, 3, 4)), array)
    for shape in ((2, 3, 3), (2, 12), (3, 2, 4)):
        with pytest.raises(DataError, match="no IDX file"):
            idx.from_bytes(idx_bytes(array), shape)


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b"", "begins with the bytes (none)"),
        (b"\0\0\x08", "begins with the bytes 00 00 08"),
        (b"\0\x01\x08\x01\0\0\0\x01a", "no IDX file"),
        (b"\0\0\x07\x01\0\0\0\x01a", "no IDX file"),
        (b"\0\0\x08\x00a", "1 to 8 dimensions"),
        (b"\0\0\x08\x09" + b"\0\0\0\x01" * 9 + b"a", "1 to 8 dimensions"),
        (b"\0\0\x08\x02\0\0\0\x01", "ends inside its header"),
        (b"\0\0\x08\x01\0\0\0\0", "holds no values"),
        (b"\0\0\x08\x01\0\0\0\x03ab", "too short: 2 bytes of the 3"),
        (b"\0\0\x08\x01\0\0\0\x03abcd", "too long"),
        (b"\0\0\x0d\x01\0\0\0\x02abcdef", "too short: 6 bytes of the 8"),
        (b"\0\0\x08\x04" + b"\xff" * 16 + b"a", "announces"),
    ],
)
def test_anything_else_is_refused_with_the_reason(tmp_path, content, said):
    for packed in (False, True):
        path = tmp_path / "images"
        path.write_bytes(gzip.compress(content) if packed else content)
        with pytest.raises(DataError) as caught:
            idx.read(path)
        assert str(path) in str(caught.value)
        assert said in str(caught.value)


def test_folders_missing_files_and_devices_are_refused(tmp_path):
    with pytest.raises(DataError, match="does not exist"):
        idx.read(tmp_path / "nothing")
    for path in (tmp_path, "/dev/zero"):
        with pytest.raises(DataError, match="no regular file"):
            idx.read(type(tmp_path)(path))


def mutated(content, draw):
    """One to three changes of the kinds that disks, transfers and people make."""
    content = bytearray(content)
    for _ in range(draw.integers(1, 4)):
        if not content:
            break
        place = int(draw.integers(len(content)))
        if draw.random() < 0.4:
            place = min(place, int(draw.integers(24)))  # headers are short; hit them often
        match draw.integers(8):
            case 0:
                content[place] ^= 1 << int(draw.integers(8))
            case 1:
                content[place] = int(draw.integers(256))
            case 2:
                del content[place:]
            case 3:
                content += draw.bytes(int(draw.integers(1, 40)))
            case 4:
                content[place:place] = draw.bytes(int(draw.integers(1, 9)))
            case 5:
                del content[place : place + int(draw.integers(1, 9))]
            case 6:
                content[place : place + 16] = bytes(len(content[place : place + 16]))
            case 7:
                content += content[place:]
    return bytes(content)


TRIALS = pytest.mark.parametrize("trials", [500, pytest.param(2000, marks=pytest.mark.long)])


@TRIALS
def test_damaged_files_of_a_named_set_are_refused_or_identical(tmp_path, trials):
    info, files = tiny()
    good = data.load("tiny", data_dir=put(tmp_path / "good" / "tiny", files).parent)
    draw, refused, identical = np.random.default_rng(1), 0, 0
    folder = put(tmp_path / "bad" / "tiny", files)
    for trial in range(trials):
        file = info.files[trial % 4].name
        path = folder / f"{file}.gz"
        whole = path.read_bytes()
        match trial % 3:
            case 0:  # the gzipped file
                path.write_bytes(mutated(whole, draw))
            case 1:  # its content, gzipped again: only the sha256 can tell
                path.write_bytes(gzip.compress(mutated(files[file], draw), compresslevel=int(draw.integers(10))))
            case 2:  # its content, not gzipped
                path.write_bytes(mutated(files[file], draw))
        try:
            found = data.load("tiny", data_dir=folder.parent, download=False)
        except DataError as error:
            assert file in str(error)
            refused += 1
        else:
            for part in ("train", "test"):
                assert getattr(found, part).X.equal(getattr(good, part).X)
                assert getattr(found, part).y.equal(getattr(good, part).y)
            identical += 1
        path.write_bytes(whole)
    assert refused > 0.9 * trials and identical > 0  # gzip headers hold a time and a system that mean nothing


@TRIALS
def test_damaged_files_are_refused_or_read_as_what_they_say(tmp_path, trials):
    images, labels, *_ = (idx_bytes(array) for array in arrays())
    floats = bytes([0, 0, 0x0E, 2, 0, 0, 0, 6, 0, 0, 0, 5]) + np.linspace(-1, 1, 30).astype(">f8").tobytes()
    draw, read = np.random.default_rng(2), 0
    path = tmp_path / "images"
    for trial in range(trials):
        content = (images, labels, floats)[trial % 3]
        packed = mutated(gzip.compress(content), draw) if trial % 2 else mutated(content, draw)
        path.write_bytes(packed)
        try:
            found = idx.read(path)
        except DataError:
            continue
        read += 1
        plain = gzip.GzipFile(fileobj=io.BytesIO(packed)).read() if packed[:2] == b"\x1f\x8b" else packed
        assert plain[:3] == bytes([0, 0, plain[2]]) and plain[3] == found.ndim
        expected = np.frombuffer(plain, TYPES[plain[2]], offset=4 + 4 * found.ndim)
        assert found.tobytes() == expected.astype(expected.dtype.newbyteorder("=")).tobytes()
        assert found.shape == tuple(np.frombuffer(plain, ">u4", found.ndim, offset=4))
    assert 0.05 * trials < read < 0.95 * trials


def bomb(size, header=b""):
    """A gzip file of `header` and about `size` zeros, a thousandth as long."""
    block = bytes(1 << 24)
    packer = zlib.compressobj(9, zlib.DEFLATED, -15)
    start = packer.compress(header) + packer.flush(zlib.Z_FULL_FLUSH)
    once = packer.compress(block) + packer.flush(zlib.Z_FULL_FLUSH)
    times = size // len(block)
    check, length = zlib.crc32(header), len(header) + times * len(block)
    for _ in range(times):
        check = zlib.crc32(block, check)
    body = start + once * times + packer.flush()
    trailer = check.to_bytes(4, "little") + (length & 0xFFFFFFFF).to_bytes(4, "little")
    return b"\x1f\x8b\x08\0\0\0\0\0\0\xff" + body + trailer, length


MEASURE = """
import gzip, json, sys
from pathlib import Path
from lifted_bregman.errors import DataError
from lifted_bregman import data
from lifted_bregman.data import idx
from tests.data.tiny import tiny
tiny("tiny", samples=(60_000, 10_000))

def memory(field):
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith(field)) / 1024

def naive(path):
    gzip.decompress(path.read_bytes())

readers = {"idx": idx.read, "array": data.read_array, "naive": naive,
           "named": lambda path: data.load("tiny", data_dir=path.parent, download=False)}
for kind, path in (line.split() for line in sys.argv[1:]):
    Path("/proc/self/clear_refs").write_text("5")  # the peak is counted from here
    before = memory("VmRSS")
    try:
        readers[kind](Path(path))
        refused = False
    except DataError:
        refused = True
    print(json.dumps([kind, refused, memory("VmHWM") - before]))
"""


def test_a_bomb_of_one_megabyte_adds_less_than_100_megabytes(tmp_path):
    info, files = tiny(samples=(60_000, 10_000))
    honest = bytes([0, 0, 8, 3, 0, 0, 4, 0, 0, 0, 4, 0, 0, 0, 4, 0])  # announces 1 GiB, which is what comes
    modest = bytes([0, 0, 8, 1, 0, 0, 1, 0])  # announces 256 bytes
    packed, length = bomb(1 << 30, honest)
    assert length == 16 + (1 << 30) and 900_000 < len(packed) < 1_200_000
    (tmp_path / "honest.idx.gz").write_bytes(packed)
    (tmp_path / "modest.idx.gz").write_bytes(bomb(1 << 28, modest)[0])
    (tmp_path / "naive.gz").write_bytes(bomb(1 << 28)[0])
    folder = put(tmp_path / "sets" / "tiny", files)
    (folder / f"{info.files[0].name}.gz").write_bytes(packed)
    jobs = [
        f"idx {tmp_path}/honest.idx.gz",
        f"array {tmp_path}/honest.idx.gz",
        f"idx {tmp_path}/modest.idx.gz",
        f"named {folder}",
        f"naive {tmp_path}/naive.gz",
    ]
    run = fresh.run(MEASURE, *jobs)
    for line in run.stdout.splitlines():
        kind, refused, added = json.loads(line)
        if kind == "naive":
            assert added > 200  # so the measurement sees memory
        else:
            assert refused and added < 100, line
