"""The registry of named texts: the sha256 and size of each, and where it can be obtained."""

from __future__ import annotations

from dataclasses import dataclass

from lifted_bregman.data.registry import FileInfo, Stored


@dataclass(frozen=True)
class TextInfo(Stored):
    """A named text in one file.

    Args:
        name: the name for `load_text`, such as "tiny-shakespeare".
        title: the name in texts.
        file: name, sha256 and size in bytes.
        addresses: of the file on the web, gzipped or not.
        note: licence and origin, in a few words.

    Example:
        >>> lb.data.TEXTS["tiny-shakespeare"].file.name
        'input.txt'
    """

    name: str
    title: str
    file: FileInfo
    addresses: tuple[str, ...]
    note: str

    @property
    def files(self) -> tuple[FileInfo]:
        """A tuple of the one file."""
        return (self.file,)

    def urls(self, file: FileInfo) -> tuple[str, ...]:
        """Return the addresses of the file."""
        return self.addresses


_SHAKESPEARE = TextInfo(
    name="tiny-shakespeare",
    title="Tiny Shakespeare",
    file=FileInfo("input.txt", "86c4e6aa9db7c042ec79f339dcb96d42b0075e16b8fc2e86bf0ca57e2dc565ed", 1_115_394),
    addresses=("https://raw.githubusercontent.com/karpathy/char-rnn/master/data/tinyshakespeare/input.txt",),
    note="parts of Shakespeare's plays, public domain; put together by Karpathy",
)
TEXTS: dict[str, TextInfo] = {_SHAKESPEARE.name: _SHAKESPEARE}
