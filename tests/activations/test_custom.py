"""FromScalar: the property it checks, and its numbers against closed forms in mpmath."""

from __future__ import annotations

import copy
import functools
import math
import pickle
import re
from collections.abc import Callable

import mpmath as mp
import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

import lifted_bregman as lb
from lifted_bregman.activations import FromScalar
from lifted_bregman.activations._root import ROOT_LIMIT, increasing_root
from lifted_bregman.errors import NotProximalError, SettingError
from tests.activations import oracles

Scalar = Callable[[mp.mpf], mp.mpf]
made = functools.cache(FromScalar)


def softshrink(z: Tensor) -> Tensor:
    return F.softshrink(z, 0.3)


def softplus(z: Tensor) -> Tensor:
    return F.softplus(z, threshold=40.0)  # torch's own default switches to z at 20, too early for float64


def celu(z: Tensor) -> Tensor:
    return F.celu(z, 0.7)


def wave(z: Tensor) -> Tensor:
    return 0.5 * z + 0.4 * z.sin()


def constant(z: Tensor) -> Tensor:
    return torch.full_like(z, 0.3)


def steps(z: Tensor) -> Tensor:
    """Plateaus of length 1 and ramps of slope 1, between -4 and 4."""
    z = z.clamp(-8.0, 7.0)
    cell = (z / 2.0).floor()
    return cell + (z - 2.0 * cell).clamp(0.0, 1.0)


def naive_tanh(z: Tensor) -> Tensor:
    """All digits are lost near 0: 1 - e is rounded to a multiple of 1e-16."""
    e = (-2.0 * z.abs()).exp()
    return ((1.0 - e) / (1.0 + e)).copysign(z)


def naive_isru(z: Tensor) -> Tensor:
    return z / (1.0 + z * z).sqrt()  # falls to 0 where z² overflows


def naive_squareplus(z: Tensor) -> Tensor:
    return 0.5 * ((z * z + 4.0).sqrt() + z)  # cancels for z < 0: not monotone in the last digits


def mp_softplus(t: mp.mpf) -> mp.mpf:
    return mp.log1p(mp.exp(t))


SEVENTH = mp.mpf(0.7)
SHIFT = mp.mpf(0.3)

# σ, φ* with φ*(0) = 0, and φ where it has a closed form
SIGMA: dict[Callable[[Tensor], Tensor], Scalar] = {
    torch.tanh: mp.tanh,
    torch.sigmoid: lambda s: 1 / (1 + mp.exp(-s)),
    torch.relu: lambda s: max(s, mp.mpf(0)),
    softshrink: lambda s: mp.sign(s) * max(abs(s) - SHIFT, mp.mpf(0)),
    F.hardsigmoid: lambda s: min(max(s / 6 + mp.mpf(1) / 2, mp.mpf(0)), mp.mpf(1)),
    F.logsigmoid: lambda s: -mp_softplus(-s),
    softplus: mp_softplus,
    celu: lambda s: s if s > 0 else SEVENTH * mp.expm1(s / SEVENTH),
}
CONJUGATE: dict[Callable[[Tensor], Tensor], Scalar] = {
    torch.tanh: lambda z: mp.log(mp.cosh(z)),
    torch.sigmoid: lambda z: mp_softplus(z) - mp.log(2),
    torch.relu: lambda z: max(z, mp.mpf(0)) ** 2 / 2,
    softshrink: lambda z: max(abs(z) - SHIFT, mp.mpf(0)) ** 2 / 2,
    F.hardsigmoid: lambda z: (max(min(z, mp.mpf(3)) + 3, mp.mpf(0)) ** 2 - 9) / 12 + max(z - 3, mp.mpf(0)),
    F.logsigmoid: lambda z: -(mp.polylog(2, -mp.exp(-z)) + mp.pi**2 / 12).real,
    softplus: lambda z: -(mp.polylog(2, -mp.exp(z)) + mp.pi**2 / 12).real,
    celu: lambda z: z * z / 2 if z > 0 else SEVENTH * (SEVENTH * mp.expm1(z / SEVENTH) - z),
    wave: lambda z: z * z / 4 + mp.mpf(0.4) * (1 - mp.cos(z)),
}
PHI: dict[Callable[[Tensor], Tensor], Scalar] = {
    torch.tanh: lambda x: x * mp.atanh(x) + mp.log(1 - x * x) / 2,
    torch.sigmoid: lambda x: x * mp.log(x) + (1 - x) * mp.log(1 - x) + mp.log(2),
    torch.relu: lambda x: x * x / 2,
    softshrink: lambda x: x * x / 2 + SHIFT * abs(x),
    F.hardsigmoid: lambda x: 3 * x * x - 3 * x + mp.mpf(3) / 4,
    celu: lambda x: x * x / 2 if x > 0 else SEVENTH * ((x + SEVENTH) * mp.log(1 + x / SEVENTH) - x),
}


def name(function: object) -> str:
    return getattr(function, "__name__", type(function).__name__)


# The property


