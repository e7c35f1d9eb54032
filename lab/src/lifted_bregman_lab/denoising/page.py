"""The table and the figure of the study."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from lifted_bregman.reports.figures import new_figure, save_png, style
from lifted_bregman.reports.palette import DARK, LIGHT, Palette
from lifted_bregman_lab.denoising.arms import BASELINE
from lifted_bregman_lab.denoising.results import BM3D, DenoisingStudy
from lifted_bregman_lab.denoising.samples import psnr, with_noise
from lifted_bregman_lab.text import Rows, markdown

if TYPE_CHECKING:
    from matplotlib.figure import Figure

SHOWN = 2
"""The test picture in the figure, counted from 0."""
PIECE = 130
"""Height and width of the piece that is shown."""


def method_rows(study: DenoisingStudy) -> Rows:
    """Return a row for each arm, for the untrained network, the noisy pictures and BM3D."""
    baseline = next(row.mean for row in study.rows if row.arm == BASELINE)
    rows: list[tuple[str, ...]] = [
        (row.arm, f"{row.mean:.2f}", f"{row.mean - baseline:+.3f}", f"{row.seconds:.0f}", f"{row.steps:,}")
        for row in study.rows
    ]
    rows.append(("before training", f"{study.untrained:.2f}", "", "", ""))
    rows.append(("noisy pictures", f"{study.noisy:.2f}", "", "", ""))
    rows.append(("BM3D, published", f"{BM3D:.2f}", "", "", ""))
    return ("", "PSNR in dB", "against back-propagation", "processor seconds", "steps"), rows


def page(study: DenoisingStudy) -> str:
    """Return the table and the settings as Markdown, for a page to include."""
    where, what = study.environment, study.settings
    line = (
        f"{what['layers']} layers of {what['filters']} filters, {what['kernel_size']} x {what['kernel_size']}: "
        f"{study.parameters:,} parameters. Batches of {what['batch_size']} patches, seed {what['seed']}, "
        f"{what['minutes']:g} minutes of processor time for each. torch {where['torch']}, {where['processor']}, "
        "one thread."
    )
    return f"{markdown(method_rows(study))}\n\n{line}\n"


@torch.no_grad()
def draw(study: DenoisingStudy, models: Mapping[str, nn.Module], test: Sequence[Tensor], folder: Path) -> None:
    """Draw a piece noisy, denoised by each arm and clean, and the validation PSNR against processor time.

    Writes denoising.png and, for dark readers, denoising_dark.png.
    """
    generator = torch.Generator().manual_seed(0)
    for clean in test[: SHOWN + 1]:
        noisy = with_noise(clean, generator)
    shown = {"noisy": noisy} | {name: model(noisy[None])[0] for name, model in models.items()} | {"clean": clean}
    for palette in (LIGHT, DARK):
        save_png(_figure(study, shown, palette), folder / f"denoising{palette.suffix}.png")


def _figure(study: DenoisingStudy, shown: Mapping[str, Tensor], palette: Palette) -> Figure:
    figure = new_figure(2.3 * len(shown), 5.4, palette)
    grid = figure.add_gridspec(2, len(shown), height_ratios=(1.0, 0.9), hspace=0.3, wspace=0.05)
    clean = shown["clean"]
    top, left = ((n - PIECE) // 2 for n in clean.shape[1:])
    for place, (name, picture) in enumerate(shown.items()):
        axes = figure.add_subplot(grid[0, place])
        axes.imshow(picture[0, top : top + PIECE, left : left + PIECE].numpy(), cmap="gray", vmin=0.0, vmax=1.0)
        level = "" if name == "clean" else f"\n{psnr(picture, clean):.2f} dB"
        axes.set_title(f"{name}{level}", fontsize=9.5, color=palette.ink)
        axes.set(xticks=[], yticks=[])
    axes = figure.add_subplot(grid[1, :])
    style(axes, palette)
    for row, colour, dashes in zip(study.rows, palette.curves, ("-", "--", ":"), strict=False):
        axes.plot(*zip(*row.curve, strict=True), dashes, color=colour, label=row.arm, linewidth=1.8)
    axes.set_xlabel("processor seconds")
    axes.set_ylabel("PSNR in dB, Set12")
    axes.legend(fontsize=9, frameon=False, loc="lower right", labelcolor=palette.ink)
    return figure
