"""Parts of the recipes: solvers with the published settings, and tiny variants of all settings."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from lifted_bregman.data.naming import parse
from lifted_bregman.experiments import Settings

_NARROW = {784: 24, 64: 16, 70: 8}
_SAMPLES, _HELD_OUT = 200, 0.25


@dataclass(frozen=True)
class Method:
    """A solver by name with its settings.

    whole: whether every step takes the whole set, as the solver itself would not.
    """

    solver: str
    settings: Mapping[str, Any]
    whole: bool = False


def lifted(prox_weight: float, inner_steps: int, **others: Any) -> Method:
    """Algorithm 1 in the main reading, or in another where `others` say so."""
    main = {"order": "sweeps", "reading": "corrected", "coupling": "after"}
    return Method("implicit-sgd", {"prox_weight": prox_weight, "inner_steps": inner_steps} | main | others)


def sgd(rate: float, normalisation: str) -> Method:
    """SGD-BP at a rate that refers to the "mean" or the "sum" over the batch."""
    return Method("sgd", {"learning_rate": rate, "normalisation": normalisation})


def implicit_backprop(prox_weight: float, inner_steps: int, rate: float, normalisation: str) -> Method:
    """ISGD-BP."""
    numbers = {"prox_weight": prox_weight, "inner_steps": inner_steps, "learning_rate": rate}
    return Method("implicit-backprop", numbers | {"normalisation": normalisation})


PRINTED_LOOPS = {"order": "layer-by-layer", "coupling": "before"}
"""N steps on a layer before the next one, and x with Θ from before its move, as the loops and indices are printed."""

PRINTED_STEPS = {"reading": "literal:true:1.99:false"}
"""Those of the autoencoders: |B| in the step of the weights, 1.99 for the biases, no proximal term on the biases."""


def shrunk(settings: Settings) -> Settings:
    """The same on 150 samples and narrow layers, for 3 epochs of 3 inner steps."""
    inner = settings.solver_settings.get("inner_steps")
    fewer = {} if inner is None else {"inner_steps": min(int(inner), 3)}
    whole = settings.batch_size is not None and settings.batch_size >= (parse(settings.data)[1] or 60_000)
    size = 150 if whole else 25
    return replace(
        settings,
        data=f"{parse(settings.data)[0].name}-{_SAMPLES}",
        validation=_HELD_OUT,
        hidden=tuple(_NARROW[width] for width in settings.hidden or ()),
        solver_settings=dict(settings.solver_settings) | fewer,
        batch_size=None if settings.batch_size is None else size,
        epochs=3,
        record_every=1,
    )
