"""`GramSweep`: every step is that of an oracle with full linear systems; signals, weights, other maps, penalties.

`test_gram_moves.py` has the moves of single layers, `test_gram_sweep_faults.py` faults and refusals.
"""

from __future__ import annotations

import dataclasses
import math

import numpy as np
import pytest
import torch
from torch import nn

import lifted_bregman as lb
from lifted_bregman import activations as act
from lifted_bregman import solvers
from lifted_bregman.problem.nested import nested_objective
from lifted_bregman.solvers.gram import sweep
from tests import cases
from tests.sampling import pairwise
from tests.solvers.gram_oracle import F64, TIGHT, Oracle, assert_follows, linears, packed, relu, soft
from tests.solvers.problems import make

GramSweep = solvers.GramSweep


def network(sigma: act.Activation, seed=0):
    """Inputs 9, 7 and 4; the second hidden activation is Tanh."""
    torch.manual_seed(seed)
    model = nn.Sequential(
        nn.Linear(9, 7), sigma.as_module(), nn.Linear(7, 4), nn.Tanh(), nn.Linear(4, 3)
    ).double()  # fmt: skip
    problem = lb.lift(model, loss=lb.SquaredError(), weights=[0.7, 1.6])
    X = 0.3 + torch.randn(15, 9, dtype=F64)
    return problem, X, 0.8 * torch.randn(15, 3, dtype=F64)


SETTINGS = [
    GramSweep(step_size=0.02, narrow_damping=0.3),
    GramSweep(step_size=0.3, block=4, average=0.6, power=0.5),
    GramSweep(step_size=0.02, block=2, inner_steps=3, average=0.0, damping=0.7),
    GramSweep(step_size=0.1, block=5, inner_steps=2, average=0.8, power=0.0, nudge=3.0),
    GramSweep(step_size=0.02, damping=math.inf, trust=0.02),
]


@pytest.mark.parametrize(("sigma", "settings"), pairwise(cases.ACTIVATIONS, SETTINGS), ids=cases.name)
def test_every_step_is_the_oracles(sigma, settings):
    problem, X, Y = network(sigma)
    oracle = Oracle(settings, linears(problem), [sigma, torch.tanh, lambda z: z], [0.7, 1.6])
    assert_follows(settings, problem, X, Y, oracle)


@pytest.mark.parametrize(
    ("name", "by_hand"),
    [
        (act.Identity(), lambda z: z),
        (act.ReLU(), relu),
        (act.SoftThreshold(0.5), soft(0.5)),
        (act.NonNegativeSoftThreshold(0.3), lambda z: relu(z - 0.3)),
    ],
    ids=["identity", "relu", "soft threshold", "shifted relu"],
)
def test_every_step_with_activations_by_hand(name, by_hand):
    for settings in SETTINGS:
        problem, X, Y = network(name)
        assert_follows(
            settings, problem, X, Y, Oracle(settings, linears(problem), [by_hand, torch.tanh, lambda z: z], [0.7, 1.6])
        )


@pytest.mark.parametrize("trust", [0.001, 0.006, 100.0])
@pytest.mark.parametrize("settings", SETTINGS[:3], ids=cases.name)
def test_the_trust_limit(settings, trust):
    """Binding at every move, at some of them, and never."""
    settings = dataclasses.replace(settings, trust=trust, step_size=0.005)
    problem, X, Y = network(act.ReLU())
    oracle = Oracle(settings, linears(problem), [relu, torch.tanh, lambda z: z], [0.7, 1.6])
    assert_follows(settings, problem, X, Y, oracle)
    share = sum(oracle.limited) / len(oracle.limited)
    assert {0.001: share == 1.0, 0.006: 0.0 < share < 1.0, 100.0: share == 0.0}[trust], share


@pytest.mark.parametrize("count", [2, 3, 100])
@pytest.mark.parametrize("settings", SETTINGS, ids=cases.name)
def test_micro_batches_are_the_batch_in_parts(settings, count):
    """Where ν is so large that it is limited, by another factor in each sample; 100 are as many as samples."""
    settings = dataclasses.replace(settings, nudge=30.0, micro_batches=count)
    problem, X, Y = network(act.ReLU())
    oracle = Oracle(settings, linears(problem), [relu, torch.tanh, lambda z: z], [0.7, 1.6])
    assert_follows(settings, problem, X, Y, oracle)
    assert any(oracle.shortened)


