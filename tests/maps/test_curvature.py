"""Norms of Jacobians against singular values: estimates never above, guaranteed bounds never below."""

import pytest
import torch
from torch import nn

import lifted_bregman as lb
from lifted_bregman.maps import Dense, PowerIteration
from lifted_bregman.maps.spectral import certified_bound, positive_bound
from lifted_bregman.maps.traced import trace_chain

F64 = torch.float64


def orthogonal(n):
    return torch.linalg.qr(torch.randn(n, n, dtype=F64)).Q


def nasty():
    torch.manual_seed(3)
    U, V = orthogonal(30), orthogonal(30)
    vandermonde = torch.linspace(0.1, 1.0, 30, dtype=F64).pow(torch.arange(30, dtype=F64)[:, None])
    twins = torch.ones(30, dtype=F64)
    twins[0], twins[1] = 2.0, 2.0 * (1.0 + 1e-9)
    hidden = torch.eye(30, dtype=F64)
    hidden[7, 7] = 5.0
    block = torch.zeros(40, 30, dtype=F64)
    block[:3, :2], block[20:, 10:] = torch.randn(3, 2, dtype=F64), 0.1 * torch.randn(20, 20, dtype=F64)
    return {
        "random": torch.randn(40, 30, dtype=F64),
        "random, wide": torch.randn(5, 70, dtype=F64),
        "one row": torch.randn(1, 9, dtype=F64),
        "one column": torch.randn(9, 1, dtype=F64),
        "one number": torch.tensor([[-3.0]], dtype=F64),
        "rank one": torch.outer(torch.randn(20, dtype=F64), torch.randn(30, dtype=F64)),
        "orthogonal: all singular values equal": U,
        "two largest differ by 1e-9": U * twins @ V.t(),
        "slow decay": U * torch.linspace(1.0, 0.9, 30, dtype=F64) @ V.t(),
        "condition 1e16": U * torch.logspace(0, -16, 30, dtype=F64) @ V.t(),
        "vandermonde": vandermonde,
        "hilbert": 1.0 / (torch.arange(12, dtype=F64)[:, None] + torch.arange(12, dtype=F64) + 1.0),
        "one entry sticks out": hidden,
        "blocks": block,
        "tiny": 1e-160 * torch.randn(12, 9, dtype=F64),
        "huge": 1e150 * torch.randn(12, 9, dtype=F64),
        "alternating signs": (-1.0) ** (torch.arange(15, dtype=F64)[:, None] + torch.arange(20, dtype=F64)),
        "float32": torch.randn(60, 50),
        "float32, positive": torch.rand(60, 50),
    }


def top(matrix):
    return float(torch.linalg.svdvals(matrix.double())[0]) ** 2


@pytest.mark.parametrize("name", nasty())
def test_the_certified_bound_is_never_below_and_a_few_per_cent_above(name):
    A = nasty()[name]
    exact = top(A)
    for estimate in (exact, 0.999 * exact, 0.5 * exact, 1e-9 * exact, 0.0):
        assert certified_bound(A, estimate) >= exact
    assert certified_bound(A, exact) <= 1.02 * exact


def test_the_certified_bound_of_nothing_is_zero():
    assert certified_bound(torch.zeros(4, 3, dtype=F64), 0.0) == 0.0


@pytest.mark.parametrize("name", [name for name in nasty() if name not in ("tiny", "huge")])
def test_dense_input_curvature(name):
    A = nasty()[name]
    linear = nn.Linear(A.shape[1], A.shape[0], dtype=A.dtype)
    linear.weight.data.copy_(A)
    f, x, exact = Dense(linear), torch.zeros(2, A.shape[1], dtype=A.dtype), top(A)
    estimate = f.input_curvature(x)
    rounding = 1e-12 if A.dtype == F64 else 1e-5
    assert 0.97 * exact <= estimate <= exact * (1.0 + rounding)
    assert exact <= f.input_curvature(x, upper=True) <= 1.06 * exact


