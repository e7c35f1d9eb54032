"""`lifted bench scale`: what several processes gain."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from lifted_bregman.cli import _console
from lifted_bregman.cli._errors import ExitCode
from lifted_bregman.cli.parameters import Parameter, Whole
from lifted_bregman.experiments.environment import load_average
from lifted_bregman_lab import scale
from lifted_bregman_lab.commands._bar import bar
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
    fresh: Annotated[bool, Parameter(help="Begin anew, and replace what the folder holds.")] = False,
) -> int:
    """What two processes gain over one, each with one thread, in turns.

    lifted bench scale --quick
    lifted bench scale --out out/scale

    It takes about ten minutes.  After Ctrl-C the same command goes on with what is missing, if --out is given.
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
        sentence = "the machine is not idle: times will be longer, and ratios less sure."
        _console.say("warning", sentence, "bold yellow")

    def keep(found: scale.Scale) -> None:
        if out is not None:
            scale.write_scale(out / STORED, found)

    samples = None
    if settings.repetitions and (stored is None or scale.missing_arrivals(stored, settings.repetitions)):
        with _console.downloads() as progress:
            samples = scale.samples_of(data_dir, progress)
    try:
        with bar() as watch:
            cases = scale.QUICK if quick else scale.CASES
            found = scale.run_scale(cases, settings, watch, stored=stored, keep=keep, samples=samples)
    except KeyboardInterrupt:
        how = f"{out} keeps what is done, and the same command goes on" if out else "with --out it could go on"
        _console.say("lifted", f"ended early; {how}.", "bold yellow")
        return ExitCode.INTERRUPTED
    keep(found)
    _show(found, out)
    return ExitCode.OK


def _show(found: scale.Scale, out: Path | None) -> None:
    console = _console.output()
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
