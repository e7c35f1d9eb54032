"""`GramSweep`: signals, weights of samples, micro-batches and work; `test_gram_rule.py` has its steps."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from torch import nn

import lifted_bregman as lb
from lifted_bregman import activations as act
from lifted_bregman import solvers
from lifted_bregman.problem.nested import nested_objective
from lifted_bregman.solvers.gram import rule
from lifted_bregman.solvers.gram.moves import Moves
from tests import cases
from tests.solvers.problems import make

GramSweep = solvers.GramSweep
F64 = torch.float64
TIGHT = {"rtol": 1e-10, "atol": 1e-10}


def network(sigma: act.Activation, seed=0):
    """Inputs 9, 7 and 4; the second hidden activation is Tanh."""
    torch.manual_seed(seed)
    model = nn.Sequential(
        nn.Linear(9, 7), sigma.as_module(), nn.Linear(7, 4), nn.Tanh(), nn.Linear(4, 3)
    ).double()  # fmt: skip
    problem = lb.lift(model, loss=lb.SquaredError(), weights=[0.7, 1.6])
    X = 0.3 + torch.randn(15, 9, dtype=F64)
    return problem, X, 0.8 * torch.randn(15, 3, dtype=F64)


def test_micro_batches_change_nothing_but_rounding():
    found = []
    for count in (1, 4):
        problem, X, Y = network(act.Tanh())
        settings = GramSweep(step_size=0.1, nudge=3.0, micro_batches=count)
        solvers.run(problem, (X, Y), settings, epochs=4, batch_size=7)
        found.append(torch.cat([p.detach().flatten() for p in problem.model.parameters()]))
    torch.testing.assert_close(*found, rtol=1e-10, atol=1e-10)


def test_a_flatten_before_the_layer_is_a_reshape():
    settings = GramSweep()
    results = []
    for flat in (False, True):
        torch.manual_seed(4)
        layers = [nn.Linear(6, 5), nn.ReLU(), nn.Linear(5, 2)]
        problem = lb.lift(nn.Sequential(*([] if flat else [nn.Flatten()]), *layers).double(), loss=lb.SquaredError())
        X, Y = torch.randn(7, 2, 3, dtype=F64), torch.randn(7, 2, dtype=F64)
        batch = solvers.Batch.whole(problem, X.flatten(1) if flat else X, Y, torch.arange(1.0, 8.0))
        state = settings.init(problem, batch)
        for _ in range(3):
            state = settings.step(problem, state, batch)
        results.append([p.detach() for p in problem.model.parameters()])
    assert all(torch.equal(a, b) for a, b in zip(*results, strict=True))


# Signals


def signals(monkeypatch, problem, X, Y, **settings):
    """E_1 .. E_L of one step, in which nothing moves."""
    found = []

    def spy(self, f, memory, x, E, samples, **rest):
        found.insert(0, E.clone())

    monkeypatch.setattr(Moves, "dense", spy)
    solver, batch = GramSweep(**settings), solvers.Batch.whole(problem, X, Y)
    solver.step(problem, solver.init(problem, batch), batch)
    monkeypatch.undo()
    return found


def slopes(problem, X, Y):
    """dF/dz_l of s times the nested objective, by autograd through the user's modules."""
    z = X
    collected = []
    for layer in problem.network:
        z = torch.nn.functional.linear(z, layer.map.module.weight, layer.map.module.bias)
        z.retain_grad()
        collected.append(z)
        z = layer.activation.as_module()(z)
    (0.5 * (z - Y).square().sum()).backward()
    return [c.grad for c in collected]


