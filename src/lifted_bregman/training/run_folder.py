"""A run's folder: history, checkpoints, result and trained model.

history.jsonl         one row an epoch, fsynced when it is added
checkpoints/          all that a resumed run needs, see `checkpoints`
model.safetensors     the trained parameters, once the run has ended; only if all are finite
result.json           outcome, message and position
manifest.json         size and sha256 of the last two, and of the files that describe the run, see `manifest`
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import IO, Any

import torch
from torch import Tensor

from lifted_bregman.errors import CheckpointError
from lifted_bregman.solvers import Callback, Run
from lifted_bregman.training import files
from lifted_bregman.training.checkpoints import Checkpoints, Loaded, Snapshot
from lifted_bregman.training.history_file import HistoryFile
from lifted_bregman.training.manifest import parse_table, read_files, update_files
from lifted_bregman.training.snapshot import is_finite, load_tensors, save_tensors

MODEL, RESULT = "model.safetensors", "result.json"
_SOLVER_PARTS = ("variables", "multipliers")  # entries of the solver's state that are stored in separate files
_RUN_PARTS = ("kept", "stream")  # the parameters of the last good row, and the position in a stream


class RunFolder(Callback):
    """The folder of a run, locked while the run trains.  As a callback of that run it writes history and result.

    Of several ranks only rank 0 writes.

    Example:
        >>> from lifted_bregman.training.run_folder import RunFolder
        >>> problem, X = lb.lift(nn.Linear(3, 3), loss=lb.SquaredError()), torch.randn(20, 3)
        >>> result = lb.fit(problem, (X, X), epochs=4, out="run")
        >>> len(RunFolder("run").history()), RunFolder("run").result()["outcome"]
        (4, 'FINISHED')
    """

    everywhere = True  # every rank learns whether the result was written
    reads_parameters = False

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)
        self.checkpoints = Checkpoints(self.path / "checkpoints")
        self.settings: Mapping[str, Any] = {}
        """The settings that a resumed run must share; every checkpoint stores them."""
        self.notice: str | None = None
        """A warning after `restore` or `model_parameters`: damaged checkpoints that were skipped, rows that are lost,
        new callbacks, files that could not be verified.  None if there is nothing to say.
        """
        self.differs = False
        """Whether `restore` found another history, or other callbacks, than the checkpoint has."""
        self._lock: IO[str] | None = None
        self._history = HistoryFile(self.path / "history.jsonl")

    @property
    def has_ended(self) -> bool:
        """Whether the run has ended; `result` says how."""
        return (self.path / RESULT).exists()

    @property
    def started_before(self) -> bool:
        """Whether a run has been saved here."""
        return bool(self.checkpoints.steps())

    def results(self) -> list[str]:
        """The files that a new run would overwrite, without the result of a run that took no step."""
        found = [name for name in (self._history.path.name, MODEL, RESULT) if (self.path / name).exists()]
        if found == [RESULT]:
            try:
                return [] if self.result().get("steps") == 0 else found
            except CheckpointError:
                pass
        return found

    def open(self) -> None:
        """Makes the folder, locks it for this process, and removes temporary directories of dead processes."""
        try:
            self.path.mkdir(parents=True, exist_ok=True)
            self._lock = (self.path / "lock").open("a")
        except OSError as error:
            raise CheckpointError(
                f"{self.path} cannot be written ({error.strerror}): choose another folder or change its permissions."
            ) from error
        if not files.take_lock(self._lock):
            self.close()
            raise self._used()
        self.checkpoints.sweep()
        with files.writing(f"{self.path} cannot be read"):
            files.sweep(self.path)

    def require_unused(self) -> None:
        """CheckpointError if another process is training here."""
        try:
            with (self.path / "lock").open() as lock:
                free = files.take_lock(lock)
        except OSError:
            return  # there is none, or `open` says what is wrong with it
        if not free:
            raise self._used()

    def _used(self) -> CheckpointError:
        return CheckpointError(f"another process is training in {self.path}: wait for it, or choose another folder.")

    def close(self) -> None:
        """Releases the lock."""
        if self._lock is not None:
            self._lock.close()
            self._lock = None

    def started(self, run: Run) -> None:
        if run.agreement.rank == 0:
            update_files(self.path, {MODEL: None, RESULT: None})  # of an earlier end

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
        self._history.repair()
        if run.history and self._history.position()["rows"] == 0:  # that of the start, where a run reached no other
            self._history.append(run.history[0])
        parameters = run.problem.model.state_dict()
        assert run.outcome is not None
        ending = {
            "outcome": run.outcome.name,
            "message": run.message,
            "epochs": run.epoch - 1,
            "steps": run.state.steps,
            "seconds": run.seconds,
        }
        model = save_tensors(parameters) if all(map(is_finite, parameters.values())) else None
        update_files(self.path, {MODEL: model, RESULT: (json.dumps(ending, indent=1) + "\n").encode()})

    def save(self, run: Run, best: bool = False) -> Path:
        """Saves a checkpoint of the run; returns its directory."""
        entries = run.state_dict()
        solver = dict(entries.pop("solver"))
        parts = {name: solver.pop(name) for name in _SOLVER_PARTS if name in solver}
        for name in _RUN_PARTS:
            if entries.get(name):
                parts[name] = entries.pop(name)
            entries.pop(name, None)
        parts |= {"model": run.problem.model.state_dict(), "solver": solver}
        parts["callbacks"] = [callback.state_dict() for callback in run.callbacks]
        parts["generators"] = {"torch": torch.get_rng_state()}
        state = {**entries, "history": self._history.position(), "callbacks": _names(run.callbacks)}
        return self.checkpoints.save(Snapshot(run.state.steps, parts, state, dict(self.settings)), best=best)

    def restore(self, run: Run, step: int | None = None) -> Loaded:
        """Restores parameters, solver state, callbacks, history and generators of a run from a checkpoint.

        Args:
            run: the run that resumes.
            step: the step whose checkpoint is read, on ranks above 0; None for the newest sound checkpoint.
        """
        loaded = self.checkpoints.load(step)
        snapshot = loaded.snapshot
        self._require_same_settings(snapshot.settings, loaded.path)
        parts = dict(snapshot.parts)
        try:
            parameters, states, generators = parts.pop("model"), parts.pop("callbacks"), parts.pop("generators")
            more = {name: parts.pop(name, None) for name in _RUN_PARTS}
            solver = {**parts.pop("solver"), **parts}
            _require_same_shapes(parameters, run.problem.model.state_dict())
            rows, lost = self._history.rewind(snapshot.state["history"], snapshot.step)
            saved = snapshot.state["callbacks"]
            new = _load_callbacks(run.callbacks, states, saved, loaded.path)
            run.load_state_dict({**snapshot.state, **more, "solver": solver})
            run.problem.model.load_state_dict(parameters)  # last: a checkpoint that is refused has changed none
        except (KeyError, TypeError, RuntimeError) as error:
            raise CheckpointError(
                f"{loaded.path}, which version {loaded.info.library} wrote, does not fit this run: {error}"
            ) from error
        torch.set_rng_state(generators["torch"])
        run.history[:] = rows
        self.differs = bool(lost) or _names(run.callbacks) != saved
        if step is None:
            if self.checkpoints.steps()[-1] > snapshot.step:  # damaged ones, which this run will pass again
                self.checkpoints.rewind(snapshot.step)
            remarks = (loaded.warning, self._lost(rows, lost, run.epoch - 1), _fresh(new))
            self.notice = " ".join(filter(None, remarks)) or None
        return loaded

    def _lost(self, rows: Sequence[Mapping[str, float]], lost: int, epochs: int) -> str | None:
        """A warning that rows of the history are lost."""
        if not lost:
            return None
        path = self._history.path
        found = f"ends with the row of epoch {int(rows[-1]['epoch'])}" if rows else "is missing or empty"
        return (
            f"{path} {found}, and {epochs} epochs are done: {lost} of {len(rows) + lost} rows are lost, and the run "
            "continues without them."
        )

    def model_parameters(self) -> dict[str, Tensor]:
        """The trained parameters: those of the end, or of the newest sound checkpoint of a run that has not ended."""
        if not self.has_ended:
            loaded = self.checkpoints.load()
            self.notice = loaded.warning
            return dict(loaded.snapshot.parts["model"])
        found, self.notice = read_files(self.path, (RESULT, MODEL))
        if MODEL not in found:
            raise CheckpointError(f"{self.path} has no trained model, for its parameters were not finite at the end.")
        with files.reading(self.path / MODEL):
            return load_tensors(found[MODEL])

    def result(self) -> dict[str, Any]:
        """The content of `result.json`: outcome, message and position of the run."""
        found, _ = read_files(self.path, (RESULT,))
        with files.reading(self.path / RESULT):
            return parse_table(found.get(RESULT, b""))

    def history(self) -> list[dict[str, float]]:
        """The rows on disk; a line that a dying process left unfinished is passed over."""
        return self._history.rows()

    def _require_same_settings(self, saved: Mapping[str, Any], where: Path) -> None:
        for name in sorted({*saved, *self.settings}):
            before, now = saved.get(name), self.settings.get(name)
            if before != now:
                reason = ", and a schedule of its solver ends with them" if name == "epochs" else ""
                if name == "data" and "batches" in self.settings:
                    reason = ", hashes of the first batch, whose random draws must come from generators that are seeded"
                raise CheckpointError(
                    f"{where} was saved with {name} = {before!r} and this run has {now!r}{reason}: continue with the "
                    "same settings, or start a new run in another folder."
                )


def _require_same_shapes(saved: Mapping[str, Any], own: Mapping[str, Any]) -> None:
    """Raises TypeError unless names and shapes agree; `load_state_dict` of torch would first copy those that fit."""
    before, now = ({name: tuple(getattr(v, "shape", ())) for name, v in e.items()} for e in (saved, own))
    for name in sorted({*before, *now}):
        if before.get(name) != now.get(name):
            raise TypeError(f"{name} has the shape {before.get(name)} there and {now.get(name)} in the model")


def _names(callbacks: Sequence[Callback]) -> list[str]:
    return [type(callback).__name__ for callback in callbacks]


def _load_callbacks(
    callbacks: Sequence[Callback], states: Sequence[Mapping[str, Any]], names: Sequence[str], where: Path
) -> list[Callback]:
    """Loads into each callback the saved state of its class; returns the callbacks without a saved state.

    Several callbacks of one class get their states in order.  A saved state without a callback raises CheckpointError,
    unless it is empty.

    Args:
        callbacks: those of this run.
        states: the saved states.
        names: the class of each saved state.
        where: the checkpoint, for errors.
    """
    left: dict[str, list[Mapping[str, Any]]] = {name: [] for name in names}
    for name, state in zip(names, states, strict=True):
        left[name].append(state)
    pairs, new = [], []
    for callback in callbacks:
        if own := left.get(type(callback).__name__):
            pairs.append((callback, own.pop(0)))
        else:
            new.append(callback)
    dropped = sorted(name for name, own in left.items() if any(own))
    if dropped:
        raise CheckpointError(
            f"{where} holds the state of {' and '.join(dropped)}, and this run has no such callback: give it one, or "
            "start a new run in another folder."
        )
    for callback, state in pairs:
        try:
            callback.load_state_dict(state)
        except (KeyError, TypeError, AttributeError) as error:
            raise CheckpointError(
                f"{where} holds a state that {type(callback).__name__} cannot take ({error!r}): give the callback that "
                "the run was started with, or start a new run in another folder."
            ) from error
    return new


def _fresh(new: Sequence[Callback]) -> str | None:
    """A warning that names the callbacks with a state of which the checkpoint has none; None without such callbacks."""
    names = [type(callback).__name__ for callback in new if callback.state_dict()]
    verb = "starts" if len(names) == 1 else "start"
    return f"{' and '.join(names)} {verb} afresh, for the checkpoint was saved without." if names else None
