"""A run's folder: its history, its checkpoints, how it ended, and the trained model.

history.jsonl         one row an epoch, on disk as soon as it is there
checkpoints/          what a continuation needs, see `checkpoints`
model.safetensors     the trained parameters, once the run has ended; none that are not finite
result.json           outcome, message, position and the hash of the model
"""

from __future__ import annotations

import hashlib
import json
import math
import os
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from io import FileIO
from pathlib import Path
from typing import IO, Any

import torch
from torch import Tensor

from lifted_bregman.errors import CheckpointError
from lifted_bregman.solvers import Callback, Run
from lifted_bregman.solvers._finite import finite
from lifted_bregman.training._atomic import replace_file, sweep_parts, take_lock
from lifted_bregman.training.checkpoints import Checkpoints, Loaded, Snapshot, remedy

_IN_EVERY_ROW = ("epoch", "step", "seconds")
_AT_THE_END = ("model.safetensors", "result.json")
_OWN_PARTS = ("variables", "multipliers")  # entries of the solver's state with a file of their own
_OF_EVERY_RUN = ("Signals", "RunFolder", "Checkpoint")  # the callbacks of a run with a folder to which none was given
_UNSHOWN = ("Signals", "RunFolder", "_Description")  # those that no user gives


class RunFolder(Callback):
    """The folder `path` as a run uses it; one run at a time.  It is a callback of the run that writes it.

    Where several processes share the run, the first one writes.
    """

    everywhere = True  # every process learns whether the end was written
    reads_parameters = False

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)
        self.checkpoints = Checkpoints(self.path / "checkpoints")
        self.settings: Mapping[str, Any] = {}
        """What a continuation must agree with; hashed into every checkpoint."""
        self.notice: str | None = None
        """The sentence that says which damaged checkpoints were passed over, if any were."""
        self._lock: IO[str] | None = None
        self._history = _HistoryFile(self.path / "history.jsonl")

    @property
    def started_before(self) -> bool:
        """Whether a run has been saved here."""
        return bool(self.checkpoints.steps())

    def results(self) -> list[str]:
        """The files here that a run would write anew.  The end of one that could not take a step is none."""
        found = [name for name in (self._history.path.name, *_AT_THE_END) if (self.path / name).exists()]
        return [] if found == ["result.json"] and self._never_began() else found

    def _never_began(self) -> bool:
        try:
            ending = self.result()
        except CheckpointError:
            return False
        return (ending.get("steps"), ending.get("model_sha256", "")) == (0, None)

    def open(self) -> None:
        """Makes the folder, takes it for this process, and sweeps what dead processes left."""
        try:
            self.path.mkdir(parents=True, exist_ok=True)
            self._lock = (self.path / "lock").open("a")
        except OSError as error:
            raise CheckpointError(
                f"{self.path} cannot be written ({error.strerror}): choose another folder or change its permissions."
            ) from error
        if not take_lock(self._lock):
            self.close()
            raise self._used()
        self.checkpoints.sweep()
        with _told(self.path):
            sweep_parts(self.path)

    def require_unused(self) -> None:
        """CheckpointError if another process is training here."""
        try:
            with (self.path / "lock").open() as lock:
                free = take_lock(lock)
        except OSError:
            return  # there is none, or `open` says what is wrong with it
        if not free:
            raise self._used()

    def _used(self) -> CheckpointError:
        return CheckpointError(f"another process is training in {self.path}: wait for it, or choose another folder.")

    def close(self) -> None:
        self._history.close()
        if self._lock is not None:
            self._lock.close()
            self._lock = None

    def started(self, run: Run) -> None:
        if run.agreement.rank > 0:
            return
        for name in _AT_THE_END:  # those of an earlier end are no longer true
            with _told(self.path / name):
                (self.path / name).unlink(missing_ok=True)

    def recorded(self, run: Run, row: dict[str, float]) -> None:
        if run.agreement.rank == 0:
            self._history.append(row)

    def finished(self, run: Run) -> None:
        failure: CheckpointError | None = None
        try:
            if run.agreement.rank == 0:
                self._write_end(run)
        except CheckpointError as error:
            failure = error
        run.agreement.share_error(failure)

    def _write_end(self, run: Run) -> None:
        from safetensors.torch import save

        parameters = {name: value.detach().clone() for name, value in run.problem.model.state_dict().items()}
        path, content = self.path / "model.safetensors", None
        with _told(path):
            if all(finite(value) for value in parameters.values()):
                content = save(parameters)
                replace_file(path, content)
            else:
                path.unlink(missing_ok=True)
        assert run.outcome is not None
        ending = {
            "outcome": run.outcome.name,
            "message": run.message,
            "epochs": run.epoch - 1,
            "steps": run.state.steps,
            "seconds": run.seconds,
            "model_sha256": None if content is None else hashlib.sha256(content).hexdigest(),
        }
        with _told(self.path / "result.json"):
            replace_file(self.path / "result.json", (json.dumps(ending, indent=1) + "\n").encode())

    def save(self, run: Run, best: bool = False) -> Path:
        """One checkpoint of where the run stands."""
        entries = run.state_dict()
        solver = dict(entries.pop("solver"))
        parts = {name: solver.pop(name) for name in _OWN_PARTS if name in solver}
        parts |= {"model": run.problem.model.state_dict(), "solver": solver}
        parts["callbacks"] = [callback.state_dict() for callback in run.callbacks]
        parts["generators"] = {"torch": torch.get_rng_state()}
        state = {**entries, "history": self._history.position(), "callbacks": _names(run.callbacks)}
        return self.checkpoints.save(Snapshot(run.state.steps, parts, state, dict(self.settings)), best=best)

    def restore(self, run: Run, step: int | None = None) -> Loaded:
        """Puts a checkpoint into the run: parameters, solver state, callbacks, history, generators.

        It is the newest sound one, which the run then goes on from, or that of `step` for a process that follows.
        """
        loaded = self.checkpoints.load(step)
        snapshot = loaded.snapshot
        self._require_same_settings(snapshot.settings, loaded.path)
        parts = dict(snapshot.parts)
        try:
            parameters, states, generators = parts.pop("model"), parts.pop("callbacks"), parts.pop("generators")
            solver = {**parts.pop("solver"), **parts}
            _require_same_shapes(parameters, run.problem.model.state_dict())
            rows = self._history.truncated(snapshot.state["history"])
            _require_same_callbacks(snapshot.state.get("callbacks"), _names(run.callbacks), loaded.path)
            _load_callbacks(run, states, loaded.path)
            run.load_state_dict({**snapshot.state, "solver": solver})
            run.problem.model.load_state_dict(parameters)  # last: a checkpoint that is refused has changed none
        except (KeyError, TypeError, RuntimeError) as error:
            raise CheckpointError(f"{loaded.path} does not fit this run: {error}") from error
        torch.set_rng_state(generators["torch"])
        run.history[:] = rows
        if (
            step is None and self.checkpoints.steps()[-1] > snapshot.step
        ):  # damaged ones, which this run will pass again
            self.checkpoints.rewind(snapshot.step)
        self.notice = loaded.warning
        return loaded

    def model_parameters(self) -> dict[str, Tensor]:
        """The trained parameters: those of the end, or of the newest sound checkpoint of a run that has not ended."""
        if not (self.path / "result.json").exists():
            loaded = self.checkpoints.load()
            self.notice = loaded.warning
            return dict(loaded.snapshot.parts["model"])
        from safetensors import SafetensorError
        from safetensors.torch import load

        try:
            expected = self.result()["model_sha256"]
            if expected is None:
                raise CheckpointError(
                    f"{self.path} has no trained model, for its parameters were not finite at the end."
                )
            content = (self.path / "model.safetensors").read_bytes()
            if hashlib.sha256(content).hexdigest() != expected:
                raise CheckpointError(
                    f"{self.path / 'model.safetensors'} is damaged: resume the run to write it again."
                )
            return load(content)
        except (OSError, SafetensorError, KeyError) as error:
            raise CheckpointError(f"{self.path / 'model.safetensors'} cannot be read: {error}") from error

    def result(self) -> dict[str, Any]:
        """How the run ended, as `result.json` has it."""
        try:
            entries = json.loads((self.path / "result.json").read_text(encoding="utf-8"))
        except (OSError, ValueError, RecursionError) as error:
            raise CheckpointError(f"{self.path / 'result.json'} cannot be read: {error}") from error
        if not isinstance(entries, dict):
            raise CheckpointError(f"{self.path / 'result.json'} is not what a run writes: it holds no table.")
        return entries

    def history(self) -> list[dict[str, float]]:
        """The rows on disk; a line that a dying process left unfinished is passed over."""
        return self._history.rows()

    def _require_same_settings(self, saved: Mapping[str, Any], where: Path) -> None:
        for name in sorted({*saved, *self.settings}):
            before, now = saved.get(name), self.settings.get(name)
            if before != now:
                reason = ", and a schedule of its solver ends with them" if name == "epochs" else ""
                raise CheckpointError(
                    f"{where} was saved with {name} = {before!r} and this run has {now!r}{reason}: continue with the "
                    "same settings, or start a new run in another folder."
                )


