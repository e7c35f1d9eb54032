"""
With Weights & Biases
=====================

A callback of six lines sends every row of ``lb.fit`` to Weights & Biases, and your own loop logs beside it. With
``mode="offline"`` a run stays in a folder, from which ``wandb sync`` sends it later: no account and no network here.

Install lifted-bregman with the extra ``tools`` for this example.
"""

import tempfile
from pathlib import Path

import matplotlib.pyplot as plt
import torch
import wandb
from torch import nn
from torch.nn import functional as F

import lifted_bregman as lb
from lifted_bregman import data

digits = data.load("digits")
training, held_out = (digits.train.X, digits.train.y), (digits.test.X, digits.test.y)
home = tempfile.TemporaryDirectory()
quiet = wandb.Settings(silent=True, console="off", disable_git=True, x_disable_stats=True)
where = {"project": "digits", "mode": "offline", "dir": home.name, "settings": quiet}


def network():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(64, 48), nn.ReLU(), nn.Linear(48, 10))


# %%
# The lines that matter
# ---------------------


class WandB(lb.callbacks.Callback):
    """Logs every entry of every row to a run of Weights & Biases."""

    reads_parameters = False

    def __init__(self, run):
        self.run = run

    def recorded(self, run, row):
        self.run.log(row, step=int(row["step"]), commit=True)


with wandb.init(name="fit", config={"hidden": 48}, **where) as by_fit:
    problem = lb.lift(network(), loss=lb.CrossEntropy())
    callbacks = [WandB(by_fit)]
    result = lb.fit(problem, training, epochs=8, validation=held_out, callbacks=callbacks)
    reached = by_fit.summary["validation"]

# %%
# In your own loop
# ----------------------

model = lb.lifted_backward(network(), nudge=0.5, reduction="mean")
optimiser = torch.optim.Adam(model.parameters(), lr=3e-3)
X, y = training
losses = []
with wandb.init(name="loop", config={"hidden": 48}, **where) as by_loop:
    for epoch in range(1, 9):
        for rows in torch.randperm(len(X)).split(100):
            optimiser.zero_grad()
            F.cross_entropy(model(X[rows]), y[rows]).backward()
            optimiser.step()
        with torch.no_grad():
            losses.append(float(F.cross_entropy(model(held_out[0]), held_out[1])))
        by_loop.log({"validation": losses[-1]}, step=epoch * 15)

# %%
# The summary of a run has what was logged last, and each run is a file that can be sent later.

assert reached == result.history[-1]["validation"]
assert losses[-1] < 0.5
files = sorted(path.suffix for path in Path(home.name).rglob("*.wandb"))
print(f"{len(files)} runs are stored")
assert len(files) == 2
home.cleanup()

# sphinx_gallery_thumbnail_path = 'gallery/thumbnails/with_wandb.png'
figure, axis = plt.subplots(figsize=(7, 3.2), layout="constrained")
axis.plot(range(1, 9), [row["validation"] for row in result.history], "o-", label="fit")
axis.plot(range(1, 9), losses, "o-", label="loop")
axis.set(xlabel="epoch", ylabel="validation", yscale="log")
axis.legend()
plt.show()
