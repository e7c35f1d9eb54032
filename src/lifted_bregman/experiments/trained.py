"""A trained network applied to new data: classes, numbers, codes or reconstructions."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from lifted_bregman._device import resolve_device
from lifted_bregman.errors import CheckpointError, CompatibilityError
from lifted_bregman.experiments.build import build_problem
from lifted_bregman.experiments.run_data import NewInputs
from lifted_bregman.experiments.runs import DATA, StoredRun
from lifted_bregman.problem import LiftedProblem
from lifted_bregman.problem.blocks import code_layer
from lifted_bregman.training import RunFolder

_AT_ONCE = 4096  # samples


class TrainedRun:
    """The network of a run's folder, on a device, with the preparation of its inputs.

    Example:
        >>> from pathlib import Path
        >>> from rich.console import Console
        >>> from lifted_bregman.experiments import Settings, TrainedRun, train
        >>> result = train(Settings(data="digits-100", hidden=(8,), epochs=2), Path("run"), Console(quiet=True))
        >>> TrainedRun(Path("run")).classes[:3]
        ('0', '1', '2')
    """

    def __init__(self, path: Path, device: str | torch.device | None = None) -> None:
        self._device = resolve_device(device)
        self.stored = StoredRun.open(path)
        if self.stored.record is None:
            raise CheckpointError(f"{path} has no {DATA}: the run ended before it began; train again.")
        self.inputs = NewInputs(self.stored.record, self.stored.settings.dtype)
        settings = replace(self.stored.settings, dropout=0.0, input_noise=0.0)  # which belong to training
        self._problem = build_problem(settings, self.inputs.inputs, self.inputs.outputs, self._device)
        folder = RunFolder(path)
        try:
            self._problem.model.load_state_dict(folder.model_parameters())
        except RuntimeError as error:
            raise CheckpointError(f"the parameters in {path} do not fit its {DATA} and settings: {error}") from error
        self.notice = " ".join(filter(None, (self.stored.notice, folder.notice))) or None
        """A warning about files that could not be verified and damaged checkpoints that were skipped, or None."""

    @property
    def model(self) -> nn.Module:
        """The network, on the device, without the activation that belongs to its loss."""
        return self._problem.model

    @property
    def problem(self) -> LiftedProblem:
        """The lifted problem of the network, with the loss and penalties of the run."""
        return self._problem

    @property
    def classes(self) -> tuple[str, ...] | None:
        """The names of the classes, for a classifier."""
        return self.inputs.classes

    def predict(self, path: Path) -> NDArray[Any]:
        """The class of each sample, (samples,) from 0, or the numbers of a regression in the targets' units."""
        self._require(("classify", "regress"), "predict")
        Z = self._apply(self._problem.model, path)
        if self.classes is not None:
            return Z.argmax(1).numpy()
        numbers = self.inputs.targets(Z)
        return numbers[:, 0] if numbers.shape[1] == 1 else numbers

    def encode(self, path: Path) -> NDArray[Any]:
        """The code of each sample, (samples, width of the middle hidden layer)."""
        self._require(("autoencode", "denoise"), "encode")
        code = code_layer(self._problem.depth)
        return self._apply(lambda X: self._problem.forward_state(X)[code], path).numpy()

    def reconstruct(self, path: Path) -> NDArray[Any]:
        """The autoencoder's reconstruction of each sample, in the shape and on the scale of the set's inputs."""
        self._require(("autoencode", "denoise"), "reconstruct")
        return self.inputs.images(self._apply(self._problem.model, path))

    def outputs(self, path: Path) -> Tensor:
        """Outputs in a file as the network returns them, or labels (samples,) of a classifier's classes."""
        if self.stored.settings.autoencoder:
            return self.inputs.read(path)
        return self.inputs.read_outputs(path)

    def _apply(self, function: Callable[[Tensor], Tensor], path: Path) -> Tensor:
        X = self.inputs.read(path)
        with torch.no_grad():
            return torch.cat([function(piece.to(self._device)).cpu() for piece in X.split(_AT_ONCE)])

    def _require(self, tasks: tuple[str, ...], command: str) -> None:
        task = self.stored.settings.task
        if task not in tasks:
            other = "'lifted encode' or 'lifted reconstruct'" if command == "predict" else "'lifted predict'"
            raise CompatibilityError(
                f"'lifted {command}' is for the tasks {' and '.join(tasks)}, and {self.stored.path} was trained to "
                f"{task}: use {other}."
            )
