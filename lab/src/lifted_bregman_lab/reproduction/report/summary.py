"""The summary of a reproduction as Markdown, for the documentation, and its headline table, for a README."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from pathlib import Path

from lifted_bregman.errors import SettingError
from lifted_bregman.experiments.files import write_whole
from lifted_bregman_lab.reproduction import Claim, Near, Verdict
from lifted_bregman_lab.reproduction.exhibits import Exhibit, ShownTable
from lifted_bregman_lab.reproduction.report import page, tables
from lifted_bregman_lab.reproduction.report.claims import command_of_all, failures, open_claims, reasons, sentence
from lifted_bregman_lab.reproduction.report.results import Results
from lifted_bregman_lab.text import count

BEGIN, END = "<!-- headline of the reproduction: begin -->", "<!-- headline of the reproduction: end -->"
"""The lines between which `write_headline` puts its table."""


def summary(results: Results) -> str:
    """Tables beside the paper's, every claim with its verdict, what was not run and what was ignored."""
    paper = results.paper
    parts = [
        "# Results of the reproduction",
        f"*{_text(paper.title)}*, judged by the runs that are stored. This page is written by `lifted report`: "
        "do not edit it. The same command writes `out/reproduction/index.html`, with every curve, image and code.",
        f"**{_text(tables.counted(results))}**",
        _text(page.verdict_sentence(results)),
        *(["\n".join(f"- {_text(one)}" for one in paper.decided_later)] if paper.decided_later else []),
        markdown_table(*tables.verdict_rows(results), words=1),
        *([page.READINGS, markdown_table(*tables.reading_rows(results), words=1)] if results.readings else []),
        *_failures(results),
        *_open_claims(results),
        *(part for exhibit in results.exhibits for part in _exhibit(results, exhibit)),
        "## Runs",
        f"{page.missing_sentence(results)} {page.SECONDS}",
        markdown_table(*tables.run_rows(results), words=2),
        "## Files that were ignored",
        markdown_table(("file", "why"), list(results.ignored.items())) if results.ignored else "None.",
        "## Machine",
        markdown_table(*tables.machine_rows(results)),
    ]
    return "\n\n".join(parts) + "\n"


def headline(results: Results) -> str:
    """The headline tables as Markdown, each with its caption, and the verdicts in a sentence."""
    shown = [one for exhibit in results.paper.exhibits for one in exhibit.shown]
    headlines = [one for one in shown if isinstance(one, ShownTable) and one.headline]
    parts = [part for one in headlines for part in (_text(page.table_caption(results, one)), _table(results, one))]
    later = " Some choices were made after results had been seen; the results name them."
    return "\n\n".join([*parts, _text(tables.counted(results)) + (later if results.paper.decided_later else "")])


def between_marks(text: str) -> str | None:
    """The text between the marks, without the space around it; None if there are no marks."""
    found = re.search(f"{re.escape(BEGIN)}(.*?){re.escape(END)}", text, re.S)
    return None if found is None else found[1].strip()


def write_summary(results: Results, path: Path) -> Path:
    """Write the summary; the file is written whole or not at all."""
    path.parent.mkdir(parents=True, exist_ok=True)
    write_whole(path, summary(results).encode())
    return path


def require_place(path: Path) -> str:
    """The text of a file with the marks; SettingError if there is no such file or it has no marks."""
    text = path.read_text(encoding="utf-8") if path.is_file() else ""
    if between_marks(text) is None:
        raise SettingError(f"{path} has no place for the headline: add the two lines '{BEGIN}' and '{END}' to it.")
    return text


def write_headline(results: Results, path: Path) -> Path:
    """Put the headline between the marks of a file, which `require_place` checks."""
    before, _, rest = require_place(path).partition(BEGIN)
    after = rest.partition(END)[2]
    write_whole(path, f"{before}{BEGIN}\n{headline(results)}\n{END}{after}".encode())
    return path


def markdown_table(header: Sequence[str], rows: Iterable[Sequence[str]], words: int | None = None) -> str:
    """A table of Markdown; columns after the first `words` are aligned to the right, none if it is None."""
    left = len(header) if words is None else words
    first, *others = (map(_text, line) for line in (header, *rows))
    rule = ("---" if place < left else "---:" for place in range(len(header)))
    return "\n".join(f"| {' | '.join(line)} |" for line in (first, rule, *others))


def _exhibit(results: Results, exhibit: Exhibit) -> list[str]:
    shown = [one for one in exhibit.shown if isinstance(one, ShownTable)]
    claims = results.paper.claims_of(exhibit.figure)
    if not shown and not claims:
        return []
    parts = [f"## {_text(exhibit.title)}", _text(exhibit.text)]
    for table in shown:
        parts += [_text(page.table_caption(results, table)), _table(results, table)]
    parts.append(f"What was tried: {_text(exhibit.note)}" if exhibit.note else "")
    return [*filter(None, parts), *_claims(results, claims)]


def _claims(results: Results, claims: Sequence[Claim]) -> list[str]:
    """One row for each claim, and then every reason once."""
    if not claims:
        return []
    rows = []
    for claim in claims:
        verdict = results.verdicts[claim.name]
        judged = (_found(claim, verdict), tables.marked(verdict.status))
        rows.append((claim.name, claim.statement, claim.rule.required, *judged))
    header = ("claim", "the paper says", "required", "found", "verdict")
    listed = [
        f"- {_text(why)} ({_text(names[0])}{f' and {len(names) - 1} more' if len(names) > 1 else ''})"
        for why, names in reasons(claims).items()
    ]
    again = f"Run it again: `{command_of_all(claims[0].figure)}`, or with the name of a claim or a run."
    return [markdown_table(header, rows), "Why they are judged so:", "\n".join(listed), again]


def _failures(results: Results) -> list[str]:
    parts = [page.CAUSES, markdown_table(*tables.cause_rows(results))]
    parts += [page.FAILURES] if results.readings else []
    for title, claims in failures(results).items():
        lines = []
        for claim, (first, *more) in claims.items():
            lines.append(f"- `{claim.name}`: {_text(first)}")
            lines += (f"  - {_text(line)}" for line in more)
        parts += [f"**{_text(sentence(title))}**", "\n".join(lines)]
    return ["## What was not reproduced", *parts] if results.failed else []


def _open_claims(results: Results) -> list[str]:
    lines = [f"- `{claim.name}`: {_text(line)}" for claim, line in open_claims(results).items()]
    return [f"## {page.OPEN}", "\n".join(lines)] if lines else []


def _found(claim: Claim, verdict: Verdict) -> str:
    """The measured number with its seeds where the rule is about one; else the verdict's own sentence."""
    if not isinstance(claim.rule, Near) or verdict.measured is None:
        return verdict.sentence
    return f"{verdict.sentence.partition(';')[0]}; {count(verdict.seeds, 'seed')}"


def _table(results: Results, table: ShownTable) -> str:
    return markdown_table(*tables.shown_rows(results, table), words=2)


def _text(words: str) -> str:
    """Words that mean themselves in Markdown."""
    return re.sub(r"([\\`*_{}\[\]<>$|])", r"\\\1", words)
