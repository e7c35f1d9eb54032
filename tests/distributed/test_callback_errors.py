"""A callback that raises in one process ends the run in all: with its own error there, one that names it elsewhere."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

import lifted_bregman as lb
from lifted_bregman import solvers
from lifted_bregman.errors import CallbackError
from lifted_bregman.solvers import Callback, Outcome, Run
from tests.distributed import bodies, layer_bodies
from tests.distributed.processes import forked
from tests.sampling import pairwise
from tests.solvers.problems import make

MOMENTS = ("started", "stepped", "recorded", "ended", "finished", "close")


class Clumsy(Exception):
    """A kind that only the tests know."""


class Falls(Callback):
    """Raises at a moment, on one rank or on all of them."""

    reads_parameters = False

    def __init__(self, moment: str, ranks: Sequence[int] = (0,), folder: Path | None = None) -> None:
        self.moment, self.ranks, self.everywhere, self.folder = moment, list(ranks), list(ranks) != [0], folder
        self.rank = -1

    def started(self, run: Run) -> None:
        self.rank = run.agreement.rank
        if self.folder is not None:
            (self.folder / f"{self.rank}-{os.environ['TORCHELASTIC_RESTART_COUNT']}").touch()
        self._fall("started")

    def stepped(self, run: Run) -> None:
        if run.state.steps == 2:
            self._fall("stepped")

    def recorded(self, run: Run, row: dict[str, float]) -> None:
        self._fall("recorded")

    def ended(self, run: Run) -> None:
        self._fall("ended")

    def finished(self, run: Run) -> None:
        self._fall("finished")

    def close(self) -> None:
        self._fall("close")

    def _fall(self, moment: str) -> None:
        if moment == self.moment and self.rank in self.ranks:
            raise Clumsy(f"over its feet on rank {self.rank}")


def told(moment: str, ranks: Sequence[int], rank: int) -> tuple[str, str]:
    """What a rank has to raise."""
    if rank in ranks:
        return "Clumsy", f"over its feet on rank {rank}"
    first = f"rank {ranks[0]}: {moment} of the callback Falls raised Clumsy('over its feet on rank {ranks[0]}')"
    return "CallbackError", f"{first}: mend it, then start the run again."


def raised(work: Any) -> Any:
    try:
        result = work()
    except Exception as error:
        return type(error).__name__, str(error)
    return result.outcome.name, result.message


class Collects(Callback):
    """Comes after `Falls`, and has every process that shares the layers send what it has."""

    everywhere = True
    reads_parameters = False

    def started(self, run: Run) -> None:
        run.collect()

    def stepped(self, run: Run) -> None:
        run.collect()

    def recorded(self, run: Run, row: dict[str, float]) -> None:
        run.collect()

    def ended(self, run: Run) -> None:
        run.collect()


def in_crew(mate: Any, kind: str, ranks: Sequence[int]) -> Any:
    """The errors of runs, one after another: the processes still understand each other after each."""
    found = {}
    for moment in MOMENTS:
        callbacks = [Falls(moment, ranks), Collects()]
        if kind == "data":
            solver = solvers.GramSweep(step_size=0.02)
            run = bodies.run_of(mate, "relu", solver, callbacks=callbacks, agreement=mate.agreement())
        else:
            data, pipelined = (1 if kind == "layers" else 2), solvers.PipelinedSweep(micro_batches=2)
            run = layer_bodies.run_of(mate, "deep", pipelined, data=data, callbacks=callbacks)
        found[moment] = raised(run.execute)
    return found, mate.agreement().any(mate.rank == 1), mate.agreement().any(False)


@pytest.mark.parametrize(
    ("ranks", "kind"), pairwise([(0,), (3,), (1, 2), (0, 1, 2, 3)], ["data", "layers", "both"]), ids=str
)
def test_an_error_of_a_callback_is_raised_by_all(crew: Any, ranks: Sequence[int], kind: str) -> None:
    for rank, answer in enumerate(crew.run(4, in_crew, kind, ranks)):
        assert answer == ({moment: told(moment, ranks, rank) for moment in MOMENTS}, True, False)


def test_one_process_raises_the_error_object_itself() -> None:
    """The same object, raised by the callback and chained to nothing."""
    case, mistake = make("relu", samples=13), Clumsy("mine")

    class Raises(Callback):
        def recorded(self, run: Run, row: dict[str, float]) -> None:
            raise mistake

    with pytest.raises(Clumsy) as caught:
        lb.fit(case.problem, case.data, epochs=2, batch_size=5, callbacks=[Raises()])
    assert caught.value is mistake and mistake.__cause__ is None and mistake.__context__ is None
    assert caught.traceback[-1].name == "recorded" and caught.traceback[-2].name == "_call"


PARALLEL = {"data": lb.Parallel(data=2, timeout=30.0), "layers": lb.Parallel(layer=2, timeout=30.0)}


@pytest.mark.long
@pytest.mark.parametrize("kind", PARALLEL)
@pytest.mark.parametrize("stored", [False, True], ids=["", "with a folder"])
@pytest.mark.parametrize("rank", [0, 1])
def test_fit_with_savers_that_send(kind: str, stored: bool, rank: int, tmp_path: Path) -> None:
    """Where layers are shared, checkpoints and early stopping send after the callback has raised elsewhere."""

    def work(own: int) -> dict[str, Any]:
        found = {}
        for moment in MOMENTS:
            case, out = make("relu", samples=13), tmp_path / moment if stored else None
            callbacks: list[Callback] = [Falls(moment, (rank,)), lb.callbacks.EarlyStopping()]
            if stored:
                callbacks.append(lb.callbacks.Checkpoint(every_steps=1, every_seconds=1e-9))
            chosen: dict[str, Any] = {"epochs": 2, "batch_size": 5, "parallel": PARALLEL[kind], "out": out}
            found[moment] = raised(lambda c=case, k=chosen, b=callbacks: lb.fit(c.problem, c.data, callbacks=b, **k))
        return found

    for own, found in enumerate(forked(2, work)):
        assert found == {moment: told(moment, (rank,), own) for moment in MOMENTS}


@pytest.mark.parametrize(
    ("kind", "moment", "rank"), [("layers", "stepped", 1), pytest.param("data", "recorded", 0, marks=pytest.mark.long)]
)
def test_workers_end_once_and_the_caller_gets_the_error_itself(
    kind: str, moment: str, rank: int, tmp_path: Path
) -> None:
    """The error would come again: nothing is started a second time."""
    case = make("relu", samples=13)
    chosen: dict[str, Any] = {"epochs": 2, "batch_size": 5, "parallel": PARALLEL[kind]}
    with pytest.raises(Clumsy, match=f"over its feet on rank {rank}"):
        lb.fit(case.problem, case.data, callbacks=[Falls(moment, (rank,), tmp_path)], **chosen)
    assert {path.name for path in tmp_path.iterdir()} == ({"0-0"} if rank == 0 else {"0-0", "1-0"})


def counted(mate: Any) -> Any:
    agreement = mate.agreement()
    sent, tell = [], agreement._tell

    def count(*arguments: Any) -> Any:
        sent.append(arguments)
        return tell(*arguments)

    agreement._tell = count
    callbacks = [Falls("never")]
    solver = solvers.GramSweep(step_size=0.02)
    run = bodies.run_of(mate, "relu", solver, epochs=4, record_every=2, callbacks=callbacks, agreement=agreement)
    result = run.execute()
    return result.outcome, result.state.steps, len(result.history), len(sent)


def test_errors_cost_no_message_of_their_own(crew: Any) -> None:
    """Two at the start and two a row (finite numbers, then the row), one a step, one whether the last row is good.

    One more at the end, and one behind it.
    """
    steps, rows = 4 * 3, 2
    assert crew.run(2, counted) == [(Outcome.FINISHED, steps, rows, 2 + steps + 2 * rows + 1 + 1 + 1)] * 2


def test_callback_error_is_an_error_of_the_library() -> None:
    assert issubclass(CallbackError, lb.errors.LiftedBregmanError) and issubclass(CallbackError, RuntimeError)
