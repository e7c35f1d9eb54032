"""The study: all arms take turns on one thread, each until it has used its processor time."""

from __future__ import annotations

import copy
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from statistics import fmean

import torch
from torch import Tensor, nn

from lifted_bregman._arguments import positive, whole
from lifted_bregman.experiments.environment import environment
from lifted_bregman.models import UnfoldedDenoiser
from lifted_bregman_lab.denoising.arms import ARMS, Arm
from lifted_bregman_lab.denoising.results import ArmRow, DenoisingStudy
from lifted_bregman_lab.denoising.samples import NOISE, Patches, evaluate, psnr, with_noise
from lifted_bregman_lab.watching import Watch

TURN = 10
"""Steps of an arm in each turn."""
LOOKS = 8
"""Evaluations on the validation pictures during training."""


@dataclass(frozen=True)
class StudySettings:
    """The network and the training time.

    minutes     > 0, of processor time for each arm
    layers      of the denoiser
    filters     of each layer
    kernel_size of a filter
    batch_size  patches in a step
    seed        of the initial weights, and of the patches and their noise
    """

    minutes: float = 10.0
    layers: int = 10
    filters: int = 24
    kernel_size: int = 5
    batch_size: int = 16
    seed: int = 0

    def __post_init__(self) -> None:
        positive(self.minutes, "minutes")
        for name in ("layers", "filters", "kernel_size", "batch_size"):
            whole(getattr(self, name), name)
        whole(self.seed, "seed", least=0)

    def network(self) -> UnfoldedDenoiser:
        """The denoiser with the weights of the seed, the same for every arm."""
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(self.seed)
            return UnfoldedDenoiser(self.layers, self.filters, self.kernel_size, noise=NOISE)


@dataclass
class _Runner:
    """An arm with its patches and its processor time."""

    name: str
    arm: Arm
    patches: Patches
    budget: float
    seconds: float = 0.0
    steps: int = 0
    curve: list[tuple[float, float]] = field(default_factory=list)

    def turn(self) -> None:
        """Make `TURN` steps; drawing patches is not timed."""
        for _ in range(TURN):
            if self.seconds >= self.budget:
                return
            noisy, clean = self.patches.draw()
            start = time.process_time()
            self.arm.step(noisy, clean, self.seconds / self.budget)
            self.seconds += time.process_time() - start
            self.steps += 1

    def evaluate_if_due(self, pictures: Sequence[Tensor]) -> None:
        """Evaluate the arm if another 8th of its time has passed."""
        if self.seconds >= len(self.curve) * self.budget / LOOKS:
            self.curve.append((self.seconds, fmean(evaluate(self.arm.model, pictures))))


def run_denoising(
    settings: StudySettings,
    train: Sequence[Tensor],
    validation: Sequence[Tensor],
    test: Sequence[Tensor],
    watch: Watch = lambda what, part: None,
    keep: Callable[[str, nn.Module], None] = lambda name, model: None,
) -> DenoisingStudy:
    """Train a copy of the network by every arm, and call `keep` with each trained model.

    train, validation, test  pictures (channels, height, width)
    """
    network = settings.network()
    budget = 60.0 * settings.minutes
    runners = []
    for name, arm in ARMS.items():
        patches = Patches(train, settings.batch_size, settings.seed)
        runners.append(_Runner(name, arm(copy.deepcopy(network), patches.draw()[0][:2]), patches, budget))
    untrained = fmean(evaluate(network, test))
    generator = torch.Generator().manual_seed(0)
    noisy = fmean([psnr(with_noise(clean, generator), clean) for clean in test])
    while any(runner.seconds < budget for runner in runners):
        for runner in runners:
            runner.evaluate_if_due(validation)
            runner.turn()
        watch("training", min(runner.seconds for runner in runners) / budget)
    rows = []
    for runner in runners:
        runner.evaluate_if_due(validation)
        watch(f"evaluating {runner.name}", 1.0)
        psnrs = [round(value, 4) for value in evaluate(runner.arm.model, test)]
        curve = [(round(seconds, 2), round(value, 4)) for seconds, value in runner.curve]
        rows.append(ArmRow(runner.name, round(runner.seconds, 2), runner.steps, curve, psnrs))
        keep(runner.name, runner.arm.model)
    parameters = sum(p.numel() for p in network.parameters())
    return DenoisingStudy(asdict(settings), environment(), parameters, round(noisy, 4), round(untrained, 4), rows)
