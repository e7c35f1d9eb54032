"""The archives of CIFAR-10, the authors' records and the pictures, become the same four IDX files."""

import hashlib
import io
import json

import numpy as np
import pytest

from lifted_bregman.data._archives import Archive, Failed, cifar10_binary, cifar10_pictures, idx_files
from tests.data.tiny import idx_bytes, tarball

BATCHES = [f"data_batch_{number}" for number in range(1, 6)] + ["test_batch"]


def batches():
    """Three images in each of six batches: red, green and blue planes of 32 rows of 32 pixels."""
    draw = np.random.default_rng(0)
    return {name: (draw.integers(0, 256, (3, 3, 32, 32), np.uint8), draw.integers(0, 10, 3)) for name in BATCHES}


def expected():
    found = batches()
    train = [found[name] for name in BATCHES[:5]]
    return {
        "train-images-idx4-ubyte": idx_bytes(np.concatenate([images for images, _ in train])),
        "train-labels-idx1-ubyte": idx_bytes(np.concatenate([labels for _, labels in train]).astype(np.uint8)),
        "t10k-images-idx4-ubyte": idx_bytes(found["test_batch"][0]),
        "t10k-labels-idx1-ubyte": idx_bytes(found["test_batch"][1].astype(np.uint8)),
    }


def binary():
    files = {}
    for name, (images, labels) in batches().items():
        records = b"".join(bytes([label]) + image.tobytes() for image, label in zip(images, labels, strict=True))
        files[f"{name}.bin"] = records
    return tarball(files | {"readme.html": b"<html>"}, "cifar-10-batches-bin/")


def pictures():
    image_module = pytest.importorskip("PIL.Image")
    files = {}
    for name, (images, _) in batches().items():
        rows = np.stack([image.transpose(1, 2, 0).reshape(1024, 3) for image in images])  # one image in each row
        buffer = io.BytesIO()
        image_module.fromarray(rows).save(buffer, "PNG")
        files[f"{name}.png"] = buffer.getvalue()
    labels = [int(label) for name in BATCHES[:5] for label in batches()[name][1]]
    files["train_lables.json"] = json.dumps(labels).encode()
    files["test_lables.json"] = json.dumps(batches()["test_batch"][1].tolist()).encode()
    return tarball(files | {"package.json": b"{}"}, "package/")


def unpacked(tmp_path, content, convert):
    path = tmp_path / "archive.tar.gz"
    path.write_bytes(content)
    return dict(Archive(hashlib.sha256(content).hexdigest(), len(content), convert).files(path))


@pytest.mark.parametrize(("pack", "convert"), [(binary, cifar10_binary), (pictures, cifar10_pictures)])
def test_both_forms_of_cifar_10_give_the_same_files(tmp_path, pack, convert):
    assert unpacked(tmp_path, pack(), convert) == expected()


@pytest.mark.parametrize(
    ("files", "convert"),
    [
        ({"data_batch_1.bin": bytes(3073)}, cifar10_binary),
        ({"data_batch_1.bin": bytes(30)}, cifar10_binary),
        ({"test_batch.png": b"no picture"}, cifar10_pictures),
        ({"train_lables.json": b"[1, 2"}, cifar10_pictures),
        ({"train_lables.json": b"[1, 2, 300, 4, 5]"}, cifar10_pictures),
        ({"train_lables.json": b"7"}, cifar10_pictures),
        ({"train_lables.json": b'{"a": 1}'}, cifar10_pictures),
    ],
)
def test_archives_with_something_else_fail_with_a_reason(tmp_path, files, convert):
    for content in (b"", b"no archive", tarball(files), tarball(files)[:-30]):
        with pytest.raises(Failed, match="does not hold what it should"):
            unpacked(tmp_path, content, convert)


def test_another_archive_is_not_opened(tmp_path):
    path = tmp_path / "archive.tar.gz"
    path.write_bytes(tarball({"x-ubyte": b"content"}))
    with pytest.raises(Failed, match="the archive is another one"):
        dict(Archive("0" * 64, 100, idx_files).files(path))


def test_an_archive_that_inflates_without_end_is_not_read_to_its_end(tmp_path):
    """What follows 80 MB of zeros, which the archive holds in 80 kB, is never reached."""
    content = tarball({"zeros": bytes(80 << 20), "x-ubyte": b"content"})
    with pytest.raises(Failed, match="inflates to more than 67,108,864 bytes"):
        unpacked(tmp_path, content, idx_files)
    assert unpacked(tmp_path, tarball({"zeros": bytes(1 << 20), "x-ubyte": b"content"}), idx_files)
