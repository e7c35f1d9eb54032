"""The zeros that penalties make of weights survive the average around which `GramSweep` moves."""

from __future__ import annotations

import numpy as np
import torch
from sklearn.linear_model import Lasso
from torch import nn

import lifted_bregman as lb
from lifted_bregman.penalties import L1, GroupL2, Nuclear
from tests.sampling import over

F64 = torch.float64


def test_the_zeros_of_one_layer_are_those_of_the_lasso():
    """With one layer and squared error the problem is convex, with one minimiser: scikit-learn knows it."""
    torch.manual_seed(0)
    X, noise = torch.randn(80, 12, dtype=F64), 0.3 * torch.randn(80, 3, dtype=F64)
    Y = X[:, :3] @ torch.randn(3, 3, dtype=F64) + noise
    model = nn.Sequential(nn.Linear(12, 3)).double()
    lb.fit(lb.lift(model, loss=lb.SquaredError(), parameter_penalties={1: L1(0.2)}), (X, Y), epochs=2000)
    expected = np.stack([Lasso(0.2, tol=1e-12, max_iter=100_000).fit(X.numpy(), y).coef_ for y in Y.numpy().T])
    found = model[0].weight.detach().numpy()
    np.testing.assert_array_equal(found == 0.0, expected == 0.0)
    np.testing.assert_allclose(found, expected, rtol=0, atol=1e-3)
    assert 0 < np.count_nonzero(expected) < expected.size


@over(str, penalty=[L1(0.03), GroupL2(0.1), Nuclear(0.1)], batch_size=[None, 20])
def test_the_zeros_of_the_end_cost_little(penalty, batch_size):
    """They are about as many as proximal gradient steps make, and the objective is below that of those."""
    torch.manual_seed(0)
    X = torch.randn(200, 20)
    Y = X[:, :2] @ torch.randn(2, 3) + 0.3 * torch.randn(200, 3)

    def trained(**settings):
        torch.manual_seed(1)
        model = nn.Sequential(nn.Linear(20, 16), nn.ReLU(), nn.Linear(16, 3))
        problem = lb.lift(model, loss=lb.SquaredError(), parameter_penalties={1: penalty})
        result = lb.fit(problem, (X, Y), **settings)
        return model, result, float(problem.objective(X, Y))

    model, result, objective = trained(epochs=30 if batch_size else 100, batch_size=batch_size)
    _, _, by_steps = trained(solver=lb.ProximalGradient(), epochs=100)
    assert objective <= 1.03 * result.history[-1]["objective"] and objective <= by_steps
    W = model[0].weight.detach()
    if isinstance(penalty, Nuclear):
        assert int(torch.linalg.matrix_rank(W, rtol=1e-6)) <= 4
    elif isinstance(penalty, L1):
        assert float((W == 0.0).double().mean()) > 0.5
    else:
        small = lb.prune(model)
        assert small[0].out_features <= 8
        torch.testing.assert_close(small(X), model(X), rtol=1e-4, atol=1e-5)
