"""`lifted train` and `lifted resume`."""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from itertools import count
from pathlib import Path
from typing import Annotated, Any

import typer

from lifted_bregman import experiments
from lifted_bregman._text import from_text
from lifted_bregman.cli import _console
from lifted_bregman.cli._ending import guarded, report
from lifted_bregman.cli._errors import ExitCode
from lifted_bregman.cli._workers import in_workers, needs_workers, takes_part
from lifted_bregman.distributed import Parallel
from lifted_bregman.errors import SettingError
from lifted_bregman.experiments import Settings, StoredRun, from_entries, load_data, read_entries
from lifted_bregman.experiments.runs import require_device, require_free, started_again
from lifted_bregman.experiments.settings import BATCH_SIZE, CODE, HIDDEN, NOISE, names
from lifted_bregman.experiments.settings_file import check_entries, from_flag
from lifted_bregman.experiments.solver_names import default_name
from lifted_bregman.solvers import Outcome

_HIDDEN = "{}; for autoencoders {}".format(*(",".join(map(str, HIDDEN[task])) for task in ("classify", "autoencode")))


def _flag(help: str, *names: str, default: str | None = None, metavar: str | None = None) -> Any:
    """An option; its default is written in `Settings` and said in the help.

    Numbers are read as text, for `Settings` says better than the parser what is wrong with one.
    """
    return typer.Option(*names, help=help if default is None else f"{help} [default: {default}]", metavar=metavar)


def _default(name: str) -> str:
    value = getattr(Settings, name)
    return ",".join(map(str, value)) if isinstance(value, tuple) else str(value)


def train(
    context: typer.Context,
    config: Annotated[
        Path | None, _flag("A TOML file of settings, which flags override.", "--config", metavar="FILE")
    ] = None,
    out: Annotated[
        Path | None, _flag("The folder of the run.", default="runs/DATA-1, or the next number", metavar="FOLDER")
    ] = None,
    task: Annotated[
        str | None, _flag("classify, regress, autoencode or denoise.", default=_default("task"), metavar="WORD")
    ] = None,
    data: Annotated[
        str | None,
        _flag(
            "A set's name (see 'lifted data list'; 'mnist-1k' is a part), diabetes, or a .csv, .npy, .npz, .idx file.",
            metavar="NAME",
        ),
    ] = None,
    target: Annotated[
        str | None,
        _flag("For a file: the column of the targets (name, or number from 1), or the file with them.", metavar="NAME"),
    ] = None,
    data_dir: Annotated[
        str | None, _flag("A folder that holds data sets.", default="the cache", metavar="FOLDER")
    ] = None,
    prepare: Annotated[
        str | None,
        _flag(
            "none, centre, centre-together or standardise.",
            default="centre; to classify or regress tables, standardise",
            metavar="WORD",
        ),
    ] = None,
    noise: Annotated[
        str | None, _flag("The noise to be removed, for denoise.", default=f"{NOISE}", metavar="NUMBER")
    ] = None,
    validation: Annotated[
        str | None,
        _flag(
            "test (the set's test part, or a fifth of a file), none, or a fraction.",
            default=_default("validation"),
            metavar="WORD",
        ),
    ] = None,
    hidden: Annotated[
        str | None,
        _flag("Widths of the hidden layers.", default=_HIDDEN, metavar="NUMBERS"),
    ] = None,
    activation: Annotated[
        str | None,
        _flag(
            "One for all hidden layers or one for each: relu, tanh, soft-threshold:0.09, ...",
            default=_default("activation"),
            metavar="NAMES",
        ),
    ] = None,
    initialisation: Annotated[
        str | None, _flag("glorot, or torch for that of nn.Linear.", default="glorot", metavar="WORD")
    ] = None,
    loss: Annotated[
        str | None,
        _flag(
            "cross-entropy or squared-error.", default="cross-entropy to classify, else squared-error", metavar="WORD"
        ),
    ] = None,
    code_threshold: Annotated[
        str | None,
        _flag("The threshold of an autoencoder's code, 0 for a linear one.", default=f"{CODE}", metavar="NUMBER"),
    ] = None,
    code_penalty: Annotated[
        str | None, _flag("The l1 penalty on the code.", default=f"{CODE}", metavar="NUMBER")
    ] = None,
    weights: Annotated[
        str | None, _flag("Weights of the layers' terms in the energy.", default="1", metavar="NUMBERS")
    ] = None,
    solver: Annotated[
        str | None,
        _flag(
            "gram-sweep, implicit-sgd, adabreg, proximal-gradient, admm, sgd, adam, ...",
            default=f"{default_name()}; {default_name(Parallel(layer=2))} where processes share the layers",
            metavar="NAME",
        ),
    ] = None,
    set_: Annotated[
        list[str] | None,
        _flag("A setting of the solver, such as inner_steps=3; may be repeated.", "--set", metavar="NAME=VALUE"),
    ] = None,
    epochs: Annotated[str | None, _flag("Passes over the data.", default=_default("epochs"), metavar="NUMBER")] = None,
    batch_size: Annotated[
        str | None,
        _flag(
            "Samples per step.", default=f"{BATCH_SIZE}; solvers that take the whole set have none", metavar="NUMBER"
        ),
    ] = None,
    seed: Annotated[
        str | None, _flag("Fixes everything that is random.", default=_default("seed"), metavar="NUMBER")
    ] = None,
    dtype: Annotated[str | None, _flag("float32 or float64.", default=_default("dtype"), metavar="WORD")] = None,
    tolerance: Annotated[
        str | None, _flag("Stop when every block's certificate is at most this.", metavar="NUMBER")
    ] = None,
    record_every: Annotated[
        str | None, _flag("Epochs between rows of the history.", default=_default("record_every"), metavar="NUMBER")
    ] = None,
    patience: Annotated[
        str | None, _flag("Stop after so many rows without a better validation, and keep the best.", metavar="NUMBER")
    ] = None,
    time_limit: Annotated[str | None, _flag("Stop after so many seconds in steps.", metavar="NUMBER")] = None,
    checkpoint_epochs: Annotated[
        str | None, _flag("Epochs between checkpoints.", default=_default("checkpoint_epochs"), metavar="NUMBER")
    ] = None,
    checkpoint_steps: Annotated[str | None, _flag("Also a checkpoint after so many steps.", metavar="NUMBER")] = None,
    checkpoint_seconds: Annotated[
        str | None, _flag("Also a checkpoint after so many seconds.", metavar="NUMBER")
    ] = None,
    threads: Annotated[
        str | None, _flag("Threads of torch.", default="as many as torch takes", metavar="NUMBER")
    ] = None,
    device: Annotated[
        str | None,
        _flag("Where it is computed, such as cpu, cuda or cuda:1.", default="cpu", metavar="NAME"),
    ] = None,
    parallel: Annotated[
        str | None,
        _flag("Processes that share the run, such as data=2; torchrun and SLURM may start them.", metavar="DEGREES"),
    ] = None,
    quiet: Annotated[bool, _flag("Show no progress.", "--quiet")] = False,
) -> int:
    """Train a network and keep everything about the run in a folder.

    \b
    lifted train --data digits --out runs/a
    lifted train --task autoencode --data mnist-1k --hidden 784,784,784 --batch-size 20 --out runs/sparse
    lifted train --data fashion-mnist --hidden 784,64,64 --solver implicit-sgd --set inner_steps=3 --epochs 5
    lifted train --task regress --data houses.csv --target price --patience 5
    lifted train --config runs/a/settings.toml --seed 1 --out runs/b
    lifted train --data fashion-mnist --parallel data=2 --out runs/c

    Ctrl-C stops after the present step with everything saved; 'lifted resume' continues.
    """
    given = {name: from_flag(name, context.params[name]) for name in names() if context.params.get(name) is not None}
    settings = _merged(read_entries(config) if config is not None else {}, given, set_ or [], config)
    require_device(settings)
    takes_part(settings, named=out is not None)
    folder = out if out is not None else _next_folder(settings)
    if not started_again(settings):
        require_free(folder)
    settings = settings.resolved()
    with _console.downloads() as progress:
        samples = load_data(settings, progress)
    if needs_workers(settings):
        return in_workers([*context.obj, "--out", str(folder)], settings, samples)
    result = guarded(folder, lambda: experiments.train(settings, folder, _console.messages(quiet), samples))
    return report(result, folder, settings, samples)


