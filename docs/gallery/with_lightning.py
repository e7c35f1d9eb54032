"""
With Lightning
==============

A ``LightningModule`` needs one line more: ``lb.lifted_backward`` gives the activations of its network a backward pass
without derivatives. The Trainer, its loop, loggers and checkpoints stay as they are.

Install lifted-bregman with the extra ``tools`` for this example.
"""

import tempfile

import lightning as L
import matplotlib.pyplot as plt
import torch
from lightning.pytorch.loggers import CSVLogger
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset

import lifted_bregman as lb
from lifted_bregman import data

# %%
# The lines that matter
# ---------------------


class Digits(L.LightningModule):
    """A classifier as Lightning's own examples write it."""

    def __init__(self, lifted: bool) -> None:
        super().__init__()
        self.net = nn.Sequential(nn.Linear(64, 48), nn.ReLU(), nn.Linear(48, 10))
        if lifted:
            self.net = lb.lifted_backward(self.net, nudge=0.5, reduction="mean")

    def training_step(self, batch, index):
        x, y = batch
        loss = F.cross_entropy(self.net(x), y)
        self.log("loss", loss, on_step=False, on_epoch=True)
        return loss

    def configure_optimizers(self):
        return torch.optim.Adam(self.parameters(), lr=3e-3)


# %%
# Training, once lifted and once by autograd, with the same weights and batches. Nothing is downloaded, and the logs go
# to a folder that is removed at the end.

digits = data.load("digits")
folder = tempfile.TemporaryDirectory()


def train(lifted):
    L.seed_everything(0, verbose=False)
    loader = DataLoader(TensorDataset(digits.train.X, digits.train.y), 100, shuffle=True)
    module = Digits(lifted)
    trainer = L.Trainer(
        max_epochs=8,
        accelerator="cpu",
        logger=CSVLogger(folder.name, name="lifted" if lifted else "autograd"),
        log_every_n_steps=5,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    trainer.fit(module, loader)
    return module, trainer


by_lifted, trainer = train(lifted=True)
by_autograd, _ = train(lifted=False)
print(lb.backward_report(by_lifted.net))

# %%
# A checkpoint of Lightning holds the parameters under the same names as without the line, and so either module reads
# it.

path = trainer.checkpoint_callback.best_model_path
restored = Digits.load_from_checkpoint(path, lifted=False)
X, y = digits.test.X, digits.test.y
with torch.no_grad():
    outputs, expected = restored.net(X), by_lifted.net(X)
assert torch.equal(outputs, expected)
accuracy = float((outputs.argmax(1) == y).float().mean())
print(f"{100 * accuracy:.1f} % of the held-out digits are recognised")
assert accuracy > 0.9

rows = {}
for name in ("lifted", "autograd"):
    with open(f"{folder.name}/{name}/version_0/metrics.csv") as file:
        _, *lines = file.read().split()
    rows[name] = [float(line.split(",")[1]) for line in lines]
folder.cleanup()

# sphinx_gallery_thumbnail_path = 'gallery/thumbnails/with_lightning.png'
figure, axis = plt.subplots(figsize=(7, 3.2), layout="constrained")
for name, losses in rows.items():
    axis.plot(range(1, len(losses) + 1), losses, "o-", label=name)
axis.set(xlabel="epoch", ylabel="training loss", yscale="log")
axis.legend()
plt.show()
