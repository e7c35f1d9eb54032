"""Fenchel lifted networks and LPOM: their energies by quadrature, steps by hand, least squares, descent."""

from __future__ import annotations

import copy
import math
from itertools import pairwise

import numpy as np
import pytest
import torch
from scipy.integrate import quad
from torch import nn

import lifted_bregman as lb
from lifted_bregman import activations as act
from lifted_bregman.solvers import Batch, baselines
from tests.solvers.baseline_cases import F64, gap
from tests.solvers.problems import NAMES, make


def test_for_relu_the_fenchel_energy_is_the_lifted_energy():
    case = make("relu")
    X, Y = case.data
    torch.manual_seed(5)
    variables = lb.LiftedState([torch.rand(12, 7, dtype=F64), torch.rand(12, 4, dtype=F64)])
    model = case.problem.model

    def b(v, u):  # as printed
        return 0.5 * v.square() + 0.5 * u.clamp(min=0.0).square() - u * v

    with torch.no_grad():
        parts = b(variables[1], model[0](X)).sum(1) + b(variables[2], model[2](variables[1])).sum(1)
        energy = float((parts + 0.5 * (model[4](variables[2]) - Y).square().sum(1)).mean())
    assert float(case.problem.energy(variables, X, Y)) == pytest.approx(energy, rel=1e-12)
    problem = case.problem
    state = baselines.FenchelLifted().init(problem, Batch.whole(problem, X, Y))
    state.variables = variables
    state = baselines.FenchelLifted().step(problem, state, Batch.whole(problem, X, Y))
    assert state.metrics["start_energy"] == pytest.approx(energy, rel=1e-12)


INVERTIBLE = {
    act.Tanh(): math.atanh,
    act.Sigmoid(): lambda x: math.log(x / (1 - x)),
    act.Arctan(): math.tan,
    act.Asinh(): math.sinh,
    act.LeakyReLU(0.3): lambda x: x if x >= 0 else x / 0.3,
    act.Softplus(): lambda x: x + math.log(-math.expm1(-x)),
    act.ELU(0.6): lambda x: x if x >= 0 else math.log1p(x / 0.6),
}


def scalar(activation):
    return lambda t: float(activation(torch.tensor([t], dtype=F64)))


@pytest.mark.parametrize("activation", INVERTIBLE, ids=repr)
def test_fenchels_biconvex_function_is_the_bregman_loss(activation):
    sigma, inverse = scalar(activation), INVERTIBLE[activation]
    for u, v in [(-1.3, sigma(0.4)), (0.8, sigma(-0.6)), (2.1, sigma(2.5))]:
        at_zero = sigma(0.0)
        value = quad(sigma, 0, u)[0] + quad(inverse, at_zero, v)[0] - u * v
        # φ*(0) + φ(σ(0)) = <0, σ(0)> = 0 at the pair (0, σ(0)): the constant is 0.
        bregman = float(lb.bregman_loss(torch.tensor([[v]], dtype=F64), torch.tensor([[u]], dtype=F64), activation))
        assert value == pytest.approx(bregman, abs=1e-8)


@pytest.mark.parametrize("activation", INVERTIBLE, ids=repr)
def test_lpoms_terms_are_the_bregman_loss_up_to_a_constant(activation):
    sigma, inverse = scalar(activation), INVERTIBLE[activation]
    zero = torch.zeros(1, dtype=F64)
    constant = float(activation.potential(zero)) + float(activation.conjugate(zero))  # φ(0) + φ*(0)
    for z, x in [(-1.3, sigma(0.4)), (0.8, sigma(-0.6)), (2.1, sigma(2.5))]:
        f = quad(lambda t: inverse(t) - t, 0, x)[0]
        g = quad(lambda t: sigma(t) - t, 0, z)[0]
        bregman = float(lb.bregman_loss(torch.tensor([[x]], dtype=F64), torch.tensor([[z]], dtype=F64), activation))
        assert f + g + 0.5 * (x - z) ** 2 == pytest.approx(bregman - constant, abs=1e-8)


@pytest.mark.parametrize("name", ["relu", "smooth", "classes"])
def test_the_fenchel_energy_never_increases(name):
    case = make(name)
    batch = Batch.whole(case.problem, *case.data)
    solver = baselines.FenchelLifted(inner_steps=3)
    state = solver.init(case.problem, batch)
    values = [float(case.problem.energy(state.variables, *case.data))]
    for _ in range(25):
        state = solver.step(case.problem, state, batch)
        values.append(float(case.problem.energy(state.variables, *case.data)))
    assert all(after <= before * (1 + 1e-13) for before, after in pairwise(values))
    assert values[-1] < 0.7 * values[0]


