"""What is stored of a paper's reproduction, ready to be shown: verdicts, runs, and files that cannot be believed."""

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
    Reading,
    ResultStore,
    Status,
    Verdict,
    choose_paper,
    find_papers,
    plan,
)
from lifted_bregman_lab.reproduction.quantities import Quantity


@dataclass(frozen=True)
class Results:
    """A paper with the stored runs of its recipes.

    Args:
        paper: what was reproduced.
        evidence: the runs that can be believed.
        ignored: files that were passed over, by their name inside the folder, and why.
        jobs: every run that the paper asks for.
    """

    paper: Paper
    evidence: Evidence
    ignored: Mapping[str, str] = field(default_factory=dict)
    jobs: Sequence[Job] = ()

    @cached_property
    def verdicts(self) -> dict[str, Verdict]:
        """The verdict on each claim, by its name."""
        return {claim.name: claim.verdict(self.evidence) for claim in self.paper.claims}

    def verdicts_read(self, reading: Reading) -> dict[str, Verdict]:
        """The verdicts in another reading, by the name of the claim, where it can be judged and its runs are stored."""
        found = ((claim.name, reading.verdict(claim, self.evidence)) for claim in self.paper.claims)
        judged = (Status.REPRODUCED, Status.NOT_REPRODUCED)
        return {name: verdict for name, verdict in found if verdict and verdict.status in judged}

    @cached_property
    def readings(self) -> dict[str, dict[str, Verdict]]:
        """`verdicts_read` of every reading of which something is stored, by its title."""
        found = {reading.title: self.verdicts_read(reading) for reading in self.paper.readings}
        return {title: verdicts for title, verdicts in found.items() if verdicts}

    @cached_property
    def counts(self) -> Counter[Status]:
        """How many claims there are of each status."""
        return Counter(verdict.status for verdict in self.verdicts.values())

    def of_status(self, status: Status) -> tuple[Claim, ...]:
        """The claims with this verdict."""
        return tuple(claim for claim in self.paper.claims if self.verdicts[claim.name].status is status)

    def claim_about(self, quantity: Quantity) -> Claim | None:
        """The claim that gives a published value for exactly this quantity; None if there is none."""
        for claim in self.paper.claims:
            if isinstance(claim.rule, Near) and claim.rule.quantity == quantity:
                return claim
        return None

    @property
    def missing(self) -> tuple[Job, ...]:
        """The jobs without a stored run."""
        done = {(run.recipe, run.seed) for run in self.evidence.found}
        return tuple(job for job in self.jobs if (job.recipe.name, job.seed) not in done)


def is_results(folder: Path) -> bool:
    """Whether the folder holds rows of a reproduction, of whatever quality."""
    return bool(_files(folder))


def load_results(folder: Path, paper: str | None = None) -> Results:
    """What is stored in the folder of `lifted reproduce`.

    Args:
        folder: with `<recipe>/<seed>.jsonl` inside.
        paper: its name; None for the one whose recipes are stored there.

    Raises:
        CheckpointError: if the folder holds no run that can be believed; the reason of the first file is named.
    """
    chosen = _paper(folder, paper)
    jobs, store = plan(chosen.recipes), ResultStore(folder)
    evidence = store.read_all(jobs)
    ignored = {_name(path, folder): _told(reason, path, folder) for path, reason in store.ignored.items()}
    known = {store.file(job) for job in jobs}
    for path in _files(folder):
        if path not in known:
            ignored[_name(path, folder)] = f"'{chosen.name}' has no run of this recipe and seed: it is ignored."
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


def _name(path: Path, folder: Path) -> str:
    return path.relative_to(folder).as_posix()


def _told(reason: str, path: Path, folder: Path) -> str:
    """The reason with the name inside the folder, the same wherever the folder is."""
    return reason.replace(str(path), _name(path, folder))
