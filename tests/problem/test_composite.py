"""prox of Ψ + R for every activation and every penalty, against a brute-force argmin.

The oracle has its own formulas for potentials, penalties and domains, and minimises by golden-section search: in one
dimension, or nested in two (a pair of features, or three on the simplex).  It shares no code with the library.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from itertools import product

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from scipy.special import spence
from torch import Tensor

from lifted_bregman import activations as act
from lifted_bregman.activations import Activation, Separable
from lifted_bregman.activations._root import ROOT_LIMIT, increasing_root
from lifted_bregman.errors import CompatibilityError, SettingError, TensorError
from lifted_bregman.problem import composite
from lifted_bregman.problem import penalties as pen
from lifted_bregman.problem.composite import composite_prox, require_composable
from tests import cases

Array = NDArray[np.longdouble]
FAR = 35.0  # proximal maps are non-expansive: nothing below leads further out


# The oracle


def xlog(x: Array) -> Array:
    return np.where(x > 0, x * np.log(np.where(x > 0, x, 1)), 0)


def scalar_case(activation: Activation) -> tuple[float, float, Callable[[Array], Array]]:
    """The ends of the domain and Ψ inside it."""
    match activation:
        case act.Identity():
            return -FAR, FAR, lambda x: 0 * x
        case act.ReLU():
            return 0, FAR, lambda x: 0 * x
        case act.LeakyReLU(slope):
            return -FAR, FAR, lambda x: np.where(x < 0, (1 / slope - 1) * x**2 / 2, 0)
        case act.Box(low, high):
            return low, high, lambda x: 0 * x
        case act.SoftThreshold(threshold):
            return -FAR, FAR, lambda x: threshold * abs(x)
        case act.NonNegativeSoftThreshold(threshold):
            return 0, FAR, lambda x: threshold * x
        case act.Tanh():
            return -1, 1, lambda x: (xlog(1 + x) + xlog(1 - x)) / 2 - x**2 / 2
        case act.Sigmoid():
            return 0, 1, lambda x: xlog(x) + xlog(1 - x) - x**2 / 2
        case act.Softsign():
            return -1 + 1e-12, 1 - 1e-12, lambda x: -abs(x) - np.log1p(-abs(x)) - x**2 / 2
        case act.Arctan():
            end = math.pi / 2 - 1e-12
            return -end, end, lambda x: -np.log(np.cos(x)) - x**2 / 2
        case act.ISRU():
            return -1, 1, lambda x: 1 - np.sqrt(1 - x**2) - x**2 / 2
        case act.Asinh():
            return -FAR, FAR, lambda x: np.cosh(x) - 1 - x**2 / 2
        case act.ELU(alpha):

            def elu(x: Array) -> Array:
                y = np.minimum(x, 0)
                return alpha * xlog(1 + y / alpha) - y - y**2 / 2

            return -alpha, FAR, elu
        case act.Softplus():
            return 0, FAR, lambda x: spence(-np.expm1(-np.maximum(x, 0).astype(float)))
        case act.FromScalar(function=torch.tanh):
            return scalar_case(act.Tanh())
        case act.FromScalar(function=torch.nn.functional.hardsigmoid):
            return 0, 1, lambda x: 3 * x**2 - 3 * x - x**2 / 2
    raise KeyError(activation)


def joint_case(activation: Activation) -> tuple[float, float, Callable[[Array], Array]]:
    """The ends of each component's domain and Ψ of a vector (last axis); infinity outside."""
    match activation:
        case act.Softmax():
            return 0, 1, lambda x: (xlog(x) - x**2 / 2).sum(-1)
        case act.Sparsemax():
            return 0, 1, lambda x: 0 * x.sum(-1)
        case act.GroupSoftThreshold(threshold):
            return -FAR, FAR, lambda x: threshold * np.sqrt((x**2).sum(-1))
        case act.BallProjection(radius):
            return -radius, radius, lambda x: np.where((x**2).sum(-1) <= radius**2 * (1 + 1e-15), 0, np.inf)
    low, high, psi = scalar_case(activation)
    return low, high, lambda x: psi(x).sum(-1)


