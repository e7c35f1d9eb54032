"""
With TensorBoard
================

``lb.fit`` writes its history for TensorBoard by a callback; your own loop writes what it likes. Both kinds of
runs are then shown beside each other by ``tensorboard --logdir folder``.

Install lifted-bregman with the extra ``track`` for this example.
"""

import tempfile
from pathlib import Path

import matplotlib.pyplot as plt
import torch
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from torch import nn
from torch.nn import functional as F
from torch.utils.tensorboard import SummaryWriter

import lifted_bregman as lb
from lifted_bregman import data

digits = data.load("digits")
training, held_out = (digits.train.X, digits.train.y), (digits.test.X, digits.test.y)
home = tempfile.TemporaryDirectory()
folder = Path(home.name)


def network():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(64, 48), nn.ReLU(), nn.Linear(48, 10))


# %%
# With ``fit``
# ------------

problem = lb.lift(network(), loss=lb.CrossEntropy())
board = lb.callbacks.TensorBoard(folder / "fit")
result = lb.fit(problem, training, epochs=8, validation=held_out, callbacks=[board])

# %%
# In your own loop
# ----------------------
# ``lb.lifted_backward`` gives the activations lifted signals, and the optimiser is torch's.

model = lb.lifted_backward(network(), nudge=0.5, reduction="mean")
optimiser = torch.optim.Adam(model.parameters(), lr=3e-3)
X, y = training
with SummaryWriter(str(folder / "loop")) as writer:
    for epoch in range(1, 9):
        for rows in torch.randperm(len(X)).split(100):
            optimiser.zero_grad()
            F.cross_entropy(model(X[rows]), y[rows]).backward()
            optimiser.step()
        with torch.no_grad():
            validation = F.cross_entropy(model(held_out[0]), held_out[1])
        writer.add_scalar("validation", validation, epoch * 15)

# %%
# What TensorBoard reads is what was written.


def read(run):
    events = EventAccumulator(str(folder / run)).Reload()
    return [(event.step, event.value) for event in events.Scalars("validation")]


curves = {run: read(run) for run in ("fit", "loop")}
home.cleanup()
for (step, value), row in zip(curves["fit"], result.history, strict=True):
    assert step == row["step"]
    assert abs(value - row["validation"]) <= 1e-6 * value
assert curves["loop"][-1][1] < 0.5

figure, axis = plt.subplots(figsize=(7, 3.2), layout="constrained")
for run, points in curves.items():
    axis.plot(*zip(*points, strict=True), "o-", label=run)
axis.set(xlabel="step", ylabel="validation", yscale="log")
axis.legend()
plt.show()
