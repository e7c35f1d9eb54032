"""
A denoiser that is an unrolled algorithm
========================================

Each layer is one step of a proximal algorithm for a convex problem, with filters and thresholds that are learned.
Before training it is a classical denoiser; after it, a better one.
"""

import matplotlib.pyplot as plt
import torch

import lifted_bregman as lb
from lifted_bregman import data

# %%
# Images of MNIST, 28 by 28 pixels from 0 to 1, with Gaussian noise of standard deviation 0.25 on them.

mnist = data.load("mnist-5k-1k")
noise = torch.Generator().manual_seed(0)
level = 0.25


def noisy(images):
    clean = images.view(-1, 1, 28, 28)
    return clean + level * torch.randn(clean.shape, generator=noise), clean


X, Y = noisy(mnist.train.X)
X_test, Y_test = noisy(mnist.test.X[:200])

# %%
# Six steps with 16 filters of 5 by 5 pixels. They begin as the smooth part of a cosine transform. ``noise`` says how
# large the thresholds are at first.

torch.manual_seed(0)
model = lb.models.UnfoldedDenoiser(layers=6, filters=16, kernel_size=5, noise=level)
problem = lb.lift(model, loss=lb.SquaredError(), example=X[:2])
print(problem.summary())
with torch.no_grad():
    before = model(X_test)

# %%
# The projections are lifted; the maps between them are differentiated as usual.

with lb.forbid_activation_derivatives():
    result = lb.fit(problem, (X, Y), epochs=5, batch_size=20)
print(result.message)
with torch.no_grad():
    after = model(X_test)


def psnr(images):
    return float(-10 * torch.log10((images.clamp(0, 1) - Y_test).square().mean()))


# %%
# Held-out images, and the filters of the first layer after training.

rows = {"noisy": X_test, "untrained": before, "trained": after, "clean": Y_test}
for name, images in rows.items():
    if name != "clean":
        print(f"{name:9}  {psnr(images):.2f} dB")
figure = plt.figure(figsize=(11, 4), layout="constrained")
left, right = figure.subfigures(1, 2, width_ratios=(1.5, 1))
axes = left.subplots(4, 6)
for row, (title, images) in zip(axes, rows.items(), strict=True):
    for cell, image in zip(row, images[:150:25], strict=True):
        cell.imshow(image[0].numpy(), cmap="gray", vmin=0, vmax=1)
        cell.set(xticks=[], yticks=[])
    row[0].set_ylabel(title)
bank = model.steps[0].module.bank
for cell, weight in zip(right.subplots(4, 4).flat, bank.weight.detach(), strict=True):
    size = float(weight.abs().max())
    cell.imshow(weight[0].numpy(), cmap="coolwarm", vmin=-size, vmax=size)
    cell.set(xticks=[], yticks=[])
right.suptitle("filters of the first layer")
plt.show()

assert psnr(after) > psnr(before) + 1 > psnr(X_test) + 2
