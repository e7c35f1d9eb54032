"""`lifted checkpoint`: verifies the checkpoints of a run and the files that its predictions depend on."""

from __future__ import annotations

import datetime

from cyclopts import App

from lifted_bregman.cli import terminal
from lifted_bregman.cli.exit_codes import ExitCode
from lifted_bregman.cli.parameters import RunPath
from lifted_bregman.errors import CheckpointError
from lifted_bregman.experiments import StoredRun
from lifted_bregman.experiments.runs import DATA, SETTINGS
from lifted_bregman.training import RunFolder
from lifted_bregman.training.checkpoints import verify_checkpoint

checkpoint_app = App(name="checkpoint", help="Checkpoints of a run: verify.\n\nlifted checkpoint verify runs/a")


@checkpoint_app.command(name="verify")
def verify_run(run: RunPath, /) -> int:
    """Check every byte of every checkpoint of a run, of its model, settings and record; exit code 4 if one is damaged.

    lifted checkpoint verify runs/a
    """
    folder = RunFolder(run)
    steps = folder.checkpoints.steps()
    if not steps:
        raise CheckpointError(
            f"{run} has no checkpoints: name the folder of a run, as given to 'lifted train' as --out."
        )
    console, sound, damaged = terminal.output(), {}, {}
    for step in steps:
        path = folder.checkpoints.path(step)
        try:
            sound[path] = verify_checkpoint(path)
        except CheckpointError as error:
            damaged[path] = error
    best = max((path for path, found in sound.items() if found.best), default=None)  # it was better than those before
    for path, found in sound.items():
        written = datetime.datetime.fromtimestamp(path.stat().st_mtime).isoformat(" ", "seconds")
        size = sum(file.size for file in found.files.values())
        console.print(f"{path.name}  sound  {size:,} bytes, {written}{', the best' if path == best else ''}")
    for path, reason in damaged.items():
        console.print(f"{path.name}  damaged  {reason}")
    if damaged:
        remedy = "the newest sound one is taken when it is resumed" if len(damaged) < len(steps) else "start it again"
        terminal.say("lifted", f"{len(damaged)} of {len(steps)} checkpoints of {run} are damaged: {remedy}.")
        return ExitCode.CHECKPOINT
    if folder.has_ended:
        folder.model_parameters()
        console.print("model.safetensors  sound")
    if (run / SETTINGS).exists():
        notice = StoredRun.open(run).notice
        if notice is None:
            console.print(f"{SETTINGS}, {DATA}  sound")
        else:
            terminal.say("warning", notice, "bold yellow")
    return ExitCode.OK
