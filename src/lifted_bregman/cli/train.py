"""`lifted train` and `lifted resume`."""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from itertools import count
from pathlib import Path
from typing import Annotated, Any

from lifted_bregman import experiments
from lifted_bregman._text import from_text
from lifted_bregman.cli import terminal
from lifted_bregman.cli._ending import announced_stop, print_ending
from lifted_bregman.cli._flags import entries_of, setting_flags
from lifted_bregman.cli._workers import in_workers, needs_workers, takes_part
from lifted_bregman.cli.exit_codes import ExitCode
from lifted_bregman.cli.parameters import Parameter, RunPath
from lifted_bregman.errors import SettingError
from lifted_bregman.experiments import Settings, StoredRun, from_entries, load_data, read_entries
from lifted_bregman.experiments.runs import prepared, require_device, started_again
from lifted_bregman.experiments.settings_file import solver_table
from lifted_bregman.solvers import Outcome

_TRAIN = setting_flags()
_RESUME = setting_flags(
    {
        "epochs": "Extend the run to so many epochs in all.",
        "time_limit": "Extend the run to so many seconds in all, if it has a time limit.",
        "parallel": "Other processes than before, such as data=4; data=1 for one.",
        "device": "Another device than before. [default: the one it had]",
    }
)
_Quiet = Annotated[bool, Parameter(help="Show no progress.", show_default=False)]
_Arguments = Annotated[Sequence[str], Parameter(parse=False)]  # the command line itself, for workers


def train_command(
    *,
    config: Annotated[
        Path | None, Parameter(help="A TOML file of settings, which flags override.", metavar="FILE")
    ] = None,
    out: Annotated[
        Path | None,
        Parameter(help="The folder of the run. [default: runs/DATA-1, or the next number]", metavar="FOLDER"),
    ] = None,
    settings: Annotated[_TRAIN, Parameter(name="*")] = None,  # type: ignore[valid-type]
    set_: Annotated[
        list[str] | None,
        Parameter(
            name="--set", help="A setting of the solver, such as inner_steps=3; may be repeated.", metavar="NAME=VALUE"
        ),
    ] = None,
    quiet: _Quiet = False,
    arguments: _Arguments,
) -> int:
    """Train a network and keep everything about the run in a folder.

    lifted train --data digits --out runs/a
    lifted train --task autoencode --data mnist-1k --hidden 784,784,784 --batch-size 20 --out runs/sparse
    lifted train --data fashion-mnist --hidden 784,64,64 --solver implicit-sgd --set inner_steps=3 --epochs 5
    lifted train --task regress --data houses.csv --target price --patience 5
    lifted train --config runs/a/settings.toml --seed 1 --out runs/b
    lifted train --data fashion-mnist --parallel data=2 --out runs/c

    Ctrl-C stops after the present step with everything saved; 'lifted resume' continues.
    """
    flags: dict[str, str] = settings or {}
    chosen = _merged(config, entries_of(flags), set_ or [])
    takes_part(chosen, named=out is not None)
    folder = out if out is not None else _next_folder(chosen)
    with terminal.downloads() as progress:
        chosen, samples = prepared(chosen, folder, progress)
    if needs_workers(chosen):
        return in_workers([*arguments, "--out", str(folder)], chosen, samples)
    with announced_stop(folder):
        result = experiments.train(chosen, folder, terminal.messages(quiet), samples)
    return print_ending(result, folder, chosen, samples)


def resume_command(
    run: RunPath,
    /,
    *,
    settings: Annotated[_RESUME, Parameter(name="*")] = None,  # type: ignore[valid-type]
    quiet: _Quiet = False,
    arguments: _Arguments,
) -> int:
    """Continue a run from its last checkpoint.

    lifted resume runs/a
    lifted resume runs/a --epochs 20
    """
    extended = entries_of(settings or {})
    stored = StoredRun.open(run)
    if "parallel" in extended:
        stored = stored.extended(parallel=extended.pop("parallel"))
    takes_part(stored.settings, named=True)
    if (
        stored.outcome is not None
        and not extended.keys() & {"epochs", "time_limit"}
        and not started_again(stored.settings)
    ):
        assert stored.ending is not None
        console = terminal.output()
        console.print(f"{run} has ended. {stored.ending.get('message')}")
        if stored.outcome is Outcome.DIVERGED:
            return ExitCode.DIVERGED
        console.print(
            f"'lifted resume {shlex.quote(str(run))} --epochs N' extends it to N epochs; it has {stored.epochs_done}."
        )
        return ExitCode.OK
    stored = stored.extended(**extended)
    require_device(stored.settings)
    with terminal.downloads() as progress:
        samples = load_data(stored.settings, progress)
    if needs_workers(stored.settings):
        return in_workers(arguments, stored.settings, samples)
    if stored.notice is not None:
        terminal.say("warning", stored.notice, "bold yellow")
    with announced_stop(run):
        result = experiments.resume(stored, terminal.messages(quiet), samples)
    return print_ending(result, run, stored.settings, samples)


def _merged(config: Path | None, flags: Mapping[str, Any], assignments: list[str]) -> Settings:
    """The settings of a file, overridden by those of the flags."""
    file = {} if config is None else read_entries(config)
    try:
        # Settings of the solver in the file belong to the solver that the file names.
        table = solver_table(file)
        if "solver" in flags and flags["solver"] != table.get("name"):
            table = {"name": flags["solver"]}
        return from_entries({**file, **flags, "solver": table | dict(map(_assignment, assignments))})
    except SettingError as error:
        wrong = str(error).partition(" ")[0]
        if wrong in file and wrong not in flags:
            raise SettingError(f"{config}: {error}") from error
        raise


def _assignment(text: str) -> tuple[str, Any]:
    name, equals, value = text.partition("=")
    if not equals or not name or name == "name":
        raise SettingError(f"--set was given '{text}'; write it as NAME=VALUE, such as --set inner_steps=3.")
    if "," in value:
        return name, [from_text(part) for part in value.split(",")]
    return name, from_text(value)


def _next_folder(settings: Settings) -> Path:
    name = Path(settings.data).stem if settings.own_file else settings.data
    return next(folder for number in count(1) if not (folder := Path("runs", f"{name}-{number}")).exists())
