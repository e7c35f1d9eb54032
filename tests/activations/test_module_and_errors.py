"""Activations as modules, the mode that forbids their derivatives, settings that are refused, and bad tensors."""

from __future__ import annotations

import math

import pytest
import torch
from torch import nn

import lifted_bregman as lb
from lifted_bregman import activations as act
from lifted_bregman import errors
from tests import cases


@pytest.mark.parametrize("activation", cases.ACTIVATIONS, ids=cases.name)
def test_module_applies_the_activation_and_is_differentiable(activation):
    z = torch.tensor([[0.31, -0.72, 1.4], [0.05, 0.63, -2.1]], dtype=torch.float64)
    module = activation.as_module()
    torch.testing.assert_close(module(z), activation(z), rtol=0.0, atol=0.0)
    assert torch.autograd.gradcheck(module, z.clone().requires_grad_(), eps=1e-7, atol=1e-6)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("activation", cases.SCALAR_ACTIVATIONS, ids=cases.name)
def test_large_arguments_of_both_signs_have_finite_derivatives_in_the_range_of_a_proximal_map(activation, dtype):
    """σ is non-decreasing and 1-Lipschitz: every derivative is in [0, 1], also beside arguments that overflow."""
    z = torch.tensor([[-1e4, -800.0, -100.0, 0.3, 100.0, 800.0, 1e4]], dtype=dtype, requires_grad=True)
    (slope,) = torch.autograd.grad(activation.as_module()(z).sum(), z)
    assert bool(slope.isfinite().all()) and 0.0 <= float(slope.min()) and float(slope.max()) <= 1.0


TORCH_ACTIVATIONS = [
    nn.ReLU(), nn.ReLU6(), nn.Hardtanh(), nn.LeakyReLU(0.1), nn.ELU(), nn.CELU(), nn.Softplus(), nn.Softsign(),
    nn.Tanh(), nn.Sigmoid(), nn.Softmax(-1), nn.Softshrink(), nn.LogSigmoid(), nn.Hardsigmoid(),
    nn.ReLU(inplace=True), nn.GELU(), nn.SiLU(),
]  # fmt: skip


@pytest.mark.parametrize(
    "module",
    [*TORCH_ACTIVATIONS, *(a.as_module() for a in cases.ACTIVATIONS)],
    ids=lambda m: str(m)[:40].split(" at ")[0],
)
def test_back_propagation_raises_where_derivatives_are_forbidden(module):
    model = nn.Sequential(nn.Linear(3, 4), module, nn.Linear(4, 2))
    x = torch.ones(5, 3)
    model(x).sum().backward()  # allowed outside
    with lb.forbid_activation_derivatives():
        output = model(x)  # applying is allowed
        with pytest.raises(errors.ActivationDerivativeError, match="lifted solver"):
            output.sum().backward()
        nn.Linear(3, 2)(x).sum().backward()  # maps may be differentiated
        lb.BregmanLoss(act.Tanh())(nn.Linear(3, 2)(x), torch.zeros(5, 2)).backward()  # and Bregman losses need no σ'
    model(x).sum().backward()  # and allowed again


def test_the_quadratic_penalty_differentiates_its_activation():
    z = torch.tensor([[0.3, -0.4]], requires_grad=True)
    with lb.forbid_activation_derivatives(), pytest.raises(errors.ActivationDerivativeError):
        lb.QuadraticPenalty(act.Arctan())(z, torch.zeros(1, 2)).backward()


@pytest.mark.parametrize(
    ("make", "says"),
    [
        (lambda: act.LeakyReLU(1.5), "1-Lipschitz"),
        (lambda: act.LeakyReLU(0.0), "greater than 0"),
        (lambda: act.LeakyReLU(-0.1), "greater than 0"),
        (lambda: act.Box(1.0, 1.0), "low < high"),
        (lambda: act.Box(0.0, math.inf), "ReLU"),
        (lambda: act.Box(math.nan, 1.0), "low < high"),
        (lambda: act.SoftThreshold(0.0), "greater than 0"),
        (lambda: act.SoftThreshold(math.nan), "greater than 0"),
        (lambda: act.SoftThreshold("a lot"), "a lot"),
        (lambda: act.NonNegativeSoftThreshold(-1.0), "greater than 0"),
        (lambda: act.ELU(1.01), "slope exceeds 1"),
        (lambda: act.GroupSoftThreshold(-0.5), "greater than 0"),
        (lambda: act.BallProjection(0.0), "greater than 0"),
    ],
)
def test_settings_that_make_no_proximal_map_are_refused(make, says):
    with pytest.raises(errors.SettingError, match=says) as caught:
        make()
    assert isinstance(caught.value, ValueError)


@pytest.mark.parametrize("activation", cases.ACTIVATIONS, ids=cases.name)
def test_bad_scales_and_tensors_are_refused(activation):
    z = torch.zeros(2, 3)
    for scale in (0.0, -1.0, math.inf, math.nan, "big", None):
        with pytest.raises(errors.SettingError, match="scale"):
            activation.prox(z, scale)
    for bad in (
        torch.zeros(2, 3, dtype=torch.int64),
        torch.zeros(2, 3, dtype=torch.float16),
        [0.0, 1.0],
        torch.tensor(1.0),
    ):
        for method in (activation, activation.prox, activation.potential, activation.conjugate, activation.contains):
            with pytest.raises(errors.TensorError, match=type(activation).__name__):
                method(bad)
    with pytest.raises(errors.TensorError, match="agree"):
        activation.bregman(z, torch.zeros(3, 3))
    with pytest.raises(errors.TensorError, match="agree"):
        activation.bregman(z, z.double())


@pytest.mark.parametrize("activation", cases.ACTIVATIONS, ids=cases.name)
def test_nan_ends_the_iteration_and_stays_nan(activation):
    """NaN in gives NaN out after boundedly many iterations; it never turns into a number, and is in no domain."""
    z = torch.tensor([[math.nan, 0.3, 0.1], [0.2, 0.1, 0.4]])
    for scale in (1.0, 0.5, 3.0):
        u = activation.prox(z, scale)
        assert bool(u[0].isnan().any())
        torch.testing.assert_close(u[1], activation.prox(z[1:], scale)[0])
    assert not bool(activation.contains(z)[0])


def test_equal_settings_are_equal_activations():
    assert act.SoftThreshold(0.3) == act.SoftThreshold(0.3) != act.SoftThreshold(0.4)
    assert len({act.Tanh(), act.Tanh(), act.Box()}) == 2
    with pytest.raises(AttributeError):
        act.SoftThreshold(0.3).threshold = 0.4
