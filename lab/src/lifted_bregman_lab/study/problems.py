"""The data and the three networks of the study."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from torch import Tensor, nn
from torch.nn import functional as F

from lifted_bregman.experiments.settings import Settings
from lifted_bregman_lab.race.networks import dense
from lifted_bregman_lab.race.problems import CLASSES, RaceProblem
from lifted_bregman_lab.race.samples import RaceSamples, from_settings

SETS: Mapping[str, str] = {"fashion-mnist-1k": "Fashion-MNIST"}
"""Names of the library's data sets, 1,000 samples with the 10,000 of the test part as new ones; and titles."""
EPOCHS = 40
BATCH_SIZE = 50
WIDTH = 128


class _Residual(nn.Module):
    """x + W_2 ReLU(W_1 x + b_1) + b_2."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(width, width), nn.Linear(width, width)

    def forward(self, x: Tensor) -> Tensor:
        moved: Tensor = self.second(F.relu(self.first(x)))
        return x + moved


def _dense(data: RaceSamples) -> nn.Module:
    return dense((data.X.shape[1], WIDTH, WIDTH, data.outputs))


def _residual(data: RaceSamples) -> nn.Module:
    inner = nn.Sequential(_Residual(WIDTH), _Residual(WIDTH), nn.ReLU())
    return nn.Sequential(nn.Linear(data.X.shape[1], WIDTH), inner, nn.Linear(WIDTH, data.outputs))


def _convolutional(data: RaceSamples) -> nn.Module:
    side = round(data.X.shape[1] ** 0.5)
    quarter = -(-side // 4)  # two convolutions of stride 2, rounded up
    return nn.Sequential(
        nn.Unflatten(1, (1, side, side)),
        *(nn.Conv2d(1, 16, 3, 2, 1), nn.ReLU(), nn.Conv2d(16, 32, 3, 2, 1), nn.ReLU()),
        *(nn.Flatten(), nn.Linear(32 * quarter**2, 64), nn.ReLU(), nn.Linear(64, data.outputs)),
    )


ARCHITECTURES: Mapping[str, Callable[[RaceSamples], nn.Module]] = {
    "dense": _dense,
    "residual": _residual,
    "convolutional": _convolutional,
}
"""784-128-128-10 (118,282 parameters); 784-128, two residual blocks of 128, 10 (167,818); convolutions to 16 and 32
channels with stride 2, 64, 10 (105,866)."""


def study_problem(data: str, architecture: str) -> RaceProblem:
    """A network for a data set, with cross-entropy, batches of 50 and at most 40 epochs."""
    load = from_settings(Settings(data=data, prepare="centre"))
    title = f"{SETS[data]}, {architecture} network"
    network = ARCHITECTURES[architecture]
    return RaceProblem(title, title, "images", load, network, CLASSES, BATCH_SIZE, EPOCHS, EPOCHS, sets=(data,))
