"""Tables for detection by name: downloaded from a real server, verified, and never used where the bytes are wrong."""

import hashlib
import io

import numpy as np
import pytest

from lifted_bregman.data import TABLES, TableInfo, load_table
from lifted_bregman.data.registry import FileInfo
from lifted_bregman.errors import DataError
from tests.cli.program import call
from tests.data.server import running


@pytest.fixture
def server():
    with running() as server:
        yield server


def test_a_table_is_downloaded_verified_and_listed(server, cache, monkeypatch, capsys):
    X, y = np.arange(12, dtype=np.uint8).reshape(6, 2), np.array([0, 0, 1, 0, 0, 1], dtype=np.int32)
    packed = io.BytesIO()
    np.savez_compressed(packed, X=X, y=y)
    content = packed.getvalue()
    file = FileInfo("9_tiny.npz", hashlib.sha256(content).hexdigest(), len(content))
    info = TableInfo("adbench-tiny", "tiny", file, (f"{server.url}table",), "made here", 6, 2, 2)
    monkeypatch.setitem(TABLES, info.name, info)
    server.serve("table", content[:-1] + b"!")
    with pytest.raises(DataError, match="adbench-tiny"):
        load_table("adbench-tiny")
    server.serve("table", content)
    found, labels = load_table("adbench-tiny")
    assert found.dtype == np.float64 and labels.dtype == np.int64
    np.testing.assert_array_equal(found, X)
    np.testing.assert_array_equal(labels, y)
    np.testing.assert_array_equal(load_table("adbench-tiny", download=False)[0], X)
    assert "6, 2 abnormal" in call(capsys, "data", "list").out
    assert "ok  " in call(capsys, "data", "verify", "adbench-tiny").out
    with pytest.raises(DataError, match=r"no table 'adbench-tinny' \(did you mean 'adbench-tiny'\?\): the tables are"):
        load_table("adbench-tinny")


def test_twenty_tables_are_registered():
    assert len(TABLES) == 20
    for name, info in TABLES.items():
        assert name == info.name and info.files == (info.file,) and len(info.file.sha256) == 64
        assert 0 < info.abnormal < info.samples / 2 and info.urls(info.file)[0].endswith(info.file.name)
