"""Random generators derived from a run's seed by name: none has to be kept or saved between uses."""

from __future__ import annotations

import hashlib

import torch


def named_generator(seed: int, name: str, counter: int = 0) -> torch.Generator:
    """A generator for one purpose, derived from the run's seed by name and counter.

        seed of the generator = the first 7 bytes of SHA-256("seed/name/counter")

    name     what is drawn, such as "data order": two purposes never share their numbers
    counter  which draw of that purpose, such as the epoch or the layer
    """
    digest = hashlib.sha256(f"{seed}/{name}/{counter}".encode()).digest()
    return torch.Generator().manual_seed(int.from_bytes(digest[:7], "big"))
