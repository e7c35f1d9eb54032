"""A run that receives SIGINT or SIGTERM saves a checkpoint, ends with the right exit code, and resumes exactly."""

from __future__ import annotations

import os
import shlex
import signal
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

from tests.cli.program import PATIENCE, PROGRAM, Warm, call, environment, wait_for
from tests.sampling import every, pairwise

CODES = {signal.SIGINT: 130, signal.SIGTERM: 143}
LONG = 600.0  # seconds, in which every step ends that ends


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("signals")
    generator = np.random.default_rng(0)
    X = generator.normal(size=(60, 6))
    np.savez(folder / "table.npz", X=X, y=(X[:, 0] + X[:, 1] > 0).astype(np.int64))
    return folder


@pytest.fixture(scope="module")
def warm(world: Path) -> Iterator[Warm]:
    server = Warm(world)
    yield server
    server.close()


def training(world: Path, out: Path) -> list[object]:
    """Five steps an epoch, a checkpoint after each third."""
    settings = "--hidden 8,7 --solver implicit-sgd --set inner_steps=2 --set prox_weight=1 --epochs 4 --batch-size 10"
    more = "--checkpoint-steps 3 --quiet"
    return ["train", "--data", world / "table.npz", *settings.split(), *more.split(), "--out", out]


@pytest.fixture(scope="module")
def undisturbed(world: Path, warm: Warm) -> Path:
    out = world / "undisturbed"
    assert warm.start(*training(world, out)).wait().code == 0
    return out


def times_aside(run: Path) -> list[dict[str, float]]:
    import json

    rows = [json.loads(line) for line in (run / "history.jsonl").read_text().splitlines()]
    return [{name: value for name, value in row.items() if name != "seconds"} for row in rows]


def require_same(run: Path, other: Path) -> None:
    """Bitwise the same parameters and, times aside, the same history."""
    found, expected = (load_file(folder / "model.safetensors") for folder in (run, other))
    assert found.keys() == expected.keys()
    assert all(found[name].numpy().tobytes() == value.numpy().tobytes() for name, value in expected.items())
    assert times_aside(run) == times_aside(other)


PLACES = [
    ("step", 8, False),
    ("inner loop", 50, False),
    ("inner loop", 53, True),  # an endless one
    ("evaluation", 4, False),
    ("save", 20, False),
]


@pytest.mark.parametrize(("where", "number"), pairwise(PLACES, list(CODES)), ids=str)
def test_a_stopped_run_is_saved_and_continues_exactly(
    where: tuple[str, int, bool],
    number: signal.Signals,
    world: Path,
    warm: Warm,
    undisturbed: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    place, at, hang = where
    out = world / f"{place}-{at}-{number.name}"
    child = warm.start(*training(world, out), pause=place, at=at, hang=hang, grace=0.5 if hang else LONG)
    child.send(number)
    stopped = child.wait()
    assert stopped.code == CODES[number]
    assert "Traceback" not in stopped.err
    assert f"lifted resume {shlex.quote(str(out))}" in stopped.out + stopped.err
    assert len((out / "history.jsonl").read_text().splitlines() if (out / "history.jsonl").exists() else []) < 4

    verified = call(capsys, "checkpoint", "verify", out)
    assert verified.code == 0 and "damaged" not in verified.out

    kept, newest = load_file(out / "model.safetensors"), max((out / "checkpoints").glob("step-*"))
    assert all(torch.equal(kept[name], value) for name, value in load_file(newest / "model.safetensors").items())

    resumed = call(capsys, "resume", out, "--quiet")
    assert resumed.code == 0, resumed.err
    require_same(out, undisturbed)


@pytest.mark.long
@pytest.mark.parametrize("number", list(CODES), ids=str)
@pytest.mark.parametrize("where", PLACES, ids=str)
def test_a_run_ends_within_seconds_of_a_signal(
    where: tuple[str, int, bool], number: signal.Signals, world: Path, warm: Warm
) -> None:
    """The promise is five seconds on an idle machine; four times that is asked for here, with the grace of a user."""
    place, at, hang = where
    child = warm.start(*training(world, world / f"soon-{place}-{at}-{number.name}"), pause=place, at=at, hang=hang)
    child.send(number)
    sent = time.monotonic()
    assert child.wait().code == CODES[number]
    assert time.monotonic() - sent < 20.0


def test_the_pauses_are_where_they_say(world: Path, warm: Warm) -> None:
    """Without a signal nothing stops: the tests above stop because of it."""
    out = world / "paused only"
    child = warm.start(*training(world, out), pause="save", at=20)
    wait_for(child.folder / "paused")
    (child.folder / "sent").write_text("1")
    assert child.wait().code == 0


def test_a_killed_run_continues_exactly(
    world: Path, warm: Warm, undisturbed: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = world / "killed"
    child = warm.start(*training(world, out), pause="save", at=20)
    child.send(signal.SIGKILL)
    assert child.wait().code == -signal.SIGKILL
    assert call(capsys, "checkpoint", "verify", out).code == 0
    assert call(capsys, "resume", out, "--quiet").code == 0
    require_same(out, undisturbed)


def test_a_second_interrupt_ends_the_program_at_once(
    world: Path, warm: Warm, undisturbed: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = world / "twice"
    child = warm.start(*training(world, out), pause="inner loop", at=50, hang=True, grace=LONG)
    child.send(signal.SIGINT)
    wait_for(child.folder / "received")
    os.kill(child.pid, signal.SIGINT)
    stopped = child.wait()
    assert stopped.code == 130
    assert "Traceback" not in stopped.err and "lifted resume" in stopped.err
    assert call(capsys, "resume", out, "--quiet").code == 0
    require_same(out, undisturbed)


def test_a_step_of_many_minutes_is_broken_off(world: Path, warm: Warm, capsys: pytest.CaptureFixture[str]) -> None:
    """A real inner loop, without a pause in it; the signal comes as the step begins."""
    out = world / "long"
    child = warm.start(*training(world, out), "--set", "inner_steps=100000000", pause="step", grace=0.5)
    child.send(signal.SIGTERM)
    assert child.wait().code == 143
    assert call(capsys, "checkpoint", "verify", out).code == 0


def test_a_signal_while_data_are_read_leaves_nothing(world: Path, warm: Warm) -> None:
    """Before there is anything to save."""
    slow, out = world / "slow.csv", world / "never"
    slow.write_text("1,0\n2,1\n")
    child = warm.start("train", "--data", slow, "--out", out, pause="data")
    child.send(signal.SIGINT)
    stopped = child.wait()
    assert stopped.code == 130 and "Traceback" not in stopped.err
    assert not out.exists()


@pytest.mark.parametrize("number", every(list(CODES), 2), ids=str)
def test_the_program_itself(
    number: signal.Signals, world: Path, undisturbed: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """`python -m lifted_bregman.cli`, stopped somewhere after its first epochs."""
    out = world / f"program-{number.name}"
    command = [*map(str, [*PROGRAM, *training(world, out)]), "--epochs", "1000000"]
    with subprocess.Popen(
        command, env=environment(), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        wait_for(out / "history.jsonl")
        process.send_signal(number)
        _, err = process.communicate(timeout=PATIENCE)
    assert process.returncode == CODES[number]
    assert "Traceback" not in err
    assert call(capsys, "checkpoint", "verify", out).code == 0
    expected = times_aside(undisturbed)
    assert times_aside(out)[:4] == expected[: len(times_aside(out))]