def penalty_value(penalty: pen.Penalty, x: Array) -> Array:
    """R(x) over the last axis; constraints are put into the ranges of the search instead."""
    match penalty:
        case pen.L1(weight):
            return weight * abs(x).sum(-1)
        case pen.SquaredL2(weight):
            return weight * (x**2).sum(-1) / 2
        case pen.GroupL2(weight, None):
            return weight * np.sqrt((x**2).sum(-1))
        case pen.NonNegative() | pen.Box():
            return 0 * x.sum(-1)
    raise KeyError(penalty)


def limits(penalty: pen.Penalty) -> tuple[float, float]:
    match penalty:
        case pen.NonNegative():
            return 0, math.inf
        case pen.Box(low, high):
            return low, high
    return -math.inf, math.inf


def golden(objective: Callable[[Array], Array], low: Array, high: Array, steps: int) -> tuple[Array, Array]:
    """Minimiser and minimum of convex functions, elementwise, by golden-section search; the ends are candidates too."""
    ratio = (np.sqrt(np.longdouble(5)) - 1) / 2
    candidates = [low, high]
    low, high = low.copy(), high.copy()
    inner = [high - ratio * (high - low), low + ratio * (high - low)]
    values = [objective(inner[0]), objective(inner[1])]
    for _ in range(steps):
        left = values[0] <= values[1]
        low, high = np.where(left, low, inner[0]), np.where(left, inner[1], high)
        fresh = np.where(left, high - ratio * (high - low), low + ratio * (high - low))
        value = objective(fresh)
        inner = [np.where(left, fresh, inner[1]), np.where(left, inner[0], fresh)]
        values = [np.where(left, value, values[1]), np.where(left, values[0], value)]
    candidates.append((low + high) / 2)
    results = [objective(candidate) for candidate in candidates]
    best = np.argmin(results, axis=0)
    return np.choose(best, candidates), np.min(results, axis=0)


def brute_force(activation: Activation, penalty: pen.Penalty, v: Array, a: Array, b: Array) -> Array:
    """argmin_u ½‖u - v‖² + aΨ(u) + bR(u) for rows of two features, on the simplex of three; a, b go with the rows."""
    low, high, psi = joint_case(activation)
    least, most = limits(penalty)
    low, high = max(low, least, -6.0), min(high, most, 6.0)
    on_simplex = isinstance(activation, act.Softmax | act.Sparsemax)

    def objective(u: Array) -> Array:
        return ((u - v) ** 2).sum(-1) / 2 + a * psi(u) + b * penalty_value(penalty, u)

    def second_range(first: Array) -> tuple[Array, Array]:
        if on_simplex:  # low <= 1 - first - second <= high
            return np.maximum(low, 1 - first - high), np.minimum(high, 1 - first - low)
        if isinstance(activation, act.BallProjection):
            half = np.sqrt(np.maximum(activation.radius**2 - first**2, 0))
            return np.maximum(low, -half), np.minimum(high, half)
        return np.full_like(first, low), np.full_like(first, high)

    def complete(first: Array, second: Array) -> Array:
        return np.stack([first, second, 1 - first - second] if on_simplex else [first, second], axis=-1)

    def inner(first: Array) -> tuple[Array, Array]:
        return golden(lambda second: objective(complete(first, second)), *second_range(first), steps=46)

    first_low, first_high = low, high
    if on_simplex:
        first_low, first_high = max(low, 1 - 2 * high), min(high, 1 - 2 * low)
    ends = (np.full(v.shape[0], end, dtype=np.longdouble) for end in (first_low, first_high))
    first, _ = golden(lambda u: inner(u)[1], *ends, steps=46)
    return complete(first, inner(first)[0])


def brute_force_scalar(activation: Activation, penalty: pen.Penalty, v: Array, a: float, b: float) -> Array:
    low, high, psi = scalar_case(activation)
    least, most = limits(penalty)
    ends = (np.full(v.shape, end, dtype=np.longdouble) for end in (max(low, least), min(high, most)))

    def objective(u: Array) -> Array:
        return (u - v) ** 2 / 2 + a * psi(u) + b * penalty_value(penalty, u[..., None])

    return golden(objective, *ends, steps=80)[0]


