"""What a model takes: one tensor X, or several with a row for each sample in all of them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeAlias

import torch
from torch import Tensor


@dataclass(frozen=True)
class Input:
    """One tensor that the model's forward method takes."""

    name: str = "X"
    """Its name in the forward method; X for the only one."""
    dtype: torch.dtype | None = None
    """That of the example; None where there was none."""


@dataclass(frozen=True, eq=False, repr=False)
class InputTensors:
    """The tensors of a model that takes several; it stands for X wherever a model of one input has a tensor.

    tensors  in the order of the forward method, each (samples, ...)
    """

    tensors: tuple[Tensor, ...]

    def __len__(self) -> int:
        return len(self.tensors[0])

    def __getitem__(self, rows: slice | Tensor) -> InputTensors:
        """The rows of some samples, of every tensor."""
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
        """Whether one of the tensors does."""
        return any(t.requires_grad for t in self.tensors)

    @property
    def device(self) -> torch.device:
        """Where the tensors are."""
        return self.tensors[0].device

    def _each(self, change: Callable[[Tensor], Tensor]) -> InputTensors:
        return InputTensors(tuple(map(change, self.tensors)))


ModelInput: TypeAlias = Tensor | InputTensors
"""X as the library has it."""
InputLike: TypeAlias = ModelInput | tuple[Tensor, ...]
"""X as it may be given: a tuple where the model takes several tensors."""


def input_tensors(X: ModelInput) -> tuple[Tensor, ...]:
    """The tensors of X, in order."""
    return X.tensors if isinstance(X, InputTensors) else (X,)


def joined(X: InputLike) -> ModelInput:
    """X as the library has it; a tuple is not checked."""
    return InputTensors(X) if isinstance(X, tuple) else X


def variable(x: Sequence[ModelInput] | Mapping[int, ModelInput], v: int) -> Tensor:
    """x_v; v = 0, -1, -2, .. are the inputs, of which several are `InputTensors` at x[0] or have numbers of their own.

    In a list x_0 .. x_L the number -1 would otherwise be the target.
    """
    value = x[0] if v <= 0 else x[v]
    if isinstance(value, InputTensors):
        return value.tensors[-v]
    if v < 0:
        value = x[v]
    assert isinstance(value, Tensor)
    return value
