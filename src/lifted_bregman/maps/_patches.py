"""The geometry of a convolution: its paddings, which input each output reads at each kernel offset, and its patches."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import pairwise

import torch
from torch import Tensor, nn
from torch.nn.functional import pad

Kind = nn.Conv1d | nn.Conv2d | nn.Conv3d | nn.ConvTranspose1d | nn.ConvTranspose2d | nn.ConvTranspose3d
CONVOLUTIONS = (nn.Conv1d, nn.Conv2d, nn.Conv3d)
TRANSPOSED = (nn.ConvTranspose1d, nn.ConvTranspose2d, nn.ConvTranspose3d)

_GOLDEN = (5.0**0.5 - 1.0) / 2.0  # multiples of it, modulo 1, fill [0, 1) evenly


@dataclass(frozen=True)
class Axis:
    """One spatial dimension: output o reads the input at i = o·stride - left + k·dilation for the kernel's offset k.

    In a transposed convolution the input at i adds to the output o = i·stride - left + k·dilation, and output_padding
    appends outputs that only the bias reaches.

    kernel, stride, dilation  as in torch
    left, right               padding on both sides, in inputs
    mode                      of the padding: zeros, circular, replicate or reflect
    """

    kernel: int
    stride: int
    dilation: int
    left: int
    right: int
    mode: str = "zeros"
    transposed: bool = False
    output_padding: int = 0

    @property
    def reach(self) -> int:
        """Distance between the first and the last input of a patch, (kernel - 1)·dilation."""
        return (self.kernel - 1) * self.dilation

    def outputs(self, size: int) -> int:
        """The number of outputs for `size` inputs."""
        if self.transposed:
            return (size - 1) * self.stride - self.left - self.right + self.reach + self.output_padding + 1
        return (size + self.left + self.right - self.reach - 1) // self.stride + 1

    def sources(self, size: int) -> Tensor:
        """(outputs, kernel): the input that output o reads at offset k, or -1 where that is a zero."""
        o, k = torch.arange(self.outputs(size))[:, None], torch.arange(self.kernel)
        if not self.transposed:
            return self.padded(o * self.stride - self.left + k * self.dilation, size)
        place = o + self.left - k * self.dilation
        i = self.padded(place.div(self.stride, rounding_mode="floor"), size)
        return i.masked_fill(place % self.stride != 0, -1)

    def padded(self, i: Tensor, size: int) -> Tensor:
        """The input at place i of the padded inputs, counted from the first input; -1 for a zero."""
        if self.mode == "circular":
            return i % size
        if self.mode == "replicate":
            return i.clamp(0, size - 1)
        if self.mode == "reflect":
            return size - 1 - (size - 1 - i.abs()).abs()
        return i.masked_fill((i < 0) | (i >= size), -1)


@dataclass(frozen=True)
class Patches:
    """The patches of inputs of one spatial shape: z = A Wᵀ + b with one row of A for each sample and output."""

    index: Tensor
    """(positions, kernel): the input, counted over all spatial dimensions, or their number for a zero."""
    inputs: int
    """The number of spatial inputs of a channel."""
    padded: bool
    """Whether some patches hold zeros."""
    _chosen: dict[tuple[int, ...], tuple[Tensor, Tensor]] = field(default_factory=dict)

    @classmethod
    def of(cls, axes: Sequence[Axis], sizes: Sequence[int], device: torch.device) -> Patches:
        index = torch.zeros(1, 1, dtype=torch.long)
        for axis, size in zip(axes, sizes, strict=True):
            own = axis.sources(size)
            joined = index[:, None, :, None] * size + own[None, :, None, :]
            joined.masked_fill_((own < 0)[None, :, None, :], -1)  # a zero of an axis before stays below 0
            index = joined.flatten(0, 1).flatten(1)
        inputs = 1
        for size in sizes:
            inputs *= size
        zeros = index < 0
        return cls(index.masked_fill(zeros, inputs).to(device), inputs, bool(zeros.any()))

    @cached_property
    def positions(self) -> int:
        """The number of outputs of a channel."""
        return len(self.index)

    def all(self, x: Tensor, groups: int) -> Tensor:
        """(groups, samples·positions, channels/groups·kernel): every patch of x (samples, channels, ...)."""
        # Channels last: a place of an image is copied with all its channels at once.
        places = pad(x.flatten(2).transpose(1, 2), (0, 0, 0, int(self.padded)))
        gathered = places.index_select(1, self.index.view(-1))
        split = gathered.view(len(x), *self.index.shape, groups, -1)  # (s, positions, kernel, g, c)
        return split.permute(3, 0, 1, 4, 2).reshape(groups, len(x) * self.positions, -1)

    def some(self, x: Tensor, groups: int, rows: int, generator: torch.Generator | None) -> Tensor:
        """(groups, rows, channels/groups·kernel): one patch out of each of `rows` equal parts of all patches.

        Patches are ordered by sample, then by position.  From part j comes the patch at the fraction u_j of the part:
        u_j = j·(√5 - 1)/2 modulo 1, which meets every column and row of the images equally often; with a generator a
        uniform random number, so that the expectation is that of all patches.
        """
        key = (len(x), x.shape[1], groups, rows)
        chosen = self._chosen.get(key) if generator is None else None
        if chosen is None:
            chosen = self._choose(x, groups, rows, generator)
            if generator is None:
                self._chosen.clear()
                self._chosen[key] = chosen
        where, zeros = chosen
        patches = x.reshape(-1).take(where)
        return (patches.masked_fill_(zeros, 0.0) if self.padded else patches).flatten(2)

    def _choose(self, x: Tensor, groups: int, rows: int, generator: torch.Generator | None) -> tuple[Tensor, Tensor]:
        """The indices of the chosen patches into x.flatten(), and which of their entries are zeros of the padding."""
        row = evenly_spread(len(x) * self.positions, rows, x.device, generator)
        places = self.index[row % self.positions][:, None, :]  # (rows, 1, kernel)
        zeros = places == self.inputs
        # sample, channel and place as one number: (groups, rows, channels/groups, kernel)
        channel = torch.arange(x.shape[1], device=x.device).view(groups, 1, -1, 1)
        sample = row.div(self.positions, rounding_mode="floor")[:, None, None]
        return (sample * x.shape[1] + channel) * self.inputs + places.masked_fill(zeros, 0), zeros


def evenly_spread(total: int, rows: int, device: torch.device, generator: torch.Generator | None = None) -> Tensor:
    """One of the numbers 0 .. total - 1 out of each of `rows` equal parts, as `Patches.some` chooses them."""
    part = torch.arange(rows, dtype=torch.float64, device=device)
    if generator is None:
        u = part * _GOLDEN % 1.0
    else:
        u = torch.rand(rows, generator=generator, dtype=torch.float64, device=generator.device).to(device)
    return ((part + u) * (total / rows)).long().clamp_(max=total - 1)


def squared(A: Tensor, blocks: int = 4) -> Tensor:
    """AᵀA of a stack A (..., m, n): the blocks on and above its diagonal, and their transposes."""
    n = A.shape[-1]
    K = A.new_empty(*A.shape[:-2], n, n)
    width = max(64, -(-n // blocks))  # smaller products are not worth a call
    for start in range(0, n, width):
        stop = min(start + width, n)
        K[..., start:stop, start:] = A[..., start:stop].mT @ A[..., start:]
        K[..., stop:, start:stop] = K[..., start:stop, stop:].mT
    return K


def axes_of(module: Kind) -> tuple[Axis, ...]:
    """The spatial dimensions of a convolution, first to last."""
    size, stride, dilation = module.kernel_size, module.stride, module.dilation
    if isinstance(module, TRANSPOSED):
        left: Sequence[int] = module.padding  # type: ignore[assignment]
        return tuple(map(_transposed_axis, size, stride, dilation, left, module.output_padding))
    pads = list(pairwise(module._reversed_padding_repeated_twice))[::2][::-1]  # torch's own, 'same' resolved
    return tuple(Axis(size[a], stride[a], dilation[a], *pads[a], mode=module.padding_mode) for a in range(len(size)))


def _transposed_axis(kernel: int, stride: int, dilation: int, padding: int, output_padding: int) -> Axis:
    return Axis(kernel, stride, dilation, padding, padding, transposed=True, output_padding=output_padding)


def pad_inputs(x: Tensor, axes: Sequence[Axis]) -> Tensor:
    """x with its padding appended."""
    amounts = [amount for axis in reversed(axes) for amount in (axis.left, axis.right)]
    return pad(x, amounts, mode="constant" if axes[0].mode == "zeros" else axes[0].mode)


def fold_padding(d: Tensor, axes: Sequence[Axis]) -> Tensor:
    """The transpose of `pad_inputs`: entries of the padding are added to the inputs from which they were copied."""
    for dim, axis in enumerate(axes, 2):
        left, right = axis.left, axis.right
        if left == right == 0:
            continue
        size = d.shape[dim] - left - right
        inner = d.narrow(dim, left, size)
        if axis.mode != "zeros":
            inner = inner.clone()
            before = torch.arange(-left, 0, device=d.device)
            places = torch.cat((before, torch.arange(size, size + right, device=d.device)))
            edges = torch.cat((d.narrow(dim, 0, left), d.narrow(dim, left + size, right)), dim)
            inner.index_add_(dim, axis.padded(places, size), edges)
        d = inner
    return d