# Every pair

SCALES = [(0.3, 0.5), (1.0, 1.0), (3.0, 0.2)]
# Kinks, ends and thresholds of the lists in cases.py, alone and added up, and points far away.
POINTS = [-30, -4, -1.3, -1, -0.8, -0.5, -0.3, -0.15, -1e-3, 0, 1e-3, 0.09, 0.15, 0.3, 0.5, 0.65, 0.8, 1, 2.5, 30]
PAIRS = [(0, 0), (0.3, -0.4), (0.3, 0.4), (-0.2, -0.1), (2, 0.5), (-3, 1), (0.05, 4), (0.7, 0.7), (-1.5, -2)]
TRIPLES = [(0, 0, 0), (0.3, -0.4, 0.1), (2, 0.5, -1), (-3, 1, 1.1), (0.05, 4, 0.2), (0.4, 0.4, 0.2), (0.6, 0.4, 0)]

SEPARABLE = [activation for activation in cases.ACTIVATIONS if isinstance(activation, Separable)]
JOINT = [activation for activation in cases.ACTIVATIONS if activation.joint]
COMPONENTWISE = [penalty for penalty in cases.PENALTIES if not isinstance(penalty, pen.GroupL2)]
GROUPED = [penalty for penalty in cases.PENALTIES if isinstance(penalty, pen.GroupL2)]


def to_tensor(values: Array) -> Tensor:
    return torch.from_numpy(np.asarray(values, dtype=np.float64))


@pytest.mark.parametrize("penalty", COMPONENTWISE, ids=cases.name)
@pytest.mark.parametrize("activation", SEPARABLE, ids=cases.name)
def test_separable_pair_is_the_argmin(activation: Activation, penalty: pen.Penalty) -> None:
    v = torch.tensor(POINTS, dtype=torch.float64)
    tolerance = 2e-7 if isinstance(activation, act.Softplus) else 1e-8  # its dilogarithm is known in float64 only
    for scales in SCALES:
        expected = brute_force_scalar(activation, penalty, np.array(POINTS, dtype=np.longdouble), *scales)
        found = composite_prox(activation, penalty, v, *scales)
        torch.testing.assert_close(found, to_tensor(expected), rtol=tolerance, atol=tolerance)
        single = composite_prox(activation, penalty, v.float(), *scales)
        # of v, not of the result: where a kink is added to a kink, v itself is only known to float32
        assert ((single - found).abs() <= 4e-7 * (1e-3 + v.abs() + found.abs())).all()


@pytest.mark.parametrize(
    ("activation", "penalty"), [*product(SEPARABLE, GROUPED), *product(JOINT, cases.PENALTIES)], ids=cases.name
)
def test_joint_pair_is_the_argmin(activation: Activation, penalty: pen.Penalty) -> None:
    rows = TRIPLES if isinstance(activation, act.Softmax | act.Sparsemax) else PAIRS
    a, b = (np.repeat(np.array(scale, dtype=np.longdouble), len(rows)) for scale in zip(*SCALES, strict=True))
    expected = brute_force(activation, penalty, np.array(rows * len(SCALES), dtype=np.longdouble), a, b)
    v = torch.tensor(rows, dtype=torch.float64)
    for scales, block in zip(SCALES, to_tensor(expected).split(len(rows)), strict=True):
        found = composite_prox(activation, penalty, v, *scales)
        torch.testing.assert_close(found, block, rtol=1e-6, atol=1e-6)
        single = composite_prox(activation, penalty, v.float(), *scales)
        torch.testing.assert_close(single, found.float(), rtol=1e-6, atol=1e-6)


numbers = st.floats(-5, 5) | st.sampled_from([0.0, 0.3, -0.3, 0.5, -0.5, 1.0])
scale = st.floats(-3, 2).map(lambda exponent: 10.0**exponent)


