"""Teams that run the workers of asynchronous PIAG in one process, in a given order of arrival."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass

import torch

from lifted_bregman._generators import named_generator
from lifted_bregman.errors import SettingError
from lifted_bregman.solvers.asynchronous_round import Contribution, Round
from lifted_bregman.solvers.parameters import parameters_in_place


class AsynchronousTeam(ABC):
    """Runs the workers of a round and decides the order of their contributions."""

    @abstractmethod
    def run(self, round: Round) -> None:
        """Makes all updates of the round; parameters and state are then complete in this process.

        Raises `Diverged` if a gradient or a parameter is not finite.
        """


class SimulatedTeam(AsynchronousTeam):
    """Runs the workers one after another in this process; their gradients are as old as those of parallel workers."""

    @abstractmethod
    def choose(self, update: int, due: Sequence[int], handed: Sequence[int]) -> Sequence[int]:
        """The workers that contribute to update k: all that are `due`, or a choice if none is.

        handed  the version of Θ that each worker computes with
        """

    def run(self, round: Round) -> None:
        ledger, done = round.ledger, dict[int, Contribution]()

        def hand(workers: Sequence[int], version: int) -> None:
            done.update({p: round.work(p, version) for p in workers})

        def receive(due: Sequence[int]) -> dict[int, Contribution]:
            return {p: done.pop(p) for p in sorted(self.choose(ledger.update, due, ledger.handed))}

        round.coordinate(parameters_in_place(round.problem), hand, receive)
        round.close()
        if round.fault is not None:
            raise round.fault.diverged()


@dataclass(frozen=True)
class InTurn(SimulatedTeam):
    """Workers of equal speed: the one with the oldest Θ contributes next.

    Example:
        >>> from lifted_bregman.solvers import InTurn
        >>> solver = lb.AsynchronousPIAG(workers=2, delay_bound=2, team=InTurn())
        >>> X = torch.linspace(-1, 1, 20).reshape(-1, 1)
        >>> line = nn.Linear(1, 1)
        >>> result = lb.fit(lb.lift(line, loss=lb.SquaredError()), (X, 2 * X + 1), solver=solver, epochs=15)
        >>> round(line.weight.item(), 1), round(line.bias.item(), 1)
        (2.0, 1.0)
    """

    def choose(self, update: int, due: Sequence[int], handed: Sequence[int]) -> Sequence[int]:
        return due or [min(range(len(handed)), key=lambda p: handed[p])]


@dataclass(frozen=True)
class AtRandom(SimulatedTeam):
    """Workers that contribute in random order, drawn uniformly unless the delay bound decides.

    seed  fixes the order, together with the number of the update

    Example:
        >>> from lifted_bregman.solvers import AtRandom
        >>> solver = lb.AsynchronousPIAG(workers=2, delay_bound=4, team=AtRandom(seed=1))
        >>> X = torch.linspace(-1, 1, 20).reshape(-1, 1)
        >>> line = nn.Linear(1, 1)
        >>> result = lb.fit(lb.lift(line, loss=lb.SquaredError()), (X, 2 * X + 1), solver=solver, epochs=20)
        >>> round(line.weight.item(), 1), round(line.bias.item(), 1)
        (2.0, 1.0)
    """

    seed: int = 0

    def choose(self, update: int, due: Sequence[int], handed: Sequence[int]) -> Sequence[int]:
        return due or [int(torch.randint(len(handed), (), generator=named_generator(self.seed, "arrivals", update)))]


@dataclass(frozen=True)
class Recorded(SimulatedTeam):
    """Replays a recorded order of contributions, such as that of a run in several processes: results are bitwise equal.

    order  the workers of each update since the first: `AsynchronousState.order` of all rounds, concatenated
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
        """An error unless the order covers the round and satisfies its delay bound."""
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
