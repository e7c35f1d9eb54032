"""Sample weights in the problem: whole numbers are duplicated samples, and autograd knows the weighted energy."""

import numpy as np
import pytest
import torch
from torch import nn

import lifted_bregman as lb
from lifted_bregman import errors, penalties
from lifted_bregman.problem import energies
from lifted_bregman.problem.nested import nested_objective, trained_parameters
from tests import cases

from . import oracle
from .networks import CASES, F64, conv_case, dense_case

TIGHT = {"rtol": 1e-12, "atol": 1e-12}


def counts_for(samples):
    """How often each sample is there: 3, 1, 2, 5, 3, 1, ..."""
    return torch.tensor([3, 1, 2, 5])[torch.arange(samples) % 4]


def uneven(samples):
    """Weights that are not whole, far from equal, and whose mean is not 1."""
    torch.manual_seed(11)
    return torch.rand(samples, dtype=F64).mul(3.0).exp()


def penalised(case):
    """The problem with R_l on hidden layers and P_l on the last, where there are any."""
    hidden = [l for l in (1, 3) if l < len(case.stages)]
    return case.problem(
        penalties={l: penalties.L1(0.2 * l) for l in hidden},
        parameter_penalties={len(case.stages): penalties.SquaredL2(0.4)},
    )


def weighted_and_duplicated(case, problem):
    """The same energy at two points: n_i as normalised weights, and n_i copies of sample i."""
    n = counts_for(len(case.X))
    X, Y = problem.prepare(case.X, case.Y)
    copies = lb.LiftedState(x.repeat_interleave(n, 0) for x in case.state())
    duplicated = problem.evaluate(copies, X.repeat_interleave(n, 0), Y.repeat_interleave(n, 0))
    return problem.evaluate(case.state(), X, Y, weights=n / n.double().mean()), duplicated


@pytest.mark.parametrize("name", CASES)
def test_energies_are_those_of_duplicated_samples(name):
    case = CASES[name]()
    problem = penalised(case)
    ours, twins = weighted_and_duplicated(case, problem)
    plain = problem.evaluate(case.state(), case.X, case.Y)
    for parts in (
        energies.layer_energies,
        energies.objective,
        lambda problem, point: energies.partial_energy(problem, point, [problem.depth]),
        lambda problem, point: energies.nonsmooth(problem, point, False),
        lambda problem, point: energies.smooth(problem, point, False),
        lambda problem, point: energies.smooth(problem, point, True),
        lambda problem, point: problem.energy_at(point),
    ):
        torch.testing.assert_close(parts(problem, ours), parts(problem, twins), **TIGHT)
    assert not torch.allclose(problem.energy_at(ours), problem.energy_at(plain), rtol=1e-3)


@pytest.mark.parametrize("name", CASES)
def test_energies_do_not_normalise_weights(name):
    case = CASES[name]()
    problem, w = penalised(case), uneven(len(case.X))
    own = (case.state(), case.X, case.Y)
    on_weights = 0.2 * float(sum(p.detach().square().sum() for p in list(case.model[-1].parameters()) if p.ndim > 1))
    by_hand = (w * problem.sample_energies(*own)).sum() / len(w) + on_weights
    torch.testing.assert_close(problem.energy(*own, weights=w), by_hand, **TIGHT)
    torch.testing.assert_close(problem.layer_energies(*own, weights=w).sum(), by_hand, **TIGHT)
    for quadratic in (False, True):
        split = [
            part(*own, smooth_quadratic=quadratic, weights=w)
            for part in (problem.smooth_energy, problem.nonsmooth_energy)
        ]
        torch.testing.assert_close(sum(split), by_hand, rtol=1e-11, atol=1e-11)
    forward = problem.forward_state(case.X)
    value = problem.objective(case.X, case.Y, weights=w)
    torch.testing.assert_close(value, problem.energy(forward, case.X, case.Y, weights=w), **TIGHT)
    torch.testing.assert_close(problem.energy(*own, weights=w.float()), by_hand, rtol=1e-6, atol=0.0)