@settings(deadline=None, max_examples=200)
@given(st.sampled_from(cases.ACTIVATIONS), st.sampled_from(cases.PENALTIES), scale, scale, st.data())
def test_no_other_point_is_better(
    activation: Activation, penalty: pen.Penalty, a: float, b: float, data: st.DataObject
) -> None:
    """The objective is 1-strongly convex: f(w) >= f(u) + ½‖w - u‖² at every feasible w, exactly if u is the argmin."""
    n = data.draw(st.integers(2, 5))
    v, other = (
        torch.tensor(data.draw(st.lists(numbers, min_size=n, max_size=n)), dtype=torch.float64) for _ in range(2)
    )
    u = composite_prox(activation, penalty, v, a, b).numpy().astype(np.longdouble)
    feasible = composite_prox(activation, penalty, other, 1.0, 1.0).numpy()
    psi = joint_case(activation)[2]

    def objective(point: Array) -> Array:
        return ((point - v.numpy()) ** 2).sum() / 2 + a * psi(point) + b * penalty_value(penalty, point)

    for fraction in (1.0, 0.1, 1e-3):
        w = u + np.longdouble(fraction) * (feasible - u)
        slack = 1e-13 * (1 + abs(objective(u)) + abs(objective(w)))
        assert objective(w) >= objective(u) + ((w - u) ** 2).sum() / 2 - slack


# Accuracy where a closed form or Fermat's rule gives it

GRADIENTS: list[tuple[Activation, Callable[[Tensor], Tensor]]] = [
    (act.Tanh(), lambda u: u.atanh() - u),
    (act.FromScalar(torch.tanh), lambda u: u.atanh() - u),
    (act.Sigmoid(), lambda u: u.logit() - u),
    (act.Arctan(), lambda u: u.tan() - u),
    (act.Asinh(), lambda u: u.sinh() - u),
    (act.ISRU(), lambda u: u / (1 - u * u).sqrt() - u),
    (act.Softsign(), lambda u: u / (1 - u.abs()) - u),
    (act.Softplus(), lambda u: (-(-u).expm1()).log()),
    (act.LeakyReLU(0.1), lambda u: 9.0 * u.clamp(max=0.0)),
]
vectors = st.lists(st.floats(-3, 3), min_size=4, max_size=4).map(
    lambda values: torch.tensor([values], dtype=torch.float64)
)


@settings(deadline=None, max_examples=60)
@given(st.sampled_from(GRADIENTS), vectors, scale, scale)
def test_group_l2_satisfies_fermat(
    case: tuple[Activation, Callable[[Tensor], Tensor]], v: Tensor, a: float, b: float
) -> None:
    activation, gradient = case
    u = composite_prox(activation, pen.GroupL2(0.7), v, a, b)
    if bool((u == 0).all()):  # then v - aΨ'(0) lies in the ball of radius bα; sigmoid and softplus have no Ψ'(0)
        assert not isinstance(activation, act.Sigmoid | act.Softplus) or 0.7 * b > 50 * a
        if not isinstance(activation, act.Sigmoid | act.Softplus):
            assert float(v.norm()) <= 0.7 * b * (1 + 1e-12)
        return
    # Ψ' is only as exact as u: an error of a rounding unit in u is one of Ψ''(u) units here
    (slope,) = torch.autograd.grad(gradient(u.requires_grad_()).sum(), u)
    u = u.detach()
    residual = u - v + a * gradient(u) + 0.7 * b * u / u.norm()
    allowed = 1e-13 * (1 + v.abs() + a * (gradient(u).abs() + slope.abs()) + 0.7 * b * (1 + 1e-3 / u.norm()))
    assert (residual.abs() <= allowed).all()


@settings(deadline=None, max_examples=40)
@given(vectors, scale, scale)
def test_group_l2_on_softmax_satisfies_fermat(v: Tensor, a: float, b: float) -> None:
    u = composite_prox(act.Softmax(), pen.GroupL2(0.7), v, a, b)
    shown = u > 1e-290
    multiplier = (v - (1 - a) * u - a * u.log() - 0.7 * b * u / u.norm())[shown]
    assert float(multiplier.max() - multiplier.min()) <= 1e-11 * (1 + a * 300 + b)
    assert abs(float(u.sum()) - 1) <= 1e-14


