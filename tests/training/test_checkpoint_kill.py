"""A process killed or interrupted at any instant of saving leaves the last or the previous checkpoint.

Every round forks a child from this warm process, lets it begin to save, and kills it after a delay drawn uniformly from
the time that a save takes.  The same harness with writers that overwrite a file in place must find most files broken.
"""

import os
import random
import signal
import statistics
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
import torch

from lifted_bregman.training.checkpoints import Checkpoints, verify
from tests.training.checkpoint_helpers import bits, content, fork, snapshot

WIDTH = 256  # a model of half a megabyte


@dataclass
class Round:
    step: int
    died: bool  # whether the signal came before the save had ended


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

    def wait(self) -> int:
        """How it ended: its exit code, or minus the signal that killed it."""
        os.close(self._reader)
        return os.waitstatus_to_exitcode(os.waitpid(self.pid, 0)[1])


def rounds(save: Callable[[int], object], count: int, seed: int, number: signal.Signals) -> Iterator[Round]:
    """Saves steps 1, 2, 3, ..., ending each by the signal at a random instant; the caller looks after each."""
    durations = []
    for step in range(1, 8):
        saver = Saver(save, step)
        durations.append(saver.duration())
        assert saver.wait() == 0
    longest = statistics.median(durations)
    draw = random.Random(seed)
    for step in range(8, 8 + count):
        saver = Saver(save, step)
        time.sleep(max(0.0, draw.uniform(0, longest) - (time.perf_counter() - saver.begun)))
        os.kill(saver.pid, number)
        ended = saver.wait()
        assert ended in (0, -number, 130), f"the child failed with {ended}"
        yield Round(step, ended != 0)


def killed_checkpoints(folder: Path, count: int, seed: int) -> None:
    checkpoints = Checkpoints(folder)
    expected = {step: snapshot(step, WIDTH) for step in range(1, 8 + count)}

    def save(step: int) -> None:
        checkpoints.save(expected[step], best=step % 5 == 0)

    last, died, kept, swept = 7, 0, 0, 0
    for round in rounds(save, count, seed, signal.SIGKILL):
        loaded = checkpoints.load()
        assert loaded.snapshot.step in (round.step, last)
        assert bits(loaded.snapshot) == bits(expected[loaded.snapshot.step])
        assert loaded.warning is None
        assert round.died or loaded.snapshot.step == round.step
        for step in checkpoints.steps():  # each is there whole or not at all
            assert verify(folder / f"step-{step:08d}").step == step
        last = loaded.snapshot.step
        died += round.died
        kept += round.died and last != round.step
        swept += len(checkpoints.sweep())
        assert {entry.name for entry in folder.iterdir()} == {"LATEST", *(f"step-{s:08d}" for s in checkpoints.steps())}
    checkpoints.save(snapshot(count + 10))
    assert len(checkpoints.steps()) <= 3  # what kills kept from being removed is removed now
    # The kills came during the saves, before as well as after the moment that counts.
    assert died > count / 2
    assert kept > count / 4
    assert swept > count / 4


def test_a_hundred_kills(tmp_path: Path) -> None:
    killed_checkpoints(tmp_path, 100, seed=1)


@pytest.mark.long
@pytest.mark.timeout(900)
def test_a_thousand_kills(tmp_path: Path) -> None:
    killed_checkpoints(tmp_path, 1000, seed=2)


def test_the_same_kills_break_a_naive_writer(tmp_path: Path) -> None:
    path = tmp_path / "model.pt"
    models = [torch.full((2000, 1000), float(number)) for number in range(2)]
    last, broken = 1, 0
    for round in rounds(lambda step: torch.save(models[step % 2], path), 100, seed=1, number=signal.SIGKILL):
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
    assert broken > 50


def test_ctrl_c_at_any_instant_leaves_nothing_behind(tmp_path: Path) -> None:
    checkpoints = Checkpoints(tmp_path)
    small = {step: snapshot(step, 64) for step in range(1, 68)}
    interrupted = undone = 0
    before: dict[str, bytes] = {}

    def save(step: int) -> None:
        checkpoints.save(small[step])

    for round in rounds(save, 60, seed=3, number=signal.SIGINT):
        names = {entry.name for entry in tmp_path.iterdir()}
        assert names == {"LATEST", *(f"step-{step:08d}" for step in checkpoints.steps())}  # no temporary directory
        loaded = checkpoints.load()
        assert loaded.warning is None
        assert bits(loaded.snapshot) == bits(small[loaded.snapshot.step])
        if round.died:
            interrupted += 1
            if loaded.snapshot.step != round.step:
                undone += 1
                assert not before or content(tmp_path) == before
        else:
            assert loaded.snapshot.step == round.step
        before = content(tmp_path)
    assert interrupted > 30
    assert undone > 15
