"""
A residual network with batch normalisation
===========================================

Shortcuts, batch normalisation and pooling, in a class with a ``forward`` of its own. ``lift`` reads it as it is: each
activation becomes a variable, everything else a map.
"""

import matplotlib.pyplot as plt
import torch
from torch import nn

import lifted_bregman as lb
from lifted_bregman import data

# %%
# The block is the one that everybody writes. Nothing in it is made for lifting.


class Block(nn.Module):
    def __init__(self, inputs, width, stride=1):
        super().__init__()
        self.conv1 = nn.Conv2d(inputs, width, 3, stride, padding=1, bias=False)
        self.bn1 = nn.BatchNorm2d(width)
        self.conv2 = nn.Conv2d(width, width, 3, padding=1, bias=False)
        self.bn2 = nn.BatchNorm2d(width)
        self.shortcut = nn.Identity()
        if stride > 1 or inputs != width:
            self.shortcut = nn.Conv2d(inputs, width, 1, stride, bias=False)

    def forward(self, x):
        y = self.bn1(self.conv1(x)).relu()
        return torch.relu(self.bn2(self.conv2(y)) + self.shortcut(x))


class ResNet(nn.Module):
    def __init__(self, channels=1, width=12, classes=10):
        super().__init__()
        self.stem = nn.Conv2d(channels, width, 3, padding=1, bias=False)
        self.bn = nn.BatchNorm2d(width)
        self.block1 = Block(width, width)
        self.block2 = Block(width, 2 * width, stride=2)
        self.pool = nn.AdaptiveAvgPool2d(1)
        self.head = nn.Linear(2 * width, classes)

    def features(self, x):
        x = torch.relu(self.bn(self.stem(x)))
        return self.pool(self.block2(self.block1(x))).flatten(1)

    def forward(self, x):
        return self.head(self.features(x))


# %%
# The images are 8 by 8 pixels with one channel.

digits = data.load("digits")
X, y = digits.train.X.view(-1, 1, 8, 8), digits.train.y
X_test, y_test = digits.test.X.view(-1, 1, 8, 8), digits.test.y


@torch.no_grad()
def features(model):
    """What the last layer reads, of the held-out digits and in evaluation mode."""
    return model.eval().features(X_test)


torch.manual_seed(0)
model = ResNet()
before = features(model)

# %%
# ``lift`` takes the model in training mode. The example tells it the shape of the images.

model.train()
problem = lb.lift(model, loss=lb.CrossEntropy(), example=X[:2])

# %%
# The summary lists the terms. A shortcut makes a variable that two terms read: ``relu`` of the stem is read by the
# first convolution of block 1 and by its sum. The convolutions of a block end in variables of their own, because batch
# normalisation has parameters too and the sum has two inputs.

print(problem.summary())

# %%
# The summary's last line says what training mode means here: batch normalisation couples the samples of a batch. During
# a step it divides by the mean and variance of the batch, measured once, and records them. The history and the
# validation are in evaluation mode. Inside the context, differentiating an activation would raise an error. Six epochs
# keep the example short; the accuracy on held-out digits moves by a point from epoch to epoch.

with lb.forbid_activation_derivatives():
    result = lb.fit(problem, (X, y), epochs=6, batch_size=50, validation=(X_test, y_test))
after = features(model)
print(result.message)

# %%
# The cross-entropy of the network itself, by epoch.

history = result.history
epochs = [row["epoch"] for row in history]
figure, curve = plt.subplots(figsize=(7, 3.2), layout="constrained")
curve.plot(epochs, [row["objective"] for row in history], label="training digits")
curve.plot(epochs, [row["validation"] for row in history], "--", label="held-out digits")
curve.set(xlabel="epoch", ylabel="cross-entropy", yscale="log", xticks=epochs)
curve.legend()
plt.show()

# %%
# The 24 features from which the last layer decides, for all held-out digits, along their two main directions, before
# and after training. A colour is a digit.

# sphinx_gallery_thumbnail_number = 2
figure, axes = plt.subplots(1, 2, figsize=(8, 3.6), layout="constrained")
axes[0].set_title("untrained")
axes[1].set_title("trained")
for axis, found in zip(axes, (before, after), strict=True):
    centred = found - found.mean(0)
    plane = centred @ torch.linalg.svd(centred, full_matrices=False).Vh[:2].T
    for digit, colour in enumerate(plt.get_cmap("tab10").colors):
        axis.scatter(*plane[y_test == digit].T, s=14, color=colour, lw=0, label=digit)
    axis.set(xticks=[], yticks=[])
axes[1].legend(loc="center left", bbox_to_anchor=(1, 0.5), frameon=False, handletextpad=0)
plt.show()

accuracy = float((model.head(after).argmax(1) == y_test).float().mean())
print(f"{100 * accuracy:.1f} % of the held-out digits are recognised")

# %%
# For CIFAR-10, run ``lifted data get cifar-10`` once, take ``data.load("cifar-10")`` and ``view(-1, 3, 32, 32)``, and a
# wider ``ResNet(channels=3, width=32)`` with more blocks. Nothing else changes, but it takes much longer.

assert not problem.network.couples_samples  # the model is in evaluation mode now
assert accuracy > 0.95
assert history[-1]["objective"] < 0.1 * history[0]["objective"]
