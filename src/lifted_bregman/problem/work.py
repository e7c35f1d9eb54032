"""Counters of work: the operations of a method, independent of the machine."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass


@dataclass
class Work:
    """The number of operations of each kind; one operation is on one layer, for all samples of a batch."""

    forward_maps: int = 0
    """Evaluations z_l = f_l(x_{l-1}, Θ_l)."""
    adjoints: int = 0
    """Pull-backs J_xᵀ d to a layer's input."""
    parameter_gradients: int = 0
    """Pull-backs J_Θᵀ d to a layer's parameters."""
    prox_maps: int = 0
    """Evaluations of σ_l, or of a scaled proximal map."""

    def as_dict(self) -> dict[str, float]:
        """The counts by name."""
        return asdict(self)

    def reset(self, counts: Mapping[str, float] | None = None) -> None:
        """Sets the counters to `counts`, or to 0."""
        for name in asdict(self):
            setattr(self, name, int((counts or {}).get(name, 0)))
