"""One run of the race, which pauses and resumes: by back-propagation, or by `lb.fit`.  Only steps are timed.

Times are processor times of this process, so that other processes on the machine make them no longer.
"""

from __future__ import annotations

import math
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from lifted_bregman._generators import named_generator
from lifted_bregman.errors import LiftedBregmanError
from lifted_bregman.solvers import Callback, Outcome, Result, Run, Solver
from lifted_bregman.solvers.batches import epoch_order
from lifted_bregman.training import fit
from lifted_bregman_lab.race.opponents import Opponent
from lifted_bregman_lab.race.problems import RaceProblem
from lifted_bregman_lab.race.samples import RaceSamples

_AT_ONCE = 1000  # samples evaluated together
Point = tuple[int, float, float, float]
"""An evaluation: steps taken, seconds in steps, training loss, error on new samples."""


class RaceRun(ABC):
    """A run from the initial weights of a seed.

    Args:
        problem: gives network, loss and batch size.
        data: training samples, and new ones.
        epochs: passes over the training samples.
        seed: of the weights and of the order of the samples.
    """

    def __init__(self, problem: RaceProblem, data: RaceSamples, epochs: int, seed: int) -> None:
        self.problem, self.data, self.epochs, self.seed = problem, data, epochs, seed
        self.model = problem.build(seed, data)
        places = torch.randperm(len(data.X), generator=named_generator(0, "measured samples"))[: problem.measured]
        self._measured = data.X[places], data.Y[places]
        self.steps = epochs * math.ceil(len(data.X) / problem.batch_size)
        """Number of steps of the whole run."""
        self.done = 0
        """Steps taken."""
        self.seconds = 0.0
        """Processor seconds in steps so far, without evaluation."""
        self.trace: list[Point] = []
        self.outcome = ""
        """The name of an `Outcome`; empty before the run has ended."""

    @abstractmethod
    def advance(self, steps: int) -> None:
        """Go on until so many steps of the run are taken, or it has ended."""

    @abstractmethod
    def evaluating(self) -> AbstractContextManager[None]:
        """The network has the parameters to be judged by, and is in eval mode."""

    def abandon(self) -> None:  # noqa: B027  (most runs have nothing to end)
        """End a run that is not finished."""

    def record(self) -> None:
        """Add a point to the trace; numbers that are not finite end the run as diverged."""
        if self.outcome == Outcome.DIVERGED.name:
            return
        with self.evaluating(), torch.no_grad():
            loss = self._mean(self.problem.loss, *self._measured)
            error = self._mean(self._error_of, self.data.X_new, self.data.Y_new)
        error = math.sqrt(error) if self.problem.task.root else error
        if math.isfinite(loss) and math.isfinite(error):
            self.trace.append((self.done, self.seconds, loss, error))
        else:
            self.outcome = Outcome.DIVERGED.name

    def _error_of(self, model: nn.Module, X: Tensor, Y: Tensor) -> Tensor:
        return self.problem.task.error(model(X), Y)

    def _mean(self, function: Callable[[nn.Module, Tensor, Tensor], Tensor], X: Tensor, Y: Tensor) -> float:
        """The mean of a function of samples, taken in pieces."""
        pieces = zip(X.split(_AT_ONCE), Y.split(_AT_ONCE), strict=True)
        return sum(float(function(self.model, x, y)) * len(x) for x, y in pieces) / len(X)


class BackpropRun(RaceRun):
    """A run by back-propagation with an opponent's optimisers."""

    def __init__(
        self, problem: RaceProblem, data: RaceSamples, epochs: int, seed: int, opponent: Opponent, rate: float
    ) -> None:
        super().__init__(problem, data, epochs, seed)
        assert opponent.make is not None
        self._trainer = opponent.make(problem, self.model, rate, self.steps)
        self._order: Sequence[Tensor] = ()

    def advance(self, steps: int) -> None:
        each, X, Y = self.steps // self.epochs, self.data.X, self.data.Y
        while self.done < min(steps, self.steps) and not self.outcome:
            epoch, place = divmod(self.done, each)
            if place == 0 or not self._order:
                self._order = epoch_order(len(X), self.problem.batch_size, self.seed, epoch + 1)
            before = time.process_time()
            batch = self._order[place]
            loss = self._trainer.step(X.index_select(0, batch), Y.index_select(0, batch))
            self.seconds += time.process_time() - before
            self.done += 1
            if not math.isfinite(loss):
                self.outcome = Outcome.DIVERGED.name
        if self.done == self.steps and not self.outcome:
            self.outcome = Outcome.FINISHED.name

    def evaluating(self) -> AbstractContextManager[None]:
        return self._trainer.evaluating()


