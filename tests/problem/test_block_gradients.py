"""Block gradients of the lifted energy against autograd of the energy written a second time."""

import pytest
import torch
from torch import nn

import lifted_bregman as lb
from lifted_bregman import penalties

from . import oracle
from .networks import CASES, F64, conv_case, dense_case

TIGHT = {"rtol": 1e-11, "atol": 1e-12}


def autograd_parameter_gradients(case):
    energy = sum(term.mean() for term in oracle.sample_terms(case.stages, case.weights, case.xs))
    parameters = [p for p in case.model.parameters() if p.requires_grad]
    return dict(zip(map(id, parameters), torch.autograd.grad(energy, parameters), strict=True))


def autograd_variable_gradients(case, quadratic):
    """s times the gradient of H, whose mean over samples is the smooth part: the gradient of the sum."""
    variables = [x.clone().requires_grad_() for x in case.variables]
    total = oracle.smooth_part(case.stages, case.weights, [case.X, *variables, case.Y], quadratic)
    return torch.autograd.grad(total, variables) if variables else ()


def compare_parameters(case, problem, gradients):
    expected = autograd_parameter_gradients(case)
    seen = []
    for l, layer in enumerate(problem.network, 1):
        assert list(gradients[l]) == list(layer.map.parameters)
        for name, parameter in layer.map.parameters.items():
            torch.testing.assert_close(gradients[l][name], expected[id(parameter)], **TIGHT)
            seen.append(id(parameter))
    assert sorted(seen) == sorted(expected)


@pytest.mark.parametrize("name", CASES)
def test_parameter_gradients(name):
    case = CASES[name]()
    problem = case.problem()
    point = problem.evaluate(case.state(), case.X, case.Y)
    compare_parameters(case, problem, {l: problem.parameter_gradient(point, l) for l in range(1, problem.depth + 1)})


@pytest.mark.parametrize("quadratic", [False, True])
@pytest.mark.parametrize("name", CASES)
def test_variable_gradients(name, quadratic):
    case = CASES[name]()
    problem = case.problem()
    point = problem.evaluate(case.state(), case.X, case.Y)
    for l, expected in enumerate(autograd_variable_gradients(case, quadratic), 1):
        torch.testing.assert_close(problem.variable_gradient(point, l, smooth_quadratic=quadratic), expected, **TIGHT)


@pytest.mark.parametrize("name", CASES)
def test_all_gradients_at_once(name):
    case = CASES[name]()
    problem = case.problem()
    gradients = problem.gradients(problem.evaluate(case.state(), case.X, case.Y), smooth_quadratic=True)
    compare_parameters(case, problem, gradients.parameters)
    expected = dict(enumerate(autograd_variable_gradients(case, True), 1))
    assert gradients.variables.keys() == expected.keys()
    for l, value in expected.items():
        torch.testing.assert_close(gradients.variables[l], value, **TIGHT)


@pytest.mark.parametrize("name", ["dense", "convolutions"])
def test_the_variable_gradient_is_s_times_the_gradient_of_the_librarys_own_smooth_energy(name):
    case = CASES[name]()
    problem = case.problem()
    point = problem.evaluate(case.state(), case.X, case.Y)
    h = 1e-6
    torch.manual_seed(5)
    for l in range(1, problem.depth):
        direction = torch.randn_like(case.variables[l - 1])
        ahead, behind = case.state(), case.state()
        ahead[l], behind[l] = ahead[l] + h * direction, behind[l] - h * direction
        slope = (problem.smooth_energy(ahead, case.X, case.Y) - problem.smooth_energy(behind, case.X, case.Y)) / (2 * h)
        expected = float((problem.variable_gradient(point, l) * direction).sum()) / len(case.X)
        assert float(slope) == pytest.approx(expected, rel=1e-6, abs=1e-8)


@pytest.mark.parametrize("frozen", [["0.weight"], ["2.bias"], ["4.weight", "4.bias"], ["8.weight"]])
def test_frozen_parameters_are_used_but_have_no_gradient(frozen):
    case = dense_case()
    for name, parameter in case.model.named_parameters():
        parameter.requires_grad_(name not in frozen)
    problem = case.problem()
    point = problem.evaluate(case.state(), case.X, case.Y)
    compare_parameters(case, problem, problem.gradients(point).parameters)
    for l, expected in enumerate(autograd_variable_gradients(case, False), 1):
        torch.testing.assert_close(problem.variable_gradient(point, l), expected, **TIGHT)


def test_gradients_through_a_module_in_map():
    torch.manual_seed(2)
    bent = nn.Bilinear(4, 4, 3, dtype=F64)

    class Twice(nn.Module):
        def __init__(self):
            super().__init__()
            self.bilinear = bent

        def forward(self, x):
            return self.bilinear(x, x)

    first, last, twice = nn.Linear(5, 4, dtype=F64), nn.Linear(3, 2, dtype=F64), Twice()
    case = dense_case((5, 4, 3, 2), ("tanh", "relu"))
    case.model = nn.Sequential(first, nn.Tanh(), lb.Map(twice), nn.ReLU(), last)
    case.stages = [(first, "tanh"), (twice, "relu"), (last, "identity")]
    problem = case.problem()
    gradients = problem.gradients(problem.evaluate(case.state(), case.X, case.Y))
    compare_parameters(case, problem, gradients.parameters)
    for l, expected in enumerate(autograd_variable_gradients(case, False), 1):
        torch.testing.assert_close(gradients.variables[l], expected, **TIGHT)


