"""`lifted predict`, `lifted encode` and `lifted reconstruct`: a trained network applied to new data."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

from lifted_bregman.cli import terminal
from lifted_bregman.cli.parameters import Device, Parameter, RunPath, SampleFile
from lifted_bregman.experiments import TrainedRun
from lifted_bregman.experiments.files import require_array_file, write_array


def predict_command(
    run: RunPath,
    samples: SampleFile,
    /,
    *,
    out: Annotated[
        Path | None,
        Parameter(help="A .npy or .csv file for the classes, numbered from 0, or numbers; else they are shown."),
    ] = None,
    device: Device = "cpu",
) -> None:
    """Show the class, or the number, that a trained network gives to each sample: one line each.

    lifted predict runs/a images.npy
    lifted predict runs/a images.npy --out predictions.npy

    Whole numbers are taken as raw pixels and prepared as in training; zeros and ones alone, and decimal numbers, are
    taken as pixels from 0 to 1.
    """
    if out is not None:
        require_array_file(out)
    trained = open_trained(run, device)
    found = trained.predict(samples)
    if out is not None:
        store_array(out, found, "predictions")
        return
    console = terminal.output()
    for value in found.tolist():
        if trained.classes is not None:
            console.print(trained.classes[value])
        else:
            console.print(" ".join(f"{number:.6g}" for number in (value if isinstance(value, list) else [value])))


def encode_command(
    run: RunPath,
    samples: SampleFile,
    /,
    *,
    out: Annotated[Path | None, Parameter(help="A .npy or .csv file for the codes.  [default: FILE-codes.npy]")] = None,
    device: Device = "cpu",
) -> None:
    """Write the code that an autoencoder gives to each sample, its middle hidden layer.

    lifted encode runs/sparse images.npy --out codes.npy
    """
    out = out or Path(f"{samples.stem}-codes.npy")
    require_array_file(out)
    codes = open_trained(run, device).encode(samples)
    store_array(out, codes, "codes", f", {100 * float((codes == 0).mean()):.1f} % zeros")


def reconstruct_command(
    run: RunPath,
    samples: SampleFile,
    /,
    *,
    out: Annotated[
        Path | None,
        Parameter(help="A .npy or .csv file for the reconstructions.  [default: FILE-reconstructed.npy]"),
    ] = None,
    device: Device = "cpu",
) -> None:
    """Write an autoencoder's reconstruction of each sample, in the shape and on the scale of the inputs.

    lifted reconstruct runs/denoiser noisy.npy --out clean.npy

    A .csv file has one line for each sample.
    """
    out = out or Path(f"{samples.stem}-reconstructed.npy")
    require_array_file(out)
    store_array(out, open_trained(run, device).reconstruct(samples), "reconstructions")


def open_trained(run: Path, device: str) -> TrainedRun:
    """The trained network of a run, with warnings about what could not be verified."""
    trained = TrainedRun(run, device)
    if trained.notice is not None:
        terminal.say("warning", trained.notice, "bold yellow")
    if trained.stored.ending is None:
        terminal.say("note", f"{run} has not ended; the parameters are those of its newest checkpoint.", "bold yellow")
    return trained


def store_array(path: Path, array: Any, what: str, remark: str = "") -> None:
    """Writes an array and prints its name, shape and dtype."""
    write_array(path, array)
    terminal.output().print(f"{path}: {what} of shape {tuple(array.shape)}, {array.dtype}{remark}")