class LiftedRun(RaceRun):
    """A run by `lb.fit`, with its default solver or another.

    `fit` runs in a thread of its own.  Its callback holds it after the steps that were asked for, while the other
    thread evaluates.  One of the two threads waits for the other at any time.
    """

    def __init__(
        self, problem: RaceProblem, data: RaceSamples, epochs: int, seed: int, solver: Solver[Any] | None = None
    ) -> None:
        super().__init__(problem, data, epochs, seed)
        self._lifted, self._solver = problem.lifted(self.model, data), solver
        self._wanted, self._closed = 0, False
        self._go, self._ready = threading.Semaphore(0), threading.Semaphore(0)
        self._started = 0.0
        self._result: Result | None = None
        self._error: BaseException | None = None
        self._thread = threading.Thread(target=self._fit, daemon=True)
        self._thread.start()
        self._wait()

    def advance(self, steps: int) -> None:
        if self.outcome or self.done >= steps:
            return
        self._wanted = min(steps, self.steps)
        self._go.release()
        self._wait()

    @contextmanager
    def evaluating(self) -> Iterator[None]:
        modes = [(module, module.training) for module in self.model.modules()]
        self.model.eval()
        try:
            yield
        finally:
            for module, mode in modes:
                module.training = mode

    def abandon(self) -> None:
        if self._thread.is_alive():
            self._closed = True
            self._go.release()
            self._thread.join()

    def _stepped(self, run: Run) -> None:
        """Count a step of `fit`, and hold it where it has taken those it was asked for."""
        self.seconds += time.process_time() - self._started
        self.done += 1
        if self.done >= self._wanted and self.done < self.steps:
            self._hold(run)
        else:
            self._started = time.process_time()

    def _hold(self, run: Run) -> None:
        """Let the other thread go on, and wait for it."""
        self._ready.release()
        self._go.acquire()
        if self._closed:
            run.stop(Outcome.INTERRUPTED, "The race was ended.")
        self._started = time.process_time()

    def _fit(self) -> None:
        """What the thread does.  `fit` evaluates only at the end: between steps it would count as their time."""
        data, size = (self.data.X, self.data.Y), self.problem.batch_size
        options = {"epochs": self.epochs, "batch_size": size, "seed": self.seed, "record_every": self.epochs}
        try:
            callbacks = [_Hold(self._hold, self._stepped)]
            self._result = fit(self._lifted, data, self._solver, callbacks=callbacks, **options)  # type: ignore[arg-type]
        except BaseException as error:  # raised again in the thread that waits
            self._error = error
        self._ready.release()

    def _wait(self) -> None:
        """Wait until `fit` holds or has ended."""
        self._ready.acquire()
        if self._error is not None:
            raise self._error
        if self._result is not None:
            self._thread.join()
            self.outcome = self._result.outcome.name


class _Hold(Callback):
    """Calls one function at the start of `fit`, and another after each step."""

    def __init__(self, at_start: Callable[[Run], None], after_step: Callable[[Run], None]) -> None:
        self._at_start, self._after_step = at_start, after_step

    def started(self, run: Run) -> None:
        self._at_start(run)

    def stepped(self, run: Run) -> None:
        self._after_step(run)


def start_run(
    problem: RaceProblem, data: RaceSamples, epochs: int, seed: int, opponent: Opponent, rate: float | None
) -> RaceRun:
    """A run of an opponent at a rate; None for ours."""
    if opponent.make is None:
        return LiftedRun(problem, data, epochs, seed)
    assert rate is not None
    return BackpropRun(problem, data, epochs, seed, opponent, rate)


def refusal(problem: RaceProblem, data: RaceSamples, opponent: Opponent) -> str | None:
    """Why an opponent cannot train the network of a problem; None if it can."""
    model = problem.build(0, data)
    if opponent.make is not None:
        return None if opponent.suits(problem, model) else f"'{opponent.name}' is not made for this network"
    try:
        problem.lifted(model, data)
        return None
    except LiftedBregmanError as error:
        return str(error)
