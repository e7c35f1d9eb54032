"""
Which input has this output?
============================

A network is an energy over all its variables. Training fixes the data and moves the parameters; inversion fixes the
parameters and moves the input. Nothing is differentiated but the maps.
"""

import math

import matplotlib.pyplot as plt
import torch
from torch import nn

import lifted_bregman as lb
from lifted_bregman.penalties import Bounds, SquaredL2, TotalVariation

# %%
# A ReLU perceptron turns a picture of 64 by 64 pixels into 512 numbers. About half of them are 0, so that no linear
# algebra gives the picture back.

torch.manual_seed(0)
row, column = torch.meshgrid(*[torch.linspace(-1, 1, 64)] * 2, indexing="ij")
picture = torch.zeros(1, 64, 64)
picture[0, (column / 0.8) ** 2 + (row / 0.9) ** 2 < 1] = 0.4
picture[0, ((column - 0.2) / 0.3) ** 2 + ((row + 0.3) / 0.25) ** 2 < 1] = 1.0
picture[0, ((column + 0.35) / 0.2) ** 2 + ((row - 0.2) / 0.4) ** 2 < 1] = 0.8

linear = nn.Linear(64 * 64, 512, bias=False)
nn.init.normal_(linear.weight, std=1 / math.sqrt(512))
model = nn.Sequential(nn.Flatten(), linear, nn.ReLU())
with torch.no_grad():
    y = model(picture)
print(f"{int((y == 0).sum())} of 512 outputs are 0")

# %%
# One layer is a convex problem. ``invert`` solves it by primal-dual steps, and its gap says by how much the energy
# could still fall, at most. Total variation prefers pictures with few edges.

penalties = {
    "α = 0.015": TotalVariation(0.015),
    "with a box": TotalVariation(0.002) + Bounds(0.0, 1.0),
    "squared norm": SquaredL2(0.015),
}
found = {
    name: lb.invert(model, y, penalty=penalty, shape=(64, 64), steps=800, tolerance=1e-4)
    for name, penalty in penalties.items()
}
for name, result in found.items():
    energy, gap = float(result.energy), float(result.gap)
    print(f"{name:12}  energy {energy:.4f}, at most {gap:.1e} too large")

figure, axes = plt.subplots(1, 4, figsize=(10, 2.8), layout="constrained")
shown = {"true": picture} | {name: result.input for name, result in found.items()}
errors = {}
for axis, (name, image) in zip(axes, shown.items(), strict=True):
    errors[name] = float((image - picture).norm() / picture.norm())
    axis.imshow(image[0].numpy(), cmap="gray", vmin=0, vmax=1)
    axis.set(title=f"{name}\nerror {100 * errors[name]:.0f} %", xticks=[], yticks=[])
plt.show()

# %%
# A deep network: eight digits, and what comes out of the second layer of a small network that was trained to classify.
# The hidden variables are free, and start from a forward pass.

digits = lb.data.load("digits")
X, labels = digits.train.X.view(-1, 1, 8, 8), digits.train.y
network = nn.Sequential(
    nn.Conv2d(1, 12, 3, padding=1),
    nn.ReLU(),
    nn.Conv2d(12, 24, 3, stride=2, padding=1),
    nn.Softplus(),
    nn.Flatten(),
    nn.Linear(24 * 16, 10),
)
problem = lb.lift(network, loss=lb.CrossEntropy(), example=X[:2])
lb.fit(problem, (X, labels), epochs=3, batch_size=50, seed=0)

features, images = network[:4], digits.test.X[:8].view(-1, 1, 8, 8)
with torch.no_grad():
    outputs = features(images)
deep = lb.invert(
    features,
    outputs,
    penalty=TotalVariation(1e-3) + Bounds(0.0, 1.0),
    shape=(1, 8, 8),
    steps=300,
)
print(deep)
figure, axes = plt.subplots(2, 8, figsize=(9, 2.6), layout="constrained")
for column in range(8):
    axes[0, column].imshow(images[column, 0].numpy(), cmap="gray_r", vmin=0, vmax=1)
    image = deep.input[column, 0].numpy()
    axes[1, column].imshow(image, cmap="gray_r", vmin=0, vmax=1)
for axis in axes.flat:
    axis.set(xticks=[], yticks=[])
axes[0, 0].set_ylabel("true")
axes[1, 0].set_ylabel("found")
plt.show()

assert errors["with a box"] < errors["squared norm"] / 3
assert float((deep.input - images).abs().mean()) < 0.1