def test_micro_batches_change_nothing_but_rounding():
    found = []
    for count in (1, 4):
        problem, X, Y = network(act.Tanh())
        settings = GramSweep(step_size=0.02, nudge=3.0, inner_steps=2, micro_batches=count)
        solvers.run(problem, (X, Y), settings, epochs=4, batch_size=7)
        found.append(torch.cat([p.detach().flatten() for p in problem.model.parameters()]))
    torch.testing.assert_close(*found, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("average", [0.0, 0.9])
def test_the_distance_is_looked_at_more_rarely_as_steps_go_on(average):
    """70 steps, the oracle looking at the steps that are written out there; it grows a hundredfold meanwhile."""
    settings = GramSweep(step_size=1e-3, average=average)
    problem, X, Y = network(act.ReLU())
    oracle = Oracle(settings, linears(problem), [relu, torch.tanh, lambda z: z], [0.7, 1.6])
    assert_follows(settings, problem, X, Y, oracle, batches=[(k % 8, k % 8 + 7) for k in range(70)])
    assert oracle.distance > 0.1


@pytest.mark.parametrize("settings", SETTINGS, ids=cases.name)
def test_a_sparse_code_with_a_penalty(settings):
    """x_2⁺ = S_{ν 0.05}(S_{0.05}(v)): two thresholds, of the activation and of the penalty, add up."""
    case = make("sparse code", samples=15)

    def prox(v, nudge):
        return soft(0.05 + 0.05 * nudge)(v)

    maps = [relu, soft(0.05), lambda z: z]
    oracle = Oracle(settings, linears(case.problem), maps, [1.0, 1.0], {2: prox})
    assert_follows(settings, case.problem, *case.data, oracle)


@pytest.mark.parametrize("loss", ["tanh", "softmax"])
def test_the_top_layer_has_the_activation_of_the_loss(loss):
    torch.manual_seed(1)
    model = nn.Sequential(nn.Linear(6, 5), nn.ReLU(), nn.Linear(5, 3)).double()
    X = torch.randn(15, 6, dtype=F64)
    if loss == "tanh":
        problem, top = lb.lift(model, loss=lb.BregmanLoss(act.Tanh())), torch.tanh
        Y = torch.tanh(torch.randn(15, 3, dtype=F64))
    else:
        problem, top = lb.lift(model, loss=lb.CrossEntropy()), lambda z: torch.softmax(z, -1)
        Y = torch.randint(0, 3, (15,))
    for settings in SETTINGS[1:4]:
        assert_follows(settings, problem, X, Y, Oracle(settings, linears(problem), [relu, top], [1.0]))


@pytest.mark.parametrize("settings", SETTINGS, ids=cases.name)
@pytest.mark.parametrize("kind", ["bias-free", "frozen weight", "frozen bias", "frozen layer", "one layer"])
def test_what_is_trained_of_a_layer(kind, settings):
    torch.manual_seed(2)
    first, second = nn.Linear(6, 5, bias=kind != "bias-free"), nn.Linear(5, 3)
    if kind in ("frozen weight", "frozen layer"):
        first.weight.requires_grad_(False)
    if kind in ("frozen bias", "frozen layer"):
        first.bias.requires_grad_(False)
    model = nn.Sequential(nn.Linear(6, 3)) if kind == "one layer" else nn.Sequential(first, nn.ReLU(), second)
    problem = lb.lift(model.double(), loss=lb.SquaredError())
    frozen = {name: p.clone() for name, p in model.named_parameters() if not p.requires_grad}
    X, Y = torch.randn(15, 6, dtype=F64), torch.randn(15, 3, dtype=F64)
    maps = [lambda z: z] if kind == "one layer" else [relu, lambda z: z]
    oracle = Oracle(settings, linears(problem), maps, [1.0] * (len(maps) - 1))
    assert_follows(settings, problem, X, Y, oracle)
    assert all(torch.equal(model.get_parameter(name), value) for name, value in frozen.items())


@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("settings", SETTINGS, ids=cases.name)
def test_sequences_and_weighted_samples(settings, weighted):
    """Inputs (s, 3, 6): each of the 3s rows is a sample of the layer, with the weight of its sequence."""
    torch.manual_seed(3)
    model = nn.Sequential(nn.Linear(6, 5), nn.ReLU(), nn.Linear(5, 2)).double()
    problem = lb.lift(model, loss=lb.SquaredError())
    X, Y = torch.randn(15, 3, 6, dtype=F64), torch.randn(15, 3, 2, dtype=F64)
    weights = torch.rand(15, dtype=F64).mul(3.0).exp() if weighted else None
    assert_follows(settings, problem, X, Y, Oracle(settings, linears(problem), [relu, lambda z: z], [1.0]), weights)


def test_a_flatten_before_the_layer_is_a_reshape():
    settings = SETTINGS[1]
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
    """E_1 .. E_L of one step."""
    found, real = [], sweep.weight_move

    def spy(rows, E, *rest):
        found.insert(0, E.clone())
        return real(rows, E, *rest)

    monkeypatch.setattr(sweep, "weight_move", spy)
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


def test_infinite_damping_and_a_small_nudge_move_along_the_gradient():
    """Each unit's row of V moves against its own row of autograd's gradient of the nested objective."""
    problem, X, Y = network(act.Tanh())
    X, Y = problem.prepare(X, Y)
    before = [packed(module, {}) for module in linears(problem)]
    nested_objective(problem, X, Y).backward()
    slope = [torch.cat([module.weight.grad, module.bias.grad[:, None]], 1) for module in linears(problem)]
    solver, batch = GramSweep(damping=math.inf, nudge=1e-6, average=0.0), solvers.Batch.whole(problem, X, Y)
    solver.step(problem, solver.init(problem, batch), batch)
    for module, old, g in zip(linears(problem), before, slope, strict=True):
        move = packed(module, {}) - old
        cosine = torch.nn.functional.cosine_similarity(move, g, dim=1)
        torch.testing.assert_close(cosine, -torch.ones_like(cosine), rtol=0, atol=1e-9)


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
    for settings in (GramSweep(), GramSweep(inner_steps=3, block=2), GramSweep(damping=math.inf)):
        problem, X, Y = network(act.Tanh())
        with lb.forbid_activation_derivatives():
            result = solvers.run(problem, (X, Y), settings, epochs=30, batch_size=7)
        assert result.history[-1]["objective"] < result.history[0]["objective"]


# Samples' weights


@pytest.mark.parametrize("name", ["relu", "smooth", "sparse code", "classes", "joint", "frozen and bias-free"])
@pytest.mark.parametrize("inner_steps", [1, 3])
def test_whole_weights_are_duplicated_samples(name, inner_steps):
    """In weight space.  12 samples of weights w_i and mean 1 have the AᵀA/m and AᵀE/m of 24 duplicates."""
    counts = torch.tensor([1, 2, 3, 3, 1, 2, 2, 3, 1, 3, 2, 1])
    rows = torch.arange(12).repeat_interleave(counts)
    case, twin, without = make(name), make(name), make(name)
    solver = GramSweep(step_size=0.02, inner_steps=inner_steps)
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


def test_a_convolution_without_the_metric_moves_along_its_gradient():
    """By autograd: at the first step each row of each parameter by η in root mean square."""
    torch.manual_seed(6)
    model = nn.Sequential(nn.Conv2d(2, 3, 3), nn.Tanh(), nn.Flatten(), nn.Linear(27, 2)).double()
    problem = lb.lift(model, loss=lb.SquaredError())
    X, Y = torch.randn(6, 2, 5, 5, dtype=F64), torch.randn(6, 2, dtype=F64)
    w = torch.rand(6, dtype=F64) + 0.2
    batch = solvers.Batch.whole(problem, X, Y, w)
    nested_objective(problem, batch.X, batch.Y, weights=batch.weights).backward()
    conv = model[0]
    before, slope = conv.weight.detach().clone(), conv.weight.grad.clone()
    bias_before, bias_slope = conv.bias.detach().clone(), conv.bias.grad.clone()
    solver = GramSweep(nudge=1e-6, step_size=1e-3, trust=1e6, damping=math.inf)
    solver.step(problem, solver.init(problem, batch), batch)
    length = 1e-3 / math.sqrt(18.0)  # of 2 x 3 x 3 inputs
    rms = slope.square().mean((1, 2, 3), keepdim=True).sqrt()
    torch.testing.assert_close(before - conv.weight.detach(), length * slope / rms, rtol=1e-5, atol=1e-9)
    torch.testing.assert_close(bias_before - conv.bias.detach(), length * bias_slope.sign(), rtol=1e-5, atol=1e-9)


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
def test_a_convolution_moves_in_the_metric_of_its_patches(before, conv, size):
    """By NumPy: unit j moves along g_j (AᵀA/m + tI)⁻¹, g by autograd and A by unfolding, η in root mean square."""
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
        K += 3.0 * np.trace(K) / len(K) * np.eye(len(K))
        expected.append(np.linalg.solve(K, slopes.T).T)
    delta = np.concatenate(expected)
    start = [p.detach().clone() for p in conv.parameters()]
    solver = GramSweep(nudge=1e-7, step_size=1e-3, trust=1e6, average=0.0, narrow_damping=3.0)
    solver.step(problem, solver.init(problem, batch), batch)
    moved = [old - p.detach() for old, p in zip(start, conv.parameters(), strict=True)]
    found = torch.cat([m.flatten(1) if m.ndim > 1 else m[:, None] for m in moved], 1).numpy()
    inputs = conv.weight[0].numel()
    length = 1e-3 / math.sqrt(inputs) / np.sqrt((delta**2).mean(1, keepdims=True))
    np.testing.assert_allclose(found, length * delta, rtol=1e-4, atol=1e-9)


def test_the_trust_limit_of_a_gradient_move_is_that_of_the_parameters():
    """The change of V has κ times the root mean square of Θ plus r_0/√n, over weight and bias together."""
    torch.manual_seed(7)
    model = nn.Sequential(nn.Conv1d(2, 3, 3), nn.ReLU(), nn.Flatten(), nn.Linear(9, 2)).double()
    problem = lb.lift(model, loss=lb.SquaredError())
    batch = solvers.Batch.whole(problem, torch.randn(6, 2, 5, dtype=F64), torch.randn(6, 2, dtype=F64))
    before = torch.cat([p.detach().flatten() for p in model[0].parameters()])
    solver = GramSweep(step_size=0.5, trust=0.05, average=0.0, damping=math.inf)
    solver.step(problem, solver.init(problem, batch), batch)
    move = torch.cat([p.detach().flatten() for p in model[0].parameters()]) - before
    size = float(before.square().mean().sqrt()) + 0.5 / math.sqrt(6.0)
    assert float(move.square().mean().sqrt()) == pytest.approx(0.05 * size, rel=1e-10)


@pytest.mark.parametrize("average", [0.0, 0.7])
@pytest.mark.parametrize("penalty", [lb.penalties.L1(0.3), lb.penalties.NonNegative()], ids=cases.name)
def test_parameters_with_a_penalty(penalty, average):
    """V ← prox_{tP}(V - tg), with one t for the layer, by hand over five steps; the bias has no penalty."""
    torch.manual_seed(8)
    model = nn.Sequential(nn.Linear(5, 4)).double()
    problem = lb.lift(model, loss=lb.SquaredError(), parameter_penalties={1: penalty})
    X, Y = torch.randn(9, 5, dtype=F64), torch.randn(9, 4, dtype=F64)
    batch = solvers.Batch.whole(problem, X, Y)
    solver = GramSweep(step_size=0.3, average=average, trust=100.0)
    state = solver.init(problem, batch)
    theta = packed(model[0], {})
    start, fast, mean, s, distance = theta.clone(), theta.clone(), theta.clone(), 0.0, 0.3
    A = torch.cat([X, torch.ones(9, 1, dtype=F64)], 1)
    for k in range(1, 6):
        g = (A @ theta.T - Y).T @ A / 9
        s += float(g.square().mean())
        distance = max(distance, float((fast - start).square().sum() / 4.0) ** 0.5)
        t = distance / math.sqrt(5.0 * s)
        fast = fast - t * g
        W = fast[:, :-1]
        fast[:, :-1] = soft(0.3 * t)(W) if isinstance(penalty, lb.penalties.L1) else relu(W)
        c = 3.0 / (k + 2.0)
        mean = (1.0 - c) * mean + c * fast
        theta = (1.0 - average) * fast + average * mean
        state = solver.step(problem, state, batch)
        torch.testing.assert_close(packed(model[0], {}), theta, **TIGHT)
        V = model[0].weight.detach() if average == 0.0 else state.fast[1]["weight"]
        if isinstance(penalty, lb.penalties.L1):
            assert torch.equal(V == 0.0, fast[:, :-1] == 0.0) and bool((V == 0.0).any())
        else:
            assert bool((model[0].weight >= 0.0).all()) and bool((V >= 0.0).all())


def test_work_is_counted():
    """Three layers: three maps up, two adjoints down, and 3 + 2 activations, one more per layer and inner step."""
    case = make("relu")
    batch = solvers.Batch.whole(case.problem, *case.data)
    solver = GramSweep(inner_steps=3)
    solver.step(case.problem, solver.init(case.problem, batch), batch)
    work = case.problem.work
    assert (work.forward_maps, work.adjoints, work.parameter_gradients, work.prox_maps) == (3, 2, 3, 5 + 2 * 3)
