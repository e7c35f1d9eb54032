"""A run's folder: its history, its checkpoints, how it ended, and the trained model.

history.jsonl         one row an epoch, on disk as soon as it is there
checkpoints/          what a continuation needs, see `checkpoints`
model.safetensors     the trained parameters, once the run has ended; none that are not finite
result.json           outcome, message, position and the hash of the model
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import IO, Any

import torch
from torch import Tensor

from lifted_bregman.errors import CheckpointError
from lifted_bregman.solvers import Callback, Run
from lifted_bregman.solvers._finite import finite
from lifted_bregman.training._atomic import replace_file, sweep_parts, take_lock
from lifted_bregman.training._history_file import HistoryFile, written
from lifted_bregman.training.checkpoints import Checkpoints, Loaded, Snapshot

_AT_THE_END = ("model.safetensors", "result.json")
_OWN_PARTS = ("variables", "multipliers")  # entries of the solver's state with a file of their own
_MORE_PARTS = ("kept", "stream")  # the parameters of the last good row, and where a stream goes on
_OF_EVERY_RUN = ("Signals", "RunFolder", "Checkpoint")  # the callbacks of a run with a folder to which none was given


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
        """What a continuation should know: damaged checkpoints that were passed over, rows of the history that are
        lost, callbacks that are new.  None for nothing.
        """
        self.differs = False
        """Whether a continuation has another history, or other callbacks, than its checkpoint was saved with."""
        self._lock: IO[str] | None = None
        self._history = HistoryFile(self.path / "history.jsonl")

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
        with written(self.path):
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
            with written(self.path / name):
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

        self._history.repair()
        parameters = {name: value.detach().clone() for name, value in run.problem.model.state_dict().items()}
        path, content = self.path / "model.safetensors", None
        with written(path):
            if all(finite(value) for value in parameters.values()):
                content = save(parameters)
                replace_file(path, content)
            else:
                path.unlink(missing_ok=True)
        if run.history and self._history.position()["rows"] == 0:  # that of the start, where a run reached no other
            self._history.append(run.history[0])
        assert run.outcome is not None
        ending = {
            "outcome": run.outcome.name,
            "message": run.message,
            "epochs": run.epoch - 1,
            "steps": run.state.steps,
            "seconds": run.seconds,
            "model_sha256": None if content is None else hashlib.sha256(content).hexdigest(),
        }
        with written(self.path / "result.json"):
            replace_file(self.path / "result.json", (json.dumps(ending, indent=1) + "\n").encode())

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
            rows, lost = self._history.go_back(snapshot.state["history"], snapshot.step)
            saved = snapshot.state.get("callbacks", _names(run.callbacks))  # older versions kept no names
            new = _load_callbacks(run.callbacks, states, saved, loaded.path)
            run.load_state_dict({**snapshot.state, **more, "solver": solver})
            run.problem.model.load_state_dict(parameters)  # last: a checkpoint that is refused has changed none
        except (KeyError, TypeError, RuntimeError) as error:
            raise CheckpointError(f"{loaded.path} does not fit this run: {error}") from error
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

    names  the class of each saved state
    """
    if len(states) != len(names):  # the checkpoint is of an older version, and the names are those of this run
        before, now = (len(given) - len(_OF_EVERY_RUN) for given in (states, names))
        raise CheckpointError(
            f"{where} is of an older version, with {before} callbacks beside a Checkpoint, and this run has {now}: "
            "give it those it was started with."
        )
    left = list(zip(names, states, strict=True))
    pairs, new = [], []
    for callback in callbacks:
        place = next((i for i, (name, _) in enumerate(left) if name == type(callback).__name__), None)
        if place is None:
            new.append(callback)
        else:
            pairs.append((callback, left.pop(place)[1]))
    dropped = sorted({name for name, state in left if state})
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
