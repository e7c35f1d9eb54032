"""A set of twelve and five images of 3 x 4 pixels, made anew for each test; its IDX files are written out by hand."""

import gzip
import hashlib
import io
import struct
import tarfile

import numpy as np

from lifted_bregman.data._archives import Archive, idx_files
from lifted_bregman.data.registry import NpmPackage, SetInfo, register

SAMPLES, SHAPE, CLASSES = (12, 5), (3, 4), ("ant", "bee", "cow")
NAMES = (
    "train-images-idx3-ubyte",
    "train-labels-idx1-ubyte",
    "t10k-images-idx3-ubyte",
    "t10k-labels-idx1-ubyte",
)


def arrays(seed=0, samples=SAMPLES):
    draw = np.random.default_rng(seed)
    found = []
    for count in samples:
        found.append(draw.integers(0, 256, (count, *SHAPE), dtype=np.uint8))
        found.append(draw.integers(0, 3, count, dtype=np.uint8))
    return found


def idx_bytes(array):
    """By the format's description: two zero bytes, type 8, dimensions, sizes as big-endian 32 bits, bytes."""
    sizes = b"".join(struct.pack(">i", size) for size in array.shape)
    return bytes([0, 0, 8, array.ndim]) + sizes + array.tobytes()


def contents(seed=0, samples=SAMPLES):
    return {name: idx_bytes(array) for name, array in zip(NAMES, arrays(seed, samples), strict=True)}


def tiny(name="tiny", seed=0, samples=SAMPLES, **sources):
    """Registers the set and gives (info, content of each file)."""
    files = contents(seed, samples)
    sha256 = tuple(hashlib.sha256(content).hexdigest() for content in files.values())
    info = SetInfo(name, name.title(), samples, SHAPE, CLASSES, sha256, "nobody; free", **sources)
    register(info)
    return info, files


def put(folder, files, packed=True):
    folder.mkdir(parents=True, exist_ok=True)
    for name, content in files.items():
        path = folder / (f"{name}.gz" if packed else name)
        path.write_bytes(gzip.compress(content) if packed else content)
    return folder


def tarball(files, prefix="package/data/"):
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w:gz") as archive:
        for name, content in files.items():
            member = tarfile.TarInfo(prefix + name)
            member.size = len(content)
            archive.addfile(member, io.BytesIO(content))
    return buffer.getvalue()


def npm_package(archive, name="tiny-data", version="1.2.3"):
    return NpmPackage(name, version, Archive(hashlib.sha256(archive).hexdigest(), len(archive), idx_files))
