"""The parts of a sample's score by layer and by feature, and a figure of them."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

from lifted_bregman._arguments import require_picture
from lifted_bregman.errors import SettingError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from matplotlib.figure import Figure

_FEATURES = 10  # shown as bars, for each sample


@dataclass(frozen=True, repr=False)
class Explanation:
    """Scores of samples and their parts, which `EnergyScale` defines.

    Example:
        >>> X = torch.randn(100, 4)
        >>> problem = lb.lift(nn.Sequential(nn.Linear(4, 1), nn.Tanh(), nn.Linear(1, 4)), loss=lb.SquaredError())
        >>> explanation = lb.tasks.EnergyScale.of(problem, X).explain(X)
        >>> explanation.names
        ('layer 1', 'code', 'output')
        >>> torch.allclose(explanation.layers.sum(1), explanation.scores)
        True
    """

    scores: Tensor
    """(samples,); higher is more abnormal."""
    layers: Tensor
    """The part of each layer, of the code and of the output, (samples, parts), which sum to the score."""
    names: tuple[str, ...]
    """Names of the parts."""
    features: Tensor
    """The output's part by feature, in the shape of a sample, (samples, ...); its sum is the last of `layers`."""
    samples: Tensor
    """The samples as the network takes them, (samples, ...)."""

    def __repr__(self) -> str:
        return f"Explanation of {len(self.scores)} scores from {', '.join(self.names)}"

    def top_features(self, sample: int, count: int = _FEATURES) -> list[tuple[int, float]]:
        """Return the features with the largest parts of a sample's score, as (index in the flattened sample, part)."""
        parts = self.features[sample].flatten()
        largest = parts.topk(min(count, len(parts)))
        return list(zip(largest.indices.tolist(), largest.values.tolist(), strict=True))

    def figure(self, rows: Sequence[int] | None = None, feature_names: Sequence[str] | None = None) -> Figure:
        """Draw a row for each sample: the sample, its parts by layer, and the output's part by feature.

        Pictures are shown with a map of their parts, other samples with the largest parts as bars.

        rows: which samples; by default the four with the highest scores.
        feature_names: of the features of a flattened sample; by default their indices.
        """
        from matplotlib.figure import Figure

        chosen = self.scores.topk(min(4, len(self.scores))).indices.tolist() if rows is None else list(rows)
        for row in chosen:
            if not 0 <= row < len(self.scores):
                raise SettingError(f"there is no sample {row}: samples count from 0 to {len(self.scores) - 1}.")
        picture = self.features.ndim > 2
        columns = 3 if picture else 2
        figure = Figure(figsize=(3.2 * columns, 2.2 * len(chosen)), layout="constrained")
        axes = np.atleast_2d(figure.subplots(len(chosen), columns, squeeze=False))
        largest = float(self.layers[chosen].max())
        for line, row in zip(axes, chosen, strict=True):
            bars = line[1] if picture else line[0]
            bars.barh(range(len(self.names)), self.layers[row].tolist(), color="tab:blue")
            bars.set(yticks=range(len(self.names)), yticklabels=self.names, xlim=(0.0, 1.05 * largest))
            bars.set_title(f"sample {row}: score {float(self.scores[row]):.3g}", fontsize="medium")
            bars.invert_yaxis()
            if picture:
                _show(line[0], self.samples[row], "gray")
                _show(line[2], self.features[row], "magma")
                line[2].set_title("output, by pixel", fontsize="medium")
                continue
            places, parts = zip(*self.top_features(row), strict=True)
            names = [str(place) if feature_names is None else feature_names[place] for place in places]
            line[1].barh(range(len(parts)), parts, color="tab:orange")
            line[1].set(yticks=range(len(parts)), yticklabels=names)
            line[1].set_title("output, by feature", fontsize="medium")
            line[1].invert_yaxis()
        return figure

    def plot(
        self, path: str | Path, rows: Sequence[int] | None = None, feature_names: Sequence[str] | None = None
    ) -> None:
        """Write `figure` to a .png, .pdf or .svg file."""
        path = require_picture(path)
        self.figure(rows, feature_names).savefig(path)


def mean_explanation(members: Sequence[Explanation]) -> Explanation:
    """Return the mean of explanations of the same samples by several autoencoders of one architecture."""
    scores = torch.stack([member.scores for member in members]).mean(0)
    layers = torch.stack([member.layers for member in members]).mean(0)
    features = torch.stack([member.features for member in members]).mean(0)
    return Explanation(scores, layers, members[0].names, features, members[0].samples)


def _show(axes: object, sample: Tensor, colours: str) -> None:
    """A sample (h, w) or (channels, h, w) as a picture; colour as it is, parts as the sum over channels."""
    values = sample.detach().cpu().double()
    if values.ndim == 3 and len(values) == 3 and colours == "gray":
        low, high = values.min(), values.max()
        shown = ((values - low) / (high - low + 1e-12)).movedim(0, -1)
    else:
        shown = values.sum(0) if values.ndim == 3 else values.flatten(0, -2)
    axes.imshow(shown.numpy(), cmap=colours, interpolation="nearest")  # type: ignore[attr-defined]
    axes.set(xticks=[], yticks=[])  # type: ignore[attr-defined]
