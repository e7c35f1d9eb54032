"""What an order of arrivals implies, worked out by itself: which Θ each worker had, and how old each part was."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

Rounds = Sequence[Sequence[Sequence[int]]]
"""For each round, for each update, the workers that came."""


def moves(rounds: Rounds, workers: int) -> Iterator[tuple[int, list[int], list[int | None]]]:
    """For each update: its number, who came, and the version of Θ that each worker's part is of."""
    part: list[int | None] = [None] * workers
    update = 0
    for order in rounds:
        has = dict.fromkeys(range(workers), update)  # all begin a round with the same Θ
        for came in order:
            for p in came:
                part[p] = has[p]
            yield update, list(came), list(part)
            update += 1
            for p in came:
                has[p] = update


def delays(rounds: Rounds, workers: int) -> list[int]:
    """The age of the oldest part in each update; every part has to be there."""
    found = []
    for update, _, parts in moves(rounds, workers):
        assert None not in parts, f"update {update} has no part of some worker"
        found.append(max(update - version for version in parts if version is not None))
    return found
