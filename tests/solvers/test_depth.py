"""Deep networks: the error signals of the default solver keep the size of autograd's, and the networks train."""

import math

import pytest
import torch
from sklearn.datasets import load_digits
from torch import nn

import lifted_bregman as lb
from lifted_bregman.activations import Identity
from lifted_bregman.solvers import Batch


class Block(nn.Module):
    """h + W₂ ReLU(W₁ h), where W₂ has the variance 1/(width · blocks): the stream keeps its size at any depth."""

    def __init__(self, width, blocks):
        super().__init__()
        self.inner, self.activation, self.outer = nn.Linear(width, width), nn.ReLU(), nn.Linear(width, width)
        nn.init.normal_(self.inner.weight, std=math.sqrt(2.0 / width))
        nn.init.normal_(self.outer.weight, std=math.sqrt(1.0 / (width * blocks)))

    def forward(self, h):
        return h + self.outer(self.activation(self.inner(h)))


def residual(layers=128, width=16):
    return nn.Sequential(nn.Linear(64, width), *(Block(width, layers // 2) for _ in range(layers // 2)), head(width))


def plain(layers=50, width=32):
    modules = []
    for layer in range(layers - 1):
        linear = nn.Linear(64 if layer == 0 else width, width)
        nn.init.kaiming_normal_(linear.weight, nonlinearity="relu")
        modules += [linear, nn.ReLU()]
    return nn.Sequential(*modules, head(width))


def head(width):
    return nn.Linear(width, 10)


NETWORKS = {"128 residual layers": residual, "50 plain layers": plain}


def prepared(name, seed, samples=60, dtype=torch.float64):
    torch.manual_seed(seed)
    model = NETWORKS[name]()
    for module in model.modules():
        if isinstance(module, nn.Linear):
            nn.init.zeros_(module.bias)
    X, y = (torch.as_tensor(part[:samples]) for part in load_digits(return_X_y=True))
    X = X - X.mean(0)
    return model.to(dtype), (X / X.std()).to(dtype), nn.functional.one_hot(y, 10).to(dtype)


class Recording(lb.GramSweep):
    """A step of the default solver without moves, which keeps the signals."""

    def _signal(self, problem, layer, *arguments):
        E = super()._signal(problem, layer, *arguments)
        FOUND[layer] = E.clone()
        return E

    def _collect(self, *arguments):
        pass


FOUND = {}


def signals(model, X, Y):
    """E_l of the activations, in order."""
    problem = lb.lift(model, loss=lb.SquaredError())
    batch, solver = Batch.whole(problem, X, Y), Recording()
    FOUND.clear()
    solver.step(problem, solver.init(problem, batch), batch)
    return [FOUND[l] for l in sorted(FOUND) if not isinstance(problem.network[l].activation, Identity)]


def back_propagated(model, X, Y):
    """The gradients of ½‖y - z_L‖² of each sample in the inputs of the model's ReLU modules, by autograd."""
    inputs = []

    def keep(module, arguments):
        arguments[0].retain_grad()
        inputs.append(arguments[0])

    hooks = [m.register_forward_pre_hook(keep) for m in model.modules() if isinstance(m, nn.ReLU)]
    (0.5 * (model(X) - Y).square().sum()).backward()
    for hook in hooks:
        hook.remove()
    return [z.grad for z in inputs]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("name", NETWORKS)
def test_signals_neither_vanish_nor_explode_at_initialisation(name, seed, dtype):
    """At every layer, in size and direction; ν → 0 would give a ratio and a cosine of 1."""
    model, X, Y = prepared(name, seed, dtype=dtype)
    found, expected = signals(model, X, Y), back_propagated(model, X, Y)
    assert len(found) == len(expected) == {"128 residual layers": 64, "50 plain layers": 49}[name]
    for E, g in zip(found, expected, strict=True):
        assert 0.3 <= float(E.norm() / g.norm()) <= 3.0
        assert float((E * g).sum() / (E.norm() * g.norm())) >= 0.7


def test_small_signals_survive_rounding():
    """Near a solution, as 128 layers reach it in float32: against the gradients of the same network in float64."""
    model, X, _ = prepared("128 residual layers", 0, dtype=torch.float32)
    noise = torch.randn(len(X), 10, generator=torch.Generator().manual_seed(1))
    Y = (model(X) + 1e-4 * noise).detach()
    found = signals(model, X, Y)
    expected = back_propagated(model.double(), X.double(), Y.double())
    for E, g in zip(found, expected, strict=True):
        assert 0.9 <= float(E.norm() / g.norm()) <= 1.1


@pytest.mark.parametrize("name", NETWORKS)
def test_the_default_solver_trains_deep_networks(name):
    """Well below the error of the best constant, which is all that is left when nothing of a sample gets through."""
    model, X, Y = prepared(name, 0, samples=200, dtype=torch.float32)
    problem = lb.lift(model, loss=lb.SquaredError())
    constant = 0.5 * float((Y - Y.mean(0)).square().sum()) / len(Y)
    with lb.forbid_activation_derivatives():
        lb.fit(problem, (X, Y), epochs=EPOCHS[name], batch_size=20, record_every=EPOCHS[name])
    assert float(problem.objective(X, Y)) < 0.8 * constant


EPOCHS = {"128 residual layers": 2, "50 plain layers": 40}
