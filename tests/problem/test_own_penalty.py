"""Penalties that a user writes: after the identity by their own proximal map, elsewhere by a registered rule."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import lifted_bregman as lb
from lifted_bregman import activations as act
from lifted_bregman.errors import CheckError, CompatibilityError, SettingError, TensorError
from lifted_bregman.penalties import registry
from tests import cases
from tests.problem.composite_oracle import golden, scalar_case

F64 = torch.float64


@dataclass(frozen=True)
class OneSided(lb.penalties.Penalty):
    """R(x) = weight Σ max(x_j, 0)."""

    weight: float

    def compute_value(self, x: Tensor) -> Tensor:
        return self.weight * x.clamp(min=0.0).sum(-1)

    def compute_prox(self, x: Tensor, scale: float) -> Tensor:
        return (x - scale * self.weight).clamp(min=0.0) + x.clamp(max=0.0)


class Stronger(OneSided):
    """A subclass, for which a rule besides that of its parent is registered."""


def one_sided(activation: act.Activation, penalty: OneSided, v: Tensor, a: float, b: float) -> Tensor:
    """The minimiser of f(u) + β max(u, 0): that of f(u) + βu if positive, that of f(u) if negative, else 0."""
    above, below = activation.prox(v - b * penalty.weight, a), activation.prox(v, a)
    return above.clamp(min=0.0) + below.clamp(max=0.0)


@pytest.fixture(autouse=True)
def rules() -> Iterator[None]:
    kept = dict(registry._RULES)
    yield
    registry._RULES.clear()
    registry._RULES.update(kept)


def argmin(activation: act.Activation, weight: float, v: np.ndarray, a: float, b: float) -> np.ndarray:
    low, high, psi = scalar_case(activation)

    def objective(u: np.ndarray) -> np.ndarray:
        return (u - v) ** 2 / 2 + a * psi(u) + b * weight * np.maximum(u, 0)

    ends = (np.full(v.shape, end, dtype=np.longdouble) for end in (low, high))
    return golden(objective, *ends, steps=120)[0]


V = np.linspace(-3.0, 3.0, 61).astype(np.longdouble)


def network(activation: nn.Module) -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 5), activation, nn.Linear(5, 2)).double()


def data() -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(1)
    return torch.randn(30, 4, generator=generator, dtype=F64), torch.randn(30, 2, generator=generator, dtype=F64)


def test_after_the_identity_the_penalty_needs_no_rule() -> None:
    found = lb.composite_prox(act.Identity(), OneSided(0.4), torch.from_numpy(V.astype(float)), 0.7, 1.5)
    expected = argmin(act.Identity(), 0.4, V, 0.7, 1.5)
    np.testing.assert_allclose(found.numpy(), expected.astype(float), atol=1e-8)


@pytest.mark.parametrize("activation", [act.Tanh(), act.Sigmoid(), act.LeakyReLU(0.1)], ids=repr)
def test_a_registered_rule_is_the_argmin(activation: act.Activation) -> None:
    lb.penalties.register_prox(act.Separable, OneSided)(one_sided)
    for a, b in [(0.3, 0.5), (1.0, 1.0), (3.0, 0.2)]:
        found = lb.composite_prox(activation, OneSided(0.4), torch.from_numpy(V.astype(float)), a, b)
        np.testing.assert_allclose(found.numpy(), argmin(activation, 0.4, V, a, b).astype(float), atol=1e-8)


@pytest.mark.parametrize("solver", [None, lb.ProximalGradient()], ids=["default", "ProximalGradient"])
@pytest.mark.parametrize("module", [nn.Identity(), nn.Tanh()], ids=["identity", "tanh"])
def test_a_network_trains_with_it(module: nn.Module, solver: object) -> None:
    """The objective with the penalty falls, and a heavier weight leaves a smaller sum of positive codes."""
    lb.penalties.register_prox(act.Tanh, OneSided)(one_sided)
    X, Y = data()
    positive = []
    for weight in (0.01, 1.0):
        problem = lb.lift(network(module), loss=lb.SquaredError(), penalties={1: OneSided(weight)})
        start = float(problem.objective(X, Y))
        assert lb.fit(problem, (X, Y), solver, epochs=30).history[-1]["objective"] < start
        positive.append(float(problem.forward_state(X)[1].clamp(min=0.0).sum()))
    assert positive[1] < positive[0]


def test_where_there_is_no_rule_the_error_names_the_function_that_registers_one() -> None:
    with pytest.raises(CompatibilityError, match=r"penalties\[1\].*lb\.penalties\.register_prox\(Tanh, OneSided\)"):
        lb.lift(network(nn.Tanh()), loss=lb.SquaredError(), penalties={1: OneSided(0.1)})


def test_the_most_special_rule_is_used() -> None:
    def named(value: float):  # type: ignore[no-untyped-def]
        return lambda activation, penalty, v, a, b: torch.full_like(v, value)

    v = torch.zeros(2, 3, dtype=F64)
    for kinds, value in {
        (act.Activation, OneSided): 0.1,
        (act.Separable, OneSided): 0.2,
        (act.Tanh, OneSided): 0.3,
        (act.Activation, Stronger): 0.4,
    }.items():
        lb.penalties.register_prox(*kinds)(named(value))
    for activation, penalty, expected in [
        (act.Softmax(), OneSided(1.0), 0.1),
        (act.ReLU(), OneSided(1.0), 0.2),
        (act.Tanh(), OneSided(1.0), 0.3),
        (act.Tanh(), Stronger(1.0), 0.4),  # a rule for this penalty comes before one for its parent
    ]:
        assert float(lb.composite_prox(activation, penalty, v, 1.0, 1.0)[0, 0]) == expected


def test_register_prox_refuses_known_pairs_instances_and_non_functions() -> None:
    with pytest.raises(SettingError, match="has a rule for Tanh and L1"):
        lb.penalties.register_prox(act.Tanh, lb.penalties.L1)
    with pytest.raises(SettingError, match=r"a subclass of lb\.activations\.Activation"):
        lb.penalties.register_prox(act.Tanh(), OneSided)  # type: ignore[arg-type]
    with pytest.raises(SettingError, match=r"a subclass of lb\.penalties\.Penalty"):
        lb.penalties.register_prox(act.Tanh, OneSided(0.1))  # type: ignore[arg-type]
    with pytest.raises(SettingError, match="a function"):
        lb.penalties.register_prox(act.Tanh, OneSided)(3)  # type: ignore[arg-type]


def test_a_rule_that_returns_another_shape_is_an_error() -> None:
    lb.penalties.register_prox(act.Tanh, OneSided)(lambda activation, penalty, v, a, b: v.sum(-1))
    with pytest.raises(TensorError, match=r"registered for Tanh and OneSided returned \(2,\).*\(2, 3\)"):
        lb.composite_prox(act.Tanh(), OneSided(1.0), torch.zeros(2, 3, dtype=F64), 1.0, 1.0)


# The check


Z = torch.randn(10, 4, generator=torch.Generator().manual_seed(2), dtype=F64)


@pytest.mark.parametrize("penalty", [*cases.PENALTIES, OneSided(0.3)], ids=cases.name)
def test_check_penalty_accepts_right_penalties(penalty: lb.penalties.Penalty) -> None:
    lb.penalties.register_prox(act.Tanh, OneSided)(one_sided)
    lb.check_penalty(penalty, Z)
    lb.check_penalty(penalty, Z, act.Tanh())


class ScaleIgnored(OneSided):
    def compute_prox(self, x: Tensor, scale: float) -> Tensor:
        return super().compute_prox(x, 1.0)


class Unbounded(OneSided):
    """A value that does not belong to the proximal map."""

    def compute_value(self, x: Tensor) -> Tensor:
        return torch.where((x > 0.0).any(-1), math.inf, 0.0).to(x.dtype)


def test_check_penalty_finds_wrong_proximal_maps_and_rules() -> None:
    with pytest.raises(CheckError, match=r"does not minimise.*sample"):
        lb.check_penalty(ScaleIgnored(0.3), Z)
    with pytest.raises(CheckError, match="infinite"):
        lb.check_penalty(Unbounded(0.3), Z)
    # for sigmoid the two proximal maps one after the other are not that of the sum
    lb.penalties.register_prox(act.Sigmoid, OneSided)(
        lambda activation, penalty, v, a, b: activation.prox(penalty.prox(v, b), a)
    )
    with pytest.raises(CheckError, match=r"does not minimise.*sample"):
        lb.check_penalty(OneSided(0.3), Z, act.Sigmoid())
