"""Several processes that share a run: their degrees, launcher, rendezvous, collectives and messages.

torch.distributed is imported when one of the classes for processes is first used.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from lifted_bregman.distributed.parallel import Parallel

if TYPE_CHECKING:
    from lifted_bregman.distributed.process_agreement import ProcessAgreement
    from lifted_bregman.distributed.process_border import ProcessBorder
    from lifted_bregman.distributed.process_shard import ProcessRanks
    from lifted_bregman.distributed.process_team import Processes
    from lifted_bregman.distributed.process_workers import AsynchronousProcesses

__all__ = ["AsynchronousProcesses", "Parallel", "ProcessAgreement", "ProcessBorder", "ProcessRanks", "Processes"]

_MODULES = {
    "AsynchronousProcesses": "process_workers",
    "ProcessAgreement": "process_agreement",
    "ProcessRanks": "process_shard",
    "ProcessBorder": "process_border",
    "Processes": "process_team",
}


def __getattr__(name: str) -> Any:
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_MODULES[name]}"), name)
