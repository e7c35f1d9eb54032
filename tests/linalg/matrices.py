"""Matrices on which norms are hard to estimate, and their exact squared norms."""

import torch

F64 = torch.float64


def orthogonal(n):
    return torch.linalg.qr(torch.randn(n, n, dtype=F64)).Q


def nasty():
    torch.manual_seed(3)
    U, V = orthogonal(30), orthogonal(30)
    vandermonde = torch.linspace(0.1, 1.0, 30, dtype=F64).pow(torch.arange(30, dtype=F64)[:, None])
    twins = torch.ones(30, dtype=F64)
    twins[0], twins[1] = 2.0, 2.0 * (1.0 + 1e-9)
    hidden = torch.eye(30, dtype=F64)
    hidden[7, 7] = 5.0
    block = torch.zeros(40, 30, dtype=F64)
    block[:3, :2], block[20:, 10:] = torch.randn(3, 2, dtype=F64), 0.1 * torch.randn(20, 20, dtype=F64)
    return {
        "random": torch.randn(40, 30, dtype=F64),
        "random, wide": torch.randn(5, 70, dtype=F64),
        "one row": torch.randn(1, 9, dtype=F64),
        "one column": torch.randn(9, 1, dtype=F64),
        "one number": torch.tensor([[-3.0]], dtype=F64),
        "rank one": torch.outer(torch.randn(20, dtype=F64), torch.randn(30, dtype=F64)),
        "orthogonal: all singular values equal": U,
        "two largest differ by 1e-9": U * twins @ V.t(),
        "slow decay": U * torch.linspace(1.0, 0.9, 30, dtype=F64) @ V.t(),
        "condition 1e16": U * torch.logspace(0, -16, 30, dtype=F64) @ V.t(),
        "vandermonde": vandermonde,
        "hilbert": 1.0 / (torch.arange(12, dtype=F64)[:, None] + torch.arange(12, dtype=F64) + 1.0),
        "one entry sticks out": hidden,
        "blocks": block,
        "tiny": 1e-160 * torch.randn(12, 9, dtype=F64),
        "huge": 1e150 * torch.randn(12, 9, dtype=F64),
        "alternating signs": (-1.0) ** (torch.arange(15, dtype=F64)[:, None] + torch.arange(20, dtype=F64)),
        "float32": torch.randn(60, 50),
        "float32, positive": torch.rand(60, 50),
    }


def top(matrix):
    return float(torch.linalg.svdvals(matrix.double())[0]) ** 2
