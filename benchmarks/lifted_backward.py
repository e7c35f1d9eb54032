"""The time of a backward pass with lifted activations, against autograd's, on a small ResNet and a small GPT.

    python benchmarks/lifted_backward.py [--rounds 20] [--threads 1] [--json FILE]

In turns, in processor time; the forward pass is measured too.  Random images and tokens stand for data: a pass costs
the same.  Aim: at most 1.15 times autograd's backward pass.
"""

import copy
import math
import time
from collections.abc import Callable

import torch
from _interleaved import arguments, ratios, report, sentence
from convolution_step import keep_memory
from torch import Tensor, nn
from torch.nn import functional as F

import lifted_bregman as lb

AIM = "1.15"


class Block(nn.Module):
    """Two convolutions with batch normalisation, and a shortcut."""

    def __init__(self, inputs: int, outputs: int, stride: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(inputs, outputs, 3, stride, 1, bias=False)
        self.conv2 = nn.Conv2d(outputs, outputs, 3, 1, 1, bias=False)
        self.norm1, self.norm2 = nn.BatchNorm2d(outputs), nn.BatchNorm2d(outputs)
        self.relu = nn.ReLU(inplace=True)
        same = inputs == outputs and stride == 1
        self.shortcut = nn.Identity() if same else nn.Conv2d(inputs, outputs, 1, stride, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        """relu(shortcut(x) + f(x))."""
        out: Tensor = self.relu(self.norm1(self.conv1(x)))
        out = self.norm2(self.conv2(out))
        out += self.shortcut(x)
        return F.relu(out, inplace=True)


def resnet(width: int = 32) -> nn.Module:
    """ResNet-8 for images of 32 x 32."""
    return nn.Sequential(
        nn.Conv2d(3, width, 3, 1, 1, bias=False), nn.BatchNorm2d(width), nn.ReLU(inplace=True),
        Block(width, width, 1), Block(width, 2 * width, 2), Block(2 * width, 4 * width, 2),
        nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(4 * width, 10),
    )  # fmt: skip


class Attention(nn.Module):
    """Causal self-attention, written out or by torch's fused function."""

    def __init__(self, width: int, heads: int, length: int, fused: bool) -> None:
        super().__init__()
        self.heads, self.fused = heads, fused
        self.qkv, self.proj = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.register_buffer("later", torch.ones(length, length, dtype=torch.bool).triu(1))

    def forward(self, x: Tensor) -> Tensor:
        """softmax(Q Kᵀ/√d) V, projected."""
        B, T, C = x.shape
        q, k, v = (t.view(B, T, self.heads, -1).transpose(1, 2) for t in self.qkv(x).split(C, 2))
        if self.fused:
            y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        else:
            scores = (q @ k.transpose(-2, -1)) * (1.0 / math.sqrt(q.shape[-1]))
            y = F.softmax(scores.masked_fill(self.later[:T, :T], -math.inf), dim=-1) @ v
        out: Tensor = self.proj(y.transpose(1, 2).reshape(B, T, C))
        return out


class GPT(nn.Module):
    """Pre-normalised blocks with GELU, as in GPT-2."""

    def __init__(self, width: int = 192, depth: int = 3, heads: int = 6, length: int = 64, fused: bool = False) -> None:
        super().__init__()
        self.tokens, self.positions = nn.Embedding(65, width), nn.Embedding(length, width)
        self.norms = nn.ModuleList(nn.LayerNorm(width) for _ in range(2 * depth + 1))
        self.attention = nn.ModuleList(Attention(width, heads, length, fused) for _ in range(depth))
        self.mlp = nn.ModuleList(
            nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width)) for _ in range(depth)
        )
        self.head = nn.Linear(width, 65)

    def forward(self, ids: Tensor) -> Tensor:
        """(samples, T) to (samples, T, 65)."""
        x = self.tokens(ids) + self.positions.weight[: ids.shape[1]]
        for number, (attention, mlp) in enumerate(zip(self.attention, self.mlp, strict=True)):
            x = x + attention(self.norms[2 * number](x))
            x = x + mlp(self.norms[2 * number + 1](x))
        out: Tensor = self.head(self.norms[-1](x))
        return out


def passes(model: nn.Module, x: Tensor, labels: Tensor, clock: dict[str, float]) -> Callable[[], float]:
    """One forward and one backward pass; returns the seconds of the backward pass."""

    def run() -> float:
        model.zero_grad()
        start = time.process_time()
        loss = F.cross_entropy(model(x).flatten(0, -2), labels.flatten())
        middle = time.process_time()
        loss.backward()
        end = time.process_time()
        clock["forward"] = clock.get("forward", 0.0) + middle - start
        return end - middle

    return run


def main() -> None:
    """Prints the ratios."""
    given = arguments(__doc__, rounds=20)
    keep_memory()
    torch.manual_seed(0)
    images = torch.randn(32, 3, 32, 32), torch.randint(0, 10, (32,))
    tokens = torch.randint(0, 65, (16, 64)), torch.randint(0, 65, (16, 64))
    cases = {
        "ResNet-8": (resnet(), images, 1),
        "GPT, attention written out": (GPT(), tokens, 64),
        "GPT, fused attention": (GPT(fused=True), tokens, 64),
    }
    result: dict[str, float] = {}
    for name, (plain, (x, labels), terms) in cases.items():
        lifted = lb.lifted_backward(copy.deepcopy(plain), terms_per_sample=terms, example=x[:2])
        ours: dict[str, float] = {}
        other: dict[str, float] = {}
        found = ratios(passes(lifted, x, labels, ours), passes(plain, x, labels, other), given.rounds)
        forward = ours["forward"] / other["forward"]
        print(f"{name}: backward {found['ours_ms']:.1f} ms, autograd's {found['other_ms']:.1f} ms")
        print(f"  {sentence(found, AIM)}; forward {forward:.2f}")
        result |= {f"{name}, {key}": value for key, value in found.items()} | {f"{name}, forward ratio": forward}
    report(given, result)


if __name__ == "__main__":
    main()
