"""The lifted energy written a second time: closed forms of φ and φ* in plain torch, the user's own modules, autograd.

Nothing here calls the library.  A network is a list of (f, activation): f maps (s, ...) to (s, ...), an activation is
a name with its φ, φ* and σ from the table of closed forms.
"""

import torch
from torch import Tensor


def _sum(values: Tensor) -> Tensor:
    return values.flatten(1).sum(1)


def _xlogx(x: Tensor) -> Tensor:
    return torch.special.xlogy(x, x)


# name: (φ(x) of each sample inside the domain, φ*(z) of each sample, σ(z)); joint ones along dimension 1
CLOSED_FORMS = {
    "identity": (lambda x: _sum(x**2 / 2), lambda z: _sum(z**2 / 2), lambda z: z),
    "relu": (lambda x: _sum(x**2 / 2), lambda z: _sum(z.clamp(min=0) ** 2 / 2), lambda z: z.clamp(min=0)),
    "leaky 0.2": (
        lambda x: _sum(torch.where(x >= 0, x**2 / 2, x**2 / 0.4)),
        lambda z: _sum(torch.where(z >= 0, z**2 / 2, 0.1 * z**2)),
        lambda z: torch.where(z >= 0, z, 0.2 * z),
    ),
    "soft 0.3": (
        lambda x: _sum(x**2 / 2 + 0.3 * x.abs()),
        lambda z: _sum((z.abs() - 0.3).clamp(min=0) ** 2 / 2),
        lambda z: torch.sign(z) * (z.abs() - 0.3).clamp(min=0),
    ),
    "tanh": (
        lambda x: _sum(x * torch.atanh(x) + torch.log1p(-(x**2)) / 2),
        lambda z: _sum(torch.log(torch.cosh(z))),
        torch.tanh,
    ),
    "sigmoid": (
        lambda x: _sum(_xlogx(x) + _xlogx(1 - x)),
        lambda z: _sum(torch.log(1 + torch.exp(z))),
        lambda z: 1 / (1 + torch.exp(-z)),
    ),
    "elu 0.7": (
        lambda x: _sum(torch.where(x >= 0, x**2 / 2, (x + 0.7) * torch.log1p(x.clamp(max=0) / 0.7) - x)),
        lambda z: _sum(torch.where(z >= 0, z**2 / 2, 0.7 * (torch.exp(z.clamp(max=0)) - 1 - z))),
        lambda z: torch.where(z >= 0, z, 0.7 * (torch.exp(z.clamp(max=0)) - 1)),
    ),
    "softmax": (
        lambda x: _sum(_xlogx(x)),
        lambda z: torch.log(torch.exp(z).sum(1)).reshape(len(z), -1).sum(1),
        lambda z: torch.exp(z) / torch.exp(z).sum(1, keepdim=True),
    ),
}


def sample_terms(stages, weights, xs, penalties=None):
    """λ_l (φ(x_l) + φ*(z_l) - <x_l, z_l>) + R_l(x_l) of each sample, a list over l = 1 .. L; xs is x_0 .. x_L."""
    terms = []
    for l, (f, name) in enumerate(stages, 1):
        phi, phi_star, _ = CLOSED_FORMS[name]
        z = f(xs[l - 1])
        term = weights[l - 1] * (phi(xs[l]) + phi_star(z) - _sum(xs[l] * z))
        terms.append(term + (penalties or {}).get(l, lambda x: 0.0)(xs[l]))
    return terms


def smooth_part(stages, weights, xs, quadratic):
    """H summed over samples, without φ_L(y): Σ λ_l (φ*(z_l) - <x_l, z_l>), and λ_l ½‖x_l‖² for l < L if quadratic."""
    total = 0.0
    for l, (f, name) in enumerate(stages, 1):
        z = f(xs[l - 1])
        total = total + weights[l - 1] * (CLOSED_FORMS[name][1](z) - _sum(xs[l] * z)).sum()
        if quadratic and l < len(stages):
            total = total + weights[l - 1] * (xs[l] ** 2).sum() / 2
    return total
