"""`GramSweep` against its slow reference, and its parts against closed forms."""

import math
from dataclasses import replace

import pytest
import torch
from torch import nn
from torch.nn import functional as F

import lifted_bregman as lb
from lifted_bregman.errors import SettingError
from lifted_bregman.solvers import Batch
from lifted_bregman.solvers.gram import moves, rule
from lifted_bregman.solvers.gram.reference import Reference, ReferenceLayer

F64 = torch.float64


def chain(seed: int = 0) -> nn.Sequential:
    torch.manual_seed(seed)
    layers = (nn.Linear(5, 9), nn.ReLU(), nn.Linear(9, 4), nn.Tanh(), nn.Linear(4, 6), nn.Sigmoid(), nn.Linear(6, 3))
    return nn.Sequential(*layers).double()


def data(samples: int = 40):
    generator = torch.Generator().manual_seed(1)
    X = torch.randn(samples, 5, generator=generator, dtype=F64)
    return X, torch.randn(samples, 3, generator=generator, dtype=F64)


def packed(model: nn.Sequential) -> list[torch.Tensor]:
    return [torch.cat((f.weight, f.bias[:, None]), 1).detach().clone() for f in model if isinstance(f, nn.Linear)]


def reference_of(model: nn.Sequential, total: int, **settings) -> Reference:
    sigma = [f.forward for f in model if not isinstance(f, nn.Linear)] + [lambda z: z]
    return Reference([ReferenceLayer(t, s) for t, s in zip(packed(model), sigma, strict=True)], total, **settings)


CASES = {
    "narrow": {},
    "wide from 5 inputs": {"inputs": 4},
    "wide, in blocks": {"inputs": 5, "signals": 4, "block": 3},
    "other settings": {
        "step_size": 0.7,
        "nudge": 0.05,
        "damping": 3.0,
        "weight_decay": 0.5,
        "epochs": 6.0,
    },
    "default decay": {"epochs": 3.0},
    "moves that nothing limits": {"step_size": 0.1},
    "decay of few batches an epoch": {"epochs": 20.0},
    "a nudge that z limits": {"nudge": 50.0},
}


@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("name", CASES)
def test_every_step_is_that_of_the_reference(name, weighted, monkeypatch):
    settings = CASES[name]
    monkeypatch.setattr(rule, "WIDEST_INPUTS", settings.get("inputs", 256))
    monkeypatch.setattr(rule, "WIDEST_SIGNALS", settings.get("signals", 128))
    monkeypatch.setattr(moves, "LARGEST_BLOCK", settings.get("block", 256))
    (X, Y), model, steps = data(), chain(), 30
    w = torch.linspace(0.5, 1.5, len(X), dtype=F64) if weighted else None
    expected = reference_of(model, steps, **settings)
    own = {key: value for key, value in settings.items() if key not in ("inputs", "signals", "block")}
    solver, problem = lb.GramSweep(total_steps=steps, **own), lb.lift(model, loss=lb.SquaredError())
    whole = Batch.whole(problem, X, Y, w)
    state = solver.init(problem, whole)
    for k in range(steps):
        first = 7 * k % 30
        state = solver.step(problem, state, whole.slice(first, first + 10))
        expected.step(X[first : first + 10], Y[first : first + 10], None if w is None else w[first : first + 10])
        for ours, layer in zip(packed(model), expected.layers, strict=True):
            torch.testing.assert_close(ours, layer.theta, rtol=1e-9, atol=1e-10)
    assert int(state.fallbacks) == 0


def test_the_metric_inverts_the_damped_gram_matrix_and_is_the_identity_for_multiples_of_it():
    B = torch.randn(7, 4, generator=torch.Generator().manual_seed(0), dtype=F64)
    R, tau = B.T @ B, 0.3
    (P,), (failed,) = rule.metrics([R], [tau])
    t = R.trace() / 4
    torch.testing.assert_close((R + tau * t * torch.eye(4, dtype=F64)) @ P, t * (1 + tau) * torch.eye(4, dtype=F64))
    assert not failed
    (P,), _ = rule.metrics([5.0 * torch.eye(3, dtype=F64)], [tau])
    torch.testing.assert_close(P, torch.eye(3, dtype=F64))


