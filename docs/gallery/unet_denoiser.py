"""
A U-Net that removes noise
==========================

An encoder with max pooling, a decoder with transposed convolutions, and shortcuts that join the two by concatenation.
The first shortcut is a soft threshold with a penalty by its name, so that few of its numbers are used.
"""

import matplotlib.pyplot as plt
import torch
from torch import nn
from torch.nn import functional as F

import lifted_bregman as lb
from lifted_bregman import data

# %%
# Images of MNIST, 28 by 28 pixels from 0 to 1, with Gaussian noise of standard deviation 0.5 on them.

mnist = data.load("mnist-5k-500")
noise = torch.Generator().manual_seed(0)


def noisy(images):
    clean = images.view(-1, 1, 28, 28)
    return clean + 0.5 * torch.randn(clean.shape, generator=noise), clean


X, Y = noisy(mnist.train.X)
X_test, Y_test = noisy(mnist.test.X[:200])

# %%
# Three scales. What a scale of the encoder computes is read twice: by the next scale, and by the decoder.


class UNet(nn.Module):
    def __init__(self, width=8):
        super().__init__()
        self.enter = nn.Conv2d(1, width, 3, padding=1)
        self.down = nn.Conv2d(width, 2 * width, 3, padding=1)
        self.bottom = nn.Conv2d(2 * width, 2 * width, 3, padding=1)
        self.up1 = nn.ConvTranspose2d(2 * width, 2 * width, 2, stride=2)
        self.merge1 = nn.Conv2d(4 * width, width, 3, padding=1)
        self.up2 = nn.ConvTranspose2d(width, width, 2, stride=2)
        self.merge2 = nn.Conv2d(2 * width, width, 3, padding=1)
        self.leave = nn.Conv2d(width, 1, 1)
        self.shrink = nn.Softshrink(0.1)

    def forward(self, x):
        fine = self.shrink(self.enter(x))
        middle = F.relu(self.down(F.max_pool2d(fine, 2)))
        coarse = F.relu(self.bottom(F.max_pool2d(middle, 2)))
        middle = F.relu(self.merge1(torch.cat([self.up1(coarse), middle], 1)))
        fine = F.relu(self.merge2(torch.cat([self.up2(middle), fine], 1)))
        return self.leave(fine)


# %%
# The penalty is given by the name of the module whose output it concerns, as the summary has it. Numbers work as well.

torch.manual_seed(0)
model = UNet()
penalties = {"enter": lb.penalties.L1(3e-3)}
problem = lb.lift(model, loss=lb.SquaredError(), example=X[:2], penalties=penalties)
held_out = X_test, Y_test
with lb.forbid_activation_derivatives():
    result = lb.fit(problem, (X, Y), epochs=10, batch_size=50, validation=held_out)
print(result.message)

# %%
# ``shrink`` is read by the next scale and by ``merge2``. Max pooling and concatenation are parts of maps.

print(problem.summary())

# %%
# The objective is half the squared error of an image plus the penalty. The dotted line is half the squared error of the
# noisy image itself.

with torch.no_grad():
    cleaned = model(X_test)
    codes = problem.forward_state(X_test)[1]
before = float((X_test - Y_test).square().mean())
after = float((cleaned - Y_test).square().mean())
zeros = problem.sparsity(codes)
print(f"mean squared error of a pixel: {before:.3f} before, {after:.4f} after")
print(f"{100 * zeros:.0f} % of the first shortcut are zeros")

history = result.history
epochs = [row["epoch"] for row in history]
figure, axis = plt.subplots(figsize=(7, 3.2), layout="constrained")
axis.plot(epochs, [row["objective"] for row in history], label="training images")
axis.plot(epochs, [row["validation"] for row in history], "--", label="held-out images")
axis.axhline(784 * before / 2, color="0.5", linestyle=":", label="noisy images")
axis.set(xlabel="epoch", ylabel="objective", yscale="log", xticks=epochs[1::2])
axis.legend()
plt.show()

# %%
# Held-out digits: noisy, as the network returns them, and clean.

# sphinx_gallery_thumbnail_number = 2
figure, axes = plt.subplots(3, 6, figsize=(8, 4), layout="constrained")
rows = {"noisy": X_test, "U-Net": cleaned, "clean": Y_test}
for row, (title, images) in zip(axes, rows.items(), strict=True):
    for cell, image in zip(row, images[:150:25], strict=True):
        cell.imshow(image[0].numpy(), cmap="gray", vmin=0, vmax=1)
        cell.set(xticks=[], yticks=[])
    row[0].set_ylabel(title)
plt.show()

assert problem.network.named("enter") == 1 and 1 in problem.penalties
assert problem.network.readers[1] == (2, 7)
assert after < 0.1 * before and zeros > 0.5
