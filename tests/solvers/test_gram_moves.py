"""Moves of a dense layer in the metric of its inputs: the same in both spaces, in blocks, and downhill."""

from __future__ import annotations

import math
from itertools import pairwise

import numpy as np
import pytest
import torch
from scipy.optimize import minimize
from torch import nn

import lifted_bregman as lb
from lifted_bregman import activations as act
from lifted_bregman import solvers
from lifted_bregman.maps import Dense
from lifted_bregman.solvers.gram.length import change_size
from lifted_bregman.solvers.gram.move import (
    LowRankMove,
    Metric,
    UnitMove,
    can_stack,
    metrics,
    plain_move,
    sample_move,
    weight_move,
)
from lifted_bregman.solvers.gram.reference import block_move
from lifted_bregman.solvers.gram.rows import Rows, block_size
from tests import cases
from tests.sampling import over
from tests.solvers.gram_oracle import F64, TIGHT, Oracle, assert_follows, linears, relu

TRAINED = ["weight and bias", "weight", "bias"]


def layer(inputs: int, outputs: int, trained: str = "weight and bias") -> Dense:
    module = nn.Linear(inputs, outputs, dtype=F64)
    module.weight.requires_grad_("weight" in trained)
    module.bias.requires_grad_("bias" in trained)
    return Dense(module)


def design(f: Dense, X, weights=None) -> Rows:
    """The rows of a layer's inputs."""
    root = None if weights is None else weights.sqrt()[:, None]
    return Rows.of(X, root, weight="weight" in f.parameters, bias="bias" in f.parameters)


def in_weights(own: Rows, E, damping, left=None, steps=1):
    """The move in weight space for a signal E, whose rows are not multiplied by √w, as `left` has them too."""
    root = 1.0 if own.root is None else own.root
    return weight_move(own, root * E, damping, left and (lambda H: root * left(H / root)), steps)


def in_samples(own: Rows, block, E, damping, left=None, steps=1):
    """The same in sample space."""
    root = 1.0 if own.root is None else own.root
    (metric,) = metrics([own], block, damping)
    return sample_move(own, metric, root * E, left and (lambda H: root * left(H / root)), steps)


def rows(f: Dense, X, weights=None):
    """√w [X 1], or what is trained of it."""
    parts = ([X] if "weight" in f.parameters else []) + (
        [torch.ones(len(X), 1, dtype=F64)] if "bias" in f.parameters else []
    )
    A = torch.cat(parts, 1)
    return A if weights is None else weights.sqrt()[:, None] * A


def delta(f: Dense, move) -> torch.Tensor:
    """Δ as (n, out)."""
    into = {name: torch.zeros_like(p) for name, p in f.parameters.items()}
    move.subtract(into, {"unit": -torch.ones(f.module.out_features, dtype=F64)})
    return torch.cat([into[name].view(len(into[name]), -1) for name in ("weight", "bias") if name in into], 1).T


def sigmoid_left(E, nu=0.7):
    """E(H) of a layer with σ the logistic function: z such that E(0) = E for targets that fit."""
    z = torch.linspace(-2.0, 2.0, E.numel(), dtype=F64).view(E.shape)
    target = torch.sigmoid(z) - nu * E
    return lambda H: (torch.sigmoid(z - nu * H) - target) / nu


def problem(m, n, trained="weight and bias", weighted=False, seed=0):
    torch.manual_seed(seed)
    f = layer(n, 3, trained)
    w = torch.rand(m, dtype=F64) + 0.2 if weighted else None
    return f, 0.5 + torch.randn(m, n, dtype=F64), torch.randn(m, 3, dtype=F64), w


