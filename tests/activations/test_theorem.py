"""Theorem 10 (the Bregman loss), with its corrections, as properties of every activation.

Points are drawn by hypothesis.  The identities come from convex analysis; nothing is compared with stored output.
"""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import lifted_bregman as lb
from tests import cases

FEATURES = 3
number = (
    st.floats(-30.0, 30.0, allow_nan=False)
    | st.floats(-1.5, 1.5)
    | st.sampled_from([0.0, 0.5, -0.5, 1.0, -1.0, 0.09, 1e-8])
)
rows = st.lists(st.lists(number, min_size=FEATURES, max_size=FEATURES), min_size=4, max_size=4)
over_all = pytest.mark.parametrize("activation", cases.ACTIVATIONS, ids=cases.name)
quickly = settings()  # those of the profile in conftest.py


def tensors(*drawn):
    return tuple(torch.tensor(d, dtype=torch.float64) for d in drawn)


def tolerance(activation, x, z):
    """A few rounding errors of the terms that the definition of B adds up: 64 eps (|φ(x)| + |φ*(z)| + Σ|x z|)."""
    phi = 0.5 * x.square().sum(-1) + activation.potential(x)
    return (
        64
        * torch.finfo(x.dtype).eps
        * (phi.abs() + activation.conjugate(z).abs() + (x * z).abs().sum(-1) + x.square().sum(-1))
    )


@over_all
@quickly
@given(rows, rows)
def test_items_1_to_4_equal_forms(activation, x, z):
    x, z = tensors(x, z)
    x = cases.domain_points(activation, x)
    lb.check_bregman(activation, x, z, tolerance=1e-13)
    b, u = lb.bregman_loss(x, z, activation), activation(z)
    # Item 2, D_φ^z(x, σ(z)), and the form by Moreau: ½‖x - u‖² + Ψ(x) + Ψ*(z - u) - <x, z - u> with Ψ*(p) = <p, u> -
    # Ψ(u)
    slack = tolerance(activation, x, z) + tolerance(activation, u, z)
    phi_x, phi_u = (0.5 * y.square().sum(-1) + activation.potential(y) for y in (x, u))
    assert bool(((b - (phi_x - phi_u - (z * (x - u)).sum(-1))).abs() <= slack).all())
    psi_star = ((z - u) * u).sum(-1) - activation.potential(u)
    moreau = 0.5 * (x - u).square().sum(-1) + activation.potential(x) + psi_star - (x * (z - u)).sum(-1)
    assert bool(((b - moreau).abs() <= slack).all())


@over_all
@quickly
@given(rows, rows)
def test_float32_is_never_below_the_bound(activation, x, z):
    """B >= ½‖x - σ(z)‖² in float32 as computed, where the definition alone would cancel, and B is accurate."""
    x64, z64 = tensors(x, z)
    z32 = z64.float()
    x32 = cases.domain_points(activation, x64.float())
    near = activation(z32 + 1e-3)
    for x_ in (x32, near, activation(z32)):
        b = activation.bregman(x_, z32)
        assert bool((b >= 0.5 * (x_ - activation(z32)).square().sum(-1) * (1.0 - 1e-5)).all())
        phi_size = (0.5 * x_.square().sum(-1) + activation.potential(x_)).abs() + activation.conjugate(z32).abs()
        if not activation.joint:
            reference = activation.bregman(x_.double(), z32.double())
            size = 2.0**-23 * (phi_size + (x_ * z32).abs().sum(-1) + x_.square().sum(-1)).double()
            assert bool(b.isfinite().all())
            same = reference.isfinite()  # an end of the domain rounded to float32 may lie outside it in float64
            assert bool(((b.double() - reference).abs()[same] <= (16 * size + 1e-30)[same]).all())


@over_all
@quickly
@given(rows, rows)
def test_items_5_and_6_gradient(activation, x, z):
    """∇_z B = σ(z) - x: what autograd returns, and what B itself does along a line (between its end slopes by
    convexity).
    """
    x, z = tensors(x, z)
    x = cases.domain_points(activation, x)
    z.requires_grad_()
    lb.bregman_loss(x, z, activation).sum().backward()
    torch.testing.assert_close(z.grad, activation(z) - x, rtol=0.0, atol=0.0)
    h, direction = 1e-4, torch.ones(FEATURES, dtype=torch.float64)
    ahead, behind = z.detach() + h * direction, z.detach() - h * direction
    quotient = (activation.bregman(x, ahead) - activation.bregman(x, behind)) / (2.0 * h)
    low, high = (((activation(end) - x) * direction).sum(-1) for end in (behind, ahead))
    slack = (tolerance(activation, x, ahead) + tolerance(activation, x, behind)) / h + 1e-12
    assert bool(((quotient >= low - slack) & (quotient <= high + slack)).all())


@over_all
@quickly
@given(rows, rows)
def test_item_7_zero_exactly_at_the_activation(activation, x, z):
    x, z = tensors(x, z)
    x, u = cases.domain_points(activation, x), activation(z)
    assert bool((activation.bregman(u, z) == 0.0).all())
    apart = (x - u).abs().amax(-1) > 1e-6
    assert bool((activation.bregman(x, z)[apart] > 0.0).all())


