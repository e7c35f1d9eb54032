"""Checks values against the types and ranges that a dataclass declares, by pydantic, with this library's errors."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from typing import Any, get_type_hints

from pydantic import BaseModel, BeforeValidator, ConfigDict, ValidationError, create_model

from lifted_bregman._text import did_you_mean, from_text
from lifted_bregman.errors import SettingError

# What pydantic's kinds of error say was expected, of a single value and of the entries of a list.
_EXPECTED = {
    "int_type": "a whole number",
    "float_type": "a number",
    "finite_number": "a number",
    "string_type": "text",
    "greater_than": "above {gt:g}",
    "greater_than_equal": "at least {ge:g}",
    "less_than": "below {lt:g}",
    "less_than_equal": "at most {le}",
    "dict_type": "a table",
}
_LISTS = {
    "int_type": "a list of whole numbers, such as 64,32",
    "float_type": "a list of numbers, such as 1,0.5",
    "finite_number": "a list of numbers, such as 1,0.5",
    "string_type": "a list of words, such as relu,tanh",
}
_KINDS = {bool: "true or false", int: "a whole number", float: "a number", str: "text", list: "a list", dict: "a table"}


def checked_fields(kind: type, values: Mapping[str, Any]) -> dict[str, Any]:
    """The values of a dataclass's fields, each of its declared type and in its declared range.

    Types are strict: a field for numbers refuses text and booleans, and takes whole numbers.  It also refuses NaN and
    infinity.

    Raises:
        SettingError: names the first value that does not fit, and what was expected.  An error of this library that a
            validator raised is passed on as it is.
    """
    try:
        made = _model(kind).model_validate(dict(values))
    except ValidationError as error:
        raise _in_words(error) from None
    return {name: getattr(made, name) for name in values}


@cache
def _model(kind: type) -> type[BaseModel]:
    """The pydantic model with the annotations of a dataclass."""
    fields: dict[str, Any] = {name: (hint, ...) for name, hint in get_type_hints(kind, include_extras=True).items()}
    return create_model(kind.__name__, __config__=ConfigDict(strict=True, allow_inf_nan=False), **fields)


def _in_words(error: ValidationError) -> Exception:
    """The first error of pydantic as a SettingError."""
    found = error.errors(include_url=False)
    first, name = found[0], str(found[0]["loc"][0])
    if first["type"] == "value_error":
        raised: Exception = first["ctx"]["error"]
        return raised
    value, in_list = first["input"], any(isinstance(part, int) for part in first["loc"])
    given = f"{name} {'holds' if in_list else 'is'} {value!r}"
    if first["type"] == "literal_error":
        known = first["ctx"]["expected"].replace("'", "").replace(" or ", ", ")
        return SettingError(f"{given}{did_you_mean(str(value), known.split(', '))}; it must be one of {known}.")
    # A union has an error for each of its members, all with the name of the setting.
    words = [_expected(entry, in_list) for entry in found if entry["loc"][0] == name]
    kind = "" if "ctx" in first or type(value) not in _KINDS else f", which is {_KINDS[type(value)]}"
    return SettingError(f"{given}{kind}; it must be {' or '.join(dict.fromkeys(words))}.")


def _expected(error: Any, in_list: bool) -> str:
    words = _LISTS.get(error["type"]) if in_list else None
    return (words or _EXPECTED.get(error["type"], error["msg"])).format(**error.get("ctx", {}))


def _listed_numbers(value: Any) -> Any:
    return tuple(from_text(part.strip()) for part in value.split(",")) if isinstance(value, str) else _listed(value)


def _listed_words(value: Any) -> Any:
    return tuple(part.strip() for part in value.split(",")) if isinstance(value, str) else _listed(value)


def _listed(value: Any) -> Any:
    return tuple(value) if isinstance(value, list | tuple) else (value,)


NUMBERS = BeforeValidator(_listed_numbers)
"""For a tuple of numbers: also takes a list, one number, or text such as "784,64"."""
WORDS = BeforeValidator(_listed_words)
"""For a tuple of words: also takes a list, one word, or text such as "relu,tanh"."""
