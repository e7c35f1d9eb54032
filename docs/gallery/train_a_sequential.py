"""
Train the model you have
========================

A plain :class:`torch.nn.Sequential` goes in, and the same object comes out trained. Nothing is wrapped or converted:
the lifted problem shares the model's parameters, and no activation is ever differentiated. Models of other kinds
follow in the next examples.
"""

import matplotlib.pyplot as plt
import torch
from torch import nn

import lifted_bregman as lb
from lifted_bregman import data
from lifted_bregman.solvers import Outcome

# %%
# The model is PyTorch's own. The images are 8 by 8 pixels, so that it has 64 inputs.

torch.manual_seed(0)
model = nn.Sequential(
    nn.Linear(64, 64),
    nn.ReLU(),
    nn.Linear(64, 32),
    nn.Tanh(),
    nn.Linear(32, 10),
)

digits = data.load("digits")
X, y = digits.train.X, digits.train.y
X_test, y_test = digits.test.X, digits.test.y

# %%
# ``lift`` reads the model and gives each hidden layer variables of its own. ``fit`` without a solver takes the
# library's default. Inside the context, differentiating an activation would raise an error.

problem = lb.lift(model, loss=lb.CrossEntropy())
with lb.forbid_activation_derivatives():
    result = lb.fit(problem, (X, y), epochs=20, seed=0, validation=(X_test, y_test))
print(result.message)

# %%
# One row of the history for each epoch says what was reached. ``objective`` is the loss of the network itself, by a
# forward pass, and so comparable with any other way of training it.

history = result.history
for name in ("epoch", "step", "objective", "accuracy", "validation_accuracy"):
    print(f"{name:20} {history[-1][name]:.4g}")

figure, (left, right) = plt.subplots(1, 2, figsize=(9, 3.2), layout="constrained")
epochs = [row["epoch"] for row in history]


def draw(axis, training, held_out):
    axis.plot(epochs, [row[training] for row in history], label="training digits")
    axis.plot(epochs, [row[held_out] for row in history], "--", label="held-out digits")
    axis.set(xlabel="epoch", xticks=epochs[4::5])
    axis.legend()


draw(left, "objective", "validation")
left.set(ylabel="cross-entropy", yscale="log")
draw(right, "accuracy", "validation_accuracy")
right.set(ylabel="accuracy")
plt.show()

# %%
# From here on it is an ordinary PyTorch model.

with torch.no_grad():
    accuracy = float((model(X_test).argmax(1) == y_test).float().mean())
print(f"{100 * accuracy:.1f} % of the held-out digits are recognised")

assert result.outcome is Outcome.FINISHED
assert problem.model is model
assert accuracy > 0.93
assert abs(accuracy - history[-1]["validation_accuracy"]) < 1e-6
assert history[-1]["objective"] < 0.1 * history[0]["objective"]
