"""Texts by name: found, downloaded from a real server, verified, and never used where the bytes are wrong."""

import gzip
import hashlib
from dataclasses import replace

import pytest

from lifted_bregman import data
from lifted_bregman.data import TEXTS, TextInfo, load_text, texts
from lifted_bregman.data.registry import FileInfo
from lifted_bregman.errors import DataError
from tests.cli.program import call
from tests.data.server import running

CONTENT = "Ein Würfel\n".encode() * 50


@pytest.fixture
def server():
    with running() as server:
        yield server


@pytest.fixture
def tiny(server, monkeypatch):
    """A text on the server, at the second of its addresses."""
    file = FileInfo("input.txt", hashlib.sha256(CONTENT).hexdigest(), len(CONTENT))
    info = TextInfo("tiny-text", "Tiny text", file, (f"{server.url}gone", f"{server.url}text"), "made here")
    monkeypatch.setitem(TEXTS, info.name, info)
    server.serve("text", CONTENT)
    return info


def test_a_text_is_downloaded_once_and_kept(tiny, server, cache):
    assert load_text("tiny-text") == CONTENT.decode() and server.requests == ["/gone", "/text"]
    assert gzip.decompress((cache / "tiny-text" / "input.txt.gz").read_bytes()) == CONTENT
    assert load_text("tiny-text", download=False) == CONTENT.decode() and len(server.requests) == 2
    assert sorted(path.name for path in (cache / "tiny-text").iterdir() if not path.name.startswith(".")) == [
        "input.txt.gz",
        "source.txt",
    ]


def test_a_file_of_the_user_is_read_without_changes(tiny, server, tmp_path, cache):
    (tmp_path / "input.txt").write_bytes(CONTENT)
    assert load_text("tiny-text", data_dir=tmp_path) == CONTENT.decode() and server.requests == []


def test_wrong_bytes_are_not_used(tiny, server, cache, tmp_path):
    server.serve("text", CONTENT[:-1] + b"!")
    with pytest.raises(DataError, match=r"'tiny-text' cannot be had\. Tried: .*/gone .*/text .*By hand: put input.txt"):
        load_text("tiny-text")
    assert not (cache / "tiny-text" / "input.txt.gz").exists()
    (tmp_path / "input.txt").write_bytes(b"other")
    with pytest.raises(DataError, match=r"input\.txt"):
        load_text("tiny-text", data_dir=tmp_path)
    server.serve("text", CONTENT)
    (cache / "tiny-text").mkdir(exist_ok=True)
    (cache / "tiny-text" / "input.txt.gz").write_bytes(b"damaged")
    assert load_text("tiny-text") == CONTENT.decode()  # a damaged file in the cache is replaced


def test_without_the_network_the_error_has_the_remedy(tiny, cache):
    with pytest.raises(DataError, match=r"is not on this machine\. Looked in: .*By hand: put input\.txt\.gz \(or"):
        load_text("tiny-text", download=False)
    with pytest.raises(DataError, match="there is no text 'shakespeare': the texts are tiny-shakespeare"):
        load_text("shakespeare")


def test_data_commands_list_get_and_verify_texts(tiny, cache, capsys):
    assert "tiny-text" in call(capsys, "data", "list").out
    assert data.whereabouts(tiny) == "to be got (mirrors)"
    called = call(capsys, "data", "get", "tiny-text")
    assert called.code == 0 and "is here and verified" in called.out and "/text" in called.out
    assert data.whereabouts(tiny) == f"in {cache / 'tiny-text'}"
    assert "ok  " in call(capsys, "data", "verify", "tiny-text").out
    assert "copied: Tiny text from the cache" in data.get("tiny-text", data_dir=cache / "mine")
    assert (cache / "mine" / "tiny-text" / "input.txt.gz").exists()
    (cache / "tiny-text" / "input.txt.gz").write_bytes(b"damaged")
    assert call(capsys, "data", "verify", "tiny-text").code != 0


def test_tiny_shakespeare_is_the_file_of_char_rnn():
    info = TEXTS["tiny-shakespeare"]
    assert info.file.size == 1_115_394 and len(info.file.sha256) == 64 and info.files == (info.file,)
    assert replace(info, name="x").name == "x" and texts.TEXTS is TEXTS
