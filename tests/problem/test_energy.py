"""The lifted energy against closed forms, its parts against their sum, its split against itself."""

import math

import pytest
import torch
from torch import nn

import lifted_bregman as lb
from lifted_bregman import activations as act
from lifted_bregman import penalties

from . import oracle
from .networks import CASES, F64, conv_case, dense_case

ALPHA = {1: 0.3, 3: 0.7}


def expected_terms(case, with_penalties=False):
    by_layer = {l: lambda x, a=a: a * x.abs().flatten(1).sum(1) for l, a in ALPHA.items()} if with_penalties else None
    with torch.no_grad():
        return oracle.sample_terms(case.stages, case.weights, case.xs, by_layer)


def test_energy_of_a_small_network_by_hand():
    # x_0 -> tanh(0.5 x_0 - 0.1) -> soft_0.3 of (2, -1) x_1 + (0, 0.4) -> x_2 . (1, 3) + 0.2, two samples, λ = (2, 0.5)
    model = nn.Sequential(nn.Linear(1, 1), nn.Tanh(), nn.Linear(1, 2), nn.Softshrink(0.3), nn.Linear(2, 1)).double()
    numbers = ([[0.5]], [-0.1], [[2.0], [-1.0]], [0.0, 0.4], [[1.0, 3.0]], [0.2])
    for parameter, values in zip(model.parameters(), numbers, strict=True):
        parameter.data.copy_(torch.tensor(values, dtype=F64))
    X, Y = [[0.8], [-1.5]], [[1.0], [0.3]]
    x1, x2 = [[0.2], [-0.6]], [[0.5, -0.2], [0.0, 1.1]]
    total = 0.0
    for i in range(2):
        z1 = 0.5 * X[i][0] - 0.1
        u = x1[i][0]
        phi = u * math.atanh(u) + 0.5 * math.log(1 - u * u)
        total += 2.0 * (phi + math.log(math.cosh(z1)) - u * z1)
        for j, (w, b) in enumerate([(2.0, 0.0), (-1.0, 0.4)]):
            z2 = w * u + b
            v = x2[i][j]
            total += 0.5 * (0.5 * v * v + 0.3 * abs(v) + 0.5 * max(abs(z2) - 0.3, 0.0) ** 2 - v * z2)
        z3 = x2[i][0] + 3.0 * x2[i][1] + 0.2
        total += 0.5 * (Y[i][0] - z3) ** 2
    problem = lb.lift(model, loss=lb.SquaredError(), weights=[2.0, 0.5])
    state = lb.LiftedState([torch.tensor(x1, dtype=F64), torch.tensor(x2, dtype=F64)])
    energy = problem.energy(state, torch.tensor(X, dtype=F64), torch.tensor(Y, dtype=F64))
    assert energy.shape == ()
    assert float(energy) == pytest.approx(total / 2, rel=1e-13)


