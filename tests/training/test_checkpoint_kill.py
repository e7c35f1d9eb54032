"""A process killed or interrupted at any instant of saving leaves the last or the previous checkpoint.

Every round forks a child from this warm process, lets it begin to save, and kills it after a delay drawn uniformly from
the time that a save takes, until so many kills have struck in the middle of a save.  The same harness with a writer
that overwrites its file in place must find most files broken.
"""

import os
import random
import signal
import statistics
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from itertools import count
from pathlib import Path

import pytest
import torch

from lifted_bregman.training.checkpoints import Checkpoints, Snapshot, verify_checkpoint
from tests.training.checkpoint_helpers import bits, content, fork, snapshot

FIRST = 8  # the steps before it are saved without a kill, to see how long that takes


def snapshots(width: int) -> Callable[[int], Snapshot]:
    """The snapshot of a step; there are seven contents, which follow each other."""
    made = [snapshot(number, width) for number in range(7)]
    return lambda step: replace(made[step % 7], step=step)


@dataclass
class Round:
    step: int
    struck: bool  # whether the signal came before the save had ended


class Saver:
    """A forked child that saves one step; it says when it begins and when it has done it."""

    def __init__(self, save: Callable[[int], object], step: int) -> None:
        self._reader, writer = os.pipe()
        self.pid = fork()
        if self.pid == 0:
            code = 1
            try:
                signal.signal(signal.SIGINT, signal.default_int_handler)
                os.write(writer, b"b")
                save(step)
                os.write(writer, b"e")
                code = 0
            except KeyboardInterrupt:
                code = 130
            finally:
                os._exit(code)
        os.close(writer)
        assert os.read(self._reader, 1) == b"b"
        self.begun = time.perf_counter()

    def duration(self) -> float:
        """Waits for the end of the save."""
        assert os.read(self._reader, 1) == b"e"
        return time.perf_counter() - self.begun

    def wait(self) -> tuple[int, bool]:
        """Its exit code, or minus the signal that killed it, and whether that was before the end of the save."""
        code = os.waitstatus_to_exitcode(os.waitpid(self.pid, 0)[1])
        struck = code != 0 and os.read(self._reader, 1) == b""
        os.close(self._reader)
        return code, struck


def rounds(save: Callable[[int], object], hits: int, seed: int, number: signal.Signals) -> Iterator[Round]:
    """Saves step after step with the signal at a random instant, until it has struck `hits` times during a save."""
    durations = []
    for step in range(1, FIRST):
        saver = Saver(save, step)
        durations.append(saver.duration())
        assert saver.wait() == (0, False)
    longest = statistics.median(durations)
    draw = random.Random(seed)
    for step in count(FIRST):
        saver = Saver(save, step)
        time.sleep(max(0.0, draw.uniform(0, longest) - (time.perf_counter() - saver.begun)))
        os.kill(saver.pid, number)
        code, struck = saver.wait()
        assert code in (0, -number, 130), f"the child failed with {code}"
        yield Round(step, struck)
        longest *= 1.02 if struck else 0.9  # the machine may have become busier or less busy
        hits -= struck
        if not hits:
            return


def killed_checkpoints(folder: Path, hits: int, seed: int) -> None:
    checkpoints, expected = Checkpoints(folder), snapshots(256)
    last, kept, swept = FIRST - 1, 0, 0
    for round in rounds(lambda step: checkpoints.save(expected(step), best=step % 5 == 0), hits, seed, signal.SIGKILL):
        loaded = checkpoints.load()
        assert loaded.snapshot.step in (round.step, last)
        assert bits(loaded.snapshot) == bits(expected(loaded.snapshot.step))
        assert loaded.warning is None
        assert round.struck or loaded.snapshot.step == round.step
        for step in checkpoints.steps():  # each is there whole or not at all
            assert verify_checkpoint(folder / f"step-{step:08d}").step == step
        last = loaded.snapshot.step
        kept += last != round.step
        swept += len(checkpoints.sweep())
        assert {entry.name for entry in folder.iterdir()} == {"LATEST", *(f"step-{s:08d}" for s in checkpoints.steps())}
    checkpoints.save(expected(round.step + 1))
    assert len(checkpoints.steps()) <= 3  # what kills kept from being removed is removed now
    # The kills came early as well as late.
    assert hits / 4 < kept <= hits
    assert swept > hits / 4


def hits(*numbers: int) -> pytest.MarkDecorator:
    """The first number of hits every day, the others in the long suite."""
    first, *others = numbers
    return pytest.mark.parametrize("hits", [first, *(pytest.param(n, marks=pytest.mark.long) for n in others)])


@hits(20, 1000)
def test_a_kill_leaves_the_last_or_the_previous_checkpoint(tmp_path: Path, hits: int) -> None:
    killed_checkpoints(tmp_path, hits, seed=hits)


@hits(15, 100)
def test_the_same_kills_break_a_naive_writer(tmp_path: Path, hits: int) -> None:
    path = tmp_path / "model.pt"
    models = [torch.full((2000, 1000), float(number)) for number in range(2)]
    last, broken = 1, 0
    for round in rounds(lambda step: torch.save(models[step % 2], path), hits, seed=1, number=signal.SIGKILL):
        try:
            found = torch.load(path, weights_only=True)
        except Exception:
            found = torch.empty(0)
        sound = [number for number in (round.step % 2, last) if torch.equal(models[number], found)]
        if sound:
            last = sound[0]
        else:
            broken += 1
            torch.save(models[last], path)  # the next round begins with a sound file
    assert broken > hits / 2


@hits(15, 100)
def test_ctrl_c_at_any_instant_leaves_nothing_behind(tmp_path: Path, hits: int) -> None:
    checkpoints, expected = Checkpoints(tmp_path), snapshots(64)
    before: dict[str, bytes] = {}
    undone = 0
    for round in rounds(lambda step: checkpoints.save(expected(step)), hits, seed=3, number=signal.SIGINT):
        names = {entry.name for entry in tmp_path.iterdir()}
        assert names == {"LATEST", *(f"step-{step:08d}" for step in checkpoints.steps())}  # no temporary directory
        loaded = checkpoints.load()
        assert loaded.warning is None
        assert bits(loaded.snapshot) == bits(expected(loaded.snapshot.step))
        if loaded.snapshot.step != round.step:
            assert round.struck
            assert not before or content(tmp_path) == before
            undone += 1
        before = content(tmp_path)
    assert undone > hits / 4
