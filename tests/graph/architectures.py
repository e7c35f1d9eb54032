"""Small models of many kinds, written as their users write them: what the reader has to take."""

import math

import torch
from torch import nn
from torch.nn import functional as F

import lifted_bregman as lb


class PostActivation(nn.Module):
    """Residual blocks with batch normalisation, as torchvision writes them."""

    def __init__(self, width=4, norm=nn.BatchNorm2d):
        super().__init__()
        self.conv1 = nn.Conv2d(width, width, 3, padding=1, bias=False)
        self.bn1 = norm(width)
        self.relu = nn.ReLU(inplace=True)
        self.conv2 = nn.Conv2d(width, width, 3, padding=1, bias=False)
        self.bn2 = norm(width)

    def forward(self, x):
        identity = x
        out = self.conv1(x)
        out = self.bn1(out)
        out = self.relu(out)
        out = self.conv2(out)
        out = self.bn2(out)
        out += identity
        return self.relu(out)


class ResNet(nn.Module):
    def __init__(self, norm=nn.BatchNorm2d):
        super().__init__()
        self.stem = nn.Conv2d(2, 4, 3, padding=1)
        self.layers = nn.Sequential(PostActivation(norm=norm), PostActivation(norm=norm))
        self.pool = nn.AdaptiveAvgPool2d((1, 1))
        self.fc = nn.Linear(4, 3)

    def forward(self, x):
        x = F.max_pool2d(F.relu(self.stem(x)), 2)
        x = self.pool(self.layers(x))
        x = torch.flatten(x, 1)
        return self.fc(x)


class PreActivation(nn.Module):
    """Residual streams: nothing is applied to the sum itself."""

    def __init__(self):
        super().__init__()
        self.enter = nn.Linear(5, 6)
        self.norms = nn.ModuleList(nn.LayerNorm(6) for _ in range(2))
        self.inner = nn.ModuleList(nn.Linear(6, 7) for _ in range(2))
        self.outer = nn.ModuleList(nn.Linear(7, 6) for _ in range(2))
        self.leave = nn.Linear(6, 3)

    def forward(self, x):
        h = self.enter(x)
        for norm, inner, outer in zip(self.norms, self.inner, self.outer, strict=True):
            h = h + outer(torch.tanh(inner(norm(h))))
        return self.leave(h.relu())


class Subtracting(nn.Module):
    """x - relu(f(x)), as the paper has it for proximal networks."""

    def __init__(self):
        super().__init__()
        self.f = nn.Linear(5, 5)
        self.g = nn.Linear(5, 5)
        self.out = nn.Linear(5, 2)

    def forward(self, x):
        x = x - F.relu(self.f(x))
        x = x - F.softplus(self.g(x))
        return self.out(x)


class DenseBlock(nn.Module):
    def __init__(self):
        super().__init__()
        self.first = nn.Conv2d(2, 3, 3, padding=1)
        self.second = nn.Conv2d(5, 3, 3, padding=1)
        self.third = nn.Conv2d(8, 2, 1)

    def forward(self, x):
        features = [x]
        features.append(torch.relu(self.first(torch.cat(features, 1))))
        features.append(F.leaky_relu(self.second(torch.cat(features, dim=1)), 0.1))
        return self.third(torch.cat(features, 1)).mean((2, 3))


class UNet(nn.Module):
    def __init__(self):
        super().__init__()
        self.down1 = nn.Conv2d(2, 3, 3, padding=1)
        self.down2 = nn.Conv2d(3, 4, 3, padding=1)
        self.up = nn.ConvTranspose2d(4, 3, 2, stride=2)
        self.merge = nn.Conv2d(6, 2, 3, padding=1)
        self.pool = nn.MaxPool2d(2)

    def forward(self, x):
        a = F.elu(self.down1(x), 0.7)
        b = F.relu(self.down2(self.pool(a)))
        c = self.up(b)
        c = F.interpolate(c, size=a.shape[-2:], mode="nearest")
        return self.merge(torch.cat([c, a], dim=1))


