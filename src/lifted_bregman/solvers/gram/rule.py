"""The update of one layer: a Kronecker-factored metric, momentum, second moments, and a step size that ends at 0.

A layer computes z = A Θᵀ from the rows A = [x 1], (m, n), and its error signal is E, (m, units), so that the gradient
is EᵀA/m.  k counts steps from 1, and K is the number of steps of the run.

    Gram matrices   R_A = running mean of AᵀA/m           R_E = running mean of EᵀE/m
    metric          P_A = (R_A + τ t_A I)⁻¹ t_A (1 + τ)   P_E = (R_E + τ t_E I)⁻¹ t_E (1 + τ)    t the mean eigenvalue
    direction       G = P_E (EᵀA/m) P_A
    memory          M ← β₁ M + (1 - β₁) G                 V ← β₂ V + (1 - β₂) G²
    move            Θ ← Θ - η U,   U = M/(1 - β₁ᵏ) / √(V/(1 - β₂ᵏ)), a thousandth of the mean added to the root
    length          η = s(k/K) min( c √( |Θ| / (K^¼ √n L) ), |Θ| / 2√L )    |Θ| the root mean square of Θ, L the
                    layers, up to 20
    decay           Θ ← (1 - 2 δ √e s(k/K)/K min(1, 3/L) min(1, K/4e)) Θ in e epochs; not of biases and gains
    schedule        s rises to 1 in the first 20th of the run, and falls to 0 like (1 - t)^1.5

The length is the geometric mean of two.  1/(K^¼ √n) is Adam's: it knows no Θ, and with √n the change of a unit's output
does not depend on the number n of its inputs.  |Θ|/L is a share of Θ that L layers have in common.  The limit
keeps a setting that is ten times too large from doing harm; the default hardly meets it.  With the length K
of the run the rate falls so slowly because 1/√K would make the sum of moves in random directions independent of K.  The
metric is that of K-FAC, with lifted signals; the moments are Adam's, with a short memory.

A layer of more than `WIDEST_INPUTS` inputs takes the metric of the batch alone, in sample space,

    G = Cᵀ A/m          C ~ (AAᵀ/m + τtI)⁻¹ E P_E ,   t the mean eigenvalue of AᵀA/m ,

and one second moment for each unit.  Layers of more than `WIDEST_SIGNALS` units, and the output layer, have P_E = I.

These are functions of tensors; `memory` holds a layer's tensors by name.
"""

from __future__ import annotations

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
"""The largest L, by which lengths are divided."""
_FEW = 3  # layers that decay in full
_BATCHES = 4  # an epoch, from which on weights decay in full
OPEN_ENDED = 400
"""Where K is unknown (None or infinite), the rate is that of a run of max(k, 400) steps."""
DECAY_EVERY = 8
"""Weights decay in every 8th step, for all 8 at once."""
_UPDATE_EVERY = 3
_INVERT_EVERY = 20
STALE = 8
_POWER = 1.5  # with which the rate falls
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
    return float(min(k / warm, 1.0) * max(0.0, 1.0 - left) ** _POWER)


def rate(k: int, total: float | None, layers: int, step_size: float) -> float:
    """c s(k/K) / √(K^¼ L), that of a layer with |Θ| = √n; for an unknown K it decays like 1/√k from step 400 on."""
    endless = total is None or math.isinf(total)
    length = max(k, OPEN_ENDED) ** 4 / OPEN_ENDED**3 if endless else total or 1.0
    return schedule(k, total) * step_size / math.sqrt(length**0.25 * min(max(1, layers), MANY))


def limit(k: int, total: float | None, layers: int) -> float:
    """s(k/K) / 2√L, the largest η/|Θ| of a layer."""
    return 0.5 * schedule(k, total) / math.sqrt(min(max(1, layers), MANY))


def decay(k: int, total: float | None, epochs: float | None, weight_decay: float, layers: int) -> float:
    """2 δ √e s(k/K)/K min(1, 3/L) min(1, K/4e), about 0.8 δ√e in e epochs of three layers, by the mean of s.

    What L layers compute decays by the product of their decays, so that more than three layers share that of three.
    Runs of fewer than four batches an epoch decay less: without the noise of batches they converge, and decay would
    keep them swinging around a minimum, where rounding grows.  0 where K or e is unknown.
    """
    if total is None or math.isinf(total) or not epochs:
        return 0.0
    share = min(1.0, _FEW / max(1, layers)) * min(1.0, total / (_BATCHES * epochs))
    return 2.0 * weight_decay * math.sqrt(epochs) * schedule(k, total) / total * share


