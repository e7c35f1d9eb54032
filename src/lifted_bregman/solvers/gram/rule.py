"""The move of one layer: a Kronecker-factored metric, momentum, second moments, and a rate that ends at 0.

A layer computes z = A Θᵀ from the rows A = [x 1], (m, n), and its error signal is E, (m, units), so that the gradient
is EᵀA/m.  k counts steps from 1, and K is the number of steps of the run.

    Gram matrices   R_A = running mean of AᵀA/m           R_E = running mean of EᵀE/m
    metric          P_A = (R_A + τ t_A I)⁻¹ t_A (1 + τ)   P_E = (R_E + τ t_E I)⁻¹ t_E (1 + τ)    t the mean eigenvalue
    direction       G = P_E (EᵀA/m) P_A
    memory          M ← β₁ M + (1 - β₁) G                 V ← β₂ V + (1 - β₂) G²
    move            Θ ← Θ - η U,   U = M/(1 - β₁ᵏ) / √(V/(1 - β₂ᵏ)), a thousandth of the mean added to the root
    length          η = s(k/K) min( c/(K^¼ √n), κ/L ‖Θ‖/‖U‖ ), L the number of layers, 20 at most
    decay           Θ ← (1 - 2 δ √e s(k/K)/K min(1, 3/L)) Θ before the move, in e epochs; not of biases and gains
    schedule        s rises to 1 in the first 20th of the run, and falls to 0 like a cosine

The rate falls with the length K of the run, like K^-¼: 1/√K would make the sum of moves in random directions
independent of K.  With √n the change of a unit's output does not depend on the number n of its inputs.  The metric is
that of K-FAC, with lifted signals; the moments are Adam's, with a short memory.

A layer of more than `WIDEST_INPUTS` inputs takes the metric of the batch alone, in sample space,

    G = Cᵀ A/m          C = (AAᵀ/m + τtI)⁻¹ E P_E t (1 + τ) ,   t the mean eigenvalue of AAᵀ/m ,

and one second moment for each unit.  Layers of more than `WIDEST_SIGNALS` units, and the output layer, have P_E = I.

These are functions of tensors; `memory` holds a layer's tensors by name.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Mapping, Sequence

import torch
from torch import Tensor

from lifted_bregman._linalg import damped_inverse

WIDEST_INPUTS = 256
"""Inputs up to which a running Gram matrix of the inputs is kept."""
WIDEST_SIGNALS = 128
"""Units up to which a running Gram matrix of the signals is kept."""
MOMENTUM = 0.9
"""β₁."""
SECOND = 0.95
"""β₂."""
GRAM_MEMORY = 0.95
"""Share of the past in a running Gram matrix, for each time it is updated."""
WARM_UP = 0.05
"""Share of the run in which the rate rises."""
MANY = 20
"""The largest L that a move's limit κ/L is divided by."""
_FEW = 3  # layers that decay in full
OPEN_ENDED = 400
"""Where K is unknown (None or infinite), the rate is that of a run of max(k, 400) steps."""
_UPDATE_EVERY = 3
_INVERT_EVERY = 10
_LEAST_NORM = 0.1  # of a unit, where a layer begins at 0
_TINY = 1e-12  # beside roots of second moments, and norms, that are divided by
_LEAST_SHARE = 1e-3  # of the mean second moment, which is added to each, in roots
_LEAST_STEP = 1e-30

METRICS = {"inputs": "input_metric", "signals": "signal_metric"}
"""The metric of each Gram matrix, by name."""
Memory = dict[str, Tensor]
"""The tensors of one layer by name, which are "momentum", "squares", "inputs", "signals" and the two of `METRICS`."""
AllSum = Callable[..., None]


def schedule(k: int, total: float | None) -> float:
    """s(k/K) for step k >= 1; for an unknown K it only rises."""
    if total is None or math.isinf(total):
        return min(1.0, k / (WARM_UP * OPEN_ENDED))
    warm = max(1.0, WARM_UP * total)
    left = max(0.0, k - warm) / max(1.0, total - warm)
    return min(k / warm, 1.0) * 0.5 * (1.0 + math.cos(math.pi * min(1.0, left)))


def rate(k: int, total: float | None, inputs: int, step_size: float) -> float:
    """s(k/K) c/(K^¼ √n); for an unknown K it goes on from that of a run of 400 steps, like 1/√k."""
    endless = total is None or math.isinf(total)
    steps = max(k, OPEN_ENDED) / math.sqrt(OPEN_ENDED) if endless else math.sqrt(total or 1)
    return schedule(k, total) * step_size / math.sqrt(steps * inputs)


def decay(k: int, total: float | None, epochs: float | None, weight_decay: float, layers: int) -> float:
    """2 δ √e s(k/K)/K min(1, 3/L), about δ√e in e epochs of three layers, since s is ½ in the mean.

    What L layers compute decays by the product of their decays, so that more than three layers share that of three.  0
    where K or e is unknown.
    """
    if total is None or math.isinf(total) or not epochs:
        return 0.0
    return 2.0 * weight_decay * math.sqrt(epochs) * schedule(k, total) / total * min(1.0, _FEW / max(1, layers))


