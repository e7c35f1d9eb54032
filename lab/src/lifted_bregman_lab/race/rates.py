"""The rates file: for each problem and competitor the best values of its grid, and how they were found."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from importlib.resources import files
from pathlib import Path
from typing import Any

from lifted_bregman.errors import SettingError
from lifted_bregman.experiments._write import write_whole
from lifted_bregman_lab.decoding import decode
from lifted_bregman_lab.race.competitors import Competitor
from lifted_bregman_lab.race.problems import RaceProblem

KIND = "lifted race rates, format 1"
CRITERIA: tuple[str, ...] = ("objective", "validation")
"""The measures by which a value is chosen: the last training objective, and the lowest validation error."""


@dataclass(frozen=True)
class Choice:
    """One point of a grid.

    Args:
        value: of the tuned setting, > 0.
        batch_size: samples of a step, >= 1.
    """

    value: float
    batch_size: int

    def __post_init__(self) -> None:
        numbers = isinstance(self.value, int | float) and isinstance(self.batch_size, int)
        if not (numbers and 0.0 < self.value < math.inf and self.batch_size >= 1):
            raise ValueError(f"a rate is {self.value!r} with batches of {self.batch_size!r}")


@dataclass(frozen=True)
class Rates:
    """The value of each tuned setting.

    Args:
        chosen: by problem, competitor and criterion ("objective" or "validation").
        provenance: how the values were found, such as grids, epochs, seed and versions.
    """

    chosen: Mapping[str, Mapping[str, Mapping[str, Choice]]]
    provenance: Mapping[str, Any] = field(default_factory=dict)

    def of(self, problem: RaceProblem, competitor: Competitor) -> Mapping[str, Choice]:
        """The choice by each criterion; SettingError where there is none."""
        name = problem.tuned_as or problem.name
        found = self.chosen.get(name, {}).get(competitor.name)
        if found is None:
            raise SettingError(
                f"there is no rate of '{competitor.name}' for '{name}': find one with `lifted bench tune --problems "
                f"{name} --competitors {competitor.name}`, and give its file as --rates."
            )
        return found

    def write(self, path: Path) -> None:
        """Write the file, whole or not at all."""
        entries = {"kind": KIND, "provenance": dict(self.provenance), "problems": self.chosen}
        write_whole(path, (json.dumps(entries, indent=1, default=asdict) + "\n").encode())


def read_rates(path: Path | None = None) -> Rates:
    """The rates in a file; those that come with the lab if it is None."""
    try:
        place = files(__package__) / "rates.json" if path is None else path
        entries = json.loads(place.read_text(encoding="utf-8"))
        if entries["kind"] != KIND:
            raise ValueError(f"it is of the kind {entries['kind']!r}")
        rates: Rates = decode({"chosen": entries["problems"], "provenance": entries["provenance"]}, Rates)
        if any(set(choices) != set(CRITERIA) for by_name in rates.chosen.values() for choices in by_name.values()):
            raise ValueError(f"a competitor has other criteria than {' and '.join(CRITERIA)}")
        return rates
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise SettingError(f"{path} is no file of rates ({error}): make one with `lifted bench tune`.") from error
