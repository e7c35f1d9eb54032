"""
With MLflow
===========

A callback of six lines sends every row of ``lb.fit`` to MLflow, and your own loop logs beside it. The store is a
file in a folder: no server, no account.

Install lifted-bregman with the extra ``tools`` for this example.
"""

import os
import tempfile
from pathlib import Path

import matplotlib.pyplot as plt
import mlflow
import torch
from torch import nn
from torch.nn import functional as F

import lifted_bregman as lb
from lifted_bregman import data

digits = data.load("digits")
training, held_out = (digits.train.X, digits.train.y), (digits.test.X, digits.test.y)
home = tempfile.TemporaryDirectory()
os.environ["MLFLOW_ALLOW_FILE_STORE"] = "true"  # a database is the default
mlflow.set_tracking_uri(Path(home.name, "mlruns").as_uri())
mlflow.set_experiment("digits")


def network():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(64, 48), nn.ReLU(), nn.Linear(48, 10))


# %%
# The lines that matter
# ---------------------


class MLflow(lb.callbacks.Callback):
    """Logs every entry of every row to the active run."""

    reads_parameters = False

    def recorded(self, run, row):
        mlflow.log_metrics(row, step=int(row["step"]))


with mlflow.start_run(run_name="fit") as by_fit:
    mlflow.log_params({"hidden": 48, "solver": "default"})
    problem = lb.lift(network(), loss=lb.CrossEntropy())
    callbacks = [MLflow()]
    result = lb.fit(problem, training, epochs=8, validation=held_out, callbacks=callbacks)

# %%
# In your own loop
# ----------------------

model = lb.lifted_backward(network(), nudge=0.5, reduction="mean")
optimiser = torch.optim.Adam(model.parameters(), lr=3e-3)
X, y = training
with mlflow.start_run(run_name="loop") as by_loop:
    mlflow.log_params({"hidden": 48, "solver": "Adam on lifted signals"})
    for epoch in range(1, 9):
        for rows in torch.randperm(len(X)).split(100):
            optimiser.zero_grad()
            F.cross_entropy(model(X[rows]), y[rows]).backward()
            optimiser.step()
        with torch.no_grad():
            validation = F.cross_entropy(model(held_out[0]), held_out[1])
        mlflow.log_metric("validation", float(validation), step=epoch * 15)

# %%
# The store answers questions about both runs.

client = mlflow.MlflowClient()
curves = {}
for run in (by_fit, by_loop):
    points = client.get_metric_history(run.info.run_id, "validation")
    curves[run.info.run_name] = [(point.step, point.value) for point in points]
home.cleanup()
assert curves["fit"] == [(row["step"], row["validation"]) for row in result.history]
assert curves["loop"][-1][1] < 0.5

# sphinx_gallery_thumbnail_path = 'gallery/thumbnails/with_mlflow.png'
figure, axis = plt.subplots(figsize=(7, 3.2), layout="constrained")
for run, points in curves.items():
    axis.plot(*zip(*points, strict=True), "o-", label=run)
axis.set(xlabel="step", ylabel="validation", yscale="log")
axis.legend()
plt.show()
