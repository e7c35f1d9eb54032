"""
Save and load
=============

A trained model is an ordinary module: its ``state_dict`` goes into a file by PyTorch's own means or by safetensors, and
the model that reads it back predicts the same, bit by bit.
"""

import tempfile
from pathlib import Path

import matplotlib.pyplot as plt
import torch
from safetensors.torch import load_file, save_file
from torch import nn

import lifted_bregman as lb
from lifted_bregman import data


def network() -> nn.Sequential:
    """The library's activations have no parameters: nothing of them is in the file."""
    threshold = lb.activations.SoftThreshold(0.1).as_module()
    return nn.Sequential(nn.Linear(64, 48), threshold, nn.Linear(48, 10))


digits = data.load("digits")
torch.manual_seed(0)
model = network()
problem = lb.lift(model, loss=lb.CrossEntropy())
lb.fit(problem, digits.train, epochs=15, seed=0)

# %%
# With torch
# ----------
# ``weights_only=True`` is the default of current versions. It reads tensors and nothing that could run.

folder = tempfile.TemporaryDirectory()
torch_file = Path(folder.name, "model.pt")
torch.save(model.state_dict(), torch_file)

by_torch = network()
by_torch.load_state_dict(torch.load(torch_file, weights_only=True))

# %%
# With safetensors
# ----------------
# The format of the library's own checkpoints: no pickle, and readable from other languages.

safe_file = Path(folder.name, "model.safetensors")
save_file(model.state_dict(), safe_file)

by_safetensors = network()
by_safetensors.load_state_dict(load_file(safe_file))
folder.cleanup()

# %%
# The same bits
# -------------

X, y = digits.test.X, digits.test.y
with torch.no_grad():
    expected = model(X)
    assert torch.equal(by_torch(X), expected)
    assert torch.equal(by_safetensors(X), expected)

# %%
# A loaded model can be lifted again and trained further, as if it had never been away.

for one in (model, by_safetensors):
    lb.fit(lb.lift(one, loss=lb.CrossEntropy()), digits.train, epochs=2, seed=1)
for a, b in zip(model.parameters(), by_safetensors.parameters(), strict=True):
    assert torch.equal(a, b)

with torch.no_grad():
    guesses = by_safetensors(X).argmax(1)
figure, axes = plt.subplots(2, 8, figsize=(8, 2.6), layout="constrained")
for axis, image, guess in zip(axes.flat, X, guesses, strict=False):
    axis.imshow(image.view(8, 8).numpy(), cmap="gray_r")
    axis.set_title(int(guess), fontsize=10)
    axis.axis("off")
figure.suptitle("held-out digits, and what the loaded model takes them for", fontsize=10)
plt.show()
assert float((guesses == y).float().mean()) > 0.9
