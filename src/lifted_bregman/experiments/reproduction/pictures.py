"""A few images and one code of an autoencoder, small enough to be stored with its rows."""

from __future__ import annotations

import base64
import zlib
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from lifted_bregman.data import Preparation
from lifted_bregman.errors import CheckpointError
from lifted_bregman.experiments.reproduction.observing import Observer, edge_error
from lifted_bregman.experiments.run_data import RunData
from lifted_bregman.networks._no_graph import no_graph
from lifted_bregman.problem.blocks import code_layer

COUNT = 6  # images of each part
_AT_ONCE = 4096
_MOST_PIXELS = 1 << 20

Packed = dict[str, Any]


def pack(images: NDArray[np.uint8]) -> Packed:
    """8-bit images (samples, height, width) as text."""
    content = base64.b85encode(zlib.compress(images.tobytes(), 9)).decode("ascii")
    return {"shape": list(images.shape), "pixels": content}


def unpack(packed: Mapping[str, Any]) -> NDArray[np.uint8]:
    """What `pack` was given; CheckpointError if it was damaged since."""
    try:
        shape = tuple(int(size) for size in packed["shape"])
        count = int(np.prod(shape))
        if not 0 < count <= _MOST_PIXELS:
            raise ValueError(f"its shape is {shape}")
        content = zlib.decompressobj().decompress(base64.b85decode(packed["pixels"]), count)
        return np.frombuffer(content, np.uint8).reshape(shape)
    except (KeyError, TypeError, ValueError, zlib.error) as error:
        raise CheckpointError(f"a stored picture is damaged ({error}): run its recipe again.") from error


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
    """The first images of both parts: what went in, what should come out, what did; and the code of the very first.

    The code is a list of (place, value) of the numbers that are not 0, and its width.
    """
    preparation = _preparation(data)
    assert preparation is not None
    problem, found = observer.problem, dict[str, Any]()
    for part, batch in (("train", observer.train), ("validation", observer.validation)):
        piece = batch.slice(0, COUNT)
        shown = {"input": piece.X, "target": piece.Y, "output": problem.model(piece.X)}
        for name, X in shown.items():
            levels = preparation.undo(X).clamp(0.0, 1.0).mul(255.0).round()
            found[f"{part}_{name}"] = pack(levels.to(torch.uint8).numpy())
    code = problem.forward_state(observer.train.slice(0, 1).X, check=False)[code_layer(problem.depth)][0]
    places = code.nonzero().flatten().tolist()
    found["code"] = {"width": len(code), "values": [[place, round(float(code[place]), 6)] for place in places]}
    return found


def _preparation(data: RunData) -> Preparation | None:
    """How the images of an autoencoder are shown; None where the outputs are none."""
    if data.record["classes"] is not None or data.record["kind"] != "set":
        return None
    preparation = Preparation.from_record(data.record["set"])
    return preparation if len(preparation.shape) == 2 else None
