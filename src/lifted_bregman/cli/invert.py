"""`lifted invert`: inputs of a trained network whose outputs are given."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from lifted_bregman.cli import terminal
from lifted_bregman.cli.apply import open_trained, store_array
from lifted_bregman.cli.parameters import Device, Parameter, RunPath, Whole, argument
from lifted_bregman.experiments.files import require_array_file


def invert_command(
    run: RunPath,
    outputs: Annotated[Path, argument("The outputs, one for each sample: a .npy, .npz or .csv file.", "OUTPUTS")],
    /,
    *,
    penalty: Annotated[
        list[str] | None,
        Parameter(
            metavar="SPEC",
            help="tv:WEIGHT, l1:WEIGHT, squared-l2:WEIGHT, box:LOW:HIGH or non-negative; repeat it for a sum.",
        ),
    ] = None,
    steps: Annotated[Whole, Parameter(help="The most steps that are taken.")] = 2000,
    tolerance: Annotated[float, Parameter(help="Where to stop.")] = 1e-6,
    out: Annotated[
        Path | None, Parameter(help="A .npy or .csv file for the inputs.  [default: OUTPUTS-inverted.npy]")
    ] = None,
    picture: Annotated[Path | None, Parameter(help="A .png, .pdf or .svg file for a picture of them.")] = None,
    device: Device = "cpu",
) -> None:
    """Write inputs whose outputs are those given, or close to them, for a trained network.

    lifted invert runs/a outputs.npy --penalty tv:0.015 --out inverted.npy
    lifted invert runs/a outputs.npy --penalty tv:0.01 --penalty box:0:1 --picture inverted.png

    Outputs are what the network returns: class labels from 0 or logits of a classifier, a regression's numbers in the
    targets' units, an autoencoder's reconstructions as 'lifted reconstruct' writes them.  Inputs are written in the
    shape and on the scale of the set's samples; the penalty acts on them as the network takes them, after its
    preparation.
    """
    from lifted_bregman._arguments import require_picture
    from lifted_bregman.tasks.invert_run import invert_run

    out = out or Path(f"{outputs.stem}-inverted.npy")
    require_array_file(out)
    if picture is not None:
        require_picture(picture)
    trained = open_trained(run, device)
    found = invert_run(trained, outputs, penalty or [], steps, tolerance)
    store_array(out, trained.inputs.images(found.input.cpu().flatten(1)), "inputs")
    terminal.show_rows(
        {
            "outcome": found.message,
            "energy": f"{float(found.energy.mean()):.6g}, mean over {len(found.energy)} samples",
            "residual": f"{float(found.residual.mean()):.6g}, mean distance of the outputs from those given",
        }
    )
    if picture is not None:
        found.plot(picture)
        terminal.output().print(f"{picture}: a picture of the first samples")
