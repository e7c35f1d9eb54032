"""The page of a reproduction: every table beside the paper's, every figure redrawn, every claim with its verdict."""

from __future__ import annotations

from pathlib import Path

from lifted_bregman.reports.page import Block, Figure, Heading, Listing, Page, Section, Table, Text
from lifted_bregman_lab.reproduction import Near
from lifted_bregman_lab.reproduction.exhibits import (
    Drawing,
    Exhibit,
    Shown,
    ShownCharts,
    ShownCodes,
    ShownImages,
    ShownTable,
)
from lifted_bregman_lab.reproduction.report.charts import charts_block, codes_block, images_block
from lifted_bregman_lab.reproduction.report.claims import (
    claim_block,
    command_of_all,
    failure_blocks,
    reasons,
    sentence,
    tried,
)
from lifted_bregman_lab.reproduction.report.results import Results
from lifted_bregman_lab.reproduction.report.tables import (
    MARKED,
    Rows,
    counted,
    has_published,
    machine_rows,
    number_rows,
    reading_rows,
    run_rows,
    shown_rows,
    verdict_rows,
)

SPREAD = "Means over seeds, ± their standard deviation."
SECONDS = (
    "Seconds a run are those in steps alone, means over seeds. Runs share their machine with other work, which slows "
    "parts of them; seconds an epoch, elsewhere, are therefore those of the median epoch. Races on a quiet "
    "machine (lifted bench) say which method is faster."
)
_EVERY = f"Every recipe. {SECONDS}"
VERDICTS = (
    "A claim is reproduced or not by the mean over the seeds that are stored. What has to hold was fixed before the "
    "runs that judge it."
)
READINGS = (
    "Where the text can be read in another way, the claims whose runs are stored in both readings are judged by both, "
    "with the same rules. The verdicts above are those of the main reading."
)
FAILURES = (
    "What another reading of the text comes to stands in parentheses, with a mark that says whether it reproduces the "
    "claim. A number without ± is that of one seed."
)
_TOGETHER = 20  # characters of a cell that are never broken: a column of words is at least so wide
_MANY = 6  # numbers of one figure that are better read as a table
AGAIN = (
    "A run that is stored is not run again: --out names another folder. A claim or a run can be named in place of a "
    "table or figure. The last command makes this page and the summary from what is stored, without training."
)


class _Measured(Table):
    """A table whose first two columns are words, and whose others are measured."""

    def is_numeric(self, column: int) -> bool:
        return column > 1 or (column == 1 and self.header[1] == "seeds")


class _Numbers(Table):
    """A table of `number_rows`."""

    def is_numeric(self, column: int) -> bool:
        return 1 < column < 5


def paper_page(results: Results, scratch: Path) -> Page:
    """The page.

    Args:
        results: the stored runs with their verdicts.
        scratch: a folder for pictures that are drawn for the page; needed until the page is written.
    """
    paper = results.paper
    seeds = {run.seed for run in results.evidence.found}
    return Page(
        title=f"Reproduction: {paper.title}",
        summary=(
            f"{counted(results)} They rest on {_count(len(results.evidence.found), 'stored run')} of "
            f"{_count(len(paper.recipes), 'recipe')}, with up to {_count(len(seeds), 'seed')}."
        ),
        sections=[
            Section("Verdicts", _verdicts(results)),
            *_failures(results),
            *(_exhibit(results, exhibit, scratch) for exhibit in results.exhibits),
            Section("Runs", [Text(missing_sentence(results)), Table(*together(run_rows(results), 1), _EVERY)]),
            Section("Files that were ignored", _ignored(results)),
            Section("Machine", [Table(*machine_rows(results), "Where the stored runs took place.")]),
            Section("How to rerun", _commands(results)),
        ],
    )


def _verdicts(results: Results) -> list[Block]:
    blocks: list[Block] = [Text(VERDICTS), Table(*together(verdict_rows(results), 0), "Claims by table or figure.")]
    if results.readings:
        blocks.append(Table(*together(reading_rows(results), 0), READINGS))
    return blocks


def _failures(results: Results) -> list[Section]:
    failed = failure_blocks(results)
    how_to_read = [Text(FAILURES)] if results.readings else []
    return [Section("What was not reproduced", [*how_to_read, *failed])] if failed else []


def _exhibit(results: Results, exhibit: Exhibit, scratch: Path) -> Section:
    blocks: list[Block] = [Text(exhibit.text)] if exhibit.text else []
    for number, shown in enumerate(exhibit.shown):
        blocks.append(_shown(results, shown, scratch / f"{exhibit.figure}-{number}"))
    if exhibit.note:
        blocks.append(Text(f"What was tried: {exhibit.note}"))
    return Section(exhibit.title, [*blocks, *_claims(results, exhibit.figure)])


def _claims(results: Results, figure: str) -> list[Block]:
    """Many numbers as a table with every reason once below it, everything else in paragraphs."""
    claims = results.paper.claims_of(figure)
    numbers = [claim for claim in claims if isinstance(claim.rule, Near)]
    if len(numbers) < _MANY:
        numbers = []
    blocks: list[Block] = [Heading("Claims")] if claims else []
    if numbers:
        blocks.append(_Numbers(*together(number_rows(results, numbers), 1, 5), f"Numbers of the paper. {SPREAD}"))
        blocks += [Text(f"Judged by: {sentence(why)}") for why in reasons(numbers)]
        blocks += [Text(note) for note in dict.fromkeys(tried(results, claim) for claim in numbers) if note]
        blocks.append(Listing(command_of_all(figure)))
    return [*blocks, *(claim_block(results, claim) for claim in claims if claim not in numbers)]


def _shown(results: Results, shown: Shown, path: Path) -> Block:
    match shown:
        case ShownCharts():
            return charts_block(results, shown)
        case ShownImages():
            return images_block(results, shown)
        case ShownCodes():
            return codes_block(results, shown)
        case Drawing():
            light, dark = (shown.draw(path.with_suffix(f".{word}.png"), word == "dark") for word in ("light", "dark"))
            return Figure(light, shown.caption, shown.alt, dark)
    return _Measured(*together(shown_rows(results, shown), 0), table_caption(results, shown))


def table_caption(results: Results, table: ShownTable) -> str:
    """The caption of a table with the meaning of ± and of the marks."""
    return f"{table.caption} {SPREAD}{f' {MARKED}' if has_published(results, table) else ''}"


def together(table: Rows, *columns: int) -> Rows:
    """The table with words of these columns that stay together, some at a time, however narrow the window is.

    They are not broken at their hyphens either, unless a word alone is too long.
    """
    header, rows = table
    return header, [tuple(_joined(cell) if n in columns else cell for n, cell in enumerate(row)) for row in rows]


def _joined(text: str) -> str:
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


def _ignored(results: Results) -> list[Block]:
    if not results.ignored:
        return [Text("None: every file holds a finished run, with the hash of its settings and those of its recipe.")]
    caption = "Nothing above rests on these files."
    return [Table(("file", "why"), list(results.ignored.items()), caption)]


def _commands(results: Results) -> list[Block]:
    lines = [
        *map(command_of_all, results.paper.figures),
        "lifted reproduce all",
        "lifted report results --summary docs/reproduction-results.md",
    ]
    return [Listing("\n".join(lines)), Text(AGAIN)]


def _count(number: int, what: str) -> str:
    return f"{number} {what}{'' if number == 1 else 's'}"
