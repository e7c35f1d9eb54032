"""Counters of work: what a method did, in units that do not depend on the machine."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass


@dataclass
class Work:
    """How often each kind of operation was done on a layer, for all samples of a batch at once."""

    forward_maps: int = 0
    """z_l = f_l(x_{l-1}, Θ_l)."""
    adjoints: int = 0
    """J_xᵀ d, the pull-back to a layer's input."""
    parameter_gradients: int = 0
    """J_Θᵀ d, the pull-back to a layer's parameters."""
    prox_maps: int = 0
    """σ_l, or a proximal map with another scale."""

    def as_dict(self) -> dict[str, float]:
        """The counts by name."""
        return asdict(self)

    def reset(self, counts: Mapping[str, float] | None = None) -> None:
        """Sets the counters to `counts`, or to 0."""
        for name in asdict(self):
            setattr(self, name, int((counts or {}).get(name, 0)))
