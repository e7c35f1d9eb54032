"""`lifted bench denoising`: an unfolded denoiser, lifted and by back-propagation, on Train400 and BSD68."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from torch import nn

from lifted_bregman import data
from lifted_bregman.cli import terminal
from lifted_bregman.cli.exit_codes import ExitCode
from lifted_bregman.cli.parameters import Parameter, Whole
from lifted_bregman.experiments.environment import threads
from lifted_bregman_lab.commands._bar import bar
from lifted_bregman_lab.denoising import StudySettings, run_denoising, write_denoising
from lifted_bregman_lab.denoising.page import draw, method_rows, page
from lifted_bregman_lab.text import plain_table

STORED, INCLUDED = "denoising.json", "denoising.inc"


def run(
    *,
    out: Annotated[Path | None, Parameter(help="A folder for the rows, their table and the figures.")] = None,
    minutes: Annotated[float, Parameter(help="Of processor time for each arm.")] = StudySettings.minutes,
    layers: Annotated[Whole, Parameter(help="Layers of the denoiser.")] = StudySettings.layers,
    filters: Annotated[Whole, Parameter(help="Filters of a layer.")] = StudySettings.filters,
    kernel_size: Annotated[Whole, Parameter(help="Height and width of a filter.")] = StudySettings.kernel_size,
    seed: Annotated[Whole, Parameter(help="Of weights, patches and noise.")] = StudySettings.seed,
    data_dir: Annotated[Path | None, Parameter(help="A folder that holds the pictures; without it, the cache.")] = None,
) -> int:
    """An unfolded denoiser trained lifted and by back-propagation: Train400 to BSD68, σ = 25, equal processor time.

    lifted bench denoising --minutes 10 --out docs/figures
    """
    settings = StudySettings(minutes, layers, filters, kernel_size, seed=seed)
    if out is not None:
        out.mkdir(parents=True, exist_ok=True)
    with terminal.downloads() as progress:
        train, validation, test = (
            data.load_pictures(name, data_dir=data_dir, progress=progress) for name in ("train400", "set12", "bsd68")
        )
    models: dict[str, nn.Module] = {}
    try:
        with threads(1), bar() as watch:
            found = run_denoising(settings, train, validation, test, watch, models.__setitem__)
    except KeyboardInterrupt:
        terminal.say("lifted", "ended early; nothing was stored.", "bold yellow")
        return ExitCode.INTERRUPTED
    console = terminal.output()
    for line in plain_table(*method_rows(found)):
        console.print(line)
    if out is not None:
        write_denoising(out / STORED, found)
        (out / INCLUDED).write_text(page(found), encoding="utf-8")
        draw(found, models, test, out)
        console.print(f"rows, table and figures: {out}")
    return ExitCode.OK
