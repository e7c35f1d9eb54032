"""Figures 1 and 2 of the paper, computed by the library: four activations and their Bregman losses.

    python -m lifted_bregman_lab.paper.theory --out out/figures

writes each figure as a PNG file, for light and for dark pages, and one HTML page that holds them.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from lifted_bregman import reports
from lifted_bregman.activations import Activation, ReLU, Softmax, SoftThreshold, Tanh
from lifted_bregman.reports.figures import new_figure, save_png, style
from lifted_bregman.reports.palette import DARK, LIGHT, Palette

THRESHOLD = 0.5
TARGET = 0.5
"""x of Figure 2; for softmax, n = 2, both components of x."""

SCALAR_ACTIVATIONS: tuple[tuple[str, Activation], ...] = (
    ("ReLU", ReLU()),
    (f"Soft threshold, α = {THRESHOLD}", SoftThreshold(THRESHOLD)),
    ("tanh", Tanh()),
)


@dataclass(frozen=True)
class ActivationCurve:
    """A scalar activation on a grid: value[i] = σ(z[i])."""

    name: str
    z: Tensor
    value: Tensor


@dataclass(frozen=True)
class LossCurve:
    """The two losses of Figure 2 along a line: t[i] is z, or for softmax the first component of z = (t, 0).

    `zero` is the t at which σ(z) = x, and so both losses vanish.
    """

    name: str
    t: Tensor
    bregman: Tensor
    squared: Tensor
    zero: float


def activation_curves(points: int = 601) -> tuple[ActivationCurve, ...]:
    """The top row of Figure 1, for z in [-3, 3]."""
    z = torch.linspace(-3.0, 3.0, points, dtype=torch.float64)
    return tuple(ActivationCurve(name, z, act(z.unsqueeze(-1)).squeeze(-1)) for name, act in SCALAR_ACTIVATIONS)


def softmax_components(points: int = 161) -> tuple[Tensor, Tensor]:
    """The bottom row of Figure 1: the grid of [-4, 4], and σ of shape (points, points, 2) at z = (grid[j], grid[i])."""
    grid = torch.linspace(-4.0, 4.0, points, dtype=torch.float64)
    z1, z2 = torch.meshgrid(grid, grid, indexing="xy")
    return grid, Softmax()(torch.stack([z1, z2], dim=-1))


def loss_curves(points: int = 801) -> tuple[LossCurve, ...]:
    """Figure 2: B_Ψ(x, z) and ½‖x - σ(z)‖² for z in [-2, 2] at x = 0.5.

    Softmax is taken along the line z = (t, 0) at x = (0.5, 0.5).  The line loses nothing: both losses of softmax with
    n = 2 depend on z₁ - z₂ alone.
    """
    t = torch.linspace(-2.0, 2.0, points, dtype=torch.float64)
    scalar = t.unsqueeze(-1)
    line = torch.stack([t, torch.zeros_like(t)], dim=-1)
    # ReLU: σ(½) = ½.  Soft threshold: σ(½ + α) = ½.  tanh: σ(atanh ½) = ½.  Softmax: equal components.
    zeros = (TARGET, TARGET + THRESHOLD, torch.tensor(TARGET).double().atanh().item())
    curves = [_compare(name, act, t, scalar, zero) for (name, act), zero in zip(SCALAR_ACTIVATIONS, zeros, strict=True)]
    return (*curves, _compare("Softmax, n = 2", Softmax(), t, line, 0.0))


def _compare(name: str, act: Activation, t: Tensor, z: Tensor, zero: float) -> LossCurve:
    x = torch.full_like(z, TARGET)
    return LossCurve(name, t, act.bregman(x, z), 0.5 * (x - act(z)).square().sum(-1), zero)


def draw_activations(path: Path, palette: Palette = LIGHT) -> Path:
    """Draws Figure 1 as a PNG file."""
    figure = new_figure(9.0, 6.9, palette)
    top = figure.add_gridspec(1, 3, left=0.065, right=0.985, top=0.955, bottom=0.595, wspace=0.2)
    for column, curve in enumerate(activation_curves()):
        axes = figure.add_subplot(top[0, column])
        style(axes, palette, curve.name)
        axes.plot(curve.z, curve.z, color=palette.ink, alpha=0.45, linewidth=1.1, dashes=(4, 3))
        axes.plot(curve.z, curve.value, color=palette.first, linewidth=2.4, solid_capstyle="round")
        axes.set(xlim=(-3, 3), ylim=(-3, 3), xticks=range(-3, 4), yticks=range(-3, 4))
        axes.set_xlabel("$z$", labelpad=1)
        axes.set_aspect("equal")
        if column == 0:
            axes.set_ylabel(r"$\sigma(z)$", labelpad=1)
    bottom = figure.add_gridspec(
        1, 3, width_ratios=(1.0, 1.0, 0.045), left=0.155, right=0.875, top=0.475, bottom=0.07, wspace=0.22
    )
    line, sigma = softmax_components()
    for component in (0, 1):
        axes = figure.add_subplot(bottom[0, component])
        style(axes, palette, f"Softmax, n = 2, component {component + 1}")
        axes.grid(False)
        height = sigma[..., component].numpy()
        image = axes.imshow(
            height, extent=(-4, 4, -4, 4), origin="lower", interpolation="bilinear", cmap="cividis", vmin=0.0, vmax=1.0
        )
        levels = torch.tensor([0.1, 0.3, 0.5, 0.7, 0.9])
        lines = axes.contour(
            line, line, height, levels, colors=["#fff", "#fff", "#fff", "#000", "#000"], linewidths=0.9
        )
        # σ(z)₁ = p where z₁ - z₂ = logit p: the labels go where these lines cross the other diagonal.
        half = (1, -1)[component] * levels.logit() / 2
        axes.clabel(
            lines, fontsize=8.5, fmt="%.1f", inline_spacing=4, manual=torch.stack([half, -half], dim=1).tolist()
        )
        axes.set(xlim=(-4, 4), ylim=(-4, 4), xticks=range(-4, 5, 2), yticks=range(-4, 5, 2))
        axes.set_xlabel("$z_1$", labelpad=1)
        axes.set_aspect("equal")
        if component == 0:
            axes.set_ylabel("$z_2$", labelpad=1)
    bar = figure.colorbar(image, cax=figure.add_subplot(bottom[0, 2]), ticks=[0.0, 0.5, 1.0])
    bar.outline.set_visible(False)
    bar.ax.tick_params(colors=palette.ink, labelsize=9, length=0)
    bar.set_label(r"$\sigma(z)_1$ and $\sigma(z)_2$", color=palette.ink)
    return save_png(figure, path)


def draw_losses(path: Path, palette: Palette = LIGHT) -> Path:
    """Draws Figure 2 as a PNG file."""
    figure = new_figure(9.0, 6.4, palette)
    grid = figure.add_gridspec(2, 2, left=0.075, right=0.98, top=0.885, bottom=0.085, hspace=0.36, wspace=0.16)
    for index, curve in enumerate(loss_curves()):
        axes = figure.add_subplot(grid[index // 2, index % 2])
        style(axes, palette, f"{'abcd'[index]})  {curve.name}")
        t, bregman, squared = curve.t.numpy(), curve.bregman.numpy(), curve.squared.numpy()
        axes.fill_between(
            t, squared, bregman, color=palette.first, alpha=0.13, linewidth=0, label=r"gap $D_\Psi(x, \sigma(z))$"
        )
        axes.plot(t, bregman, color=palette.first, linewidth=2.4, label=r"Bregman loss $B_\Psi(x, z)$")
        axes.plot(
            t, squared, color=palette.second, linewidth=2.0, dashes=(5, 2), label=r"$\frac{1}{2}\|x - \sigma(z)\|^2$"
        )
        axes.plot([curve.zero], [0.0], "o", color=palette.ink, markersize=5, zorder=5, label=r"$\sigma(z) = x$")
        axes.set(xlim=(-2, 2), xticks=(-2, -1, 0, 1, 2))
        axes.set_ylim(-0.06 * float(bregman.max()), 1.05 * float(bregman.max()))
        if index % 2 == 0:
            axes.set_ylabel("loss")
        axes.set_xlabel("$t$,  where $z = (t, 0)$" if index == 3 else "$z$", labelpad=2)
    handles, labels = figure.axes[0].get_legend_handles_labels()
    order = (1, 2, 0, 3)
    legend = figure.legend(
        [handles[i] for i in order], [labels[i] for i in order], loc="upper center", ncols=4, frameon=False
    )
    for text in legend.get_texts():
        text.set_color(palette.ink)
    return save_png(figure, path)


def build(out: Path) -> list[Path]:
    """Draws both figures for light and dark pages into `out`, writes the page, and returns the files, the page last."""
    out.mkdir(parents=True, exist_ok=True)
    activations, activations_dark = (draw_activations(out / f"activations{p.suffix}.png", p) for p in (LIGHT, DARK))
    losses, losses_dark = (draw_losses(out / f"bregman_losses{p.suffix}.png", p) for p in (LIGHT, DARK))
    page = reports.Page(
        title="Activations as proximal maps, and their Bregman losses",
        summary=_SUMMARY,
        sections=[
            reports.Section(
                "Figure 1: activations",
                [
                    reports.Text(_ACTIVATIONS_TEXT),
                    reports.Figure(activations, _ACTIVATIONS_CAPTION, _ACTIVATIONS_ALT, dark=activations_dark),
                ],
            ),
            reports.Section(
                "Figure 2: Bregman losses",
                [
                    reports.Text(_LOSSES_TEXT),
                    reports.Figure(losses, _LOSSES_CAPTION, _LOSSES_ALT, dark=losses_dark),
                    _loss_table(),
                ],
            ),
        ],
    )
    return [activations, activations_dark, losses, losses_dark, page.write(out / "index.html")]


_SUMMARY = (
    "The two theory figures of “Lifted Bregman Training of Neural Networks” (Wang and Benning, Journal of Machine "
    "Learning Research 24, 2023), computed by the library."
)
_ACTIVATIONS_TEXT = (
    "An activation is the proximal map of a potential Ψ: σ(z) is the u that makes ½‖u − z‖² + Ψ(u) smallest. ReLU "
    "comes from the constraint u ≥ 0, the soft threshold from α‖u‖₁, and tanh and softmax from entropies."
)
_ACTIVATIONS_CAPTION = (
    f"Figure 1. Top: ReLU, the soft threshold with α = {THRESHOLD}, and tanh; the dashed line is the identity. Bottom: "
    "the two components of softmax for n = 2, over z in [−4, 4]²."
)
_ACTIVATIONS_ALT = (
    "Three curves: ReLU, zero then rising; the soft threshold, flat between minus and plus one half; tanh, S-shaped. "
    "Below, two maps of the plane: the softmax components, constant along the diagonal, one rising as the other falls."
)
_LOSSES_TEXT = (
    "The Bregman loss B(x, z) measures how far x is from σ(z). It is zero exactly where ½‖x − σ(z)‖² is, never below "
    "it, and convex in z; its gradient in z is σ(z) − x, so that no activation has to be differentiated."
)
_LOSSES_CAPTION = (
    f"Figure 2. The Bregman loss (solid) and the squared Euclidean loss (dashed) at x = {TARGET} for z in [−2, 2]. "
    f"Softmax is shown along z = (t, 0) at x = ({TARGET}, {TARGET}); both of its losses depend on z₁ − z₂ alone. The "
    "shaded gap is the Bregman distance of Ψ."
)
_LOSSES_ALT = (
    "Four panels. In each the Bregman loss is a convex curve above the dashed squared loss, and both touch zero at the "
    "marked point where the activation returns x."
)


def _loss_table() -> reports.PageTable:
    rows = []
    for curve in loss_curves():
        gap = curve.bregman - curve.squared
        rows.append((curve.name, curve.zero, gap.max().item(), curve.bregman[0].item(), curve.squared[0].item()))
    return reports.PageTable(
        header=("activation", "losses vanish at z", "largest gap", "Bregman at z = −2", "squared at z = −2"),
        rows=rows,
        caption="The curves of Figure 2 in numbers. For softmax, z = (t, 0) and the columns refer to t.",
    )


def main(arguments: Sequence[str] | None = None) -> int:
    """Draws the figures and says where they are."""
    parser = argparse.ArgumentParser(
        prog="python -m lifted_bregman_lab.paper.theory", description="Draw Figures 1 and 2."
    )
    parser.add_argument(
        "--out", type=Path, default=Path("out/figures"), help="folder for the files (default: %(default)s)"
    )
    *figures, page = build(parser.parse_args(arguments).out)
    print("figures:", *figures, sep="\n  ")
    print(f"page:\n  {page}")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