@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("trained", TRAINED)
@pytest.mark.parametrize("steps", [1, 4])
@pytest.mark.parametrize(("m", "n"), [(4, 9), (9, 4), (6, 6), (1, 3), (5, 1)])
def test_both_spaces_make_the_same_move(m, n, steps, trained, weighted):
    """One block of all samples against the whole batch, and both against the system written out."""
    f, X, E, w = problem(m, n, trained, weighted)
    own, left = design(f, X, w), sigmoid_left(E)
    k = own.columns
    of_weights = in_weights(own, E, 0.3, left, steps)
    of_samples = in_samples(own, m, E, 0.3 * m / k, left, steps)  # for the same t
    assert isinstance(of_weights, UnitMove) and isinstance(of_samples, LowRankMove)
    root = 1.0 if w is None else w.sqrt()[:, None]
    A = rows(f, X, w)
    expected, C, t, G = block_move(A, root * E, m, 0.3, lambda H: root * left(H / root), steps, dimension=k)
    torch.testing.assert_close(delta(f, of_weights), expected, **TIGHT)
    # The sizes are the same, and no smaller than the true one after the first step.
    lengths = {"unit": torch.tensor([0.3, 1.0, 2.0], dtype=F64)}
    size = change_size(of_weights.change, lengths)
    assert size == pytest.approx(float((G * lengths["unit"]).square().mean().sqrt()), rel=1e-12)
    assert change_size(of_samples.change, lengths) == pytest.approx(size, rel=1e-12)
    assert float((A @ expected * lengths["unit"]).square().mean().sqrt()) <= size * (1.0 + 1e-12)
    # Mean squares: ‖Δ‖²/n in weight space; in sample space (‖Δ‖² + t‖C‖²/m)/n.
    torch.testing.assert_close(of_weights.squares["unit"], expected.square().sum(0) / k, **TIGHT)
    plain = (expected.square().sum(0) + t * C.square().sum(0) / m) / k
    torch.testing.assert_close(of_samples.squares["unit"], plain, **TIGHT)
    torch.testing.assert_close(delta(f, of_samples), expected, **TIGHT)


@pytest.mark.parametrize("trained", TRAINED)
def test_a_filled_block_and_layers_in_one_call(trained):
    """7 rows in blocks of 3, 3 and 1: three layers of two designs, each as if alone, by blocks solved one by one."""
    group, solo = [], []
    for seed in range(3):
        f, X, E, w = problem(7, 8, trained, weighted=seed == 2, seed=seed)
        own = design(f, X, w)
        (group if seed < 2 else solo).append((f, X, E, w, own))
    assert block_size(7, 8, 3) == 3
    assert can_stack(group[0][-1], 3) == can_stack(group[1][-1], 3) != can_stack(solo[0][-1], 3)
    found = [*metrics([item[-1] for item in group], 3, 0.2), *metrics([solo[0][-1]], 3, 0.2)]
    for (f, X, E, w, own), metric in zip(group + solo, found, strict=True):
        A = rows(f, X, w)
        root = torch.ones(7, 1, dtype=F64) if w is None else w.sqrt()[:, None]
        expected = sum(
            block_move(A[b : b + 3], (root * E)[b : b + 3], 3, 0.2)[0] * 3 / 7 for b in (0, 3, 6)
        )  # fmt: skip
        move = sample_move(own, metric, root * E)
        torch.testing.assert_close(delta(f, move), expected, **TIGHT)
        assert not move.fallback


def test_whole_blocks_are_the_mean_of_separate_batches():
    """8 rows in blocks of 4: Δ is the plain mean of the moves that two workers would make in weight space."""
    f, X, E, _ = problem(8, 9)
    together = delta(f, in_samples(design(f, X), 4, E, 0.2))
    apart = [delta(f, in_weights(design(f, X[part]), E[part], 0.2 * 10 / 4)) for part in (slice(0, 4), slice(4, 8))]
    torch.testing.assert_close(together, (apart[0] + apart[1]) / 2, **TIGHT)
    assert float((apart[0] - apart[1]).norm()) > 0.1


@pytest.mark.parametrize(
    ("samples", "inputs", "block", "expected"),
    [
        (200, 784, 100, 100),
        (20, 784, 100, 20),
        (250, 784, 100, 84),  # three blocks of about the same size
        (200, 120, 100, 50),  # four blocks of at most 60
        (200, 100, 100, 0),
        (7, 2, 1, 1),
        (7, 3, 2, 1),
    ],
)
def test_sizes_of_blocks(samples, inputs, block, expected):
    assert block_size(samples, inputs, block) == expected


@pytest.mark.parametrize("settings", [{"block": 3}, {"block": 5, "inner_steps": 2}, {"block": 3, "average": 0.0}])
def test_layers_of_the_same_size_in_a_network(settings):
    """Inputs 6, 6, 6, 9 and 6, one of them without a bias: steps of the solver against the oracle."""
    torch.manual_seed(0)
    sizes = [(6, 6), (6, 6), (6, 9), (9, 6), (6, 2)]
    modules = [nn.Linear(a, b, bias=(a, b) != (9, 6)) for a, b in sizes]
    model = nn.Sequential(*[part for module in modules for part in (module, nn.ReLU())][:-1]).double()
    lifted = lb.lift(model, loss=lb.SquaredError())
    X, Y = torch.randn(15, 6, dtype=F64), torch.randn(15, 2, dtype=F64)
    solver = solvers.GramSweep(step_size=0.05, **settings)
    oracle = Oracle(solver, linears(lifted), [relu] * 4 + [lambda z: z], [1.0] * 4)
    assert_follows(solver, lifted, X, Y, oracle)


