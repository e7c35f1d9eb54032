"""FromScalar: the property it checks, domains, plateaus, the interface."""

from __future__ import annotations

import copy
import functools
import math
import pickle
import re
from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import lifted_bregman as lb
from lifted_bregman.activations import FromScalar
from lifted_bregman.errors import NotProximalError, SettingError
from tests.activations.scalar_functions import (
    SIGMA,
    celu,
    constant,
    made,
    naive_isru,
    naive_squareplus,
    naive_tanh,
    name,
    steps,
    wave,
)
from tests.sampling import every

# The property


@pytest.mark.parametrize(
    "function",
    every(
        [
            *SIGMA,
            *(wave, constant, steps, naive_tanh, naive_isru, naive_squareplus),
            *(torch.atan, torch.asinh, F.softsign, F.softplus, F.tanhshrink, F.relu6),
            *(nn.Hardsigmoid(), functools.partial(F.celu, alpha=3.0), lambda z: z),
        ],
        3,
    ),
    ids=name,
)
def test_proximal_maps_are_accepted(function: Callable[[Tensor], Tensor]) -> None:
    activation = made(function)
    z = torch.tensor([-6.0, -2.5, -1.0, -0.4, 0.0, 0.3, 1.0, 3.1, 40.0], dtype=torch.float64).reshape(-1, 1)
    lb.check_prox(activation, z)
    x = activation.prox(z, 0.3)
    lb.check_conjugate(activation, x, z)
    lb.check_bregman(activation, x, z)


def narrow_rise(z: Tensor) -> Tensor:
    """Its slope is 10 over a distance of 0.004, a hundredth of what the first points leave there."""
    return 0.5 * z + 0.02 * (500.0 * (z - 37.3)).tanh()


def narrow_fall(z: Tensor) -> Tensor:
    return 0.5 * z - 0.02 * (500.0 * (z - 37.3)).tanh()


@pytest.mark.parametrize(
    ("function", "verdict"),
    [
        (F.gelu, "decreases"),
        (F.silu, "decreases"),
        (F.mish, "decreases"),
        (F.hardswish, "decreases"),
        (torch.neg, "decreases"),
        (torch.sin, "decreases"),
        (F.selu, "slope"),
        (lambda z: 2.0 * z, "slope"),
        (lambda z: 1.0001 * z, "slope"),
        (torch.erf, "slope"),
        (torch.sign, "jumps by 1"),
        (torch.floor, "jumps by 1"),
        (functools.partial(F.elu, alpha=1.001), "slope"),
        (narrow_rise, "slope"),
        (narrow_fall, "decreases"),
        (lambda z: torch.where(z > 0.5, z + 1e-6, z), "jumps by 1e-06"),
        (F.hardshrink, "jumps by 0.5"),
        (lambda z: z.sign() * z.abs().sqrt(), "without bound"),
        (lambda z: 3.0 * z.clamp(-1e-9, 1e-9), "slope"),
    ],
    ids=name,
)
def test_others_are_refused_with_a_counter_example(function: Callable[[Tensor], Tensor], verdict: str) -> None:
    with pytest.raises(NotProximalError, match="non-decreasing and 1-Lipschitz") as caught:
        FromScalar(function, name="mine")
    message = str(caught.value)
    assert "FromScalar(mine)" in message and verdict in message
    remedy = {"decreases": "Softplus()", "slope": "Divide"}.get(verdict, "no largest slope")
    assert remedy in message and ("Divide" in message) == (verdict == "slope")
    found = re.search(r"z1 = (\S+) and z2 = (\S+), where it is (\S+) and (\S+) \(in torch.(float\d\d)", message)
    assert found is not None
    z1, z2, u1, u2 = (float(number) for number in found.groups()[:4])
    values = function(torch.tensor([z1, z2], dtype=getattr(torch, found[5])))
    torch.testing.assert_close(values, torch.tensor([u1, u2]).to(values), rtol=1e-6, atol=0.0)
    assert z1 < z2
    assert u2 < u1 if verdict == "decreases" else u2 - u1 > z2 - z1


