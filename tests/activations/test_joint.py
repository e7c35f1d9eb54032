"""Joint activations against the exact minimiser: 1e-14 (float64) and 1e-6 (float32) of the largest component."""

from __future__ import annotations

import math
import random

import mpmath as mp
import pytest
import torch

import lifted_bregman as lb
from lifted_bregman import activations as act
from lifted_bregman.activations import simplex
from tests import cases
from tests.sampling import over

TOLERANCE = {torch.float32: 1e-6, torch.float64: 1e-14}
SCALES = [1e-6, 1e-3, 0.05, 0.5, 0.999, 1.0, 1.001, 2.0, 30.0, 1e3, 1e6]
mp.mp.dps = 70


def vectors(generator: random.Random) -> list[list[float]]:
    rows = []
    for size in (1, 2, 4):
        for magnitude in (1e-8, 1e-3, 1.0, 30.0, 1e6):
            rows.append([magnitude * generator.gauss(0.0, 1.0) for _ in range(size)])
        rows.append([0.0] * size)
        rows.append([float(generator.randint(-1, 1)) for _ in range(size)])
        rows.append([generator.choice((-1, 1)) * 10.0 ** generator.uniform(-8, 6) for _ in range(size)])
    return rows


def exact_softmax(v: list[float], scale: float) -> list[mp.mpf]:
    """Bisection on the multiplier ν of (1 - c) u + c log u = v - ν, u by bisection on log u."""
    c, v = mp.mpf(scale), [mp.mpf(x) for x in v]

    def component(t: mp.mpf) -> mp.mpf:
        low, high = min((t - abs(1 - c)) / c, t / c) - 1, mp.mpf(0)
        for _ in range(240):
            y = (low + high) / 2
            if (1 - c) * mp.exp(y) + c * y > t:
                high = y
            else:
                low = y
        return mp.exp(low)

    # the multiplier lies between the one that makes the largest u equal to 1 and the one that makes all at most 1/n
    nu_low, nu_high = max(v) - (1 - c), max(v) - (1 - c) / len(v) + c * mp.log(len(v))
    nu = nu_low
    for _ in range(60):  # Newton from the left on a convex decreasing function, then checked
        u = [component(x - nu) for x in v]
        step = (sum(u) - 1) / sum(x / ((1 - c) * x + c) for x in u)
        nu += step
        if abs(step) <= mp.mpf(10) ** -45 * (1 + abs(nu)):
            break
    assert abs(sum(u) - 1) < mp.mpf(10) ** -35 and nu_low - 1e-30 * (1 + c) <= nu <= nu_high + 1e-30 * (1 + c)
    return u


def exact_sparsemax(v: list[float], scale: float) -> list[mp.mpf]:
    """Projection onto the simplex: the threshold of the largest support that is consistent, by sorting."""
    ordered = sorted((mp.mpf(x) for x in v), reverse=True)
    threshold = max((sum(ordered[: k + 1]) - 1) / (k + 1) for k in range(len(v)))
    return [max(mp.mpf(x) - threshold, mp.mpf(0)) for x in v]


def exact_group(v: list[float], scale: float) -> list[mp.mpf]:
    norm = mp.sqrt(sum(mp.mpf(x) ** 2 for x in v))
    factor = max(1 - mp.mpf(0.7) * mp.mpf(scale) / norm, mp.mpf(0)) if norm else mp.mpf(0)
    return [factor * mp.mpf(x) for x in v]


def exact_ball(v: list[float], scale: float) -> list[mp.mpf]:
    norm = mp.sqrt(sum(mp.mpf(x) ** 2 for x in v))
    factor = min(mp.mpf(1), mp.mpf(1.3) / norm) if norm else mp.mpf(1)
    return [factor * mp.mpf(x) for x in v]


EXACT = {
    act.Softmax(): exact_softmax,
    act.Sparsemax(): exact_sparsemax,
    act.GroupSoftThreshold(0.7): exact_group,
    act.BallProjection(1.3): exact_ball,
}


