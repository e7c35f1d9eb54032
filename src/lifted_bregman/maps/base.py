"""The interface of a map z = f(x, Θ): apply it, pull back through it, bound its Jacobian."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any, TypeAlias

import torch
from torch import Tensor, nn

from lifted_bregman._linalg import PowerIteration
from lifted_bregman._no_graph import no_graph
from lifted_bregman.errors import CompatibilityError, UnsupportedModuleError
from lifted_bregman.maps.sites import Site

Inputs: TypeAlias = Any
"""The argument x of a map: a tensor (samples, ...), or a tuple of those if the map reads several variables."""


PullBack: TypeAlias = Callable[..., tuple[Any, dict[str, Tensor]]]
"""pull(d, scale=1.0, inputs=True): J_xᵀ d in the form of x, or None if `inputs` is False; and scale·J_Θᵀ d by name."""


class LayerMap(ABC):
    """f(x, Θ) of eq. 1 without its activation.

    x is (samples, ...), or a tuple of such tensors if f reads several variables.  Θ are the parameters of the user's
    modules themselves, not copies.  Only `evaluate` records an autograd graph.  `pull_back_*` apply the transposed
    Jacobians of f at (x, Θ), summed over samples, without 1/s.
    """

    affine: bool
    """Whether f is affine in x and in Θ, so that its Jacobians' norms can be bounded with a guarantee."""
    couples_samples: bool = False
    """Whether z of a sample depends on the others of its batch, as with batch normalisation in training mode."""
    random: bool = False
    """Whether z is random, as with dropout and noise in training mode."""
    channels_first: bool = False
    """Whether the features of z are (channels, ...), as a convolution makes them, or (..., units)."""

    @property
    @abstractmethod
    def parameters(self) -> dict[str, nn.Parameter]:
        """The parameters that are trained (requires_grad), by their names in the module; frozen ones are left out."""

    def unit_rows(self, weight: Tensor) -> Tensor:
        """A weight, or a tensor of its shape, as a matrix (units, rest), on which penalties act."""
        return weight.flatten(1)

    def from_unit_rows(self, matrix: Tensor, weight: Tensor) -> Tensor:
        """The inverse of `unit_rows`, in the shape of `weight`."""
        return matrix.view_as(weight)

    @abstractmethod
    def apply(self, x: Inputs) -> Tensor:
        """z = f(x, Θ), without an autograd graph."""

    @abstractmethod
    def pull_back_input(self, x: Inputs, d: Tensor) -> Inputs:
        """J_xᵀ d, in the form of x; it may share memory with d."""

    @no_graph
    def accumulate_parameters(
        self, x: Inputs, d: Tensor, into: Mapping[str, Tensor], scale: float = 1.0, decay: float = 1.0
    ) -> None:
        """into ← decay·into + scale·J_Θᵀ d, in place.

        With the parameters themselves as `into` this is a gradient step without a temporary tensor of their size.
        decay = 0 overwrites `into`, also where it holds NaN.
        """
        for name, pulled in self.pull_back_parameters(x, d).items():
            if decay == 0.0:
                torch.mul(pulled, scale, out=into[name].detach())
            else:
                into[name].mul_(decay).add_(pulled, alpha=scale)

    @abstractmethod
    def pull_back_parameters(self, x: Inputs, d: Tensor, scale: float = 1.0) -> dict[str, Tensor]:
        """scale·J_Θᵀ d in new tensors, for each name in `parameters`."""

    def linearise(self, x: Inputs) -> tuple[Tensor, PullBack]:
        """z = f(x, Θ), and its pull-back at this x and Θ, to be called once.

        A map keeps the results of the forward pass that its pull-back needs: both together cost one forward and one
        backward pass.
        """

        def pull(d: Tensor, scale: float = 1.0, inputs: bool = True) -> tuple[Any, dict[str, Tensor]]:
            return self.pull_back_input(x, d) if inputs else None, self.pull_back_parameters(x, d, scale)

        return self.apply(x), pull

    def index_limit(self, which: int = 0) -> int | None:
        """n if input number `which` holds indices 0 .. n-1 into a table, as of an embedding; None if it does not."""
        return None

    @property
    def sites(self) -> Sequence[Site]:
        """The places in f where batch normalisation, dropout or noise acts."""
        return ()

    def require_pure(self) -> None:  # noqa: B027
        """Raises an error that names a module in an `lb.Map` which is random or couples samples in its present mode."""

    def frozen(self) -> AbstractContextManager[None]:
        """A context in which masks, noise and batch statistics of the last call are used, and none is updated."""
        return nullcontext()

    def evaluate(self, x: Inputs) -> Tensor:
        """z = f(x, Θ) with an autograd graph, for back-propagation."""
        raise CompatibilityError(f"autograd does not know the map {type(self).__name__}.")

    @abstractmethod
    def input_curvature(
        self, x: Inputs, power: PowerIteration | None = None, upper: bool = False, which: int = 0
    ) -> float:
        """‖J_x‖₂² of one sample (the largest over samples where they differ), in input number `which` of several.

        upper=False: an estimate from below by power iteration, warm-started from `power`.  upper=True: a number that is
        guaranteed not to be below it; maps that cannot give one raise `CompatibilityError`.
        """

    @abstractmethod
    def parameter_curvature(self, x: Inputs, power: PowerIteration | None = None, upper: bool = False) -> float:
        """‖J_Θ‖₂² over all samples of x and all trained parameters together; for a dense map ‖[X 1]‖₂²."""


class Map(nn.Module):
    """Declares `module` a differentiable map f(x, Θ) without activation, which `lift` takes as one map.

    `lift` refuses modules it does not know, because an activation may hide in them.  In `Map` any module is taken:
    its Jacobians come from `torch.func.vjp`.  A module that is not affine in its parameters makes its parameter block
    non-convex.  It may take several tensors, each with the samples in dimension 0.

    The module must be a function of each sample alone.  Dropout, noise and batch normalisation are that in evaluation
    mode only: call `model.eval()` before `lift`, and keep that mode until training has ended.  `lift`, `fit` and every
    use of the map raise `UnsupportedModuleError` otherwise.  For modules of other classes, `fit` tries the map on a
    few samples: a map that is random, couples samples or changes its buffers is refused.

    Example:
        >>> class Square(nn.Module):
        ...     def forward(self, x):
        ...         return x**2
        >>> model = nn.Sequential(nn.Linear(3, 4), nn.ReLU(), lb.Map(Square()), nn.Linear(4, 1))
        >>> lb.lift(model, loss=lb.SquaredError()).network[2].map.affine
        False
    """

    def __init__(self, module: nn.Module) -> None:
        super().__init__()
        if not isinstance(module, nn.Module):
            raise UnsupportedModuleError(
                f"Map was given a {type(module).__name__}; it takes an nn.Module: put a plain function into the "
                "forward method of one."
            )
        self.module = module

    def forward(self, *inputs: Tensor) -> Tensor:
        """The output of `module`."""
        z: Tensor = self.module(*inputs)
        return z
