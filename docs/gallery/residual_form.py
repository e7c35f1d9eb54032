"""
Residual blocks in the paper's form
===================================

The outlook of the paper writes a residual network as x - σ(f(x)): each block takes off what its activation finds. The
proximal map of a potential is what makes such a block a step of an algorithm.
"""

import matplotlib.pyplot as plt
import torch
from torch import nn

import lifted_bregman as lb
from lifted_bregman import data
from lifted_bregman.graph import Streams

# %%
# Eight blocks of width 48. No block changes the width, and nothing else happens to the stream between them.


class ResidualNetwork(nn.Module):
    def __init__(self, inputs=64, width=48, blocks=8, classes=10):
        super().__init__()
        self.enter = nn.Linear(inputs, width)
        self.blocks = nn.ModuleList(nn.Linear(width, width) for _ in range(blocks))
        self.leave = nn.Linear(width, classes)

    def stream(self, x):
        """What leaves the first layer, and every block after it."""
        values = [self.enter(x)]
        for block in self.blocks:
            values.append(values[-1] - torch.relu(block(values[-1])))
        return values

    def forward(self, x):
        return self.leave(self.stream(x)[-1])


digits = data.load("digits")
X, y = digits.train.X, digits.train.y
X_test, y_test = digits.test.X, digits.test.y

# %%
# There are two ways to read the stream. As it stands, every x is a variable beside the outputs of the activations. With
# ``Streams.DERIVED`` only those are variables, and x is a sum inside the terms that read it. The network is the same.

torch.manual_seed(0)
model = ResidualNetwork()
problem = lb.lift(model, loss=lb.CrossEntropy(), example=X[:2])
derived = lb.lift(model, loss=lb.CrossEntropy(), example=X[:2], streams=Streams.DERIVED)
print(problem.summary())
print(f"terms: {problem.depth} with the stream as variables, {derived.depth} without")

# %%
# Training differentiates no activation.

with torch.no_grad():
    before = model.stream(X_test)
held_out = X_test, y_test
with lb.forbid_activation_derivatives():
    result = lb.fit(problem, (X, y), epochs=15, batch_size=50, validation=held_out)
print(result.message)

# %%
# The cross-entropy by epoch.

history = result.history
epochs = [row["epoch"] for row in history]
figure, curve = plt.subplots(figsize=(7, 3.2), layout="constrained")
curve.plot(epochs, [row["objective"] for row in history], label="training digits")
curve.plot(epochs, [row["validation"] for row in history], "--", label="held-out digits")
curve.set(xlabel="epoch", ylabel="cross-entropy", yscale="log")
curve.legend()
plt.show()

# %%
# The stream of the held-out digits after the first layer, after four blocks and after eight, along its two main
# directions. Block by block the digits come apart. A colour is a digit.

# sphinx_gallery_thumbnail_number = 2
with torch.no_grad():
    after = model.stream(X_test)
    accuracy = float((model(X_test).argmax(1) == y_test).float().mean())
figure, axes = plt.subplots(1, 3, figsize=(9, 3.2), layout="constrained")
for axis, depth in zip(axes, (0, 4, 8), strict=True):
    centred = after[depth] - after[depth].mean(0)
    plane = centred @ torch.linalg.svd(centred, full_matrices=False).Vh[:2].T
    for digit, colour in enumerate(plt.get_cmap("tab10").colors):
        axis.scatter(*plane[y_test == digit].T, s=12, color=colour, lw=0, label=digit)
    axis.set(xticks=[], yticks=[], title=f"after {depth} blocks")
axes[-1].legend(loc="center left", bbox_to_anchor=(1, 0.5), frameon=False)
plt.show()
print(f"{100 * accuracy:.1f} % of the held-out digits are recognised")

# %%
# How far the classes are apart: the variance between their means, over the variance within them.


def separation(values):
    means = torch.stack([values[y_test == digit].mean(0) for digit in range(10)])
    within = (values - means[y_test]).square().sum()
    between = (means[y_test] - values.mean(0)).square().sum()
    return float(between / within)


print([round(separation(values), 2) for values in after])

assert accuracy > 0.94
assert separation(after[8]) > 2 * separation(after[0])
assert separation(after[8]) > 2 * separation(before[8])
