"""Files of experiments, there whole or not at all."""

from __future__ import annotations

from pathlib import Path

from lifted_bregman.errors import SettingError
from lifted_bregman.training.files import replace_file


def write_whole(path: Path, content: bytes | memoryview) -> None:
    """Writes a file beside its final name, then renames it."""
    try:
        replace_file(path, content)
    except OSError as error:
        raise SettingError(
            f"{path} cannot be written ({error.strerror}): choose another place, or make room or rights there."
        ) from error
