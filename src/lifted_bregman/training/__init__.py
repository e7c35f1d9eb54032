"""Training: from data and a solver to a trained network, with history, callbacks, checkpoints and continuation."""

from lifted_bregman.training import callbacks
from lifted_bregman.training.fit import default_solver, fit
from lifted_bregman.training.run_folder import RunFolder

__all__ = ["RunFolder", "callbacks", "default_solver", "fit"]
