"""Models and losses of the tests, and an independent backward pass of a chain."""

from functools import partial

import torch
from torch import nn
from torch.nn import functional as F

import lifted_bregman as lb


def chain(*activations, widths=(5, 7, 6, 4), dtype=torch.float64, seed=0):
    """Linear, activation, linear, ..: one linear map more than activations."""
    torch.manual_seed(seed)
    parts = []
    for number, activation in enumerate(activations):
        parts += [nn.Linear(widths[number], widths[number + 1]), activation]
    return nn.Sequential(*parts, nn.Linear(widths[len(activations)], 3)).to(dtype)


def batch(samples=6, features=5, classes=3, dtype=torch.float64, seed=1):
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(samples, features, generator=generator, dtype=torch.float64).to(dtype)
    return x, torch.randint(0, classes, (samples,), generator=generator)


def gradients(model, x, y, loss=F.cross_entropy):
    """The gradients of the parameters after one backward pass."""
    model.zero_grad()
    loss(model(x), y).backward()
    return {name: p.grad.clone() for name, p in model.named_parameters()}


def assert_same(found, expected, rtol=0.0, atol=0.0):
    assert found.keys() == expected.keys()
    for name in found:
        torch.testing.assert_close(
            found[name], expected[name], rtol=rtol, atol=atol, msg=partial("{}: {}".format, name)
        )


def chain_by_hand(model, activations, x, y, nudge):
    """Gradients of the mean cross-entropy of a chain, signal by signal as the formula has it.

    g is the gradient of one sample's loss, E the answer; ν_i = min(ν/P, 0.3 ‖z_i‖/‖g_i‖).
    """
    linear = [part for part in model if isinstance(part, nn.Linear)]
    with torch.no_grad():
        inputs, z = [x], []
        for f, activation in zip(linear, [*activations, lb.activations.Identity()], strict=True):
            z.append(inputs[-1] @ f.weight.T + f.bias)
            inputs.append(activation(z[-1]))
        E = z[-1].softmax(-1) - F.one_hot(y, 3)
        found = {}
        for number in reversed(range(len(linear))):
            name = next(key for key, part in model.named_children() if part is linear[number])
            found[f"{name}.weight"] = E.T @ inputs[number] / len(x)
            found[f"{name}.bias"] = E.mean(0)
            if number:
                g = E @ linear[number].weight
                v = z[number - 1]
                limit = 0.3 * v.norm(dim=1, keepdim=True) / g.norm(dim=1, keepdim=True)
                nu = limit.clamp(max=nudge / len(activations))
                E = (activations[number - 1](v) - activations[number - 1](v - nu * g)) / nu
        return found


class Residual(nn.Module):
    """A forward method of one's own: functions, methods and modules, a block that is used twice."""

    def __init__(self, width=6):
        super().__init__()
        self.enter, self.leave = nn.Linear(5, width), nn.Linear(width, 3)
        self.block, self.norm = nn.Linear(width, width), nn.LayerNorm(width)
        self.tanh = nn.Tanh()

    def forward(self, x):
        h = F.softplus(self.enter(x))
        for _ in range(2):
            h = h + self.tanh(self.block(self.norm(h)))
        return self.leave(h.sigmoid())


class Transformer(nn.Module):
    """Embedding, a layer of torch's with ReLU, and a mean over the positions."""

    def __init__(self, width=8):
        super().__init__()
        self.tokens = nn.Embedding(11, width)
        self.layer = nn.TransformerEncoderLayer(width, 2, 12, dropout=0.0, batch_first=True)
        self.leave = nn.Linear(width, 3)

    def forward(self, ids):
        return self.leave(self.layer(self.tokens(ids)).mean(1))
