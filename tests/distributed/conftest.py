"""The crew of a pytest process: started by the first test that uses it, dismissed at the end."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.distributed.crew import Crew


@pytest.fixture(scope="session")
def crew() -> Iterator[Crew]:
    crew = Crew()
    yield crew
    crew.dismiss()
