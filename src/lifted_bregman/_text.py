"""What text means: that of a command line, or a cell of a table; and which known name a text was meant to be."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from difflib import get_close_matches


def from_text(text: str) -> int | float | bool | str:
    """True or false, a number, or the text itself."""
    return text.lower() == "true" if text.lower() in ("true", "false") else number_or_text(text)


def number_or_text(text: str) -> int | float | str:
    """The number that is written there, a whole one where it can be; any other text as it is."""
    for kind in (int, float):
        try:
            return kind(text)
        except ValueError:
            continue
    return text


def is_number(text: str | bytes) -> bool:
    """Whether a number is written there, be it infinite or NaN."""
    try:
        float(text)
    except ValueError:
        return False
    return True


def unknown(what: str, given: str, known: Collection[str], unlisted: Collection[str] = ()) -> str:
    """The sentences for an unknown name: the nearest known name, and all known names.

    unlisted: further known names, which are compared but not listed.
    """
    close = get_close_matches(given.lower(), [*known, *unlisted], n=1)
    meant = f"; did you mean '{close[0]}'?" if close else "."
    return f"there is no {what} '{given}'{meant} There are {', '.join(known)}."


def did_you_mean(text: str, known: Iterable[str]) -> str:
    """ " (did you mean 'encoder.3'?)", or nothing where no known name is close."""
    close = get_close_matches(text, list(known), n=1)
    return f" (did you mean {close[0]!r}?)" if close else ""