@pytest.mark.parametrize("name", CASES)
def test_parameter_gradients_are_those_of_autograd(name):
    case = CASES[name]()
    problem, w = case.problem(), uneven(len(case.X))
    energy = sum((w * term).mean() for term in oracle.sample_terms(case.stages, case.weights, case.xs))
    parameters = list(case.model.parameters())
    expected = dict(zip(map(id, parameters), torch.autograd.grad(energy, parameters), strict=True))
    point = problem.evaluate(case.state(), case.X, case.Y, weights=w)
    for l, layer in enumerate(problem.network, 1):
        into = {name: torch.ones_like(p.detach()) for name, p in layer.map.parameters.items()}
        problem.accumulate_parameter_gradient(point, l, into, scale=-0.3, decay=0.5)
        for key, gradient in problem.parameter_gradient(point, l).items():
            exact = expected.pop(id(layer.map.parameters[key]))
            torch.testing.assert_close(gradient, exact, rtol=1e-11, atol=1e-12)
            torch.testing.assert_close(into[key], 0.5 - 0.3 * exact, rtol=1e-11, atol=1e-12)
    assert not expected


@pytest.mark.parametrize("activation", cases.ACTIVATIONS, ids=cases.name)
def test_every_activation_with_duplicated_samples(activation):
    torch.manual_seed(1)
    model = nn.Sequential(nn.Linear(5, 4), activation.as_module(), nn.Linear(4, 3), nn.ReLU(), nn.Linear(3, 2)).double()
    problem = lb.lift(model, loss=lb.SquaredError(), weights=[0.7, 1.6])
    X, Y, n = torch.randn(6, 5, dtype=F64), torch.randn(6, 2, dtype=F64), counts_for(6)
    x1 = cases.domain_points(activation, torch.randn(6, 4, dtype=F64))
    state = lb.LiftedState([x1, torch.rand(6, 3, dtype=F64)])
    ours = problem.evaluate(state, X, Y, weights=n / n.double().mean())
    rows = torch.arange(6).repeat_interleave(n)
    twins = problem.evaluate(state.select(rows), X[rows], Y[rows])
    torch.testing.assert_close(problem.energy_at(ours), problem.energy_at(twins), **TIGHT)
    for l in (1, 2, 3):
        expected = problem.parameter_gradient(twins, l)
        torch.testing.assert_close(problem.parameter_gradient(ours, l), expected, **TIGHT)


@pytest.mark.parametrize("name", CASES)
def test_blocks_of_variables_do_not_depend_on_weights(name):
    """Not one bit; and the gradient of the weighted energy in x is w_i/s times what `variable_gradient` returns."""
    case = CASES[name]()
    problem, w, s = case.problem(), uneven(len(case.X)), len(case.X)
    plain = problem.evaluate(case.state(), case.X, case.Y)
    ours = problem.evaluate(case.state(), case.X, case.Y, weights=w)
    variables = [x.clone().requires_grad_() for x in case.variables]
    total = 0.0
    for i in range(s):
        alone = [case.X[i : i + 1], *(x[i : i + 1] for x in variables), case.Y[i : i + 1]]
        total = total + w[i] / s * oracle.smooth_part(case.stages, case.weights, alone, False)
    slopes = torch.autograd.grad(total, variables) if variables else ()
    for l, slope in enumerate(slopes, 1):
        gradient = problem.variable_gradient(ours, l)
        assert torch.equal(gradient, problem.variable_gradient(plain, l))
        shaped = w.view(-1, *[1] * (gradient.ndim - 1)) / s
        torch.testing.assert_close(shaped * gradient, slope, rtol=1e-11, atol=1e-12)
        for upper in (False, True):
            bounds = [case.problem().variable_curvature(point, l, upper) for point in (ours, plain)]
            assert bounds[0] == bounds[1]