@pytest.mark.parametrize(
    "function",
    [
        *SIGMA,
        *(wave, constant, steps, naive_tanh, naive_isru, naive_squareplus),
        *(torch.atan, torch.asinh, F.softsign, F.softplus, F.tanhshrink, F.relu6),
        *(nn.Hardsigmoid(), functools.partial(F.celu, alpha=3.0), lambda z: z),
    ],
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
        (torch.sign, "slope"),
        (torch.floor, "slope"),
        (functools.partial(F.elu, alpha=1.001), "slope"),
        (narrow_rise, "slope"),
        (narrow_fall, "decreases"),
        (lambda z: torch.where(z > 0.5, z + 1e-6, z), "slope"),
        (lambda z: 3.0 * z.clamp(-1e-9, 1e-9), "slope"),
    ],
    ids=name,
)
def test_others_are_refused_with_a_counter_example(function: Callable[[Tensor], Tensor], verdict: str) -> None:
    with pytest.raises(NotProximalError, match="non-decreasing and 1-Lipschitz") as caught:
        FromScalar(function, name="mine")
    message = str(caught.value)
    assert "FromScalar(mine)" in message and verdict in message
    assert ("Softplus()" if verdict == "decreases" else "Divide") in message
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


@pytest.mark.parametrize(("function", "words"), [(3.0, "function from tensors"), (nn.PReLU(), "parameters")])
def test_bad_settings_are_refused(function: object, words: str) -> None:
    with pytest.raises(SettingError, match=words):
        FromScalar(function)  # type: ignore[arg-type]


# Accuracy


def grid(*kinks: float) -> Tensor:
    magnitudes = torch.cat([torch.logspace(-8, 6, 29, dtype=torch.float64), torch.tensor([1e9, 1e20])])
    near = [kink * (1.0 + shift) for kink in (0.3, 0.7, 1.0, 3.0) for shift in (-1e-3, -1e-6, 0.0, 1e-6, 1e-3)]
    points = torch.cat([magnitudes, torch.tensor(near, dtype=torch.float64)])
    return torch.cat([-points, points])


@pytest.mark.parametrize("function", CONJUGATE, ids=name)
def test_conjugate(function: Callable[[Tensor], Tensor]) -> None:
    z = grid()
    z = z[z.abs() <= 1e4] if function is wave else z  # further out it has more waves than the table has cells
    found = made(function).conjugate(z[:, None])
    for point, value in zip(z.tolist(), found.tolist(), strict=True):
        exact = CONJUGATE[function](mp.mpf(point))
        near_kink = function is softshrink and 0 < abs(point) - 0.3 < 1e-4  # σ itself has lost digits there
        assert abs(value - exact) <= (1e-10 if near_kink else 2e-15) * abs(exact), point
    single = made(function).conjugate(z.float()[:, None])
    again = made(function).conjugate(z.float().double()[:, None])
    assert torch.equal(single, again.float())


@pytest.mark.parametrize("function", PHI, ids=name)
def test_potential(function: Callable[[Tensor], Tensor]) -> None:
    activation = made(function)
    magnitudes = torch.logspace(-6, 1, 30, dtype=torch.float64)
    x = activation(torch.cat([-magnitudes, magnitudes])).unique()
    x = x[(x != 0.0) & (x != 1.0)]
    for point, value in zip(x.tolist(), activation.potential(x[:, None]).tolist(), strict=True):
        phi = PHI[function](mp.mpf(point))
        assert abs(value - (phi - mp.mpf(point) ** 2 / 2)) <= 5e-15 * (abs(phi) + mp.mpf(point) ** 2), point


def test_potential_of_relu_does_not_cancel() -> None:
    x = torch.tensor([0.0, 1e-9, 0.1, 1.0, 1e6, 1e12], dtype=torch.float64)
    assert (FromScalar(torch.relu).potential(x[:, None]) == 0.0).all()


@pytest.mark.parametrize("scale", [1e-6, 1e-3, 0.5, 0.999, 2.0, 1e3, 1e6])
@pytest.mark.parametrize("function", SIGMA, ids=name)
def test_prox_against_the_exact_minimiser(function: Callable[[Tensor], Tensor], scale: float) -> None:
    activation = made(function)
    magnitudes = torch.logspace(-6, 6, 7, dtype=torch.float64)
    points = torch.cat([-magnitudes, magnitudes, torch.tensor([0.0, 0.3, -0.5, scale * 0.4, -5 * scale])])
    for dtype in (torch.float32, torch.float64):
        v = points.to(dtype)
        for point, value in zip(v.tolist(), activation.prox(v, scale).tolist(), strict=True):
            exact = oracles.prox(SIGMA[function], point, scale)
            if dtype == torch.float32:
                assert oracles.ulps(value, exact, dtype) <= 1.0, (point, value)
            else:  # one rounding of σ, magnified by the scale where σ has slope 1
                unit = torch.finfo(dtype).eps * max(1.0, scale)
                assert abs(value - exact) <= 2 * unit * (abs(point) + abs(exact)), (point, value)


