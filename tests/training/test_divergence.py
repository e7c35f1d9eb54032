"""Divergence is not silent: no NaN or infinity anywhere, and no objective that explodes or ends far above its start."""

from __future__ import annotations

import math
from dataclasses import dataclass

import pytest
import torch

import lifted_bregman as lb
from lifted_bregman import errors, solvers
from lifted_bregman.solvers import Outcome
from lifted_bregman.solvers.divergence import remedy
from tests.solvers.problems import make
from tests.training.runs import Recorder, StopAt, assert_same, assert_same_end, case_in, parameters, scrambled, train

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
    assert {path.name for path in (tmp_path / "run").iterdir()} == {"lock", "manifest.json", "result.json"}
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


@pytest.mark.parametrize("rate", [3.0, 5.0, 1e3, 1e6, 1e150])
def test_a_run_that_explodes_keeps_its_history_and_the_parameters_of_the_last_good_row(rate):
    """A row is good up to ten times the larger of the objective at the start and the mean of ½‖y‖²."""
    case = make("relu")
    start = float(case.problem.objective(*case.data))
    seen = [(0, start, parameters(case))]

    class Rows(lb.callbacks.Callback):
        def recorded(self, run, row):
            seen.append((row["epoch"], row["objective"], parameters(case)))

    result = lb.fit(case.problem, case.data, lb.baselines.SGD(rate), epochs=60, batch_size=12, callbacks=[Rows()])
    limit = 10 * max(start, 0.5 * float(case.Y.square().sum(1).mean()))
    epoch, objective, expected = [entry for entry in seen if entry[1] <= limit][-1]
    assert result.outcome is Outcome.DIVERGED and "the objective is " in result.message
    assert [row["epoch"] for row in result.history] == [e for e, _, _ in seen[1:] or seen]
    assert_same(parameters(case), expected)
    assert float(case.problem.objective(*case.data)) == pytest.approx(objective)
    if rate < 1e150:
        assert result.message.endswith("give SGD a smaller learning_rate.")
        assert ("its initial parameters" if epoch == 0 else f"the parameters of epoch {epoch};") in result.message


@pytest.mark.parametrize(
    ("solver", "expected"),
    [
        (lb.GramSweep(), "give GramSweep a smaller step_size"),
        (lb.ImplicitSGD(), "give ImplicitSGD a larger prox_weight"),
        (lb.ProximalGradient(), "give ProximalGradient a step_rule with smaller steps"),
        (solvers.ModelAveraging(2, lb.ProximalGradient()), "give ProximalGradient a step_rule with smaller steps"),
        (
            lb.baselines.ImplicitBackprop(1.0, 3, 0.1),
            "give ImplicitBackprop a smaller learning_rate or a larger prox_weight",
        ),
        (lb.baselines.MACQP(), "standardise the data, or choose another solver"),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, solvers.Solver) else "",
)
def test_the_remedy_names_settings_that_the_solver_has(solver, expected):
    assert remedy(solver) == expected


def test_an_explosion_of_a_solver_of_the_whole_set_is_no_finished_run():
    """A gradient step of 2.5/L on a quadratic multiplies the error along the steepest direction by -1.5."""
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(4, 2, bias=False)).double()
    X, Y = torch.randn(20, 4, dtype=torch.float64), torch.randn(20, 2, dtype=torch.float64)
    step = solvers.FixedStep(parameter=2.5 * 20 / float(torch.linalg.matrix_norm(X, 2)) ** 2, variable=1.0)
    problem = lb.lift(model, loss=lb.SquaredError())
    result = lb.fit(problem, (X, Y), solvers.ProximalGradient(step_rule=step), epochs=200)
    assert result.outcome is Outcome.DIVERGED and 10 < len(result.history) < 100
    assert float(problem.objective(X, Y)) <= 10 * max(result.history[0]["objective"], 0.5 * float((Y**2).sum(1).mean()))


@dataclass(frozen=True)
class Scripted(solvers.Solver):
    """Sets the last bias so that the objective is a given list of numbers; all other parameters become 0."""

    objectives: tuple[float, ...] = ()

    def init(self, problem, batch):
        return solvers.SolverState()

    def step(self, problem, state, batch):
        with torch.no_grad():
            for p in problem.model.parameters():
                p.zero_()
            problem.model[-1].bias[0] = 1.0 + math.sqrt(2 * self.objectives[state.steps])
        state.steps += 1
        return state


@pytest.mark.parametrize(
    ("objectives", "outcome", "rows"),
    [
        ((1e-3, 4.9), Outcome.FINISHED, 2),
        ((1e-3, 4e10, 4.9), Outcome.FINISHED, 3),
        ((1e-3, 4e10, 5.1), Outcome.DIVERGED, 3),
        ((1e-3, 6e11, 1e-3), Outcome.DIVERGED, 1),
    ],
    ids=["below ten times", "there and back", "ends above", "explodes"],
)
def test_rows_are_compared_with_the_start_or_with_outputs_0(objectives, outcome, rows):
    """The start is 0, as good as it gets; the targets (1, 0, 0) have ½‖y‖² = ½, which outputs of 0 would cost."""
    case = make("relu")
    with torch.no_grad():
        for p in case.problem.model.parameters():
            p.zero_()
        case.problem.model[-1].bias[0] = 1.0
    Y = torch.zeros_like(case.Y)
    Y[:, 0] = 1.0
    assert float(case.problem.objective(case.X, Y)) == 0.0
    result = lb.fit(case.problem, (case.X, Y), Scripted(objectives), epochs=len(objectives))
    assert result.outcome is outcome and len(result.history) == rows
    good = [value for value in objectives[:rows] if value <= 5.0]
    assert float(case.problem.objective(case.X, Y)) == pytest.approx(good[-1])


@pytest.mark.parametrize("steps", [1, 3, 4, 8, 12])
def test_a_run_that_ends_far_above_its_start_is_resumed_exactly(tmp_path, steps):
    """Cut before its first row, at a good one, and after rows that are not; it ends with the parameters of epoch 1."""
    solver = lb.baselines.SGD(3.0)
    whole, case = case_in(torch.float64), case_in(torch.float64)
    expected = train(whole, solver, 5, None, StopAt())
    assert expected.outcome is Outcome.DIVERGED and len(expected.history) == 5, expected.message
    assert train(case, solver, 5, tmp_path / "run", StopAt(steps)).outcome is Outcome.INTERRUPTED
    case = scrambled(case_in(torch.float64))
    result = train(case, solver, 5, tmp_path / "run", StopAt(), resume=True)
    assert_same_end(case, result, whole, expected)


def test_a_run_that_diverges_in_its_first_epoch_has_the_row_of_its_start(tmp_path):
    case = make("relu")
    start = float(case.problem.objective(*case.data))
    result = train(case, lb.baselines.SGD(learning_rate=1e200), 5, tmp_path / "run")
    assert result.outcome is Outcome.DIVERGED and 0 < result.state.steps < 3
    (row,) = result.history
    assert (row["step"], row["epoch"], row["objective"]) == (0, 0, pytest.approx(start))
    assert lb.training.RunFolder(tmp_path / "run").history() == result.history


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
