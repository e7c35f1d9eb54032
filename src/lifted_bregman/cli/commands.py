"""The commands of `lifted`.  The module of a command is imported when the command is called.

A package adds commands through the entry-point group `lifted_bregman.commands`: an entry's name is the command's, and
it loads a `Command`.  One with the name of a command of the library replaces it.
"""

from __future__ import annotations

from dataclasses import dataclass
from importlib import import_module
from importlib.metadata import entry_points
from typing import Any

from lifted_bregman.errors import SettingError

ENTRY_POINTS = "lifted_bregman.commands"


@dataclass(frozen=True)
class Command:
    """A command that is not imported yet.

    Args:
        target: "module:name" of a function, or of a `cyclopts.App` with subcommands.
        help: the line about it in `lifted --help`.
    """

    target: str
    help: str

    def load(self) -> Any:
        """The function or the App."""
        module, _, name = self.target.partition(":")
        return getattr(import_module(module), name)


LIBRARY = {
    "demo": Command("lifted_bregman.cli.demo:demo_command", "Lifted training against SGD and Adam, in about a minute."),
    "train": Command("lifted_bregman.cli.train:train_command", "Train a network, and keep the run in a folder."),
    "resume": Command("lifted_bregman.cli.train:resume_command", "Continue a run as if it had never stopped."),
    "predict": Command("lifted_bregman.cli.apply:predict_command", "Show the class or number of each sample."),
    "encode": Command("lifted_bregman.cli.apply:encode_command", "Write the code of each sample."),
    "reconstruct": Command(
        "lifted_bregman.cli.apply:reconstruct_command", "Write each sample as an autoencoder returns it."
    ),
    "invert": Command("lifted_bregman.cli.invert:invert_command", "Write inputs that have given outputs."),
    "detect": Command("lifted_bregman.cli.detect:detect_command", "Write how abnormal each sample is."),
    "data": Command("lifted_bregman.cli.data:data_app", "Data sets by name: list, get, verify."),
    "report": Command("lifted_bregman.cli.report:report_command", "Make the page of a stored run, without training."),
    "checkpoint": Command("lifted_bregman.cli.checkpoint:checkpoint_app", "Checkpoints of a run: verify."),
    "doctor": Command(
        "lifted_bregman.cli.doctor:doctor_command", "Show versions and data sets, check the mathematics."
    ),
}
ELSEWHERE = {"bench": "lifted-bregman-lab", "reproduce": "lifted-bregman-lab"}
"""Commands that another distribution brings, and its name."""


def installed() -> dict[str, Command]:
    """The library's commands and those of installed packages."""
    found = dict(LIBRARY)
    for entry in entry_points(group=ENTRY_POINTS):
        try:
            found[entry.name] = entry.load()
        except (ImportError, AttributeError) as error:
            raise SettingError(
                f"the command '{entry.name}' ({entry.value}) cannot be loaded: {error}; install or remove the package "
                "that brings it."
            ) from error
    return found
