"""What a run leaves, in a form that can be sent and compared."""

from __future__ import annotations

import hashlib
import math
from typing import Any

import torch
from torch import Tensor

from lifted_bregman import solvers


def outcome_of(run: solvers.Run) -> dict[str, Any]:
    """Parameters, state, history, work and outcome of a run that has ended."""
    result = run.execute()
    return {
        "outcome": result.message,
        "parameters": {name: p.detach() for name, p in run.problem.model.named_parameters()},
        "state": result.state.state_dict(),
        "history": [{name: value for name, value in row.items() if name != "seconds"} for row in result.history],
        "work": run.problem.work.as_dict(),
    }


def digest(value: Any) -> str:
    """The same for the same bits only."""
    found = hashlib.sha256()
    for path, leaf in leaves(value):
        found.update(path.encode())
        found.update(_bytes(leaf))
    return found.hexdigest()


def _bytes(leaf: Any) -> bytes:
    if not isinstance(leaf, Tensor):
        return repr(leaf).encode()
    return f"{leaf.dtype} {tuple(leaf.shape)}".encode() + leaf.contiguous().numpy().tobytes()


def leaves(value: Any, path: str = "") -> list[tuple[str, Any]]:
    """The tensors and numbers in nested containers, with their places."""
    if isinstance(value, dict):
        return [leaf for key, entry in value.items() for leaf in leaves(entry, f"{path}/{key}")]
    if isinstance(value, list | tuple):
        return [leaf for place, entry in enumerate(value) for leaf in leaves(entry, f"{path}/{place}")]
    return [(path, value)]


def differences(ours: Any, theirs: Any, tolerance: float) -> list[str]:
    """The places in which the two differ by more than `tolerance`, relative to the largest number of their tensor.

    Numbers below 1e-3 count as 1e-3: an energy may be nothing but rounding.
    """
    first, second = leaves(ours), leaves(theirs)
    if [path for path, _ in first] != [path for path, _ in second]:
        return [f"the places are {sorted({p for p, _ in first} ^ {p for p, _ in second})}"]
    found = []
    for (path, a), (_, b) in zip(first, second, strict=True):
        if isinstance(a, Tensor) and a.shape == b.shape and a.dtype == b.dtype and a.is_floating_point():
            gap, size = (float(t.abs().max()) if t.numel() else 0.0 for t in (a - b, b))
        elif isinstance(a, Tensor):
            gap, size = (0.0, 1.0) if a.dtype == b.dtype and torch.equal(a, b) else (math.inf, 1.0)
        elif isinstance(a, float) and isinstance(b, float):
            gap, size = abs(a - b), max(abs(b), 1e-3)
        else:
            gap, size = (0.0, 1.0) if a == b else (math.inf, 1.0)
        if not gap <= tolerance * size:
            found.append(f"{path}: {gap:.2e} of {size:.2e}")
    return found
