"""The input of a model: one tensor X, or several, each with one row per sample."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeAlias

import torch
from torch import Tensor


@dataclass(frozen=True)
class Input:
    """One tensor that the model's forward method takes.

    Example:
        >>> example = torch.randn(5, 3), torch.randn(5, 4)
        >>> problem = lb.lift(nn.Bilinear(3, 4, 2), loss=lb.SquaredError(), example=example)
        >>> problem.network.inputs
        (Input(name='input1', dtype=torch.float32), Input(name='input2', dtype=torch.float32))
    """

    name: str = "X"
    """Its name in the forward method; X for the only one."""
    dtype: torch.dtype | None = None
    """The dtype of the example; None if no example was given."""


@dataclass(frozen=True, eq=False, repr=False)
class InputTensors:
    """The inputs of a model that takes several tensors, used as X in place of a single tensor.

    tensors  in the order of the forward method, each (samples, ...)

    Example:
        >>> from lifted_bregman.graph import InputTensors
        >>> X = InputTensors((torch.zeros(5, 3), torch.zeros(5, 2, 4)))
        >>> len(X)
        5
    """

    tensors: tuple[Tensor, ...]

    def __len__(self) -> int:
        return len(self.tensors[0])

    def __getitem__(self, rows: slice | Tensor) -> InputTensors:
        """The rows of some samples, from every tensor."""
        return self._each(lambda t: t[rows])

    def __repr__(self) -> str:
        return f"InputTensors({', '.join(f'{tuple(t.shape)} of {t.dtype}' for t in self.tensors)})"

    def index_select(self, dim: int, places: Tensor) -> InputTensors:
        """The samples at `places`, in new memory; dim is 0."""
        return self._each(lambda t: t.index_select(dim, places))

    def detach(self) -> InputTensors:
        """The same numbers without an autograd graph."""
        return self._each(Tensor.detach)

    @property
    def requires_grad(self) -> bool:
        """Whether one of the tensors requires a gradient."""
        return any(t.requires_grad for t in self.tensors)

    @property
    def device(self) -> torch.device:
        """The device of the tensors."""
        return self.tensors[0].device

    def _each(self, change: Callable[[Tensor], Tensor]) -> InputTensors:
        return InputTensors(tuple(map(change, self.tensors)))


ModelInput: TypeAlias = Tensor | InputTensors
"""X as the library passes it on."""
InputLike: TypeAlias = ModelInput | tuple[Tensor, ...]
"""X as a user may give it: a tuple if the model takes several tensors."""


def input_tensors(X: ModelInput) -> tuple[Tensor, ...]:
    """The tensors of X, in order."""
    return X.tensors if isinstance(X, InputTensors) else (X,)


def as_model_input(X: InputLike) -> ModelInput:
    """X, with a tuple as `InputTensors`; not checked."""
    return InputTensors(X) if isinstance(X, tuple) else X


def variable(x: Sequence[ModelInput] | Mapping[int, ModelInput], v: int) -> Tensor:
    """x_v, where v = 0, -1, -2, .. are the model's inputs.

    Input v is tensor -v of x[0], if x[0] is an `InputTensors`; otherwise x must be a mapping, and input v is x[v].  The
    target x[-1] of a list x_0 .. x_L is never returned.
    """
    value = x[0] if v <= 0 else x[v]
    if isinstance(value, InputTensors):
        return value.tensors[-v]
    if v < 0:
        value = x[v]
    assert isinstance(value, Tensor)
    return value
