"""
With Accelerate
===============

Accelerate prepares your own loop for several devices and for mixed precision. ``lb.lifted_backward`` comes before
``prepare``; ``accelerator.backward`` then carries lifted signals.

Install lifted-bregman with the extra ``tools`` for this example.
"""

import matplotlib.pyplot as plt
import torch
from accelerate import Accelerator
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset

import lifted_bregman as lb
from lifted_bregman import data

digits = data.load("digits")
X, y = digits.test.X, digits.test.y

# %%
# The lines that matter
# ---------------------
# The batch of an optimiser's step is made of two batches of the loader. Accelerate divides the loss by two for that,
# and ``loss_scale`` says so, since a signal should not depend on how a batch is cut.


def train(lifted):
    torch.manual_seed(0)
    accelerator = Accelerator(cpu=True, gradient_accumulation_steps=2)
    model = nn.Sequential(nn.Linear(64, 48), nn.Tanh(), nn.Linear(48, 10))
    if lifted:
        model = lb.lifted_backward(model, nudge=0.5, reduction="mean", loss_scale=0.5)
    optimiser = torch.optim.AdamW(model.parameters(), lr=3e-3)
    loader = DataLoader(TensorDataset(digits.train.X, digits.train.y), 50, shuffle=True)
    model, optimiser, loader = accelerator.prepare(model, optimiser, loader)
    losses = []
    for _ in range(8):
        total = 0.0
        for inputs, labels in loader:
            with accelerator.accumulate(model):
                loss = F.cross_entropy(model(inputs), labels)
                accelerator.backward(loss)
                accelerator.clip_grad_norm_(model.parameters(), 1.0)
                optimiser.step()
                optimiser.zero_grad()
            total += float(loss.detach()) * len(labels)
        losses.append(total / len(digits.train.y))
    return accelerator.unwrap_model(model), losses


by_lifted, lifted_losses = train(lifted=True)
by_autograd, autograd_losses = train(lifted=False)

# %%
# What comes out is the model that went in, and ``lb.plain_backward`` takes the line back.

model = lb.plain_backward(by_lifted)
with torch.no_grad():
    accuracy = float((model(X).argmax(1) == y).float().mean())
print(f"{100 * accuracy:.1f} % of the held-out digits are recognised")
assert accuracy > 0.9
assert list(model.state_dict()) == list(by_autograd.state_dict())

# sphinx_gallery_thumbnail_path = 'gallery/thumbnails/with_accelerate.png'
figure, axis = plt.subplots(figsize=(7, 3.2), layout="constrained")
for name, losses in (("lifted", lifted_losses), ("autograd", autograd_losses)):
    axis.plot(range(1, len(losses) + 1), losses, "o-", label=name)
axis.set(xlabel="epoch", ylabel="training loss", yscale="log")
axis.legend()
plt.show()
