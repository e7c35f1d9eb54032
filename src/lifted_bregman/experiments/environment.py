"""The environment of a run: versions, threads, hardware."""

from __future__ import annotations

import os
import platform
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import torch

_PACKAGES = ("lifted-bregman", "torch", "numpy")


def environment() -> dict[str, str]:
    """Processor, cores, threads, system and versions, on which the times of a run depend."""
    return {
        "processor": _processor(),
        "cores": str(available_cores()),
        "threads": str(torch.get_num_threads()),
        "system": f"{platform.system()} {platform.machine()}",
        "Python": platform.python_version(),
    } | {name: package_version(name) or "not installed" for name in _PACKAGES}


def commit() -> str:
    """The commit of this library that is running, with "changed" where files differ from it; "unknown" elsewhere.

    An installed copy has none, even where it lies inside some other project's folder.
    """
    place = Path(__file__).parent

    def git(*arguments: str) -> str:
        done = subprocess.run(["git", "-C", str(place), *arguments], capture_output=True, text=True, timeout=10)
        done.check_returncode()
        return done.stdout.strip()

    try:
        git("ls-files", "--error-unmatch", Path(__file__).name)
        changed = git("status", "--porcelain", "--", str(place.parent))
        return git("rev-parse", "--short=12", "HEAD") + (", changed" if changed else "")
    except (OSError, subprocess.SubprocessError):
        return "unknown"


def available_cores() -> int:
    """The processor cores that this process may use."""
    return len(os.sched_getaffinity(0)) if sys.platform == "linux" else os.cpu_count() or 1


@contextmanager
def threads(count: int | None) -> Iterator[None]:
    """Sets torch's number of threads within the block; None leaves it."""
    before = torch.get_num_threads()
    torch.set_num_threads(before if count is None else count)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def load_average() -> float:
    """The load average of the last minute; NaN where the system has none."""
    try:
        return os.getloadavg()[0]
    except OSError:
        return float("nan")


def package_version(name: str) -> str | None:
    """The version of an installed package; None if it is not installed."""
    try:
        return version(name)
    except PackageNotFoundError:
        return None


def _processor() -> str:
    try:
        for line in Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace").splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    except OSError:
        pass
    return platform.processor() or "unknown"
