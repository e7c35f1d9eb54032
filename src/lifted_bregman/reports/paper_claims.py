"""Claims as a reader meets them: what the paper says, what was found, why it is judged so, and how to run it again."""

from __future__ import annotations

import re
from collections.abc import Iterable

from lifted_bregman.experiments.reproduction import All, Claim, Status
from lifted_bregman.reports.page import Text
from lifted_bregman.reports.paper_results import Results
from lifted_bregman.reports.paper_tables import told

_COLOURS = {
    Status.REPRODUCED: "curve-3",
    Status.NOT_REPRODUCED: "curve-2",
    Status.NOT_APPLICABLE: "curve-5",
    Status.NOT_RUN: "rule",
}
_APART = "--out out/again"  # a stored run is not run again


def command(claim: Claim) -> str:
    """What runs again whatever a claim is judged by, and judges it."""
    return f"lifted reproduce {claim.name} {_APART}" if claim.recipes else "lifted report results"


def command_of_all(figure: str) -> str:
    """The same for all claims about a figure."""
    return f"lifted reproduce {figure} --priority seeds {_APART}"


def claim_block(results: Results, claim: Claim) -> Text:
    """Verdict and statement, and below them what was found, why it is judged so, what was tried, name and command."""
    from markupsafe import Markup

    verdict = results.verdicts[claim.name]
    found = sentence(verdict.sentence)
    smaller = [
        *(re.split(r"(?<=\.) ", found) if isinstance(claim.rule, All) else [found]),
        f"Judged by: {sentence(claim.why)}",
        *read_otherwise(results, claim),
        tried(results, claim),
    ]
    names = (Markup("<code>{}</code>").format(word) for word in (claim.name, command(claim)))
    return Text(
        Markup(
            '<span class="claim" style="display: block; border-left: .3rem solid var(--{}); padding-left: .9rem">'
            '<strong>{}</strong> · {}<br><span style="color: var(--soft); font-size: .95rem">{}</span></span>'
        ).format(
            _COLOURS[verdict.status],
            told(verdict.status),
            claim.statement,
            Markup("<br>").join([*filter(None, smaller), *names]),
        )
    )


def failure_block(results: Results, claim: Claim) -> Text:
    """A claim that was not reproduced: statement, what was found, what was tried."""
    from markupsafe import Markup

    found = f"{claim.statement} {sentence(results.verdicts[claim.name].sentence)}"
    lines = filter(None, (found, *read_otherwise(results, claim), tried(results, claim)))
    return Text(Markup("<strong>{}</strong> {}").format(claim.name, Markup("<br>").join(lines)))


def read_otherwise(results: Results, claim: Claim) -> list[str]:
    """What other readings of the text say about a claim, a paragraph for each of which something is stored."""
    found = [(title, verdicts[claim.name]) for title, verdicts in results.readings.items() if claim.name in verdicts]
    return [f"Read with {title}, {told(verdict.status)}: {sentence(verdict.sentence)}" for title, verdict in found]


def tried(results: Results, claim: Claim) -> str:
    """What was tried for a claim that was not reproduced; empty where nothing is noted."""
    note = results.paper.notes.get(claim.name, "")
    return f"What was tried: {sentence(note)}" if note else ""


def heading(text: str) -> Text:
    """A line that stands out, inside a section."""
    from markupsafe import Markup

    return Text(Markup("<strong>{}</strong>").format(text))


def reasons(claims: Iterable[Claim]) -> dict[str, list[str]]:
    """Every reason once, with the names of the claims that have it."""
    found: dict[str, list[str]] = {}
    for claim in claims:
        found.setdefault(claim.why, []).append(claim.name)
    return found


def sentence(text: str) -> str:
    """With a capital after every full stop, and a full stop at the end."""
    capital = re.sub(r"(^|\. )([a-z])", lambda found: found[1] + found[2].upper(), text)
    return capital if capital.endswith((".", "!", "?")) else f"{capital}."
