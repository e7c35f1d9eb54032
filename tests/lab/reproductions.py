"""A tiny paper, and a process that works on it and is killed in the middle.

python -m tests.lab.reproductions FOLDER STEPS     # is killed after so many steps
"""

from __future__ import annotations

import os
import signal
import sys
from dataclasses import replace
from pathlib import Path

from rich.console import Console

from lifted_bregman.experiments import Settings
from lifted_bregman.solvers import Outcome, Run
from lifted_bregman_lab.reproduction import (
    Claim,
    Deadline,
    Job,
    Less,
    Near,
    Paper,
    Places,
    Priority,
    Recipe,
    running,
)
from lifted_bregman_lab.reproduction.quantities import Final

LIFTED = Settings(
    data="digits-60",
    task="denoise",
    prepare="centre",
    noise=0.1,
    validation=0.25,
    hidden=(8, 6, 8),
    code_threshold=0.05,
    code_penalty=0.05,
    solver="implicit-sgd",
    solver_settings={"prox_weight": 1.0, "inner_steps": 2},
    batch_size=15,
    epochs=4,
)
CLASSIFIER = Settings(
    data="digits-100",
    prepare="centre",
    validation=0.25,
    hidden=(8, 6),
    loss="squared-error",
    solver="sgd",
    solver_settings={"learning_rate": 0.01},
    batch_size=25,
    epochs=3,
)
CODES = Recipe("tiny-codes", "codes", LIFTED, replace(LIFTED, epochs=2), ("fig-codes",), 1.0, pictures=True)
DIGITS = Recipe("tiny-digits", "digits", CLASSIFIER, replace(CLASSIFIER, epochs=2), ("table1",), 700.0)
FASTER = replace(CLASSIFIER, solver_settings={"learning_rate": 0.05})
OTHER = Recipe("tiny-other", "other rate", FASTER, replace(FASTER, epochs=2), ("table1",), 1.0, Priority.READINGS)
_FASTER_IS_BETTER = Less(Final("tiny-other", "loss"), Final("tiny-digits", "loss"), "faster", "slower")
PAPER = Paper(
    "tiny",
    "A tiny paper",
    (DIGITS, CODES, OTHER),
    (
        Claim("digits-rate", "table1", "More is better.", _FASTER_IS_BETTER, "strict"),
        Claim("codes-sparse", "fig-codes", "Codes are sparse.", Near(Final("tiny-codes", "sparsity"), 0.5, 0.5), "any"),
    ),
)
STEPS = 3 * 4  # of CODES: 45 samples in batches of 15, 4 epochs


def places(folder: Path) -> Places:
    return Places(folder / "results", folder / "work")


class StopAfter(Deadline):
    """Its moment comes after so many steps."""

    def __init__(self, steps: int) -> None:
        super().__init__(None)
        self._left = steps

    @property
    def over(self) -> bool:
        return self._left <= 0

    def stepped(self, run: Run) -> None:
        self._left -= 1
        if self.over:
            run.stop(Outcome.INTERRUPTED, "Its time is over.")


class KillAfter(StopAfter):
    """Kills the process in place of asking it to stop."""

    def stepped(self, run: Run) -> None:
        self._left -= 1
        if self.over:
            os.kill(os.getpid(), signal.SIGKILL)


def main(folder: str, steps: str) -> None:
    running._SAVE_SECONDS = 1e-9  # a checkpoint after every step
    running.run_job(Job(CODES), places(Path(folder)), KillAfter(int(steps)), Console(quiet=True))


if __name__ == "__main__":
    main(*sys.argv[1:])