def resume(
    context: typer.Context,
    run: Annotated[Path, typer.Argument(metavar="RUN", help="The folder of the run.")],
    epochs: Annotated[str | None, _flag("Extend the run to so many epochs in all.", metavar="NUMBER")] = None,
    time_limit: Annotated[
        str | None, _flag("Extend the run to so many seconds in all, if it has a time limit.", metavar="NUMBER")
    ] = None,
    parallel: Annotated[
        str | None, _flag("Other processes than before, such as data=4; data=1 for one.", metavar="DEGREES")
    ] = None,
    device: Annotated[
        str | None, _flag("Another device than before.", default="the one it had", metavar="NAME")
    ] = None,
    quiet: Annotated[bool, _flag("Show no progress.", "--quiet")] = False,
) -> int:
    """Continue a run as if it had never stopped.

    \b
    lifted resume runs/a
    lifted resume runs/a --epochs 20
    """
    stored = StoredRun.open(run)
    if parallel is not None:
        stored = stored.extended(parallel=from_flag("parallel", parallel))
    takes_part(stored.settings, named=True)
    if stored.outcome is not None and epochs is None and time_limit is None and not started_again(stored.settings):
        assert stored.ending is not None
        console = _console.output()
        console.print(f"{run} has ended. {stored.ending.get('message')}")
        if stored.outcome is Outcome.DIVERGED:
            return ExitCode.DIVERGED
        console.print(
            f"'lifted resume {shlex.quote(str(run))} --epochs N' extends it to N epochs; it has {stored.epochs_done}."
        )
        return ExitCode.OK
    extended = {"epochs": epochs, "time_limit": time_limit, "device": device}
    stored = stored.extended(**{name: from_flag(name, text) for name, text in extended.items() if text is not None})
    require_device(stored.settings)
    with _console.downloads() as progress:
        samples = load_data(stored.settings, progress)
    if needs_workers(stored.settings):
        return in_workers(context.obj, stored.settings, samples)
    if stored.notice is not None:
        _console.say("warning", stored.notice, "bold yellow")
    result = guarded(run, lambda: experiments.resume(stored, _console.messages(quiet), samples))
    return report(result, run, stored.settings, samples)


def _merged(file: Mapping[str, Any], given: Mapping[str, Any], assignments: list[str], config: Path | None) -> Settings:
    """The settings of the file with those of the flags before them."""
    try:
        check_entries(file)
    except SettingError as error:
        raise SettingError(f"{config}: {error}") from error
    entries = {**file, **{name: value for name, value in given.items() if name != "solver"}}
    table = file.get("solver", {})
    table = dict(table) if isinstance(table, Mapping) else {"name": table}
    if "solver" in given and given["solver"] != table.get("name"):
        table = {"name": given["solver"]}  # settings of another solver mean nothing to this one
    entries["solver"] = table | dict(map(_assignment, assignments))
    return from_entries(entries)


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
