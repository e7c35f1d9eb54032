"""Claims in the report: the paper's statement, the measured numbers, the reason for the rule, and the command."""

from __future__ import annotations

import re
from collections.abc import Iterable

from lifted_bregman.reports.page import Block, Finding, Heading, Text
from lifted_bregman_lab.reproduction import All, Claim, Status, Verdict
from lifted_bregman_lab.reproduction.report.results import Results
from lifted_bregman_lab.reproduction.report.tables import marked
from lifted_bregman_lab.text import count

_COLOURS = dict(zip(Status, ("curve-3", "curve-2", "curve-4", "curve-4", "curve-5", "rule"), strict=True))
_APART = "--out out/again"  # a stored run is not run again


def command_of_all(figure: str) -> str:
    """The command that repeats the runs of a figure and judges its claims."""
    return f"lifted reproduce {figure} --priority seeds {_APART}"


def claim_block(results: Results, claim: Claim) -> Finding:
    """Verdict and statement; below them the numbers, the reason for the rule, attempts, name and command."""
    verdict = results.verdicts[claim.name]
    found = sentence(verdict.sentence)
    lines = re.split(r"(?<=\.) ", found) if isinstance(claim.rule, All) else [found]
    lines += [line for line in (f"Judged by: {sentence(claim.why)}", tried(results, claim)) if line]
    others = _judged_otherwise(results, claim)
    read = [f"With {title}, {marked(other.status)}: {sentence(other.sentence)}" for title, other in others]
    command = f"lifted reproduce {claim.name} {_APART}" if claim.recipes else "lifted report results"
    more = (readings_in_brief(results, claim), read) if read else None
    code = (claim.name, command)
    return Finding(marked(verdict.status), claim.statement, _COLOURS[verdict.status], lines, code, more)


def failures(results: Results) -> dict[str, dict[Claim, list[str]]]:
    """The claims that were not reproduced, by the title of their cause, each with its lines of text.

    These are the statement with the measured numbers, other readings in brief, and attempts.
    """
    noted: dict[str, str] = {}
    found: dict[str, dict[Claim, list[str]]] = {}
    for title, claims in results.failed.items():
        for claim in claims:
            note = tried(results, claim)
            first = noted.setdefault(note, claim.name)
            again = note if first == claim.name or not note else f"What was tried: the same as for {first}."
            lines = [stated(results, claim), readings_in_brief(results, claim), again]
            found.setdefault(title, {})[claim] = [line for line in lines if line]
    return found


def failure_blocks(results: Results) -> list[Block]:
    """`failures` as paragraphs, under a heading for each cause."""
    from markupsafe import Markup

    blocks: list[Block] = []
    for title, claims in failures(results).items():
        blocks.append(Heading(sentence(title).removesuffix(".")))
        for claim, lines in claims.items():
            blocks.append(Text(Markup("<code>{}</code> {}").format(claim.name, Markup("<br>").join(lines))))
    return blocks


def open_claims(results: Results) -> dict[Claim, str]:
    """The claims that are undecided, and errata of the paper, each with its statement and the measured numbers."""
    unclear = (Status.UNDECIDED, Status.ERRATUM)
    return {
        claim: f"{sentence(verdict.status.value)} {stated(results, claim)}"
        for claim in results.paper.claims
        if (verdict := results.verdicts[claim.name]).status in unclear
    }


def stated(results: Results, claim: Claim) -> str:
    """The paper's statement, and the numbers of the verdict."""
    return f"{claim.statement} {sentence(results.verdicts[claim.name].sentence)}"


def readings_in_brief(results: Results, claim: Claim) -> str:
    """The readings of the text that reproduce a claim, and how many do not; empty where none judges it."""
    found = _judged_otherwise(results, claim)
    good = [f"{title} ({one.brief})" for title, one in found if one.status is Status.REPRODUCED]
    left = count(len(found) - len(good), "other reading")
    if not found:
        return ""
    if not good:
        return f"Read otherwise: not reproduced in {left}."
    more = f"; not in {left}" if len(good) < len(found) else ""
    return f"Read otherwise: reproduced with {', '.join(good)}{more}."


def _judged_otherwise(results: Results, claim: Claim) -> list[tuple[str, Verdict]]:
    """The verdicts of the other readings whose runs are stored."""
    return [(title, verdicts[claim.name]) for title, verdicts in results.readings.items() if claim.name in verdicts]


def tried(results: Results, claim: Claim) -> str:
    """The note on attempts for a claim that was not reproduced; empty where there is none."""
    note = results.paper.notes.get(claim.name, "")
    return f"What was tried: {sentence(note)}" if note else ""


def reasons(claims: Iterable[Claim]) -> dict[str, list[str]]:
    """Every reason once, with the names of the claims that have it."""
    found: dict[str, list[str]] = {}
    for claim in claims:
        found.setdefault(claim.why, []).append(claim.name)
    return found


def sentence(text: str) -> str:
    """With a capital after every full stop, but for names with an underscore, and a full stop at the end."""
    capital = re.sub(r"(^|\. )([a-z])(?!\w*_)", lambda found: found[1] + found[2].upper(), text)
    return capital if capital.endswith((".", "!", "?")) else f"{capital}."