def inverts(k: int, last: int) -> bool:
    """Whether step k computes the metrics again, `last` being the step that did so before: every 10th, sooner early."""
    return k <= 3 or k - last >= min(_INVERT_EVERY, k // STALE)


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


def metrics(grams: Sequence[Tensor], damping: Sequence[float]) -> tuple[list[Tensor], list[Tensor]]:
    """P = (R + τtI)⁻¹ t(1 + τ) of each matrix, which is I for R = tI.

    Matrices of one size and damping are factorised in one batched call.  Also returns, for each call, how many
    factorisations failed, () of int64; P is then a multiple of I.

    grams    R, (n, n) or a stack (k, n, n) each; t is the mean of the diagonal of each matrix
    damping  τ > 0 of each
    """
    alike: dict[tuple[int, float, torch.dtype, torch.device], list[int]] = {}
    for place, (R, tau) in enumerate(zip(grams, damping, strict=True)):
        alike.setdefault((R.shape[-1], tau, R.dtype, R.device), []).append(place)
    found: dict[int, Tensor] = {}
    failures = []
    for (n, tau, _, _), places in alike.items():
        counts = [grams[place].numel() // (n * n) for place in places]
        stack = torch.cat([grams[place].view(-1, n, n) for place in places])
        t = stack.diagonal(dim1=1, dim2=2).mean(1)
        inverse, _, failed = damped_inverse(stack, tau)
        failures.append(failed.sum())
        parts = inverse.mul_((t * (1.0 + tau))[:, None, None]).split(counts)
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
    """G = CᵀA/m of each layer, with C = P E and P the damped inverse of AAᵀ/m that `metrics` computes.

    The damping is τt, with t the mean eigenvalue of AᵀA/m; that of AAᵀ/m is tn/m.  Also returns the numbers of failed
    factorisations, as `metrics` does.

    layers   A and E of each, (m, n) and (m, units): all rows of the batch
    damping  τ > 0
    block    the largest number of rows of a system; a larger batch is cut into blocks, whose directions are averaged
    """
    if not layers:
        return [], []
    cuts = [-(-len(A) // -(-len(A) // block)) for A, _ in layers]
    blocks = [a for (A, _), size in zip(layers, cuts, strict=True) for a in A.split(size)]
    systems = [(a @ a.t()).div_(len(a)) for a in blocks]
    found, failures = metrics(systems, [damping * len(a) / a.shape[1] for a in blocks])
    P, directions = iter(found), []
    for (A, E), size in zip(layers, cuts, strict=True):
        parts = [next(P) @ e for e in E.split(size)]
        C = parts[0] if len(parts) == 1 else torch.cat(parts)
        directions.append((C.t() @ A).div_(len(A)))
    return directions, failures


def remember(memories: Sequence[Memory], directions: Sequence[Tensor], by_unit: Sequence[bool]) -> None:
    """M ← β₁ M + (1 - β₁) G and V ← β₂ V + (1 - β₂) G² of each layer, in place.

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
    theta: Sequence[Tensor],
    inputs: Sequence[int],
    rates: Sequence[float],
    limits: Sequence[float],
    scales: Sequence[Tensor | None],
) -> list[Tensor]:
    """η = min( rate √(|Θ|/√n), limit |Θ| ) of each layer, (); |Θ| is at least 0.1/√n, so that a layer may begin at 0.

    theta   the weights of each layer, or its largest parameter
    inputs  n of each
    rates   c s(k/K) / √(K^¼ L) of each
    limits  s(k/K) / 2√L of each
    scales  ρ of each, () (see `target_scale`), or None: then |Θ| is at least 0.1 ρ/√n, and η √ρ times as large
    """
    sizes = list(torch._foreach_norm(list(theta)))
    # |Θ|/√n = ‖Θ‖/√(entries n)
    torch._foreach_mul_(sizes, [1.0 / math.sqrt(p.numel() * n) for p, n in zip(theta, inputs, strict=True)])
    for size, n, scale in zip(sizes, inputs, scales, strict=True):
        if scale is not None:
            size.clamp_(min=scale * (_LEAST_NORM / n)).mul_(scale)
    torch._foreach_clamp_min_(sizes, [_LEAST_NORM / n for n in inputs])
    eta = list(torch._foreach_sqrt(sizes))
    torch._foreach_mul_(eta, list(rates))
    torch._foreach_mul_(sizes, [limit * math.sqrt(n) for limit, n in zip(limits, inputs, strict=True)])
    return list(torch._foreach_minimum(eta, sizes))


def target_scale(residual: Tensor) -> Tensor:
    """ρ = max( 1, ½ residual ), (), for the root mean square of the residuals of the first batch.

    Targets of numbers such as 5,000 need weights of that size: the output layer's steps are longer, and all signals are
    divided by ρ².
    """
    return residual.mul(0.5).clamp_(min=1.0)


def prox_step(memory: Mapping[str, Tensor], eta: Tensor, k: int) -> Tensor:
    """η (1 - β₁ᵏ)/√V, (): with a constant gradient g, M is (1 - β₁ᵏ) g, and η M/√V is this step along it.

    memory  of a layer with one second moment
    """
    step = eta.mul(1.0 - MOMENTUM**k).div_(memory["squares"].sqrt().view(()).mul_(1.0 + _LEAST_SHARE).add_(_TINY))
    return step.clamp_(min=_LEAST_STEP)