@pytest.mark.parametrize("name", [name for name in nasty() if name not in ("tiny", "huge")])
def test_dense_parameter_curvature_is_the_norm_of_inputs_with_a_column_of_ones(name):
    X = nasty()[name]
    rounding = 1e-12 if X.dtype == F64 else 1e-5
    for bias in (True, False):
        f = Dense(nn.Linear(X.shape[1], 3, bias=bias, dtype=X.dtype))
        exact = top(torch.cat((X, torch.ones(len(X), 1, dtype=X.dtype)), 1) if bias else X)
        assert 0.97 * exact <= f.parameter_curvature(X) <= exact * (1.0 + rounding)
        assert exact <= f.parameter_curvature(X, upper=True) <= 1.06 * exact


def test_what_is_frozen_does_not_count():
    X = torch.randn(7, 4, dtype=F64)
    linear = nn.Linear(4, 3, dtype=F64)
    f = Dense(linear)
    linear.weight.requires_grad_(False)
    assert f.parameter_curvature(X) == f.parameter_curvature(X, upper=True) == 7.0  # ‖1‖² over 7 samples
    linear.bias.requires_grad_(False)
    assert f.parameter_curvature(X) == f.parameter_curvature(X, upper=True) == 0.0
    linear.weight.requires_grad_(True)
    assert f.parameter_curvature(X) == pytest.approx(top(X), rel=1e-2)


def test_zero_weights_have_no_curvature():
    linear = nn.Linear(4, 3, dtype=F64)
    nn.init.zeros_(linear.weight)
    x = torch.zeros(2, 4, dtype=F64)
    assert Dense(linear).input_curvature(x) == Dense(linear).input_curvature(x, upper=True) == 0.0


def test_a_warm_start_saves_products_and_follows_the_matrix():
    torch.manual_seed(1)
    A = torch.randn(50, 40, dtype=F64)
    products = 0

    def normal(v):
        nonlocal products
        products += 1
        return (A.t() @ (A @ v[0]),)

    power = PowerIteration()
    power.estimate(normal, (A[0],))
    cold, products = products, 0
    A = A + 1e-4 * torch.randn_like(A)
    warm = power.estimate(normal, (A[0],))
    assert products <= 3 < cold
    assert 0.97 * top(A) <= warm <= top(A) * (1.0 + 1e-12)


def test_another_shape_starts_afresh():
    power = PowerIteration()
    for n in (3, 5):
        A = torch.diag(torch.arange(1.0, n + 1.0, dtype=F64))
        assert power.estimate(lambda v, A=A: (A @ (A @ v[0]),), (A[0],)) == pytest.approx(n**2, rel=1e-2)


def test_the_bound_holds_where_the_warm_start_is_an_eigenvector_of_a_smaller_value():
    linear = nn.Linear(2, 2, dtype=F64)
    x, power = torch.zeros(1, 2, dtype=F64), PowerIteration()
    linear.weight.data.copy_(torch.diag(torch.tensor([20.0, 1e-9], dtype=F64)))
    for _ in range(30):
        Dense(linear).input_curvature(x, power)
    linear.weight.data.copy_(torch.diag(torch.tensor([1.0, 3.0], dtype=F64)))
    assert 9.0 <= Dense(linear).input_curvature(x, power, upper=True) <= 10.0 * 1.01


# Maps whose matrix is not at hand: the Jacobian is written out by autograd and decomposed.

CHAINS = {
    "conv1d": ([nn.Conv1d, (2, 3, 3), {}], (2, 7)),
    "conv2d, stride, padding": ([nn.Conv2d, (2, 3, 3), {"stride": 2, "padding": 1}], (2, 5, 6)),
    "conv2d, circular": ([nn.Conv2d, (1, 4, 3), {"padding": 1, "padding_mode": "circular"}], (1, 5, 5)),
    "conv2d, reflected": ([nn.Conv2d, (1, 2, 3), {"padding": 2, "padding_mode": "reflect"}], (1, 5, 5)),
    "conv2d, groups, no bias": ([nn.Conv2d, (4, 4, 2), {"groups": 2, "bias": False}], (4, 4, 3)),
    "transposed": ([nn.ConvTranspose2d, (2, 3, 3), {"stride": 2}], (2, 3, 3)),
    "linear": ([nn.Linear, (6, 4), {}], (6,)),
}


