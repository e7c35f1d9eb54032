"""The nuclear norm, subgradients and critical weights, against numpy and against the definitions."""

import numpy as np
import pytest
import torch
from torch import nn

import lifted_bregman as lb
from lifted_bregman import penalties
from lifted_bregman.errors import CompatibilityError, SettingError, TensorError
from lifted_bregman.penalties import Nuclear
from lifted_bregman.problem.subgradients import critical_weights, minimal_subgradient

F32, F64 = torch.float32, torch.float64
SHAPES = [(4, 7), (7, 4), (5, 5), (1, 6), (6, 1)]


def matrix(shape, seed=0, dtype=F64):
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=F64).to(dtype)


def with_singular_values(values, rows, columns, seed=0):
    rng = np.random.default_rng(seed)
    U = np.linalg.qr(rng.standard_normal((rows, len(values))))[0]
    V = np.linalg.qr(rng.standard_normal((columns, len(values))))[0]
    return torch.from_numpy(U * np.array(values) @ V.T)


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize(("dtype", "tolerance"), [(F64, 1e-13), (F32, 2e-6)])
def test_value_and_prox_are_those_of_the_singular_values(shape, dtype, tolerance):
    x, weight, scale = matrix(shape, dtype=dtype), 0.6, 1.7
    U, sigma, Vt = np.linalg.svd(x.double().numpy(), full_matrices=False)
    penalty = Nuclear(weight)
    value, prox = penalty.value(x), penalty.prox(x, scale)
    assert value.dtype == prox.dtype == dtype and value.shape == () and prox.shape == x.shape
    assert float(value) == pytest.approx(weight * sigma.sum(), rel=tolerance)
    expected = (U * np.maximum(sigma - weight * scale, 0.0)) @ Vt
    np.testing.assert_allclose(prox.double().numpy(), expected, rtol=0, atol=tolerance * sigma[0])
    np.testing.assert_allclose(penalty.singular_values(x), sigma, rtol=0, atol=tolerance * sigma[0])


@pytest.mark.parametrize("dtype", [F64, F32])
def test_a_batch_of_matrices_is_one_matrix_after_another(dtype):
    x = matrix((3, 2, 5, 4), dtype=dtype)
    penalty = Nuclear(0.8)
    assert penalty.value(x).shape == (3, 2)
    for i in range(3):
        for j in range(2):
            torch.testing.assert_close(penalty.prox(x)[i, j], penalty.prox(x[i, j]))
            torch.testing.assert_close(penalty.value(x)[i, j], penalty.value(x[i, j]))


def test_the_prox_minimises_its_definition():
    x, penalty, scale = matrix((3, 4), seed=3), Nuclear(0.5), 0.9
    u = penalty.prox(x, scale)

    def definition(u):
        return 0.5 * float((u - x).square().sum()) + scale * float(penalty.value(u))

    rng = torch.Generator().manual_seed(1)
    for size in (1e-3, 1e-1, 1.0):
        for _ in range(50):
            other = u + size * torch.randn(x.shape, generator=rng, dtype=F64)
            assert definition(other) >= definition(u) + 0.5 * float((other - u).square().sum()) - 1e-12


@pytest.mark.parametrize("dtype", [F64, F32])
def test_the_weight_between_two_singular_values_gives_the_asked_rank(dtype):
    values = [9.0, 5.0, 3.0, 2.0, 1.5, 0.5]
    x = with_singular_values(values, 12, 8).to(dtype)
    for rank in range(1, 6):
        weight = 0.5 * (values[rank - 1] + values[rank])
        kept = Nuclear(weight).prox(x)
        assert int(torch.linalg.matrix_rank(kept, rtol=1e-5)) == rank
        shrunk = torch.linalg.svdvals(kept.double())[:rank]
        torch.testing.assert_close(shrunk, torch.tensor(values[:rank], dtype=F64) - weight, rtol=0, atol=1e-5)
    assert not Nuclear(9.1).prox(x).any()


def test_weight_zero_changes_nothing_and_zero_stays_zero():
    x = matrix((4, 3))
    torch.testing.assert_close(Nuclear(0.0).prox(x, 2.0), x)
    assert float(Nuclear(0.0).value(x)) == 0.0
    for dtype in (F64, F32):
        zero = torch.zeros(4, 3, dtype=dtype)
        assert not Nuclear(1.0).prox(zero).any() and float(Nuclear(1.0).value(zero)) == 0.0


def test_gradients_are_not_recorded():
    x = matrix((4, 3)).requires_grad_()
    assert not Nuclear(1.0).prox(x).requires_grad and not Nuclear(1.0).value(x).requires_grad


@pytest.mark.parametrize("weight", [-1.0, float("nan"), float("inf"), "much"])
def test_a_weight_must_be_a_number(weight):
    with pytest.raises(SettingError, match="weight"):
        Nuclear(weight)


def test_it_takes_matrices_only():
    for method in (Nuclear(1.0).value, Nuclear(1.0).prox, Nuclear(1.0).singular_values):
        with pytest.raises(TensorError, match="matrices"):
            method(torch.ones(5, dtype=F64))


