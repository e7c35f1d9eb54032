"""A recipe: the frozen settings of one run that claims are judged by, with a tiny variant of the same."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, replace
from enum import IntEnum
from pathlib import Path

from lifted_bregman.data.naming import parse
from lifted_bregman.errors import SettingError
from lifted_bregman.experiments.settings import Settings
from lifted_bregman.problem import LiftedProblem
from lifted_bregman_lab.datasets import is_here

SMOKE_SET = "digits"  # comes with scikit-learn; taken where the set itself is not on this machine
_SHORT = 600.0  # seconds; what takes less is run with more seeds
_SEEDS, _SEEDS_OF_SHORT_RUNS = 3, 5


class Priority(IntEnum):
    """The order in which runs are trained."""

    CORE = 0
    """One run of the main reading, so that every claim is answered once."""
    SEEDS = 1
    """The same with other seeds, for the spread."""
    READINGS = 2
    """Other readings of the paper's text, and methods that it does not have; one seed."""


@dataclass(frozen=True)
class Recipe:
    """One run.

    Args:
        name: in lower case with hyphens, unlike that of any other recipe; it names files.
        title: for readers.
        settings: all settings but seed, folder of the data and threads, which are the job's.
        smoke: the same on a few samples, in seconds.
        figures: the tables and figures that it belongs to.
        seconds: about the time of the run on one thread; > 0.
        priority: `CORE` or `READINGS`; the seeds of a core recipe follow by themselves.
        repeated: whether a reading is run with as many seeds as a core recipe.
        reading: how the paper was read where it leaves a choice, in a sentence.
        relaxed: makes the problem that is trained in place of the lifted one, on the same parameters; None for the
            lifted problem itself.  Measurements are always of the network of the lifted problem.
        pictures: whether a few outputs and a code are stored, which needs images as targets.
        code_layer: the hidden layer that is the code, with its penalty; None for the middle one.
    """

    name: str
    title: str
    settings: Settings
    smoke: Settings
    figures: tuple[str, ...]
    seconds: float
    priority: Priority = Priority.CORE
    reading: str = ""
    relaxed: Callable[[LiftedProblem], LiftedProblem] | None = None
    pictures: bool = False
    repeated: bool = False
    code_layer: int | None = None

    def __post_init__(self) -> None:
        if not re.fullmatch(r"[a-z0-9]+(-[a-z0-9]+)*", self.name):
            raise SettingError(f"the recipe '{self.name}' names files: write lower case, digits and hyphens only.")
        if not self.figures:
            raise SettingError(f"the recipe '{self.name}' belongs to no figure: name at least one, such as table1.")
        if not self.seconds > 0.0:
            raise SettingError(f"seconds of the recipe '{self.name}' is {self.seconds:g}; it must be above 0.")
        if self.priority is Priority.SEEDS:
            raise SettingError(f"the priority of the recipe '{self.name}' is SEEDS; it must be CORE or READINGS.")
        if self.pictures and not self.settings.autoencoder:
            raise SettingError(f"the recipe '{self.name}' asks for pictures, and its outputs are none: leave them out.")

    @property
    def seeds(self) -> tuple[int, ...]:
        """0 to 2 for a core or repeated recipe, 0 to 4 where a run takes under ten minutes; else 0 alone."""
        if self.priority is Priority.READINGS and not self.repeated:
            return (0,)
        return tuple(range(_SEEDS_OF_SHORT_RUNS if self.seconds < _SHORT else _SEEDS))


@dataclass(frozen=True)
class Job:
    """A recipe with a seed, and as a smoke run or in full.

    Args:
        recipe: what is run.
        seed: of samples, weights, order and noise.
        smoke: whether it is the tiny variant.
        data_dir: a folder that holds data sets; None for the cache.
        threads: of torch, >= 1.
    """

    recipe: Recipe
    seed: int = 0
    smoke: bool = False
    data_dir: Path | None = None
    threads: int = 1

    @property
    def name(self) -> str:
        """ "recipe/seed", as the files of the job are called."""
        return f"{self.recipe.name}/{self.seed}"

    @property
    def priority(self) -> Priority:
        """That of the recipe; `SEEDS` for every seed of a core recipe but the first."""
        core = self.recipe.priority is Priority.CORE
        return Priority.SEEDS if core and self.seed > 0 else self.recipe.priority

    @property
    def settings(self) -> Settings:
        """The resolved settings."""
        chosen = self.recipe.smoke if self.smoke else self.recipe.settings
        name = chosen.data
        if self.smoke and not is_here(name, self.data_dir):
            name = f"{SMOKE_SET}-{parse(name)[1] or 200}"
        folder = None if self.data_dir is None else str(self.data_dir)
        return replace(chosen, data=name, seed=self.seed, data_dir=folder, threads=self.threads).resolved()
