"""A guaranteed bound on the norm of a convolution from its symbol, the Fourier transform of its kernel.

On a torus of N inputs, with a stride s that divides N, the Fourier transform splits a convolution into one matrix for
each output frequency ω, which collects the s frequencies θ_j = (ω + 2πj)/s that the stride folds onto ω:

    B(ω) = s^(-1/2) [Ŵ(θ_0) .. Ŵ(θ_{s-1})]        Ŵ(θ) = Σ_k W_k e^(iθ·k·dilation)        ‖J‖₂ = max_ω ‖B(ω)‖₂

With zeros as padding the convolution is embedding into a torus that is large enough for nothing to wrap around, the
convolution there, and restriction to the outputs.  Embedding and restriction do not enlarge norms, so that the maximum
over the torus' frequencies is a bound.  Other paddings are a map P that copies inputs, with ‖P‖₂² the largest number of
copies of an input, before a convolution without padding.

<u, B(ω)B(ω)*u> is a trigonometric polynomial in ω of degree n = ⌊(kernel - 1)·dilation/s⌋.  By a lemma of M. Riesz such
a polynomial exceeds its maximum over N > 2n equally spaced points by a factor 1/cos(πn/N) at most, in each dimension:
large images need no more than 16n points.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from lifted_bregman.maps._patches import Axis

_EPS = torch.finfo(torch.float64).eps
_POINTS = 16  # of a frequency grid per degree: a factor 1/cos(π/16) = 1.02 in each dimension
_ENTRIES = 2**21  # of the symbol at a time
_SQUARINGS = 6


def symbol_bound(weight: Tensor, groups: int, axes: Sequence[Axis], sizes: Sequence[int]) -> float:
    """c >= ‖J‖₂² of the convolution with `weight` (out, in/groups, ...), for inputs of the spatial sizes given.

    A transposed convolution has the norm of the convolution that it transposes: pass that one, with the sizes of its
    inputs, the outputs of the transposed one.
    """
    factor, bases = 1.0, []
    for axis, size in zip(axes, sizes, strict=True):
        points, slack, copies = _grid(axis, size)
        factor *= slack * copies
        # e^(iθ·k·dilation) for all ω, all θ_j of each, and all k
        omega = torch.arange(points, dtype=torch.float64)[:, None] * (2.0 * math.pi / points)
        theta = (omega + 2.0 * math.pi * torch.arange(axis.stride, dtype=torch.float64)) / axis.stride
        angles = theta[:, :, None] * (axis.dilation * torch.arange(axis.kernel))
        bases.append(torch.polar(torch.ones_like(angles), angles))
    bases[-1] = bases[-1][: len(bases[-1]) // 2 + 1]  # the other half is the complex conjugate
    E = bases[0]
    for basis in bases[1:]:
        E = torch.einsum("fsk,gtl->fgstkl", E, basis)
        E = E.flatten(4).flatten(2, 3).flatten(0, 1)
    E = E.to(weight.device)
    W = weight.detach().double().unflatten(0, (groups, -1)).flatten(3)  # (g, out, in, kernel)
    scale = float(W.abs().max())
    if scale == 0.0 or not math.isfinite(scale):
        return scale * scale
    W = (W / scale).to(torch.complex128)
    aliases, taps = E.shape[1:]
    chunk = max(1, _ENTRIES // (aliases * W[..., 0].numel()))
    largest = max(_largest(torch.einsum("fsk,goik->gfosi", part, W).flatten(3)) for part in E.split(chunk))
    rounding = 64.0 * taps**2 * (W.shape[1] + aliases * W.shape[2]) * _EPS
    return float(factor * largest / aliases * (1.0 + rounding) * scale * scale)


def _largest(B: Tensor) -> float:
    """c >= max ‖B‖₂² over a stack: λ_max(M) <= ‖M^p‖_F^(1/p) <= n^(1/2p) λ_max(M) with M = BB* or B*B and p = 2^6."""
    M = B @ B.mH if B.shape[-2] <= B.shape[-1] else B.mH @ B
    logarithm: Tensor | float = 0.0
    for power in range(_SQUARINGS + 1):
        if power:
            M, logarithm = M @ M, 2.0 * logarithm
        norm = torch.linalg.matrix_norm(M).clamp(min=1e-300)
        M, logarithm = M / norm[..., None, None], logarithm + norm.log()
    return float(torch.as_tensor(logarithm).div(2**_SQUARINGS).exp().max())


def _grid(axis: Axis, size: int) -> tuple[int, float, int]:
    """The number of output frequencies, the factor for what lies between them, the copies of an input by padding."""
    outputs, stride, left, copies = axis.outputs(size), axis.stride, axis.left, 1
    span = (outputs - 1) * stride
    if axis.mode == "circular" and size % stride == 0 and span < size:
        torus = size  # the inputs are a torus already
    else:
        if axis.mode != "zeros":
            places = torch.arange(-left, size + axis.right)
            copies = int(axis.padded(places, size).bincount().max())
            size, left = len(places), 0
        # Nothing wraps around: zeros left of the inputs, the last input that is read, all outputs.
        torus = max(size + left, span - left + axis.reach + 1, span + 1)
    points, degree = -(-torus // stride), axis.reach // stride
    if degree == 0:
        return 1, 1.0, copies
    if points > _POINTS * degree:
        return _POINTS * degree, 1.0 / math.cos(math.pi / _POINTS), copies
    return points, 1.0, copies