@settings(deadline=None, max_examples=40)
@given(vectors, scale, st.floats(0.0, 0.25), st.floats(0.25, 1.0))
def test_box_on_softmax_satisfies_fermat(v: Tensor, a: float, low: float, high: float) -> None:
    u = composite_prox(act.Softmax(), pen.Box(low, high), v, a, 1.0)
    assert abs(float(u.sum()) - 1) <= 1e-14
    assert ((u >= low) & (u <= high)).all()
    wanted = v - (1 - a) * u - a * u.clamp(min=1e-300).log()  # ν; at the lower limit at most, at the upper at least ν
    from_below, from_above = wanted[u < high * (1 - 1e-14)], wanted[u > low * (1 + 1e-14) + 1e-290]
    if from_below.numel() and from_above.numel():
        assert float(from_below.max()) <= float(from_above.min()) + 1e-12 * (1 + 300 * a)


def test_thresholds_add_up() -> None:
    v = torch.linspace(-3, 3, 601, dtype=torch.float64)
    found = composite_prox(act.SoftThreshold(0.5), pen.L1(0.3), v, 0.7, 1.1)
    torch.testing.assert_close(found, torch.nn.functional.softshrink(v, 0.35 + 0.33), rtol=1e-14, atol=2e-16)


def test_l1_on_sigmoid_is_not_sigma_of_the_soft_threshold() -> None:
    v = torch.tensor([-0.2, 0.05, 0.4], dtype=torch.float64)
    torch.testing.assert_close(composite_prox(act.Sigmoid(), pen.L1(0.1), v, 1.0, 1.0), (v - 0.1).sigmoid())


def test_group_l2_returns_exact_zeros_inside_the_ball_only() -> None:
    direction = torch.tensor([[0.6, -0.8]], dtype=torch.float64)
    for activation in (act.Tanh(), act.LeakyReLU(0.1), act.Box(), act.ELU(1.0), act.FromScalar(torch.tanh)):
        inside = composite_prox(activation, pen.GroupL2(0.5), direction * (0.5 - 1e-12), 1.0, 1.0)
        outside = composite_prox(activation, pen.GroupL2(0.5), direction * (0.5 + 1e-12), 1.0, 1.0)
        assert (inside == 0).all()
        assert (outside != 0).all()


@pytest.mark.parametrize("activation", SEPARABLE, ids=cases.name)
def test_groups_are_treated_one_by_one(activation: Activation) -> None:
    v = torch.linspace(-2, 2.5, 24, dtype=torch.float64).reshape(2, 2, 6)
    found = composite_prox(activation, pen.GroupL2(0.4, group_size=2), v, 0.6, 0.8)
    alone = [composite_prox(activation, pen.GroupL2(0.4), part, 0.6, 0.8) for part in v.split(2, dim=-1)]
    torch.testing.assert_close(found, torch.cat(alone, dim=-1), rtol=1e-13, atol=1e-15)


@pytest.mark.parametrize(("activation", "penalty"), [*product(cases.ACTIVATIONS, cases.PENALTIES)], ids=cases.name)
def test_shapes_and_layouts(activation: Activation, penalty: pen.Penalty) -> None:
    v = torch.linspace(-2, 2, 24, dtype=torch.float64).reshape(4, 3, 2).transpose(0, 2)  # not contiguous, 4 features
    whole = composite_prox(activation, penalty, v, 0.5, 0.7)
    assert whole.shape == v.shape and whole.dtype == v.dtype
    rows = [composite_prox(activation, penalty, row, 0.5, 0.7) for row in v.reshape(-1, 4)]
    torch.testing.assert_close(whole.reshape(-1, 4), torch.stack(rows), rtol=1e-12, atol=1e-14)
    assert composite_prox(activation, penalty, v[:0], 0.5, 0.7).shape == (0, 3, 4)
    assert bool(activation.contains(whole).all())
    assert bool((penalty.value(whole) < math.inf).all())


# Extremes


