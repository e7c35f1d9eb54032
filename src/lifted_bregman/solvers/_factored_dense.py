"""A dense map whose weight moves in sample space: W = W⁰ + a sum of low-rank factors, until it is written back."""

from __future__ import annotations

import copy
import math
from collections.abc import Mapping
from dataclasses import replace

import torch
from torch import Tensor, nn

from lifted_bregman._linalg import PowerIteration, PowerVectors, Vector, certified_bound
from lifted_bregman._no_graph import no_graph
from lifted_bregman.maps import Dense
from lifted_bregman.problem import LiftedProblem
from lifted_bregman.problem.blocks import layers
from lifted_bregman.problem.shard import WHOLE, Shard


class FactoredDense(Dense):
    """z = x Wᵀ + b with W = W⁰ + Σ_i s_i C_iᵀ R_i, the module's weight being W⁰ until `write`.

    The steps of a batch, W - W⁰ ← γ(W - W⁰) + t Cᵀ X, multiply the s_i by γ and append the factor (X, tC), or add to
    the last one if X is still the same.  All factors stand in one buffer, so that sums over them are single products.

        x Wᵀ = x W⁰ᵀ + ((x Rᵀ) s) C             d W = d W⁰ + ((d Cᵀ) s) R

    Only x W⁰ᵀ, once for each new x, and d W⁰ are of a weight's size.  The vector v of the power iteration for ‖W‖₂
    is one more row of these products, [x; v] W⁰ᵀ and then [d; Wv] W⁰, and costs no extra pass over W⁰.  The bias is
    moved in place.

    A repeated x is recognised by its memory, which must not be changed in place between calls.  Where ranks share a
    batch it must be the same tensor object, because empty shards have no memory.

    Where ranks share a batch, x and d are the rows of this rank, and R_i and C_i the rows of all, so that W is the
    same on each: x is gathered once, and no gradient is summed over ranks.  The power iteration is then computed
    apart, because the bits of one row of a product may depend on the number of rows.

    blocks  the expected number of factors, for which memory is allocated; it grows for more
    memory  the vectors of power iterations; that for ‖W‖₂ has the name `key`
    shard   the rows of the batch on this rank
    """

    def __init__(self, dense: Dense, blocks: int, memory: PowerVectors, key: str, shard: Shard = WHOLE) -> None:
        super().__init__(dense.module, dense.flatten)
        self._shard = shard
        W = self._W = dense.module.weight.detach()
        self._memory, self._key, self._blocks = memory, key, blocks
        self._R, self._C, self._s = W[:0], W.t()[:0], W[:0, 0]
        self._rank = 0
        self._x: Tensor | None = None
        self._start = self._all = 0  # X of all ranks is R[start : start + all]
        self._count = 0  # the number of this rank's rows of X
        self._vector: Tensor | None = None  # v, in the row after X
        self._base = self._low = self._own_gram = W  # [X; v] W⁰ᵀ, [X; v] (W - W⁰)ᵀ, [X; v] Xᵀ
        self._z = self._shift = W  # the rows of X in the first two
        self._stack = W.t()[:0]
        self._image: Tensor | None = None  # WᵀW v
        self._trained = dense.parameters
        self._bias = None if self.module.bias is None else self.module.bias.detach()
        self.initial_bias = None if self._bias is None else self._bias.clone()
        """b⁰, (out,); None without a bias."""

    def reuse(self, other: FactoredDense) -> None:
        """Takes over the buffers of an earlier map of the same layer, which must not be used any more."""
        kept = (other._R, other._C, other._s, other._stack)
        own = (self._R, self._C, self._s, self._stack)
        if all(_alike(a, b) for a, b in zip(kept, own, strict=True)):
            self._R, self._C, self._s, self._stack = kept

    @property
    def parameters(self) -> dict[str, nn.Parameter]:
        return self._trained

    @no_graph
    def apply(self, x: Tensor) -> Tensor:
        self._take(x)
        z = self._z
        if self._rank:
            z = torch.add(z, self._shift)
            if self._bias is not None:
                z.add_(self._bias)
        elif self._bias is not None:
            z = torch.add(z, self._bias)
        return z if self.flatten or x.ndim == 2 else z.view(*x.shape[:-1], z.shape[-1])

    @no_graph
    def pull_back_input(self, x: Tensor, d: Tensor) -> Tensor:
        self._take(x)
        if d.ndim != 2:
            d = d.reshape(-1, d.shape[-1])
        if self._vector is not None:
            d = self._with_image(d)
        pulled = torch.mm(d, self._W)
        if self._rank:
            R, Ct, s = self._factors()
            pulled.addmm_(torch.mm(d, Ct).mul_(s), R)
        if self._vector is None:
            return pulled.view(x.shape)
        self._image = pulled[self._count]
        return pulled[: self._count].view(x.shape)

    @no_graph
    def move(self, x: Tensor, C: Tensor, scale: float, decay: float) -> None:
        """W - W⁰ ← decay·(W - W⁰) + scale·Cᵀ X, for C of shape (rows, out), the rows of all."""
        self._take(x)
        if C.ndim != 2:
            C = C.reshape(-1, C.shape[-1])
        self._image = None
        if self._rank and decay != 0.0:
            self._low.addmm_(self._own_gram, C, beta=decay, alpha=scale)
        else:
            self._low = torch.mm(self._own_gram, C).mul_(scale)
            self._shift = self._low[: self._count]
        if decay == 0.0:
            self._forget()
        end = self._start + self._all
        if self._start == self._rank:
            if end > len(self._C):
                room = max(self._blocks * self._all, end + self._start)
                self._C, self._s = _longer(self._C, room), _longer(self._s, room)
            torch.mul(C, scale, out=self._C[self._start : end])
            self._s[self._start : end] = 1.0
            self._rank = end
        else:
            self._C[self._start : end].mul_(decay).add_(C, alpha=scale)
        if self._start:
            self._s[: self._start].mul_(decay)

    @no_graph
    def gram(self, x: Tensor) -> Tensor:
        """X Xᵀ, of all rows."""
        self._take(x)
        return self._shard.all_rows(self._own_gram[: self._count], self.each(x))

    def each(self, x: Tensor) -> int:
        """The rows of one sample."""
        return 1 if self.flatten else math.prod(x.shape[1:-1])

    @no_graph
    def shift(self, x: Tensor) -> Tensor:
        """X (W - W⁰)ᵀ + b - b⁰ for this rank's rows: the change of z since the start of the batch, in new memory."""
        self._take(x)
        if self._rank:
            shift = self._shift.clone()
        else:
            shift = self._base.new_zeros(self._count, self._W.shape[0])
        if self._bias is not None and self.initial_bias is not None:
            shift += self._bias - self.initial_bias
        return shift

    @no_graph
    def write(self) -> None:
        """Puts W into the module, with one product."""
        if self._rank:
            C = self._C[: self._rank]
            if self._start:  # the last factor has s = 1
                C.mul_(self._s[: self._rank, None])
            self._W.addmm_(C.t(), self._R[: self._rank])
        self._rank, self._x = 0, None

    def accumulate_parameters(
        self, x: Tensor, d: Tensor, into: Mapping[str, Tensor], scale: float = 1.0, decay: float = 1.0
    ) -> None:
        raise NotImplementedError("a weight in sample space is moved by `move`")  # pragma: no cover

    @no_graph
    def input_curvature(
        self, x: Tensor, power: PowerIteration | None = None, upper: bool = False, which: int = 0
    ) -> float:
        """‖W‖₂².  The upper bound writes W out."""

        def normal(v: Vector) -> Vector:
            if self._image is not None and v[0] is self._vector:
                return (self._image,)
            if not self._rank:
                return (torch.mv(self._W.t(), torch.mv(self._W, v[0])),)
            R, Ct, s = self._factors()
            u = torch.mv(self._W, v[0]).addmv_(Ct, torch.mv(R, v[0]).mul_(s))
            return (torch.mv(self._W.t(), u).addmv_(R.t(), torch.mv(Ct.t(), u).mul_(s)),)

        estimate = (power or PowerIteration()).estimate(normal, (self._W[0],))
        if not upper:
            return estimate
        C = self._C[: self._rank] * self._s[: self._rank, None]
        return certified_bound(torch.addmm(self._W, C.t(), self._R[: self._rank]), estimate)

    def _factors(self) -> tuple[Tensor, Tensor, Tensor]:
        """R, Cᵀ and s."""
        return self._R[: self._rank], self._C[: self._rank].t(), self._s[: self._rank]

    def _with_image(self, d: Tensor) -> Tensor:
        """[d; Wv], in a buffer that the next call overwrites."""
        if len(self._stack) != self._count + 1:
            self._stack = d.new_empty(self._count + 1, d.shape[1])
        self._stack[: self._count] = d
        if self._rank:
            torch.add(self._base[self._count], self._low[self._count], out=self._stack[self._count])
        else:
            self._stack[self._count] = self._base[self._count]
        return self._stack

    def _take(self, x: Tensor) -> None:
        """Makes x the present input."""
        alone = self._shard.whole
        if x is self._x or (alone and self._x is not None and _same_memory(x, self._x)):
            return
        X = self.rows(self._shard.all_rows(x, keep=True))
        self._x, self._start, self._all = x, self._rank, len(X)
        v = self._memory[self._key][0] if alone and self._key in self._memory else None
        self._vector = v if v is not None and v.shape == X.shape[1:] and v.dtype == X.dtype else None
        self._image = None
        end = self._start + self._all
        stop = end + (self._vector is not None)
        if stop > len(self._R):
            self._R = _longer(self._R, max((self._blocks + 1) * self._all + 1, stop + self._start))
        self._R[self._start : end] = X
        if self._vector is not None:
            self._R[end] = self._vector
        own = self._R[self._start : stop] if alone else self.rows(x)
        self._count = self._all if alone else len(own)
        self._base = torch.mm(own, self._W.t())
        self._z = self._base[: self._count]
        gram = torch.mm(own, self._R[:end].t())
        self._own_gram = gram[:, self._start :]
        if self._rank:
            self._low = torch.mm(gram[:, : self._rank].mul_(self._s[: self._rank]), self._C[: self._rank])
            self._shift = self._low[: self._count]

    def _forget(self) -> None:
        """Drops all factors, and keeps the present X."""
        if self._start:
            self._R[: self._all] = self._R[self._start : self._start + self._all].clone()
        self._start = self._rank = 0


def _alike(a: Tensor, b: Tensor) -> bool:
    return a.shape[1:] == b.shape[1:] and a.dtype == b.dtype and a.device == b.device


def _same_memory(a: Tensor, b: Tensor) -> bool:
    return a.data_ptr() == b.data_ptr() and a.shape == b.shape and a.stride() == b.stride()


def _longer(t: Tensor, length: int) -> Tensor:
    grown = t.new_empty(length, *t.shape[1:])
    grown[: len(t)] = t
    return grown


def with_maps(problem: LiftedProblem, maps: Mapping[int, FactoredDense]) -> LiftedProblem:
    """A view of the problem in which these maps replace those of the layers; all else is shared with the problem."""
    if not maps:
        return problem
    network = problem.network
    changed = (replace(network[l], map=maps[l]) if l in maps else network[l] for l in layers(len(network)))
    view = copy.copy(problem)
    view.network = replace(network, layers=tuple(changed))
    return view
