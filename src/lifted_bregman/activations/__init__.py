"""Activations: each is the proximal map σ = prox_Ψ of a potential Ψ, with its scaled proximal maps and conjugate."""

from lifted_bregman.activations._module import ActivationModule, forbid_activation_derivatives
from lifted_bregman.activations.base import Activation, Joint, Separable
from lifted_bregman.activations.custom import FromScalar
from lifted_bregman.activations.exponential import ELU, Sigmoid, Softplus
from lifted_bregman.activations.piecewise import (
    Box,
    Identity,
    LeakyReLU,
    NonNegativeSoftThreshold,
    ReLU,
    SoftThreshold,
)
from lifted_bregman.activations.simplex import Softmax, Sparsemax
from lifted_bregman.activations.smooth import ISRU, Arctan, Asinh, Softsign, Tanh
from lifted_bregman.activations.vectors import BallProjection, GroupSoftThreshold

__all__ = [
    "ELU",
    "ISRU",
    "Activation",
    "ActivationModule",
    "Arctan",
    "Asinh",
    "BallProjection",
    "Box",
    "FromScalar",
    "GroupSoftThreshold",
    "Identity",
    "Joint",
    "LeakyReLU",
    "NonNegativeSoftThreshold",
    "ReLU",
    "Separable",
    "Sigmoid",
    "SoftThreshold",
    "Softmax",
    "Softplus",
    "Softsign",
    "Sparsemax",
    "Tanh",
    "forbid_activation_derivatives",
]
