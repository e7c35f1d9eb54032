"""The rows of a run's history.  Evaluating one is not counted as the solver's work."""

from __future__ import annotations

from typing import TYPE_CHECKING

from lifted_bregman.solvers._by_term import added_up
from lifted_bregman.solvers.batches import InMemory, Source
from lifted_bregman.solvers.evaluation import (
    evaluate_batches,
    evaluate_network,
    largest_certificate,
    lifted_energies,
)
from lifted_bregman.solvers.finite import flat_metrics
from lifted_bregman.solvers.interface import Batch

if TYPE_CHECKING:
    from lifted_bregman.solvers.loop import Row, Run


def evaluate_row(run: Run) -> Row:
    """The row of the present parameters, variables and metrics; `Run.history` lists its entries."""
    own_work, counted = run.problem.work.as_dict(), run.total_work()
    row: Row = {"step": run.state.steps, "epoch": run.epoch, "seconds": run.seconds}
    try:
        with run.problem.network.evaluating():
            # the training set, and the energies at the solver's variables
            if isinstance(run.source, InMemory):
                last = run.source.last(run.epoch, run.batch)
                lifted = lifted_energies(run.rank_problem, run.state, run.data, last, run.ranks)
                row |= evaluate_network(run.rank_problem, run.data, run.classify, run.ranks, by_layer=not lifted)
                row |= lifted
            else:
                row |= _stream_entries(run)
            # the validation set
            if run.validation is not None:
                if isinstance(run.validation, Source):
                    reached = evaluate_batches(run.problem, run.validation.epoch(1), run.classify)
                else:
                    reached = evaluate_network(run.rank_problem, run.validation, run.classify, run.ranks)
                row["validation"] = reached["objective"]
                if run.classify:
                    row["validation_accuracy"] = reached["accuracy"]
            # the largest residual of the optimality conditions
            if run.tolerance is not None:
                certificate = largest_certificate(run.rank_problem, run.state, run.data, run.ranks)
                row |= {} if certificate is None else {"certificate": certificate}
    finally:
        run.problem.work.reset(own_work)
    metrics = flat_metrics(run.state.metrics)
    return row | counted | run.border.all_names(metrics) | added_up(metrics, run.border, run.solver.counts)


def evaluate_batch(run: Run, batch: Batch) -> Row:
    """Objective, sparsity and accuracy of one batch at the present parameters."""
    counted = run.problem.work.as_dict()
    try:
        with run.problem.network.evaluating():
            return evaluate_network(run.problem, batch, run.classify)
    finally:
        run.problem.work.reset(counted)


def _stream_entries(run: Run) -> Row:
    """The running means of a stream's epoch; with `evaluate_training` the whole stream at the present parameters."""
    assert run.meter is not None
    row = run.meter.row()
    if not row:  # before the first step: the first batch
        first = evaluate_network(run.problem, run.data, run.classify)
        row = {f"running_{name}": value for name, value in first.items() if name in ("objective", "accuracy")}
    if run.evaluate_training:
        run.batches.suspend(run.batch)  # a loader may not be read twice at a time
        row |= evaluate_batches(run.problem, run.source.epoch(run.epoch), run.classify)
    return row