@pytest.mark.parametrize("name", CASES)
def test_equal_weights_are_no_weights(name):
    case = CASES[name]()
    problem = penalised(case)
    plain = problem.evaluate(case.state(), case.X, case.Y)
    ours = problem.evaluate(case.state(), case.X, case.Y, weights=torch.ones(len(case.X), dtype=F64))
    assert torch.equal(energies.layer_energies(problem, ours), energies.layer_energies(problem, plain))
    assert torch.equal(energies.objective(problem, ours), energies.objective(problem, plain))
    for l in range(1, problem.depth + 1):
        for key, gradient in problem.parameter_gradient(ours, l).items():
            assert torch.equal(gradient, problem.parameter_gradient(plain, l)[key])
        for upper in (False, True):
            bounds = [penalised(case).parameter_curvature(point, l, upper) for point in (ours, plain)]
            assert bounds[0] == pytest.approx(bounds[1], rel=1e-13)


# Curvature


def heavy(rows):
    """Nearly all weight on the sample with the longest row, mean 1."""
    w = torch.full((len(rows),), 0.01, dtype=F64)
    w[int(rows.flatten(1).norm(dim=1).argmax())] = 1.0
    return w / w.mean()


def weighted_norm(rows, w, weight=True, bias=True):
    """‖diag(√w) [X 1]‖₂² by numpy's singular values, of the columns that are trained."""
    columns = [rows.numpy()] * weight + [np.ones((len(rows), 1))] * bias
    return float(np.linalg.norm(np.sqrt(w.numpy())[:, None] * np.concatenate(columns, 1), 2)) ** 2


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("samples", [3, 40])
def test_dense_curvature_is_the_norm_of_weighted_rows(bias, samples):
    case = dense_case(bias=bias, samples=samples)
    problem = case.problem()
    for w in (uneven(samples), heavy(case.X)):
        point = problem.evaluate(case.state(), case.X, case.Y, weights=w)
        for l in range(1, problem.depth + 1):
            exact = case.weights[l - 1] * weighted_norm(case.xs[l - 1], w, bias=bias) / samples
            assert exact <= problem.parameter_curvature(point, l, upper=True) <= 1.06 * exact
            assert 0.97 * exact <= case.problem().parameter_curvature(point, l) <= exact * (1.0 + 1e-12)


@pytest.mark.parametrize("frozen", ["weight", "bias", "both"])
def test_dense_curvature_of_what_is_trained(frozen):
    case = dense_case((4, 3), (), samples=7)
    for name, parameter in case.model[0].named_parameters():
        parameter.requires_grad_(frozen not in (name, "both"))
    if frozen == "both":
        case.model.append(nn.Linear(3, 3, dtype=F64))  # something has to be trained
    problem, w = lb.lift(case.model, loss=lb.SquaredError()), uneven(7)
    state = problem.forward_state(case.X)
    point = problem.evaluate(state, case.X, case.Y, weights=w)
    exact = 0.0 if frozen == "both" else weighted_norm(case.X, w, frozen != "weight", frozen != "bias") / 7
    assert exact * (1.0 - 1e-12) <= problem.parameter_curvature(point, 1, upper=True) <= 1.06 * exact


def test_dense_curvature_with_several_rows_for_each_sample_and_with_flattening():
    torch.manual_seed(3)
    model = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Flatten(), nn.Linear(8, 2)).double()
    problem, X = lb.lift(model, loss=lb.SquaredError()), torch.randn(5, 2, 3, dtype=F64)
    X[4] *= 5.0  # the last sample, which nothing else may be weighted like
    w = heavy(X)
    state = problem.forward_state(X)
    point = problem.evaluate(state, X, torch.randn(5, 2, dtype=F64), weights=w)
    by_row = weighted_norm(X.reshape(10, 3), w.repeat_interleave(2)) / 5
    assert by_row <= problem.parameter_curvature(point, 1, upper=True) <= 1.06 * by_row
    flat = weighted_norm(state[1].flatten(1), w) / 5
    assert flat <= problem.parameter_curvature(point, 2, upper=True) <= 1.06 * flat


