"""The paper's structural claims: what is affine and what is not, mean consistency, the limit of large weights, and
training without derivatives of activations.
"""

from __future__ import annotations

import numpy as np
import pytest
import torch
from sklearn.datasets import load_digits
from torch import nn

import lifted_bregman as lb
from lifted_bregman import errors, solvers
from lifted_bregman.problem.gradient_agreement import gradient_agreement
from lifted_bregman.solvers import Batch, baselines
from tests.solvers.problems import make

F64 = torch.float64


def digits(samples, pooled=False):
    """Centred digits (the mean image of the whole set taken off) and their labels."""
    data = load_digits()
    images = torch.from_numpy(data.images) / 16.0
    X = (images.view(-1, 4, 2, 4, 2).mean((2, 4)) if pooled else images).flatten(1)
    return (X - X.mean(0))[:samples], torch.from_numpy(data.target)[:samples]


# Classical lifted networks are affine, lifted Bregman networks are not (Tables 1 and 2)


def relu_classifier():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 20), nn.ReLU(), nn.Linear(20, 10)).double()
    for module in model[::2]:
        nn.init.xavier_uniform_(module.weight)
        nn.init.zeros_(module.bias)
    return model


def test_classical_lifted_training_gives_an_affine_network_and_lifted_bregman_training_does_not():
    X, y = digits(400)
    one_hot = np.eye(10)[y.numpy()]
    A = np.column_stack([X.numpy(), np.ones(len(X))])
    fitted = A @ np.linalg.lstsq(A, one_hot, rcond=None)[0]
    best_affine = 0.5 * ((fitted - one_hot) ** 2).sum(1).mean()  # no affine network can be below

    linear, objective, beyond_affine = {}, {}, {}
    for name, solver, steps in (
        ("classical", baselines.ClassicalLifted(), 400),
        ("Bregman", solvers.ProximalGradient(), 200),
    ):
        model = relu_classifier()
        problem = lb.lift(model, loss=lb.SquaredError())
        before = problem.linear_units(X)
        assert all(units.pairs < 60.0 for units in before)
        solvers.run(problem, (X, y), solver, epochs=steps, record_every=steps)
        linear[name] = [units.pairs for units in problem.linear_units(X)]
        objective[name] = float(problem.objective(X, y))
        with torch.no_grad():
            output, affine = model(X), model[4](model[2](model[0](X)))
        beyond_affine[name] = float((output - affine).norm() / output.norm())

    assert min(linear["classical"]) > 99.0
    assert beyond_affine["classical"] < 0.05
    assert best_affine < objective["classical"] < 1.1 * best_affine
    assert max(linear["Bregman"]) < 90.0
    assert beyond_affine["Bregman"] > 0.5
    assert objective["Bregman"] < 0.6 * best_affine


# At a stationary point the bias equation forces mean consistency


def test_stationary_points_are_consistent_in_the_mean_and_not_sample_by_sample():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(16, 5), nn.ReLU(), nn.Linear(5, 4), nn.Tanh(), nn.Linear(4, 10)).double()
    X, y = digits(100, pooled=True)
    # Without a penalty on the weights the infimum is not attained: x_l -> 0 with growing W_{l+1} lowers the couplings.
    decay = {layer: lb.penalties.SquaredL2(0.01) for layer in (1, 2, 3)}
    problem = lb.lift(model, loss=lb.SquaredError(), weights=[1.5, 0.7], parameter_penalties=decay)
    solver = solvers.ProximalGradient(acceleration=solvers.Anderson(10), monotone=True)
    result = solvers.run(problem, (X, y), solver, epochs=1500, tolerance=1e-7, record_every=50)
    assert result.outcome is solvers.Outcome.CONVERGED
    x1, x2 = result.state.variables
    with torch.no_grad():
        gaps = [
            model[0](X).clamp(min=0.0) - x1,
            model[2](x1).tanh() - x2,
            model[4](x2) - nn.functional.one_hot(y, 10),
        ]
    for d in gaps:
        assert float(d.mean(0).abs().max()) < 2e-7
        assert float(d.square().mean().sqrt()) > 1e-2  # each sample alone is not consistent: the mean is what is forced
    # and ∇_W E = 0 balances the penalty: X_{l-1}ᵀ d_l λ_l / s + 0.01 W_l = 0
    for d, below, linear, weight in zip(gaps, (X, x1, x2), model[::2], (1.5, 0.7, 1.0), strict=True):
        equation = weight * d.T @ below / len(X) + 0.01 * linear.weight.detach()
        assert float(equation.abs().max()) < 2e-7


