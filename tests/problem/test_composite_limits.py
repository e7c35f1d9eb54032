"""prox of Ψ + R at its limits: extreme values, pairs without a rule, constraints that exclude each other, NaN."""

from __future__ import annotations

import math
from collections.abc import Callable
from itertools import product

import pytest
import torch
from torch import Tensor

from lifted_bregman import activations as act
from lifted_bregman import penalties as pen
from lifted_bregman.activations import Activation
from lifted_bregman.activations.roots import ROOT_LIMIT, increasing_root
from lifted_bregman.errors import CompatibilityError, SettingError, TensorError
from lifted_bregman.problem import _composite_roots
from lifted_bregman.problem.composite import composite_prox, require_composable
from tests import cases
from tests.sampling import pairwise

# Extremes


@pytest.mark.parametrize(("activation", "penalty"), pairwise(cases.ACTIVATIONS, cases.PENALTIES), ids=cases.name)
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

    monkeypatch.setattr(_composite_roots, "increasing_root", counted)
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
    u = _composite_roots.simplex_component(r, a)
    monkeypatch.setattr(_composite_roots, "COMPONENT_LIMIT", 500)
    assert torch.equal(u, _composite_roots.simplex_component(r, a))
    # an error of one unit in r is one of 1/g'(y) units in y
    unit = torch.finfo(torch.float64).eps
    assert ((u - y.exp()).abs() <= 4 * unit * u * (1 + (1 + r.abs()) / ((1 - a) * y.exp() + a))).all()


# What has no rule


class Reversal(act.Activation):
    """A joint activation that the rules do not know: the identity."""

    joint = True

    def compute_map(self, z: Tensor) -> Tensor:
        return z.clone()

    def compute_prox(self, z: Tensor, scale: float) -> Tensor:
        return z.clone()

    def compute_potential(self, x: Tensor) -> Tensor:
        return 0.0 * x.sum(-1)

    def compute_conjugate(self, z: Tensor) -> Tensor:
        return 0.5 * z.square().sum(-1)

    def compute_contains(self, x: Tensor) -> Tensor:
        return x.isfinite().all(-1)

    def compute_bregman(self, x: Tensor, z: Tensor) -> Tensor:
        return 0.5 * (x - z).square().sum(-1)


class Mine(pen.Penalty):
    def compute_value(self, x: Tensor) -> Tensor:
        return x.sum(-1)

    def compute_prox(self, x: Tensor, scale: float) -> Tensor:
        return x - scale


V = torch.tensor([[0.3, -2.0, 0.7, 1.1]], dtype=torch.float64)


def test_a_users_joint_activation_has_the_rules_for_any_activation() -> None:
    activation = Reversal()
    torch.testing.assert_close(composite_prox(activation, pen.SquaredL2(2.0), V, 1.0, 0.5), V / 2)
    expected = pen.GroupL2(0.4).prox(V, 2.0)
    torch.testing.assert_close(composite_prox(activation, pen.GroupL2(0.4), V, 1.0, 2.0), expected, rtol=1e-13, atol=0)


@pytest.mark.parametrize(
    ("activation", "penalty", "words"),
    [
        (
            Reversal(),
            pen.L1(1.0),
            ["Required", "acts on each number alone", "Softmax", "Missing", "register_prox(Reversal, L1)"],
        ),
        (Reversal(), pen.NonNegative(), ["Required", "GroupSoftThreshold", "Missing", "Reversal"]),
        (Reversal(), pen.Bounds(-1.0, 1.0), ["Required", "BallProjection", "Missing", "Reversal"]),
        (act.Tanh(), Mine(), ["Required", "L1", "GroupL2", "Missing", "register_prox(Tanh, Mine)"]),
        (act.Box(-2.0, -1.0), pen.NonNegative(), ["Box(low=-2.0, high=-1.0)", "NonNegative()", "widen"]),
        (act.Tanh(), pen.Bounds(1.5, 2.0), ["output of Tanh() satisfies Bounds(low=1.5, high=2.0)", "in common"]),
        (act.ReLU(), pen.Bounds(-2.0, -1.0), ["ReLU()", "in common"]),
        (act.Softmax(), pen.Bounds(0.3, 1.0), ["Softmax() with 4 features", "widen"]),
        (act.Sparsemax(), pen.Bounds(0.0, 0.2), ["Sparsemax()", "4 features"]),
        (act.BallProjection(1.0), pen.Bounds(0.6, 1.0), ["BallProjection", "4 features"]),
        (act.Softmax(), pen.GroupL2(1.0, group_size=2), ["couples all 4 features", "leave out group_size"]),
        (act.Tanh(), pen.GroupL2(1.0, group_size=3), ["groups of 3", "4 features", "[1, 2, 4]"]),
    ],
)
def test_a_pair_without_a_rule_is_refused_before_work_starts(
    activation: Activation, penalty: pen.Penalty, words: list[str]
) -> None:
    with pytest.raises(CompatibilityError) as caught:
        require_composable(activation, penalty, 4)
    assert all(word in str(caught.value) for word in words), str(caught.value)
    with pytest.raises(CompatibilityError):
        composite_prox(activation, penalty, V, 1.0, 1.0)


def test_feasible_limits_are_accepted() -> None:
    for activation, penalty in [
        (act.Softmax(), pen.Bounds(0.25, 1.0)),
        (act.Sparsemax(), pen.Bounds(0.0, 0.25)),
        (act.BallProjection(1.0), pen.Bounds(0.5, 1.0)),
        (act.Tanh(), pen.Bounds(1.0, 2.0)),
        (act.FromScalar(torch.nn.functional.logsigmoid), pen.NonNegative()),
    ]:
        require_composable(activation, penalty)
        require_composable(activation, penalty, 4)
        corner = {act.Tanh: 1.0, act.FromScalar: 0.0, act.BallProjection: 0.5}.get(type(activation), 0.25)
        expected = torch.full_like(V, corner)
        torch.testing.assert_close(composite_prox(activation, penalty, V, 1.0, 1.0), expected, rtol=1e-12, atol=1e-12)
    require_composable(act.Tanh(), None, 4)


@pytest.mark.parametrize(("activation", "penalty"), pairwise(cases.ACTIVATIONS, cases.PENALTIES), ids=cases.name)
def test_nan_stays_nan(activation: Activation, penalty: pen.Penalty) -> None:
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


def test_no_graph_is_recorded_and_bad_input_is_refused() -> None:
    assert not composite_prox(act.Tanh(), pen.L1(0.1), V.clone().requires_grad_(), 1.0, 1.0).requires_grad
    with pytest.raises(SettingError, match="penalty_scale"):
        composite_prox(act.Tanh(), pen.L1(0.1), V, 1.0, 0.0)
    with pytest.raises(SettingError, match="activation_scale"):
        composite_prox(act.Tanh(), pen.L1(0.1), V, -1.0, 1.0)
    with pytest.raises(TensorError):
        composite_prox(act.Tanh(), pen.L1(0.1), V.long(), 1.0, 1.0)
