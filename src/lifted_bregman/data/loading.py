"""Sets, pictures and texts by name, such as `load("mnist-1k")`, and the same set again from the record of a run."""

from __future__ import annotations

import io
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from lifted_bregman._text import did_you_mean
from lifted_bregman.data import idx
from lifted_bregman.data._http import DownloadProgress
from lifted_bregman.data.dataset import DataSet
from lifted_bregman.data.fetch import Found, fetch_files
from lifted_bregman.data.naming import parse
from lifted_bregman.data.pictures import PICTURES
from lifted_bregman.data.preparation import DTYPES, Preparation
from lifted_bregman.data.registry import SetInfo
from lifted_bregman.data.samples import Samples
from lifted_bregman.data.tables import TABLES
from lifted_bregman.data.texts import TEXTS
from lifted_bregman.data.transforms import Subset
from lifted_bregman.errors import DataError, SettingError


def load(
    name: str,
    *,
    data_dir: Path | str | None = None,
    download: bool = True,
    dtype: torch.dtype = torch.float32,
    seed: int = 0,
    progress: DownloadProgress | None = None,
) -> DataSet:
    """Return the set of this name, verified by the sha256 of its decompressed bytes.

    It is read from `data_dir`, else from the cache, an installation of the system or a Python package, else
    downloaded and stored.

    Args:
        name: a registered name, or one with the size of a random part of its training samples, such as "mnist-1k".
        data_dir: a folder that holds the set's files, or DIR/NAME with them; downloaded files are stored there too.
            None for the cache alone ($LIFTED_BREGMAN_DATA, else lifted-bregman in the user's cache).
        download: whether the set may be downloaded.
        dtype: of the inputs, torch.float32 or torch.float64.
        seed: of the random choice of a subset; without effect on a registered name.
        progress: called while downloading, with a description, the bytes so far, and the bytes expected (or None).

    Example:
        >>> digits = lb.data.load("digits-100")
        >>> digits.train.X.shape, digits.train.y.shape
        (torch.Size([100, 64]), torch.Size([100]))
    """
    if dtype not in DTYPES.values():
        raise SettingError(f"dtype is {dtype!r}; it must be torch.float32 or torch.float64.")
    info, size = parse(name)
    subset = () if size is None else (Subset(size, seed),)
    found = fetch_files(info, data_dir, download=download, progress=progress)
    return _assemble(info, name, found, dtype).apply(*subset)


def load_text(
    name: str, *, data_dir: Path | str | None = None, download: bool = True, progress: DownloadProgress | None = None
) -> str:
    """Return the text of this name, verified by the sha256 of its bytes.

    Args:
        name: a key of `TEXTS`.
        data_dir: as in `load`, like the arguments that follow.
        download: whether it may be downloaded.
        progress: called while downloading.

    Example:
        >>> lb.data.load_text("tiny-shakespear")  # a misspelt name is refused before anything is downloaded
        Traceback (most recent call last):
            ...
        lifted_bregman.errors.DataError: there is no text 'tiny-shakespear': the texts are tiny-shakespeare.
    """
    if name not in TEXTS:
        raise DataError(f"there is no text '{name}': the texts are {', '.join(TEXTS)}.")
    found = fetch_files(TEXTS[name], data_dir, download=download, progress=progress)
    return bytes(found.files[TEXTS[name].file.name]).decode("utf-8")


def load_table(
    name: str, *, data_dir: Path | str | None = None, download: bool = True, progress: DownloadProgress | None = None
) -> tuple[NDArray[np.float64], NDArray[np.int64]]:
    """Return X (samples, features) and y (samples,) of the table of this name; y is 1 for abnormal samples.

    Args:
        name: a key of `TABLES`.
        data_dir: as in `load`, like the arguments that follow.
        download: whether it may be downloaded.
        progress: called while downloading.

    Example:
        >>> lb.data.load_table("glas")  # a misspelt name is refused before anything is downloaded
        Traceback (most recent call last):
            ...
        lifted_bregman.errors.DataError: there is no table 'glas': the tables are adbench-annthyroid, ...
    """
    if name not in TABLES:
        raise DataError(f"there is no table '{name}'{did_you_mean(name, TABLES)}: the tables are {', '.join(TABLES)}.")
    info = TABLES[name]
    found = fetch_files(info, data_dir, download=download, progress=progress)
    with np.load(io.BytesIO(found.files[info.file.name]), allow_pickle=False) as arrays:
        return arrays["X"].astype(np.float64), arrays["y"].astype(np.int64)


