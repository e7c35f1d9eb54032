"""Values from text, of a command line or a table cell, and suggestions for misspelt names."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from difflib import get_close_matches


def from_text(text: str) -> int | float | bool | str:
    """The value that a text stands for: True or False, a number, or the text itself."""
    return text.lower() == "true" if text.lower() in ("true", "false") else number_or_text(text)


def number_or_text(text: str) -> int | float | str:
    """`text` as an int, else as a float, else unchanged."""
    for kind in (int, float):
        try:
            return kind(text)
        except ValueError:
            continue
    return text


def is_number(text: str | bytes) -> bool:
    """Whether `text` is a number; infinity and NaN count as numbers."""
    try:
        float(text)
    except ValueError:
        return False
    return True


def unknown(what: str, given: str, known: Collection[str], unlisted: Collection[str] = ()) -> str:
    """The message for an unknown name: it suggests the nearest known name and lists all of them.

    unlisted: further known names, which are compared but not listed.
    """
    close = get_close_matches(given.lower(), [*known, *unlisted], n=1)
    meant = f"; did you mean '{close[0]}'?" if close else "."
    return f"there is no {what} '{given}'{meant} There are {', '.join(known)}."


def did_you_mean(text: str, known: Iterable[str]) -> str:
    """ " (did you mean 'encoder.3'?)", or an empty text if no known name is close."""
    close = get_close_matches(text, list(known), n=1)
    return f" (did you mean {close[0]!r}?)" if close else ""
