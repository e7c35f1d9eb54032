"""Finding, obtaining and verifying the files of a set or a text.

`fetch_files` reads the files from the user's folder, else from the cache, an installation of the system or a Python
package.  If none of them has all files, it downloads them into the user's folder or the cache.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from lifted_bregman.data._http import DownloadProgress, Timeouts
from lifted_bregman.data._obtain import advice, obtain, wanted_files
from lifted_bregman.data._places import Content, Place, WrongContent, places, require_content, store_place
from lifted_bregman.data.files import locked
from lifted_bregman.data.naming import parse
from lifted_bregman.data.pictures import PICTURES
from lifted_bregman.data.registry import Stored
from lifted_bregman.data.tables import TABLES
from lifted_bregman.data.texts import TEXTS
from lifted_bregman.errors import DataError

DEFAULT_TIMEOUTS = Timeouts()


@dataclass(frozen=True)
class Found:
    """The verified content of each file by its name, and a sentence that says where it came from."""

    files: Content
    source: str


def look_up(name: str) -> Stored:
    """Return the text, table, pictures or set of this name; of a subset such as "mnist-1k" the whole set."""
    others: dict[str, Stored] = {**PICTURES, **TEXTS, **TABLES}
    return others.get(name) or parse(name, others)[0]


def fetch_files(
    info: Stored,
    data_dir: Path | str | None = None,
    *,
    download: bool = True,
    timeouts: Timeouts = DEFAULT_TIMEOUTS,
    progress: DownloadProgress | None = None,
) -> Found:
    """Return the verified content of every file, from the first place that has them all.

    A damaged file in the user's folder raises DataError, because the user may have put it there.  A damaged file in
    the cache is replaced; one in an installation of the system is skipped.
    """
    tried: list[str] = []
    folder = None if data_dir is None else Path(data_dir)
    found = _on_this_machine(info, places(info, folder), tried)
    if found is not None:
        return found
    if not download:
        raise DataError(f"'{info.name}' is not on this machine. Looked in: {'; '.join(tried)}. {advice(info, folder)}")
    place = obtain(info, folder, tried, timeouts, progress)
    return Found(place.read(info), _sentence(info, place))


def get(
    name: str,
    *,
    data_dir: Path | str | None = None,
    timeouts: Timeouts = DEFAULT_TIMEOUTS,
    progress: DownloadProgress | None = None,
) -> str:
    """Download a set or a text unless it is on this machine, and return a sentence that says where it came from.

    With `data_dir` the files are stored in that folder, and copied there if they were found elsewhere.

    Example:
        >>> lb.data.get("digits").startswith("Digits from the Python package scikit-learn")
        True
    """
    info = look_up(name)
    if data_dir is None:
        return fetch_files(info, timeouts=timeouts, progress=progress).source
    folder = Path(data_dir)
    place = store_place(info, folder)
    if not place.holds(info):
        found = _on_this_machine(info, places(info, None), [])
        if found is None:
            obtain(info, folder, [], timeouts, progress)
        else:
            with locked(place.folder):
                for file in wanted_files(info, place):
                    place.store(file, found.files[file.name])
                place.remember_source(f"copied: {found.source.rstrip('.')}")
    place.read(info)
    return _sentence(info, place)


def verify(name: str, *, data_dir: Path | str | None = None) -> tuple[str, ...]:
    """Read a set or a text on this machine and check the sha256 of its decompressed bytes; return what is good.

    Only `data_dir` is read if it is given, else the cache and an installation of the system, else the Python package
    that contains the set.  DataError names every file that is damaged or missing, or says that there is no copy.

    Example:
        >>> len(lb.data.verify("digits"))  # one good copy, that of scikit-learn
        1
    """
    folder = None if data_dir is None else Path(data_dir)
    info = look_up(name)
    command = f"lifted data get {info.name}" + ("" if folder is None else f" --data-dir {folder}")
    good, bad = [], []
    for place in places(info, None) if folder is None else [store_place(info, folder)]:
        if not any(place.find(file) for file in info.files):
            continue
        for file in info.files:
            try:
                place.read_file(file)
                good.append(str(place.find(file)))
            except DataError as error:
                bad.append(str(error))
    if bad:
        raise DataError(f"{' '.join(bad)} Delete what is damaged, then run: {command}")
    if not good and info.package is not None and folder is None:
        _from_package(info)
        return (info.package.source(),)
    if not good:
        raise DataError(
            f"'{info.name}' is not {'on this machine' if folder is None else f'in {folder}'}: run {command}"
        )
    return tuple(good)


def whereabouts(info: Stored, data_dir: Path | None = None) -> str:
    """Return where a set or a text is now, or from where it can be downloaded; nothing is verified.

    Example:
        >>> lb.data.whereabouts(lb.data.SETS["digits"]).startswith("in the Python package scikit-learn")
        True
    """
    for place in places(info, data_dir):
        if place.holds(info):
            return f"in {place.folder}"
    if info.package is not None:
        return f"in {info.package.source()}" if info.package.installed() else f"needs {info.package.distribution}"
    ways = ["mirrors"] if info.archives or any(info.urls(file) for file in info.files) else []
    ways += [f"npm {info.npm.name}"] if info.npm is not None else []
    ways += [f"Debian {info.debian}"] if info.debian is not None else []
    return f"to be got ({', '.join(ways)})" if ways else "to be put there by hand"


def _on_this_machine(info: Stored, candidates: Sequence[Place], tried: list[str]) -> Found | None:
    for place in candidates:
        if not place.holds(info):
            tried.append(f"{place.folder} (not there)")
            continue
        try:
            return Found(place.read(info), _sentence(info, place))
        except DataError as error:
            if place.kind == "data_dir":
                raise
            tried.append(str(error).rstrip("."))
    if info.package is not None:
        return Found(_from_package(info), f"{info.title} from {info.package.source()}.")
    return None


def _from_package(info: Stored) -> Content:
    assert info.package is not None
    files = dict(info.package.files())
    try:
        for file in info.files:
            require_content(files[file.name], file, file.name)
    except WrongContent as error:
        raise DataError(
            f"{info.package.source()} does not hold the images that '{info.name}' had when it was registered: install "
            "the version that the library's constraints name."
        ) from error
    return files


def _sentence(info: Stored, place: Place) -> str:
    return f"{info.title} from {place.source()}."
