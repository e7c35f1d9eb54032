"""How commands declare their parameters, in the library and in packages that add commands.

    def predict(run: Annotated[Path, argument("The folder of the run.", "RUN")], /, *, steps: Whole = 5) -> int: ...

A parameter before `/` is positional, one after `*` is an option with its name in hyphens.  The docstring is the help of
the command: one sentence, then the examples, a paragraph of lines that begin with `lifted`.  The function returns None
or an exit code.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

from cyclopts import Parameter, Token

__all__ = ["Device", "Parameter", "RunPath", "SampleFile", "Whole", "argument"]


def argument(help: str, metavar: str | None = None) -> Parameter:
    """A positional argument; unlike the value of an option, it never begins with a hyphen."""
    return Parameter(help=help, metavar=metavar, allow_leading_hyphen=False)


RunPath = Annotated[Path, argument("The folder of the run.", "RUN")]
SampleFile = Annotated[Path, argument("The samples: a .npy, .npz, .csv or .idx file.", "FILE")]
Device = Annotated[str, Parameter(metavar="NAME", help="Where it is computed, such as cpu or cuda.")]


def _whole(kind: Any, tokens: Sequence[Token]) -> int:
    try:
        return int(tokens[0].value)
    except ValueError:
        raise ValueError(f"'{tokens[0].value}' is no whole number") from None


Whole = Annotated[int, Parameter(converter=_whole)]
"""A whole number; a plain `int` would be rounded from 5.5 by cyclopts."""
