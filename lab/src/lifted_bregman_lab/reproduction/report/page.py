"""The page of a reproduction: every table beside the paper's, every figure redrawn, every claim with its verdict."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from lifted_bregman.reports.page import Block, Figure, Heading, Listing, Page, PageTable, Section, Text
from lifted_bregman_lab.reproduction import Near, Quoted
from lifted_bregman_lab.reproduction.exhibits import Drawing, Exhibit, Shown, ShownCharts, ShownImages, ShownTable
from lifted_bregman_lab.reproduction.report import charts, claims, tables
from lifted_bregman_lab.reproduction.report.results import Results
from lifted_bregman_lab.text import Rows, count

SPREAD = "Means over seeds, ± their standard deviation."
SECONDS = (
    "Seconds a run are those in steps alone, means over seeds. Runs share their machine with other work, which slows "
    "parts of them; seconds an epoch, elsewhere, are therefore those of the median epoch. Races on a quiet "
    "machine (lifted bench) say which method is faster."
)
VERDICTS = (
    "A claim is reproduced or not by the mean over the seeds that are stored; with two seeds or more it is undecided "
    "where a bound lies within two standard errors of that mean. What has to hold was fixed before the runs that judge "
    "it"
)
READINGS = (
    "Where the text can be read in another way, the claims whose runs are stored in both readings are judged by both, "
    "with the same rules. The verdicts above are those of the main reading. Each reading changes one choice. Beside it "
    "stand the verdicts on the same claims without that choice, in the reading beside which it was run, and in the "
    "main reading."
)
CAUSES = "Several claims may state one fact. The claims of each cause are listed below."
FAILURES = "Numbers in parentheses are those of another reading. A number without ± is that of one seed."
OPEN = "Undecided, and errata of the paper"
NONE_IGNORED = "None: every file holds a finished run, with the hash of its settings and those of its recipe."
_TOGETHER = 20  # characters of a cell that stay on one line, which gives a column of words its width
_MANY = 6  # from so many numbers on, a figure shows them as a table
AGAIN = (
    "A run that is stored is not run again: --out names another folder. A claim or a run can be named in place of a "
    "table or figure. The last command makes this page and the summary from what is stored, without training."
)


@dataclass(frozen=True)
class _Aligned(PageTable):
    """A table in which these columns are aligned as numbers."""

    numbers: range = range(0)

    def is_numeric(self, column: int) -> bool:
        return column in self.numbers


def paper_page(results: Results, scratch: Path) -> Page:
    """The page.

    Args:
        results: the stored runs with their verdicts.
        scratch: a folder for pictures that are drawn for the page; needed until the page is written.
    """
    from markupsafe import Markup

    paper, found = results.paper, results.evidence.found
    seeds = len({run.seed for run in found})
    verdicts: list[Block] = [
        *map(Text, (verdict_sentence(results), *results.paper.decided_later)),
        PageTable(*together(tables.verdict_rows(results), 0), "Claims by table or figure."),
        *([PageTable(*together(tables.reading_rows(results), 0), READINGS)] if results.readings else []),
    ]
    failed = claims.failure_blocks(results)
    if failed:
        causes = PageTable(*together(tables.cause_rows(results), 0), CAUSES)
        failed = [causes, *([Text(FAILURES)] if results.readings else []), *failed]
    unclear: list[Block] = [
        Text(Markup("<code>{}</code> {}").format(claim.name, line))
        for claim, line in claims.open_claims(results).items()
    ]
    ignored: Block = Text(NONE_IGNORED)
    if results.ignored:
        ignored = PageTable(("file", "why"), list(results.ignored.items()), "Nothing above rests on these files.")
    runs = PageTable(*together(tables.run_rows(results), 1), f"Every recipe. {SECONDS}")
    commands = [*map(claims.command_of_all, paper.figures), "lifted reproduce all"]
    commands.append("lifted report results --summary docs/reproduction-results.md")
    return Page(
        title=f"Reproduction: {paper.title}",
        summary=(
            f"{tables.counted(results)} They rest on {count(len(found), 'stored run')} of "
            f"{count(len(paper.recipes), 'recipe')}, with up to {count(seeds, 'seed')}."
        ),
        sections=[
            Section("Verdicts", verdicts),
            *([Section("What was not reproduced", failed)] if failed else []),
            *([Section(OPEN, unclear)] if unclear else []),
            *(_exhibit(results, exhibit, scratch) for exhibit in results.exhibits),
            Section("Runs", [Text(missing_sentence(results)), runs]),
            Section("Files that were ignored", [ignored]),
            Section("Machine", [PageTable(*tables.machine_rows(results), "Where the stored runs took place.")]),
            Section("How to rerun", [Listing("\n".join(commands)), Text(AGAIN)]),
        ],
    )


def _exhibit(results: Results, exhibit: Exhibit, scratch: Path) -> Section:
    blocks: list[Block] = [Text(exhibit.text)] if exhibit.text else []
    for number, shown in enumerate(exhibit.shown):
        blocks.append(_shown(results, shown, scratch / f"{exhibit.figure}-{number}"))
    if exhibit.note:
        blocks.append(Text(f"What was tried: {exhibit.note}"))
    return Section(exhibit.title, [*blocks, *_claims(results, exhibit.figure)])


def _claims(results: Results, figure: str) -> list[Block]:
    """Many numbers as a table with every reason once below it, everything else in paragraphs."""
    found = results.paper.claims_of(figure)
    numbers = [claim for claim in found if isinstance(claim.rule, Near | Quoted)]
    if len(numbers) < _MANY:
        numbers = []
    blocks: list[Block] = [Heading("Claims")] if found else []
    if numbers:
        rows = together(tables.number_rows(results, numbers), 1, 5)
        blocks.append(_Aligned(*rows, f"Numbers of the paper. {SPREAD}", range(2, 5)))
        blocks += [Text(f"Judged by: {claims.sentence(why)}") for why in claims.reasons(numbers)]
        blocks += [Text(note) for note in dict.fromkeys(claims.tried(results, claim) for claim in numbers) if note]
        blocks.append(Listing(claims.command_of_all(figure)))
    return [*blocks, *(claims.claim_block(results, claim) for claim in found if claim not in numbers)]


def _shown(results: Results, shown: Shown, path: Path) -> Block:
    match shown:
        case ShownTable():
            header, rows = together(tables.shown_rows(results, shown), 0)
            numbers = range(1 if header[1] == "seeds" else 2, len(header))
            return _Aligned(header, rows, table_caption(results, shown), numbers)
        case Drawing():
            light, dark = (shown.draw(path.with_suffix(f".{word}.png"), word == "dark") for word in ("light", "dark"))
            return Figure(light, shown.caption, shown.alt, dark)
        case ShownCharts():
            return charts.charts_block(results, shown)
        case ShownImages():
            return charts.images_block(results, shown)
    return charts.codes_block(results, shown)


def table_caption(results: Results, table: ShownTable) -> str:
    """The caption of a table, the meaning of ±, and how many of the paper's numbers are reproduced."""
    return " ".join(filter(None, (table.caption, SPREAD, tables.within(results, table))))