def inverts(k: int, last: int) -> bool:
    """Whether step k computes the metrics again, `last` being the step that did so before: every 10th, sooner early."""
    return k <= 3 or k - last >= min(_INVERT_EVERY, k // 8)


def updates(k: int) -> bool:
    """Whether step k updates the Gram matrices, besides those that compute the metrics."""
    return k % _UPDATE_EVERY == 0


def update_gram(memory: Memory, name: str, gram: Tensor, times: int) -> None:
    """R ← (1 - w) R + w (gram), in place; w = 1/times for the first updates, so that R is then their mean.

    name   "inputs" or "signals"
    gram   AᵀA/m or EᵀE/m of all rows of the batch
    times  how often R was updated, this time included
    """
    share = max(1.0 - GRAM_MEMORY, 1.0 / times)
    if name in memory:
        memory[name].lerp_(gram, share)
    else:
        memory[name] = gram.clone()


def metrics(grams: Sequence[Tensor], damping: float) -> tuple[list[Tensor], list[Tensor]]:
    """P = (R + τtI)⁻¹ t(1 + τ) of each matrix, which is I for R = tI; equal ones are factorised in one call.

    Second comes how many of each call's matrices a multiple of I replaces, () of int64.

    grams  R, (n, n) or a stack (k, n, n) each; t is the mean of the diagonal of each matrix
    """
    alike: dict[tuple[int, torch.dtype, torch.device], list[int]] = {}
    for place, R in enumerate(grams):
        alike.setdefault((R.shape[-1], R.dtype, R.device), []).append(place)
    found: dict[int, Tensor] = {}
    failures = []
    for (n, _, _), places in alike.items():
        counts = [grams[place].numel() // (n * n) for place in places]
        stack = torch.cat([grams[place].view(-1, n, n) for place in places])
        t = stack.diagonal(dim1=1, dim2=2).mean(1)
        inverse, _, failed = damped_inverse(stack, damping)
        failures.append(failed.sum())
        parts = inverse.mul_((t * (1.0 + damping))[:, None, None]).split(counts)
        # in memory of their own: products with unaligned memory may differ in the last bit
        found |= {place: P.clone().view_as(grams[place]) for place, P in zip(places, parts, strict=True)}
    return [found[place] for place in range(len(grams))], failures


def direction(A: Tensor, E: Tensor, memory: Mapping[str, Tensor], total: int, all_sum: AllSum) -> Tensor:
    """G = P_E (EᵀA/m) P_A, (units, n), from the rows of this rank.

    A, E     (rows, n) and (rows, units)
    total    m, the rows of all ranks
    all_sum  adds up sums over rows, in place
    """
    P_A, P_E = memory.get("input_metric"), memory.get("signal_metric")
    # Each metric meets the smaller matrix, which is the same one on every rank.
    before, after = total < E.shape[1], total < A.shape[1]
    A = A @ P_A if P_A is not None and before else A
    E = E @ P_E if P_E is not None and after else E
    G = E.t() @ A
    all_sum(G)
    G.div_(total)
    G = G @ P_A if P_A is not None and not before else G
    return P_E @ G if P_E is not None and not after else G


def in_metric(G: Tensor, memory: Mapping[str, Tensor]) -> Tensor:
    """P_E G P_A for G (units, n); stacks (groups, ...) of metrics act on the groups of units."""
    P_A, P_E = memory.get("input_metric"), memory.get("signal_metric")
    if P_A is not None:
        G = G @ P_A if P_A.ndim == 2 else (G.view(len(P_A), -1, G.shape[1]) @ P_A).view_as(G)
    return G if P_E is None else P_E @ G


def sample_directions(
    layers: Sequence[tuple[Tensor, Tensor]], damping: float, block: int
) -> tuple[list[Tensor], list[Tensor]]:
    """CᵀA/m with C = (AAᵀ/m + τtI)⁻¹ E t(1 + τ) of each layer; second comes what `metrics` says of failures.

    layers  A and E of each, (m, n) and (m, units): all rows of the batch
    block   rows of a system, at most; the directions of the blocks are averaged, by their rows
    """
    if not layers:
        return [], []
    cuts = [-(-len(A) // -(-len(A) // block)) for A, _ in layers]
    blocks = [list(A.split(size)) for (A, _), size in zip(layers, cuts, strict=True)]
    found, failures = metrics([(a @ a.t()).div_(len(a)) for parts in blocks for a in parts], damping)
    P, directions = iter(found), []
    for (A, E), parts, size in zip(layers, blocks, cuts, strict=True):
        C = torch.cat([next(P) @ e for e in E.split(size)]) if len(parts) > 1 else next(P) @ E
        directions.append((C.t() @ A).div_(len(A)))
    return directions, failures


def remember(memories: Sequence[Memory], directions: Sequence[Tensor], by_unit: Sequence[bool]) -> None:
    """M and V of each layer take in its G, in place.

    by_unit  whether a layer has one second moment for each unit, the mean of its squares
    """
    for memory, G, one in zip(memories, directions, by_unit, strict=True):
        if "momentum" not in memory:
            memory["momentum"] = torch.zeros_like(G)
            memory["squares"] = G.new_zeros(len(G), 1) if one else torch.zeros_like(G)
    torch._foreach_lerp_([memory["momentum"] for memory in memories], list(directions), 1.0 - MOMENTUM)
    squares = [memory["squares"] for memory, one in zip(memories, by_unit, strict=True) if not one]
    entries = [G for G, one in zip(directions, by_unit, strict=True) if not one]
    if squares:
        torch._foreach_mul_(squares, SECOND)
        torch._foreach_addcmul_(squares, entries, entries, 1.0 - SECOND)
    for memory, G, one in zip(memories, directions, by_unit, strict=True):
        if one:
            memory["squares"].lerp_(torch.linalg.vecdot(G, G)[:, None] / G.shape[1], 1.0 - SECOND)


def correction(k: int) -> float:
    """√(1 - β₂ᵏ)/(1 - β₁ᵏ), which makes M/√V the quotient of means although M and V begin at 0."""
    return math.sqrt(1.0 - SECOND**k) / (1.0 - MOMENTUM**k)


def moves(memories: Sequence[Mapping[str, Tensor]]) -> list[Tensor]:
    """M/(√V + ε) of each layer, without the correction for the first steps; ε is 0.001 of the root mean square of √V.

    Without it an entry of G that is 0 but for rounding would move as far as any other.
    """
    roots = list(torch._foreach_sqrt([memory["squares"] for memory in memories]))
    # √mean(V) = ‖√V‖/√entries
    least = list(torch._foreach_norm(roots))
    torch._foreach_mul_(least, [_LEAST_SHARE / math.sqrt(root.numel()) for root in roots])
    torch._foreach_add_(least, _TINY)
    torch._foreach_add_(roots, least)
    return list(torch._foreach_div([memory["momentum"] for memory in memories], roots))


def lengths(
    parameters: Sequence[Sequence[Tensor]],
    U: Sequence[Tensor],
    rates: Sequence[float],
    limits: Sequence[float],
    scales: Sequence[Tensor | None] = (),
) -> list[Tensor]:
    """η = min( ρ rate, limit ‖Θ‖/‖U‖ ) of each layer, (); a unit counts with a norm of 0.1 ρ at least.

    So a layer may begin at 0.

    parameters  Θ of each layer, in one part or several
    limits      s(k/K) κ/L of each
    scales      ρ of each, () (see `target_scale`); None for 1
    """
    count, parts = len(U), max(map(len, parameters))
    norms = torch._foreach_norm([*(p for own in parameters for p in own), *U])
    # ‖Θ‖ of a layer from those of its parts, (parts, layers)
    found, nothing = iter(norms), norms[0].new_zeros(())
    table = [[next(found) for _ in own] + [nothing] * (parts - len(own)) for own in parameters]
    stacked = torch.stack([*(row[part] for part in range(parts) for row in table), *norms[-count:]])
    stacked = stacked.view(parts + 1, count)
    # entry by entry, so that the bits of a layer do not depend on how many others are here
    squares = list(stacked[:-1].square().unbind())
    quotients: Tensor = functools.reduce(torch.add, squares).sqrt_()
    eta = list(quotients.unbind())
    scaled = {layer: scale for layer, scale in enumerate(scales) if scale is not None}
    for layer, scale in scaled.items():
        eta[layer].clamp_(min=scale * (_LEAST_NORM * math.sqrt(len(U[layer]))))
    torch._foreach_clamp_min_(eta, [_LEAST_NORM * math.sqrt(len(u)) for u in U])
    quotients.div_(stacked[-1] + _TINY)
    torch._foreach_mul_(eta, list(limits))
    torch._foreach_clamp_max_(eta, [math.inf if layer in scaled else rate for layer, rate in enumerate(rates)])
    for layer, scale in scaled.items():
        eta[layer].clamp_(max=scale * rates[layer])
    return eta


def target_scale(E: Tensor, samples: int, all_sum: AllSum) -> Tensor:
    """ρ = max( 1, ½ root mean square of E ), (), of the residuals E of the first batch, in all ranks.

    Targets of numbers such as 5,000 need weights of that size: the output layer's rate is ρ times that of the others.

    E        (rows, ...) of this rank
    samples  of all ranks
    """
    total = E.square().sum()
    all_sum(total)
    return total.div_(samples * E[0].numel()).sqrt_().mul_(0.5).clamp_(min=1.0)


def prox_step(memory: Mapping[str, Tensor], eta: Tensor, k: int) -> Tensor:
    """η (1 - β₁ᵏ)/√V, (): with a constant gradient g, M is (1 - β₁ᵏ) g, and η M/√V is this step along it.

    memory  of a layer with one second moment
    """
    step = eta.mul(1.0 - MOMENTUM**k).div_(memory["squares"].sqrt().view(()).mul_(1.0 + _LEAST_SHARE).add_(_TINY))
    return step.clamp_(min=_LEAST_STEP)
