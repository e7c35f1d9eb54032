"""Workers that do not wait for each other, in processes of their own.

The oracle of a run in which workers come as they like is the same run in one process, in which they come as they came.
"""

from __future__ import annotations

import math
import os
import random
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch

import lifted_bregman as lb
from lifted_bregman import solvers
from lifted_bregman.distributed import AsynchronousProcesses
from lifted_bregman.errors import SettingError, WorkerError
from lifted_bregman.solvers import AsynchronousPIAG, Callback, Outcome, Recorded
from lifted_bregman.solvers.asynchronous_round import Contribution, Round
from tests.distributed import bodies
from tests.distributed.numbers import digest, outcome_of
from tests.distributed.processes import forked, until
from tests.solvers.asynchronous_orders import delays
from tests.solvers.problems import make
from tests.training.runs import StopAt

CASES = {
    # processes, workers, K, updates of a round
    "two": (2, 2, 3, 15),
    "four": (4, 4, 9, 15),
    "four, as tight as can be": (4, 4, 0, 6),
    "more workers than processes": (2, 5, 11, 15),
    "more workers, unevenly": (4, 6, 12, 20),
}


class Orders(Callback):
    """Who came when, in every round so far."""

    everywhere = True

    def __init__(self) -> None:
        self.rounds: list[list[list[int]]] = []
        self.delays: list[int] = []

    def stepped(self, run: solvers.Run) -> None:
        self.rounds.append(run.state.order)
        self.delays += run.state.delays.tolist()

    @property
    def order(self) -> list[list[int]]:
        return [came for order in self.rounds for came in order]


@contextmanager
def working(change: Callable[[int, int], Any]) -> Iterator[None]:
    """While change(worker, version) is called before a worker begins; what it returns is added to a gradient."""
    original = Round.work

    def work(self: Round, worker: int, version: int) -> Contribution:
        added = change(worker, version)
        done = original(self, worker, version)
        if added is not None:
            done.gradient[2]["bias"] += added
        return done

    Round.work = work  # type: ignore[method-assign]
    try:
        yield
    finally:
        Round.work = original  # type: ignore[method-assign]


def unevenly(worker: int, version: int) -> None:
    """A few milliseconds, which differ from worker to worker and from time to time."""
    time.sleep(random.Random(f"{worker} {version}").uniform(0.0, 0.004) * (worker + 1) / 2)


def run_with(mate, problem, X, Y, solver, rounds, *callbacks):
    weights = torch.linspace(0.4, 1.9, len(X), dtype=X.dtype)
    data = solvers.Batch.whole(problem, X, Y, weights)
    return solvers.Run(
        problem, solver, data, epochs=rounds, tolerance=1e-9, callbacks=callbacks, agreement=mate.agreement()
    )


def train(mate, name, dtype, problem_name, rounds):
    """Digests of all that a run leaves and of its variables, the orders, and the delays as they were recorded."""
    _, workers, bound, updates = CASES[name]
    problem, X, Y = bodies.problem_of(problem_name, dtype)
    orders = Orders()
    team = AsynchronousProcesses(mate.group) if rounds is None else Recorded([c for order in rounds for c in order])
    solver = AsynchronousPIAG(workers, bound, updates, variable_steps=2, team=team)
    with working(unevenly if rounds is None else lambda worker, version: None):
        found = outcome_of(run_with(mate, problem, X, Y, solver, 3, orders))
    assert len(found["history"]) == 3 and all(row["delay"] <= bound for row in found["history"])
    return digest(found), digest(found["parameters"]), orders.rounds, orders.delays


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize(("dtype", "problem"), [(torch.float64, "smooth"), (torch.float32, "penalised")], ids=str)
def test_a_replay_in_one_process_has_the_same_bits(crew, name, dtype, problem):
    """Parameters, variables, the rest of the state, history and counters of work; on every rank."""
    size, workers, bound, _ = CASES[name]
    first, *others = crew.run(size, train, name, dtype, problem, None)
    assert others == [first] * (size - 1)
    *_, rounds, recorded = first
    assert recorded == delays(rounds, workers) and max(recorded) <= bound
    (again,) = crew.run(1, train, name, dtype, problem, rounds)
    assert again == first


