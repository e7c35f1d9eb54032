"""`lifted doctor`: it finds nothing wrong here, it finds what was made wrong, and it fails in one sentence."""

from __future__ import annotations

from pathlib import Path

import pytest

from lifted_bregman.activations import Tanh
from lifted_bregman.cli import doctor
from lifted_bregman.data import _places
from lifted_bregman.training.checkpoints import Checkpoints, Snapshot
from tests.cli.program import call

Capture = pytest.CaptureFixture[str]


def test_doctor_finds_nothing_wrong_here(monkeypatch: pytest.MonkeyPatch, capsys: Capture) -> None:
    healthy = call(capsys, "doctor")
    assert healthy.code == 0 and not healthy.err
    for word in ("torch", "threads", "extra plot", "data mnist", "data digits", *(f"check {c}" for c in doctor.CHECKS)):
        assert f"\n{word} " in f"\n{healthy.out}"
    assert "WRONG" not in healthy.out


@pytest.mark.parametrize(
    ("attribute", "check"),
    [
        ("_phi_star", "identities"),
        ("compute_prox", "identities"),
        ("compute_map", "gradients"),
        ("compute_map", "training"),
    ],
)
def test_doctor_finds_wrong_mathematics(
    attribute: str, check: str, monkeypatch: pytest.MonkeyPatch, capsys: Capture
) -> None:
    right = getattr(Tanh, attribute)
    monkeypatch.setattr(Tanh, attribute, lambda self, *arguments: -right(self, *arguments))
    called = call(capsys, "doctor")
    assert called.code == 1 and "checks failed" in called.err
    assert any(line.startswith(f"check {check}") and "WRONG" in line for line in called.out.splitlines())


def test_doctor_finds_a_damaged_checkpoint(monkeypatch: pytest.MonkeyPatch, capsys: Capture) -> None:
    save = Checkpoints.save

    def save_on_a_bad_disk(self: Checkpoints, snapshot: Snapshot) -> Path:
        path = save(self, snapshot)
        content = bytearray((path / "model.safetensors").read_bytes())
        content[-1] ^= 1
        (path / "model.safetensors").write_bytes(bytes(content))
        return path

    monkeypatch.setattr(Checkpoints, "save", save_on_a_bad_disk)
    called = call(capsys, "doctor")
    assert called.code == 1 and "1 of 4 checks failed" in called.err
    assert any(line.startswith("check checkpoints") and "WRONG" in line for line in called.out.splitlines())


def test_an_error_that_should_not_happen_is_one_sentence(monkeypatch: pytest.MonkeyPatch, capsys: Capture) -> None:
    monkeypatch.setitem(doctor.CHECKS, "identities", lambda: "")
    monkeypatch.setattr(doctor, "environment", lambda: 1 / 0)
    called = call(capsys, "doctor")
    assert called.code == 1 and "ZeroDivisionError" in called.err and "--traceback" in called.err
    assert called.err.count("\n") == 1 and "Traceback" not in called.err


@pytest.fixture
def homeless(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A user whom the system does not know, as in a container with a number for a user."""

    def no_home() -> Path:
        raise RuntimeError("Could not determine home directory.")

    for name in ("HOME", "XDG_CACHE_HOME", "LIFTED_BREGMAN_DATA"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(Path, "home", no_home)
    monkeypatch.chdir(tmp_path)


def test_without_a_home_folder_what_needs_no_cache_works(homeless: None, capsys: Capture) -> None:
    called = call(capsys, "doctor")
    assert called.code == 0 and "none: there is no home folder" in called.out
    called = call(capsys, "data", "list")
    assert called.code == 0 and "digits" in called.out
    called = call(capsys, "train", "--data", "digits-200", "--hidden", 5, "--epochs", 1, "--quiet", "--out", "run")
    assert called.code == 0, called.err


def test_without_a_home_folder_what_must_be_stored_is_refused(
    homeless: None, monkeypatch: pytest.MonkeyPatch, capsys: Capture
) -> None:
    monkeypatch.setattr(_places, "SYSTEM_FOLDERS", ())
    called = call(capsys, "data", "get", "mnist")
    assert called.code == 3 and "LIFTED_BREGMAN_DATA" in called.err
