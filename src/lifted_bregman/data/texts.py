"""Texts by name, verified by hash as the sets are: looked for on this machine, else downloaded and kept."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from lifted_bregman.data import _mirrors
from lifted_bregman.data._archives import Failed, Unreachable
from lifted_bregman.data._files import locked, workspace
from lifted_bregman.data._mirrors import Progress, Timeouts
from lifted_bregman.data._places import Place, places, read_verified, store_place
from lifted_bregman.data.registry import FileInfo
from lifted_bregman.errors import DataError


@dataclass(frozen=True)
class TextInfo:
    """A named text in one file.

    Args:
        name: as it is loaded, such as "tiny-shakespeare".
        title: as people write it.
        file: its name, the sha256 of its bytes and their number.
        addresses: of the file on the web, not compressed.
        note: licence and origin, in a few words.
    """

    name: str
    title: str
    file: FileInfo
    addresses: tuple[str, ...]
    note: str

    @property
    def files(self) -> tuple[FileInfo]:
        """The file alone."""
        return (self.file,)


_SHAKESPEARE = TextInfo(
    name="tiny-shakespeare",
    title="Tiny Shakespeare",
    file=FileInfo("input.txt", "86c4e6aa9db7c042ec79f339dcb96d42b0075e16b8fc2e86bf0ca57e2dc565ed", 1_115_394),
    addresses=("https://raw.githubusercontent.com/karpathy/char-rnn/master/data/tinyshakespeare/input.txt",),
    note="parts of Shakespeare's plays, public domain; put together by Karpathy",
)
TEXTS: dict[str, TextInfo] = {_SHAKESPEARE.name: _SHAKESPEARE}


def load_text(
    name: str, *, data_dir: Path | str | None = None, download: bool = True, progress: Progress | None = None
) -> str:
    """The text of this name, verified by the sha256 of its bytes.

    It is looked for in `data_dir`, in the cache and in an installation of the system, then downloaded and kept.

    Args:
        name: a key of `TEXTS`.
        data_dir: a folder that holds the file, or a folder of the text's name with it; what is downloaded goes there
            too.  None for the cache alone.
        download: whether it may be fetched from the network.
        progress: called with (what is going on, bytes so far, bytes expected or None) while downloading.
    """
    if name not in TEXTS:
        raise DataError(f"there is no text '{name}': the texts are {', '.join(TEXTS)}.")
    place = find_text(TEXTS[name], None if data_dir is None else Path(data_dir), download=download, progress=progress)
    return bytes(place.read_file(TEXTS[name].file)).decode("utf-8")


def find_text(
    info: TextInfo,
    data_dir: Path | None,
    *,
    download: bool = True,
    timeouts: Timeouts | None = None,
    progress: Progress | None = None,
) -> Place:
    """The first place that holds the text, which is obtained if none does.

    A damaged file in the user's folder is an error, for it may be the user's own; one in the cache is replaced.
    """
    for place in places(info, data_dir):
        if place.holds(info):
            try:
                place.read_file(info.file)
                return place
            except DataError:
                if place.kind == "data_dir":
                    raise
    place = store_place(info, data_dir)
    if not download:
        raise DataError(f"'{info.name}' is not on this machine. {_advice(info, place)}")
    with locked(place.folder), workspace(place.folder) as work:
        tried = []
        for address in info.addresses:
            part = work / info.file.name
            try:
                _mirrors.download(address, part, info.file.size, timeouts or Timeouts(), progress)
                place.store(info.file, read_verified(part, info.file))
                place.remember_source(f"downloaded from {address}")
                return place
            except (Unreachable, Failed, DataError) as error:
                tried.append(f"{address} ({error})")
    raise DataError(f"'{info.name}' cannot be had. Tried: {'; '.join(tried)}. {_advice(info, place)}")


def _advice(info: TextInfo, place: Place) -> str:
    """What to do by hand."""
    return f"By hand: put {info.file.name} into {place.folder}, or name a folder that holds it with data_dir."