# As all hidden λ grow the lifted gradient tends to the back-propagated one, with error O(1/λ)


def smooth_network():
    torch.manual_seed(1)
    model = nn.Sequential(
        nn.Linear(5, 7), nn.Tanh(), nn.Linear(7, 4), nn.Softplus(), nn.Linear(4, 6), nn.Tanh(), nn.Linear(6, 3)
    ).double()
    return model, torch.randn(15, 5, dtype=F64), torch.randn(15, 3, dtype=F64)


def back_propagated(model, X, Y):
    """Signals ∂ℓ/∂z_l of each sample, and gradients of the mean loss by layer, in plain torch."""
    zs, x = [], X
    for index, module in enumerate(model):
        x = module(x)
        if index % 2 == 0:
            zs.append(x)
    loss = 0.5 * (x - Y).square().sum(1)
    signals = torch.autograd.grad(loss.sum(), zs, retain_graph=True)
    linears = model[::2]
    gradients = [torch.autograd.grad(loss.mean(), list(m.parameters()), retain_graph=True) for m in linears]
    return signals, [torch.cat([g.flatten() for g in parts]) for parts in gradients]


def lifted_signals(model, variables, X, Y, weights):
    """λ_l(σ_l(z_l) - x_l), in plain torch."""
    inputs, targets = [X, *variables], [*variables, Y]
    signals = []
    with torch.no_grad():
        for layer, weight in enumerate([*weights, 1.0]):
            z = model[2 * layer](inputs[layer])
            u = model[2 * layer + 1](z) if layer < 3 else z
            signals.append(weight * (u - targets[layer]))
    return signals


def slope(weights, errors_):
    return float(np.polyfit(np.log(weights), np.log(errors_), 1)[0])


def test_the_lifted_signal_tends_to_the_back_propagated_one_at_rate_one():
    model, X, Y = smooth_network()
    problem = lb.lift(model, loss=lb.SquaredError())
    expected, gradients = back_propagated(model, X, Y)
    weights = [1e2, 3e2, 1e3, 3e3, 1e4]
    in_signal, in_gradient = [], []
    for weight in weights:
        found = gradient_agreement(problem, X, Y, weight=weight)
        signals = lifted_signals(model, found.variables, X, Y, [weight] * 3)
        in_signal.append([float((s - e).norm() / e.norm()) for s, e in zip(signals, expected, strict=True)])
        lifted = []
        for layer, s in enumerate(signals):
            below = [X, *found.variables][layer]
            lifted.append(torch.cat([(s.T @ below / len(X)).flatten(), s.mean(0)]))
        by_hand = [float((g - b).norm() / b.norm()) for g, b in zip(lifted, gradients, strict=True)]
        cosines = [float(g @ b / (g.norm() * b.norm())) for g, b in zip(lifted, gradients, strict=True)]
        assert found.relative_errors == pytest.approx(by_hand, rel=1e-6)
        assert found.cosines == pytest.approx(cosines, abs=1e-12)
        in_gradient.append(found.relative_errors)
    for errors_ in (in_signal, in_gradient):
        for of_layer in zip(*errors_, strict=True):
            assert slope(weights, of_layer) == pytest.approx(-1.0, abs=0.1)
            assert of_layer[-1] < 1e-3


def test_growing_one_weight_alone_does_not():
    model, X, Y = smooth_network()
    problems = [lb.lift(model, loss=lb.SquaredError(), weights=[weight, 1.0, 1.0]) for weight in (1e2, 1e4)]
    some, more = (gradient_agreement(problem, X, Y) for problem in problems)
    assert min(some.relative_errors + more.relative_errors) > 1e-2