@pytest.mark.parametrize(
    ("function", "words"),
    [
        (lambda z: z.softmax(-1), "on each number alone"),
        (lambda z: z.softmax(0), "on each number alone"),
        (lambda z: F.dropout(z, 0.5) / 2.0, "without randomness"),
        (lambda z: z.sum(), "same shape and dtype"),
        (lambda z: z.float(), "same shape and dtype"),
        (lambda z: z.double(), "same shape and dtype"),
        (lambda z: None, "NoneType"),
        (torch.relu_, "in place"),
        (lambda z: (1.0 + z.exp()).log(), "does not overflow"),
        (lambda z: z.sqrt(), "nan"),
        (lambda z: torch.where(z.abs() > 1e5, math.nan, z), "nan"),
        (lambda z: (z * 1e35).clamp(-1.0, 1.0) * (z / z), "nan"),
    ],
)
def test_ill_formed_functions_are_refused(function: Callable[[Tensor], Tensor], words: str) -> None:
    with pytest.raises(NotProximalError, match=words):
        FromScalar(function)


@pytest.mark.parametrize(
    ("function", "words"),
    [
        (3.0, "function from tensors"),
        (nn.PReLU(), "parameters"),
        (math.tanh, r"FromScalar\(tanh\) raised .*use torch\.tanh"),
        (lambda z: math.exp(z), r"FromScalar\(<lambda>\) raised .*functions of torch"),
    ],
)
def test_bad_settings_are_refused(function: object, words: str) -> None:
    with pytest.raises(SettingError, match=words):
        FromScalar(function)  # type: ignore[arg-type]


# Domains, plateaus, precision


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize(
    "function", [*SIGMA, wave, constant, steps, torch.atan, F.softsign, torch.asinh, naive_isru], ids=name
)
def test_what_the_function_returns_is_in_the_domain(function: Callable[[Tensor], Tensor], dtype: torch.dtype) -> None:
    activation = made(function)
    magnitudes = torch.logspace(-30, 30, 121, dtype=dtype)
    z = torch.cat([-magnitudes, torch.zeros(1, dtype=dtype), magnitudes])[:, None]
    for x in (activation(z), activation.prox(z, 0.2), activation.prox(z, 7.0)):
        assert activation.contains(x).all()
        assert activation.potential(x[z[:, 0].abs() < 1e15]).isfinite().all()
    assert (activation.bregman(activation(z), z) == 0.0).all()


@pytest.mark.parametrize(
    ("function", "inside", "outside"),
    [
        (torch.tanh, [-1.0, 0.0, 1.0], [-1.1, 1.1]),
        (torch.sigmoid, [0.0, 0.5, 1.0], [-1e-6, 1.0 + 1e-6]),
        (torch.relu, [0.0, 1e30], [-1e-30]),
        (F.logsigmoid, [-1e30, -1.0, 0.0], [1e-30]),
        (celu, [-0.7, 0.0, 5.0], [-0.70001]),
        (constant, [0.3], [0.3001, 0.2999]),
        (steps, [-4.0, -0.5, 4.0], [-4.1, 4.1]),
        (torch.asinh, [-80.0, 80.0], []),
    ],
    ids=name,
)
def test_the_domain_is_the_closed_range_of_the_function(
    function: Callable[[Tensor], Tensor], inside: list[float], outside: list[float]
) -> None:
    for dtype in (torch.float32, torch.float64):
        points, activation = (
            torch.tensor(inside + outside + [math.inf, -math.inf, math.nan], dtype=dtype),
            made(function),
        )
        expected = torch.arange(len(points)) < len(inside)
        assert torch.equal(activation.contains(points[:, None]), expected)
        assert torch.equal(activation.potential(points[:, None]).isinf(), ~expected)


def test_the_potential_at_the_ends_of_the_range_is_that_of_tanh() -> None:
    ends = FromScalar(torch.tanh).potential(torch.tensor([[1.0], [-1.0]], dtype=torch.float64))
    torch.testing.assert_close(ends, torch.full((2,), math.log(2.0) - 0.5, dtype=torch.float64), rtol=1e-13, atol=0.0)