@pytest.mark.parametrize(("activation", "penalty"), [*product(cases.ACTIVATIONS, cases.PENALTIES)], ids=cases.name)
def test_extreme_values_stay_finite_and_iterations_bounded(
    activation: Activation, penalty: pen.Penalty, monkeypatch: pytest.MonkeyPatch
) -> None:
    most = 0

    def counted(function: Callable[[Tensor, Tensor], Tensor], low: Tensor, high: Tensor) -> tuple[Tensor, ...]:
        count = 0

        def counting(s: Tensor, rows: Tensor) -> Tensor:
            nonlocal count
            count += 1
            return function(s, rows)

        result = increasing_root(counting, low, high)
        nonlocal most
        most = max(most, count)
        return result

    monkeypatch.setattr(composite, "increasing_root", counted)
    magnitudes = torch.tensor([0.0, 1e-8, 1e-3, 1.0, 1e3, 1e6], dtype=torch.float64)
    v = torch.stack([magnitudes, -magnitudes, magnitudes.flip(0)], dim=-1)
    for a, b in product((1e-6, 1e3), (1e-6, 1e3)):
        for dtype in (torch.float64, torch.float32):
            u = composite_prox(activation, penalty, v.to(dtype), a, b)
            assert u.isfinite().all()
            assert activation.contains(u).all()
            assert (penalty.value(u) < math.inf).all()
    assert most <= ROOT_LIMIT


@pytest.mark.parametrize("a", [1e-8, 1e-3, 0.5, 1.0, 1.5, 1e3, 1e6])
def test_newton_on_components_ends_within_its_limit(a: float, monkeypatch: pytest.MonkeyPatch) -> None:
    y = -torch.logspace(-15, 2.8, 4000, dtype=torch.float64)
    r = y.exp() - a * (y.expm1() - y)  # g at u = e^y
    u = composite._simplex_component(r, a)
    monkeypatch.setattr(composite, "COMPONENT_LIMIT", 500)
    assert torch.equal(u, composite._simplex_component(r, a))
    # an error of one unit in r is one of 1/g'(y) units in y
    unit = torch.finfo(torch.float64).eps
    assert ((u - y.exp()).abs() <= 4 * unit * u * (1 + (1 + r.abs()) / ((1 - a) * y.exp() + a))).all()


# What has no rule


class Reversal(act.Activation):
    """A joint activation that the rules do not know: the identity."""

    joint = True

    def _map(self, z: Tensor) -> Tensor:
        return z.clone()

    def _prox(self, z: Tensor, scale: float) -> Tensor:
        return z.clone()

    def _potential(self, x: Tensor) -> Tensor:
        return 0.0 * x.sum(-1)

    def _conjugate(self, z: Tensor) -> Tensor:
        return 0.5 * z.square().sum(-1)

    def _contains(self, x: Tensor) -> Tensor:
        return x.isfinite().all(-1)

    def _bregman(self, x: Tensor, z: Tensor) -> Tensor:
        return 0.5 * (x - z).square().sum(-1)


class Mine(pen.Penalty):
    def _value(self, x: Tensor) -> Tensor:
        return x.sum(-1)

    def _prox(self, x: Tensor, scale: float) -> Tensor:
        return x - scale


V = torch.tensor([[0.3, -2.0, 0.7, 1.1]], dtype=torch.float64)


def test_a_joint_activation_without_structure_has_the_general_rules() -> None:
    activation = Reversal()
    torch.testing.assert_close(composite_prox(activation, pen.SquaredL2(2.0), V, 1.0, 0.5), V / 2)
    expected = pen.GroupL2(0.4).prox(V, 2.0)
    torch.testing.assert_close(composite_prox(activation, pen.GroupL2(0.4), V, 1.0, 2.0), expected, rtol=1e-13, atol=0)


