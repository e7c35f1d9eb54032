"""Papers: recipes and claims that belong together, found through an entry point, so that others can add theirs."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from importlib.metadata import entry_points

from lifted_bregman.errors import SettingError
from lifted_bregman.experiments._typed import unknown
from lifted_bregman_lab.reproduction.claims import Claim, Verdict
from lifted_bregman_lab.reproduction.exhibits import Exhibit
from lifted_bregman_lab.reproduction.recipe import Recipe
from lifted_bregman_lab.reproduction.store import Evidence

GROUP = "lifted_bregman.papers"
"""The entry-point group; an entry is a function without arguments that returns a `Paper`."""
ALL = "all"


@dataclass(frozen=True)
class Reading:
    """A paper's experiments in another reading of its text, by which its claims can be judged as well.

    Args:
        title: in words that go on from "Read with".
        recipes: the name of the recipe that stands for each of the main reading, its own where nothing changes.
        silent: names of claims that say nothing in it, such as one about a layer that its networks do not have.
    """

    title: str
    recipes: Mapping[str, str]
    silent: frozenset[str] = frozenset()

    def verdict(self, claim: Claim, evidence: Evidence) -> Verdict | None:
        """The verdict by the same rule; None unless its runs all have counterparts here, some of which are others.

        None too for a claim that says nothing here.
        """
        if not set(claim.recipes) <= set(self.recipes) or all(self.recipes[name] == name for name in claim.recipes):
            return None
        if claim.name in self.silent:
            return None
        return claim.verdict(evidence.standing_for(self.recipes))


@dataclass(frozen=True)
class Paper:
    """What a paper claims and how it is checked.

    Args:
        name: as it is chosen on the command line.
        title: as people read it.
        recipes: the runs, in the order in which they are worth having.
        claims: what is judged by them.
        exhibits: what a report shows besides the claims, in its order.
        notes: what was tried where a claim was not reproduced, by the claim's name.
        readings: other readings of whole experiments; the verdicts are those of the main one.
    """

    name: str
    title: str
    recipes: tuple[Recipe, ...]
    claims: tuple[Claim, ...]
    exhibits: tuple[Exhibit, ...] = ()
    notes: Mapping[str, str] = field(default_factory=dict)
    readings: tuple[Reading, ...] = ()

    def __post_init__(self) -> None:
        named = {
            "recipes": [recipe.name for recipe in self.recipes],
            "claims": [claim.name for claim in self.claims],
            "readings": [reading.title for reading in self.readings],
        }
        for what, names in named.items():
            twice = [name for name, count in Counter(names).items() if count > 1]
            if twice:
                raise SettingError(f"two {what} of '{self.name}' are called '{twice[0]}': give each its own name.")
        known = {recipe.name for recipe in self.recipes}
        kinds = (known, {claim.name for claim in self.claims}, {*self.figures, ALL})
        for name, count in Counter(name for kind in kinds for name in kind).items():
            if count > 1:
                raise SettingError(
                    f"'{name}' of '{self.name}' names two of a recipe, a claim and a figure: rename one."
                )
        for claim in self.claims:
            for name in claim.recipes:
                if name not in known:
                    raise SettingError(f"the claim '{claim.name}' needs the recipe '{name}', which there is not.")
        for reading in self.readings:
            for name in (*reading.recipes, *reading.recipes.values()):
                if name not in known:
                    raise SettingError(f"the reading '{reading.title}' names the recipe '{name}', which there is not.")
            for name in sorted(reading.silent - {claim.name for claim in self.claims}):
                raise SettingError(f"the reading '{reading.title}' names the claim '{name}', which there is not.")
        self._check_report(known)

    def _check_report(self, recipes: set[str]) -> None:
        names = Counter(exhibit.figure for exhibit in self.exhibits)
        for exhibit in self.exhibits:
            if names[exhibit.figure] > 1:
                raise SettingError(f"two exhibits of '{self.name}' are about '{exhibit.figure}': make them one.")
            for name in exhibit.recipes:
                if name not in recipes:
                    raise SettingError(f"the exhibit '{exhibit.figure}' shows the recipe '{name}', which there is not.")
        for name in self.notes:
            if name not in {claim.name for claim in self.claims}:
                raise SettingError(f"there is a note on the claim '{name}', which there is not.")

    @property
    def figures(self) -> tuple[str, ...]:
        """The tables and figures, in the order of the claims."""
        named = [claim.figure for claim in self.claims] + [name for one in self.recipes for name in one.figures]
        return tuple(dict.fromkeys(named))

    def recipes_of(self, name: str) -> tuple[Recipe, ...]:
        """What has to be run for a figure, a claim, or "all"; or the one recipe of this name."""
        if name == ALL:
            return self.recipes
        one = tuple(recipe for recipe in self.recipes if recipe.name == name)
        claims = () if one else self.claims_of(name)
        needed = {needed for claim in claims for needed in claim.recipes}
        found = one or tuple(recipe for recipe in self.recipes if name in recipe.figures or recipe.name in needed)
        if not found and not claims:
            others = [*(one.name for one in self.recipes), *(one.name for one in self.claims)]
            what = f"table, figure, claim or run in '{self.name}' that is called"
            raise SettingError(unknown(what, name, (*self.figures, ALL), others) + " Claims and runs have names too.")
        return found

    def claims_of(self, name: str) -> tuple[Claim, ...]:
        """The claims about a figure, those that a recipe is needed for, the one of this name, or "all"."""
        return tuple(one for one in self.claims if name in (ALL, one.figure, one.name, *one.recipes))


def find_papers() -> dict[str, Paper]:
    """The papers of all installed packages, by name."""
    found: dict[str, Paper] = {}
    for entry in entry_points(group=GROUP):
        try:
            paper = entry.load()()
        except (ImportError, AttributeError) as error:
            raise SettingError(f"the paper '{entry.name}' ({entry.value}) cannot be loaded: {error}.") from error
        found[paper.name] = paper
    return found


def choose_paper(papers: dict[str, Paper], name: str | None = None) -> Paper:
    """The paper of this name; the only one if None."""
    if not papers:
        raise SettingError(
            f"no package offers a paper to reproduce (entry-point group {GROUP}): install lifted-bregman again."
        )
    if name is None:
        if len(papers) > 1:
            raise SettingError(f"there are several papers: choose one with --paper, {_listed(papers)}.")
        return next(iter(papers.values()))
    if name not in papers:
        raise SettingError(unknown("paper", name, papers))
    return papers[name]


def _listed(names: Iterable[str]) -> str:
    return ", ".join(names)