def test_in_a_problem_it_acts_on_weights_as_matrices():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Conv2d(2, 3, 2), nn.ReLU(), nn.Flatten(), nn.Linear(12, 4)).double()
    plain = lb.lift(model, loss=lb.SquaredError())
    problem = lb.lift(model, loss=lb.SquaredError(), parameter_penalties={1: Nuclear(0.3), 2: Nuclear(0.2)})
    X, Y = matrix((5, 2, 3, 3)), matrix((5, 4))
    state = problem.forward_state(X)
    sums = [np.linalg.svd(model[i].weight.detach().flatten(1).numpy(), compute_uv=False).sum() for i in (0, 3)]
    extra = float(problem.energy(state, X, Y) - plain.energy(state, X, Y))
    assert extra == pytest.approx(0.3 * sums[0] + 0.2 * sums[1], rel=1e-12)
    values = {name: p.detach() for name, p in problem.network[1].map.parameters.items()}
    moved = problem.parameter_prox(1, values, 0.7)
    bias = next(name for name in values if values[name].ndim == 1)
    weight = next(name for name in values if values[name].ndim == 4)
    torch.testing.assert_close(moved[bias], values[bias])
    U, sigma, Vt = np.linalg.svd(values[weight].flatten(1).numpy(), full_matrices=False)
    expected = (U * np.maximum(sigma - 0.21, 0.0)) @ Vt
    np.testing.assert_allclose(moved[weight].flatten(1).numpy(), expected, atol=1e-13)
    assert moved[weight].shape == (3, 2, 2, 2)


def test_on_variables_it_is_refused():
    model = nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 2)).double()
    for between in (nn.ReLU(), nn.Identity()):
        model[1] = between
        with pytest.raises(CompatibilityError, match=r"Nuclear.*parameter_penalties"):
            lb.lift(model, loss=lb.SquaredError(), penalties={1: Nuclear(0.1)})


# Subgradients and critical weights.

PENALTIES = [
    penalties.L1(0.7),
    penalties.SquaredL2(1.3),
    penalties.GroupL2(0.6),
    penalties.GroupL2(0.6, group_size=2),
    penalties.Bounds(-2.0, 2.5),
    penalties.NonNegative(),
    Nuclear(0.4),
]


def point(penalty):
    """A matrix with zeros of the kind that the penalty makes."""
    x = matrix((5, 6), seed=4)
    if isinstance(penalty, penalties.NonNegative):
        return x.clamp(min=0.0)
    if isinstance(penalty, penalties.Bounds):
        return x.clamp(-1.0, 1.0)
    if isinstance(penalty, Nuclear):
        return with_singular_values([3.0, 2.0, 0.7], 5, 6)
    x[1] = 0.0
    x[3, :2] = 0.0
    return x


@pytest.mark.parametrize("penalty", PENALTIES, ids=repr)
def test_the_minimal_subgradient_is_the_limit_of_proximal_maps(penalty):
    x = point(penalty)
    p = minimal_subgradient(penalty, x)
    epsilon = 1e-7
    torch.testing.assert_close(p, (x - penalty.prox(x, epsilon)) / epsilon, rtol=1e-6, atol=2e-7)


@pytest.mark.parametrize("penalty", PENALTIES, ids=repr)
def test_the_minimal_subgradient_supports_the_penalty(penalty):
    x = point(penalty)
    p = minimal_subgradient(penalty, x)
    base = float(penalty.value(x).sum())
    rng = torch.Generator().manual_seed(5)
    for size in (1e-2, 1.0):
        for _ in range(30):
            y = penalty.prox(x + size * torch.randn(x.shape, generator=rng, dtype=F64), 0.01)
            assert float(penalty.value(y).sum()) >= base + float((p * (y - x)).sum()) - 1e-12


def test_a_start_outside_a_constraint_has_no_subgradient():
    for penalty in (penalties.NonNegative(), penalties.Bounds(-0.1, 0.1)):
        with pytest.raises(CompatibilityError, match="violates"):
            minimal_subgradient(penalty, -torch.ones(2, 2, dtype=F64))


class Unknown(penalties.Penalty):
    def compute_value(self, x):
        return x.sum(-1)

    def compute_prox(self, x, scale):
        return x


def test_unregistered_penalties_are_refused_with_the_remedy():
    with pytest.raises(CompatibilityError, match=r"minimal_subgradient\.register"):
        minimal_subgradient(Unknown(), torch.ones(2, 2, dtype=F64))
    with pytest.raises(CompatibilityError, match="target sparsity needs L1"):
        critical_weights(Unknown(), torch.ones(2, 2, dtype=F64))


@pytest.mark.parametrize("make", [penalties.L1, penalties.GroupL2, Nuclear])
def test_beyond_its_critical_weight_a_number_is_zero(make):
    v = matrix((5, 6), seed=6)
    critical = critical_weights(make(1.0), v).sort().values
    assert critical.numel() == {penalties.L1: 30, penalties.GroupL2: 5, Nuclear: 5}[make]
    for count in range(1, len(critical)):
        weight = float(0.5 * (critical[count - 1] + critical[count]))
        left = make(weight).prox(v)
        if make is Nuclear:
            zeros = 5 - int(torch.linalg.matrix_rank(left, rtol=1e-10))
        else:
            zeros = int((left == 0).sum()) if make is penalties.L1 else int((left == 0).all(1).sum())
        assert zeros == count
