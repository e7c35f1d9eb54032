"""Losses against torch's own, autograd in float64, and their definitions; targets that are refused."""

from __future__ import annotations

import math

import pytest
import torch
import torch.nn.functional as F

import lifted_bregman as lb
from lifted_bregman import activations as act
from lifted_bregman import errors
from tests import cases

Z = torch.tensor([[0.3, -1.2, 2.0], [1.1, 0.4, -0.7]], dtype=torch.float64)
LABELS = torch.tensor([2, 0])


def test_squared_error_is_half_the_squared_distance():
    """Mean over samples, sum over features, factor ½: checked against torch's sum-reduced MSE."""
    target = torch.tensor([[1.0, 0.5, -2.0], [0.0, 3.0, 1.0]], dtype=torch.float64)
    assert float(lb.SquaredError()(Z, target)) == pytest.approx(float(F.mse_loss(Z, target, reduction="sum")) / 2 / 2)
    assert float(lb.SquaredError("sum")(Z, target)) == pytest.approx(float(F.mse_loss(Z, target, reduction="sum")) / 2)
    assert lb.SquaredError("none")(Z, target).shape == (2,)
    one_hot = F.one_hot(LABELS, 3).double()
    assert torch.equal(lb.SquaredError()(Z, LABELS), lb.SquaredError()(Z, one_hot))


@pytest.mark.parametrize("wrong", [torch.nn.ReLU(), act.ReLU, torch.relu])
def test_an_activation_of_torch_is_refused_by_its_name(wrong):
    for call in (lambda: lb.bregman_loss(Z, Z, wrong), lambda: lb.BregmanLoss(wrong)):
        with pytest.raises(errors.SettingError, match=r"activation is a \S+\.\S+; it must be one of lb\.activations"):
            call()


@pytest.mark.parametrize("dtype", [torch.int8, torch.int16, torch.uint8, torch.bool, torch.float16])
def test_targets_of_any_real_type(dtype):
    one_hot = F.one_hot(LABELS, 3)
    assert torch.equal(lb.SquaredError()(Z, one_hot.to(dtype)), lb.SquaredError()(Z, one_hot.double()))


def test_cross_entropy_is_torchs():
    for reduction in ("mean", "sum", "none"):
        ours, theirs = lb.CrossEntropy(reduction)(Z, LABELS), F.cross_entropy(Z, LABELS, reduction=reduction)
        torch.testing.assert_close(ours, theirs, rtol=1e-14, atol=0.0)
    assert torch.equal(lb.CrossEntropy()(Z, LABELS), lb.CrossEntropy()(Z, F.one_hot(LABELS, 3).double()))
    soft = torch.tensor([[0.2, 0.3, 0.5], [0.6, 0.4, 0.0]], dtype=torch.float64)
    entropy = -torch.special.xlogy(soft, soft).sum(-1)
    torch.testing.assert_close(lb.CrossEntropy("none")(Z, soft), F.cross_entropy(Z, soft, reduction="none") - entropy)


def test_smoothed_labels_give_torchs_loss_less_the_entropy_of_the_target_and_its_gradient():
    epsilon, ours, theirs = 0.1, Z.clone().requires_grad_(), Z.clone().requires_grad_()
    value = lb.CrossEntropy("none", label_smoothing=epsilon)(ours, LABELS)
    expected = F.cross_entropy(theirs, LABELS, reduction="none", label_smoothing=epsilon)
    high, low = 1.0 - epsilon + epsilon / 3, epsilon / 3
    entropy = -(high * math.log(high) + 2 * low * math.log(low))
    torch.testing.assert_close(value, expected - entropy, rtol=1e-12, atol=0.0)
    value.sum().backward()
    expected.sum().backward()
    torch.testing.assert_close(ours.grad, theirs.grad, rtol=1e-12, atol=1e-15)
    torch.testing.assert_close(
        ours.grad, Z.softmax(1) - (0.9 * F.one_hot(LABELS, 3).double() + 0.1 / 3), rtol=1e-12, atol=0.0
    )


def test_labels_are_smoothed_once_and_soft_targets_are_taken_as_they_are():
    loss, soft = lb.CrossEntropy(label_smoothing=0.2), torch.tensor([[0.2, 0.3, 0.5], [0.0, 1.0, 0.0]], dtype=Z.dtype)
    once = loss.encode(LABELS, Z)
    torch.testing.assert_close(once, 0.8 * F.one_hot(LABELS, 3).double() + 0.2 / 3, rtol=1e-15, atol=0.0)
    assert torch.equal(loss.encode(once, Z), once)
    assert torch.equal(loss.encode(soft, Z), soft)
    with pytest.raises(errors.TensorError, match=r"one-hot vectors.*label_smoothing=0\.2.*integer labels"):
        loss(Z, F.one_hot(LABELS, 3).double())
    assert torch.equal(lb.CrossEntropy(label_smoothing=0.0).encode(LABELS, Z), F.one_hot(LABELS, 3).double())