# Inner steps


def implicit(sigma: act.Activation, A, z, target, nu, t):
    """Δ ↦ (1/ν²m) Σ [φ*(z - νAΔ) + <x⁺, νAΔ>] + (t/2)‖Δ‖² and its gradient -AᵀE(AΔ)/m + tΔ."""

    def value(D):
        D = torch.as_tensor(D, dtype=F64).view(A.shape[1], -1)
        u = z - nu * A @ D
        smooth = (sigma.conjugate(u).sum() + (target * (z - u)).sum()) / (nu**2 * len(A))
        gradient = -A.T @ (sigma(u) - target) / (nu * len(A)) + t * D
        return float(smooth + 0.5 * t * D.square().sum()), gradient.numpy().ravel()

    return value


@over(
    cases.name,
    sigma=[a for a in cases.ACTIVATIONS if not isinstance(a, act.FromScalar)],
    space=["samples", "weights"],
)
def test_inner_steps_decrease_the_implicit_problem_to_its_minimum(sigma, space):
    torch.manual_seed(1)
    nu, tau, m = 0.6, 0.3, 6
    f, X = layer(7, 4), 0.4 + torch.randn(m, 7, dtype=F64)
    z = 1.5 * torch.randn(m, 4, dtype=F64)
    target = sigma(z - nu * torch.randn(m, 4, dtype=F64))
    A = rows(f, X)
    t = tau * float(A.square().sum()) / (m * (m if space == "samples" else A.shape[1]))
    value = implicit(sigma, A, z, target, nu, t)
    own, E = design(f, X), (sigma(z) - target) / nu

    def left(H):
        return (sigma(z - nu * H) - target) / nu

    def after(steps):
        move = in_samples(own, m, E, tau, left, steps) if space == "samples" else in_weights(own, E, tau, left, steps)
        return value(delta(f, move))[0]

    values = [value(torch.zeros(8, 4))[0], *(after(k) for k in range(1, 6))]
    assert values[1] < values[0]
    assert all(later <= earlier + 1e-13 * (1.0 + abs(earlier)) for earlier, later in pairwise(values))
    best = minimize(
        value, np.zeros(32), jac=True, method="L-BFGS-B", options={"ftol": 1e-16, "gtol": 1e-10, "maxiter": 5000}
    )
    assert after(800) == pytest.approx(best.fun, abs=1e-10)


@pytest.mark.parametrize("block", [0, 5], ids=["weights", "samples"])
def test_a_linear_layer_is_solved_by_one_step(block):
    """Squared error: Θ - Δ is the ridge solution around Θ, and more steps change nothing."""
    f, X, E, _ = problem(5, 8)
    with torch.no_grad():
        Y = f.apply(X) - E
    own = design(f, X)
    A, start = rows(f, X), torch.cat([f.module.weight.detach(), f.module.bias.detach()[:, None]], 1).T
    t = 0.4 * float(A.square().sum()) / (5 * (5 if block else 9))
    best = torch.linalg.solve(A.T @ A + 5 * t * torch.eye(9, dtype=F64), A.T @ Y + 5 * t * start)
    for steps in (1, 2, 7):
        rest = (E, 0.4, lambda H: E - H, steps)
        move = in_samples(own, block, *rest) if block else in_weights(own, *rest)
        torch.testing.assert_close(start - delta(f, move), best, **TIGHT)


def test_the_limit_of_large_damping_is_the_gradient():
    f, X, E, w = problem(5, 8, weighted=True)
    own = design(f, X, w)
    A = rows(f, X, w)
    plain = plain_move(own, w.sqrt()[:, None] * E)
    gradient = A.T @ (w.sqrt()[:, None] * E) / 5
    torch.testing.assert_close(delta(f, plain), gradient, **TIGHT)
    near = in_weights(own, E, 1e9)
    t = 1e9 * float(A.square().sum()) / (5 * 9)
    torch.testing.assert_close(t * delta(f, near), gradient, rtol=1e-7, atol=1e-7)


def test_the_lengths_of_a_plain_move_are_those_of_orthogonal_rows():
    """With orthogonal rows of one length the mean squares are exact, with equal rows the size."""
    torch.manual_seed(0)
    X = 1.7 * torch.linalg.qr(torch.randn(9, 5, dtype=F64))[0].T
    f, E = layer(9, 3, "weight"), torch.randn(5, 3, dtype=F64)
    move = plain_move(design(f, X), E)
    D = X.T @ E / 5
    torch.testing.assert_close(move.squares["unit"], D.square().mean(0), **TIGHT)
    X, E = X[:1].expand(5, 9), E[:1].expand(5, 3)
    size = change_size(plain_move(design(f, X), E).change, {"unit": torch.ones(3, dtype=F64)})
    assert size == pytest.approx(float((X @ X.T @ E / 5).square().mean().sqrt()), rel=1e-12)


