"""The complete lists that product tests run over.  `test_cases.py` proves that nothing public is missing."""

from __future__ import annotations

import torch

import lifted_bregman as lb
from lifted_bregman import activations as act

# One entry per activation and per setting that changes its branch structure.
SCALAR_ACTIVATIONS: list[act.Activation] = [
    act.Identity(),
    act.ReLU(),
    act.LeakyReLU(0.1),
    act.LeakyReLU(1.0),
    act.Box(),
    act.Box(0.0, 6.0),
    act.Box(-0.3, 0.7),
    act.SoftThreshold(0.5),
    act.SoftThreshold(0.09),
    act.NonNegativeSoftThreshold(0.3),
    act.Tanh(),
    act.Sigmoid(),
    act.Softsign(),
    act.Arctan(),
    act.ISRU(),
    act.Asinh(),
    act.ELU(1.0),
    act.ELU(0.4),
    act.Softplus(),
]
CUSTOM_ACTIVATIONS: list[act.Activation] = [act.FromScalar(torch.tanh), act.FromScalar(torch.nn.functional.hardsigmoid)]
JOINT_ACTIVATIONS: list[act.Activation] = [
    act.Softmax(),
    act.Sparsemax(),
    act.GroupSoftThreshold(0.7),
    act.BallProjection(1.3),
]
ACTIVATIONS = SCALAR_ACTIVATIONS + CUSTOM_ACTIVATIONS + JOINT_ACTIVATIONS

LOSSES = [lb.SquaredError(), lb.CrossEntropy(), lb.BregmanLoss(act.Tanh()), lb.QuadraticPenalty(act.Tanh())]

PENALTIES = [
    lb.penalties.L1(0.3),
    lb.penalties.SquaredL2(0.7),
    lb.penalties.NonNegative(),
    lb.penalties.GroupL2(0.4),
    lb.penalties.Box(-0.2, 0.6),
]


def name(case: object) -> str:
    """Readable test ids, equal in every process."""
    if isinstance(case, act.FromScalar):
        return f"FromScalar({case.function.__name__})"
    return repr(case).replace(" ", "")


def domain_points(activation: act.Activation, z: torch.Tensor) -> torch.Tensor:
    """Points of the activation's domain, made from arbitrary z: its image under maps of several scales."""
    return activation.prox(z, 0.3)