def test_agreement_is_read_at_the_minimiser_over_the_variables():
    model, X, Y = smooth_network()
    penalties = {2: lb.penalties.SquaredL2(0.1)}
    problem = lb.lift(model, loss=lb.SquaredError(), weights=[2.0, 0.5, 1.5], penalties=penalties)
    before = [p.detach().clone() for p in model.parameters()]
    found = gradient_agreement(problem, X, Y)
    assert found.change <= 1e-10
    assert max(problem.certificates(found.variables, X, Y).variables) < 1e-9
    assert all(torch.equal(p, q) for p, q in zip(before, model.parameters(), strict=True))
    on_weights = {1: lb.penalties.SquaredL2(0.5)}
    decayed = lb.lift(
        model, loss=lb.SquaredError(), weights=[2.0, 0.5, 1.5], penalties=penalties, parameter_penalties=on_weights
    )
    assert gradient_agreement(decayed, X, Y).cosines == found.cosines  # both gradients leave P out
    few = gradient_agreement(problem, X, Y, sweeps=2)
    assert few.sweeps == 2 and few.change > 1e-6
    assert float(problem.energy(few.variables, X, Y)) > float(problem.energy(found.variables, X, Y))


def test_agreement_in_float32():
    model, X, Y = smooth_network()
    found = gradient_agreement(lb.lift(model.float(), loss=lb.SquaredError()), X.float(), Y.float(), weight=30.0)
    assert found.sweeps < 1000 and min(found.cosines) > 0.99


def test_agreement_is_exact_without_hidden_layers_and_refuses_what_it_cannot_compare():
    torch.manual_seed(0)
    X, Y = torch.randn(6, 3, dtype=F64), torch.randn(6, 2, dtype=F64)
    found = gradient_agreement(lb.lift(nn.Sequential(nn.Linear(3, 2)).double(), loss=lb.SquaredError()), X, Y)
    assert found.cosines == pytest.approx((1.0,)) and found.relative_errors[0] < 1e-14
    model = nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 2)).double()
    with pytest.raises(errors.CompatibilityError, match="constraint"):
        constrained = lb.lift(model, loss=lb.SquaredError(), penalties={1: lb.penalties.Bounds(0.0, 1.0)})
        gradient_agreement(constrained, X, Y)
    with pytest.raises(errors.SettingError, match="sweeps"):
        gradient_agreement(lb.lift(model, loss=lb.SquaredError()), X, Y, sweeps=0)


# No derivative of an activation


LIFTED = [
    (solvers.ProximalGradient(), "joint"),
    (baselines.ClassicalLifted(), "relu"),
    (baselines.FenchelLifted(), "smooth"),
    (baselines.LPOM(), "sparse code"),
]
DIFFERENTIATING = [
    baselines.GradientDescent(0.1),
    baselines.SGD(0.1),
    baselines.Adam(),
    baselines.ImplicitBackprop(1.0, 2, 0.1),
    baselines.MACQP(),
]


@pytest.mark.parametrize(("solver", "name"), LIFTED, ids=[type(solver).__name__ for solver, _ in LIFTED])
def test_lifted_solvers_train_without_derivatives_of_activations(solver, name):
    case = make(name)
    with lb.forbid_activation_derivatives():
        result = solvers.run(case.problem, case.data, solver, epochs=5)
    assert result.history[-1]["energy"] < result.history[0]["energy"]


@pytest.mark.parametrize("name", ["relu", "smooth", "joint"])
@pytest.mark.parametrize("solver", DIFFERENTIATING, ids=lambda solver: type(solver).__name__)
def test_differentiating_baselines_raise_where_derivatives_are_forbidden(solver, name):
    case = make(name)
    batch = Batch.whole(case.problem, *case.data)
    before = [p.detach().clone() for p in case.problem.model.parameters()]
    with lb.forbid_activation_derivatives():
        state = solver.init(case.problem, batch)
        with pytest.raises(errors.ActivationDerivativeError):
            solver.step(case.problem, state, batch)
    assert all(torch.equal(p, q) for p, q in zip(before, case.problem.model.parameters(), strict=True))
    solver.step(case.problem, state, batch)  # outside it works
