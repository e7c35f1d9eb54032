"""Papers: recipes and claims that belong together, found through an entry point, so that others can add theirs."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from importlib.metadata import entry_points

from lifted_bregman._text import unknown
from lifted_bregman.errors import SettingError
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
        title: in words that follow "Read with".
        recipes: the name of the recipe that stands for each of the main reading, its own where nothing changes.
        silent: names of claims that say nothing in it, such as one about a layer that its networks do not have.
        base: the reading from which it differs in one choice; None for the main reading.
    """

    title: str
    recipes: Mapping[str, str]
    silent: frozenset[str] = frozenset()
    base: Reading | None = None

    def verdict(self, claim: Claim, evidence: Evidence) -> Verdict | None:
        """The verdict by the same rule; None unless its runs all have counterparts here, some unlike those of `base`.

        None too for a claim that says nothing here.
        """
        if not set(claim.recipes) <= set(self.recipes) or claim.name in self.silent:
            return None
        before = {} if self.base is None else self.base.recipes
        if all(self.recipes[name] == before.get(name, name) for name in claim.recipes):
            return None
        return claim.verdict(evidence.standing_for(self.recipes))


@dataclass(frozen=True)
class Cause:
    """A reason why claims are not reproduced.

    Args:
        title: in a few words.
        text: the evidence for it, in a sentence or two.
        claims: the names of claims that it may concern; those that are reproduced are left out of the report.
    """

    title: str
    text: str
    claims: tuple[str, ...]


@dataclass(frozen=True)
class Paper:
    """The claims of a paper and the runs that judge them.

    Args:
        name: for the command line.
        title: for readers.
        recipes: the runs, in the order in which they are trained.
        claims: in the order of the paper.
        exhibits: the tables and figures of the report, in its order.
        notes: attempts where a claim was not reproduced, by the claim's name.
        readings: other readings of whole experiments; the verdicts are those of the main one.
        causes: reasons why claims are not reproduced, each claim in one at most.
        decided_later: what was decided after results had been seen, each in whole sentences.
    """

    name: str
    title: str
    recipes: tuple[Recipe, ...]
    claims: tuple[Claim, ...]
    exhibits: tuple[Exhibit, ...] = ()
    notes: Mapping[str, str] = field(default_factory=dict)
    readings: tuple[Reading, ...] = ()
    causes: tuple[Cause, ...] = ()
    decided_later: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        recipes, claims = [one.name for one in self.recipes], [one.name for one in self.claims]
        titles, shown = [one.title for one in self.readings], [one.figure for one in self.exhibits]
        for what, names in (("recipes", recipes), ("claims", claims), ("readings", titles)):
            for name in _repeated(names):
                raise SettingError(f"two {what} of '{self.name}' are called '{name}': give each its own name.")
        for name in _repeated([*recipes, *claims, *sorted({*self.figures, ALL})]):
            raise SettingError(f"'{name}' of '{self.name}' names two of a recipe, a claim and a figure: rename one.")
        for name in _repeated(shown):
            raise SettingError(f"two exhibits of '{self.name}' are about '{name}': make them one.")
        for claim in self.claims:
            _require_known(f"the claim '{claim.name}' needs the recipe", claim.recipes, recipes)
        for reading in self.readings:
            who, named = f"the reading '{reading.title}' names the", (*reading.recipes, *reading.recipes.values())
            _require_known(f"{who} recipe", named, recipes)
            _require_known(f"{who} claim", sorted(reading.silent), claims)
        for exhibit in self.exhibits:
            _require_known(f"the exhibit '{exhibit.figure}' shows the recipe", exhibit.recipes, recipes)
        _require_known("there is a note on the claim", self.notes, claims)
        first = [claim.name for claim in self.claims if not claim.same_as]
        for claim in self.claims:
            _require_known(f"the claim '{claim.name}' states the same fact as", filter(None, [claim.same_as]), first)
        explained = [name for cause in self.causes for name in cause.claims]
        _require_known("there is a cause for the claim", explained, claims)
        for name in _repeated(explained):
            raise SettingError(f"the claim '{name}' of '{self.name}' has two causes: choose one.")

    @property
    def figures(self) -> tuple[str, ...]:
        """The tables and figures, in the order of the claims."""
        named = [claim.figure for claim in self.claims] + [name for one in self.recipes for name in one.figures]
        return tuple(dict.fromkeys(named))

    def recipes_of(self, name: str) -> tuple[Recipe, ...]:
        """The recipes of a figure, a claim, or "all"; or the one recipe of this name."""
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
            raise SettingError(f"there are several papers: choose one with --paper, {', '.join(papers)}.")
        return next(iter(papers.values()))
    if name not in papers:
        raise SettingError(unknown("paper", name, papers))
    return papers[name]


def _repeated(names: Iterable[str]) -> list[str]:
    return [name for name, count in Counter(names).items() if count > 1]


def _require_known(who: str, names: Iterable[str], known: Iterable[str]) -> None:
    for name in names:
        if name not in known:
            raise SettingError(f"{who} '{name}', which there is not.")
