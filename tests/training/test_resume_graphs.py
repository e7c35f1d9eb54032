"""Runs of graphs that were cut and resumed are those that were not: running statistics, masks, noise, tied weights.

The oracle is the undisturbed run, bit by bit; every piece starts from a new model with other parameters and buffers.
"""

import math

import pytest
import torch
from torch import nn

import lifted_bregman as lb
from lifted_bregman.solvers import Batch, Outcome, baselines
from tests.graph.architectures import MODELS, answer, drawn, first
from tests.training.runs import StopAt

F64 = torch.float64
KINDS = ["post-activation residual", "dropout", "noise", "language model", "u-net", "recurrence"]
SOLVERS = {
    "default": lb.GramSweep(total_steps=18, epochs=6),  # 6 epochs of 3 batches, whatever is asked for
    "ImplicitSGD": lb.ImplicitSGD(prox_weight=1.0, inner_steps=3),
    "AdamW": baselines.AdamW(0.01),
}


def case(name):
    model, inputs = MODELS[name]()
    model.train()
    torch.manual_seed(8)
    X = drawn(inputs, 10)
    Y = torch.randn_like(answer(model, X).detach())
    model, _ = MODELS[name]()  # the answer has changed the running statistics
    return lb.lift(model, loss=lb.SquaredError(), example=first(X, 2)), (X, Y)


def spoilt(name):
    """The same problem with other parameters and buffers, which a checkpoint has to replace."""
    problem, data = case(name)
    with torch.no_grad():
        for value in problem.model.state_dict().values():
            value.add_(1)
    return problem, data


def same(problem, other):
    found, expected = problem.model.state_dict(), other.model.state_dict()
    assert found.keys() == expected.keys()
    for name in expected:
        assert torch.equal(found[name], expected[name]), name


@pytest.mark.parametrize("solver", SOLVERS)
@pytest.mark.parametrize("name", KINDS)
def test_three_and_three_epochs_are_six(tmp_path, name, solver):
    settings = {"solver": SOLVERS[solver], "batch_size": 4, "seed": 3}
    whole, data = case(name)
    expected = lb.fit(whole, data, epochs=6, **settings)
    part, _ = case(name)
    lb.fit(part, data, epochs=3, out=tmp_path / "run", **settings)
    rest, _ = spoilt(name)
    result = lb.fit(rest, data, epochs=6, out=tmp_path / "run", resume=True, **settings)
    same(rest, whole)
    assert [row["objective"] for row in result.history] == [row["objective"] for row in expected.history]
    stored = lb.training.RunFolder(tmp_path / "run").model_parameters()
    assert all(torch.equal(stored[name], value) for name, value in whole.model.state_dict().items())


def test_the_default_solver_takes_its_length_from_fit():
    """18 steps that are stated are those of 6 epochs, so that the test above is about the default as well."""
    stated, data = case("recurrence")
    lb.fit(stated, data, SOLVERS["default"], epochs=6, batch_size=4, seed=3)
    default, _ = case("recurrence")
    lb.fit(default, data, epochs=6, batch_size=4, seed=3)
    same(default, stated)


def test_a_run_of_the_default_solver_that_is_extended_goes_on_with_the_longer_schedule(tmp_path):
    """By hand: 4 steps of a run of 4, whose rate ends at 0, then steps 5 to 8 of a run of 8."""
    by_hand, data = case("recurrence")
    batch = Batch.whole(by_hand, *data)
    state = lb.GramSweep().init(by_hand, batch)
    for length in (4, 8):
        solver = lb.GramSweep(total_steps=length, epochs=length)
        for _ in range(4):
            state = solver.step(by_hand, state, batch)
    part, _ = case("recurrence")
    lb.fit(part, data, epochs=4, out=tmp_path / "run")
    rest, _ = spoilt("recurrence")
    lb.fit(rest, data, epochs=8, out=tmp_path / "run", resume=True)
    same(rest, by_hand)
    longer, _ = case("recurrence")
    lb.fit(longer, data, epochs=8)
    assert not torch.equal(longer.model.read.weight, rest.model.read.weight)


