"""The registry of named pictures: folders of PNG files, with the sha256 and size of each, and where to obtain them."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from importlib import resources

from lifted_bregman.data.registry import FileInfo, Stored


@dataclass(frozen=True)
class PictureInfo(Stored):
    """A named folder of grey or colour pictures.

    Args:
        name: the name for `load_pictures`, such as "bsd68".
        title: the name in texts.
        size: height and width of its pictures, in words.
        addresses: of folders on the web that hold the files.
        note: licence and origin, in a few words.
        listing: a line for each file with sha256, size in bytes and name.  None for the listing in the library.

    Example:
        >>> lb.data.PICTURES["bsd68"].title
        'BSD68'
    """

    name: str
    title: str
    size: str
    addresses: tuple[str, ...]
    note: str
    listing: str | None = None

    @cached_property
    def files(self) -> tuple[FileInfo, ...]:
        """The files, sorted by name."""
        text = self.listing
        if text is None:
            text = (resources.files("lifted_bregman.data") / "pictures_sha256" / f"{self.name}.txt").read_text("utf-8")
        rows = (line.split() for line in text.splitlines())
        return tuple(FileInfo(name, sha256, int(size)) for sha256, size, name in rows)

    def urls(self, file: FileInfo) -> tuple[str, ...]:
        """Return the addresses of a file."""
        return tuple(address + file.name for address in self.addresses)


_DNCNN = "https://raw.githubusercontent.com/cszn/DnCNN/master/"
_TRAINING = f"{_DNCNN}TrainingCodes/DnCNN_TrainingCodes_v1.0/data/"
_BERKELEY = "of the Berkeley Segmentation Dataset, for research; grey, as put together for DnCNN"

PICTURES: dict[str, PictureInfo] = {
    info.name: info
    for info in (
        PictureInfo("train400", "Train400", "180 x 180", (f"{_TRAINING}Train400/",), f"400 pieces {_BERKELEY}"),
        PictureInfo(
            "bsd68",
            "BSD68",
            "321 x 481",
            (f"{_DNCNN}testsets/BSD68/", f"{_TRAINING}Test/Set68/"),
            f"68 test images {_BERKELEY}",
        ),
        PictureInfo(
            "set12",
            "Set12",
            "256 x 256",
            (f"{_DNCNN}testsets/Set12/", f"{_TRAINING}Test/Set12/"),
            "12 images that papers on denoising use, no licence stated; as put together for DnCNN",
        ),
    )
}