@pytest.mark.parametrize(
    ("activation", "penalty", "words"),
    [
        (Reversal(), pen.L1(1.0), ["Required", "acts on each number alone", "Softmax", "Missing", "Reversal"]),
        (Reversal(), pen.NonNegative(), ["Required", "GroupSoftThreshold", "Missing", "Reversal"]),
        (Reversal(), pen.Box(-1.0, 1.0), ["Required", "BallProjection", "Missing", "Reversal"]),
        (act.Tanh(), Mine(), ["Required", "L1", "GroupL2", "Missing", "Mine"]),
        (act.Box(-2.0, -1.0), pen.NonNegative(), ["Box(low=-2.0, high=-1.0)", "NonNegative()", "widen"]),
        (act.Tanh(), pen.Box(1.5, 2.0), ["output of Tanh() satisfies Box(low=1.5, high=2.0)", "in common"]),
        (act.ReLU(), pen.Box(-2.0, -1.0), ["ReLU()", "in common"]),
        (act.Softmax(), pen.Box(0.3, 1.0), ["Softmax() with 4 features", "widen"]),
        (act.Sparsemax(), pen.Box(0.0, 0.2), ["Sparsemax()", "4 features"]),
        (act.BallProjection(1.0), pen.Box(0.6, 1.0), ["BallProjection", "4 features"]),
        (act.Softmax(), pen.GroupL2(1.0, group_size=2), ["couples all 4 features", "leave out group_size"]),
        (act.Tanh(), pen.GroupL2(1.0, group_size=3), ["groups of 3", "4 features", "[1, 2, 4]"]),
    ],
)
def test_what_has_no_rule_is_refused_before_work_starts(
    activation: Activation, penalty: pen.Penalty, words: list[str]
) -> None:
    with pytest.raises(CompatibilityError) as caught:
        require_composable(activation, penalty, 4)
    assert all(word in str(caught.value) for word in words), str(caught.value)
    with pytest.raises(CompatibilityError):
        composite_prox(activation, penalty, V, 1.0, 1.0)


def test_feasible_limits_are_accepted() -> None:
    for activation, penalty in [
        (act.Softmax(), pen.Box(0.25, 1.0)),
        (act.Sparsemax(), pen.Box(0.0, 0.25)),
        (act.BallProjection(1.0), pen.Box(0.5, 1.0)),
        (act.Tanh(), pen.Box(1.0, 2.0)),
        (act.FromScalar(torch.nn.functional.logsigmoid), pen.NonNegative()),
    ]:
        require_composable(activation, penalty)
        require_composable(activation, penalty, 4)
        corner = {act.Tanh: 1.0, act.FromScalar: 0.0, act.BallProjection: 0.5}.get(type(activation), 0.25)
        expected = torch.full_like(V, corner)
        torch.testing.assert_close(composite_prox(activation, penalty, V, 1.0, 1.0), expected, rtol=1e-12, atol=1e-12)
    require_composable(act.Tanh(), None, 4)


@pytest.mark.parametrize(("activation", "penalty"), [*product(cases.ACTIVATIONS, cases.PENALTIES)], ids=cases.name)
def test_nan_is_not_swallowed(activation: Activation, penalty: pen.Penalty) -> None:
    v = torch.tensor([[0.5, math.nan, -1.0], [0.5, 0.1, -1.0]], dtype=torch.float64)
    u = composite_prox(activation, penalty, v, 0.5, 0.5)
    assert u[0, 1].isnan()
    torch.testing.assert_close(u[1:], composite_prox(activation, penalty, v[1:], 0.5, 0.5), rtol=1e-13, atol=1e-15)


def test_without_penalty_it_is_the_activation_alone() -> None:
    assert torch.equal(composite_prox(act.Tanh(), None, V, 0.3, 1.0), act.Tanh().prox(V, 0.3))


def test_a_penalty_of_weight_zero_has_no_effect() -> None:
    for activation, penalty in product(cases.ACTIVATIONS, (pen.L1(0.0), pen.SquaredL2(0.0), pen.GroupL2(0.0))):
        found = composite_prox(activation, penalty, V, 0.3, 1.0)
        torch.testing.assert_close(found, activation.prox(V, 0.3), rtol=1e-12, atol=1e-14)


def test_nothing_is_recorded_and_bad_input_is_refused() -> None:
    assert not composite_prox(act.Tanh(), pen.L1(0.1), V.clone().requires_grad_(), 1.0, 1.0).requires_grad
    with pytest.raises(SettingError, match="penalty_scale"):
        composite_prox(act.Tanh(), pen.L1(0.1), V, 1.0, 0.0)
    with pytest.raises(SettingError, match="activation_scale"):
        composite_prox(act.Tanh(), pen.L1(0.1), V, -1.0, 1.0)
    with pytest.raises(TensorError):
        composite_prox(act.Tanh(), pen.L1(0.1), V.long(), 1.0, 1.0)