def test_the_schedule_rises_to_1_and_ends_at_0():
    K = 200
    values = [rule.schedule(k, K) for k in range(1, K + 1)]
    assert values[9] == 1.0 == max(values)
    assert values[4] == 0.5
    assert values[-1] == pytest.approx(0.0, abs=1e-12)
    assert values[9 + 95] == pytest.approx(0.5**1.5)
    assert values[10:] == sorted(values[10:], reverse=True)
    assert rule.schedule(1, 1) <= 1.0


def test_without_an_end_the_rate_decays_like_one_over_the_root_of_the_steps():
    assert rule.rate(40, 800, 9, 2.0) == pytest.approx(2.0 / math.sqrt(800**0.25 * 9))
    assert rule.rate(40, 800, 90, 2.0) == rule.rate(40, 800, 20, 2.0)
    assert rule.rate(50, None, 1, 2.0) == pytest.approx(2.0 / 400**0.125)
    assert rule.rate(40_000, None, 4, 2.0) == pytest.approx(rule.rate(400, None, 4, 2.0) / 10.0)


def test_the_decay_of_a_run_adds_up_to_the_setting_and_ends_with_the_rate():
    decays = [rule.decay(k, 1000, 5.0, 0.1, layers=3) for k in range(1, 1001)]
    # s has the mean 0.05/2 + 0.95/2.5
    assert sum(decays) == pytest.approx(2.0 * 0.405 * 0.1 * math.sqrt(5.0), rel=0.01)
    assert decays[-1] == pytest.approx(0.0, abs=1e-12)
    lengths = ((math.inf, 5.0), (None, 5.0), (1000, None))
    assert [rule.decay(4000, total, epochs, 0.1, layers=3) for total, epochs in lengths] == [0.0, 0.0, 0.0]
    # One or two layers decay as three do, and thirty together as three
    shared = [rule.decay(100, 1000, 5.0, 0.1, layers=layers) / decays[99] for layers in (0, 1, 3, 30)]
    assert shared == pytest.approx([1.0, 1.0, 1.0, 0.1])
    # One batch an epoch decays a quarter as much as four
    one, four = (rule.decay(50, 100, epochs, 0.1, layers=3) / math.sqrt(epochs) for epochs in (100.0, 25.0))
    assert one == pytest.approx(four / 4.0)


def test_large_targets_are_learned_as_well_as_small_ones():
    """Residuals of a root mean square of 2000 scale the output layer's steps, those below 2 do not."""
    nothing = rule.target_scale(torch.tensor(1.9))
    large = rule.target_scale(torch.tensor(2000.0))
    assert float(nothing) == 1.0 and float(large) == pytest.approx(1000.0)
    X = torch.randn(400, 3, generator=torch.Generator().manual_seed(0))
    left = []
    for unit in (1.0, 1e4):
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(3, 32), nn.ReLU(), nn.Linear(32, 1))
        y = unit * (X[:, :1] + torch.sin(2.0 * X[:, 1:2]))
        lb.fit(lb.lift(model, loss=lb.SquaredError()), (X, y), epochs=40, batch_size=50)
        with torch.no_grad():
            left.append(float((model(X) - y).square().mean() / y.var()))
    assert max(left) < 0.1


@pytest.mark.parametrize("activation", [nn.ReLU, nn.Tanh])
def test_the_unit_of_large_targets_does_not_matter(activation):
    """Targets and output weights in a unit 100 times smaller: the same moves below, and 100 times larger ones there."""
    X = torch.randn(200, 3, generator=torch.Generator().manual_seed(0), dtype=F64)
    found = []
    for unit in (10.0, 1000.0):
        torch.manual_seed(0)
        model = nn.Sequential(
            nn.Linear(3, 16), activation(), nn.Linear(16, 16), activation(), nn.Linear(16, 1)
        ).double()
        with torch.no_grad():
            for p in model[-1].parameters():
                p.mul_(unit)
        y = unit * (X[:, :1] + torch.sin(2.0 * X[:, 1:2]))
        lb.fit(lb.lift(model, loss=lb.SquaredError()), (X, y), epochs=4, batch_size=50)
        found.append((model, unit))
    (one, unit), (other, larger) = found
    for p, q in zip(one[:-1].parameters(), other[:-1].parameters(), strict=True):
        torch.testing.assert_close(p, q, rtol=1e-4, atol=1e-6)
    for p, q in zip(one[-1].parameters(), other[-1].parameters(), strict=True):
        torch.testing.assert_close(p / unit, q / larger, rtol=1e-4, atol=1e-6)


