"""`lifted detect`: how abnormal samples are for a trained network."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from lifted_bregman.cli import terminal
from lifted_bregman.cli.apply import open_trained, store_array
from lifted_bregman.cli.parameters import Device, Parameter, RunPath, SampleFile, Whole
from lifted_bregman.experiments.files import require_array_file


def detect_command(
    run: RunPath,
    samples: SampleFile,
    /,
    *,
    energy: Annotated[
        str, Parameter(help="Where an autoencoder's energies are taken: forward or minimum.")
    ] = "forward",
    steps: Annotated[Whole, Parameter(help="Steps towards the minimum.")] = 20,
    contamination: Annotated[
        float, Parameter(help="The part of the training samples beyond the threshold, in (0, 0.5].")
    ] = 0.1,
    out: Annotated[
        Path | None, Parameter(help="A .npy or .csv file for the scores.  [default: FILE-scores.npy]")
    ] = None,
    picture: Annotated[
        Path | None, Parameter(help="A .png, .pdf or .svg file that explains the highest scores.")
    ] = None,
    device: Device = "cpu",
) -> None:
    """Write a score for each sample, higher for more abnormal ones, by the energy of a trained network.

    lifted detect runs/ae images.npy --out scores.npy --picture highest.png

    The score of an autoencoder is the energy of its layers, relative to that of the run's training samples.  The score
    of a classifier is its free energy.  The samples above the threshold are counted.
    """
    from lifted_bregman._arguments import require_picture
    from lifted_bregman.errors import SettingError
    from lifted_bregman.tasks.detect_run import detect_run

    out = out or Path(f"{samples.stem}-scores.npy")
    require_array_file(out)
    if picture is not None:
        require_picture(picture)
    trained = open_trained(run, device)
    if picture is not None and not trained.stored.settings.autoencoder:
        raise SettingError(f"--picture explains the layers of an autoencoder, and {run} is none: leave it out.")
    found = detect_run(trained, samples, energy, steps, contamination)  # type: ignore[arg-type]  # checked there
    store_array(out, found.scores, "scores")
    terminal.show_rows(
        {
            "abnormal": f"{int(found.abnormal.sum())} of {len(found.scores)} samples, above {found.threshold:.6g}",
            "highest": ", ".join(f"sample {i}: {found.scores[i]:.6g}" for i in found.scores.argsort()[::-1][:5]),
        }
    )
    if picture is not None and found.explanation is not None:
        found.explanation.plot(picture)
        terminal.output().print(f"{picture}: what the highest scores come from")