def verdict_sentence(results: Results) -> str:
    """How verdicts are found; what was decided after results had been seen follows, where there is anything."""
    end = ", but for what was decided after results had been seen:" if results.paper.decided_later else "."
    return VERDICTS + end


def together(table: Rows, *columns: int) -> Rows:
    """The table where lines in these columns break only between groups of words of up to `_TOGETHER` characters."""
    header, rows = table
    return header, [tuple(_joined(cell) if n in columns else cell for n, cell in enumerate(row)) for row in rows]


def _joined(text: str) -> str:
    """The text with no-break spaces inside a group of words, and no break at the hyphens of a short group."""
    pieces: list[str] = []
    for word in text.split(" "):
        if pieces and len(pieces[-1]) + len(word) < _TOGETHER:
            pieces[-1] += f"\N{NO-BREAK SPACE}{word}"
        else:
            pieces.append(word)
    return " ".join(one.replace("-", "-\N{WORD JOINER}") if len(one) <= _TOGETHER else one for one in pieces)


def missing_sentence(results: Results) -> str:
    """The number of stored runs, and the time that the others take."""
    left = results.missing
    done = f"{len(results.evidence.found)} of {len(results.jobs)} runs are stored"
    if not left:
        return f"{done}."
    hours = sum(job.recipe.seconds for job in left) / 3600
    return f"{done}; the other {len(left)} would take about {hours:.1f} hours on one thread."
