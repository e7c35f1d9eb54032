"""
Resume as if nothing had happened
=================================

A run with a folder can be cut off at any step and continued later. Parameters and history are then those of a run that
was never interrupted: not similar, but equal in every bit.
"""

import json
import tempfile
from pathlib import Path

import matplotlib.pyplot as plt
import torch
from torch import nn

import lifted_bregman as lb
from lifted_bregman import data
from lifted_bregman.solvers import Outcome, Run

digits = data.load("digits")
training, held_out = (digits.train.X, digits.train.y), (digits.test.X, digits.test.y)


class Unplug(lb.callbacks.Callback):
    """Ends the run as Ctrl-C would, after some step."""

    def __init__(self, step: int | None) -> None:
        self.step = step

    def stepped(self, run: Run) -> None:
        if run.state.steps == self.step:
            raise KeyboardInterrupt


def train(folder: Path, stop_at: int | None = None, resume: bool = False):
    """The same call each time, with the settings and callbacks of the start."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(64, 48), nn.Tanh(), nn.Linear(48, 10))
    problem = lb.lift(model, loss=lb.CrossEntropy())
    callbacks = [Unplug(stop_at), lb.callbacks.EarlyStopping(patience=3)]
    solver = lb.ImplicitSGD(prox_weight=1.0, inner_steps=3)
    settings = {"epochs": 8, "seed": 3, "validation": held_out, "callbacks": callbacks}
    result = lb.fit(problem, training, solver, **settings, out=folder, resume=resume)
    return model, result


# %%
# One run goes through; the other is interrupted in the middle of its fourth epoch, after 52 of 120 steps.

home = tempfile.TemporaryDirectory()
whole, in_two = Path(home.name, "whole"), Path(home.name, "in-two")

expected, uninterrupted = train(whole)
_, interrupted = train(in_two, stop_at=52)
print(interrupted.message)
rows_at_the_cut = len(interrupted.history)

continued, resumed = train(in_two, resume=True)
print(resumed.message)

# %%
# Every bit agrees, and so does the history, apart from the clock.


def without_clock(rows):
    return [{key: row[key] for key in row if key != "seconds"} for row in rows]


assert interrupted.outcome is Outcome.INTERRUPTED
assert rows_at_the_cut == 3
assert resumed.outcome is uninterrupted.outcome
for name, value in expected.state_dict().items():
    assert torch.equal(continued.state_dict()[name], value), name
assert without_clock(resumed.history) == without_clock(uninterrupted.history)

# %%
# The folder holds the history as lines of JSON, the checkpoints, and the trained model.

for path in sorted(in_two.rglob("*")):
    if path.is_file():
        print(path.relative_to(in_two))
lines = (in_two / "history.jsonl").read_text().splitlines()
assert without_clock(map(json.loads, lines)) == without_clock(uninterrupted.history)

models = [(folder / "model.safetensors").read_bytes() for folder in (whole, in_two)]
assert models[0] == models[1]
home.cleanup()

figure, axis = plt.subplots(figsize=(7, 3.2), layout="constrained")
cut, epochs = rows_at_the_cut, [row["epoch"] for row in resumed.history]
reference = [row["validation"] for row in uninterrupted.history]
reached = [row["validation"] for row in resumed.history]
axis.plot(epochs, reference, linewidth=7, alpha=0.3, label="uninterrupted")
axis.plot(epochs[:cut], reached[:cut], "o-", label="before the interruption")
axis.plot(epochs[cut:], reached[cut:], "s-", label="resumed")
axis.set(xlabel="epoch", ylabel="validation", yscale="log")
axis.legend()
plt.show()

# %%
# A power cut or ``kill -9`` leaves no time to save. Then what is lost is at most what came after the last checkpoint:
# an epoch, unless ``lb.callbacks.Checkpoint(every_steps=...)`` or ``every_seconds=...`` says otherwise.