@pytest.mark.parametrize("with_penalties", [False, True])
@pytest.mark.parametrize("name", ["dense", "convolutions"])
def test_energy_and_its_parts_by_layer_and_by_sample(name, with_penalties):
    case = CASES[name]()
    problem = case.problem(penalties={l: penalties.L1(a) for l, a in ALPHA.items()} if with_penalties else None)
    terms = torch.stack(expected_terms(case, with_penalties))
    by_layer = problem.layer_energies(case.state(), case.X, case.Y)
    torch.testing.assert_close(by_layer, terms.mean(1), rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(
        problem.sample_energies(case.state(), case.X, case.Y), terms.sum(0), rtol=1e-12, atol=1e-12
    )
    energy = problem.energy(case.state(), case.X, case.Y)
    torch.testing.assert_close(energy, terms.mean(1).sum(), rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(energy, by_layer.sum())


@pytest.mark.parametrize("name", CASES)
def test_energy_without_penalties(name):
    case = CASES[name]()
    expected = sum(term.mean() for term in expected_terms(case))
    energy = case.problem().energy(case.state(), case.X, case.Y)
    torch.testing.assert_close(energy, expected, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("quadratic", [False, True])
@pytest.mark.parametrize("name", ["dense", "convolutions", "one layer"])
def test_the_energy_is_the_sum_of_its_nonsmooth_and_smooth_parts(name, quadratic):
    case = CASES[name]()
    settings = {"parameter_penalties": {1: penalties.L1(0.05)}}
    if name != "one layer":
        settings["penalties"] = {l: penalties.L1(a) for l, a in ALPHA.items()}
    problem = case.problem(**settings)
    arguments = (case.state(), case.X, case.Y)
    G = problem.nonsmooth_energy(*arguments, smooth_quadratic=quadratic)
    H = problem.smooth_energy(*arguments, smooth_quadratic=quadratic)
    torch.testing.assert_close(G + H, problem.energy(*arguments), rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("quadratic", [False, True])
@pytest.mark.parametrize("name", ["dense", "convolutions"])
def test_the_smooth_part_by_definition(name, quadratic):
    case = CASES[name]()
    with torch.no_grad():
        expected = oracle.smooth_part(case.stages, case.weights, case.xs, quadratic)
        expected = (expected + oracle.CLOSED_FORMS[case.stages[-1][1]][0](case.Y).sum()) / len(case.X)
    found = case.problem().smooth_energy(case.state(), case.X, case.Y, smooth_quadratic=quadratic)
    torch.testing.assert_close(found, expected, rtol=1e-12, atol=1e-12)


def test_parameter_penalties_are_on_weights_not_on_biases():
    case = dense_case()
    problem = case.problem(parameter_penalties={1: penalties.L1(0.2), 5: penalties.L1(3.0)})
    plain = case.problem()
    arguments = (case.state(), case.X, case.Y)
    extra = problem.layer_energies(*arguments) - plain.layer_energies(*arguments)
    expected = torch.zeros(5, dtype=F64)
    expected[0] = 0.2 * case.model[0].weight.detach().abs().sum()
    expected[4] = 3.0 * case.model[8].weight.detach().abs().sum()
    torch.testing.assert_close(extra, expected)
    torch.testing.assert_close(problem.sample_energies(*arguments), plain.sample_energies(*arguments))
    torch.testing.assert_close(problem.objective(case.X, case.Y) - plain.objective(case.X, case.Y), expected.sum())


@pytest.mark.parametrize("name", CASES)
def test_objective_is_the_loss_of_the_users_model(name):
    case = CASES[name]()
    with torch.no_grad():
        outputs = case.model(case.X)
        if name == "convolutions":
            soft = nn.functional.cross_entropy(outputs, case.Y)
            expected = soft + torch.special.xlogy(case.Y, case.Y).sum(1).mean()  # torch leaves the targets' entropy in
        else:
            expected = 0.5 * (outputs - case.Y).square().sum(1).mean()
    torch.testing.assert_close(case.problem().objective(case.X, case.Y), expected, rtol=1e-12, atol=1e-12)


def test_objective_has_the_penalties_at_the_forward_pass():
    case = dense_case()
    problem = case.problem(penalties={2: penalties.L1(0.4)})
    with torch.no_grad():
        code = case.model[:4](case.X)
    expected = case.problem().objective(case.X, case.Y) + 0.4 * code.abs().sum(1).mean()
    torch.testing.assert_close(problem.objective(case.X, case.Y), expected)


@pytest.mark.parametrize("name", CASES)
def test_at_the_forward_pass_energy_and_objective_agree(name):
    case = CASES[name]()
    problem = case.problem()
    state = problem.forward_state(case.X)
    energies = problem.layer_energies(state, case.X, case.Y)
    assert torch.equal(energies[:-1], torch.zeros_like(energies[:-1]))
    torch.testing.assert_close(energies.sum(), problem.objective(case.X, case.Y))


def test_the_forward_state_is_what_the_model_computes():
    case = conv_case()
    state = case.problem().forward_state(case.X)
    with torch.no_grad():
        expected = [case.model[:2](case.X), case.model[:5](case.X), case.model[:8](case.X)]
    assert len(state) == 3
    for x, y in zip(state, expected, strict=True):
        torch.testing.assert_close(x, y)


@pytest.mark.parametrize("name", CASES)
def test_the_forward_point_has_one_forward_pass_and_no_residuals_below_the_loss(name):
    case = CASES[name]()
    problem = case.problem()
    X, Y = problem.prepare(case.X, case.Y)
    point = problem.forward_point(X, Y)
    assert problem.work.forward_maps == problem.depth - 1
    for x, expected in zip(point.state, problem.forward_state(X), strict=True):
        assert torch.equal(x, expected)
    before = problem.work.forward_maps
    for layer in range(1, problem.depth):
        assert torch.equal(point.residual(layer), torch.zeros_like(point.x[layer]))
    assert problem.work.forward_maps == before  # every z was known
    with torch.no_grad():
        torch.testing.assert_close(
            point.z(problem.depth), problem.network[problem.depth].map.apply(point.x[problem.depth - 1])
        )
    torch.testing.assert_close(problem.energy_at(point), problem.objective(case.X, case.Y))


def test_a_variable_outside_the_domain_has_infinite_energy():
    case = dense_case()
    state = case.state()
    state[3][4, 1] = -0.5  # a ReLU layer
    energies = case.problem().sample_energies(state, case.X, case.Y)
    assert energies.isinf().nonzero().flatten().tolist() == [4]


def test_the_energy_is_never_negative_in_float32():
    case = dense_case()
    problem = lb.lift(case.model.float(), loss=lb.SquaredError(), weights=case.weights[:-1])
    X, Y = case.X.float(), case.Y.float()
    state = problem.forward_state(X)
    for l in range(1, 5):
        state[l] = state[l] * (1.0 - 1e-7)
    assert problem.energy(state, X, Y).dtype == torch.float32
    assert (problem.layer_energies(state, X, Y) >= 0).all()


def test_labels_are_taken_as_one_hot_rows():
    case = conv_case()
    problem, labels = case.problem(), torch.tensor([2, 0, 1, 1])
    state = problem.forward_state(case.X)
    with torch.no_grad():
        expected = nn.functional.cross_entropy(case.model(case.X), labels)
    torch.testing.assert_close(problem.energy(state, case.X, labels), expected)
    X, Y = problem.prepare(case.X, labels)
    assert torch.equal(Y, nn.functional.one_hot(labels, 3).double())
    torch.testing.assert_close(problem.energy_at(problem.evaluate(state, X, Y, check=False)), expected)


def test_other_weights_on_the_same_parameters():
    case = dense_case()
    problem = case.problem()
    other = problem.with_weights([2.0, 3.0, 4.0, 5.0])
    factor = torch.tensor([2.0, 3.0, 4.0, 5.0, 1.0], dtype=F64) / torch.tensor(case.weights, dtype=F64)
    arguments = (case.state(), case.X, case.Y)
    torch.testing.assert_close(other.layer_energies(*arguments), factor * problem.layer_energies(*arguments))
    assert other.model is case.model
    with pytest.raises(lb.errors.SettingError):
        problem.with_weights([1.0])


def test_convolutional_outputs_with_a_joint_loss_take_channels_as_classes():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Conv2d(1, 3, 1)).double()
    problem = lb.lift(model, loss=lb.CrossEntropy())
    X = torch.randn(2, 1, 4, 5, dtype=F64)
    labels = torch.randint(0, 3, (2, 4, 5))
    Y = nn.functional.one_hot(labels, 3).movedim(-1, 1).double()
    with torch.no_grad():
        expected = nn.functional.cross_entropy(model(X), labels, reduction="sum") / 2
    torch.testing.assert_close(problem.objective(X, Y), expected)


def test_group_penalties_on_convolutional_variables_group_channels():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Conv2d(1, 3, 1), act.Identity().as_module(), nn.Flatten(), nn.Linear(60, 2)).double()
    X, Y = torch.randn(2, 1, 4, 5, dtype=F64), torch.randn(2, 2, dtype=F64)
    problem = lb.lift(model, loss=lb.SquaredError(), penalties={1: penalties.GroupL2(0.7)})
    state = problem.forward_state(X)
    plain = lb.lift(model, loss=lb.SquaredError())
    penalty = problem.energy(state, X, Y) - plain.energy(state, X, Y)
    single = penalties.GroupL2(0.7).value(state[1].movedim(1, -1).reshape(-1, 3)).sum() / 2
    torch.testing.assert_close(penalty, single)
