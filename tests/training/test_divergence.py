"""Divergence is not silent: NaN or infinity anywhere stops the run before parameters or checkpoints are touched."""

from __future__ import annotations

import math
from dataclasses import dataclass

import pytest
import torch

import lifted_bregman as lb
from lifted_bregman import errors, solvers
from lifted_bregman.solvers import Outcome
from tests.solvers.problems import make
from tests.training.runs import Recorder, assert_same, parameters, train

BAD = [math.nan, math.inf, -math.inf]


@pytest.mark.parametrize("bad", BAD)
@pytest.mark.parametrize("where", ["X", "Y", "validation", "weights"])
def test_bad_data_never_starts(tmp_path, where, bad):
    case = make("relu")
    before = parameters(case)
    X, Y, w = case.X.clone(), case.Y.clone(), torch.ones(12, dtype=torch.float64)
    validation = (case.X.clone(), case.Y)
    {"X": X, "Y": Y, "validation": validation[0], "weights": w}[where].view(-1)[7] = bad
    with pytest.raises(errors.TensorError, match=r"sample"):
        lb.fit(case.problem, (X, Y), epochs=2, validation=validation, sample_weights=w.numpy(), out=tmp_path / "run")
    assert_same(parameters(case), before)
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("bad", BAD)
def test_bad_weights_never_take_a_step(tmp_path, bad):
    case = make("relu")
    with torch.no_grad():
        case.problem.model[2].weight[1, 1] = bad
    before = [p.nan_to_num() for p in parameters(case)]
    result = train(case, solvers.ImplicitSGD(), 3, tmp_path / "run")
    assert result.outcome is Outcome.DIVERGED and "weight of model.2 (Linear)" in result.message
    assert result.state.steps == 0 and result.history == []
    assert_same([p.nan_to_num() for p in parameters(case)], before)
    assert {path.name for path in (tmp_path / "run").iterdir()} == {"lock", "result.json"}
    folder = lb.training.RunFolder(tmp_path / "run")
    assert folder.result()["outcome"] == "DIVERGED"
    with pytest.raises(errors.CheckpointError, match="not finite"):
        folder.model_parameters()
    with torch.no_grad():
        case.problem.model[2].weight[1, 1] = 0.0
    assert train(case, solvers.ImplicitSGD(), 3, tmp_path / "run").outcome is Outcome.FINISHED  # nothing was in its way
    assert_same(folder.model_parameters(), dict(case.problem.model.state_dict()))


def test_a_callback_that_spoils_the_end_leaves_no_model(tmp_path):
    class Spoils(lb.callbacks.Callback):
        def finished(self, run):
            with torch.no_grad():
                run.problem.model[0].bias[0] = math.inf

    train(make("relu"), solvers.ImplicitSGD(), 2, tmp_path / "run", Spoils())
    assert not (tmp_path / "run" / "model.safetensors").exists()
    with pytest.raises(errors.CheckpointError, match="holds a run already"):
        train(make("relu"), solvers.ImplicitSGD(), 2, tmp_path / "run")


@pytest.mark.parametrize("rate", [1e3, 1e6, 1e150])
def test_the_model_keeps_the_parameters_of_the_last_row(rate):
    """Also where the parameters are finite and the objective is what is not."""
    case, seen = make("relu"), [parameters(make("relu"))]

    class Rows(lb.callbacks.Callback):
        def recorded(self, run, row):
            seen.append([p.detach().clone() for p in run.problem.model.parameters()])

    result = lb.fit(case.problem, case.data, lb.baselines.SGD(rate), epochs=60, batch_size=12, callbacks=[Rows()])
    assert result.outcome is Outcome.DIVERGED and len(result.history) == len(seen) - 1
    assert_same(parameters(case), seen[-1])
    assert math.isfinite(float(case.problem.objective(*case.data)))


@dataclass(frozen=True)
class Poison(solvers.StochasticProximalGradient):
    """Spoils one tensor after its fifth step, the second of epoch 2."""

    where: str = "weights"
    value: float = math.nan

    def step(self, problem, state, batch):
        state = super().step(problem, state, batch)
        if state.steps == 5:
            with torch.no_grad():
                {
                    "weights": lambda: problem.model[2].weight,
                    "bias": lambda: problem.model[4].bias,
                    "variables": lambda: state.variables[2],
                }[self.where]().view(-1)[1] = self.value
        return state


@pytest.mark.parametrize("bad", BAD)
@pytest.mark.parametrize(
    ("where", "words"),
    [("weights", "model.2 (Linear)"), ("bias", "model.4 (Linear)"), ("variables", "x_2")],
)
@pytest.mark.parametrize("every_steps", [None, 1])
def test_poison_in_a_run_is_found_before_it_is_saved(tmp_path, where, words, bad, every_steps):
    saver = lb.callbacks.Checkpoint(every_steps=every_steps)
    case, good = make("relu"), make("relu")
    recorder = Recorder([3])
    train(good, solvers.StochasticProximalGradient(step_parameter=0.05), 3, None, recorder)
    result = train(case, Poison(step_parameter=0.05, where=where, value=bad), 3, tmp_path / "run", saver)
    assert result.outcome is Outcome.DIVERGED and "step" in result.message
    assert words in result.message or "is nan" in result.message or "is inf" in result.message, result.message
    assert_same(parameters(case), recorder.parameters[3])  # those of the last row
    loaded = lb.training.RunFolder(tmp_path / "run").checkpoints.load()
    assert loaded.warning is None and loaded.snapshot.step == (3 if every_steps is None else 4)
    for value in loaded.snapshot.parts["model"].values():
        assert bool(value.isfinite().all())


@dataclass(frozen=True)
class PoisonedMultipliers(solvers.LinBreg):
    """Spoils the subgradient variable, LinBreg's multiplier, which the parameters only see a step later."""

    def step(self, problem, state, batch):
        state = super().step(problem, state, batch)
        if state.steps == 6:
            state.subgradients[2]["weight"].view(-1)[0] = math.nan
        return state


def test_poison_in_multipliers_is_found_before_it_reaches_the_parameters(tmp_path):
    case, good = make("relu"), make("relu")
    recorder = Recorder([3])
    train(good, solvers.LinBreg(step_size=0.05), 3, None, recorder)
    result = train(case, PoisonedMultipliers(step_size=0.05), 3, tmp_path / "run")
    assert result.outcome is Outcome.DIVERGED
    assert "subgradients/2/weight" in result.message and "step 6" in result.message
    assert_same(parameters(case), recorder.parameters[3])
    assert lb.training.RunFolder(tmp_path / "run").checkpoints.steps() == [0, 3]


def test_a_run_that_explodes_by_itself_ends_with_finite_parameters(tmp_path):
    case = make("relu")
    result = train(case, lb.baselines.SGD(learning_rate=1e6), 50, tmp_path / "run")
    assert result.outcome is Outcome.DIVERGED
    assert all(bool(p.isfinite().all()) for p in case.problem.model.parameters())
    ending = lb.training.RunFolder(tmp_path / "run").result()
    assert ending["outcome"] == "DIVERGED" and ending["message"] == result.message
