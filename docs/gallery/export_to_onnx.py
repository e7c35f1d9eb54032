"""
Leave PyTorch: torch.export and ONNX
====================================

A trained model is exported like any other module, also where it has activations that PyTorch does not have. Here
onnxruntime, which knows neither PyTorch nor this library, agrees with the model to 1e-5.

Install lifted-bregman with the extra ``onnx`` for this example.
"""

import matplotlib.pyplot as plt
import onnxruntime
import torch
from torch import nn

import lifted_bregman as lb
from lifted_bregman import data

digits = data.load("digits")
torch.manual_seed(0)
model = nn.Sequential(
    nn.Linear(64, 48),
    lb.activations.Arctan().as_module(),
    nn.Linear(48, 32),
    lb.activations.NonNegativeSoftThreshold(0.05).as_module(),
    nn.Linear(32, 10),
    lb.activations.Sparsemax().as_module(),
)
problem = lb.lift(model, loss=lb.BregmanLoss(lb.activations.Sparsemax()))
targets = nn.functional.one_hot(digits.train.y, 10).float()
lb.fit(problem, (digits.train.X, targets), epochs=20, seed=0)

# %%
# torch.export
# ------------
# The graph is made with one batch and used with another: the first dimension is declared free.

X = digits.test.X
with torch.no_grad():
    expected = model(X)

batch = torch.export.Dim("batch")
program = torch.export.export(model, (X[:2],), dynamic_shapes=({0: batch},))
by_export = program.module()(X).detach()
print(f"torch.export: {float((by_export - expected).abs().max()):.1e} off at most")

# %%
# ONNX
# ----
# ``dynamo=True`` is the exporter that builds on ``torch.export``. ``onnx_program.save("model.onnx")`` would write the
# file; here onnxruntime gets its bytes.

onnx_program = torch.onnx.export(program, dynamo=True, verbose=False)
content = onnx_program.model_proto.SerializeToString()
session = onnxruntime.InferenceSession(content, providers=["CPUExecutionProvider"])
(outputs,) = session.run(None, {session.get_inputs()[0].name: X.numpy()})
by_onnx = torch.from_numpy(outputs)
print(f"onnxruntime: {float((by_onnx - expected).abs().max()):.1e} off at most")

accuracy = float((by_onnx.argmax(1) == digits.test.y).float().mean())
zeros = float((by_onnx == 0).float().mean())
print(f"{100 * accuracy:.1f} % of the held-out digits are recognised")
print(f"{100 * zeros:.0f} % of the probabilities are exactly zero")

assert (by_export - expected).abs().max() <= 1e-5
assert (by_onnx - expected).abs().max() <= 1e-5
assert accuracy > 0.9
assert zeros > 0.7  # what sparsemax is for

# %%
# Sparsemax gives each digit a few candidates and rules out all the others.

figure, axis = plt.subplots(figsize=(8, 3.4), layout="constrained")
picture = axis.imshow(outputs[:40].T, cmap="Blues", aspect="auto", vmin=0.0, vmax=1.0)
axis.plot(range(40), digits.test.y[:40], "r.", label="the label")
axis.set(xlabel="held-out digit", ylabel="class", yticks=range(0, 10, 3))
axis.legend(loc="lower center", bbox_to_anchor=(0.5, 1.0))
figure.colorbar(picture, label="probability")
plt.show()
