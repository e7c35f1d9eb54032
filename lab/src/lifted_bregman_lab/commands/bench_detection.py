"""`lifted bench detection`: LiftedDetector on MNIST, on tables against PyOD, and a classifier's energy."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from lifted_bregman._arguments import whole
from lifted_bregman.cli import terminal
from lifted_bregman.cli.exit_codes import ExitCode
from lifted_bregman.cli.parameters import Parameter, Whole
from lifted_bregman.errors import CheckpointError, SettingError
from lifted_bregman.experiments.environment import threads
from lifted_bregman.training.fit import default_solver
from lifted_bregman_lab import detection
from lifted_bregman_lab.commands._bar import bar, report_interrupt
from lifted_bregman_lab.datasets import fetch_missing
from lifted_bregman_lab.detection import summary
from lifted_bregman_lab.detection.problems import sets_of
from lifted_bregman_lab.text import plain_table

STORED = "detection.json"


def run(
    *,
    out: Annotated[Path | None, Parameter(help="A folder for the rows, and their tables.")] = None,
    studies: Annotated[str, Parameter(help="Of pictures, tables and classifier, with commas. [default: all]")] = "",
    seeds: Annotated[Whole, Parameter(help="Number of seeds.")] = 1,
    fresh: Annotated[bool, Parameter(help="Measure everything again, and replace the stored rows.")] = False,
    data_dir: Annotated[Path | None, Parameter(help="A folder that holds data sets. [default: the cache]")] = None,
) -> int:
    """LiftedDetector: MNIST one class against the rest, 20 tables against PyOD; Fashion-MNIST against MNIST.

    lifted bench detection --out docs/figures

    The lab's extra 'detection' installs PyOD; without it the rivals are left out.  After Ctrl-C the same command
    runs what is missing, if --out is given.
    """
    whole(seeds, "seeds")
    chosen = tuple(name.strip() for name in studies.split(",") if name.strip()) or detection.STUDIES
    for name in chosen:
        if name not in detection.STUDIES:
            raise SettingError(f"there is no study '{name}': the studies are {', '.join(detection.STUDIES)}.")
    stored = None
    if out is not None:
        out.mkdir(parents=True, exist_ok=True)
        if (out / STORED).exists() and not fresh:
            stored = detection.read_detections(out / STORED)
            if stored.solver != repr(default_solver()):
                raise CheckpointError(
                    f"{out / STORED} holds rows of {stored.solver}, but the detector's solver is {default_solver()!r} "
                    "now: replace them with --fresh."
                )
    if "tables" in chosen and detection.missing_rivals():
        sentence = "PyOD's detectors are left out: 'pyod' is not installed, which the lab's extra 'detection' installs."
        terminal.say("warning", sentence, "bold yellow")
    with terminal.downloads() as progress:
        fetch_missing(sets_of(chosen), data_dir, progress)

    def keep(found: detection.Detections) -> None:
        if out is not None:
            detection.write_detections(out / STORED, found)

    try:
        with threads(1), bar() as watch:
            found = detection.detect(chosen, seeds, data_dir, watch, stored=stored, keep=keep)
    except KeyboardInterrupt:
        return report_interrupt(out)
    console = terminal.output()
    for caption, rows in summary.tables(found):
        console.print(caption)
        for line in plain_table(*rows):
            console.print(line)
        console.print("")
    console.print(summary.verdict(found))
    if out is not None:
        for study in sorted({row.study for row in found.rows}):
            (out / f"detection_{study}.inc").write_text(summary.page(found, study), encoding="utf-8")
    return ExitCode.OK
