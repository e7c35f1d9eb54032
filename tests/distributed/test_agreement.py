"""A run over several processes ends everywhere after the same step, with one outcome; and goes on anywhere."""

from __future__ import annotations

import math
import os
import signal

import pytest
import torch

from lifted_bregman import errors, solvers
from lifted_bregman.solvers import Agreement, Callback, Outcome, Stop
from lifted_bregman.training.callbacks import EarlyStopping
from lifted_bregman.training.signals import Signals
from tests.distributed import bodies
from tests.distributed.numbers import differences, digest, outcome_of

SOLVER = solvers.GramSweep(step_size=0.02)


def test_one_process_decides_alone():
    agreement, wanted = Agreement(), Stop(Outcome.STOPPED, "enough")
    assert (agreement.rank, agreement.size) == (0, 1)
    assert agreement.stop(None) is None and agreement.stop(wanted) is wanted
    agreement.share_error(None)
    with pytest.raises(KeyError, match="this one"):
        agreement.share_error(KeyError("this one"))


STOPPED, SECOND = Stop(Outcome.STOPPED, "Δ first", record=True), Stop(Outcome.INTERRUPTED, "second", failed=True)
LATE, EARLY = (Stop(Outcome.DIVERGED, f"since {since}", since=since) for since in (7, 3))
DECISIONS = {
    "nobody": ([None, None, None, None], None),
    "one": ([None, None, None, SECOND], 3),
    "the lowest rank": ([None, STOPPED, SECOND, None], 1),
    "divergence": ([STOPPED, None, LATE, None], 2),
    "where it began": ([LATE, LATE, EARLY, EARLY], 2),
}


@pytest.mark.parametrize("name", DECISIONS)
def test_the_stop_with_the_highest_precedence_wins(crew, name):
    wanted, first = DECISIONS[name]
    expected = None if first is None else wanted[first]
    for found in crew.run(4, decide, wanted):
        told = None if expected is None else (expected.outcome, expected.message, expected.record, expected.failed)
        assert found == told


def decide(mate, wanted):
    agreed = mate.agreement().stop(wanted[mate.rank])
    return None if agreed is None else (agreed.outcome, agreed.message, agreed.record, agreed.failed)


class Unknown(Exception):
    pass


def test_an_error_of_one_is_raised_by_all(crew):
    """An error of the library or of Python keeps its kind; others are told of any other as a RuntimeError."""
    kinds = [errors.CheckpointError, OSError, Unknown]
    for kind in kinds:
        found = crew.run(4, share, [None, kind("disk full"), None, ValueError("later")])
        told = (kind.__name__ if kind is not Unknown else "RuntimeError", "rank 1: disk full")
        assert found == [told, (kind.__name__, "disk full"), told, ("ValueError", "later")]
    assert crew.run(4, share, [None] * 4) == [None] * 4


@pytest.mark.parametrize("other", ["stop", "diverged", "any", "nothing"])
def test_an_error_reaches_others_whatever_they_call_and_outweighs_a_stop(crew, other):
    """Rank 2 has the error, and rank 0 the first word on everything else; afterwards nothing more is sent."""
    expected = ("CheckpointError", "rank 2: disk full"), ("KeyError", "'next'")
    own = ("OSError", "full"), ("KeyError", "'next'")
    assert crew.run(4, interrupted, other) == [expected, expected, own, expected]


def interrupted(mate, other):
    agreement = mate.agreement()
    found = []
    try:
        if mate.rank == 2:
            agreement.share_error(OSError("full"), errors.CheckpointError("disk full"))
        elif other == "any":
            agreement.any(True)
        elif other == "nothing":
            agreement.share_error(None)
        else:
            agreement.stop({"stop": STOPPED, "diverged": EARLY}[other])
    except Exception as error:
        found.append((type(error).__name__, str(error)))
    try:
        agreement.share_error(KeyError("next"))
    except KeyError as error:
        found.append((type(error).__name__, str(error)))
    return tuple(found)


def test_any_is_true_if_the_flag_of_one_rank_is(crew):
    for flags in ([False] * 4, [False, False, True, True], [True, False, False, False]):
        assert crew.run(4, asked, flags) == [any(flags)] * 4
    assert Agreement().any(True) is True and Agreement().any(False) is False


def asked(mate, flags):
    return mate.agreement().any(flags[mate.rank])


def share(mate, found):
    try:
        mate.agreement().share_error(found[mate.rank])
    except Exception as error:
        return type(error).__name__, str(error)
    return None