def test_images_of_either_precision_are_in_the_domain() -> None:
    """In float32 this function ends below 0.05; its float64 values, rounded to float32, end at 0.05."""
    activation = FromScalar(lambda z: 0.01 * z.tanh() + 0.04 * z.tanh())
    far = torch.tensor([[1e6]])
    assert float(activation(far)) < float(torch.tensor(0.05)) == float(activation.prox(far, 0.5))
    assert activation.contains(activation(far)).all() and activation.contains(activation.prox(far, 0.5)).all()


def test_a_constant_is_a_proximal_map() -> None:
    activation = FromScalar(constant)
    z = torch.tensor([-3.0, 0.0, 8.0], dtype=torch.float64)
    assert activation.prox(z, 5.0).tolist() == [0.3] * 3
    torch.testing.assert_close(activation.conjugate(z[:, None]), 0.3 * z)


def test_prox_of_a_staircase_has_plateaus_of_length_scale() -> None:
    """For σ = `steps`, Ψ' jumps by 1 at each integer and is constant between: prox_{cΨ} has plateaus of length c."""
    activation = FromScalar(steps)
    x = torch.linspace(-3.9, 3.9, 79, dtype=torch.float64)
    for scale in (0.25, 1.0, 3.0):
        # Ψ'(x) = floor(x) between integers, so that v = x + c floor(x) there
        torch.testing.assert_close(activation.prox(x + scale * x.floor(), scale), x, rtol=1e-13, atol=1e-13)
        on_plateau = torch.tensor([2.0 + 1.3 * scale, 2.0 + 1.9 * scale], dtype=torch.float64)
        torch.testing.assert_close(activation.prox(on_plateau, scale), torch.full_like(on_plateau, 2.0))


# The rest of the interface


def test_autograd_follows_the_function() -> None:
    z = torch.linspace(-3, 3, 13, dtype=torch.float64, requires_grad=True)
    FromScalar(F.logsigmoid).as_module()(z).sum().backward()
    torch.testing.assert_close(z.grad, (-z.detach()).sigmoid())


def test_equality_hash_copies_and_names() -> None:
    tanh = FromScalar(torch.tanh)
    assert tanh == FromScalar(torch.tanh) and hash(tanh) == hash(FromScalar(torch.tanh))
    assert tanh != FromScalar(torch.atan) and tanh != FromScalar(torch.tanh, name="other")
    assert "_table" not in repr(tanh)
    z = torch.linspace(-2, 2, 5)
    for copied in (copy.deepcopy(tanh), pickle.loads(pickle.dumps(tanh))):
        assert copied == tanh
        assert torch.equal(copied.prox(z, 0.3), tanh.prox(z, 0.3))


def test_shapes_dtypes_and_aliases() -> None:
    activation = FromScalar(lambda z: z)
    for shape in [(5,), (2, 3), (2, 0), (0, 4), (2, 3, 4)]:
        for dtype in (torch.float32, torch.float64):
            z = torch.arange(math.prod(shape), dtype=dtype).reshape(shape) - 1.5
            for u in (activation(z), activation.prox(z, 0.7)):
                assert u.shape == z.shape and u.dtype == dtype
                torch.testing.assert_close(u, z)
            assert activation.potential(z).shape == activation.conjugate(z).shape == shape[:-1]
    z = torch.ones(3)
    activation(z).zero_()  # the result is a tensor of its own
    assert (z == 1.0).all()
    strided = torch.randn(4, 6, generator=torch.Generator().manual_seed(0)).T
    torch.testing.assert_close(
        FromScalar(torch.tanh).prox(strided, 0.4), FromScalar(torch.tanh).prox(strided.clone(), 0.4)
    )


def test_prox_keeps_nan_and_takes_infinity_to_the_ends() -> None:
    v = torch.tensor([math.nan, math.inf, -math.inf, 1.0], dtype=torch.float64)
    for scale in (0.5, 2.0):
        u = made(torch.tanh).prox(v, scale)
        assert u[0].isnan() and u[1] == 1.0 and u[2] == -1.0 and 0.0 < float(u[3]) < 1.0
