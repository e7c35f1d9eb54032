"""The proximal map of total variation along a line, exactly: level sets of all segments of all rows at once.

u = argmin ½‖u - x‖² + λ Σ_i |u_{i+1} - u_i| has u_i = x_i - q_{i-1} + q_i with a dual q, |q_i| <= λ, q_0 = q_n = 0, and
q_i = λ sign(u_{i+1} - u_i) where that is not 0.  Between two places where q is known u is found from its mean θ there:

- the set {u > θ} minimises a binary energy on the segment, which a scan of messages solves;
- if that set is all of the segment or none of it, u = θ on the segment;
- otherwise u jumps across θ at the ends of the set, where q = ±λ is known now: the segment is cut there.
"""

from __future__ import annotations

import torch
from torch import Tensor


def chain_prox(x: Tensor, threshold: float) -> Tensor:
    """argmin_u ½‖u - x‖² + threshold·Σ_i |u_{i+1} - u_i| for each row of x (rows, n), in float64, exact up to rounding.

    Each round cuts every segment that is not finished, so that at most n rounds are needed and usually about log n.
    """
    rows, n = x.shape
    if n < 2 or rows == 0 or threshold == 0.0:
        return x.clone()
    if threshold >= (bound := _flat_threshold(x)):
        threshold = bound  # from where on the solution is the mean; larger numbers would only cost digits
    u = torch.empty_like(x)
    left = torch.arange(rows, device=x.device)
    # starts: whether a segment begins at i.  jump: q_{i-1} there, which the segment before ends with.
    starts = torch.zeros_like(x, dtype=torch.bool)
    starts[:, 0] = True
    jump = torch.zeros_like(x)
    while len(left):
        v, theta = _level_sets(x[left], threshold, starts, jump)
        # cuts: where the level set begins or ends inside a segment
        cuts = torch.zeros_like(starts)
        cuts[:, 1:] = (v[:, 1:] != v[:, :-1]) & ~starts[:, 1:]
        unfinished = cuts.any(1)
        u[left[~unfinished]] = theta[~unfinished]
        rise = torch.zeros_like(jump)
        rise[:, 1:] = threshold * (2.0 * v[:, 1:].to(x.dtype) - 1.0)
        jump = torch.where(cuts, rise, jump)[unfinished]
        starts = (starts | cuts)[unfinished]
        left = left[unfinished]
    return u


def _flat_threshold(x: Tensor) -> float:
    """max_i |Σ_{j<=i} (x_j - mean)|: for this threshold and every larger one the solution is constant."""
    return float((x - x.mean(1, keepdim=True)).cumsum(1).abs().max())


def _level_sets(x: Tensor, threshold: float, starts: Tensor, jump: Tensor) -> tuple[Tensor, Tensor]:
    """{u > θ} as booleans, and θ = (Σ x - q_before + q_after) / length of the segment, both (rows, n).

    v in {0, 1} minimises Σ_i (θ - x_i) v_i + λ Σ |v_{i+1} - v_i| + q_before v_first - q_after v_last on each segment.
    m_i, the message by which v_i = 1 is better than 0 given all before, is clip(m_{i-1}, -λ, λ) + x_i - θ.
    """
    shape, n = x.shape, x.shape[1]
    ends = torch.ones_like(starts)
    ends[:, :-1] = starts[:, 1:]
    after = torch.zeros_like(jump)
    after[:, :-1] = jump[:, 1:]
    before = torch.where(starts, jump, 0.0)
    after = torch.where(ends, after, 0.0)
    # θ of each segment
    segment = starts.flatten().cumsum(0) - 1
    count = int(segment[-1]) + 1
    sums = x.new_zeros(count).index_add_(0, segment, (x - before + after).flatten())
    lengths = x.new_zeros(count).index_add_(0, segment, torch.ones_like(x).flatten())
    theta = (sums / lengths)[segment].view(shape)
    # s_i = clip(m_i, -λ, λ) = clip(s_{i-1} + c_i, -λ, λ), which a segment's beginning makes constant
    c = x - theta - before
    low = torch.where(starts, c, -threshold).clamp(-threshold, threshold)
    high = torch.where(starts, c, threshold).clamp(-threshold, threshold)
    _, s, _ = _compose(torch.where(starts, 0.0, c), low, high)
    m = c + after
    m[:, 1:] += torch.where(starts[:, 1:], 0.0, s[:, :-1])
    # Backwards: v_i is decided by |m_i| > λ, at a segment's end by the sign of m_i, else it is v_{i+1}.
    decided = ends | (m.abs() > threshold)
    places = torch.arange(n, device=x.device).expand(shape)
    following = torch.where(decided, places, n).flip(1).cummin(1).values.flip(1)
    return (m > 0.0).gather(1, following), theta


def _compose(shift: Tensor, low: Tensor, high: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """g_i ∘ ... ∘ g_1 for g_i(s) = clip(s + shift_i, low_i, high_i), in the same form, by doubling: log2(n) passes."""
    n, step = shift.shape[1], 1
    while step < n:
        behind, own = slice(None, n - step), slice(step, None)
        c, lo, hi = shift[:, own], low[:, own], high[:, own]
        made_low = torch.minimum(torch.maximum(low[:, behind] + c, lo), hi)
        made_high = torch.minimum(torch.maximum(high[:, behind] + c, lo), hi)
        made_shift = shift[:, behind] + c
        shift = torch.cat((shift[:, :step], made_shift), 1)
        low = torch.cat((low[:, :step], made_low), 1)
        high = torch.cat((high[:, :step], made_high), 1)
        step *= 2
    return shift, low, high
