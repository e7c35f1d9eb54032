"""
In your own training loop
=========================

A model with a forward method of its own, a ``DataLoader``, AdamW and a schedule stay as they are. One line makes the
activations answer ``loss.backward()`` with their proximal maps instead of their derivatives.
"""

import copy

import matplotlib.pyplot as plt
import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset

import lifted_bregman as lb
from lifted_bregman import data

digits = data.load("digits")


class Network(nn.Module):
    """Two residual blocks; functions and a module as activations."""

    def __init__(self, width=48):
        super().__init__()
        self.enter, self.leave = nn.Linear(64, width), nn.Linear(width, 10)
        self.blocks = nn.ModuleList(nn.Linear(width, width) for _ in range(2))
        self.norms = nn.ModuleList(nn.LayerNorm(width) for _ in range(2))
        self.clip = nn.Hardtanh()

    def forward(self, x):
        h = F.relu(self.enter(x))
        for block, norm in zip(self.blocks, self.norms, strict=True):
            h = h + self.clip(block(norm(h)))
        return self.leave(h)


def train(model, epochs=8):
    """A loop as any other; returns the mean loss of each epoch."""
    samples = TensorDataset(digits.train.X, digits.train.y)
    order = torch.Generator().manual_seed(0)
    loader = DataLoader(samples, 64, shuffle=True, generator=order)
    optimizer = torch.optim.AdamW(model.parameters(), lr=4e-3)
    steps = epochs * len(loader)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, 4e-3, total_steps=steps)
    losses = []
    for _ in range(epochs):
        total = 0.0
        for x, y in loader:
            optimizer.zero_grad()
            loss = F.cross_entropy(model(x), y)
            loss.backward()
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            schedule.step()
            total += loss.item() * len(x)
        losses.append(total / len(digits.train.X))
    return losses


# %%
# The line is ``lb.lifted_backward(model)``. The report says what became of each activation.

torch.manual_seed(0)
plain = Network()
model = lb.lifted_backward(copy.deepcopy(plain), nudge=0.5)

histories = {"autograd": train(plain), "lifted": train(model)}
print(lb.backward_report(model))

# %%
# The class, the parameters and the keys of ``state_dict`` are those of the plain model, so that either loads the other.

plain_keys, lifted_keys = list(plain.state_dict()), list(model.state_dict())
model = lb.plain_backward(model)

accuracies = {}
for name, network in (("autograd", plain), ("lifted", model)):
    with torch.no_grad():
        right = network(digits.test.X).argmax(1) == digits.test.y
        accuracies[name] = float(right.float().mean())
    loss, accuracy = histories[name][-1], 100 * accuracies[name]
    print(f"{name}: loss {loss:.4f}, {accuracy:.1f} % of the held-out digits")

assert type(model) is Network and plain_keys == lifted_keys
assert histories["lifted"][-1] < 0.1 * histories["lifted"][0]
assert accuracies["lifted"] > 0.93

# %%
# On a small network that autograd handles well the two are about as good: what differs are units that are switched off
# or saturated.

figure, axis = plt.subplots(figsize=(6, 3.4), layout="constrained")
for name, losses in histories.items():
    axis.semilogy(range(1, len(losses) + 1), losses, marker="o", label=name)
axis.set(xlabel="epoch", ylabel="cross-entropy, training set")
axis.legend()
plt.show()