@pytest.mark.parametrize("wrong", [-0.1, 1.0, math.nan, "a", True])
def test_smoothing_out_of_range_is_refused(wrong):
    with pytest.raises(errors.SettingError, match="label_smoothing is"):
        lb.CrossEntropy(label_smoothing=wrong)


@pytest.mark.parametrize("activation", cases.ACTIVATIONS, ids=cases.name)
def test_gradient_of_every_bregman_loss(activation):
    """What autograd returns equals finite differences of the loss itself, and (σ(z) - x)/s; gradcheck in float64."""
    target = cases.domain_points(activation, Z.flip(0))
    z = Z.clone().requires_grad_()
    loss = lb.BregmanLoss(activation)
    loss(z, target).backward()
    torch.testing.assert_close(z.grad, (activation(Z) - target) / 2, rtol=1e-15, atol=0.0)
    assert torch.autograd.gradcheck(lambda w: loss(w, target), (z,), eps=1e-6, atol=1e-7)


def test_gradients_are_multiplied_by_the_incoming_gradient():
    z = Z.clone().requires_grad_()
    target = torch.zeros_like(Z)
    weights = torch.tensor([2.0, -3.0], dtype=torch.float64)
    (lb.BregmanLoss(act.Tanh(), reduction="none")(z, target) * weights).sum().backward()
    torch.testing.assert_close(z.grad, weights.unsqueeze(-1) * torch.tanh(Z))


def test_smooth_losses_against_autograd_of_their_definition():
    """φ*(z) - <x, z> written with torch functions that autograd differentiates by itself."""
    target = torch.tensor([[0.2, 0.7, 0.9], [0.5, 0.1, 0.3]], dtype=torch.float64)
    for activation, conjugate in (
        (act.Tanh(), lambda z: torch.log(torch.cosh(z))),
        (act.Sigmoid(), F.softplus),
        (act.Arctan(), lambda z: z * torch.atan(z) - 0.5 * torch.log1p(z * z)),
        (act.Asinh(), lambda z: z * torch.asinh(z) - torch.sqrt(1 + z * z)),
    ):
        ours, theirs = Z.clone().requires_grad_(), Z.clone().requires_grad_()
        lb.BregmanLoss(activation, "sum")(ours, target).backward()
        (conjugate(theirs) - target * theirs).sum().backward()
        torch.testing.assert_close(ours.grad, theirs.grad, rtol=1e-12, atol=1e-12)


def test_second_derivatives_and_derivatives_in_x_are_refused():
    z = Z.clone().requires_grad_()
    (gradient,) = torch.autograd.grad(lb.BregmanLoss(act.ReLU())(z, Z.relu()), z, create_graph=True)
    with pytest.raises(RuntimeError):
        gradient.sum().backward()
    with pytest.raises(errors.TensorError, match=r"detach\(\)"):
        lb.bregman_loss(Z.relu().requires_grad_(), Z, act.ReLU())


def test_the_quadratic_penalty_has_the_gradient_with_sigma_prime():
    """½‖x - σ(z)‖², with the gradient that contains σ'."""
    z = Z.clone().requires_grad_()
    x = torch.full_like(Z, 0.25)
    lb.QuadraticPenalty(act.Tanh())(z, x).backward()
    u = torch.tanh(Z)
    torch.testing.assert_close(z.grad, (1 - u.square()) * (u - x) / 2)
    values = lb.QuadraticPenalty(act.Softmax(), "none")(Z, x)
    torch.testing.assert_close(values, 0.5 * (x - torch.softmax(Z, -1)).square().sum(-1))


