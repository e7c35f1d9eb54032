"""Norms of Jacobians against singular values: estimates never above, guaranteed bounds never below."""

import pytest
import torch
from torch import nn

import lifted_bregman as lb
from lifted_bregman.maps import Dense, PowerIteration
from lifted_bregman.maps.traced import trace_chain
from tests.linalg.matrices import F64, nasty, top


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


def test_frozen_parameters_have_no_curvature():
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


def test_no_guarantee_is_claimed_for_any_module():
    f = trace_chain(lb.Map(nn.Sequential(nn.Linear(3, 3), nn.Tanh())), affine=False)
    x = torch.randn(4, 3)
    with pytest.raises(lb.errors.CompatibilityError, match="upper=False"):
        f.input_curvature(x, upper=True)
    with pytest.raises(lb.errors.CompatibilityError, match="upper=False"):
        f.parameter_curvature(x, upper=True)


def test_curvature_of_a_map_that_is_not_affine_is_the_largest_over_samples():
    class Square(nn.Module):
        def forward(self, x):
            return x.square()

    f = trace_chain(lb.Map(Square()), affine=False)
    x = torch.tensor([[1.0, 2.0], [5.0, 0.5]], dtype=F64)
    assert f.input_curvature(x) == pytest.approx(100.0, rel=1e-2)  # (2·5)²
    assert f.parameter_curvature(x) == 0.0
