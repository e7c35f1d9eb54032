"""Checks of an activation, for users' own and for those of the library.

Each evaluates identities of convex analysis at given points in float64 and raises `CheckError` with the first
counter-example.  The checks call public methods only.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from lifted_bregman.activations.base import Activation
from lifted_bregman.errors import CheckError, TensorError

SCALES = (1e-3, 0.1, 0.5, 1.0, 2.0, 30.0)
_TINY = 1e-300


def check_prox(activation: Activation, z: Tensor, scales: Sequence[float] = SCALES, tolerance: float = 1e-9) -> None:
    """Checks that `prox(z, c)` minimises ½‖u - z‖² + cΨ(u) for each scale c.

    - Minimality: with p = prox_{cΨ}(z), every point w of the domain satisfies the variational inequality
      cΨ(w) >= cΨ(p) + <z - p, w - p>, which characterises p (Remark 2).  The w are the other rows' images, points on
      the segments towards them, and z itself.
    - Firm non-expansiveness: <p_i - p_j, z_i - z_j> >= ‖p_i - p_j‖² for all pairs of rows (Theorem 10, corrected).
    - σ(z) = prox(z, 1), and images lie in the domain.

    Args:
        activation: the activation under test.
        z: points, (samples, features); at least two rows, spread over the region of interest.
        scales: the values of c.
        tolerance: allowed violation, relative to the size of the terms compared.

    Example:
        >>> z = torch.randn(10, 3, dtype=torch.float64)
        >>> lb.check_prox(lb.activations.SoftThreshold(0.5), z)  # raises CheckError where a check fails
    """
    z = require_points(z, "z")
    _equal(activation(z), activation.prox(z, 1.0), tolerance, "σ(z) differs from prox(z, scale=1)")
    for scale in scales:
        p = activation.prox(z, scale)
        _all(activation.contains(p), z, f"prox(z, scale={scale}) leaves the domain")

        def value(w: Tensor, c: float = scale) -> Tensor:
            return c * activation.potential(w)

        require_prox(p, value, z, tolerance, f"prox(z, scale={scale})", f"{scale}Ψ(u)")


def require_prox(p: Tensor, value: Callable[[Tensor], Tensor], z: Tensor, tolerance: float, name: str, of: str) -> None:
    """Raises unless p, a row for each row of z, minimises ½‖u - z‖² + F(u) and is firmly non-expansive in z.

    value  F, one number per row; infinity outside the domain
    name   what messages call p
    of     what messages call F(u)
    """
    at_p = value(p)
    _all(at_p.isfinite(), z, f"{name} is at a point where {of} is infinite")
    for shift in range(1, z.shape[0]):
        # Firm non-expansiveness: <p_i - p_j, z_i - z_j> >= ‖p_i - p_j‖²
        other, other_z = p.roll(shift, 0), z.roll(shift, 0)
        inner = ((p - other) * (z - other_z)).sum(-1)
        size = (p - other).norm(dim=-1) * (z.abs() + other_z.abs()).norm(dim=-1)
        rounding = 1e-15 * (p.norm(dim=-1) + other.norm(dim=-1)) * (z - other_z).norm(dim=-1)
        gap = inner - (p - other).square().sum(-1)
        _all(gap >= -tolerance * (size + _TINY) - rounding, z, f"{name} is not firmly non-expansive")
        # Minimality: F(w) >= F(p) + <z - p, w - p> for w on the segment from p_i to p_j
        for fraction in (1.0, 0.5, 1e-3):
            w = p + fraction * (other - p)
            at_w = value(w)
            linear = ((z - p) * (w - p)).sum(-1)
            size = at_w.abs() + at_p.abs() + ((z.abs() + p.abs()) * (w.abs() + p.abs())).sum(-1)
            minimal = at_w - at_p - linear >= -tolerance * (size + _TINY)
            _all(minimal | at_w.isposinf(), z, f"{name} does not minimise ½‖u - z‖² + {of}")


def check_conjugate(activation: Activation, x: Tensor, z: Tensor, tolerance: float = 1e-9) -> None:
    """Checks that `conjugate` is φ*, φ = ½‖·‖² + Ψ.

    - Fenchel-Young: φ(x) + φ*(z) >= <x, z> for all pairs, with equality at x = σ(z) (eq. 11).
    - ∇φ* = σ (eq. 15), by central differences along random directions.

    Args:
        activation: the activation under test.
        x: points of the domain, (samples, features).
        z: points anywhere, same shape.
        tolerance: allowed violation, relative to the size of the terms compared.

    Example:
        >>> act, z = lb.activations.Tanh(), torch.randn(10, 3, dtype=torch.float64)
        >>> lb.check_conjugate(act, act(z), z)  # raises CheckError where a check fails
    """
    x, z = require_points(x, "x"), require_points(z, "z")
    _all(activation.contains(x), x, "x is not in the domain; check_conjugate needs points of the domain")
    u, phi_star = activation(z), activation.conjugate(z)

    def fenchel_young(y: Tensor) -> tuple[Tensor, Tensor]:
        phi = 0.5 * y.square().sum(-1) + activation.potential(y)
        inner = (y * z).sum(-1)
        return phi + phi_star - inner, phi.abs() + phi_star.abs() + (y * z).abs().sum(-1) + 1.0

    # Fenchel-Young (eq. 11): equality at x = σ(z), ">=" elsewhere
    gap, size = fenchel_young(u)
    _all(gap.abs() <= tolerance * size, z, "φ(σ(z)) + φ*(z) differs from <σ(z), z>")
    for shift in range(x.shape[0]):
        gap, size = fenchel_young(x.roll(shift, 0))
        _all(gap >= -tolerance * size, z, "φ(x) + φ*(z) is below <x, z>: conjugate or potential is wrong")
    # ∇φ* = σ (eq. 15), by central differences along a random direction
    generator = torch.Generator().manual_seed(0)
    direction = torch.randn(z.shape, generator=generator, dtype=z.dtype).to(z.device)
    direction = direction / direction.norm(dim=-1, keepdim=True)
    h = 1e-5
    ahead, behind = z + h * direction, z - h * direction
    slope = (activation.conjugate(ahead) - activation.conjugate(behind)) / (2.0 * h)
    # φ* is convex with a 1-Lipschitz gradient: the difference quotient lies between the slopes at both ends
    low, high = ((activation(end) * direction).sum(-1) for end in (behind, ahead))
    noise = 1e-16 / h * (phi_star.abs() + 1.0) * 1e2 + tolerance * (u.abs().sum(-1) + 1.0)
    _all((slope >= low - noise) & (slope <= high + noise), z, "the gradient of conjugate is not σ")


def check_bregman(activation: Activation, x: Tensor, z: Tensor, tolerance: float = 1e-9) -> None:
    """Checks `bregman` against Theorem 10 with its equal forms.

    - B = φ(x) + φ*(z) - <x, z> = E_z(x) - E_z(σ(z)) = ½‖x - σ(z)‖² + Ψ(x) - Ψ(σ(z)) - <z - σ(z), x - σ(z)>.
    - B >= ½‖x - σ(z)‖², and B = 0 at x = σ(z) exactly.
    - B is convex and 1-smooth in z: B(x, z') lies between its tangent at z and the tangent plus ½‖z' - z‖².

    Args:
        activation: the activation under test.
        x: points of the domain, (samples, features).
        z: points anywhere, same shape.
        tolerance: allowed violation, relative to the size of the terms compared.

    Example:
        >>> act, z = lb.activations.Tanh(), torch.randn(10, 3, dtype=torch.float64)
        >>> lb.check_bregman(act, act(z + 1.0), z)  # raises CheckError where a check fails
    """
    x, z = require_points(x, "x"), require_points(z, "z")
    _all(activation.contains(x), x, "x is not in the domain; check_bregman needs points of the domain")
    u, b = activation(z), activation.bregman(x, z)
    psi_x, psi_u, phi_star = activation.potential(x), activation.potential(u), activation.conjugate(z)
    inner = (x * z).sum(-1)
    half_square = 0.5 * (x - u).square().sum(-1)
    size = (
        psi_x.abs()
        + psi_u.abs()
        + phi_star.abs()
        + (x.abs() * z.abs() + x * x + u.abs() * z.abs() + u * u).sum(-1)
        + 1.0
    )
    # B equals each of its forms
    forms = {
        "φ(x) + φ*(z) - <x, z>": 0.5 * x.square().sum(-1) + psi_x + phi_star - inner,
        "E_z(x) - E_z(σ(z))": psi_x - psi_u + 0.5 * ((x - u) * (x + u - 2.0 * z)).sum(-1),
        "½‖x - σ(z)‖² + Ψ(x) - Ψ(σ(z)) - <z - σ(z), x - σ(z)>": half_square
        + psi_x
        - psi_u
        - ((z - u) * (x - u)).sum(-1),
    }
    for form, value in forms.items():
        _all((b - value).abs() <= tolerance * size, z, f"B(x, z) differs from {form}")
    # Lower bound, and zero at x = σ(z)
    _all(b >= half_square * (1.0 - 1e-12), z, "B(x, z) is below ½‖x - σ(z)‖²")
    _all(activation.bregman(u, z) == 0.0, z, "B(σ(z), z) is not 0")
    # Convex and 1-smooth in z: B(x, z') lies between the tangent at z and the tangent plus ½‖z' - z‖²
    for shift in range(1, z.shape[0]):
        other = z.roll(shift, 0)
        tangent = b + ((u - x) * (other - z)).sum(-1)
        upper = tangent + 0.5 * (other - z).square().sum(-1)
        value = activation.bregman(x, other)
        slack = tolerance * (size + size.roll(shift, 0) + upper.abs() + (x.abs() * other.abs()).sum(-1))
        _all(
            (value >= tangent - slack) & (value <= upper + slack),
            z,
            "B(x, ·) is not convex and 1-smooth with ∇ = σ(z) - x",
        )


def require_points(points: Tensor, name: str) -> Tensor:
    """`points` in float64, or an error unless they are finite rows, at least two."""
    if not isinstance(points, Tensor) or points.ndim != 2 or points.shape[0] < 2 or not bool(points.isfinite().all()):
        shape = tuple(points.shape) if isinstance(points, Tensor) else type(points).__name__
        raise TensorError(
            f"{name} is {shape}; a check needs a finite (samples, features) tensor with at least two samples."
        )
    return points.double()


def _all(holds: Tensor, points: Tensor, message: str) -> None:
    if not bool(holds.all()):
        index = int((~holds).nonzero()[0])
        raise CheckError(f"{message}; first at sample {index}, {points[index].tolist()}.")


def _equal(left: Tensor, right: Tensor, tolerance: float, message: str) -> None:
    _all(((left - right).abs() <= tolerance * (left.abs() + _TINY)).all(-1), left, message)