# Guards


def test_a_metric_that_does_not_exist_is_a_multiple_of_the_identity(monkeypatch):
    f, X, E, _ = problem(4, 9)
    own = design(f, X)
    real = torch.linalg.cholesky_ex
    monkeypatch.setattr(torch.linalg, "cholesky_ex", lambda K: (real(K)[0], torch.ones(len(K), dtype=torch.int)))
    (metric,) = metrics([own], 4, 0.3)
    A = rows(f, X)
    trace = float(A.square().sum())
    expected = torch.eye(4, dtype=F64) / (trace / 4 + 0.3 * trace / 16)
    assert metric.fallback
    torch.testing.assert_close(metric.inverse[0], expected, rtol=1e-13, atol=0)
    assert sample_move(own, metric, E).fallback


@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_a_metric_of_numbers_that_are_not_finite(bad):
    _, X, _, _ = problem(4, 9)
    X[2, 3] = bad
    assert metrics([Rows.of(X, bias=False)], 2, 0.3)[0].fallback


@pytest.mark.parametrize("dtype", [torch.float32, F64])
def test_tiny_damping_is_raised_to_the_size_of_rounding(dtype):
    """Duplicates: t is 100 eps b of the mean eigenvalue, so that the Cholesky factor exists."""
    X = torch.ones(40, 90, dtype=dtype)
    (metric,) = metrics([Rows.of(X, bias=False)], 40, 1e-30)
    assert not metric.fallback
    assert float(metric.t) == pytest.approx(90 / 40 * 100 * torch.finfo(dtype).eps * 40, rel=1e-6)


@pytest.mark.parametrize("dtype", [torch.float32, F64])
def test_a_block_of_zeros_moves_nothing(dtype):
    """Neither itself nor the mean squares of the others; a quarter of the move is left by each of four blocks."""
    torch.manual_seed(0)
    X, E = torch.randn(8, 9).to(dtype), torch.randn(8, 3).to(dtype)
    X[2:4] = 0.0
    own = Rows.of(X, bias=False)
    (metric,) = metrics([own], 2, 0.3)
    assert isinstance(metric, Metric) and not metric.fallback
    move = sample_move(own, metric, E)
    expected, along = torch.zeros(9, 3, dtype=F64), torch.zeros(3, dtype=F64)
    for b in (0, 4, 6):
        d, C, _, G = block_move(X[b : b + 2].double(), E[b : b + 2].double(), 2, 0.3)
        expected, along = expected + d / 4, along + (C * G).sum(0)
    tolerance = {"rtol": 1e-4, "atol": 1e-6} if dtype is torch.float32 else TIGHT
    torch.testing.assert_close(move.squares["unit"].double(), along / (8 * 9 * 4), **tolerance)
    into = {"weight": torch.zeros(3, 9, dtype=dtype)}
    move.subtract(into, {"unit": -torch.ones(3, dtype=dtype)})
    torch.testing.assert_close(into["weight"].T.double(), expected, **tolerance)


@pytest.mark.parametrize("damping", [0.3, math.inf])
@pytest.mark.parametrize(("inputs", "block"), [(12, 4), (3, 100)])
def test_the_size_bounds_the_change_of_the_pre_activations(damping, inputs, block):
    """Also for rows that all point the same way, where the plain gradient changes most; equal lengths of all units."""
    torch.manual_seed(5)
    f = layer(inputs, 4)
    for spread in (0.01, 1.0):
        x = torch.ones(9, inputs, dtype=F64) + spread * torch.randn(9, inputs, dtype=F64)
        E = torch.randn(9, 4, dtype=F64) + 1.0
        own, b = design(f, x), block_size(9, inputs, block)
        plain = math.isinf(damping)
        move = plain_move(own, E) if plain else in_samples(own, b, E, damping) if b else in_weights(own, E, damping)
        lengths = {"unit": torch.ones(4, dtype=F64)}
        size = change_size(move.change, lengths)
        into = {"weight": torch.zeros(4, inputs, dtype=F64), "bias": torch.zeros(4, dtype=F64)}
        move.subtract(into, lengths)
        change = x @ into["weight"].T + into["bias"]
        blocks = math.ceil(9 / b) if b and not plain else 1
        assert float(change.square().mean().sqrt()) <= size * math.sqrt(blocks) * (1.0 + 1e-12)