def load_pictures(
    name: str, *, data_dir: Path | str | None = None, download: bool = True, progress: DownloadProgress | None = None
) -> tuple[Tensor, ...]:
    """Return the pictures of this name, (channels, height, width) in float32 from 0 to 1, verified by their sha256.

    Args:
        name: a key of `PICTURES`.
        data_dir: as in `load`, like the arguments that follow.
        download: whether they may be downloaded.
        progress: called while downloading.

    Example:
        >>> lb.data.load_pictures("bsd86")  # a misspelt name is refused before anything is downloaded
        Traceback (most recent call last):
            ...
        lifted_bregman.errors.DataError: there are no pictures 'bsd86': the names are train400, bsd68, ...
    """
    if name not in PICTURES:
        raise DataError(f"there are no pictures '{name}': the names are {', '.join(PICTURES)}.")
    found = fetch_files(PICTURES[name], data_dir, download=download, progress=progress)
    return tuple(_pixels(found.files[file.name]) for file in PICTURES[name].files)


def _pixels(content: bytes | memoryview) -> Tensor:
    try:
        from PIL import Image
    except ImportError as error:
        raise DataError("pictures need pillow: install lifted-bregman with the extra 'data'.") from error
    with Image.open(io.BytesIO(content), formats=("PNG",)) as picture:
        pixels = torch.from_numpy(np.array(picture, dtype=np.float32)).div_(255.0)
    return pixels[None] if pixels.ndim == 2 else pixels.permute(2, 0, 1).contiguous()


def from_record(
    record: Mapping[str, Any],
    *,
    data_dir: Path | str | None = None,
    download: bool = True,
    progress: DownloadProgress | None = None,
) -> DataSet:
    """Return the set that has this `record()`, transforms included; the other arguments are those of `load`.

    Example:
        >>> digits = lb.data.load("digits-100").apply(lb.data.Noise(0.1))
        >>> again = lb.data.from_record(digits.record())
        >>> torch.equal(again.train.X, digits.train.X)
        True
    """
    preparation = Preparation.from_record(record)
    name, sha256 = record.get("name"), record.get("sha256")
    info, _ = parse(name)  # type: ignore[arg-type]
    if sha256 != {file.name: file.sha256 for file in info.files}:
        raise DataError(
            f"the record of '{name}' was made with other content than '{info.name}' has here: use the version of the "
            "library that made it."
        )
    found = fetch_files(info, data_dir, download=download, progress=progress)
    return _assemble(info, str(name), found, preparation.dtype).apply(*preparation.transforms)


def _assemble(info: SetInfo, name: str, found: Found, dtype: torch.dtype) -> DataSet:
    parts = []
    for count, (images, labels) in zip(info.samples, (info.files[:2], info.files[2:]), strict=True):
        X = idx.from_bytes(found.files[images.name], (count, *info.shape)).reshape(count, -1)
        y = idx.from_bytes(found.files[labels.name], (count,))
        if y.max() >= len(info.classes):
            raise DataError(f"'{info.name}' has the label {y.max()} and {len(info.classes)} classes: name every class.")
        inputs = torch.from_numpy(X.astype(np.float32)).to(dtype).div_(info.levels)
        parts.append(Samples(inputs, torch.from_numpy(y.astype(np.int64))))
    sha256 = {file.name: file.sha256 for file in info.files}
    return DataSet(name, parts[0], parts[1], info.shape, info.classes, info.levels, found.source, sha256)