@pytest.mark.parametrize("name", ["post-activation residual", "dropout"])
def test_a_cut_inside_an_epoch_keeps_statistics_and_masks(tmp_path, name):
    whole, data = case(name)
    lb.fit(whole, data, epochs=4, batch_size=4, seed=3)
    part, _ = case(name)
    stopped = lb.fit(part, data, epochs=4, batch_size=4, seed=3, out=tmp_path / "run", callbacks=[StopAt(5)])
    assert stopped.outcome is Outcome.INTERRUPTED
    rest, _ = spoilt(name)
    lb.fit(rest, data, epochs=4, batch_size=4, seed=3, out=tmp_path / "run", resume=True, callbacks=[StopAt()])
    same(rest, whole)


@pytest.mark.parametrize("name", ["dropout", "noise"])
def test_masks_and_noise_follow_the_seed_and_the_step_and_not_torchs_generator(name):
    runs = []
    for seed, torchs in ((3, 0), (3, 1), (4, 0)):
        problem, data = case(name)
        torch.manual_seed(torchs)
        lb.fit(problem, data, epochs=2, batch_size=10, seed=seed)  # whole batches: the seed orders no samples
        runs.append(problem)
    same(runs[1], runs[0])
    first, other = (next(run.model.parameters()) for run in (runs[0], runs[2]))
    assert not torch.equal(other, first)


class Snapshot(lb.callbacks.Callback):
    """The model's state after each row, and a model that explodes after a given epoch."""

    def __init__(self, explode):
        self.explode, self.rows = explode, {}

    def recorded(self, run, row):
        self.rows[int(row["epoch"])] = {k: v.clone() for k, v in run.problem.model.state_dict().items()}
        if row["epoch"] == self.explode:
            with torch.no_grad():
                run.problem.model.stem.weight.mul_(1e300)


def test_a_run_that_diverged_has_the_running_statistics_of_its_last_good_row():
    problem, data = case("post-activation residual")
    kept = Snapshot(explode=2)
    result = lb.fit(problem, data, epochs=5, batch_size=4, solver=baselines.AdamW(0.01), callbacks=[kept])
    assert result.outcome is Outcome.DIVERGED and list(kept.rows) == [1, 2]
    for name, value in problem.model.state_dict().items():
        assert torch.equal(value, kept.rows[2][name]), name
    assert math.isfinite(float(problem.objective(*data)))


class Rises(nn.Module):
    """Ends far above its start: rows that are not good, so that a checkpoint holds kept parameters."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.norm, self.f, self.out = nn.BatchNorm1d(3), nn.Linear(3, 4), nn.Linear(4, 2)

    def forward(self, x):
        return self.out(torch.relu(self.f(self.norm(x))))


class Grow(lb.callbacks.Callback):
    """Multiplies the output's weights after the second row, so that the next rows are not good."""

    def __init__(self):
        self.good = None

    def recorded(self, run, row):
        if row["epoch"] == 2:
            self.good = {k: v.clone() for k, v in run.problem.model.state_dict().items()}
            with torch.no_grad():
                run.problem.model.out.weight.mul_(1e3)


def test_kept_statistics_survive_a_checkpoint(tmp_path):
    torch.manual_seed(1)
    X, Y = torch.randn(12, 3, dtype=F64), torch.randn(12, 2, dtype=F64)

    def problem():
        return lb.lift(Rises().double(), loss=lb.SquaredError(), example=X[:2])

    settings = {"solver": baselines.SGD(1e-12), "batch_size": 6, "out": tmp_path / "run"}
    part, grow = problem(), Grow()
    lb.fit(part, (X, Y), epochs=6, callbacks=[grow, StopAt(8)], **settings)  # after the fourth row
    rest = problem()
    result = lb.fit(rest, (X, Y), epochs=6, resume=True, callbacks=[Grow(), StopAt()], **settings)
    assert result.outcome is Outcome.DIVERGED and "the parameters of epoch 2" in result.message
    for name, value in rest.model.state_dict().items():
        assert torch.equal(value, grow.good[name]), name


def test_parts_of_a_batch_and_statistics_of_the_batch_are_refused_together():
    problem, data = case("post-activation residual")
    with pytest.raises(lb.errors.CompatibilityError, match=r"micro_batches=2; use micro_batches=1, or call"):
        lb.fit(problem, data, solver=lb.GramSweep(micro_batches=2), epochs=1)
