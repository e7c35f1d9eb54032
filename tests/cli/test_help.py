"""What the command line says of itself: the help of every command, a flag for every setting, the version."""

from __future__ import annotations

import subprocess
import sys
from importlib.metadata import EntryPoint, version

import pytest

from lifted_bregman.experiments.settings import names
from tests.cli.program import call

Capture = pytest.CaptureFixture[str]
COMMANDS = [
    "train",
    "resume",
    "predict",
    "encode",
    "reconstruct",
    "invert",
    "checkpoint verify",
    "doctor",
    "data list",
    "report",
]
COMMANDS += ["reproduce"]


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_has_help_with_an_example(command: str, capsys: Capture) -> None:
    called = call(capsys, *command.split(), "--help")
    assert called.code == 0 and "Usage:" in called.out and "\x1b" not in called.out
    if command not in ("doctor", "data list"):
        examples = {"reproduce": ("table1", "all")}.get(command, ("runs/", "--"))
        assert any(f"lifted {command} {example}" in called.out for example in examples)


def test_showing_the_commands_imports_neither_torch_nor_a_command() -> None:
    script = "import sys; from lifted_bregman.cli import main; main(['--help']); print(*sys.modules)"
    run = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=120, check=True)
    loaded = run.stdout.split()
    assert "lifted_bregman.cli" in loaded and "torch" not in loaded and "lifted_bregman.cli.train" not in loaded


def test_commands_of_the_lab_say_how_to_get_them_where_it_is_missing(
    monkeypatch: pytest.MonkeyPatch, capsys: Capture
) -> None:
    monkeypatch.setattr("lifted_bregman.cli.commands.entry_points", lambda group: [])
    for command in ("bench", "reproduce"):
        called = call(capsys, command, "--help")
        assert called.code == 2 and f"'lifted {command}' is part of lifted-bregman-lab" in called.err
        assert "pip install ./lab" in called.err
    assert "bench" not in call(capsys, "--help").out


def test_a_command_of_a_package_that_cannot_be_imported_is_named(
    monkeypatch: pytest.MonkeyPatch, capsys: Capture
) -> None:
    broken = EntryPoint("bench", "no_such_package:BENCH", "lifted_bregman.commands")
    monkeypatch.setattr("lifted_bregman.cli.commands.entry_points", lambda group: [broken])
    called = call(capsys, "--help")
    assert called.code == 2 and "'bench' (no_such_package:BENCH) cannot be loaded" in called.err


def test_every_setting_has_a_flag(capsys: Capture) -> None:
    shown = call(capsys, "train", "--help").out
    for name in names():
        assert f"--{name.replace('_', '-')} " in shown, name


def test_the_top_of_the_command_line(capsys: Capture) -> None:
    assert call(capsys, "--version").out == f"lifted-bregman {version('lifted-bregman')}\n"
    listed = call(capsys, "--help").out
    for command in (
        "train",
        "resume",
        "predict",
        "encode",
        "reconstruct",
        "data",
        "report",
        "demo",
        "checkpoint",
        "doctor",
    ):
        assert f"\n  {command} " in listed
    alone = call(capsys)
    assert alone.code == 2 and "Commands:" in alone.err and not alone.out
