"""The settings of `lifted_backward`, shared by all modules of a model, and the rows of its report."""

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
    """The module whose forward method calls it, "" for the model itself."""
    kind: str
    """The activation, such as ReLU() or "selu"."""
    place: str
    """The path, followed by the line of the user's code that calls it."""
    reason: str | None
    """Why it is left to autograd; None where it is lifted."""


@dataclass(eq=False)
class Rule:
    """The settings, and what forward passes have found."""

    nudge: float
    """ν > 0."""
    mean: bool
    """Whether the loss is a mean over the samples."""
    terms_per_sample: float
    """Terms of a mean loss that belong to one sample."""
    loss_scale: Any
    """The factor on the loss before `backward()`: a number, a function that returns it, or a GradScaler."""
    gates: bool
    """Whether products with a proximal map, such as SiLU, are written out so that it is lifted."""
    leave: frozenset[str]
    """Paths of the modules whose activations are left to autograd."""
    penalties: Mapping[str, Penalty]
    """R on the outputs of activations, by the path of the module that calls them."""
    rows: dict[tuple[str, str], ActivationRow] = field(default_factory=dict)
    """The rows of the report, by place and kind."""
    known: dict[Any, Found] = field(default_factory=dict)
    """The activation of a call, by the function's name and arguments."""
    shares: dict[str, Share] = field(default_factory=dict)
    """ν/P of the model, under "", and of each part of it that was called on its own, by path."""
    last: tuple[Share, Any] | None = None
    """ν/P and c of the last forward pass; None before the first."""

    def share_of(self, path: str) -> Share:
        """ν/P of what is called at `path`."""
        if path not in self.shares:
            self.shares[path] = Share(self.nudge)
        return self.shares[path]

    def terms_of(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
        """c = samples · terms_per_sample / loss_scale for a mean loss, 1/loss_scale for a sum."""
        terms: Any = self.terms_per_sample if self.mean else 1.0
        if self.mean:
            first = next((t for t in tree_leaves((args, dict(kwargs))) if isinstance(t, Tensor) and t.ndim), None)
            terms = terms * (1 if first is None else first.shape[0])
        return terms / self.scale()

    def scale(self) -> Any:
        """The present factor on the loss."""
        given = self.loss_scale
        if hasattr(given, "get_scale"):
            return given.get_scale()
        return given() if callable(given) else given

    def __deepcopy__(self, memo: dict[int, Any]) -> Rule:
        """The rule of a copied model.  The GradScaler is shared with the original: the training loop owns it."""
        new = copy.copy(self)
        memo[id(self)] = new
        new.rows, new.known, new.shares = dict(self.rows), dict(self.known), copy.deepcopy(self.shares, memo)
        new.last = None
        return new
