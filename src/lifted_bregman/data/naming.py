"""Names of sets: a registered name, or one followed by the size of a subset, such as "mnist-1k" or "digits-500"."""

from __future__ import annotations

import re
from collections.abc import Collection

from lifted_bregman._text import unknown
from lifted_bregman.data.registry import SETS, SetInfo
from lifted_bregman.errors import DataError


def names() -> tuple[str, ...]:
    """Return the registered names.

    Example:
        >>> "mnist" in lb.data.names()
        True
    """
    return tuple(SETS)


def parse(name: str, others: Collection[str] = ()) -> tuple[SetInfo, int | None]:
    """Return the set of a name and the size of its training part, None for all of it.

    A registered name takes precedence: "mnist-5k" is a set, not a subset of "mnist".  Otherwise "-N" or "-Nk" at the
    end asks for N or N thousand samples, at most as many as the set has.

    others: names of pictures, texts and tables, which the error for an unknown name lists too.
    """
    if not isinstance(name, str):
        raise DataError(f"the name of a set is a {type(name).__name__}; expected a string such as 'mnist-1k'.")
    if name in SETS:
        return SETS[name], None
    base, size = _split(name)
    if size is None or base not in SETS:
        sized = [] if size is None else [known + name[len(base) :] for known in SETS]
        part = "'-1k' or '-500' after a name asks for that many of its training samples."
        raise DataError(f"{unknown('data set', name, [*SETS, *others], sized).removesuffix('.')}; {part}")
    info = SETS[base]
    if not 1 <= size <= info.samples[0]:
        raise DataError(
            f"'{name}' asks for {size:,} samples, but the training part of '{base}' has {info.samples[0]:,}: ask for 1 "
            f"to {info.samples[0]:,} of them, or for '{base}' to have them all."
        )
    return info, size


def _split(name: str) -> tuple[str, int | None]:
    found = re.fullmatch(r"(.+)-([0-9]{1,12})(k?)", name, re.ASCII)
    if found is None:
        return name, None
    return found[1], int(found[2]) * (1000 if found[3] else 1)