class StopAt(Callback):
    """Stops on one rank after some steps, and notes what it was called for."""

    def __init__(self, steps, everywhere=False, rank=0, record=False):
        self.steps, self.everywhere, self.rank, self.record, self.seen = steps, everywhere, rank, record, []

    def started(self, run):
        self.seen.append("started")
        if self.steps == 0:
            run.stop(Outcome.STOPPED, "Before the first step.")

    def stepped(self, run):
        self.seen.append("stepped")
        if run.state.steps == self.steps and run.agreement.rank == self.rank:
            run.stop(Outcome.STOPPED, f"On rank {self.rank}.", record=self.record)

    def recorded(self, run, row):
        self.seen.append("recorded")
        assert run.problem.partition.count == 1
        counts = run.problem.work.as_dict()
        float(run.problem.objective(run.data.X, run.data.Y))  # which may be asked for on one process alone
        run.problem.work.reset(counts)

    def close(self):
        self.seen.append("close")


def stopped(mate, *arguments):
    callback = StopAt(*arguments)
    run = bodies.run_of(mate, "relu", SOLVER, epochs=3, callbacks=[callback], agreement=mate.agreement())
    found = outcome_of(run)
    return {"seen": callback.seen, "found": found, "digest": digest(found), "at": (run.epoch, run.batch)}


@pytest.mark.parametrize("where", [(0, False), (4, False), (4, True, 3), (4, True, 2, True), (6, True, 1)], ids=str)
def test_a_stop_anywhere_ends_the_run_everywhere(crew, where):
    """Before the first step, in the middle of an epoch, with and without a row for it, and at an epoch's end."""
    (alone,) = crew.run(1, stopped, where[0], True, 0, *where[3:])
    found = crew.run(4, stopped, *where)
    expected = alone["found"] | {"outcome": alone["found"]["outcome"].replace("rank 0", f"rank {(*where, 0, 0)[2]}")}
    for rank, entry in enumerate(found):
        assert differences(entry["found"], expected, 1e-12) == []
        assert entry["at"] == alone["at"] and entry["digest"] == found[0]["digest"]
        assert entry["seen"] == (alone["seen"] if rank == 0 or where[1] else [])
    assert alone["found"]["state"]["steps"] == where[0]


class Poison(Callback):
    """Puts a NaN into the data or the parameters of one process."""

    everywhere = True

    def __init__(self, rank, what):
        self.rank, self.what = rank, what

    def stepped(self, run):
        if run.agreement.rank == self.rank and run.state.steps == 4:
            if self.what == "data":
                run.data.X.fill_(math.nan)
            else:
                run.problem.model[2].weight.detach()[0, 0] = math.nan


def poisoned(mate, rank, what, solver=SOLVER):
    run = bodies.run_of(mate, "relu", solver, epochs=3, callbacks=[Poison(rank, what)], agreement=mate.agreement())
    kept = []
    original = run.problem.model

    class Keep(Callback):
        everywhere = True

        def recorded(self, run, row):
            kept.append([p.detach().clone() for p in original.parameters()])

    run.callbacks.append(Keep())
    result = run.execute()
    same = all(torch.equal(p.detach(), q) for p, q in zip(original.parameters(), kept[-1], strict=True))
    return result.outcome, result.message, len(result.history), result.state.steps, same


@pytest.mark.parametrize("rank", [0, 1, 3])
@pytest.mark.parametrize(
    "solver", [SOLVER, solvers.ImplicitSGD(5.0, 2), solvers.baselines.Adam()], ids=lambda s: type(s).__name__
)
def test_numbers_that_are_not_finite_stop_all(crew, solver, rank):
    """The process where they began is named, and all have the parameters of the last row."""
    quantity = {"GramSweep": "output_residual", "ImplicitSGD": "residual_3", "Adam": "batch_objective"}
    for outcome, message, rows, steps, same in crew.run(4, poisoned, rank, "data", solver):
        assert outcome is Outcome.DIVERGED and rows == 1 and steps == 5 and same
        assert message.endswith(f" {quantity[type(solver).__name__]} is nan after step 5 on rank {rank}."), message


@pytest.mark.parametrize("rank", [0, 2])
def test_a_broken_parameter_of_one_process_stops_all_after_the_next_step(crew, rank):
    for outcome, message, rows, steps, same in crew.run(4, poisoned, rank, "parameters"):
        assert outcome is Outcome.DIVERGED and rows == 1 and same and steps == 5
        assert message.endswith(f"on rank {rank}."), message


