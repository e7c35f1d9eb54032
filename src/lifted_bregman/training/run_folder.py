"""A run's folder: its history, its checkpoints, how it ended, and the trained model.

history.jsonl         one row an epoch, on disk as soon as it is there
checkpoints/          all that a resumed run needs, see `checkpoints`
model.safetensors     the trained parameters, once the run has ended; none that are not finite
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
from lifted_bregman.training.manifest import FileHash, StoredFiles, parse_json, update_files
from lifted_bregman.training.snapshot import is_finite, load_tensors, save_tensors

MODEL, RESULT = "model.safetensors", "result.json"
_OWN_PARTS = ("variables", "multipliers")  # entries of the solver's state with a file of their own
_MORE_PARTS = ("kept", "stream")  # the parameters of the last good row, and where a stream goes on


class RunFolder(Callback):
    """The folder `path` as a run uses it; one run at a time.  It is a callback of the run that writes it.

    Where several processes share the run, rank 0 writes.
    """

    everywhere = True  # every process learns whether the end was written
    reads_parameters = False

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)
        self.checkpoints = Checkpoints(self.path / "checkpoints")
        self.settings: Mapping[str, Any] = {}
        """The settings that a resumed run must share; hashed into every checkpoint."""
        self.notice: str | None = None
        """What the user of a resumed run or of its model should know: damaged checkpoints that were passed over, rows
        of the history that are lost, callbacks that are new, files that could not be verified.  None for nothing.
        """
        self.differs = False
        """Whether a resumed run has another history, or other callbacks, than its checkpoint was saved with."""
        self._lock: IO[str] | None = None
        self._history = HistoryFile(self.path / "history.jsonl")

    @property
    def started_before(self) -> bool:
        """Whether a run has been saved here."""
        return bool(self.checkpoints.steps())

    def results(self) -> list[str]:
        """The files here that a run would write anew; the end of a run that took no step does not count."""
        found = [name for name in (self._history.path.name, MODEL, RESULT) if (self.path / name).exists()]
        if found == [RESULT]:
            try:
                return [] if self.result().get("steps") == 0 else found
            except CheckpointError:
                pass
        return found

    def open(self) -> None:
        """Makes the folder, locks it for this process, and removes what dead processes left."""
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
            update_files(self.path, {MODEL: None, RESULT: None})  # those of an earlier end are no longer true

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
        """One checkpoint of where the run stands."""
        entries = run.state_dict()
        solver = dict(entries.pop("solver"))
        parts = {name: solver.pop(name) for name in _OWN_PARTS if name in solver}
        for name in _MORE_PARTS:
            if entries.get(name):
                parts[name] = entries.pop(name)
            entries.pop(name, None)
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
            more = {name: parts.pop(name, None) for name in _MORE_PARTS}
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
        """The sentence that rows of the history are lost."""
        if not lost:
            return None
        path = self._history.path
        found = f"ends with the row of epoch {int(rows[-1]['epoch'])}" if rows else "is missing or empty"
        return (
            f"{path} {found}, and {epochs} epochs are done: {lost} of {len(rows) + lost} rows are lost, and the run "
            "goes on without them."
        )

    def model_parameters(self) -> dict[str, Tensor]:
        """The trained parameters: those of the end, or of the newest sound checkpoint of a run that has not ended."""
        if not (self.path / RESULT).exists():
            loaded = self.checkpoints.load()
            self.notice = loaded.warning
            return dict(loaded.snapshot.parts["model"])
        stored = StoredFiles.read(self.path, (RESULT, MODEL))
        self.notice, ending, content = stored.verify(), self.result(), stored.files.get(MODEL)
        if content is None:
            raise CheckpointError(f"{self.path} has no trained model, for its parameters were not finite at the end.")
        expected = ending.get("model_sha256")  # a run of an earlier version has no other hash of its model
        if expected is not None:
            if FileHash.of(content).sha256 != expected:
                raise CheckpointError(f"{self.path / MODEL} is not what the run wrote (sha256): resume it.")
            self.notice = None
        with files.reading(self.path / MODEL):
            return load_tensors(content)

    def result(self) -> dict[str, Any]:
        """How the run ended, as `result.json` has it."""
        stored = StoredFiles.read(self.path, (RESULT,))
        stored.verify()
        with files.reading(self.path / RESULT):
            entries = parse_json(stored.files.get(RESULT, b""))
            if not isinstance(entries, dict):
                raise CheckpointError("it holds no table")
        return entries

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
    """PyTorch itself loads what fits before it says what does not."""
    before, now = ({name: tuple(getattr(v, "shape", ())) for name, v in e.items()} for e in (saved, own))
    for name in sorted({*before, *now}):
        if before.get(name) != now.get(name):
            raise TypeError(f"{name} has the shape {before.get(name)} there and {now.get(name)} in the model")


def _names(callbacks: Sequence[Callback]) -> list[str]:
    return [type(callback).__name__ for callback in callbacks]


def _load_callbacks(
    callbacks: Sequence[Callback], states: Sequence[Mapping[str, Any]], names: Sequence[str], where: Path
) -> list[Callback]:
    """Gives each callback the state of its class in the checkpoint; returns those that find none there.

    Several of one class take theirs in order.  A state that no callback takes is an error, unless it is empty.

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
    """The sentence about callbacks with a memory of which the checkpoint has none."""
    names = [type(callback).__name__ for callback in new if callback.state_dict()]
    verb = "starts" if len(names) == 1 else "start"
    return f"{' and '.join(names)} {verb} afresh, for the checkpoint was saved without." if names else None
