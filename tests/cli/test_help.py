"""What the command line says of itself: the help of every command, a flag for every setting, the version."""

from __future__ import annotations

import runpy
import subprocess
import sys
from importlib.metadata import EntryPoint, version
from pathlib import Path

import pytest

from lifted_bregman.cli import checkpoint, data
from lifted_bregman.cli._app import make_app
from lifted_bregman.cli.commands import installed
from lifted_bregman.experiments.settings import SETTING_NAMES
from lifted_bregman_lab.commands import bench
from tests.cli.program import call

Capture = pytest.CaptureFixture[str]
HERE = Path(__file__).parent
WITH_GROUPS = {"data": data.data_app, "checkpoint": checkpoint.checkpoint_app, "bench": bench.app}
COMMANDS = [*installed()]
COMMANDS += [f"{group} {name}" for group, app in WITH_GROUPS.items() for name in app if not name.startswith("-")]


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_has_help_with_an_example(command: str, capsys: Capture) -> None:
    """An example is a line that begins with the command; it takes what the command takes."""
    called = call(capsys, *command.split(), "--help")
    assert called.code == 0 and called.out.startswith(f"Usage: lifted {command}") and "\x1b" not in called.out
    examples = [line.split() for line in called.out.splitlines() if line.startswith(f"  lifted {command}")]
    assert examples
    for _, *example in examples:
        app = make_app(installed(), example[0])
        app.parse_args(example, exit_on_error=False, print_error=False)  # raises where a flag does not exist


@pytest.mark.parametrize("command", WITH_GROUPS)
def test_a_group_without_a_command_shows_its_help_as_an_error(command: str, capsys: Capture) -> None:
    called = call(capsys, command)
    assert called.code == 2 and f"Usage: lifted {command} COMMAND" in called.err and not called.out


def test_the_last_of_several_values_counts(tmp_path: Path, capsys: Capture) -> None:
    called = call(capsys, "train", "--data", "digits", "--epochs", "five", "--epochs", "0", "--out", tmp_path / "run")
    assert called.code == 2 and "epochs is 0" in called.err


@pytest.mark.parametrize("given", ["5.5", "1e3", "many"])
def test_a_number_that_is_not_whole_is_not_rounded(given: str, tmp_path: Path, capsys: Capture) -> None:
    called = call(capsys, "invert", tmp_path, "outputs.npy", "--steps", given)
    assert called.code == 2 and f"--steps: '{given}' is no whole number" in called.err
    assert called.err.count("\n") == 1


def test_an_argument_too_many_is_named(capsys: Capture) -> None:
    called = call(capsys, "resume", "runs/a", "runs/b")
    assert called.code == 2 and "'runs/b' is one argument too many; see 'lifted resume --help'." in called.err


def test_the_file_is_named_where_its_value_is_wrong(tmp_path: Path, capsys: Capture) -> None:
    file = tmp_path / "settings.toml"
    file.write_text('data = "digits"  # a comment\nepochs = 0\n')
    assert f"{file}: epochs is 0" in call(capsys, "train", "--config", file).err
    said = call(capsys, "train", "--config", file, "--epochs", -1).err
    assert "epochs is -1" in said and str(file) not in said


@pytest.mark.parametrize("command", ["--help", "trian --data digits"])
def test_showing_the_commands_or_refusing_one_imports_neither_torch_nor_a_command(command: str) -> None:
    script = f"import sys; from lifted_bregman.cli import main; main({command.split()}); print(*sys.modules)"
    run = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=120, check=True)
    loaded = run.stdout.split()
    assert "lifted_bregman.cli" in loaded and "torch" not in loaded and "lifted_bregman.cli.train" not in loaded


def test_every_word_of_the_earlier_version_is_still_taken() -> None:
    earlier = (HERE / "command_words.txt").read_text().splitlines()
    present = runpy.run_path(str(HERE.parents[1] / "scripts" / "command_words.py"))["all_words"]()
    assert len(earlier) > 300 and set(earlier) - set(present) == set()


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
    for name in SETTING_NAMES:
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