@pytest.mark.parametrize(
    "sigma", [act.Tanh(), act.Sigmoid(), act.Softplus(), act.Softmax(), act.Asinh()], ids=cases.name
)
def test_small_nudges_give_back_propagation(monkeypatch, sigma):
    """E_l = dF/dz_l + O(ν): a tenth of ν, a tenth of the difference, in every hidden layer."""
    away = []
    for nu in (1e-3, 1e-4):
        problem, X, Y = network(sigma)
        expected = slopes(problem, X, Y)
        found = signals(monkeypatch, problem, X, Y, nudge=nu)
        torch.testing.assert_close(found[2], expected[2], rtol=0, atol=1e-13)
        away.append([float((a - b).norm() / b.norm()) for a, b in zip(found[:2], expected[:2], strict=True)])
    for large, small in zip(*away, strict=True):
        assert 1e-9 < small < 1e-3 and large / small == pytest.approx(10.0, rel=0.02)


@pytest.mark.parametrize(("nu", "lam"), [(0.4, 1.7), (0.2, 0.6)])
def test_the_nudged_variable_minimises_the_lifted_energy(monkeypatch, nu, lam):
    """x⁺ = argmin (λ/ν) B(x, z) + α|x| + x p by brute force on a grid, for ReLU: B = ½x² + ½max(z, 0)² - xz, x >= 0."""
    torch.manual_seed(5)
    model = nn.Sequential(nn.Linear(4, 3), nn.ReLU(), nn.Linear(3, 2)).double()
    problem = lb.lift(model, loss=lb.SquaredError(), weights=lam, penalties={1: lb.penalties.L1(0.2)})
    X, Y = 3.0 * torch.randn(6, 4, dtype=F64), torch.randn(6, 2, dtype=F64)
    with torch.no_grad():
        z = model[0](X)
        p = (model(X) - Y) @ model[2].weight
        grid = torch.linspace(0.0, 12.0, 120_001, dtype=F64)
        costs = (lam / nu) * (0.5 * grid**2 - grid * z[..., None]) + 0.2 * grid + grid * p[..., None]
        best = grid[costs.argmin(-1)]
        E = (lam / nu) * (z.clamp(min=0.0) - best)
    (found, _) = signals(monkeypatch, problem, X, Y, penalised_nudge=nu)
    assert 0.2 < float((best > 0).double().mean()) < 0.9
    torch.testing.assert_close(found, E, rtol=0, atol=lam / nu * 6e-5)


def test_a_nudge_never_moves_a_sample_by_more_than_three_tenths_of_its_norm(monkeypatch):
    problem, X, Y = network(act.Identity())
    huge, larger = (signals(monkeypatch, *network(act.Identity()), nudge=nu)[1] for nu in (1e6, 1e9))
    assert torch.equal(huge, larger)
    with torch.no_grad():
        z = problem.model[:3](X)
        p = (problem.model(X) - Y) @ problem.model[4].weight
        nu = 0.3 * z.norm(dim=1, keepdim=True) / p.norm(dim=1, keepdim=True)
        torch.testing.assert_close(huge, (torch.tanh(z) - torch.tanh(z - nu * p)) / nu, rtol=1e-12, atol=1e-12)


def test_a_signal_depends_on_no_other_sample(monkeypatch):
    """Whatever is in the batch, for a nudge that is limited for every sample."""
    together = signals(monkeypatch, *network(act.ReLU()), nudge=30.0)
    _, X, Y = network(act.ReLU())
    for i in range(len(X)):
        problem, _, _ = network(act.ReLU())
        alone = signals(monkeypatch, problem, X[i : i + 1], Y[i : i + 1], nudge=30.0)
        for E, of_all in zip(alone, together, strict=True):
            torch.testing.assert_close(E[0], of_all[i], rtol=1e-12, atol=1e-14)


def test_no_activation_is_differentiated():
    for settings in (GramSweep(), GramSweep(damping=0.1, micro_batches=2)):
        problem, X, Y = network(act.Tanh())
        with lb.forbid_activation_derivatives():
            result = solvers.run(problem, (X, Y), settings, epochs=30, batch_size=7)
        assert result.history[-1]["objective"] < result.history[0]["objective"]


# Samples' weights