def test_curvature_of_convolutions_is_bounded():
    """The Jacobian of diag(√w) f in Θ, written out by autograd."""
    case = conv_case()
    problem = case.problem()
    case.X.abs_()[2] *= 5.0  # for inputs that are not negative the bound is tight
    for w in (uneven(len(case.X)), heavy(case.X)):
        point = problem.evaluate(case.state(), case.X, case.Y, weights=w)
        for l in (1, 2):
            f, x = case.stages[l - 1][0], case.xs[l - 1]
            names, values = zip(*f.named_parameters(), strict=True)

            def scaled(*given, f=f, x=x, names=names, w=w):
                z = torch.func.functional_call(f, dict(zip(names, given, strict=True)), (x,))
                return (w.sqrt().view(-1, *[1] * (z.ndim - 1)) * z).flatten()

            parts = torch.autograd.functional.jacobian(scaled, values)
            jacobian = torch.cat([part.flatten(1) for part in parts], 1).numpy()
            exact = case.weights[l - 1] * float(np.linalg.norm(jacobian, 2)) ** 2 / len(x)
            assert exact <= problem.parameter_curvature(point, l, upper=True)


# Certificates, the nested objective, errors


@pytest.mark.parametrize("name", CASES)
def test_certificates_of_parameters_are_those_of_duplicated_samples(name):
    case = CASES[name]()
    problem, n = penalised(case), counts_for(len(case.X))
    rows = torch.arange(len(n)).repeat_interleave(n)
    ours = problem.certificates(case.state(), case.X, case.Y, weights=n / n.double().mean())
    twins = problem.certificates(case.state().select(rows), case.X[rows], case.Y[rows])
    assert ours.parameters == pytest.approx(twins.parameters, rel=1e-12)
    assert ours.variables == problem.certificates(case.state(), case.X, case.Y).variables


@pytest.mark.parametrize("name", CASES)
def test_the_nested_objective_and_its_gradient_are_those_of_duplicated_samples(name):
    case = CASES[name]()
    problem, n = penalised(case), counts_for(len(case.X))
    w, rows = n / n.double().mean(), torch.arange(len(n)).repeat_interleave(n)
    X, Y = problem.prepare(case.X, case.Y)
    ours = nested_objective(problem, X, Y, weights=w)
    twins = nested_objective(problem, X[rows], Y[rows])
    torch.testing.assert_close(ours, twins, **TIGHT)
    torch.testing.assert_close(ours.detach(), problem.objective(X, Y, weights=w), **TIGHT)
    parameters = trained_parameters(problem)
    torch.testing.assert_close(
        torch.autograd.grad(ours, parameters), torch.autograd.grad(twins, parameters), rtol=1e-11, atol=1e-13
    )


@pytest.mark.parametrize(
    ("weights", "message"),
    [
        ([1.0] * 9, "list; expected a tensor"),
        (torch.ones(9, 1, dtype=F64), "(9, 1); expected a tensor (9,)"),
        (torch.ones(8, dtype=F64), "(8,); expected a tensor (9,)"),
        (torch.tensor([1.0] * 4 + [0.0] + [1.0] * 4), "sample 4 is 0"),
        (torch.tensor([1.0] * 7 + [-2.0, 1.0]), "sample 7 is -2"),
        (torch.tensor([1.0, float("nan")] + [1.0] * 7), "sample 1 is nan"),
        (torch.tensor([float("inf")] + [1.0] * 8), "sample 0 is inf"),
    ],
    ids=str,
)
def test_invalid_sample_weights_are_refused(weights, message):
    case = dense_case()
    problem, own = case.problem(), (case.state(), case.X, case.Y)
    calls = [
        lambda: problem.energy(*own, weights=weights),
        lambda: problem.layer_energies(*own, weights=weights),
        lambda: problem.objective(case.X, case.Y, weights=weights),
        lambda: problem.certificates(*own, weights=weights),
        lambda: problem.evaluate(*own, weights=weights),
    ]
    for call in calls:
        with pytest.raises(errors.TensorError) as raised:
            call()
        assert message in str(raised.value)
