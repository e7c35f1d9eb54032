"""Activations of several variables that a user writes from `Joint`: two methods, and the library works out the rest."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import pytest
import torch
from scipy.optimize import minimize
from torch import Tensor, nn

import lifted_bregman as lb
from lifted_bregman import activations as act
from lifted_bregman.errors import CheckError

F64 = torch.float64


@dataclass(frozen=True)
class Cone(act.Joint):
    """The projection onto {(y, t): ‖y‖ <= t}, t the last component."""

    def compute_prox(self, z: Tensor, scale: float) -> Tensor:
        y, t = z[..., :-1], z[..., -1:]
        norm = y.norm(dim=-1, keepdim=True)
        edge = 0.5 * (norm + t)
        side = torch.cat([y * (edge / norm.clamp(min=1e-30)), edge], -1)
        return torch.where(norm <= t, z, torch.where(norm <= -t, 0.0 * z, side))

    def compute_potential(self, x: Tensor) -> Tensor:
        rounding = 8.0 * torch.finfo(x.dtype).eps * x.norm(dim=-1)
        return torch.where(x[..., :-1].norm(dim=-1) <= x[..., -1] + rounding, 0.0, math.inf).to(x.dtype)


@dataclass(frozen=True)
class ElasticGroup(act.Joint):
    """Ψ(x) = a‖x‖ + ½b‖x‖²; prox_{cΨ}(z) = max(1 - ca/‖z‖, 0) z/(1 + cb)."""

    a: float = 0.4
    b: float = 1.5

    def compute_prox(self, z: Tensor, scale: float) -> Tensor:
        norm = z.norm(dim=-1, keepdim=True).clamp(min=1e-30)
        return z * (1.0 - scale * self.a / norm).clamp(min=0.0) / (1.0 + scale * self.b)

    def compute_potential(self, x: Tensor) -> Tensor:
        return self.a * x.norm(dim=-1) + 0.5 * self.b * x.square().sum(-1)


class ScaleIgnored(ElasticGroup):
    def compute_prox(self, z: Tensor, scale: float) -> Tensor:
        return super().compute_prox(z, 1.0)


OWN = [Cone(), ElasticGroup()]


def points() -> Tensor:
    near = torch.randn(12, 4, generator=torch.Generator().manual_seed(0), dtype=F64)
    return torch.cat([near, torch.tensor([[0.3, 0.1, -0.2, 2.0], [0.3, 0.1, -0.2, -2.0], [3.0, -1.0, 2.0, 0.1]])])


@pytest.mark.parametrize("activation", OWN, ids=repr)
def test_the_checks_pass(activation: act.Activation) -> None:
    z = points()
    lb.check_prox(activation, z)
    lb.check_conjugate(activation, activation(z.flip(0)), z)
    lb.check_bregman(activation, activation(z.flip(0)), z)


def test_the_checks_find_a_wrong_scale() -> None:
    with pytest.raises(CheckError, match="does not minimise"):
        lb.check_prox(ScaleIgnored(), points())


@pytest.mark.parametrize("scale", [0.3, 2.0])
@pytest.mark.parametrize("activation", OWN, ids=repr)
def test_the_conjugate_is_the_supremum(activation: act.Activation, scale: float) -> None:
    """φ*(z) = sup_x <x, z> - φ(x), by SciPy; for the cone over (y, t) with t = ‖y‖ + e², which parametrises it."""
    z = scale * points()[:3]

    def point(free: np.ndarray) -> Tensor:
        x = torch.from_numpy(free)
        return torch.cat([x[:-1], x[:-1].norm().reshape(1) + x[-1:] ** 2]) if isinstance(activation, Cone) else x

    for row, found in zip(z, activation.conjugate(z), strict=True):

        def negative(free: np.ndarray, row: Tensor = row) -> float:
            x = point(free)
            return float(0.5 * x @ x + activation.potential(x) - x @ row)

        starts = [np.full(4, 0.1), row.numpy(), -row.numpy()]
        options = {"xatol": 1e-10, "fatol": 1e-14, "maxiter": 20000, "maxfev": 20000}
        best = min(minimize(negative, s, method="Nelder-Mead", options=options).fun for s in starts)
        assert float(found) == pytest.approx(-best, abs=1e-7)


class OnlyTwo(act.Joint):
    """A library activation reduced to the two methods that a user must give."""

    def __init__(self, full: act.Activation) -> None:
        self.full = full

    def compute_prox(self, z: Tensor, scale: float) -> Tensor:
        return self.full.prox(z, scale)

    def compute_potential(self, x: Tensor) -> Tensor:
        return self.full.potential(x)


@pytest.mark.parametrize("dtype", [torch.float32, F64], ids=str)
@pytest.mark.parametrize("full", [act.GroupSoftThreshold(0.7), act.BallProjection(1.3), act.Softmax()], ids=repr)
def test_derived_methods_agree_with_closed_forms(full: act.Activation, dtype: torch.dtype) -> None:
    own, z = OnlyTwo(full), points().to(dtype)
    x = full.prox(z.flip(0), 0.4)
    close = {"rtol": 1e-5, "atol": 1e-6} if dtype == torch.float32 else {"rtol": 1e-11, "atol": 1e-13}
    torch.testing.assert_close(own(z), full(z))
    torch.testing.assert_close(own.conjugate(z), full.conjugate(z), **close)
    torch.testing.assert_close(own.bregman(x, z), full.bregman(x, z), **close)
    assert (own.bregman(own(z), z) == 0.0).all()
    outside = torch.full_like(x, math.nan)
    outside[:7] = 3.0 * x[:7] + 5.0
    assert torch.equal(own.contains(x), full.contains(x))
    assert torch.equal(own.contains(outside), full.contains(outside))
    torch.testing.assert_close(own.bregman(outside, z)[7:], torch.full((8,), math.inf, dtype=dtype))


@pytest.mark.parametrize("activation", OWN, ids=repr)
@pytest.mark.parametrize("solver", [None, lb.ProximalGradient()], ids=["default", "ProximalGradient"])
def test_a_network_trains_with_it(activation: act.Activation, solver: object) -> None:
    torch.manual_seed(0)
    teacher, model = (
        nn.Sequential(nn.Linear(6, 5), activation.as_module(), nn.Linear(5, 2)).double() for _ in range(2)
    )
    X = torch.randn(60, 6, dtype=F64)
    Y = teacher(X).detach()
    problem = lb.lift(model, loss=lb.SquaredError())
    start = float(problem.objective(X, Y))
    with lb.forbid_activation_derivatives():
        result = lb.fit(problem, (X, Y), solver, epochs=40)
    assert result.history[-1]["objective"] < 0.5 * start
    torch.testing.assert_close(problem.forward_state(X)[1], model[:2](X).detach())


def test_infinity_is_in_no_domain() -> None:
    assert not bool(Cone().contains(torch.tensor([0.0, 0.0, math.inf])))


def test_a_subclass_needs_both_methods() -> None:
    class Nothing(act.Joint):
        pass

    with pytest.raises(TypeError, match=r"compute_potential.*compute_prox"):
        Nothing()
