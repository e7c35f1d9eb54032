"""
Your own activation, your own callback
======================================

Any function of one number that is non-decreasing and has no slope above 1 is a proximal map, and can be an activation.
The library works out the rest: potential, conjugate, Bregman loss and scaled proximal maps.
"""

import matplotlib.pyplot as plt
import torch
from torch import nn

import lifted_bregman as lb
from lifted_bregman.solvers import Outcome, Run

# %%
# An activation
# -------------
# A smooth relative of the ReLU, whose slope is always between 0 and 1.


def squareplus(z: torch.Tensor) -> torch.Tensor:
    """(z + √(z² + 1)) / 2, in the form that does not cancel for negative z."""
    root = (z.square() + 1).sqrt()
    return torch.where(z > 0, 0.5 * (z + root), 0.5 / (root + z.abs()))


activation = lb.activations.FromScalar(squareplus)

z = torch.linspace(-3, 3, 13, dtype=torch.float64).reshape(-1, 1)
lb.check_prox(activation, z)  # it solves its minimisation problem, at several scales
lb.check_bregman(activation, activation(z + 0.3), z)

# %%
# The Bregman loss of the new activation is convex in z, with slope σ(z) - x, and lies above the squared loss.

points = torch.linspace(-4, 4, 201, dtype=torch.float64).reshape(-1, 1)
x = torch.full_like(points, 1.0)
bregman = lb.bregman_loss(x, points, activation)
squared = 0.5 * (x - activation(points)).square().squeeze(1)

figure, (left, right) = plt.subplots(1, 2, figsize=(9, 3.2), layout="constrained")
left.plot(points, activation(points), label="squareplus")
left.plot(points, points.relu(), ":", label="ReLU")
left.set(xlabel="z", ylabel="σ(z)")
left.legend()
right.plot(points, bregman, label="Bregman loss B(x, z)")
right.plot(points, squared, "--", label="½(x - σ(z))²")
right.set(xlabel="z", ylabel="loss at x = 1")
right.legend()
plt.show()

assert (bregman >= squared - 1e-12).all()
slopes = torch.gradient(bregman, spacing=float(points[1] - points[0]))[0]
assert torch.allclose(slopes[1:-1], (activation(points) - x).squeeze(1)[1:-1], atol=1e-3)

# %%
# What is no proximal map is refused, with the place where it fails.

try:
    lb.activations.FromScalar(nn.functional.gelu)
except lb.errors.NotProximalError as error:
    print(error)
else:
    raise AssertionError("GELU decreases and has slopes above 1")

# %%
# A callback
# ----------
# A callback is an object with any of the methods ``started``, ``stepped``, ``recorded``, ``ended``, ``finished`` and
# ``close``. This one remembers how far the weights of each layer have moved, and ends the run once they have calmed
# down.


class Movement(lb.callbacks.Callback):
    """‖W - W of the row before‖ / ‖W‖ of each layer, until all are below a tolerance."""

    def __init__(self, tolerance: float) -> None:
        self.tolerance, self.moves, self.last = tolerance, [], []

    def started(self, run: Run) -> None:
        self.last = self.weights(run)

    def recorded(self, run: Run, row: dict[str, float]) -> None:
        now = self.weights(run)
        pairs = zip(now, self.last, strict=True)
        self.moves.append([float((a - b).norm() / a.norm()) for a, b in pairs])
        self.last = now
        if max(self.moves[-1]) < self.tolerance:
            run.stop(Outcome.STOPPED, f"All moved by less than {self.tolerance:g}.")

    @staticmethod
    def weights(run: Run) -> list[torch.Tensor]:
        return [p.detach().clone() for p in run.problem.model.parameters() if p.ndim == 2]


torch.manual_seed(0)
model = nn.Sequential(nn.Linear(64, 32), activation.as_module(), nn.Linear(32, 10))
problem = lb.lift(model, loss=lb.CrossEntropy())
movement = Movement(tolerance=0.05)
solver = lb.AdaBreg(step_size=5e-3)
result = lb.fit(problem, "digits", solver, epochs=40, seed=0, callbacks=[movement])
print(result.message)
print(f"accuracy {result.history[-1]['accuracy']:.3f} after {len(result.history)} epochs")

figure, axis = plt.subplots(figsize=(7, 3), layout="constrained")
for layer, moves in enumerate(zip(*movement.moves, strict=True), start=1):
    axis.plot(range(1, len(moves) + 1), moves, label=f"layer {layer}")
axis.axhline(movement.tolerance, color="grey", linewidth=1)
axis.set(xlabel="epoch", ylabel="relative move of the weights", yscale="log")
axis.legend()
plt.show()

assert result.outcome is Outcome.STOPPED
assert len(movement.moves) == len(result.history) < 40
assert result.history[-1]["accuracy"] > 0.93
