"""The public checks find what is wrong: each passes on a right activation (test_theorem) and fails on a broken one."""

from __future__ import annotations

from dataclasses import dataclass

import pytest
import torch

import lifted_bregman as lb
from lifted_bregman import activations as act
from lifted_bregman import errors
from lifted_bregman.maps import Dense

Z = torch.tensor([[-1.7, 0.4, 2.2], [0.3, -0.6, 1.1], [0.0, 0.9, -2.4], [3.0, -0.2, 0.5]], dtype=torch.float64)


@dataclass(frozen=True)
class ScaleIgnored(act.Tanh):
    """prox_Ψ where prox_{cΨ} belongs."""

    def compute_prox(self, z, scale):
        return z.tanh()


@dataclass(frozen=True)
class NoHalf(act.Softplus):
    def _phi_star(self, z):
        return 2.0 * super()._phi_star(z)


@dataclass(frozen=True)
class WrongPotential(act.ISRU):
    def _psi(self, x):
        return super()._psi(x) + 0.5 * x.square()


@dataclass(frozen=True)
class TooSteep(act.Identity):
    def compute_map(self, z):
        return 1.1 * z

    def compute_prox(self, z, scale):
        return 1.1 * z


@dataclass(frozen=True)
class SmallerLoss(act.ReLU):
    def _divergence(self, x, z, u):
        return torch.zeros_like(x)


@dataclass(frozen=True)
class LeavesTheDomain(act.Box):
    def compute_prox(self, z, scale):
        return z.clamp(self.low, self.high + 0.1)


@pytest.mark.parametrize(
    "broken", [ScaleIgnored(), WrongPotential(), TooSteep(), LeavesTheDomain()], ids=lambda a: type(a).__name__
)
def test_check_prox_finds_wrong_proximal_maps(broken):
    with pytest.raises(errors.CheckError, match="sample"):
        lb.check_prox(broken, Z)


@pytest.mark.parametrize("broken", [NoHalf(), WrongPotential(), TooSteep()], ids=lambda a: type(a).__name__)
def test_check_conjugate_finds_wrong_conjugates(broken):
    with pytest.raises(errors.CheckError, match="sample"):
        lb.check_conjugate(broken, broken(Z.flip(0)), Z)


@pytest.mark.parametrize("broken", [NoHalf(), WrongPotential(), SmallerLoss()], ids=lambda a: type(a).__name__)
def test_check_bregman_finds_wrong_losses(broken):
    with pytest.raises(errors.CheckError, match="sample"):
        lb.check_bregman(broken, broken(Z.flip(0)), Z)


def test_checks_refuse_points_that_are_not_finite_rows():
    with pytest.raises(errors.TensorError, match="two samples"):
        lb.check_prox(act.ReLU(), Z[:1])
    with pytest.raises(errors.CheckError, match="not in the domain"):
        lb.check_conjugate(act.ReLU(), -torch.ones(2, 2, dtype=torch.float64), Z[:2, :2])
    with pytest.raises(errors.TensorError, match="float64"):
        lb.check_map(torch.nn.Linear(3, 2), Z.float())


class ForgetsTheBias(Dense):
    def pull_back_parameters(self, x, d, scale=1.0):
        gradients = super().pull_back_parameters(x, d, scale)
        return gradients | {"bias": torch.zeros_like(gradients["bias"])}


class Transposed(Dense):
    def pull_back_input(self, x, d):
        return d @ self.module.weight.detach().T if d.shape[-1] == x.shape[-1] else super().pull_back_input(x, d)


def test_check_map_accepts_right_maps_and_finds_wrong_ones():
    torch.manual_seed(0)
    linear = torch.nn.Linear(3, 3).double()
    kept = linear.weight.detach().clone()
    lb.check_map(linear, Z)
    lb.check_map(Dense(linear), Z)
    lb.check_map(torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.Tanh()).double(), Z)  # any differentiable module
    for broken in (ForgetsTheBias(linear), Transposed(linear)):
        with pytest.raises(errors.CheckError, match="transposed Jacobian"):
            lb.check_map(broken, Z)
    with pytest.raises(errors.CheckError, match="two calls"):
        lb.check_map(torch.nn.Dropout(0.5), Z)
    with pytest.raises(errors.CheckError, match="other samples"):
        lb.check_map(torch.nn.BatchNorm1d(3, track_running_stats=False).double(), Z)
    assert torch.equal(linear.weight, kept)
