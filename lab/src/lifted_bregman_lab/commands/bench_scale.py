"""`lifted bench scale`: the speed-up of two processes over one."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from lifted_bregman.cli import terminal
from lifted_bregman.cli.exit_codes import ExitCode
from lifted_bregman.cli.parameters import Parameter, Whole
from lifted_bregman.experiments.environment import load_average
from lifted_bregman_lab import scale
from lifted_bregman_lab.commands._bar import bar, report_interrupt
from lifted_bregman_lab.scale import tables as scale_tables
from lifted_bregman_lab.text import plain_table
from lifted_bregman_lab.watching import IDLE

STORED, TABLES = "scale.json", "scale.inc"
_QUICK_ROUNDS = 3


def run(
    *,
    out: Annotated[Path | None, Parameter(help="A folder for everything that is measured, and its tables.")] = None,
    rounds: Annotated[Whole | None, Parameter(help="Timings of everything. [default: 7; 3 with --quick]")] = None,
    repetitions: Annotated[
        Whole | None, Parameter(help="Of the time to a target. [default: 3; 0 with --quick]")
    ] = None,
    data_dir: Annotated[Path | None, Parameter(help="A folder that holds data sets.")] = None,
    quick: Annotated[bool, Parameter(help="Four networks; about a minute.")] = False,
    fresh: Annotated[bool, Parameter(help="Measure everything again, and replace the stored rows.")] = False,
) -> int:
    """Measure the speed-up of two processes over one, each with one thread, in turns.

    lifted bench scale --quick
    lifted bench scale --out out/scale

    It takes about ten minutes.  After Ctrl-C the same command runs what is missing, if --out is given.
    """
    settings = scale.ScaleSettings(
        rounds if rounds is not None else _QUICK_ROUNDS if quick else scale.ScaleSettings.rounds,
        links=not quick,
        repetitions=repetitions if repetitions is not None else 0 if quick else scale.ScaleSettings.repetitions,
        data_dir=data_dir,
    )
    stored = None
    if out is not None:
        out.mkdir(parents=True, exist_ok=True)
        if (out / STORED).exists() and not fresh:
            stored = scale.read_scale(out / STORED)
    if load_average() > IDLE:
        sentence = "the machine is not idle: times are longer and ratios less certain than on an idle one."
        terminal.say("warning", sentence, "bold yellow")

    def keep(found: scale.ScaleStudy) -> None:
        if out is not None:
            scale.write_scale(out / STORED, found)

    samples = None
    if settings.repetitions and (stored is None or scale.missing_arrivals(stored, settings.repetitions)):
        with terminal.downloads() as progress:
            samples = scale.samples_of(data_dir, progress)
    try:
        with bar() as watch:
            cases = scale.QUICK if quick else scale.CASES
            found = scale.run_scale(cases, settings, watch, stored=stored, keep=keep, samples=samples)
    except KeyboardInterrupt:
        return report_interrupt(out)
    keep(found)
    _show(found, out)
    return ExitCode.OK


def _show(found: scale.ScaleStudy, out: Path | None) -> None:
    console = terminal.output()
    tables = {
        "two processes that share batches": scale_tables.gain_rows(found, "data"),
        "two processes that share layers": scale_tables.gain_rows(found, "layer"),
        "bytes sent in a step": scale_tables.byte_rows(found),
        "time to the target objective, with two cores": scale_tables.arrival_rows(found),
    }
    for title, table in tables.items():
        if table[1]:
            console.print(f"{title}\n")
            for line in plain_table(*table):
                console.print(line)
            console.print("")
    if out is not None:
        (out / TABLES).write_text(scale_tables.page(found), encoding="utf-8")
        console.print(f"tables: {out / TABLES}")
