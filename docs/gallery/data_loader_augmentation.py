"""
A DataLoader with random shifts
===============================

``fit`` reads a ``DataLoader`` anew in each epoch and holds one batch at a time. Here every digit is moved by a random
pixel whenever it is read, so that no epoch sees the same images.
"""

import matplotlib.pyplot as plt
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

import lifted_bregman as lb

digits = lb.data.load("digits")


class Shifted(Dataset):
    """Digits of 8 x 8 pixels, each rolled by -1, 0 or 1 pixel in both directions."""

    def __init__(self, samples):
        self.samples, self.reads = samples, 0

    def __len__(self):
        return len(self.samples)

    def __getitem__(self, index):
        self.reads += 1
        across, down = torch.randint(-1, 2, (2,)).tolist()
        image = self.samples.X[index].view(8, 8).roll((down, across), dims=(0, 1))
        return image.flatten(), self.samples.y[index]


def network():
    """The same initial parameters each time."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 10))
    return model, lb.lift(model, loss=lb.CrossEntropy())


# %%
# The loader says how the data are read: batches, order, worker processes. The seed of ``fit`` decides on the order and
# on every shift, so that the run can be repeated, and resumed in the middle of an epoch. A validation set may be a
# loader too: its shifts are the same at every row.

training = Shifted(digits.train)
loader = DataLoader(training, batch_size=100, shuffle=True)
validation = DataLoader(Shifted(digits.test), batch_size=100)

model, problem = network()
result = lb.fit(problem, loader, epochs=12, seed=1, validation=validation)
print(f"{training.reads} images were read in 12 epochs of {len(training)}")
last = result.history[-1]
print({name: round(value, 4) for name, value in last.items() if "acc" in name})
assert training.reads == 12 * len(training)

# %%
# The row has ``running_objective`` and ``running_accuracy``: means over the steps of the epoch, of each batch before
# its step. They cost no pass over the data. Beside it the same training on tensors, which are not moved:

plain, problem = network()
pair = (digits.train.X, digits.train.y)
held = lb.fit(problem, pair, epochs=12, seed=1, validation=validation)
reached = {"shifted anew": result.history, "as they are": held.history}
for name, rows in reached.items():
    reached_by = rows[-1]["validation_accuracy"]
    print(f"trained on digits {name:13s} {reached_by:.3f} of shifted ones")

assert last["validation_accuracy"] > 0.1 + held.history[-1]["validation_accuracy"]

# %%
figure, axes = plt.subplots(figsize=(6, 3.5))
for name, rows in reached.items():
    accuracies = [row["validation_accuracy"] for row in rows]
    axes.plot([row["epoch"] for row in rows], accuracies, label=name)
axes.set(xlabel="epoch", ylabel="accuracy on shifted test digits")
axes.legend(title="trained on digits")
figure.tight_layout()
