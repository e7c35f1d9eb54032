"""Files that are there whole or not at all."""

from __future__ import annotations

import contextlib
import os
import secrets
from pathlib import Path

from lifted_bregman.errors import SettingError


def write_whole(path: Path, content: bytes | memoryview) -> None:
    """Writes a file beside its final name, then renames it."""
    part = path.with_name(f".{path.name}.{os.getpid()}-{secrets.token_hex(4)}.part")
    try:
        try:
            with part.open("xb") as file:
                file.write(content)
                file.flush()
                os.fsync(file.fileno())
            part.replace(path)
        except BaseException:
            with contextlib.suppress(OSError):
                part.unlink()
            raise
    except OSError as error:
        raise SettingError(
            f"{path} cannot be written ({error.strerror}): choose another place, or make room or rights there."
        ) from error
