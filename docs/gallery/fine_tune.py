"""
Change the method in the middle
===============================

Lifted training and back-propagation work on the same parameters and are compared by the same number, the objective of
the network. So one can take over from the other at any time: there is nothing to convert.
"""

import matplotlib.pyplot as plt
import torch
from torch import nn

import lifted_bregman as lb
from lifted_bregman import data

digits = data.load("digits")
X, y = digits.train.X, digits.train.y


def network() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Linear(64, 64),
        nn.ReLU(),
        nn.Linear(64, 32),
        nn.Tanh(),
        nn.Linear(32, 10),
    )


# %%
# The two methods
# ---------------
# Lifted: the algorithm of the paper, which holds the parameters of each batch near the last ones and moves them
# together with the layers' variables.


def lifted(model: nn.Sequential, epochs: int) -> list[float]:
    problem = lb.lift(model, loss=lb.CrossEntropy())
    solver = lb.ImplicitSGD(prox_weight=1.0, inner_steps=3)
    result = lb.fit(problem, (X, y), solver, epochs=epochs, batch_size=100, seed=0)
    return [row["objective"] for row in result.history]


# %%
# Back-propagation: the loop that every PyTorch user has written, with PyTorch's own loss and optimiser.


def by_adam(model: nn.Sequential, epochs: int) -> list[float]:
    loss, optimiser = nn.CrossEntropyLoss(), torch.optim.Adam(model.parameters(), lr=3e-3)
    generator, reached = torch.Generator().manual_seed(0), []
    for _ in range(epochs):
        for places in torch.randperm(len(X), generator=generator).split(100):
            optimiser.zero_grad()
            loss(model(X[places]), y[places]).backward()
            optimiser.step()
        with torch.no_grad():
            reached.append(float(loss(model(X), y)))
    return reached


# %%
# Lifted first, then Adam, and the reverse
# ----------------------------------------

EPOCHS = 6
forth, back = network(), network()
lifted_then_adam = lifted(forth, EPOCHS) + by_adam(forth, EPOCHS)
adam_then_lifted = by_adam(back, EPOCHS) + lifted(back, EPOCHS)

print("objective after the first epoch, at the change of method, and at the end")
for reached in (lifted_then_adam, adam_then_lifted):
    print([round(reached[epoch - 1], 3) for epoch in (1, EPOCHS, 2 * EPOCHS)])

figure, axis = plt.subplots(figsize=(7, 3.4), layout="constrained")
epochs = range(1, 2 * EPOCHS + 1)
axis.plot(epochs, lifted_then_adam, "o-", markersize=4, label="lifted, then Adam")
axis.plot(epochs, adam_then_lifted, "s--", markersize=4, label="Adam, then lifted")
axis.axvline(EPOCHS + 0.5, color="grey", linewidth=1)
axis.annotate("change of method", (EPOCHS + 0.6, axis.get_ylim()[1] * 0.8), fontsize=9)
axis.set(xlabel="epoch", ylabel="objective of the network", yscale="log")
axis.legend(loc="lower left")
plt.show()

# %%
# Each method goes on from what the other has reached, and the two losses are the same number.

for reached in (lifted_then_adam, adam_then_lifted):
    assert reached[EPOCHS] < 1.05 * reached[EPOCHS - 1]  # nothing is thrown away
    assert reached[-1] < 0.75 * reached[EPOCHS - 1]

with torch.no_grad():
    ours = float(lb.lift(forth, loss=lb.CrossEntropy()).objective(X, y))
    theirs = float(nn.CrossEntropyLoss()(forth(X), y))
assert abs(ours - theirs) < 1e-6