@pytest.mark.parametrize("name", ["relu", "smooth", "sparse code", "classes", "joint", "frozen and bias-free"])
def test_whole_weights_are_duplicated_samples(name):
    """In weight space.  12 samples of weights w_i and mean 1 have the AᵀA/m and AᵀE/m of 24 duplicates."""
    counts = torch.tensor([1, 2, 3, 3, 1, 2, 2, 3, 1, 3, 2, 1])
    rows = torch.arange(12).repeat_interleave(counts)
    case, twin, without = make(name), make(name), make(name)
    solver = GramSweep(step_size=0.1)
    ours = solvers.Batch.whole(case.problem, *case.data, weights=5.0 * counts)
    copies = solvers.Batch.whole(twin.problem, case.X[rows], case.Y[rows])
    plain = solvers.Batch.whole(without.problem, *without.data)
    for problem, batch in ((case, ours), (twin, copies), (without, plain)):
        state = solver.init(problem.problem, batch)
        for _ in range(5):
            state = solver.step(problem.problem, state, batch)
    apart = 0.0
    triples = zip(*(c.problem.model.parameters() for c in (case, twin, without)), strict=True)
    for p, q, r in triples:
        torch.testing.assert_close(p.detach(), q.detach(), rtol=1e-9, atol=1e-9)
        apart = max(apart, float((p - r).detach().abs().max()))
    assert apart > 1e-3


# Maps that are not dense, and penalties on parameters


@pytest.mark.parametrize(
    ("before", "conv", "size"),
    [
        ([], nn.Conv2d(2, 3, 3, padding=1), (5, 5)),
        ([], nn.Conv2d(4, 6, 2, stride=2, groups=2, bias=False), (6, 6)),
        ([], nn.Conv1d(30, 4, 3), (3,)),  # 91 columns and 6 patches
        ([nn.Conv2d(4, 4, 1), nn.ReLU(), nn.MaxPool2d(2)], nn.Conv2d(4, 3, 2), (8, 8)),
    ],
    ids=["images", "groups", "few patches", "after pooling"],
)
def test_a_convolution_moves_in_the_metric_of_its_patches(before, conv, size, monkeypatch):
    """By NumPy: the first move is G/|G| with G = g (AᵀA/m + tI)⁻¹, g by autograd and A by unfolding; without P_E."""
    monkeypatch.setattr(rule, "WIDEST_SIGNALS", 0)
    torch.manual_seed(6)
    model = nn.Sequential(*before, conv, nn.Tanh(), nn.Flatten(), nn.LazyLinear(2)).double()
    X, Y = torch.randn(6, conv.in_channels, *size, dtype=F64), torch.randn(6, 2, dtype=F64)
    model(X)
    problem = lb.lift(model, loss=lb.SquaredError())
    batch = solvers.Batch.whole(problem, X, Y)
    nested_objective(problem, batch.X, batch.Y).backward()
    parts = [conv.weight.grad.flatten(1)] + ([conv.bias.grad[:, None]] if conv.bias is not None else [])
    g = torch.cat(parts, 1).numpy()
    given = nn.Sequential(*before)(X).detach()
    images = given if len(size) == 2 else given[..., None]
    kernel, stride, padding = ((*k, 1)[:2] for k in (conv.kernel_size, conv.stride, conv.padding))
    padding = padding if len(size) == 2 else (0, 0)
    A = torch.nn.functional.unfold(images, kernel, stride=stride, padding=padding).transpose(1, 2).flatten(0, 1)
    A = A.unflatten(1, (conv.groups, -1)).transpose(0, 1)  # (groups, m, n)
    if conv.bias is not None:
        A = torch.cat([A, torch.ones(*A.shape[:2], 1, dtype=F64)], 2)
    expected = []
    for rows, slopes in zip(A.numpy(), np.split(g, conv.groups), strict=True):
        K = rows.T @ rows / len(rows)
        t = np.trace(K) / len(K)
        K += 3.0 * t * np.eye(len(K))
        expected.append(t * np.linalg.solve(K, slopes.T).T)
    delta = np.concatenate(expected)
    delta = delta / (np.abs(delta) + 1e-3 * np.sqrt((delta**2).mean()))
    start = [p.detach().clone() for p in conv.parameters()]
    solver = GramSweep(nudge=1e-7, step_size=1e-3, damping=3.0, total_steps=10)
    solver.step(problem, solver.init(problem, batch), batch)
    moved = [old - p.detach() for old, p in zip(start, conv.parameters(), strict=True)]
    found = torch.cat([m.flatten(1) if m.ndim > 1 else m[:, None] for m in moved], 1).numpy()
    weights = sum(any(p.ndim > 1 for p in layer.map.parameters.values()) for layer in problem.network)
    size = float(start[0].square().mean().sqrt())
    length = 1e-3 * math.sqrt(size / (10**0.25 * math.sqrt(delta.shape[1]) * weights))
    np.testing.assert_allclose(found, length * delta, rtol=1e-3, atol=1e-9)


