"""Sparse networks by LinBreg and AdaBreg on digits and Fashion-MNIST: most weights zero at little loss."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import nn

import lifted_bregman as lb
from lifted_bregman.data import Centre, load
from lifted_bregman.errors import DataError
from lifted_bregman.graph.prune import prune
from lifted_bregman.penalties import L1, GroupL2
from lifted_bregman.solvers import Outcome, run
from lifted_bregman.solvers.adabreg import AdaBreg
from lifted_bregman.solvers.linbreg import LinBreg
from lifted_bregman.solvers.sparsity import TargetSparsity, sparse_start


def digits():
    from sklearn.datasets import load_digits

    images, labels = load_digits(return_X_y=True)
    order = np.random.default_rng(0).permutation(len(images))
    X, y = torch.tensor(images[order] / 16.0, dtype=torch.float32), torch.tensor(labels[order])
    X = X - X[:1300].mean(0)
    return (X[:1300], y[:1300]), (X[1300:], y[1300:])


def classifier(widths, seed):
    torch.manual_seed(seed)
    a, b, c, d = widths
    return nn.Sequential(nn.Linear(a, b), nn.ReLU(), nn.Linear(b, c), nn.ReLU(), nn.Linear(c, d))


def accuracy(model, X, y):
    with torch.no_grad():
        return 100.0 * float((model(X).argmax(1) == y).double().mean())


def zeros(model):
    weights = [p for p in model.parameters() if p.ndim > 1]
    return sum(int((W == 0).sum()) for W in weights) / sum(W.numel() for W in weights)


def trained(solver, data, widths, seed, epochs, batch_size, density=1.0, rows=False):
    model = classifier(widths, seed)
    problem = lb.lift(model, loss=lb.CrossEntropy())
    if density < 1.0:
        sparse_start(problem, density, seed, rows)
    result = run(problem, data, solver, epochs=epochs, batch_size=batch_size, seed=seed, record_every=epochs)
    assert result.outcome is Outcome.FINISHED
    return model


def test_nine_of_ten_weights_are_zero_at_little_loss_of_accuracy_on_digits():
    train, test = digits()
    widths, budget = (64, 128, 64, 10), {"epochs": 30, "batch_size": 32}
    dense_scores, sparse_scores = [], []
    for seed in range(2):
        dense = trained(LinBreg(0.5, momentum=0.9), train, widths, seed, **budget)
        target = TargetSparsity(0.91)
        sparse = trained(LinBreg(0.5, target, momentum=0.9), train, widths, seed, **budget, density=0.02)
        assert zeros(sparse) >= 0.9 and zeros(dense) == 0.0
        dense_scores.append(accuracy(dense, *test))
        sparse_scores.append(accuracy(sparse, *test))
    assert np.mean(dense_scores) > 97.0
    assert np.mean(dense_scores) - np.mean(sparse_scores) < 1.5


def test_a_fixed_weight_and_a_sparse_start_reach_nine_zeros_of_ten():
    train, test = digits()
    sparse = trained(LinBreg(0.5, L1(0.2), momentum=0.9), train, (64, 128, 64, 10), 0, 30, 32, density=0.02)
    assert zeros(sparse) >= 0.9
    assert accuracy(sparse, *test) > 95.0


@pytest.mark.parametrize("solver", [LinBreg, AdaBreg])
@pytest.mark.parametrize("fraction", [0.5, 0.8, 0.95])
def test_a_target_sparsity_is_reached_within_one_point(solver, fraction):
    train, _ = digits()
    settings = {"momentum": 0.9, "step_size": 0.5} if solver is LinBreg else {"step_size": 3e-3}
    for density in (0.1, 1.0):  # from sparser and from denser
        model = trained(
            solver(penalties=TargetSparsity(fraction), **settings), train, (64, 40, 30, 10), 0, 4, 64, density
        )
        assert abs(zeros(model) - fraction) < 0.01


def test_a_run_that_is_too_short_still_ends_on_target():
    train, _ = digits()
    model = trained(LinBreg(0.1, TargetSparsity(0.7, rate=1.0001)), train, (64, 40, 30, 10), 0, 1, 650)
    assert abs(zeros(model) - 0.7) < 0.01


def test_group_sparsity_makes_a_smaller_network():
    train, test = digits()
    target = {1: TargetSparsity(0.75, GroupL2), 2: TargetSparsity(0.5, GroupL2)}
    solver = LinBreg(0.5, target, momentum=0.9)
    model = trained(solver, train, (64, 128, 64, 10), 0, 20, 32, density=0.25, rows=True)
    pruned = prune(model.double())
    assert pruned.report.widths_after[0] <= 33 and pruned.report.widths_after[1] <= 33
    assert pruned.report.parameters_after < 0.3 * pruned.report.parameters_before
    X, y = test[0].double(), test[1]
    with torch.no_grad():
        torch.testing.assert_close(pruned(X), model(X), rtol=0, atol=1e-12)
    assert accuracy(pruned, X, y) > 95.0


@pytest.mark.long
def test_nine_of_ten_weights_are_zero_on_fashion_mnist():
    try:
        fashion = load("fashion-mnist").apply(Centre())
    except DataError as error:
        pytest.skip(str(error))
    train, test = fashion.pairs("classify")
    widths, budget = (784, 400, 100, 10), {"seed": 0, "epochs": 12, "batch_size": 128}
    dense = trained(LinBreg(1.0, momentum=0.9), train, widths, **budget)
    solver = LinBreg(1.0, TargetSparsity(0.91), scale=3.0, momentum=0.9)
    sparse = trained(solver, train, widths, **budget, density=0.02)
    assert zeros(sparse) >= 0.9
    assert accuracy(dense, *test) > 87.0
    assert accuracy(dense, *test) - accuracy(sparse, *test) < 1.5
