"""The result of an inversion, and a figure of it."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from torch import Tensor

from lifted_bregman._arguments import require_picture
from lifted_bregman.errors import CompatibilityError
from lifted_bregman.solvers.outcome import Outcome

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_SHOWN = 8  # samples in a figure


@dataclass(frozen=True, repr=False)
class Inversion:
    """What `invert` returns.  Tensors are on the device and in the dtype of the model.

    Example:
        >>> layer, u = nn.Linear(3, 4), torch.rand(2, 3)
        >>> found = lb.invert(layer, layer(u).detach())
        >>> found.input.shape, found.energy.shape
        (torch.Size([2, 3]), torch.Size([2]))
        >>> bool((found.gap < 1e-3).all())
        True
    """

    input: Tensor
    """u, (samples, ...): an input whose output is close to y."""
    hidden: tuple[Tensor, ...]
    """x_1 .. x_{L-1} at which the energy was reached; a forward pass from u gives others."""
    energy: Tensor
    """E(u, X) = Σ_v λ_v B_v + J(u), (samples,)."""
    residual: Tensor
    """‖N(u) - y‖ of the network N at u, (samples,)."""
    gap: Tensor | None
    """E(u) - E(v) <= gap·max(1, ‖v - u‖/radius) for every input v, (samples,); None for more than one layer."""
    radius: Tensor | None
    """The radius in the bound of `gap`, (samples,): infinity if the factor is 1; None if there is no gap."""
    outcome: Outcome
    message: str
    """The outcome as a sentence, with numbers."""
    history: list[dict[str, float]] = field(default_factory=list)
    """A row every `record_every` steps: "step", "seconds" in steps, "energy" and "residual" (means over samples),
    "distance", which the tolerance bounds, and "gap" if there is one (the largest of all samples).
    """

    def __repr__(self) -> str:
        shape, energy, residual = tuple(self.input.shape), float(self.energy.mean()), float(self.residual.mean())
        return f"Inversion({shape}, energy {energy:.4g}, residual {residual:.4g}: {self.message})"

    def figure(self, truth: Tensor | None = None) -> Figure:
        """Draw the first eight inputs, signals as curves and others as pictures, and the energy by step.

        truth: the true inputs, (samples, ...), shown above them.
        """
        from matplotlib.figure import Figure

        if truth is not None and truth.shape != self.input.shape:
            raise CompatibilityError(
                f"truth is {tuple(truth.shape)} and the inputs found are {tuple(self.input.shape)}: give one true "
                "input for each."
            )
        rows = [("found", self.input)] if truth is None else [("true", truth), ("found", self.input)]
        count = min(_SHOWN, len(self.input))
        figure = Figure(figsize=(max(4.0, 1.5 * count), 1.6 * len(rows) + 1.8), layout="constrained")
        grid = figure.add_gridspec(len(rows) + 1, count, height_ratios=[1.0] * len(rows) + [1.1])
        for row, (name, inputs) in enumerate(rows):
            for column in range(count):
                axes = figure.add_subplot(grid[row, column])
                _draw(axes, inputs[column])
                if column == 0:
                    axes.set_ylabel(name)
        axes = figure.add_subplot(grid[-1, :])
        axes.plot([row["step"] for row in self.history], [row["energy"] for row in self.history])
        axes.set(xlabel="step", ylabel="mean energy")
        if all(row["energy"] > 0.0 for row in self.history):
            axes.set_yscale("log")
        return figure

    def plot(self, path: str | Path, truth: Tensor | None = None) -> None:
        """Write `figure` to a .png, .pdf or .svg file."""
        path = require_picture(path)
        self.figure(truth).savefig(path)


def _draw(axes: Axes, sample: Tensor) -> None:
    """Draw one input: (n,) as a curve; (h, w) and (1, h, w) in grey; (3, h, w) in colour; else the first channel."""
    values = sample.detach().cpu().double()
    if values.ndim == 1 or values.shape[-2] == 1:
        axes.plot(values.flatten().numpy(), linewidth=1.0)
        return
    colour = values.ndim == 3 and len(values) == 3
    shown = values.movedim(0, -1).clamp(0.0, 1.0) if colour else values.flatten(0, -3)[0] if values.ndim > 2 else values
    axes.imshow(shown.numpy(), cmap=None if colour else "gray", interpolation="nearest")
    axes.set(xticks=[], yticks=[])