@over(cases.name, activation=EXACT, dtype=[torch.float32, torch.float64], half=[0, 1])
def test_joint_proximal_maps_agree_with_arbitrary_precision(activation, dtype, half):
    """At one half of the scales."""
    generator = random.Random(3)
    scales = generator.sample(SCALES, 6) if isinstance(activation, act.Softmax) else SCALES
    for scale in scales[half::2]:
        for row in vectors(generator):
            if isinstance(activation, act.GroupSoftThreshold) and generator.random() < 0.5:  # next to the kink
                norm = float(torch.tensor(row, dtype=torch.float64).norm()) or 1.0
                row = [x * 0.7 * scale * (1 + 1e-5) / norm for x in row]
            v = torch.tensor(row, dtype=dtype)
            got, want = activation.prox(v, scale).tolist(), EXACT[activation](v.tolist(), scale)
            error = max(abs(mp.mpf(g) - w) for g, w in zip(got, want, strict=True))
            assert error <= TOLERANCE[dtype] * max(abs(w) for w in want), (v.tolist(), scale, got)


@pytest.mark.parametrize("size", [10, 784, 5000])
def test_softmax_in_high_dimension(size):
    """Fermat's rule in float64: (1 - c) u_j + c log u_j + ν = v_j with one ν for all j, and Σ u = 1; float32 agrees."""
    generator = torch.Generator().manual_seed(size)
    for scale in (1e-6, 1e-3, 0.1, 0.5, 2.0, 1e3, 1e6):
        for spread in (1e-6, 0.1, 1.0, 100.0):
            v = (spread * torch.randn(4, size, generator=generator)).double()  # numbers of float32
            u = act.Softmax().prox(v, scale)
            assert bool(((u.sum(-1) - 1.0).abs() <= 1e-14).all())
            nu = v - ((1.0 - scale) * u + scale * u.log())
            # the multiplier read off each component, weighted by how much an error in it would move u
            top = nu.gather(-1, u.argmax(-1, keepdim=True))
            moves = ((nu - top) * u / ((1.0 - scale) * u + scale)).abs().nan_to_num(0.0)
            assert bool((moves.amax(-1) <= 1e-14 * u.amax(-1) * max(1.0, spread / scale)).all())
            single = act.Softmax().prox(v.float(), scale)
            assert bool(((single - u).abs().amax(-1) <= 1e-6 * u.amax(-1)).all())


