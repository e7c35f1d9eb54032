"""The hooks of `Recorder`; a module of its own, because torch.compiler.disable imports torch._dynamo, which is slow."""

from __future__ import annotations

import weakref
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

if TYPE_CHECKING:
    from lifted_bregman.optim._records import Recorder


class Hook:
    """A hook that refers to its recorder weakly.  It does nothing once the recorder is deleted, and so do its copies.

    A copied or unpickled model has no optimiser: its hooks are there, without a recorder.
    """

    def __init__(self, recorder: Recorder | None = None) -> None:
        self._recorder: Callable[[], Recorder | None] = _none if recorder is None else weakref.ref(recorder)

    @property
    def gram_is_alive(self) -> bool:
        """Whether an `lb.optim.Gram` records by this hook."""
        return self._recorder() is not None

    def __deepcopy__(self, memo: dict[int, Any]) -> Hook:
        return type(self)()

    def __reduce__(self) -> tuple[type[Hook], tuple[()]]:
        return type(self), ()


class Begin(Hook):
    """Before the forward pass of the model."""

    @torch.compiler.disable  # type: ignore[untyped-decorator]
    def __call__(self, module: nn.Module, args: tuple[Any, ...]) -> None:
        if (recorder := self._recorder()) is not None:
            recorder.begin()


class Note(Hook):
    """After the forward pass of a module with weights."""

    @torch.compiler.disable  # type: ignore[untyped-decorator]
    def __call__(self, module: nn.Module, args: tuple[Any, ...], output: Any) -> None:
        if (recorder := self._recorder()) is not None:
            recorder.note(module, args, output)


class End(Hook):
    """After the forward pass of the model."""

    @torch.compiler.disable  # type: ignore[untyped-decorator]
    def __call__(self, module: nn.Module, args: tuple[Any, ...], output: Any) -> None:
        if (recorder := self._recorder()) is not None:
            recorder.end()


def _none() -> None:
    return None
