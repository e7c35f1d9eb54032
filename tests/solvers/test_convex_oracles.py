"""One layer is a convex problem: every solver must find the minimum that scikit-learn and SciPy find.

E = mean over samples of the loss + penalty on the weight, not on the bias.  Data are not centred, so that a bias that
is penalised or forgotten shows.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache

import numpy as np
import pytest
import torch
from scipy.linalg import solve
from scipy.optimize import minimize
from sklearn.linear_model import Lasso, LogisticRegression, Ridge
from torch import nn

import lifted_bregman as lb
from lifted_bregman import penalties, solvers
from lifted_bregman.activations import ReLU
from lifted_bregman.problem.blocks import ParameterBlock
from lifted_bregman.solvers.admm import ADMM
from lifted_bregman.solvers.coordinate_descent import BregmanCoordinateDescent, CoordinateDescent
from tests.sampling import over

SAMPLES, INPUTS, OUTPUTS = 40, 5, 3


@dataclass(frozen=True)
class Oracle:
    """Data, a minimiser found elsewhere, and its energy written out here."""

    X: np.ndarray
    Y: np.ndarray
    loss: lb.BregmanLoss
    penalty: penalties.Penalty
    W: np.ndarray  # (out, in)
    b: np.ndarray
    energy: float

    def problem(self, seed=3):
        torch.manual_seed(seed)
        model = nn.Sequential(nn.Linear(INPUTS, OUTPUTS)).double()
        return lb.lift(model, loss=self.loss, parameter_penalties={1: self.penalty})

    @property
    def data(self):
        return torch.tensor(self.X), torch.tensor(self.Y)


def inputs():
    return np.random.default_rng(0).normal(size=(SAMPLES, INPUTS)) + np.array([0.4, -0.3, 0.2, 0.0, 0.5])


def targets(noise=0.4):
    rng = np.random.default_rng(1)
    return (
        inputs() @ rng.normal(size=(INPUTS, OUTPUTS))
        + rng.normal(size=OUTPUTS)
        + noise * rng.normal(size=(SAMPLES, OUTPUTS))
    )


def squared_error(W, b):
    return 0.5 * np.square(targets() - inputs() @ W.T - b).sum(1).mean()


@cache
def ridge():
    alpha = 0.3
    X, Y = inputs(), targets()
    fit = Ridge(alpha=SAMPLES * alpha, solver="cholesky").fit(
        X, Y
    )  # scikit-learn: sum over samples, without the halves
    W, b = fit.coef_, fit.intercept_
    value = squared_error(W, b) + 0.5 * alpha * np.square(W).sum()
    return Oracle(X, Y, lb.SquaredError(), penalties.SquaredL2(alpha), W, b, value)


@cache
def lasso():
    alpha = 0.4
    X, Y = inputs(), targets()
    fit = Lasso(alpha=alpha, tol=1e-15, max_iter=100_000).fit(X, Y)
    W, b = fit.coef_, fit.intercept_
    assert 0 < (W == 0).sum() < W.size
    return Oracle(X, Y, lb.SquaredError(), penalties.L1(alpha), W, b, squared_error(W, b) + alpha * np.abs(W).sum())


@cache
def logistic():
    alpha = 0.1
    X, labels = inputs(), targets(noise=2.0).argmax(1)
    assert set(labels) == {0, 1, 2}
    fit = LogisticRegression(C=1.0 / (alpha * SAMPLES), tol=1e-12, solver="newton-cg", max_iter=1000).fit(X, labels)
    W, b = fit.coef_, fit.intercept_
    z = X @ W.T + b
    loss = np.log(np.exp(z).sum(1)) - z[np.arange(SAMPLES), labels]
    value = loss.mean() + 0.5 * alpha * np.square(W).sum()
    return Oracle(X, labels, lb.CrossEntropy(), penalties.SquaredL2(alpha), W, b, value)


@cache
def relu():
    """min mean [ ½ max(z, 0)² - <y, z> + ½ y² ] + ½α‖W‖², y >= 0, by SciPy."""
    alpha = 0.1
    X, Y = inputs(), np.maximum(targets(), 0.0)
    assert 0.2 < (Y == 0).mean() < 0.8

    def value(theta):
        W, b = theta[: INPUTS * OUTPUTS].reshape(OUTPUTS, INPUTS), theta[INPUTS * OUTPUTS :]
        z = X @ W.T + b
        d = (np.maximum(z, 0.0) - Y) / SAMPLES
        terms = 0.5 * np.maximum(z, 0.0) ** 2 - Y * z + 0.5 * Y**2
        gradient = np.concatenate([(d.T @ X + alpha * W).ravel(), d.sum(0)])
        return terms.sum(1).mean() + 0.5 * alpha * np.square(W).sum(), gradient

    start = np.zeros((INPUTS + 1) * OUTPUTS)
    fit = minimize(value, start, jac=True, method="L-BFGS-B", options={"ftol": 0.0, "gtol": 1e-11, "maxiter": 10_000})
    W, b = fit.x[: INPUTS * OUTPUTS].reshape(OUTPUTS, INPUTS), fit.x[INPUTS * OUTPUTS :]
    return Oracle(X, Y, lb.BregmanLoss(ReLU()), penalties.SquaredL2(alpha), W, b, value(fit.x)[0])


ORACLES = {"ridge": ridge, "lasso": lasso, "logistic": logistic, "relu": relu}


def test_scipy_agrees_with_the_lasso_of_scikit_learn():
    """W = P - N with P, N >= 0 makes the lasso smooth with bounds."""
    oracle, size = lasso(), INPUTS * OUTPUTS

    def value(theta):
        P, N = theta[:size].reshape(OUTPUTS, INPUTS), theta[size : 2 * size].reshape(OUTPUTS, INPUTS)
        b = theta[2 * size :]
        d = (oracle.X @ (P - N).T + b - oracle.Y) / SAMPLES
        slope = (d.T @ oracle.X).ravel()
        alpha = oracle.penalty.weight
        gradient = np.concatenate([slope + alpha, alpha - slope, d.sum(0)])
        return squared_error(P - N, b) + alpha * (P + N).sum(), gradient

    bounds = [(0.0, None)] * (2 * size) + [(None, None)] * OUTPUTS
    options = {"ftol": 0.0, "gtol": 1e-10, "maxiter": 20_000, "maxfun": 50_000}
    fit = minimize(value, np.zeros(2 * size + OUTPUTS), jac=True, method="L-BFGS-B", bounds=bounds, options=options)
    assert fit.fun == pytest.approx(oracle.energy, abs=1e-8)


def test_scipy_agrees_with_the_ridge_of_scikit_learn():
    oracle = ridge()
    A = np.hstack([oracle.X, np.ones((SAMPLES, 1))])
    damping = np.diag([SAMPLES * oracle.penalty.weight] * INPUTS + [0.0])
    theta = solve(A.T @ A + damping, A.T @ oracle.Y, assume_a="pos")
    np.testing.assert_allclose(theta[:-1].T, oracle.W, atol=1e-10)
    np.testing.assert_allclose(theta[-1], oracle.b, atol=1e-10)


def safe_step():
    """1/L with L = ‖[X 1]‖²/s, by NumPy."""
    A = np.hstack([inputs(), np.ones((SAMPLES, 1))])
    return SAMPLES / np.linalg.norm(A, 2) ** 2


PG = solvers.ProximalGradient
UNIT = solvers.CurvatureStep(factor=1.0)
GRADIENT = {
    "Jacobi": PG(sweep=solvers.Jacobi()),
    "TopDown": PG(sweep=solvers.TopDown()),
    "BottomUp": PG(sweep=solvers.BottomUp()),
    "OddEven": PG(sweep=solvers.OddEven()),
    "Permutation": PG(sweep=solvers.Permutation((ParameterBlock(1),))),
    "smooth quadratic": PG(smooth_quadratic=True),
    "estimated curvature": PG(step_rule=solvers.CurvatureStep(factor=1.5, upper=False)),
    "fixed step": PG(step_rule=solvers.FixedStep(parameter=safe_step(), variable=1.0)),
    "backtracking": PG(step_rule=solvers.Backtracking()),
    "Nesterov": PG(step_rule=UNIT, acceleration=solvers.Nesterov()),
    "Nesterov without restart": PG(step_rule=UNIT, acceleration=solvers.Nesterov(restart_on_increase=False)),
    "monotone Nesterov": PG(step_rule=UNIT, acceleration=solvers.Nesterov(), monotone=True),
    "heavy ball": PG(step_rule=UNIT, acceleration=solvers.HeavyBall(0.5)),
    "Anderson": PG(step_rule=UNIT, acceleration=solvers.Anderson(5)),
    "explicit coordinate descent": BregmanCoordinateDescent(),
}
EXACT = {
    "coordinate descent": CoordinateDescent(tolerance=1e-11, block_iterations=20_000),
    "coordinate descent, TopDown": CoordinateDescent(sweep=solvers.TopDown(), tolerance=1e-11, block_iterations=20_000),
    "proximal coordinate descent": CoordinateDescent(tolerance=1e-12, block_iterations=20_000, prox_weight=0.05),
    "ADMM": ADMM(inner_steps=5000, tolerance=1e-11),
    "ADMM, fixed coupling": ADMM(inner_steps=5000, tolerance=1e-11, coupling=0.4, balancing=None),
    "ADMM, proximal": ADMM(inner_steps=5000, tolerance=1e-11, prox_weight=0.1),
    "ADMM, not guarded": ADMM(inner_steps=300, monotone=False),
}


def train(oracle, solver, most, every=20):
    """Steps until the certificate is 1e-8, at most `most`."""
    problem = oracle.problem()
    solver.require(problem)
    batch = solvers.Batch.whole(problem, *oracle.data)
    state = solver.init(problem, batch)
    for step in range(1, most + 1):
        state = solver.step(problem, state, batch)
        if step % every == 0 and problem.certificates(state.variables, *oracle.data).largest <= 1e-8:
            break
    return problem, state


def check(oracle, problem, state):
    found = problem.energy(state.variables, *oracle.data)
    assert float(found) == pytest.approx(oracle.energy, abs=1e-8)
    assert float(found) >= oracle.energy - 1e-11  # the oracle is the minimum
    (layer,) = problem.model
    np.testing.assert_allclose(layer.weight.detach().numpy(), oracle.W, atol=1e-6)
    b, expected = layer.bias.detach().numpy(), oracle.b
    if isinstance(oracle.loss, lb.CrossEntropy):  # softmax does not see a constant
        b, expected = b - b.mean(), expected - expected.mean()
    np.testing.assert_allclose(b, expected, atol=1e-6)


@over(str, 2, method=GRADIENT, name=ORACLES)
def test_gradient_methods_reach_the_minimum_of_the_oracle(name, method):
    oracle = ORACLES[name]()
    check(oracle, *train(oracle, GRADIENT[method], 1000))


@pytest.mark.parametrize("solver", EXACT.values(), ids=EXACT)
@pytest.mark.parametrize("name", ORACLES)
def test_block_methods_reach_the_minimum_of_the_oracle(name, solver):
    """There is a single block: one step is enough, unless a proximal term or a limit on iterations holds it back."""
    oracle = ORACLES[name]()
    held_back = (isinstance(solver, CoordinateDescent) and solver.prox_weight > 0.0) or solver.tolerance == 0.0
    problem, state = train(oracle, solver, 60 if held_back else 1, every=1)
    check(oracle, problem, state)
    if name == "lasso":  # zeros are exact
        np.testing.assert_array_equal(problem.model[0].weight.detach().numpy() == 0.0, oracle.W == 0.0)