BAD_TARGETS = [
    (lb.CrossEntropy(), torch.tensor([2, 3]), errors.TensorError, "sample 1 is 3.*0 to 2"),
    (lb.CrossEntropy(), torch.tensor([-1, 0]), errors.TensorError, "sample 0 is -1"),
    (lb.CrossEntropy(), torch.tensor([0, 1, 2]), errors.TensorError, "one integer"),
    (lb.CrossEntropy(), torch.tensor([[0.5, 0.5, 0.0], [0.5, 0.6, 0.0]]), errors.DomainError, "sample 1"),
    (lb.CrossEntropy(), torch.tensor([[0.5, 0.5, 0.0], [1.5, -0.5, 0.0]]), errors.DomainError, "sample 1"),
    (lb.SquaredError(), torch.tensor([0, 7]), errors.TensorError, "sample 1 is 7"),
    (lb.SquaredError(), torch.zeros(2, 4), errors.TensorError, r"\(2, 4\).*\(2, 3\)"),
    (lb.SquaredError(), [[0.0] * 3] * 2, errors.TensorError, "as_tensor"),
    (lb.SquaredError(), torch.tensor([[0.0] * 3, [0.0, math.nan, 0.0]]), errors.TensorError, "sample 1 holds NaN"),
    (lb.SquaredError(), torch.zeros(2, 3, dtype=torch.complex64), errors.TensorError, "real numbers"),
    (
        lb.BregmanLoss(act.ReLU()),
        torch.tensor([[0.0] * 3, [0.0, -0.1, 0.0]]),
        errors.DomainError,
        r"sample 1.*ReLU\(\).*-0.1",
    ),
    (lb.BregmanLoss(act.Tanh()), torch.tensor([[0.0, 0.0, 1.1], [0.0] * 3]), errors.DomainError, "sample 0"),
    (lb.BregmanLoss(act.Sigmoid()), torch.full((2, 3), 255.0), errors.DomainError, "rescale"),
]


ONE = Z[:, :1]
WRONG_FORMS = [
    (lb.CrossEntropy(), Z, LABELS.double(), r"float64 of shape \(2,\).*y\.long\(\)"),
    (lb.CrossEntropy(), Z, LABELS > 0, r"bool.*y\.long\(\)"),
    (lb.CrossEntropy(), Z, LABELS.unsqueeze(1), r"\(2, 1\).*y\.squeeze\(1\)\."),
    (lb.CrossEntropy(), Z, LABELS.unsqueeze(1).double(), r"y\.squeeze\(1\)\.long\(\)"),
    (lb.CrossEntropy(), ONE, torch.tensor([0, 1]), "one output for each class"),
    (lb.SquaredError(), ONE, torch.zeros(2), r"y\.unsqueeze\(1\)"),
    (lb.SquaredError(), ONE, torch.tensor([0, 0]), r"y\.unsqueeze\(1\)"),
    (lb.SquaredError(), Z, torch.zeros(2), r"y\.long\(\).*1 output and use y\.unsqueeze\(1\)"),
    (lb.BregmanLoss(act.Sigmoid()), ONE, LABELS, r"y\.unsqueeze\(1\)"),
    (lb.BregmanLoss(act.Sigmoid()), Z, LABELS, r"one_hot\(y, 3\)"),
]


@pytest.mark.parametrize(("loss", "z", "target", "says"), WRONG_FORMS)
def test_targets_of_another_form_are_refused_with_the_call_that_changes_it(loss, z, target, says):
    with pytest.raises(errors.TensorError, match=says):
        loss(z, target)


@pytest.mark.parametrize(("loss", "target", "error", "says"), BAD_TARGETS)
def test_targets_outside_the_domain_or_not_finite_are_refused(loss, target, error, says):
    with pytest.raises(error, match=says):
        loss(Z, target)


def test_settings_and_predictions_that_are_refused():
    with pytest.raises(errors.SettingError, match="'average'"):
        lb.SquaredError("average")
    with pytest.raises(errors.SettingError, match="ReLU"):
        lb.BregmanLoss(torch.relu)
    for z in (torch.zeros(0, 3), torch.zeros(3), torch.zeros(2, 3, dtype=torch.int64), [1.0]):
        with pytest.raises(errors.TensorError, match="predictions"):
            lb.SquaredError()(z, torch.zeros(2, 3))


@pytest.mark.parametrize("dtype", [torch.uint8, torch.uint16, torch.uint64, torch.int32])
def test_labels_are_integers_of_any_width(dtype):
    assert torch.equal(lb.CrossEntropy()(Z, LABELS.to(dtype)), lb.CrossEntropy()(Z, LABELS))


def test_integer_valued_targets_of_full_shape_are_numbers():
    """uint8 images as targets of a squared error: converted, not taken for labels."""
    target = torch.tensor([[1, 0, 2], [0, 3, 1]], dtype=torch.uint8)
    assert torch.equal(lb.SquaredError()(Z, target), lb.SquaredError()(Z, target.double()))