def test_weights_shrink_and_biases_and_penalised_layers_do_not():
    """Where the signals are 0, decay is all that moves: once in eight steps, by eight times 2 δ √e s(8/K)/K."""
    model = nn.Sequential(nn.Linear(3, 2), nn.ReLU(), nn.Linear(2, 2)).double()
    X = torch.zeros(5, 3, dtype=F64)
    problem = lb.lift(model, loss=lb.SquaredError(), parameter_penalties={2: lb.penalties.L1(1e-30)})
    before = [p.detach().clone() for p in model.parameters()]
    solver, batch = (
        lb.GramSweep(total_steps=40, weight_decay=0.25, epochs=4),
        Batch.whole(problem, X, model(X).detach()),
    )
    state = solver.init(problem, batch)
    for _ in range(8):
        for p, q in zip(before, model.parameters(), strict=True):
            torch.testing.assert_close(q.detach(), p, rtol=1e-12, atol=1e-12)
        state = solver.step(problem, state, batch)
    factors = [1.0 - 8.0 * 2.0 * 0.5 * rule.schedule(8, 40) / 40, 1.0, 1.0, 1.0]
    for p, q, factor in zip(before, model.parameters(), factors, strict=True):
        torch.testing.assert_close(q.detach(), factor * p, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("rows", [3, 5, 20])
def test_few_and_many_rows_have_the_same_direction(rows):
    generator = torch.Generator().manual_seed(0)
    A, E = (torch.randn(rows, n, generator=generator, dtype=F64) for n in (7, 4))
    P_A, P_E = rule.metrics([torch.eye(n, dtype=F64) + torch.ones(n, n, dtype=F64) for n in (7, 4)], [0.5, 0.5])[0]
    memory = {"input_metric": P_A, "signal_metric": P_E}
    G = rule.direction(A, E, memory, rows, lambda *sums: None)
    torch.testing.assert_close(G, P_E @ (E.T @ A / rows) @ P_A)


def test_lengths_are_geometric_means_of_one_over_the_root_of_the_inputs_and_the_size_of_the_weights():
    theta = torch.randn(4, 9, generator=torch.Generator().manual_seed(0), dtype=F64)
    size = float(theta.square().mean().sqrt())
    rho = torch.tensor(50.0, dtype=F64)
    eta = rule.lengths([theta, 4.0 * theta, theta], [9, 9, 9], [2.0, 2.0, 2.0], [1e3, 1e3, 1e3], [None, None, rho])
    assert float(eta[0]) == pytest.approx(2.0 * math.sqrt(size / 3.0))
    assert float(eta[1]) == pytest.approx(2.0 * float(eta[0]))
    # ρ: |Θ| counts as 0.1 ρ/√n at least, and Adam's length is ρ times as long
    assert float(eta[2]) == pytest.approx(2.0 * math.sqrt(50.0 * max(size, 5.0 / 3.0) / 3.0))


def test_a_move_is_at_most_a_share_of_the_weights():
    theta = torch.randn(4, 9, generator=torch.Generator().manual_seed(0), dtype=F64)
    (eta,) = rule.lengths([theta], [9], [1e6], [0.25], [None])
    assert float(eta) == pytest.approx(0.25 * float(theta.square().mean().sqrt()))
    assert rule.limit(10, 200, 4) == 0.25 and rule.limit(10, 200, 400) == pytest.approx(0.5 / math.sqrt(20.0))


def test_a_step_size_ten_times_too_large_does_not_diverge():
    (X, Y), model = data(), chain()
    result = lb.fit(lb.lift(model, loss=lb.SquaredError()), (X, Y), lb.GramSweep(6.0), epochs=40, batch_size=10)
    assert result.history[-1]["objective"] < result.history[0]["objective"]


def test_a_layer_that_begins_at_zero_moves():
    (eta,) = rule.lengths([torch.zeros(4, 8, dtype=F64)], [9], [10.0], [1e3], [None])
    assert float(eta) == pytest.approx(10.0 * math.sqrt(0.1 / 9.0))
    model = chain()
    with torch.no_grad():
        model[-1].weight.zero_()
        model[-1].bias.zero_()
    X, Y = data()
    lb.fit(lb.lift(model, loss=lb.SquaredError()), (X, Y), lb.GramSweep(), epochs=2, batch_size=10)
    assert float(model[-1].weight.detach().abs().min()) > 0.0


def test_a_convolution_moves_in_the_metric_of_its_patches_and_signals():
    torch.manual_seed(0)
    conv, head = nn.Conv2d(2, 3, 2), nn.Linear(12, 4)
    model = nn.Sequential(conv, nn.Tanh(), nn.Flatten(), head).double()
    X, Y = torch.randn(6, 2, 3, 3, dtype=F64), torch.randn(6, 4, dtype=F64)
    problem, before = lb.lift(model, loss=lb.SquaredError()), conv.weight.detach().clone()
    solver, batch = lb.GramSweep(total_steps=10, nudge=1e-7), Batch.whole(problem, X, Y)
    z = conv(X)
    out = head(torch.tanh(z).flatten(1))
    (E,) = torch.autograd.grad(((out - Y) ** 2).sum() / 2, z)
    solver.step(problem, solver.init(problem, batch), batch)
    # Rows of patches with a column of ones, in the order of samples and places
    A = F.unfold(X, 2).transpose(1, 2).reshape(-1, 8)
    A = torch.cat((A, torch.ones(len(A), 1, dtype=F64)), 1)
    E = E.permute(0, 2, 3, 1).reshape(-1, 3)
    P_A, P_E = rule.metrics([A.T @ A / len(A), E.T @ E / len(E)], [0.5, 0.5])[0]
    G = P_E @ (E.T @ A / len(X)) @ P_A
    # In the first step M̂/√V̂ is G/|G|, but for a thousandth of the root mean square beside |G|
    U = G / (G.abs() + 1e-3 * G.square().mean().sqrt())
    moved = (before - conv.weight.detach()).flatten(1)
    torch.testing.assert_close(moved / moved[0, 0], (U / U[0, 0])[:, :-1], rtol=1e-5, atol=1e-8)


def test_a_penalty_on_weights_makes_exact_zeros():
    X, Y = data(60)
    model = chain()
    problem = lb.lift(model, loss=lb.SquaredError(), parameter_penalties={1: lb.penalties.L1(0.004)})
    result = lb.fit(problem, (X, Y), lb.GramSweep(), epochs=40, batch_size=10, seed=0)
    assert result.history[-1]["objective"] < result.history[0]["objective"]
    assert 0 < int((model[0].weight == 0).sum()) < model[0].weight.numel()
    assert int((model[2].weight == 0).sum()) == 0


def test_one_layer_reaches_the_least_squares_solution():
    X, Y = data(60)
    model = nn.Sequential(nn.Linear(5, 3)).double()
    lb.fit(lb.lift(model, loss=lb.SquaredError()), (X, Y), lb.GramSweep(), epochs=300, batch_size=60, seed=0)
    exact = torch.linalg.lstsq(torch.cat((X, torch.ones(60, 1, dtype=F64)), 1), Y).solution
    torch.testing.assert_close(model[0].weight.detach().T, exact[:-1], rtol=1e-3, atol=1e-3)


def test_fit_plans_the_schedule_and_a_longer_run_has_another():
    solver = lb.GramSweep()
    assert solver.planned(50, 2) == replace(solver, total_steps=50, epochs=2)
    assert solver.planned(math.inf, 2) == replace(solver, total_steps=math.inf)
    # 7 of 50 steps in 2 epochs
    assert replace(solver, total_steps=7).planned(50, 2) == replace(solver, total_steps=7, epochs=2 * 7 / 50)
    assert replace(solver, epochs=3).planned(50, 2) == replace(solver, total_steps=50, epochs=3)
    endless = replace(solver, total_steps=math.inf)
    assert endless.planned(50, 2) == endless
    assert rule.rate(5000, math.inf, 4, 2.0) == rule.rate(5000, None, 4, 2.0)


@pytest.mark.parametrize(
    "settings",
    [
        {"step_size": 0.0},
        {"nudge": -1.0},
        {"damping": math.inf},
        {"weight_decay": -1.0},
        {"total_steps": 0},
    ],
)
def test_settings_outside_their_range_are_refused(settings):
    with pytest.raises(SettingError, match=next(iter(settings))):
        lb.GramSweep(**settings)
