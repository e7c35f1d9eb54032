"""Measurements besides the history of `fit`: losses, zeros and linear units; at the end measures and pictures."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

from lifted_bregman._no_graph import no_graph
from lifted_bregman.data import Preparation
from lifted_bregman.experiments.run_data import Pair, RunData
from lifted_bregman.problem import LiftedProblem, energies
from lifted_bregman.problem.blocks import code_layer, hidden_layers
from lifted_bregman.solvers import Batch, Callback, Run
from lifted_bregman.solvers.outcome import Diverged
from lifted_bregman.training.inputs import read_inputs
from lifted_bregman_lab.reproduction.packing import CODE, PARTS, SHOWN, pack, pack_code

_AT_ONCE = 4096  # samples, which bounds the memory
_PICTURES = 6  # images of each part
KEPT = ("epoch", "step", "seconds", "inner_iterations", "objective", "loss", "sparsity", "accuracy")
"""Entries of a stored row, besides those that begin with "validation", "linear" and "always_linear"."""


@no_graph
def measured(problem: LiftedProblem, data: Batch, classify: bool, code: int) -> dict[str, float]:
    """The nested network on `data`.

    "objective" with penalties and "loss" without, means over samples; "sparsity", the fraction of exact zeros in
    hidden layer `code`; with `classify` "accuracy".  For each hidden layer l, in per cent: "linear_l", the pairs
    (sample, unit) with σ(z) = z, for ReLU z >= 0, and "always_linear_l", the units for which that holds on all samples.
    """
    sums = dict.fromkeys(("objective", "loss", "sparsity", "accuracy"), 0.0)
    hidden, depth = hidden_layers(problem.depth), problem.depth
    linear: dict[int, Tensor] = {}  # on how many samples each unit is
    for piece in _pieces(data):
        point = problem.forward_point(piece.X, piece.Y, piece.weights)
        share, codes = len(piece) / len(data), point.x[code]
        sums["objective"] += share * float(energies.objective(problem, point))
        sums["loss"] += share * float(problem.loss.per_sample(point.z(depth), piece.Y).mean())
        sums["sparsity"] += share * (1.0 - int(codes.count_nonzero()) / codes.numel())
        if classify:
            hits = point.z(depth).argmax(1) == piece.Y.argmax(1)
            sums["accuracy"] += share * int(hits.count_nonzero()) / len(piece)
        for l in hidden:
            # As numbers of 8 bits, of which sums are five times as fast as of truth values.
            counted = (point.z(l) == point.x[l]).view(torch.uint8).sum(0, dtype=torch.int32)
            linear[l] = linear[l] + counted if l in linear else counted
    values = {name: value for name, value in sums.items() if classify or name != "accuracy"}
    values |= {f"linear_{l}": 100.0 * int(n.sum()) / (len(data) * n.numel()) for l, n in linear.items()}
    always = {l: int((n == len(data)).count_nonzero()) for l, n in linear.items()}
    return values | {f"always_linear_{l}": 100.0 * always[l] / linear[l].numel() for l in hidden}


class Observer(Callback):
    """Adds what `measured` finds on both parts to every row of the history, on the network of `problem`.

    code  the hidden layer that is the code; None for the middle one
    """

    def __init__(self, problem: LiftedProblem, train: Pair, validation: Pair, code: int | None = None) -> None:
        inputs, held_out = read_inputs(problem, train), read_inputs(problem, validation, "validation")
        self.problem, self.classify = problem, inputs.labels
        self.code = code_layer(problem.depth) if code is None else code
        self.train, self.validation = inputs.batch(problem), held_out.batch(problem)

    def recorded(self, run: Run, row: dict[str, float]) -> None:
        counted = run.problem.work.as_dict()
        row |= measured(self.problem, self.train, self.classify, self.code)
        reached = measured(self.problem, self.validation, self.classify, self.code)
        row |= {f"validation_{name}": value for name, value in reached.items() if not name.startswith("always")}
        for name, value in kept(row).items():
            if not math.isfinite(value):
                raise Diverged(f"{name} is {value} after epoch {int(row['epoch'])}")
        row["inner_iterations"] = run.state.steps * int(getattr(run.solver, "inner_steps", 1))
        run.problem.work.reset(counted)


def kept(row: dict[str, float]) -> dict[str, float]:
    """The entries of a row of the history that are stored."""
    begins = ("validation", "linear", "always_linear")
    return {name: value for name, value in row.items() if name in KEPT or name.startswith(begins)}


@no_graph
def edge_error(outputs: Tensor, targets: Tensor) -> float:
    """‖∇u - ∇v‖² / ‖∇v‖² of outputs u and targets v, (samples, height, width): 0 for outputs with every edge in place.

    ∇ are differences of neighbouring pixels.  A blurred image loses edges, a noisy one adds some; both count.
    """
    wrong = sum(float(torch.diff(outputs - targets, dim=dim).double().square().sum()) for dim in (1, 2))
    size = sum(float(torch.diff(targets, dim=dim).double().square().sum()) for dim in (1, 2))
    return wrong / size if size > 0.0 else 0.0


@no_graph
def final_measures(observer: Observer, data: RunData) -> dict[str, float]:
    """The measures at the end of a run, on both parts.

    "parameters", their number; "unexplained", the loss over that of the output 0, which for centred images is the mean
    image; for images "edge_error".
    """
    problem, preparation = observer.problem, _preparation(data)
    values = {"parameters": float(sum(p.numel() for p in problem.model.parameters()))}
    for part, batch in zip(PARTS, (observer.train, observer.validation), strict=True):
        lost = total = wrong = 0.0
        for piece in _pieces(batch):
            Z = problem.model(piece.X)
            lost += float(problem.loss.per_sample(Z, piece.Y).double().sum())
            total += float(problem.loss.per_sample(torch.zeros_like(Z), piece.Y).double().sum())
            if preparation is not None:
                wrong += len(piece) / len(batch) * edge_error(preparation.undo(Z), preparation.undo(piece.Y))
        values[f"{part}_unexplained"] = lost / total
        if preparation is not None:
            values[f"{part}_edge_error"] = wrong
    return values


@no_graph
def take_pictures(observer: Observer, data: RunData) -> dict[str, Any]:
    """Inputs, targets and outputs of the first images of both parts, and the code of the first training image."""
    preparation = _preparation(data)
    assert preparation is not None
    problem, found = observer.problem, dict[str, Any]()
    for part, batch in zip(PARTS, (observer.train, observer.validation), strict=True):
        piece = batch.slice(0, _PICTURES)
        for name, X in zip(SHOWN, (piece.X, piece.Y, problem.model(piece.X)), strict=True):
            levels = preparation.undo(X).clamp(0.0, 1.0).mul(255.0).round()
            found[f"{part}_{name}"] = pack(levels.to(torch.uint8).numpy())
    code = problem.forward_state(observer.train.slice(0, 1).X, check=False)[observer.code][0]
    return found | {CODE: pack_code(code.numpy())}


def _preparation(data: RunData) -> Preparation | None:
    """The preparation of the images of an autoencoder; None where the outputs are no images."""
    if data.record["classes"] is not None or data.record["kind"] != "set":
        return None
    preparation = Preparation.from_record(data.record["set"])
    return preparation if len(preparation.shape) == 2 else None


def _pieces(data: Batch) -> Iterator[Batch]:
    return (data.slice(start, start + _AT_ONCE) for start in range(0, len(data), _AT_ONCE))