@over_all
@quickly
@given(rows, rows, rows, st.floats(0.05, 0.95))
def test_item_8_biconvex(activation, x, z, other, weight):
    x, z, other = tensors(x, z, other)
    x = cases.domain_points(activation, x)
    y = cases.domain_points(activation, other)
    slack = sum(tolerance(activation, a, b) for a in (x, y) for b in (z, other))
    mixed = activation.bregman(x, weight * z + (1.0 - weight) * other)
    assert bool(
        (mixed <= weight * activation.bregman(x, z) + (1.0 - weight) * activation.bregman(x, other) + slack).all()
    )
    between = torch.clamp(weight * x + (1.0 - weight) * y, torch.minimum(x, y), torch.maximum(x, y))  # despite rounding
    mixed = activation.bregman(between, z)
    assert bool((mixed <= weight * activation.bregman(x, z) + (1.0 - weight) * activation.bregman(y, z) + slack).all())


@over_all
@quickly
@given(rows, rows)
def test_items_9_to_11_monotone_lipschitz_firmly_nonexpansive(activation, z, other):
    """<σ(z₁) - σ(z₂), z₁ - z₂> >= ‖σ(z₁) - σ(z₂)‖²; the paper's last item has ‖z₁ - z₂‖² on the right, which fails for
    ReLU.
    """
    z, other = tensors(z, other)
    for scale in (0.2, 1.0, 5.0):
        difference = activation.prox(z, scale) - activation.prox(other, scale)
        inner = (difference * (z - other)).sum(-1)
        slack = 1e-14 * (z.abs() + other.abs() + 1.0).square().sum(-1)
        assert bool((inner >= difference.square().sum(-1) - slack).all())
        assert bool((inner >= -slack).all())
        assert bool((difference.norm(dim=-1) <= (z - other).norm(dim=-1) + slack).all())


def test_the_printed_last_item_is_wrong():
    """The inequality as printed is violated, so that the correction is needed."""
    z, other = torch.tensor([[-1.0]]), torch.tensor([[-2.0]])
    relu = lb.activations.ReLU()
    inner = ((relu(z) - relu(other)) * (z - other)).sum()
    assert not bool(inner >= (z - other).square().sum())


@over_all
@quickly
@given(rows)
def test_moreau_z_minus_sigma_is_the_prox_of_the_conjugate(activation, z):
    """z = prox_Ψ(z) + prox_{Ψ*}(z).  p = z - σ(z) is prox_{Ψ*}(z) exactly when Ψ*(q) >= Ψ*(p) + <σ(z), q - p> for all
    q.

    Ψ*(p) = <p, σ(z)> - Ψ(σ(z)) is known at every p = z - σ(z), so the inequality is tested at the rows' own values of
    q.
    """
    (z,) = tensors(z)
    u = activation(z)
    p, psi = z - u, activation.potential(u)
    conjugate = (p * u).sum(-1) - psi
    for shift in (1, 2, 3):
        q, conjugate_q = p.roll(shift, 0), conjugate.roll(shift, 0)
        gap = conjugate_q - conjugate - (u * (q - p)).sum(-1)
        size = (
            conjugate.abs()
            + conjugate_q.abs()
            + psi.abs()
            + (u.abs() * (p.abs() + q.abs())).sum(-1)
            + u.roll(shift, 0).square().sum(-1)
        )
        assert bool((gap >= -1e-12 * (size + 1.0)).all())


@over_all
@quickly
@given(rows)
def test_check_prox_and_conjugate_hold(activation, z):
    (z,) = tensors(z)
    lb.check_prox(activation, z, tolerance=1e-12)
    lb.check_conjugate(activation, cases.domain_points(activation, z.flip(0)), z, tolerance=1e-12)


def test_published_losses():
    """The four Bregman losses of Example 2, the soft threshold's with the terms the paper drops."""
    z = torch.linspace(-2.0, 2.0, 41, dtype=torch.float64).unsqueeze(-1)
    x = torch.full_like(z, 0.5)
    act = lb.activations
    relu = 0.5 * (x - z.clamp(min=0)).square() + x * (-z).clamp(min=0)
    soft = 0.5 * x.square() + 0.5 * x.abs() + 0.5 * (z.abs() - 0.5).clamp(min=0).square() - x * z
    tanh = 0.5 * torch.log((1 - x.square()) / (1 - torch.tanh(z).square())) + x * (torch.atanh(x) - z)
    for activation, expected in ((act.ReLU(), relu), (act.SoftThreshold(0.5), soft), (act.Tanh(), tanh)):
        torch.testing.assert_close(lb.bregman_loss(x, z, activation), expected.squeeze(-1), rtol=1e-13, atol=1e-14)
    pair = torch.cat([z, 0.3 * z + 0.1], -1)
    half = torch.full_like(pair, 0.5)
    softmax = (half * (half.log() - pair)).sum(-1) + torch.log(pair.exp().sum(-1))
    torch.testing.assert_close(lb.bregman_loss(half, pair, act.Softmax()), softmax, rtol=1e-13, atol=1e-14)


@over_all
def test_rounding_never_takes_the_loss_below_its_bound(activation):
    """Next to x = σ(z) the terms of the definition cancel to noise of either sign; B stays at or above ½‖x - σ(z)‖²."""
    z = torch.linspace(-3.0, 3.0, 400, dtype=torch.float64).unsqueeze(-1) + torch.tensor([0.0, 0.37, -0.81])
    x, u = activation(z + 1e-9), activation(z)
    assert bool((activation.bregman(x, z) >= 0.5 * (x - u).square().sum(-1) * (1.0 - 1e-12)).all())
