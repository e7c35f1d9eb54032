"""Who runs the workers of asynchronous PIAG: in one process, workers that come in an order that is given."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass

import torch

from lifted_bregman._generators import named_generator
from lifted_bregman.errors import SettingError
from lifted_bregman.solvers._anchor import live
from lifted_bregman.solvers._asynchronous_round import Contribution, Round


class AsynchronousTeam(ABC):
    """Who runs the workers, and whose work comes when."""

    @abstractmethod
    def run(self, round: Round) -> None:
        """Makes all updates of the round, and leaves parameters and state in this process.

        Raises `Diverged` where something is not finite.
        """


class SimulatedTeam(AsynchronousTeam):
    """Workers of this process, one after another, which come as if they had worked at the same time."""

    @abstractmethod
    def choose(self, update: int, due: Sequence[int], handed: Sequence[int]) -> Sequence[int]:
        """Who comes in update k; all who are `due`, if there are any.

        handed  the version of Θ that each worker has been working with
        """

    def run(self, round: Round) -> None:
        ledger, done = round.ledger, dict[int, Contribution]()

        def hand(workers: Sequence[int], version: int) -> None:
            done.update({p: round.work(p, version) for p in workers})

        def receive(due: Sequence[int]) -> dict[int, Contribution]:
            return {p: done.pop(p) for p in sorted(self.choose(ledger.update, due, ledger.handed))}

        round.coordinate(live(round.problem), hand, receive)
        round.close()
        if round.fault is not None:
            raise round.fault.diverged()


@dataclass(frozen=True)
class InTurn(SimulatedTeam):
    """Workers of one speed: who has worked longest comes first."""

    def choose(self, update: int, due: Sequence[int], handed: Sequence[int]) -> Sequence[int]:
        return due or [min(range(len(handed)), key=lambda p: handed[p])]


@dataclass(frozen=True)
class AtRandom(SimulatedTeam):
    """Workers that come at random, each as likely as another, where the bound leaves a choice.

    seed  with the number of the update it says who comes
    """

    seed: int = 0

    def choose(self, update: int, due: Sequence[int], handed: Sequence[int]) -> Sequence[int]:
        return due or [int(torch.randint(len(handed), (), generator=named_generator(self.seed, "arrivals", update)))]


@dataclass(frozen=True)
class Recorded(SimulatedTeam):
    """Workers that come as they came before, in processes of their own say: the same numbers, bit by bit.

    order  who came in each update, from the first one on: `AsynchronousState.order` of one round after another
    """

    order: Sequence[Sequence[int]]

    def __post_init__(self) -> None:
        object.__setattr__(self, "order", tuple(tuple(sorted(set(workers))) for workers in self.order))

    def choose(self, update: int, due: Sequence[int], handed: Sequence[int]) -> Sequence[int]:
        return self.order[update]

    def run(self, round: Round) -> None:
        self._require(round)
        super().run(round)

    def _require(self, round: Round) -> None:
        """An error unless the order has the whole round, and keeps to its bound."""
        first, workers = round.ledger.update, len(round.rows)
        if len(self.order) < first + round.updates:
            raise SettingError(
                f"the recorded order has {len(self.order)} updates, and this round needs those up to "
                f"{first + round.updates}: give all that were recorded, or take fewer epochs."
            )
        ledger = round.ledger.copy()
        for number in range(round.updates):
            coming = self.order[first + number]
            if not coming or not 0 <= coming[0] <= coming[-1] < workers:
                raise SettingError(
                    f"update {first + number} of the recorded order has the workers {list(coming)}; it must be at "
                    f"least one of 0 to {workers - 1}."
                )
            missing = set(range(workers) if number == round.updates - 1 else ledger.due()) - set(coming)
            if missing:
                raise SettingError(
                    f"update {first + number} of the recorded order leaves out worker {min(missing)}, who has to come "
                    "by the bound on delays or the end of the round: replay it with the settings it was recorded with."
                )
            ledger.take(coming)
