"""Numbers whose squares overflow, and vectors of many numbers: what theory says holds there, too."""

from __future__ import annotations

import math

import pytest
import torch

from lifted_bregman import activations as act
from tests.sampling import over

Z = [1.0, 0.5, -1.0, 0.25]
NORM = math.sqrt(2.3125)
LARGE = [
    (torch.float32, 1e18),
    (torch.float32, 1e20),
    (torch.float32, 3e38),
    (torch.float64, 1e160),
    (torch.float64, 1e300),
]


def approx(values, dtype):
    return pytest.approx(values, rel=8 * torch.finfo(dtype).eps)


@pytest.mark.parametrize(("dtype", "size"), LARGE)
def test_isru_of_large_numbers_is_one(dtype, size):
    z, isru = torch.tensor([Z], dtype=torch.float64).mul(size).to(dtype), act.ISRU()
    assert isru(z).tolist() == [[1.0, 1.0, -1.0, 1.0]]
    single = z[0, :, None]
    assert isru.conjugate(single).tolist() == approx(z[0].abs().tolist(), dtype)  # √(1 + z²) - 1
    assert isru.bregman(isru(single), single).tolist() == [0.0] * 4


@pytest.mark.parametrize("radius", [1e-8, 1.3, 40.0])
@pytest.mark.parametrize(("dtype", "size"), LARGE)
def test_the_projection_of_large_vectors_is_on_the_ball(dtype, size, radius):
    z, ball = torch.tensor([Z], dtype=torch.float64).mul(size).to(dtype), act.BallProjection(radius)
    assert ball(z)[0].tolist() == approx([radius * value / NORM for value in Z], dtype)
    assert ball.prox(z, 3.0)[0].tolist() == ball(z)[0].tolist()
    assert ball.bregman(ball(z), z).tolist() == [0.0]
    largest = torch.finfo(dtype).max
    assert min(float(ball.conjugate(z)), largest) == approx(min(radius * NORM * size, largest), dtype)


@pytest.mark.parametrize("scale", [0.5, 1.0, 3.0])
@pytest.mark.parametrize(("dtype", "size"), LARGE)
def test_the_group_threshold_of_large_vectors_keeps_their_digits(dtype, size, scale):
    """The threshold is lost in rounding, unless it is as large as the vector."""
    z = torch.tensor([Z], dtype=torch.float64).mul(size).to(dtype)
    assert act.GroupSoftThreshold(0.7).prox(z, scale)[0].tolist() == approx(z[0].tolist(), dtype)
    wide = act.GroupSoftThreshold(size / scale)
    expected = [value * (1.0 - 1.0 / NORM) * size for value in Z]
    assert wide.prox(z, scale)[0].tolist() == pytest.approx(expected, rel=1e-6 if dtype == torch.float32 else 1e-13)
    assert act.GroupSoftThreshold(size).prox(z, 2.0).tolist() == [[0.0] * 4]
    group = act.GroupSoftThreshold(0.7)
    assert group.bregman(group(z), z).tolist() == [0.0]


@pytest.mark.parametrize("activation", [act.ISRU(), act.BallProjection(1.3), act.GroupSoftThreshold(0.7)], ids=repr)
def test_derivatives_are_finite_there_and_at_zero(activation):
    """At 0 the derivative of ISRU and of the ball is the identity, and that of the threshold 0."""
    z = torch.stack([torch.zeros(4), torch.tensor(Z) * 1e20]).requires_grad_()
    (gradient,) = torch.autograd.grad(activation.as_module()(z).sum(), z)
    assert gradient[0].tolist() == [0.0 if isinstance(activation, act.GroupSoftThreshold) else 1.0] * 4
    assert gradient[1].isfinite().all()


@over(str, size=[1, 3, 784, 1000, 20_000, 300_000], dtype=[torch.float32, torch.float64])
def test_the_projection_of_a_wide_vector_is_in_the_ball(size, dtype):
    """B(σ(z), z) = 0, also for equal numbers, whose sum rounds the same way at each addition."""
    generator = torch.Generator().manual_seed(size)
    equal = torch.rand(20, 1, generator=generator, dtype=torch.float64).expand(20, size)
    z = torch.cat([torch.randn(4, size, generator=generator, dtype=torch.float64), equal + 1e-3]).to(dtype)
    for radius in (0.3, 1.0, 1e-3):
        ball = act.BallProjection(radius)
        z = z * (2.0 * radius / z.norm(dim=-1, keepdim=True))
        assert ball.bregman(ball(z), z).tolist() == [0.0] * len(z)
        assert not ball.contains(ball(z) * (1.0 + 20.0 * torch.finfo(dtype).eps)).any()


@pytest.mark.parametrize("activation", [act.SoftThreshold(1e30), act.NonNegativeSoftThreshold(1e30)], ids=repr)
@pytest.mark.parametrize(("dtype", "scale"), [(torch.float32, 1e10), (torch.float32, 1e300), (torch.float64, 1e300)])
def test_a_threshold_above_every_number_gives_zero(activation, dtype, scale):
    largest = torch.finfo(dtype).max
    z = torch.tensor([[0.0, 1.0, -3e38, largest, -largest]], dtype=dtype)
    assert not activation.prox(z, scale).any()