class _HistoryFile:
    """history.jsonl: rows are appended and fsynced; a continuation cuts off those after its checkpoint."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._file: FileIO | None = None
        self._hash = hashlib.sha256()
        self._rows = self._bytes = 0

    def append(self, row: Mapping[str, float]) -> None:
        line = json.dumps(row).encode() + b"\n"
        with _told(self.path):
            if self._file is None:
                self._file = self.path.open("r+b" if self._rows else "wb", buffering=0)
            self._file.seek(self._bytes)
            self._file.truncate()
            rest = memoryview(line)
            while rest:
                rest = rest[self._file.write(rest) :]
            os.fsync(self._file.fileno())
        self._hash.update(line)
        self._rows, self._bytes = self._rows + 1, self._bytes + len(line)

    def position(self) -> dict[str, Any]:
        return {"rows": self._rows, "bytes": self._bytes, "sha256": self._hash.hexdigest()}

    def truncated(self, position: Mapping[str, Any]) -> list[dict[str, float]]:
        """The rows up to `position`, which new ones will follow; the rest is cut off with the next row."""
        self.close()
        try:
            content = self.path.read_bytes()[: position["bytes"]] if position["rows"] else b""
        except OSError as error:
            raise CheckpointError(
                f"{self.path}, the history of the run, cannot be read ({error.strerror}): restore the file, or start a "
                "new run in another folder."
            ) from error
        digest = hashlib.sha256(content)
        if digest.hexdigest() != position["sha256"]:
            raise CheckpointError(
                f"{self.path} is not the history that the checkpoint was saved with: restore the file, or start a new "
                "run in another folder."
            )
        self._hash, self._rows, self._bytes = digest, position["rows"], len(content)
        return [json.loads(line) for line in content.splitlines()]

    def rows(self) -> list[dict[str, float]]:
        if not self.path.exists():
            return []
        rows = []
        lines = self.path.read_bytes().split(b"\n")
        for number, line in enumerate(lines[:-1], start=1):  # what follows the last line end is unfinished
            rows.append(_row(line, f"line {number} of {self.path}"))
        return rows

    def close(self) -> None:
        if self._file is not None:
            file, self._file = self._file, None
            with suppress(OSError):  # its rows are on the disk
                file.close()


def _row(line: bytes, where: str) -> dict[str, float]:
    """The row that a line of a history holds: numbers by name, each of which a float can hold."""
    try:
        row = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise CheckpointError(f"{where} is damaged: {error}") from error
    if not isinstance(row, dict) or not all(isinstance(value, int | float) and _fits(value) for value in row.values()):
        raise CheckpointError(f"{where} is no row of a history, which holds numbers by name: restore the file.")
    if not all(math.isfinite(row.get(name, math.nan)) for name in _IN_EVERY_ROW):
        raise CheckpointError(
            f"{where} is no row of a history, for one of {', '.join(_IN_EVERY_ROW)} is missing or not finite: restore "
            "the file."
        )
    return row


def _fits(value: float) -> bool:
    """Whether a float can hold the number, be it infinite or NaN; a whole number may have any number of digits."""
    try:
        float(value)
    except OverflowError:
        return False
    return True


def _require_same_shapes(saved: Mapping[str, Any], own: Mapping[str, Any]) -> None:
    """PyTorch itself loads what fits before it says what does not."""
    before, now = ({name: tuple(getattr(v, "shape", ())) for name, v in e.items()} for e in (saved, own))
    for name in sorted({*before, *now}):
        if before.get(name) != now.get(name):
            raise TypeError(f"{name} has the shape {before.get(name)} there and {now.get(name)} in the model")


def _names(callbacks: Sequence[Callback]) -> list[str]:
    return [type(callback).__name__ for callback in callbacks]


def _require_same_callbacks(saved: Sequence[str] | None, own: Sequence[str], where: Path) -> None:
    """CheckpointError, with what to do, unless a run has the callbacks it was started with.

    saved  their classes; None in a checkpoint of an older version, whose callbacks are only counted
    """
    if saved is None or list(saved) == list(own):
        return
    before, now = Counter(saved), Counter(own)
    missing, added = (before - now).elements(), (now - before).elements()
    steps = [f"give {name} too" for name in missing] + [f"leave {name} out" for name in added]
    shown = (", ".join(name for name in names if name not in _UNSHOWN) for names in (saved, own))
    raise CheckpointError(
        f"{where} was saved with the callbacks {next(shown)} and this run has {next(shown)}: "
        f"{' and '.join(steps) or 'give them in that order'}, or start a new run in another folder."
    )


def _load_callbacks(run: Run, states: Sequence[Mapping[str, Any]], where: Path) -> None:
    if len(states) != len(run.callbacks):
        before, now = (len(given) - len(_OF_EVERY_RUN) for given in (states, run.callbacks))
        raise CheckpointError(
            f"{where} was saved with {before} callbacks beside a Checkpoint and this run has {now}: give it those it "
            "was started with, or start a new run in another folder."
        )
    for callback, state in zip(run.callbacks, states, strict=True):
        try:
            callback.load_state_dict(state)
        except (KeyError, TypeError, AttributeError) as error:
            raise CheckpointError(
                f"{where} holds no state of the callback {type(callback).__name__} ({error!r}): give the run those it "
                "was started with, in their order, or start a new run in another folder."
            ) from error


@contextmanager
def _told(path: Path) -> Iterator[None]:
    """A file that cannot be changed is a `CheckpointError` with what to do."""
    try:
        yield
    except OSError as error:
        raise CheckpointError(f"{path} was not written ({error.strerror}). {remedy(error)}") from error