class Norms(nn.Module):
    """Group, instance and RMS normalisation, and one of those by hand."""

    def __init__(self):
        super().__init__()
        self.conv1, self.group = nn.Conv2d(2, 4, 3), nn.GroupNorm(2, 4)
        self.conv2, self.instance = nn.Conv2d(4, 4, 1), nn.InstanceNorm2d(4, affine=True)
        self.fc, self.rms = nn.Linear(4, 6), nn.RMSNorm(6)
        self.gain = nn.Parameter(torch.linspace(0.5, 1.5, 6))
        self.out = nn.Linear(6, 2)

    def forward(self, x):
        x = self.group(self.conv1(x)).relu_()
        x = torch.sigmoid(self.instance(self.conv2(x)))
        x = self.rms(self.fc(F.adaptive_avg_pool2d(x, 1).flatten(1))).tanh()
        x = x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-6) * self.gain
        return self.out(x)


class Attention(nn.Module):
    """Causal attention by hand, as small language models have it."""

    def __init__(self, width=8, heads=2, length=16):
        super().__init__()
        self.heads = heads
        self.qkv = nn.Linear(width, 3 * width)
        self.proj = nn.Linear(width, width)
        self.register_buffer("mask", torch.tril(torch.ones(length, length)).view(1, 1, length, length))

    def forward(self, x):
        B, T, C = x.size()
        q, k, v = self.qkv(x).split(C, dim=2)
        q, k, v = (t.view(B, T, self.heads, C // self.heads).transpose(1, 2) for t in (q, k, v))
        att = (q @ k.transpose(-2, -1)) * (1.0 / math.sqrt(k.size(-1)))
        att = att.masked_fill(self.mask[:, :, :T, :T] == 0, float("-inf"))
        att = F.softmax(att, dim=-1)
        y = (att @ v).transpose(1, 2).contiguous().view(B, T, C)
        return self.proj(y)


class LanguageModel(nn.Module):
    """Embeddings, positions, pre-norm blocks, an output tied to the embedding."""

    def __init__(self):
        super().__init__()
        self.tokens = nn.Embedding(11, 8)
        self.positions = nn.Parameter(0.1 * torch.randn(1, 16, 8))
        self.ln1, self.ln2, self.ln3 = nn.LayerNorm(8), nn.LayerNorm(8), nn.LayerNorm(8)
        self.attention = Attention()
        self.mlp = nn.Sequential(nn.Linear(8, 12), nn.ReLU(), nn.Linear(12, 8))
        self.head = nn.Linear(8, 11, bias=False)
        self.head.weight = self.tokens.weight

    def forward(self, ids):
        T = ids.shape[1]
        x = self.tokens(ids) + self.positions[:, :T]
        x = x + self.attention(self.ln1(x))
        x = x + self.mlp(self.ln2(x))
        return self.head(self.ln3(x))


class EinsumAttention(nn.Module):
    """Patches of an image, a class token, attention by einsum with a tensor of three projections."""

    def __init__(self):
        super().__init__()
        self.patches = nn.Conv2d(2, 8, 2, stride=2)
        self.token = nn.Parameter(0.1 * torch.randn(1, 1, 8))
        self.positions = nn.Embedding(10, 8)
        self.to_qkv = nn.Linear(8, 24, bias=False)
        self.out = nn.Linear(8, 3)

    def forward(self, x):
        x = self.patches(x).flatten(2).permute(0, 2, 1)
        b, n, _ = x.shape
        x = torch.cat([self.token.expand(b, -1, -1), x], dim=1)
        x = x + self.positions(torch.arange(n + 1, device=x.device))
        qkv = self.to_qkv(x).reshape(b, n + 1, 3, 2, 4).permute(2, 0, 3, 1, 4)
        q, k, v = qkv[0], qkv[1], qkv[2]
        weights = torch.einsum("bhid,bhjd->bhij", q, k).mul(0.5).softmax(dim=-1)
        x = x + torch.einsum("bhij,bhjd->bhid", weights, v).transpose(1, 2).flatten(2)
        return self.out(x[:, 0])


class Recurrence(nn.Module):
    """An unrolled recurrence: the same two layers at every step, and a state that starts from zeros."""

    def __init__(self):
        super().__init__()
        self.read = nn.Linear(3, 4)
        self.carry = nn.Linear(4, 4, bias=False)
        self.out = nn.Linear(4, 2)

    def forward(self, x):
        h = torch.zeros(x.size(0), 4, dtype=x.dtype, device=x.device)
        for t in range(x.size(1)):
            h = torch.tanh(self.read(x[:, t]) + self.carry(h))
        return self.out(h)


class SequenceFirst(nn.Module):
    """Samples in dimension 1, and rows of all heads in dimension 0, as older attention code has them."""

    def __init__(self):
        super().__init__()
        self.q, self.k, self.v = nn.Linear(6, 6), nn.Linear(6, 6), nn.Linear(6, 6)
        self.out = nn.Linear(6, 4)

    def forward(self, x):
        x = x.permute(1, 0, 2)
        T, B, C = x.shape
        q, k, v = (f(x).reshape(T, B * 2, C // 2).transpose(0, 1) for f in (self.q, self.k, self.v))
        weights = torch.bmm(q, k.transpose(1, 2)).softmax(-1)
        y = torch.bmm(weights, v).transpose(0, 1).reshape(T, B, C)
        return self.out(torch.relu(y)).permute(1, 0, 2)


class Functional(nn.Module):
    """Parameters without modules, arithmetic with constants, clipping, products of two branches."""

    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.randn(4, 5) / 2)
        self.bias = nn.Parameter(torch.randn(4))
        self.gate = nn.Linear(5, 4)
        self.scale = nn.ParameterList(
            [nn.Parameter(torch.tensor(0.7)), nn.Parameter(torch.tensor([1.0, 2.0, 0.5, 1.5]))]
        )
        self.out = nn.Linear(4, 2)

    def forward(self, x):
        a = (2.0 * F.linear(x, self.weight, self.bias) - 0.3).clamp(-1.0, 2.0)
        b = self.gate(x).sigmoid()
        y = self.scale[0] * a * b
        y = torch.clamp(self.scale[1] * y, min=0)
        return self.out(torch.exp(-y))


class SharedBlock(nn.Module):
    """One block used twice, and a module of the library inside."""

    def __init__(self):
        super().__init__()
        self.enter = nn.Linear(3, 4)
        self.block = nn.Sequential(nn.Linear(4, 4), lb.activations.SoftThreshold(0.1).as_module())
        self.free = lb.Map(nn.Bilinear(1, 1, 1))
        self.out = nn.Linear(4, 2)
        self.never = nn.Linear(2, 2)

    def forward(self, x):
        x = self.enter(x)
        for _ in range(2):
            x = x + self.block(x)
        return self.out(x)


class TwoInputs(nn.Module):
    """Whole numbers and real ones, and a mask made from the first."""

    def __init__(self):
        super().__init__()
        self.tokens = nn.Embedding(7, 4, padding_idx=0)
        self.facts = nn.Linear(3, 4)
        self.out = nn.Linear(4, 2)

    def forward(self, ids, facts):
        mask = (ids != 0).unsqueeze(-1).float()
        x = torch.tanh(self.tokens(ids) + self.facts(facts).unsqueeze(1)) * mask.to(facts.dtype)
        return self.out(x.sum(1))


class ThreeInputs(nn.Module):
    """Inputs that meet at different depths: an image, numbers, and which features count."""

    def __init__(self):
        super().__init__()
        self.look, self.facts, self.out = nn.Conv2d(2, 4, 3), nn.Linear(3, 4), nn.Linear(7, 2)

    def forward(self, image, facts, counted):
        seen = F.relu(self.look(image)).mean((2, 3))
        both = torch.tanh(self.facts(facts) + seen.masked_fill(~counted, 0.0))
        return self.out(torch.cat([both, facts], 1))


class Dropped(nn.Module):
    def __init__(self):
        super().__init__()
        self.a, self.b, self.drop, self.bn = nn.Linear(5, 6), nn.Linear(6, 3), nn.Dropout(0.4), nn.BatchNorm1d(6)

    def forward(self, x):
        x = F.dropout(torch.relu(self.bn(self.a(x))), 0.3, training=self.training)
        return self.b(self.drop(x))


class Gates(nn.Module):
    """Activations that are no proximal maps, and are read as products."""

    def __init__(self):
        super().__init__()
        self.layers = nn.Sequential(
            nn.Linear(5, 6),
            nn.GELU(),
            nn.Linear(6, 6),
            nn.SiLU(inplace=True),
            nn.Linear(6, 8),
            nn.GLU(),
            nn.Linear(4, 4),
        )
        self.mish, self.out = nn.Mish(), nn.Linear(4, 2)

    def forward(self, x):
        x = F.gelu(self.layers(x), approximate="tanh")
        return self.out(self.mish(F.hardswish(self.out.weight.mean() * x)))


class Torchs(nn.Module):
    """Torch's own attention, encoder layer and recurrences."""

    def __init__(self):
        super().__init__()
        self.encode = nn.TransformerEncoderLayer(6, 2, 8, dropout=0.0, batch_first=True)
        self.attend = nn.MultiheadAttention(6, 3)
        self.lstm = nn.LSTM(6, 4, batch_first=True)
        self.gru = nn.GRU(4, 3)
        self.out = nn.Linear(3, 2)

    def forward(self, x):
        x = self.encode(x).transpose(0, 1)
        x = x + self.attend(x, x, x, need_weights=False)[0]
        x, _ = self.lstm(x.transpose(0, 1))
        x = F.scaled_dot_product_attention(x, x, x, is_causal=True) + x
        _, h = self.gru(x.transpose(0, 1))
        return self.out(h[-1])


def _seeded(make, *shapes, ids=None, mask=None):
    def build():
        torch.manual_seed(3)
        model = make().double()
        for module in model.modules():
            if isinstance(module, nn.BatchNorm1d | nn.BatchNorm2d):  # statistics that are not those of a new one
                module.running_mean.normal_()
                module.running_var.uniform_(0.5, 2.0)
        x = tuple(torch.randn(s, dtype=torch.float64) for s in shapes)
        if ids is not None:
            x = (torch.randint(0, ids[1], ids[0]), *x)
        if mask is not None:
            x = (*x, torch.rand(mask) < 0.7)
        return model, x

    return build


IMAGE = (5, 2, 8, 8)
MODELS = {
    "post-activation residual": _seeded(ResNet, IMAGE),
    "post-activation residual, group norm": _seeded(lambda: ResNet(lambda c: nn.GroupNorm(2, c)), IMAGE),
    "pre-activation residual": _seeded(PreActivation, (5, 5)),
    "x - relu(f(x))": _seeded(Subtracting, (5, 5)),
    "dense block": _seeded(DenseBlock, IMAGE),
    "u-net": _seeded(UNet, IMAGE),
    "normalisations": _seeded(Norms, IMAGE),
    "language model": _seeded(LanguageModel, ids=((5, 6), 11)),
    "einsum attention": _seeded(EinsumAttention, (5, 2, 6, 6)),
    "recurrence": _seeded(Recurrence, (5, 3, 3)),
    "sequence first": _seeded(SequenceFirst, (5, 3, 6)),
    "functions and parameters": _seeded(Functional, (5, 5)),
    "shared block": _seeded(SharedBlock, (5, 3)),
    "two inputs": _seeded(TwoInputs, (5, 3), ids=((5, 4), 7)),
    "three inputs": _seeded(ThreeInputs, (5, 2, 4, 4), (5, 3), mask=(5, 4)),
    "gates": _seeded(Gates, (5, 5)),
    "torch's own attention and recurrences": _seeded(Torchs, (5, 4, 6)),
    "dropout": _seeded(Dropped, (5, 5)),
    "noise": _seeded(lambda: nn.Sequential(lb.GaussianNoise(0.3), nn.Linear(5, 6), nn.Tanh(), nn.Linear(6, 3)), (5, 5)),
    "chain": _seeded(lambda: nn.Sequential(nn.Linear(5, 4), nn.ReLU(), nn.Linear(4, 3), nn.Softmax(-1)), (5, 5)),
}
"""A model in float64, and five samples for it, a tuple with a tensor for each input; a new one at every call."""


def drawn(inputs, samples):
    """X with so many samples of the kinds of `inputs`: a tensor, or a tuple where there are several."""
    found = []
    for x in inputs:
        shape = (samples, *x.shape[1:])
        if x.is_floating_point():
            found.append(torch.randn(shape, dtype=torch.float64))
        else:
            found.append(
                torch.rand(shape) < 0.7 if x.dtype == torch.bool else torch.randint(0, int(x.max()) + 1, shape)
            )
    return found[0] if len(found) == 1 else tuple(found)


def answer(model, X):
    """The output of a model of one or several inputs."""
    return model(*X) if isinstance(X, tuple) else model(X)


def first(X, samples):
    """The first samples of X."""
    return tuple(x[:samples] for x in X) if isinstance(X, tuple) else X[:samples]
