"""What is measured once, at the end of a run, and the few images and one code of an autoencoder that are stored."""

from __future__ import annotations

from typing import Any

import torch

from lifted_bregman.data import Preparation
from lifted_bregman.experiments.run_data import RunData
from lifted_bregman.networks._no_graph import no_graph
from lifted_bregman.problem.blocks import code_layer
from lifted_bregman_lab.reproduction.observing import Observer, edge_error
from lifted_bregman_lab.reproduction.packing import CODE, PARTS, SHOWN, pack, pack_code

COUNT = 6  # images of each part
_AT_ONCE = 4096


@no_graph
def final_measures(observer: Observer, data: RunData) -> dict[str, float]:
    """What is measured at the end, on both parts.

    "parameters", their number; "unexplained", the loss as a part of what the output 0 has, which for centred images is
    the mean image; for images "edge_error".
    """
    problem = observer.problem
    values = {"parameters": float(sum(p.numel() for p in problem.model.parameters()))}
    preparation = _preparation(data)
    for part, batch in (("train", observer.train), ("validation", observer.validation)):
        lost = total = wrong = 0.0
        pieces = [batch.slice(start, start + _AT_ONCE) for start in range(0, len(batch), _AT_ONCE)]
        for piece in pieces:
            Z = problem.model(piece.X)
            lost += float(problem.loss.per_sample(Z, piece.Y).double().sum())
            total += float(problem.loss.per_sample(torch.zeros_like(Z), piece.Y).double().sum())
            if preparation is not None:
                share = len(piece) / len(batch)
                wrong += share * edge_error(preparation.undo(Z), preparation.undo(piece.Y))
        values[f"{part}_unexplained"] = lost / total
        if preparation is not None:
            values[f"{part}_edge_error"] = wrong
    return values


@no_graph
def take_pictures(observer: Observer, data: RunData) -> dict[str, Any]:
    """The first images of both parts: what went in, what should come out, what did; and the code of the very first."""
    preparation = _preparation(data)
    assert preparation is not None
    problem, found = observer.problem, dict[str, Any]()
    for part, batch in zip(PARTS, (observer.train, observer.validation), strict=True):
        piece = batch.slice(0, COUNT)
        for name, X in zip(SHOWN, (piece.X, piece.Y, problem.model(piece.X)), strict=True):
            levels = preparation.undo(X).clamp(0.0, 1.0).mul(255.0).round()
            found[f"{part}_{name}"] = pack(levels.to(torch.uint8).numpy())
    code = problem.forward_state(observer.train.slice(0, 1).X, check=False)[code_layer(problem.depth)][0]
    found[CODE] = pack_code(code.numpy())
    return found


def _preparation(data: RunData) -> Preparation | None:
    """How the images of an autoencoder are shown; None where the outputs are none."""
    if data.record["classes"] is not None or data.record["kind"] != "set":
        return None
    preparation = Preparation.from_record(data.record["set"])
    return preparation if len(preparation.shape) == 2 else None
