"""What the command line says of itself: the help of every command, a flag for every setting, the version."""

from __future__ import annotations

from importlib.metadata import version

import pytest

from lifted_bregman.experiments.settings import names
from tests.cli.program import call

Capture = pytest.CaptureFixture[str]
COMMANDS = ["train", "resume", "predict", "encode", "reconstruct", "checkpoint verify", "doctor", "data list", "report"]
COMMANDS += ["reproduce"]


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_has_help_with_an_example(command: str, capsys: Capture) -> None:
    called = call(capsys, *command.split(), "--help")
    assert called.code == 0 and "Usage:" in called.out and "\x1b" not in called.out
    if command not in ("doctor", "data list"):
        examples = {"reproduce": ("table1", "all")}.get(command, ("runs/", "--"))
        assert any(f"lifted {command} {example}" in called.out for example in examples)


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