@pytest.mark.parametrize("penalty", [lb.penalties.L1(0.3), lb.penalties.NonNegative()], ids=cases.name)
def test_parameters_with_a_penalty(penalty):
    """Θ ← prox_{tP}(Θ - η M̂/√V̂), with one V for the layer, by hand over five steps; the bias has no penalty."""
    torch.manual_seed(8)
    model = nn.Sequential(nn.Linear(5, 4)).double()
    problem = lb.lift(model, loss=lb.SquaredError(), parameter_penalties={1: penalty})
    X, Y = torch.randn(9, 5, dtype=F64), torch.randn(9, 4, dtype=F64)
    batch = solvers.Batch.whole(problem, X, Y)
    solver = GramSweep(step_size=0.3, total_steps=40, epochs=40)
    state = solver.init(problem, batch)
    theta = torch.cat((model[0].weight, model[0].bias[:, None]), 1).detach().clone()
    M, V, A = torch.zeros_like(theta), 0.0, torch.cat([X, torch.ones(9, 1, dtype=F64)], 1)
    for k in range(1, 6):
        g = (A @ theta.T - Y).T @ A / 9
        M, V = 0.9 * M + 0.1 * g, 0.95 * V + 0.05 * float(g.square().mean())
        # The rate is in its first 2 of 40 steps that of the warm-up.
        s = min(1.0, k / 2.0) * (1.0 - max(0.0, k - 2.0) / 38.0) ** 1.5
        size = max(float(theta[:, :-1].square().mean().sqrt()), 0.1 / math.sqrt(5.0))
        eta = s * 0.3 * math.sqrt(size / (40**0.25 * math.sqrt(5.0)))
        eta *= math.sqrt(1.0 - 0.95**k) / (1.0 - 0.9**k)
        root = 1.001 * math.sqrt(V) + 1e-12
        theta = theta - eta * M / root
        t, W = eta * (1.0 - 0.9**k) / root, theta[:, :-1]
        soft = W.sign() * (W.abs() - 0.3 * t).clamp(min=0.0)
        theta[:, :-1] = soft if isinstance(penalty, lb.penalties.L1) else W.clamp(min=0.0)
        state = solver.step(problem, state, batch)
        torch.testing.assert_close(model[0].weight.detach(), theta[:, :-1], **TIGHT)
        torch.testing.assert_close(model[0].bias.detach(), theta[:, -1], **TIGHT)
    assert bool((theta[:, :-1] == 0.0).any())


def test_work_is_counted():
    """Three layers: three maps up, two adjoints down, and 3 + 2 activations."""
    case = make("relu")
    batch = solvers.Batch.whole(case.problem, *case.data)
    solver = GramSweep()
    solver.step(case.problem, solver.init(case.problem, batch), batch)
    work = case.problem.work
    assert (work.forward_maps, work.adjoints, work.parameter_gradients, work.prox_maps) == (3, 2, 3, 5)