def test_penalties_do_not_enter_the_smooth_gradients():
    case = dense_case()
    problem = case.problem(penalties={2: penalties.L1(0.3)}, parameter_penalties={1: penalties.L1(0.2)})
    point = problem.evaluate(case.state(), case.X, case.Y)
    gradients = problem.gradients(point)
    compare_parameters(case, problem, gradients.parameters)
    torch.testing.assert_close(gradients.variables[2], autograd_variable_gradients(case, False)[1], **TIGHT)


@pytest.mark.parametrize("name", ["dense", "convolutions"])
def test_accumulating_is_decay_times_old_plus_scale_times_gradient(name):
    case = CASES[name]()
    problem = case.problem()
    point = problem.evaluate(case.state(), case.X, case.Y)
    expected = autograd_parameter_gradients(case)
    for l, layer in enumerate(problem.network, 1):
        into = {key: torch.ones_like(p) for key, p in layer.map.parameters.items()}
        problem.accumulate_parameter_gradient(point, l, into, scale=-0.5, decay=0.25)
        for key, p in layer.map.parameters.items():
            torch.testing.assert_close(into[key], 0.25 - 0.5 * expected[id(p)], **TIGHT)


def test_training_happens_in_the_users_model():
    case = dense_case()
    problem = case.problem()
    before = case.model(case.X).detach()
    point = problem.evaluate(case.state(), case.X, case.Y)
    expected = {name: p.detach() - 0.1 * g for (name, p), g in zip(
        case.model.named_parameters(), autograd_parameter_gradients(case).values(), strict=True)}  # fmt: skip
    for l, layer in enumerate(problem.network, 1):
        problem.accumulate_parameter_gradient(point, l, layer.map.parameters, scale=-0.1)
    for name, p in case.model.named_parameters():
        torch.testing.assert_close(p.detach(), expected[name], **TIGHT)
    assert not torch.equal(case.model(case.X), before)


def test_nothing_carries_a_graph_and_no_activation_is_differentiated():
    case = conv_case()
    case.X.requires_grad_()
    problem = case.problem()
    with lb.forbid_activation_derivatives():
        state = problem.forward_state(case.X)
        point = problem.evaluate(state, case.X, case.Y)
        gradients = problem.gradients(point)
        moved = problem.variable_prox(1, state[1] - 0.1 * gradients.variables[1], 0.1)
        energy = problem.energy(state, case.X, case.Y)
    tensors = [moved, energy, *state, *gradients.variables.values()]
    tensors += [g for layer in gradients.parameters.values() for g in layer.values()]
    assert not any(t.requires_grad for t in tensors)
    assert all(p.grad is None for p in case.model.parameters())


# Sweeps read only what a block touches, and see what was changed.


@pytest.mark.parametrize("l", [1, 2, 3, 4])
def test_after_set_variable_a_point_equals_a_fresh_evaluation(l):
    case = dense_case()
    problem = case.problem()
    point = problem.evaluate(case.state(), case.X, case.Y)
    state = case.state()
    state[l] = state[l] * 0.5
    point.set_variable(l, state[l])
    fresh = problem.evaluate(state, case.X, case.Y)
    for k in range(1, problem.depth + 1):
        assert torch.equal(point.z(k), fresh.z(k))
        assert torch.equal(point.residual(k), fresh.residual(k))
    assert all(torch.equal(a, b) for a, b in zip(point.state, state, strict=True))


@pytest.mark.parametrize("l", [1, 2, 3, 4, 5])
def test_after_parameters_changed_a_point_equals_a_fresh_evaluation(l):
    case = dense_case()
    problem = case.problem()
    point = problem.evaluate(case.state(), case.X, case.Y)
    with torch.no_grad():
        for p in problem.network[l].map.parameters.values():
            p.mul_(1.5)
    point.parameters_changed(l)
    fresh = problem.evaluate(case.state(), case.X, case.Y)
    for k in range(1, problem.depth + 1):
        assert torch.equal(point.z(k), fresh.z(k))
        assert torch.equal(point.sigma(k), fresh.sigma(k))
        assert torch.equal(point.residual(k), fresh.residual(k))


def test_every_map_is_applied_once_per_evaluation(monkeypatch):
    case = dense_case()
    problem = case.problem()
    calls = []
    for l, layer in enumerate(problem.network, 1):
        monkeypatch.setattr(layer.map, "apply", lambda x, l=l, apply=layer.map.apply: (calls.append(l), apply(x))[1])
    point = problem.evaluate(case.state(), case.X, case.Y, check=False)
    problem.gradients(point)
    problem.energy_at(point)
    assert sorted(calls) == [1, 2, 3, 4, 5]
    calls.clear()
    point.set_variable(2, point.x[2] * 0.5)
    problem.gradients(point)
    assert calls == [3]
