"""`lifted bench nudges`: AdamW with lifted signals at several nudges, where units die or saturate and where not."""

from __future__ import annotations

import signal
from pathlib import Path
from typing import Annotated

from lifted_bregman.cli import terminal
from lifted_bregman.cli.exit_codes import ExitCode
from lifted_bregman.cli.parameters import Parameter, Whole
from lifted_bregman.experiments.files import write_whole
from lifted_bregman.training.signals import Signals
from lifted_bregman_lab.commands._bar import bar
from lifted_bregman_lab.race.nudges import NUDGED, PROBLEMS, nudge_page, nudge_rows
from lifted_bregman_lab.race.problems import choose
from lifted_bregman_lab.race.running import CRITERIA, RaceSettings, run_race
from lifted_bregman_lab.race.store import Store
from lifted_bregman_lab.text import plain_table

STORED, INCLUDED = "nudges.jsonl", "nudges.inc"


def run(
    *,
    out: Annotated[Path, Parameter(help="A folder for the rows and their tables.")] = Path("nudges"),
    networks: Annotated[str, Parameter(help="Names of networks, with commas. [default: all]")] = "",
    seeds: Annotated[Whole, Parameter(help="Number of seeds.")] = 5,
) -> int:
    """AdamW with derivatives and with lifted signals at four nudges, on networks whose units die, saturate or do not.

    lifted bench nudges --out docs/figures

    Rates are tuned with derivatives. Ctrl-C stops after the present turn. The same command then makes the missing runs.
    """
    chosen = choose([name for name in networks.split(",") if name], PROBLEMS, "network")
    out.mkdir(parents=True, exist_ok=True)
    store = Store.open(out / STORED)
    with Signals(terminate=True) as signals, bar() as watch:
        whole = run_race(chosen, NUDGED, RaceSettings(seeds=seeds), store, watch, signals)
    console = terminal.output()
    for criterion in CRITERIA:
        for line in plain_table(*nudge_rows(store.rows.values(), criterion)):
            console.print(line)
    write_whole(out / INCLUDED, nudge_page(store.rows.values()).encode())
    if whole:
        return ExitCode.OK
    terminal.say("lifted", f"ended early; {out} keeps what is done, and the same command continues.", "bold yellow")
    return ExitCode.TERMINATED if signals.received == signal.SIGTERM else ExitCode.INTERRUPTED