def chain(name, before=(), after=()):
    torch.manual_seed(11)
    (kind, arguments, options), shape = CHAINS[name]
    modules = [*before, kind(*arguments, **options), *after]
    f = trace_chain(*modules, affine=True)
    f.graph.double()
    return f, torch.randn(3, *shape, dtype=F64)


def input_jacobian(f, x):
    return torch.autograd.functional.jacobian(f.graph, x[:1]).reshape(f.apply(x[:1]).numel(), x[:1].numel())


def parameter_jacobian(f, x):
    z = f.graph(x).flatten()
    parameters = list(f.parameters.values())
    rows = [torch.autograd.grad(entry, parameters, retain_graph=True) for entry in z]
    return torch.stack([torch.cat([g.flatten() for g in row]) for row in rows])


def check_against_svd(f, x, slack):
    exact = top(input_jacobian(f, x))
    assert 0.97 * exact <= f.input_curvature(x) <= exact * (1.0 + 1e-12)
    assert exact <= f.input_curvature(x, upper=True) <= 1.06 * exact  # small enough to be written out
    exact = top(parameter_jacobian(f, x))
    assert 0.97 * exact <= f.parameter_curvature(x) <= exact * (1.0 + 1e-12)
    assert exact <= f.parameter_curvature(x, upper=True) <= slack * exact


@pytest.mark.parametrize("name", CHAINS)
def test_module_curvature(name):
    f, x = chain(name)
    check_against_svd(f, x, slack=30.0)
    check_against_svd(f, x.abs(), slack=1.01)  # tight for inputs that are not negative


def test_module_curvature_with_pooling_and_flattening():
    f, x = chain("conv2d, stride, padding", before=[nn.AvgPool2d(2, 1)], after=[nn.AvgPool2d(2), nn.Flatten()])
    check_against_svd(f, x, slack=30.0)


@pytest.mark.parametrize("name", CHAINS)
def test_the_bound_for_maps_too_large_to_write_out(name, monkeypatch):
    monkeypatch.setattr("lifted_bregman.maps.traced._MATRIX_ENTRIES", 0)
    f, x = chain(name)
    exact = top(input_jacobian(f, x))
    assert exact <= f.input_curvature(x, upper=True) <= 30.0 * exact
    for p in f.parameters.values():
        p.data.abs_()
    exact = top(input_jacobian(f, x))
    assert exact <= f.input_curvature(x, upper=True) <= 1.05 * exact  # tight for weights that are not negative


def test_positive_bound_holds_with_empty_rows():
    torch.manual_seed(5)
    for _ in range(20):
        A = torch.rand(8, 6, dtype=F64) * (torch.rand(8, 6) < 0.3)
        exact = top(A)
        bound = positive_bound(lambda v, A=A: (A.t() @ (A @ v[0]),), (A[0],))
        assert exact <= bound


def test_positive_bound_is_tight_also_with_a_column_that_is_not_used():
    torch.manual_seed(6)
    A = torch.rand(8, 6, dtype=F64)
    A[:, 2] = 0.0
    bound = positive_bound(lambda v: (A.t() @ (A @ v[0]),), (A[0],))
    assert top(A) <= bound <= 1.001 * top(A)


def test_no_guarantee_is_claimed_for_any_module():
    f = trace_chain(lb.Map(nn.Sequential(nn.Linear(3, 3), nn.Tanh())), affine=False)
    x = torch.randn(4, 3)
    with pytest.raises(lb.errors.CompatibilityError, match="upper=False"):
        f.input_curvature(x, upper=True)
    with pytest.raises(lb.errors.CompatibilityError, match="upper=False"):
        f.parameter_curvature(x, upper=True)


def test_curvature_of_a_bent_map_is_the_largest_over_samples():
    class Square(nn.Module):
        def forward(self, x):
            return x.square()

    f = trace_chain(lb.Map(Square()), affine=False)
    x = torch.tensor([[1.0, 2.0], [5.0, 0.5]], dtype=F64)
    assert f.input_curvature(x) == pytest.approx(100.0, rel=1e-2)  # (2·5)²
    assert f.parameter_curvature(x) == 0.0