@pytest.mark.parametrize("slow", [0, 1, 3], ids=lambda worker: f"worker {worker}")
def test_a_slow_worker_is_waited_for_at_the_bound_and_not_before(crew, slow, tmp_path):
    """It does not answer before the others have made every update that the bound allows without it, and then some time.

    Worker 0 is that of the coordinating process.  Its part is of version 0, so that updates 1 to K can be made; update
    K + 1 would have a part of age K + 1.  With a bound it was never at, the others would go on meanwhile.
    """
    bound = 9
    for order, recorded in crew.run(4, slowed, slow, bound, str(tmp_path / "updates")):
        assert order[0] == [0, 1, 2, 3]
        assert all(slow not in came and came for came in order[1 : bound + 1])
        assert slow in order[bound + 1]
        assert recorded == delays([order], 4) and recorded[bound] == max(recorded) == bound


def slowed(mate, slow, bound, path):
    def wait_long(worker: int, version: int) -> None:
        if worker == slow and version == 1:
            until(lambda: Path(path).exists() and len(Path(path).read_bytes()) == bound + 1)
            time.sleep(0.3)

    original = Round._move

    def counted(self: Round, theta: Any, update: int) -> None:
        original(self, theta, update)
        with Path(path).open("ab") as file:
            file.write(b".")

    problem, X, Y = bodies.problem_of("smooth", torch.float64)
    solver = AsynchronousPIAG(4, bound, 25, team=AsynchronousProcesses(mate.group))
    orders = Orders()
    Round._move = counted  # type: ignore[method-assign]
    try:
        with working(wait_long):
            run_with(mate, problem, X, Y, solver, 1, orders).execute()
    finally:
        Round._move = original  # type: ignore[method-assign]
    return orders.order, orders.delays


def test_numbers_that_are_not_finite_are_told_with_their_rank(crew):
    """NaN in a gradient, and the parameters themselves; the parameters are those of the last row, on every rank."""
    for size, worker in ((2, 1), (4, 2), (4, 0)):
        found = crew.run(size, broken, worker, 0.05)
        message, parameters, rows, _ = found[0]
        assert found == [found[0]] * size and rows == 1
        assert f"the gradient of worker {worker} in Θ_2 is not finite at update" in message
        assert message.endswith(f" on rank {worker % size}.")
        assert all(math.isfinite(value) for value in parameters)
    found = crew.run(2, broken, None, 1e308)
    assert found == [found[0]] * 2 and found[0][0].endswith(" Θ_2 is not finite at update 0 on rank 0.")


def broken(mate, bad, step):
    problem, X, Y = bodies.problem_of("smooth", torch.float64)
    solver = AsynchronousPIAG(4, 8, 12, step, team=AsynchronousProcesses(mate.group))

    def change(worker: int, version: int) -> float | None:
        if bad is None:
            return 10.0  # which is finite, and times the step is not
        if worker == 0 and bad and version >= 12:
            time.sleep(0.1)  # so that it is under way when the round ends
        return math.nan if worker == bad and version >= 12 else None

    with working(change):
        result = run_with(mate, problem, X, Y, solver, 4).execute()
        time.sleep(0.15)  # for what might still happen
    assert result.outcome is Outcome.DIVERGED
    sums = [float(p.detach().sum()) for p in problem.model.parameters()]
    return result.message, sums, len(result.history), digest(result.state.state_dict()["variables"])


