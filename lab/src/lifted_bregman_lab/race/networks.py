"""The networks of the race, as ordinary modules of torch."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from itertools import pairwise

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from lifted_bregman.activations import SoftThreshold


def dense(widths: Sequence[int], activation: Callable[[], nn.Module] = nn.ReLU) -> nn.Sequential:
    """Dense layers of these widths, with the activation between them and none at the end."""
    layers = [module for pair in pairwise(widths) for module in (nn.Linear(*pair), activation())]
    return nn.Sequential(*layers[:-1])


def sparse_autoencoder(width: int, threshold: float) -> nn.Sequential:
    """Four layers of one width: ReLU, a soft-threshold code, ReLU."""
    network = dense((width,) * 5)
    network[CODE] = SoftThreshold(threshold).as_module()
    return network


CODE = 3
"""The place of the code's activation in `sparse_autoencoder`."""


def deep_autoencoder(repeats: int = 1, activation: Callable[[], nn.Module] = nn.Tanh) -> nn.Sequential:
    """784-1000-500-250-30-250-500-1000-784 with a linear code; `repeats` layers of 500 on each side, Glorot-uniform."""
    side = (784, 1000, *(500,) * repeats, 250)
    encoder, decoder = dense((*side, 30), activation), dense((30, *reversed(side)), activation)
    network = nn.Sequential(*encoder, *decoder)
    for module in network:
        if isinstance(module, nn.Linear):
            nn.init.xavier_uniform_(module.weight)
            nn.init.zeros_(module.bias)
    return network


def small_cnn(classes: int) -> nn.Sequential:
    """Three convolutions with ReLU and average pooling, and a dense layer; pictures of 3 x 32 x 32."""
    return nn.Sequential(
        *(nn.Conv2d(3, 32, 3, padding=1), nn.ReLU(), nn.AvgPool2d(2)),
        *(nn.Conv2d(32, 64, 3, padding=1), nn.ReLU(), nn.AvgPool2d(2)),
        *(nn.Conv2d(64, 64, 3, padding=1), nn.ReLU(), nn.AvgPool2d(2)),
        *(nn.Flatten(), nn.Linear(64 * 16, classes)),
    )


def lenet(channels: int, classes: int, padding: int = 0) -> nn.Sequential:
    """LeNet-5 with ReLU and average pooling; pictures of 32 x 32, or of 28 x 28 with a padding of 2."""
    return nn.Sequential(
        *(nn.Conv2d(channels, 6, 5, padding=padding), nn.ReLU(), nn.AvgPool2d(2)),
        *(nn.Conv2d(6, 16, 5), nn.ReLU(), nn.AvgPool2d(2), nn.Flatten()),
        *dense((400, 120, 84, classes)),
    )


class _Residual(nn.Module):
    """x + conv(ReLU(norm(conv(x)))), after a normalisation and ReLU of x."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.first_norm, self.second_norm = nn.BatchNorm2d(channels), nn.BatchNorm2d(channels)
        self.first = nn.Conv2d(channels, channels, 3, padding=1, bias=False)
        self.second = nn.Conv2d(channels, channels, 3, padding=1, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        inner = self.first(F.relu(self.first_norm(x)))
        moved: Tensor = self.second(F.relu(self.second_norm(inner)))
        return x + moved


def small_resnet(classes: int, channels: int = 32) -> nn.Sequential:
    """A convolution, three residual blocks with average pooling between them, and a dense layer."""
    return nn.Sequential(
        nn.Conv2d(3, channels, 3, padding=1, bias=False),
        *(_Residual(channels), nn.AvgPool2d(2), _Residual(channels), nn.AvgPool2d(2), _Residual(channels)),
        *(nn.BatchNorm2d(channels), nn.ReLU(), nn.AvgPool2d(8), nn.Flatten(), nn.Linear(channels, classes)),
    )


class _DenseResidual(nn.Module):
    """x + W₂ ReLU(W₁x + b₁) + b₂; W₂ is small enough that all blocks together keep the size of x."""

    def __init__(self, width: int, blocks: int) -> None:
        super().__init__()
        self.inner, self.outer = nn.Linear(width, width), nn.Linear(width, width)
        nn.init.normal_(self.inner.weight, std=math.sqrt(2.0 / width))
        nn.init.normal_(self.outer.weight, std=math.sqrt(1.0 / (width * blocks)))

    def forward(self, x: Tensor) -> Tensor:
        moved: Tensor = self.outer(F.relu(self.inner(x)))
        return x + moved


def residual_dense(inputs: int, classes: int, layers: int = 128, width: int = 64) -> nn.Sequential:
    """So many dense layers in residual blocks of two, between a layer to `width` and one to the classes."""
    blocks = layers // 2
    stream = (_DenseResidual(width, blocks) for _ in range(blocks))
    return nn.Sequential(nn.Linear(inputs, width), *stream, nn.Linear(width, classes))


class _Block(nn.Module):
    """Causal self-attention and a dense network with ReLU, each added to the stream after a layer normalisation."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.attention_norm, self.dense_norm = nn.LayerNorm(width), nn.LayerNorm(width)
        self.queries, self.keys, self.values, self.project = (nn.Linear(width, width, bias=False) for _ in range(4))
        self.dense = nn.Sequential(nn.Linear(width, 4 * width), nn.ReLU(), nn.Linear(4 * width, width))

    def forward(self, x: Tensor) -> Tensor:
        y = self.attention_norm(x)
        q, k, v = (
            project(y).unflatten(2, (self.heads, -1)).transpose(1, 2)
            for project in (self.queries, self.keys, self.values)
        )
        mixed = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.project(mixed.transpose(1, 2).flatten(2))
        moved: Tensor = self.dense(self.dense_norm(x))
        return x + moved


class GPT(nn.Module):
    """A transformer that gives for each place the logits of the next token, (samples, context, tokens)."""

    def __init__(self, tokens: int, context: int = 64, layers: int = 4, heads: int = 4, width: int = 128) -> None:
        super().__init__()
        self.context = context
        self.token = nn.Embedding(tokens, width)
        self.place = nn.Parameter(0.02 * torch.randn(context, width))
        self.blocks = nn.Sequential(*(_Block(width, heads) for _ in range(layers)))
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, tokens, bias=False)

    def forward(self, tokens: Tensor) -> Tensor:
        stream = self.token(tokens) + self.place
        logits: Tensor = self.head(self.norm(self.blocks(stream)))
        return logits