def test_prox_of_straight_pieces_is_exact() -> None:
    v = torch.tensor([-2.0, -0.1, 0.0, 1e-30, 0.1, 0.3, 7.7, 1e12], dtype=torch.float64)
    for scale in (1e-6, 0.3, 5.0, 1e6):
        assert torch.equal(FromScalar(torch.relu).prox(v, scale), v.relu())


# Roots


def test_evaluations_are_bounded_and_few_for_smooth_functions() -> None:
    calls = 0

    def counting(function: Callable[[Tensor], Tensor]) -> Callable[[Tensor], Tensor]:
        def counted(z: Tensor) -> Tensor:
            nonlocal calls
            calls += 1
            return function(z)

        return counted

    magnitudes = torch.logspace(-300, 300, 301, dtype=torch.float64)
    everything = torch.cat([-magnitudes, magnitudes, torch.linspace(-9, 9, 301, dtype=torch.float64)])
    usual = torch.linspace(-3, 3, 600, dtype=torch.float64)
    for function in (*SIGMA, wave, constant, steps, naive_tanh):
        activation = FromScalar(counting(function))
        for scale in (1e-9, 1e-6, 1e-3, 0.5, 2.0, 1e3, 1e6, 1e9):
            calls = 0
            assert activation.prox(everything, scale).isfinite().all()
            assert calls <= ROOT_LIMIT + 2
        if function in (torch.tanh, torch.sigmoid, F.logsigmoid, softplus):
            calls = 0
            activation.prox(usual, 0.5)
            assert calls <= 25  # about 8 for most numbers; the slowest of 600 decides


FUNCTIONS: list[Callable[[Tensor, Tensor], Tensor]] = [
    lambda s, root: s - root,
    lambda s, root: (s - root).sign(),
    lambda s, root: torch.where(s < root, -math.inf, 1.0).double(),
    lambda s, root: (s / root).log(),
    lambda s, root: (s - root).sign() * (s - root).abs() ** 0.1,
    lambda s, root: (s - root) ** 9,
    lambda s, root: torch.where(s < root, 1e-12 * (s - root), 1e12 * (s - root)),
    lambda s, root: (s - root).exp() - 1.0,
]
positive = st.floats(1e-300, 1e300)


@settings(deadline=None, max_examples=60)
@given(
    st.sampled_from(FUNCTIONS), st.lists(st.tuples(positive, positive, positive), min_size=1, max_size=5), st.booleans()
)
def test_increasing_root_finds_neighbours(
    function: Callable[[Tensor, Tensor], Tensor], triples: list[tuple[float, float, float]], mirrored: bool
) -> None:
    low, root, high = torch.tensor([sorted(triple) for triple in triples], dtype=torch.float64).T.contiguous()
    sign = -1.0 if mirrored else 1.0
    if mirrored:
        low, high = -high, -low
    count = 0

    def value(s: Tensor, rows: Tensor) -> Tensor:
        nonlocal count
        count += 1
        return sign * function(sign * s, root[rows])

    left, right, below, above = increasing_root(value, low, high)
    assert count <= ROOT_LIMIT
    assert ((low <= left) & (left <= right) & (right <= high)).all()
    next_after = torch.nextafter(left, torch.full_like(left, math.inf))
    assert ((left == right) | (right == next_after)).all()
    rows = torch.arange(len(root))
    torch.testing.assert_close(below, value(left, rows))
    torch.testing.assert_close(above, value(right, rows))
    assert ((below <= 0.0) | (left == low)).all()
    assert ((above >= 0.0) | (right == high)).all()


def test_increasing_root_at_zero_outside_and_empty() -> None:
    low, high = torch.tensor([0.0, 1.0, 1.0, -3.0]), torch.tensor([5.0, 2.0, 2.0, 0.0])
    root = torch.tensor([0.0, 0.5, 7.0, 0.0], dtype=torch.float64)
    left, right, _, _ = increasing_root(lambda s, rows: s - root[rows], low.double(), high.double())
    assert left.tolist() == right.tolist() == [0.0, 1.0, 2.0, 0.0]
    empty = torch.zeros(0, dtype=torch.float64)
    assert increasing_root(lambda s, rows: s, empty, empty)[0].shape == (0,)


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
def test_domain(function: Callable[[Tensor], Tensor], inside: list[float], outside: list[float]) -> None:
    for dtype in (torch.float32, torch.float64):
        points, activation = (
            torch.tensor(inside + outside + [math.inf, -math.inf, math.nan], dtype=dtype),
            made(function),
        )
        expected = torch.arange(len(points)) < len(inside)
        assert torch.equal(activation.contains(points[:, None]), expected)
        assert torch.equal(activation.potential(points[:, None]).isinf(), ~expected)


def test_ends_of_the_range_have_their_potential() -> None:
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


def test_plateaus_and_ramps() -> None:
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


def test_nan_and_infinity() -> None:
    v = torch.tensor([math.nan, math.inf, -math.inf, 1.0], dtype=torch.float64)
    for scale in (0.5, 2.0):
        u = made(torch.tanh).prox(v, scale)
        assert u[0].isnan() and u[1] == 1.0 and u[2] == -1.0 and 0.0 < float(u[3]) < 1.0
