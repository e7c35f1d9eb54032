"""Data sets on this machine, for races and reproductions."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from lifted_bregman import data
from lifted_bregman.data.fetch import look_up


def is_here(name: str, data_dir: Path | None) -> bool:
    """Whether a data set is on this machine, in `data_dir` or, for None, in the cache."""
    return data.whereabouts(look_up(name), data_dir).startswith("in ")


def fetch_missing(names: Iterable[str], data_dir: Path | None, progress: data.DownloadProgress | None = None) -> None:
    """Download the data sets that are not on this machine."""
    for name in dict.fromkeys(names):
        if not is_here(name, data_dir):
            data.get(name, data_dir=data_dir, progress=progress)
