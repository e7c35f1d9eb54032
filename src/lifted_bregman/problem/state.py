"""The auxiliary variables x_1 .. x_{L-1} of the lifted problem."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

import torch
from torch import Tensor

from lifted_bregman.errors import SettingError, TensorError


class LiftedState:
    """x_1 .. x_{L-1}, counted from 1: state[l] is (samples, ...).  Setting state[l] replaces the tensor.

    Example:
        >>> from lifted_bregman.problem import LiftedState
        >>> state = LiftedState([torch.zeros(10, 4), torch.zeros(10, 3)])
        >>> state[1].shape
        torch.Size([10, 4])
    """

    def __init__(self, variables: Iterable[Tensor]) -> None:
        self._variables = list(variables)
        counts = {len(x) if x.ndim else 0 for x in self._variables}
        if len(counts) > 1:
            raise TensorError(
                f"the variables have {sorted(counts)} samples; every x_l needs one row per sample of the same batch."
            )

    def __len__(self) -> int:
        return len(self._variables)

    def __iter__(self) -> Iterator[Tensor]:
        return iter(self._variables)

    def __getitem__(self, layer: int) -> Tensor:
        return self._variables[self._index(layer)]

    def __setitem__(self, layer: int, value: Tensor) -> None:
        self._variables[self._index(layer)] = value

    def __repr__(self) -> str:
        return f"LiftedState({', '.join(f'x_{l}: {tuple(x.shape)}' for l, x in enumerate(self, 1))})"

    def clone(self) -> LiftedState:
        """A copy that shares no memory."""
        return LiftedState(x.clone() for x in self)

    def to(self, target: torch.dtype | torch.device | str) -> LiftedState:
        """The state in another dtype or on another device."""
        return LiftedState(x.to(target) for x in self)

    def select(self, samples: Tensor) -> LiftedState:
        """The variables of some samples, in new memory; `samples` holds their indices."""
        return LiftedState(x.index_select(0, samples) for x in self)

    def update(self, samples: Tensor, other: LiftedState) -> None:
        """Writes the variables of `other` back to the given samples, in place: the inverse of `select`."""
        if len(other) != len(self):
            raise TensorError(f"a state of {len(other)} variables cannot be written into one of {len(self)}.")
        for x, new in zip(self, other, strict=True):
            x.index_copy_(0, samples, new)

    def state_dict(self) -> dict[str, Tensor]:
        """{"x_1": ..., "x_2": ...}, sharing memory with the state."""
        return {f"x_{l}": x for l, x in enumerate(self, 1)}

    @classmethod
    def from_state_dict(cls, entries: Mapping[str, Tensor]) -> LiftedState:
        """The inverse of `state_dict`."""
        names = [f"x_{l}" for l in range(1, len(entries) + 1)]
        if set(names) != set(entries):
            raise TensorError(
                f"the saved variables are named {sorted(entries)}; expected {names}, one for each hidden layer."
            )
        return cls(entries[name] for name in names)

    def _index(self, layer: int) -> int:
        if not 1 <= layer <= len(self._variables):
            raise SettingError(
                f"there is no variable x_{layer}: hidden layers count from 1 to {len(self._variables)}; x_0 is the "
                "input and the last layer's target is given with the data."
            )
        return layer - 1
