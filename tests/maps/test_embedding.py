"""Embeddings: against torch's module, autograd, and the dense map of one-hot inputs."""

import pytest
import torch
from torch import nn
from torch.nn.functional import one_hot

import lifted_bregman as lb
from lifted_bregman.maps import Dense, EmbeddingMap

F64 = torch.float64
X = torch.tensor([[3, 1, 3, 0], [3, 5, 1, 0], [2, 3, 2, 0]])  # 3 four times, 0 three times, 4 never


def build(padding=None):
    torch.manual_seed(4)
    return EmbeddingMap(nn.Embedding(7, 2, padding_idx=padding, dtype=F64))


def close(value, expected):
    torch.testing.assert_close(value, expected, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("x", [X, X[:, 0], X[None]], ids=["sequences", "one each", "grids"])
@pytest.mark.parametrize("padding", [None, 3, 0])
def test_values_and_pull_backs_agree_with_autograd(x, padding):
    f = build(padding)
    z = f.module(x)
    d = torch.randn_like(z)
    (expected,) = torch.autograd.grad((z * d).sum(), [f.module.weight])
    close(f.apply(x), z.detach())
    pulled = f.pull_back_parameters(x, d, scale=-0.3)
    assert list(pulled) == list(f.parameters) == ["weight"]
    close(pulled["weight"], -0.3 * expected)
    assert not pulled["weight"].requires_grad and not f.apply(x).requires_grad and f.module.weight.grad is None


@pytest.mark.parametrize("padding", [None, 3])
@pytest.mark.parametrize("decay", [1.0, 0.5, 0.0])
def test_accumulate_is_decay_times_old_plus_scale_times_pull_back(decay, padding):
    f = build(padding)
    z = f.module(X)
    d = torch.randn_like(z)
    (gradient,) = torch.autograd.grad((z * d).sum(), [f.module.weight])
    start = torch.nan if decay == 0.0 else 1.5
    into = {"weight": torch.full((7, 2), start, dtype=F64)}
    f.accumulate_parameters(X, d, into, scale=2.5, decay=decay)
    close(into["weight"], (decay * 1.5 if decay else 0.0) + 2.5 * gradient)


def test_accumulating_into_the_parameters_leaves_the_padding_row_as_it_is():
    f = build(3)
    W, before = f.module.weight, f.module.weight.detach().clone()
    d = torch.ones(3, 4, 2, dtype=F64)
    f.accumulate_parameters(X, d, f.parameters, scale=-0.1)
    counts = torch.tensor([3.0, 2.0, 2.0, 0.0, 0.0, 1.0, 0.0], dtype=F64)  # 3 is padding
    close(W.detach(), before - 0.1 * counts[:, None])
    assert torch.equal(W[3], before[3]) and f.module.weight is W


def test_it_is_the_dense_map_of_one_hot_inputs():
    f = build()
    dense = Dense(nn.Linear(7, 2, bias=False, dtype=F64))
    units = f.unit_rows(f.module.weight.detach())
    dense.module.weight.data.copy_(units)
    A = one_hot(X, 7).double()
    d = torch.randn(3, 4, 2, dtype=F64)
    close(f.apply(X), dense.apply(A))
    expected = dense.pull_back_parameters(A, d)["weight"]
    close(f.unit_rows(f.pull_back_parameters(X, d)["weight"]), expected)
    assert torch.equal(f.from_unit_rows(units, f.module.weight), f.module.weight)
    rows = A.flatten(0, 1)
    close(torch.diag(f.gram(X)), rows.t() @ rows / len(rows))
    exact = float(torch.linalg.svdvals(rows)[0]) ** 2
    assert f.parameter_curvature(X) == f.parameter_curvature(X, upper=True) == pytest.approx(exact, rel=1e-12)


def test_padding_and_frozen_tables_have_no_curvature():
    f = build(3)
    close(f.gram(X), torch.tensor([3.0, 2.0, 2.0, 0.0, 0.0, 1.0, 0.0], dtype=F64) / 12)
    assert f.parameter_curvature(X) == 3.0
    f.module.weight.requires_grad_(False)
    assert f.parameters == {} and f.parameter_curvature(X) == 0.0
    d = torch.ones(3, 4, 2, dtype=F64)
    assert f.pull_back_parameters(X, d) == {}
    f.accumulate_parameters(X, d, {})


def test_derivatives_in_indices_are_refused():
    f = build()
    with pytest.raises(lb.errors.CompatibilityError, match="whole numbers"):
        f.pull_back_input(X, torch.ones(3, 4, 2, dtype=F64))
    with pytest.raises(lb.errors.CompatibilityError, match="whole numbers"):
        f.input_curvature(X, upper=True)


def test_max_norm_and_scaled_gradients_are_refused():
    for options in ({"max_norm": 1.0}, {"scale_grad_by_freq": True}):
        with pytest.raises(lb.errors.UnsupportedModuleError, match=next(iter(options))):
            EmbeddingMap(nn.Embedding(7, 2, **options))
    with pytest.raises(lb.errors.UnsupportedModuleError, match="EmbeddingBag"):
        EmbeddingMap(nn.EmbeddingBag(7, 2))
