"""The warm process of `tests.cli.warm` with two tiny problems among those of the race."""

from __future__ import annotations

from lifted_bregman.solvers import _loop
from lifted_bregman_lab.race import PROBLEMS
from tests.cli import warm
from tests.lab.races import AUTOENCODER, CLASSIFIER, steady

if __name__ == "__main__":
    warm.PLACES["step of SGD"] = ("lifted_bregman.solvers.baselines", "SGD", "step")
    PROBLEMS.update({problem.name: problem for problem in (CLASSIFIER, AUTOENCODER)})
    _loop.time = steady()  # type: ignore[assignment]  # so that no run is cut because the machine was busy
    warm.serve()