def test_a_broken_parameter_that_only_one_process_sees_stops_all(crew):
    for outcome, message, same in crew.run(4, broken_at_the_end):
        assert outcome is Outcome.DIVERGED and same
        assert message.endswith(" weight of model.2 (Linear) is not finite after step 3 on rank 2.")


class Breaker(Callback):
    everywhere = True

    def stepped(self, run):
        if run.agreement.rank == 2 and run.batch == 3:  # the last of its epoch: nothing is sent before the row
            run.problem.model[2].weight.detach()[0, 0] = math.nan


def broken_at_the_end(mate):
    run = bodies.run_of(mate, "relu", SOLVER, epochs=3, callbacks=[Breaker()], agreement=mate.agreement())
    before = [p.detach().clone() for p in run.problem.model.parameters()]
    result = run.execute()
    same = all(torch.equal(p.detach(), q) for p, q in zip(run.problem.model.parameters(), before, strict=True))
    return result.outcome, result.message, same


def test_a_run_that_stalls_does_so_everywhere(crew):
    (alone,) = crew.run(1, stalled)
    assert alone["outcome"].startswith(Outcome.STALLED.value)
    assert crew.run(4, stalled) == [alone] * 4


def stalled(mate):
    rule = solvers.Backtracking(initial=1e-13)
    run = bodies.run_of(mate, "relu", solvers.ProximalGradient(step_rule=rule), agreement=mate.agreement())
    return {"outcome": outcome_of(run)["outcome"]}


def test_early_stopping_restores_the_best_parameters_everywhere(crew):
    (alone,) = crew.run(1, early)
    found = crew.run(4, early)
    assert alone["outcome"].startswith(Outcome.STOPPED.value)
    assert all(differences(entry, alone, 1e-12) == [] for entry in found)
    assert {digest(entry) for entry in found} == {digest(found[0])}


def early(mate):
    callback = EarlyStopping(monitor="validation", patience=1, min_delta=1e-2)
    return outcome_of(bodies.run_of(mate, "relu", SOLVER, epochs=9, callbacks=[callback], agreement=mate.agreement()))


@pytest.mark.parametrize("rank", [0, 2])
def test_a_signal_to_any_process_interrupts_all(crew, rank):
    for outcome, message, steps in crew.run(4, signalled, rank):
        assert outcome is Outcome.INTERRUPTED and steps == 4
        assert message.endswith("It was sent SIGINT.")


class Interrupt(Callback):
    everywhere = True

    def __init__(self, rank):
        self.rank = rank

    def stepped(self, run):
        if run.agreement.rank == self.rank and run.state.steps == 4:
            os.kill(os.getpid(), signal.SIGINT)


def signalled(mate, rank):
    with Signals() as signals:
        callbacks = [Interrupt(rank), signals]
        run = bodies.run_of(mate, "relu", SOLVER, callbacks=callbacks, agreement=mate.agreement())
        result = run.execute()
    return result.outcome, result.message, result.state.steps


CONTINUED = [
    SOLVER,
    solvers.ImplicitSGD(5.0, 2),
    solvers.SAGA(),
    solvers.ProximalGradient(acceleration=solvers.Anderson(3)),
    solvers.ProximalGradient(acceleration=solvers.Nesterov(), step_rule=solvers.Backtracking()),
]


@pytest.mark.parametrize("solver", CONTINUED, ids=lambda s: f"{type(s).__name__}, {getattr(s, 'acceleration', '')}")
def test_a_run_goes_on_with_any_number_of_processes(crew, solver):
    """Cut after four steps on 4 processes: bitwise on 4, and on 2 and 1 to rounding."""
    whole, *_ = crew.run(4, continued, solver, None)
    saved, *_ = crew.run(4, cut, solver)
    for size in (4, 2, 1):
        found, *_ = crew.run(size, continued, solver, saved)
        assert differences(found, whole, 0.0 if size == 4 else 1e-11) == []


def continued(mate, solver, saved):
    run = bodies.run_of(mate, "smooth", solver, epochs=2 if solver.minibatch else 6)
    if saved is not None:
        position, model, history = saved
        run.problem.model.load_state_dict(model)
        run.load_state_dict(position)
        run.history += history
    return outcome_of(run)


def cut(mate, solver):
    callback = StopAt(4, True)
    run = bodies.run_of(mate, "smooth", solver, epochs=2 if solver.minibatch else 6, callbacks=[callback])
    result = run.execute()
    history = [{name: value for name, value in row.items() if name != "seconds"} for row in result.history]
    return run.state_dict(), run.problem.model.state_dict(), history
