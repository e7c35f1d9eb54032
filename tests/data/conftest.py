"""Every test of data sets has a cache of its own, sees no installation of the system, and registers for itself."""

import pytest

from lifted_bregman.data import _places, registry


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    folder = tmp_path / "cache"
    monkeypatch.setenv(_places.CACHE_VARIABLE, str(folder))
    monkeypatch.setattr(_places, "SYSTEM_FOLDERS", ())
    monkeypatch.setattr(registry, "SETS", registry.SETS)
    before = dict(registry.SETS)
    yield folder
    registry.SETS.clear()
    registry.SETS.update(before)
