"""Callbacks: progress, checkpoints, early stopping, time limits and TensorBoard."""

from lifted_bregman.solvers import Callback
from lifted_bregman.training.callbacks.checkpoint import Checkpoint
from lifted_bregman.training.callbacks.early_stopping import EarlyStopping
from lifted_bregman.training.callbacks.progress import Progress
from lifted_bregman.training.callbacks.tensorboard import TensorBoard
from lifted_bregman.training.callbacks.timer import Timer

__all__ = ["Callback", "Checkpoint", "EarlyStopping", "Progress", "TensorBoard", "Timer"]
