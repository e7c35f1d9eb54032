"""A user's own arrays: what is read, and what is refused with a reason."""

import gzip
import os
import struct

import numpy as np
import pytest

from lifted_bregman.data import read_array
from lifted_bregman.errors import DataError
from tests.data.test_idx import mutated
from tests.data.tiny import arrays, idx_bytes

IMAGES = arrays()[0]


@pytest.mark.parametrize("dtype", ["u1", "i8", "<f4", ">f4", ">i2", "f8", "f2", "?"])
@pytest.mark.parametrize("order", ["C", "F"])
def test_npy(tmp_path, dtype, order):
    expected = np.asarray(IMAGES.astype(dtype), order=order)
    np.save(tmp_path / "a.npy", expected)
    found = read_array(tmp_path / "a.npy")
    np.testing.assert_array_equal(found, expected)
    assert found.dtype == expected.dtype.newbyteorder("=")


@pytest.mark.parametrize("name", ["a.idx", "a.idx.gz", "a-ubyte", "a-idx3-ubyte.gz", "A.IDX"])
def test_idx(tmp_path, name):
    content = idx_bytes(IMAGES)
    (tmp_path / name).write_bytes(gzip.compress(content) if name.endswith("gz") else content)
    np.testing.assert_array_equal(read_array(str(tmp_path / name)), IMAGES)


@pytest.mark.parametrize(
    "text",
    [
        "1,2.5,-3\n4,5e1,6\n",
        "\ufeffa,b,c\n1,2.5,-3\n4,5e1,6",
        "a,b,c\r\n1, 2.5,-3\r\n4,50, 6\r\n",
        "\n1,\t2.5,\t-3\n\n4,50 ,6\n",
    ],
)
def test_csv(tmp_path, text):
    (tmp_path / "a.csv").write_bytes(text.encode())
    np.testing.assert_array_equal(read_array(tmp_path / "a.csv"), [[1, 2.5, -3], [4, 50, 6]])


class Runs:
    """Executes a command when it is unpickled."""

    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return os.mkdir, (str(self.path),)


def test_pickled_objects_are_not_read(tmp_path):
    np.save(tmp_path / "a.npy", np.array([Runs(tmp_path / "executed")], object), allow_pickle=True)
    with pytest.raises(DataError, match="expected numbers"):
        read_array(tmp_path / "a.npy")
    assert not (tmp_path / "executed").exists()


def npy(shape, dtype="<f4", values=b"", header=None):
    text = header or f"{{'descr': '{dtype}', 'fortran_order': False, 'shape': {shape}, }}"
    return b"\x93NUMPY\x01\x00" + struct.pack("<H", len(text)) + text.encode() + values


@pytest.mark.parametrize(
    ("name", "content", "said"),
    [
        ("a.npy", b"", "no .npy file"),
        ("a.npy", b"\x93NUMPY\x09\x00rest", "no .npy file"),
        ("a.npy", npy((2, 2), values=bytes(15)), "announces the shape (2, 2), 16 bytes of values, and holds 15"),
        ("a.npy", npy((2, 2), values=bytes(17)), "and holds 17"),
        ("a.npy", npy((1 << 40, 1 << 40)), "it is damaged"),
        ("a.npy", npy((-1, 4), values=bytes(16)), "no .npy file"),
        ("a.npy", npy((0, 4)), "holds no samples"),
        ("a.npy", npy((), values=bytes(4)), "holds no samples"),
        ("a.npy", npy((1,), "<c8", bytes(8)), "complex64; expected numbers"),
        ("a.npy", npy((1,), "|S4", bytes(4)), "expected numbers"),
        ("a.npy", npy((1,), "<M8[s]", bytes(8)), "expected numbers"),
        ("a.npy", npy((1,), header="__import__('os').getcwd()"), "no .npy file"),
        pytest.param("a.npy", npy((1,), header="(" * 3000), "no .npy file", id="deep"),
        ("a.npy", npy((1,), header="{'descr': '<f4'"), "no .npy file"),
        ("a.npy", npy((2, 2), values=struct.pack("<4f", 1, 2, 3, float("nan"))), "NaN or infinity, first in row 1"),
        ("a.npy", gzip.compress(npy((1,), values=bytes(4)), mtime=0), "no .npy file"),
        ("a.idx", bytes([0, 0, 0x0D, 1, 0, 0, 0, 1]) + struct.pack(">f", float("inf")), "first in row 0"),
        ("a.csv", b"", "holds no samples"),
        ("a.csv", b"a,b\n", "holds no samples"),
        ("a.csv", b"\n\n", "holds no samples"),
        ("a.csv", b"1,2\n3\n", "no table of numbers"),
        ("a.csv", b"1,2\n3,x\n", "could not convert string 'x'"),
        ("a.csv", b"1,2\n3,\n", "no table of numbers"),
        ("a.csv", b"1,2\n3,nan\n", "first in row 1"),
        ("a.csv", b"1,1e999\n", "first in row 0"),
        ("a.csv", b"1,\xff\n", "no table of numbers"),
        ("a.csv", b"1;2\n3;4\n", "by semicolons; expected commas"),
        ("a.csv", b"a;b\n3;4\n", "by semicolons"),
        ("a.csv", b"1,5;2,5\n3,5;4\n", "by semicolons; expected commas: save it again with commas between the cells"),
        ("a.csv", b"a, b;c\n1,5;2,5\n", "by semicolons"),
        ("a.csv", b"1\t2\n3\t4\n", "by tabs"),
        ("a.csv", b"1 2\n3 4\n", "by spaces"),
        ("a.csv", b"a b\n1,x\n", "could not convert string 'x'"),
        ("a.npz", b"PK", "whose name ends in .npy"),
        ("a.png", b"", "whose name ends in .npy"),
        ("a.pt", b"", "whose name ends in .npy"),
    ],
)
def test_anything_else_is_refused_with_the_reason(tmp_path, name, content, said):
    path = tmp_path / name
    path.write_bytes(content)
    with pytest.raises(DataError) as caught:
        read_array(path)
    assert str(path) in str(caught.value) and said in str(caught.value)


def test_missing_files_folders_and_devices_are_refused(tmp_path):
    with pytest.raises(DataError, match="does not exist"):
        read_array(tmp_path / "a.npy")
    (tmp_path / "b.npy").mkdir()
    with pytest.raises(DataError, match="no regular file"):
        read_array(tmp_path / "b.npy")
    (tmp_path / "c.csv").symlink_to("/dev/zero")
    with pytest.raises(DataError, match="no regular file"):
        read_array(tmp_path / "c.csv")
    os.mkfifo(tmp_path / "d.npy")
    with pytest.raises(DataError, match="no regular file"):
        read_array(tmp_path / "d.npy")


def test_600_damaged_npy_and_csv_files_give_an_array_or_a_data_error(tmp_path):
    np.save(tmp_path / "a.npy", np.linspace(0, 1, 60, dtype=np.float32).reshape(12, 5))
    npy = (tmp_path / "a.npy").read_bytes()
    csv = b"\n".join(b",".join(b"%.3f" % value for value in row) for row in np.random.default_rng(0).random((12, 5)))
    draw, read = np.random.default_rng(3), 0
    for trial in range(600):
        path = tmp_path / ("b.npy", "b.csv")[trial % 2]
        path.write_bytes(mutated((npy, csv)[trial % 2], draw))
        try:
            found = read_array(path)
        except DataError:
            continue
        read += 1
        assert found.size and found.dtype.kind in "buif" and np.isfinite(found).all()
    assert 0 < read < 600
