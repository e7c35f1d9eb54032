"""
An autoencoder with sparse codes
================================

The code of this autoencoder comes out of a soft threshold, and an l1 penalty acts on the code as a variable of its own.
Neither has to be differentiated, so that zeros are exact zeros and not small numbers.
"""

import matplotlib.pyplot as plt
import torch
from torch import nn

import lifted_bregman as lb
from lifted_bregman import data

images = data.load("mnist-5k").apply(data.Subset(1000))
X, X_test = images.train.X, images.test.X[:200]

# %%
# The paper's recipe at a smaller size: ReLU, a soft threshold for the code, ReLU, and a linear output. Threshold and
# penalty are two settings; the paper has 0.09 for both, and more gives sparser codes.

torch.manual_seed(0)
encoder = nn.Sequential(
    nn.Linear(784, 256),
    nn.ReLU(),
    nn.Linear(256, 256),
    nn.Softshrink(0.15),
)
decoder = nn.Sequential(nn.Linear(256, 256), nn.ReLU(), nn.Linear(256, 784))
autoencoder = nn.Sequential(encoder, decoder)
on_the_code = {2: lb.penalties.L1(0.15)}
problem = lb.lift(autoencoder, loss=lb.SquaredError(), penalties=on_the_code)

training, new = (X, X), (X_test, X_test)
result = lb.fit(problem, training, epochs=30, batch_size=50, seed=0, validation=new)

with torch.no_grad():
    codes = encoder(X_test)
    reconstructions = decoder(codes)
sparsity = float((codes == 0).float().mean())
error = (X_test - reconstructions).square().sum()
left_over = error / (X_test - X.mean(0)).square().sum()
print(f"{100 * sparsity:.0f} % of the code is zero")
print(f"{100 * (1 - left_over):.0f} % of the variance of new images is explained")

# %%
# Images that the network has not seen, their codes as pictures of 16 by 16 numbers (white is exactly zero), and what
# the decoder makes of the codes.

figure, axes = plt.subplots(3, 8, figsize=(9, 3.8), layout="constrained")
limit = float(codes[:8].abs().max())
for column in range(8):
    shown = X_test[column], codes[column], reconstructions[column]
    image, code, made = (row.numpy() for row in shown)
    axes[0, column].imshow(image.reshape(28, 28), cmap="gray_r", vmin=0, vmax=1)
    axes[1, column].imshow(code.reshape(16, 16), cmap="bwr_r", vmin=-limit, vmax=limit)
    axes[2, column].imshow(made.reshape(28, 28), cmap="gray_r", vmin=0, vmax=1)
for axis in axes.flat:
    axis.set(xticks=[], yticks=[])
for axis, name in zip(axes[:, 0], ("image", "code", "decoded"), strict=True):
    axis.set_ylabel(name)
plt.show()

# %%
# The history records the sparsity of the middle layer along the way.

figure, (left, right) = plt.subplots(1, 2, figsize=(9, 3), layout="constrained")
epochs = [row["epoch"] for row in result.history]
left.plot(epochs, [row["objective"] for row in result.history], label="training images")
left.plot(epochs, [row["validation"] for row in result.history], "--", label="new images")
left.set(xlabel="epoch", ylabel="objective", yscale="log")
left.legend()
right.plot(epochs, [100 * row["sparsity"] for row in result.history])
right.set(xlabel="epoch", ylabel="zeros in the code, %", ylim=(0, 100))
plt.show()

assert sparsity > 0.7
assert left_over < 0.5
with torch.no_grad():
    before = encoder[:-1](X_test)  # the soft threshold cuts off exactly what is below it
assert torch.equal(codes == 0, before.abs() <= 0.15)