@pytest.mark.parametrize("victim", [0, 3])
def test_a_lost_process_is_noticed_by_all(victim):
    """One that is killed while it works, the coordinating one too; a fork that has ended before gives None."""

    def work(rank: int) -> Any:
        def change(worker: int, version: int) -> None:
            if rank == victim and version >= 15:
                os.kill(os.getpid(), signal.SIGKILL)

        case = make("relu", samples=13)
        with working(change):
            lb.fit(case.problem, case.data, SOLVER, epochs=10, parallel=lb.Parallel(data=4, timeout=30.0))

    for rank, answer in enumerate(forked(4, work)):
        assert (answer is None) if rank == victim else isinstance(answer, WorkerError)


def test_more_processes_than_workers_are_refused_before_any_work(crew):
    for message in crew.run(4, too_many):
        assert message == (
            "4 processes share a run of 3 workers; each needs at least one: take fewer processes, or more workers."
        )


def too_many(mate):
    problem, X, Y = bodies.problem_of("smooth", torch.float64)
    solver = AsynchronousPIAG(3, 8, team=AsynchronousProcesses(mate.group))
    with pytest.raises(SettingError) as caught:
        run_with(mate, problem, X, Y, solver, 1).execute()
    return str(caught.value)


# Through fit

TWO = lb.Parallel(data=2, timeout=30.0)
SOLVER = AsynchronousPIAG(workers=4, delay_bound=8, updates=12)


def parameters(case):
    return [p.detach().clone() for p in case.problem.model.parameters()]


def test_fit_starts_workers_and_their_order_comes_back():
    case, again = make("sparse code", samples=13), make("sparse code", samples=13)
    result = lb.fit(case.problem, case.data, SOLVER, epochs=1, parallel=TWO)
    assert result.outcome is Outcome.FINISHED and result.history[-1]["delay"] == max(delays([result.state.order], 4))
    replayed = AsynchronousPIAG(workers=4, delay_bound=8, updates=12, team=Recorded(result.state.order))
    lb.fit(again.problem, again.data, replayed, epochs=1)
    assert all(torch.equal(p, q) for p, q in zip(parameters(case), parameters(again), strict=True))
    case = make("relu", samples=13)
    with pytest.raises(SettingError, match="5 processes share a run of 4 workers"):
        lb.fit(case.problem, case.data, SOLVER, epochs=1, parallel=lb.Parallel(data=5))


@pytest.mark.parametrize(("before", "after"), [(4, 1), (2, 4), (1, 2)])
def test_a_run_is_resumed_with_another_number_of_processes(before: int, after: int, tmp_path: Path) -> None:
    """The two halves, recorded, are one run in one process."""

    def part(size: int, stop: int, resume: bool) -> Callable[[int], Any]:
        def work(rank: int) -> Any:
            case, orders = make("sparse code", samples=13), Orders()
            parallel = lb.Parallel(data=size) if size > 1 else None
            chosen = {"parallel": parallel, "out": tmp_path / "run", "resume": resume}
            result = lb.fit(case.problem, case.data, SOLVER, epochs=4, callbacks=[orders, StopAt(stop)], **chosen)
            return result.outcome, orders.order, [*parameters(case), *result.state.variables]

        return work

    first = forked(before, part(before, 2, False))
    second = forked(after, part(after, 10**6, True))
    assert {outcome for outcome, *_ in first} == {Outcome.INTERRUPTED}
    assert {outcome for outcome, *_ in second} == {Outcome.FINISHED}
    order = [*first[0][1], *second[0][1]]
    assert len(order) == 48
    case = make("sparse code", samples=13)
    team = Recorded(order)
    result = lb.fit(case.problem, case.data, AsynchronousPIAG(4, 8, 12, team=team), epochs=4)
    for _, _, found in second:
        expected = [*parameters(case), *result.state.variables]
        assert all(torch.equal(p, q) for p, q in zip(found, expected, strict=True))


def test_a_team_does_not_tell_its_group() -> None:
    """So that a run continues with another number of processes: settings are compared by their representation."""
    assert repr(AsynchronousProcesses()) == "AsynchronousProcesses()"
    assert AsynchronousProcesses() == AsynchronousProcesses()
