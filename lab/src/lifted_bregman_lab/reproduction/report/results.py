"""The stored runs of a paper with their verdicts, and the files that were ignored."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path

from lifted_bregman.errors import CheckpointError
from lifted_bregman_lab.reproduction import (
    Claim,
    Evidence,
    Job,
    Near,
    Paper,
    Quoted,
    ResultStore,
    Status,
    Verdict,
    choose_paper,
    find_papers,
    plan,
)
from lifted_bregman_lab.reproduction.exhibits import Exhibit
from lifted_bregman_lab.reproduction.quantities import Quantity

JUDGED = (Status.REPRODUCED, Status.NOT_REPRODUCED, Status.UNDECIDED)
"""The statuses that rest on runs."""

NO_CAUSE = "no cause is known"


@dataclass(frozen=True)
class Results:
    """A paper with the stored runs of its recipes.

    Args:
        paper: the paper.
        evidence: the runs that passed every check.
        ignored: the reason for each file that was ignored, by its name inside the folder.
        jobs: every run of the paper.
    """

    paper: Paper
    evidence: Evidence
    ignored: Mapping[str, str] = field(default_factory=dict)
    jobs: Sequence[Job] = ()

    @cached_property
    def verdicts(self) -> dict[str, Verdict]:
        """The verdict on each claim, by its name."""
        return {claim.name: claim.verdict(self.evidence) for claim in self.paper.claims}

    @cached_property
    def readings(self) -> dict[str, dict[str, Verdict]]:
        """The verdicts in other readings whose runs are stored, by the titles of readings and the names of claims."""
        found: dict[str, dict[str, Verdict]] = {}
        for reading in self.paper.readings:
            for claim in self.paper.claims:
                verdict = reading.verdict(claim, self.evidence)
                if verdict and verdict.status in JUDGED:
                    found.setdefault(reading.title, {})[claim.name] = verdict
        return found

    @cached_property
    def exhibits(self) -> tuple[Exhibit, ...]:
        """Those of the paper, and an empty one for every other figure with claims."""
        shown = {exhibit.figure for exhibit in self.paper.exhibits}
        others = dict.fromkeys(claim.figure for claim in self.paper.claims if claim.figure not in shown)
        return (*self.paper.exhibits, *(Exhibit(name, name, "", ()) for name in others))

    @cached_property
    def counts(self) -> Counter[Status]:
        """How many claims there are of each status."""
        return Counter(verdict.status for verdict in self.verdicts.values())

    @property
    def facts(self) -> Counter[Status]:
        """The same, where claims that state the same fact and have the same status are counted once."""
        found = {(claim.fact, self.verdicts[claim.name].status) for claim in self.paper.claims}
        return Counter(status for _, status in found)

    @cached_property
    def failed(self) -> dict[str, list[Claim]]:
        """The claims that are not reproduced, by the title of their cause; those without one at the end."""
        titles = {name: cause.title for cause in self.paper.causes for name in cause.claims}
        found: dict[str, list[Claim]] = {title: [] for title in (*dict.fromkeys(titles.values()), NO_CAUSE)}
        for claim in self.paper.claims:
            if self.verdicts[claim.name].status is Status.NOT_REPRODUCED:
                found[titles.get(claim.name, NO_CAUSE)].append(claim)
        return {title: claims for title, claims in found.items() if claims}

    def claim_about(self, quantity: Quantity) -> Claim | None:
        """The claim that gives a published value for exactly this quantity; None if there is none."""
        for claim in self.paper.claims:
            if isinstance(claim.rule, Near | Quoted) and claim.rule.quantity == quantity:
                return claim
        return None

    @property
    def missing(self) -> tuple[Job, ...]:
        """The jobs without a stored run."""
        done = {(run.recipe, run.seed) for run in self.evidence.found}
        return tuple(job for job in self.jobs if (job.recipe.name, job.seed) not in done)


def is_results(folder: Path) -> bool:
    """Whether the folder holds files of a reproduction, damaged or not."""
    return bool(_files(folder))


def load_results(folder: Path, paper: str | None = None) -> Results:
    """The stored runs in the folder of `lifted reproduce`.

    Args:
        folder: with `<recipe>/<seed>.jsonl` inside.
        paper: its name; None for the one whose recipes are stored there.

    Raises:
        CheckpointError: if no file in the folder passes the checks; the reason of the first file is named.
    """
    chosen = _paper(folder, paper)
    jobs, store = plan(chosen.recipes), ResultStore(folder)
    evidence = store.read_all(jobs)
    known = {store.file(job) for job in jobs}
    unknown = f"'{chosen.name}' has no run of this recipe and seed: it is ignored."
    reasons = store.ignored | {path: unknown for path in _files(folder) if path not in known}
    # Files are named by their place inside the folder, so that the text does not depend on where the folder is.
    names = {path: path.relative_to(folder).as_posix() for path in reasons}
    ignored = {names[path]: reason.replace(str(path), names[path]) for path, reason in reasons.items()}
    if not evidence.found:
        first = "".join(f" {name}: {reason}" for name, reason in list(ignored.items())[:1])
        raise CheckpointError(f"{folder} holds no run that can be shown; 'lifted reproduce' makes some.{first}")
    return Results(chosen, evidence, dict(sorted(ignored.items())), jobs)


def _files(folder: Path) -> list[Path]:
    return [path for path in sorted(folder.glob("*/*.jsonl")) if re.fullmatch(r"\d+", path.stem)]


def _paper(folder: Path, name: str | None) -> Paper:
    """The paper of this name, or the only one with recipes that are stored."""
    papers, stored = find_papers(), {path.parent.name for path in _files(folder)}
    if name is None:
        fitting = {key: paper for key, paper in papers.items() if stored & {recipe.name for recipe in paper.recipes}}
        if len(fitting) == 1:
            return next(iter(fitting.values()))
    return choose_paper(papers, name)
