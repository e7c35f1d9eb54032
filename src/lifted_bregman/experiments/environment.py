"""Where a run took place: versions, threads, hardware."""

from __future__ import annotations

import os
import platform
import sys
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import torch

_PACKAGES = ("lifted-bregman", "torch", "numpy")


def environment() -> dict[str, str]:
    """What the times of a run depend on, by name."""
    return {
        "processor": _processor(),
        "cores": str(available_cores()),
        "threads": str(torch.get_num_threads()),
        "system": f"{platform.system()} {platform.machine()}",
        "Python": platform.python_version(),
    } | {name: _version(name) for name in _PACKAGES}


def available_cores() -> int:
    """The processor cores that this process may use."""
    return len(os.sched_getaffinity(0)) if sys.platform == "linux" else os.cpu_count() or 1


def load_average() -> float:
    """The processes that wanted to run in the last minute, on average; NaN where the system does not say."""
    try:
        return os.getloadavg()[0]
    except OSError:
        return float("nan")


def _version(name: str) -> str:
    try:
        return version(name)
    except PackageNotFoundError:
        return "not installed"


def _processor() -> str:
    try:
        for line in Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace").splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    except OSError:
        pass
    return platform.processor() or "unknown"