def test_both_softmax_solves_agree(monkeypatch):
    """The safeguard alone gives the same minimiser as the joint Newton method, which settles for moderate scales."""
    v = torch.randn(64, 50, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    for scale in (1e-3, 0.3, 4.0, 1e4):
        joint = act.Softmax().prox(v, scale)
        e = (v - v.amax(-1, keepdim=True)) / scale
        _, settled = simplex._softmax_prox_joint(e.clone(), (1.0 - scale) / scale)
        assert bool(settled.all()) or scale < 0.01
        nested = simplex._softmax_prox_nested(e, (1.0 - scale) / scale)
        assert bool(((joint - nested).abs().amax(-1) <= 1e-14 * nested.amax(-1)).all())


def test_nested_softmax_limits_suffice(monkeypatch):
    """With half the iterations of the safeguard nothing changes: its limits have room over the whole promised range."""
    generator = torch.Generator().manual_seed(5)
    for size in (2, 30, 3000):
        for exponent in range(-6, 7, 2):
            scale = 10.0**exponent
            magnitudes = 10.0 ** (14.0 * torch.rand(6, size, generator=generator, dtype=torch.float64) - 8.0)
            v = torch.cat([magnitudes, -magnitudes, torch.randn(6, size, generator=generator, dtype=torch.float64)])
            e, a = (v - v.amax(-1, keepdim=True)) / scale, (1.0 - scale) / scale
            if a == 0.0:
                continue
            full = simplex._softmax_prox_nested(e, a)
            with monkeypatch.context() as patch:
                patch.setattr(simplex, "MULTIPLIER_LIMIT", simplex.MULTIPLIER_LIMIT // 2)
                patch.setattr(simplex, "COMPONENT_LIMIT", simplex.COMPONENT_LIMIT * 2 // 3)
                assert bool(((simplex._softmax_prox_nested(e, a) - full).abs() <= 1e-15).all())


def test_sparsemax_gradient_through_its_module():
    """As a module it is differentiable: the Jacobian on the support is I - 11ᵀ/|S|."""
    z = torch.tensor([0.9, 0.6, -2.0], dtype=torch.float64)
    jacobian = torch.autograd.functional.jacobian(act.Sparsemax().as_module(), z)
    expected = torch.tensor([[0.5, -0.5, 0.0], [-0.5, 0.5, 0.0], [0.0, 0.0, 0.0]], dtype=torch.float64)
    torch.testing.assert_close(jacobian, expected)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=["float32", "float64"])
def test_projections_are_in_the_domain_and_points_beyond_rounding_are_not(dtype):
    """What the projection returns is inside; a point further out than rounding can explain is not."""
    far = 1e-5 if dtype == torch.float32 else 1e-13
    ball, direction = act.BallProjection(1.3), torch.tensor([[0.6, 0.0, -0.8]], dtype=dtype)
    assert bool(ball.contains(1.3 * direction)) and bool(ball.contains(ball(1e6 * direction)))
    assert not bool(ball.contains(1.3 * (1.0 + far) * direction))
    assert float(ball.potential(1.3 * (1.0 + far) * direction)) == float("inf")
    for activation in (act.Softmax(), act.Sparsemax()):
        inside = torch.tensor([[0.25, 0.0, 0.75]], dtype=dtype)
        assert bool(activation.contains(inside)) and bool(activation.potential(inside).isfinite())
        for outside in (inside * (1.0 + far), inside * (1.0 - far), torch.tensor([[1.25, -0.25, 0.0]], dtype=dtype)):
            assert not bool(activation.contains(outside))
            assert float(activation.potential(outside)) == float("inf")
            assert float(activation.bregman(outside, inside)) == float("inf")


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=["float32", "float64"])
@pytest.mark.parametrize("activation", EXACT, ids=lambda a: type(a).__name__)
def test_sums_run_over_the_last_dimension_of_any_shape(activation, dtype):
    """Values of a batch of shape (2, 2, 3) are those of its rows, in the dtype of the input."""
    z = torch.linspace(-2.0, 3.0, 12, dtype=dtype).reshape(2, 2, 3)
    x = activation.prox(z.flip(0), 0.4)
    for value, row in (
        (activation.bregman(x, z), lambda i, j: activation.bregman(x[i, j], z[i, j])),
        (activation.conjugate(z), lambda i, j: activation.conjugate(z[i, j])),
        (activation.potential(x), lambda i, j: activation.potential(x[i, j])),
    ):
        assert value.shape == (2, 2) and value.dtype == dtype
        expected = torch.stack([torch.stack([row(i, j) for j in range(2)]) for i in range(2)])
        torch.testing.assert_close(value, expected)


@pytest.mark.parametrize("scale", [0.02, 0.25, 1.0, 3.0])
def test_masked_places_of_softmax_are_left_out(scale):
    """Where z_j = -inf the proximal map is that of the other components, with 0 in place j; so is the Bregman loss."""
    softmax = lb.activations.Softmax()
    z = torch.tensor([[0.3, -1.2, 2.0, 0.7], [1.0, 0.0, -0.5, 0.2]], dtype=torch.float64)
    masked = z.clone()
    masked[0, 1] = masked[1, 3] = -math.inf
    kept = torch.tensor([[0, 2, 3], [0, 1, 2]])
    u, alone = softmax.prox(masked, scale), softmax.prox(z.gather(1, kept), scale)
    torch.testing.assert_close(u.gather(1, kept), alone, rtol=1e-12, atol=1e-14)
    assert u[0, 1] == u[1, 3] == 0.0
    x = torch.tensor([[0.2, 0.0, 0.5, 0.3], [0.6, 0.3, 0.1, 0.0]], dtype=torch.float64)
    expected = lb.bregman_loss(x.gather(1, kept), z.gather(1, kept), softmax)
    torch.testing.assert_close(lb.bregman_loss(x, masked, softmax), expected, rtol=1e-12, atol=0.0)
    assert lb.bregman_loss(softmax(masked), masked, softmax).tolist() == [0.0, 0.0]
    x[0] = torch.tensor([0.2, 0.1, 0.4, 0.3])
    assert lb.bregman_loss(x, masked, softmax)[0] == math.inf