@pytest.mark.parametrize("safeguard", [True, False])
def test_lpom_steps_by_hand(safeguard):
    torch.manual_seed(4)
    model = nn.Sequential(nn.Linear(3, 5), nn.Tanh(), nn.Linear(5, 4), nn.Sigmoid(), nn.Linear(4, 2)).double()
    with torch.no_grad():
        for layer in (2, 4):
            model[layer].weight.mul_(0.5)  # contractions: the safeguard has nothing to do
    X, Y = torch.randn(30, 3, dtype=F64), torch.randn(30, 2, dtype=F64)
    penalties = {2: lb.penalties.L1(0.1)}  # prox_{Ψ + 0.1|.|/λ} is σ(. - 0.1/λ) for the sigmoid
    problem = lb.lift(model, loss=lb.SquaredError(), weights=[2.5, 1.5], penalties=penalties)
    solver = baselines.LPOM(safeguard=safeguard)
    batch = Batch.whole(problem, X, Y)
    state = solver.init(problem, batch)
    for _ in range(1 if safeguard else 3):  # after one step W_3 has grown, and the safeguard would act
        twin = copy.deepcopy(model)
        x1, x2 = (x.clone() for x in state.variables)
        state = solver.step(problem, state, batch)
        with torch.no_grad():
            error = twin[4](x2) - Y
            x2 = twin[2](x1).sub(error @ twin[4].weight / 1.5).sub(0.1 / 1.5).sigmoid()
            d = twin[2](x1).sigmoid() - x2
            x1 = twin[0](X).sub(1.5 / 2.5 * d @ twin[2].weight).tanh()
            for linear, below, d in (
                (twin[0], X, twin[0](X).tanh() - x1),
                (twin[2], x1, twin[2](x1).sigmoid() - x2),
                (twin[4], x2, twin[4](x2) - Y),
            ):
                A = np.column_stack([below.numpy(), np.ones(len(X))])
                change = torch.from_numpy(np.linalg.pinv(A) @ d.numpy())
                linear.weight -= change[:-1].T
                linear.bias -= change[-1]
        torch.testing.assert_close(state.variables[1], x1, rtol=1e-9, atol=1e-9)
        torch.testing.assert_close(state.variables[2], x2, rtol=1e-9, atol=1e-9)
        assert gap(model, twin) < 1e-9
        assert state.metrics["fixed_points"] == 1.0


@pytest.mark.parametrize("prox_weight", [0.0, 0.4])
@pytest.mark.parametrize("samples", [20, 3])
def test_lpom_solves_least_squares_in_one_step(samples, prox_weight):
    torch.manual_seed(0)
    X, Y = torch.randn(samples, 4, dtype=F64), torch.randn(samples, 3, dtype=F64)
    model = nn.Sequential(nn.Linear(4, 3)).double()
    problem = lb.lift(model, loss=lb.SquaredError())
    batch, solver = Batch.whole(problem, X, Y), baselines.LPOM(prox_weight=prox_weight)

    def packed():
        return np.column_stack([model[0].weight.detach().numpy(), model[0].bias.detach().numpy()]).T.copy()

    start = packed()
    solver.step(problem, solver.init(problem, batch), batch)
    # min (1/2s)‖AΘ - Y‖² + (τ/2)‖Θ - Θ⁰‖², by least squares on the stacked system; for τ = 0 the nearest solution
    A = np.column_stack([X.numpy(), np.ones(samples)])
    stacked = np.vstack([A / np.sqrt(samples), np.sqrt(prox_weight) * np.eye(5)])
    right = np.vstack([(Y.numpy() - A @ start) / np.sqrt(samples), np.zeros((5, 3))])
    np.testing.assert_allclose(packed(), start + np.linalg.lstsq(stacked, right, rcond=None)[0], rtol=1e-9, atol=1e-10)


@pytest.mark.parametrize("name", [n for n in NAMES if n != "joint"])
def test_guarded_lpom_never_increases_the_energy(name):
    case = make(name)
    batch = Batch.whole(case.problem, *case.data)
    solver = baselines.LPOM(variable_steps=2)
    state = solver.init(case.problem, batch)
    with torch.no_grad():
        for parameter in case.problem.model.parameters():
            parameter.mul_(3.0)  # no contraction: the safeguard is needed
    passed, values = [], [float(case.problem.energy(state.variables, *case.data))]
    for _ in range(25):
        state = solver.step(case.problem, state, batch)
        values.append(float(case.problem.energy(state.variables, *case.data)))
        passed.append(state.metrics["fixed_points"])
    assert all(after <= before * (1 + 1e-12) + 1e-13 for before, after in pairwise(values))
    assert values[-1] < 0.5 * values[0] and min(passed) < 1.0


@pytest.mark.parametrize("prox_weight", [0.0, 0.7])
def test_lpom_takes_sequences(prox_weight):
    """Each place of (samples, places, features) is a row of the least-squares problem, whose mean is over samples."""
    torch.manual_seed(2)
    model = nn.Sequential(nn.Linear(4, 3)).double()
    X, Y = torch.randn(6, 5, 4, dtype=F64), torch.randn(6, 5, 3, dtype=F64)
    start = np.c_[model[0].weight.detach().numpy(), model[0].bias.detach().numpy()]
    lb.fit(lb.lift(model, loss=lb.SquaredError()), (X, Y), solver=baselines.LPOM(prox_weight=prox_weight), epochs=1)
    A = np.c_[X.reshape(-1, 4).numpy(), np.ones(30)]
    system = A.T @ A / 6.0 + prox_weight * np.eye(5)
    expected = np.linalg.solve(system, A.T @ Y.reshape(-1, 3).numpy() / 6.0 + prox_weight * start.T).T
    found = np.c_[model[0].weight.detach().numpy(), model[0].bias.detach().numpy()]
    np.testing.assert_allclose(found, expected, rtol=1e-9, atol=1e-11)

    deep = nn.Sequential(nn.Linear(4, 5), nn.Tanh(), nn.Linear(5, 3)).double()
    history = lb.fit(lb.lift(deep, loss=lb.SquaredError()), (X, Y), solver=baselines.LPOM(), epochs=8).history
    energies = [row["energy"] for row in history]
    assert all(after <= before * (1.0 + 1e-12) for before, after in pairwise(energies))
    assert energies[-1] < energies[0]
