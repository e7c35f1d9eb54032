"""Folders of pictures by name: found, downloaded from a real server, verified, and never used where bytes are wrong."""

import gzip
import hashlib
import io
import re

import numpy as np
import pytest
import torch
from PIL import Image

from lifted_bregman import data
from lifted_bregman.data import PICTURES, PictureInfo, load_pictures
from lifted_bregman.errors import DataError
from tests.cli.program import call
from tests.data.server import running

PIXELS = {
    "a.png": np.arange(12, dtype=np.uint8).reshape(3, 4) * 20,
    "b.png": np.arange(30, dtype=np.uint8).reshape(2, 5, 3) * 8,
}


def png(pixels):
    file = io.BytesIO()
    Image.fromarray(pixels).save(file, "PNG")
    return file.getvalue()


CONTENT = {name: png(pixels) for name, pixels in PIXELS.items()}


@pytest.fixture
def server():
    with running() as server:
        yield server


@pytest.fixture
def tiny(server, monkeypatch):
    """A grey and a colour picture on the server: one in the first folder, both in the second."""
    lines = (f"{hashlib.sha256(body).hexdigest()} {len(body)} {name}" for name, body in CONTENT.items())
    addresses = (f"{server.url}one/", f"{server.url}two/")
    info = PictureInfo("tiny-pictures", "Tiny pictures", "small", addresses, "made here", "\n".join(lines))
    monkeypatch.setitem(PICTURES, info.name, info)
    server.serve("one/a.png", CONTENT["a.png"])
    for name, body in CONTENT.items():
        server.serve(f"two/{name}", body)
    return info


def test_pictures_are_downloaded_once_and_kept(tiny, server, cache):
    grey, colour = load_pictures("tiny-pictures")
    assert server.requests == ["/one/a.png", "/one/b.png", "/two/b.png"]
    assert grey.dtype == torch.float32 and grey.shape == (1, 3, 4) and colour.shape == (3, 2, 5)
    torch.testing.assert_close(grey[0], torch.from_numpy(PIXELS["a.png"]).float() / 255)
    torch.testing.assert_close(colour[2, 1, 0], torch.tensor(float(PIXELS["b.png"][1, 0, 2]) / 255))
    assert gzip.decompress((cache / "tiny-pictures" / "a.png.gz").read_bytes()) == CONTENT["a.png"]
    again = load_pictures("tiny-pictures", download=False)
    assert torch.equal(again[1], colour) and len(server.requests) == 3


def test_a_folder_of_the_user_is_read_without_changes(tiny, server, tmp_path):
    for name, body in CONTENT.items():
        (tmp_path / name).write_bytes(body)
    assert len(load_pictures("tiny-pictures", data_dir=tmp_path)) == 2 and server.requests == []
    (tmp_path / "b.png").write_bytes(CONTENT["a.png"])
    with pytest.raises(DataError, match=r"b\.png"):
        load_pictures("tiny-pictures", data_dir=tmp_path)


def test_wrong_bytes_are_not_used_and_damaged_files_of_the_cache_are_downloaded_again(tiny, server, cache):
    server.serve("two/b.png", CONTENT["b.png"][:-1] + b"!")
    with pytest.raises(
        DataError, match=r"cannot be had\. Tried: .*/one/b.png .*/two/b.png .*By hand: put a.png.gz, b.png.gz"
    ):
        load_pictures("tiny-pictures")
    assert not (cache / "tiny-pictures" / "b.png.gz").exists()
    server.serve("two/b.png", CONTENT["b.png"])
    (cache / "tiny-pictures" / "a.png.gz").write_bytes(b"damaged")
    assert len(load_pictures("tiny-pictures")) == 2


def test_without_the_network_the_error_has_the_remedy(tiny, cache):
    with pytest.raises(DataError, match=r"is not on this machine\. Looked in: .* By hand: put a\.png\.gz, b\.png\.gz"):
        load_pictures("tiny-pictures", download=False)
    with pytest.raises(DataError, match="there are no pictures 'bsd': the names are train400, bsd68, set12"):
        load_pictures("bsd")


def test_data_commands_list_get_and_verify_pictures(tiny, cache, capsys):
    assert re.search(r"tiny-pictures +2 pictures +small +- +to be got \(mirrors\)", call(capsys, "data", "list").out)
    called = call(capsys, "data", "get", "tiny-pictures")
    assert called.code == 0 and "is here and verified" in called.out and "/two/" in called.out
    assert data.whereabouts(tiny) == f"in {cache / 'tiny-pictures'}"
    assert "ok  " in call(capsys, "data", "verify", "tiny-pictures").out
    (cache / "tiny-pictures" / "a.png.gz").write_bytes(b"damaged")
    assert call(capsys, "data", "verify", "tiny-pictures").code != 0


def test_registered_pictures_have_the_published_counts():
    counts = {"train400": 400, "bsd68": 68, "set12": 12}
    for name, info in PICTURES.items():
        assert len(info.files) == counts[name] and len({file.sha256 for file in info.files}) == counts[name]
        assert all(len(file.sha256) == 64 and file.name.endswith(".png") for file in info.files)
        assert list(info.files) == sorted(info.files, key=lambda file: file.name)
