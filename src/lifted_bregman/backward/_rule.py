"""What `lifted_backward` was asked for, shared by all modules of a model."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from torch import Tensor
from torch.utils._pytree import tree_leaves

from lifted_bregman.backward._answer import Share
from lifted_bregman.backward._calls import Found
from lifted_bregman.penalties import Penalty


@dataclass(frozen=True)
class ActivationRow:
    """One activation in the report."""

    path: str
    """The module in whose forward method it is called, "" for the model itself."""
    kind: str
    """The activation, such as ReLU() or "selu"."""
    place: str
    """The path, with the line of the forward method where the call stands in the user's code."""
    reason: str | None
    """Why it is left to autograd; None where it is lifted."""


@dataclass(eq=False)
class Rule:
    """The settings, and what forward passes have shown."""

    nudge: float
    mean: bool
    """Whether the loss is a mean over the samples."""
    terms_per_sample: float
    loss_scale: Any
    """What the loss is multiplied by: a number, a function that returns it, or a GradScaler."""
    gates: bool
    """Whether products with a proximal map, such as SiLU, are written out so that it is lifted."""
    leave: frozenset[str]
    penalties: Mapping[str, Penalty]
    rows: dict[tuple[str, str], ActivationRow] = field(default_factory=dict)
    """What was found, by place and kind."""
    known: dict[Any, Found] = field(default_factory=dict)
    """What calls compute, by the function's name and arguments."""
    shares: dict[str, Share] = field(default_factory=dict)
    """ν/P of the parts of the model that were called by themselves, by their paths; "" is the model."""
    last: tuple[Share, Any] | None = None
    """Share and c of the last forward pass."""

    def share_of(self, path: str) -> Share:
        """ν/P of what is called at `path`."""
        if path not in self.shares:
            self.shares[path] = Share(self.nudge)
        return self.shares[path]

    def terms_of(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
        """c: samples in the batch times terms in each, times what the loss is multiplied by; no samples for a sum."""
        terms: Any = self.terms_per_sample if self.mean else 1.0
        if self.mean:
            first = next((t for t in tree_leaves((args, dict(kwargs))) if isinstance(t, Tensor) and t.ndim), None)
            terms = terms * (1 if first is None else first.shape[0])
        return terms / self.scale()

    def scale(self) -> Any:
        """What the loss is multiplied by now."""
        given = self.loss_scale
        if hasattr(given, "get_scale"):
            return given.get_scale()
        return given() if callable(given) else given

    def __deepcopy__(self, memo: dict[int, Any]) -> Rule:
        """The rule of a copied model; a GradScaler stays the one that the training loop uses."""
        new = copy.copy(self)
        memo[id(self)] = new
        new.rows, new.known, new.shares = dict(self.rows), dict(self.known), copy.deepcopy(self.shares, memo)
        new.last = None
        return new
