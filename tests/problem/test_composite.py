"""prox of Ψ + R for every activation and every penalty, against a brute-force argmin and against Fermat's rule."""

from __future__ import annotations

import math
from collections.abc import Callable
from itertools import product

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from lifted_bregman import activations as act
from lifted_bregman import penalties as pen
from lifted_bregman.activations import Activation, Separable
from lifted_bregman.problem.composite import composite_prox
from tests import cases
from tests.problem.composite_oracle import Array, brute_force, brute_force_scalar, joint_case, penalty_value
from tests.sampling import every, pairwise

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


@settings(max_examples=10 * settings().max_examples)
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


@settings(max_examples=3 * settings().max_examples)
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


@settings(max_examples=2 * settings().max_examples)
@given(vectors, scale, scale)
def test_group_l2_on_softmax_satisfies_fermat(v: Tensor, a: float, b: float) -> None:
    u = composite_prox(act.Softmax(), pen.GroupL2(0.7), v, a, b)
    shown = u > 1e-290
    multiplier = (v - (1 - a) * u - a * u.log() - 0.7 * b * u / u.norm())[shown]
    assert float(multiplier.max() - multiplier.min()) <= 1e-11 * (1 + a * 300 + b)
    assert abs(float(u.sum()) - 1) <= 1e-14


@settings(max_examples=2 * settings().max_examples)
@given(vectors, scale, st.floats(0.0, 0.25), st.floats(0.25, 1.0))
def test_box_on_softmax_satisfies_fermat(v: Tensor, a: float, low: float, high: float) -> None:
    u = composite_prox(act.Softmax(), pen.Bounds(low, high), v, a, 1.0)
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


@pytest.mark.parametrize("activation", every(SEPARABLE, 2), ids=cases.name)
def test_groups_are_treated_one_by_one(activation: Activation) -> None:
    v = torch.linspace(-2, 2.5, 24, dtype=torch.float64).reshape(2, 2, 6)
    found = composite_prox(activation, pen.GroupL2(0.4, group_size=2), v, 0.6, 0.8)
    alone = [composite_prox(activation, pen.GroupL2(0.4), part, 0.6, 0.8) for part in v.split(2, dim=-1)]
    torch.testing.assert_close(found, torch.cat(alone, dim=-1), rtol=1e-13, atol=1e-15)


@pytest.mark.parametrize(("activation", "penalty"), pairwise(cases.ACTIVATIONS, cases.PENALTIES), ids=cases.name)
def test_shapes_and_layouts(activation: Activation, penalty: pen.Penalty) -> None:
    v = torch.linspace(-2, 2, 24, dtype=torch.float64).reshape(4, 3, 2).transpose(0, 2)  # not contiguous, 4 features
    whole = composite_prox(activation, penalty, v, 0.5, 0.7)
    assert whole.shape == v.shape and whole.dtype == v.dtype
    rows = [composite_prox(activation, penalty, row, 0.5, 0.7) for row in v.reshape(-1, 4)]
    torch.testing.assert_close(whole.reshape(-1, 4), torch.stack(rows), rtol=1e-12, atol=1e-14)
    assert composite_prox(activation, penalty, v[:0], 0.5, 0.7).shape == (0, 3, 4)
    assert bool(activation.contains(whole).all())
    assert bool((penalty.value(whole) < math.inf).all())
