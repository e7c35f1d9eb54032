"""Calls of `fit` in worker processes; arguments and result are exchanged as pickle files."""

from __future__ import annotations

import pickle
import signal
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import FunctionType, SimpleNamespace
from typing import Any

import torch
from torch import Tensor

from lifted_bregman.distributed.environment import ERROR, RESULT
from lifted_bregman.distributed.parallel import Parallel
from lifted_bregman.errors import CallbackError, SettingError, WorkerError
from lifted_bregman.problem import LiftedProblem
from lifted_bregman.solvers import Callback, Result


@dataclass(frozen=True, eq=False)
class Call:
    """A call of `fit` that can be pickled, for the workers."""

    function: Callable[..., Result]
    problem: LiftedProblem
    callbacks: Sequence[Callback]
    arguments: Mapping[str, Any]
    generator: Tensor
    """The state of torch's own generator in the calling process."""

    def __call__(self) -> Trained:
        torch.set_rng_state(self.generator)
        result = self.function(self.problem, callbacks=self.callbacks, **self.arguments)
        return Trained(
            result,
            dict(self.problem.model.state_dict()),
            (self.problem.penalties, self.problem.parameter_penalties),
            self.problem.work.as_dict(),
            [callback.state_dict() for callback in self.callbacks],
            torch.get_rng_state(),
        )


@dataclass(frozen=True, eq=False)
class Trained:
    """All objects that a call of `fit` changes or returns, for the calling process."""

    result: Result
    parameters: dict[str, Tensor]
    penalties: tuple[Any, Any]
    work: dict[str, float]
    callbacks: list[dict[str, Any]]
    generator: Tensor

    def put_into(self, problem: LiftedProblem, callbacks: Sequence[Callback]) -> Result:
        """Copies parameters, penalties, counters, callback states and torch's generator here; returns the result."""
        problem.model.load_state_dict(self.parameters)
        for own, trained in zip((problem.penalties, problem.parameter_penalties), self.penalties, strict=True):
            own.update(trained)
        problem.work.reset(self.work)
        for callback, state in zip(callbacks, self.callbacks, strict=True):
            callback.load_state_dict(state)
        torch.set_rng_state(self.generator)
        return self.result


def in_workers(
    function: Callable[..., Result],
    problem: LiftedProblem,
    callbacks: Sequence[Callback],
    parallel: Parallel,
    **arguments: Any,
) -> Result:
    """Calls `function(problem, callbacks=..., parallel=..., **arguments)` in each worker; returns its result."""
    call = Call(function, problem, callbacks, {"parallel": parallel, **arguments}, torch.get_rng_state())
    trained: Trained = call_in_workers(call, parallel, terminate=arguments["out"] is not None)
    return trained.put_into(problem, callbacks)


def call_in_workers(call: Callable[[], Any], parallel: Parallel, *, terminate: bool, threads: int | None = None) -> Any:
    """Starts workers that call `call`, and returns what rank 0 returns; raises the error of the lowest rank.

    Call and result are files in a folder that only this user may read, see `lifted_bregman.distributed.worker`.

    Args:
        call: can be pickled; every worker calls it.
        parallel: how many workers there are.
        terminate: whether SIGTERM is sent to the workers too.
        threads: of torch in each worker; None for OMP_NUM_THREADS, or an equal share of the cores.
    """
    from lifted_bregman.distributed.launcher import launch

    with tempfile.TemporaryDirectory(prefix="lifted-") as folder:
        file = Path(folder) / "call"
        _write(call, file, parallel)
        variables = {} if threads is None else {"OMP_NUM_THREADS": str(threads)}
        code = launch([str(file)], parallel, terminate=terminate, variables=variables)
        if code == 128 + signal.SIGINT:
            raise KeyboardInterrupt
        if code == 128 + signal.SIGTERM:
            raise SystemExit(code)
        if code:
            raise _error(Path(folder), code)
        return torch.load(file.with_name(RESULT), weights_only=False)


def _write(call: Callable[[], Any], path: Path, parallel: Parallel) -> None:
    instead = f"or start the script with torchrun --nproc-per-node {parallel.size}"
    try:
        torch.save(call, path, pickle_module=SimpleNamespace(Pickler=_Pickler, __name__="pickle"))
    except _OfTheScript as found:
        raise SettingError(
            f"{found} is defined in the script that is run, which worker processes do not import: move it into a "
            f"module of its own, {instead}."
        ) from None
    except (pickle.PicklingError, TypeError, AttributeError) as error:
        raise SettingError(
            f"what fit was given cannot be handed to worker processes ({error}): leave that part out, {instead}."
        ) from error
    except (OSError, RuntimeError) as error:
        raise SettingError(
            f"the data cannot be handed to worker processes through {path.parent} ({error}): free some space there, "
            "or name another folder by the variable TMPDIR."
        ) from error


class _OfTheScript(Exception):
    """A class or function was defined in the script that runs, which workers do not import."""


class _Pickler(pickle.Pickler):
    """Pickles a call, and refuses classes and functions of the script that runs."""

    def reducer_override(self, value: Any) -> Any:
        if isinstance(value, type | FunctionType) and value.__module__ == "__main__":
            raise _OfTheScript(value.__qualname__)
        return NotImplemented


def _error(folder: Path, code: int) -> Exception:
    """The error of the lowest rank, callback errors last; WorkerError if no rank has stored one."""
    paths = sorted(folder.glob(f"{ERROR}-*"), key=lambda path: int(path.name.rpartition("-")[2]))
    errors: list[Exception] = [torch.load(path, weights_only=False) for path in paths]
    if not errors:
        return WorkerError(f"a worker ended with exit code {code}; what it wrote before says why.")
    return next((error for error in errors if not isinstance(error, CallbackError)), errors[0])
