"""No number of a step of `GramSweep` is read by the host, on a device that is not the CPU."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import lifted_bregman as lb
from lifted_bregman import penalties
from lifted_bregman.solvers import Batch, Solver
from lifted_bregman.solvers.gram import rule
from tests.graph.architectures import MODELS
from tests.problem.test_graph_problems import CASES
from tests.solvers.pretend_device import ELSEWHERE, HostReads, PretendDevice, move_model
from tests.solvers.problems import NAMES, make

F64 = torch.float64


def convolutions():
    torch.manual_seed(2)
    model = nn.Sequential(
        nn.Conv2d(2, 4, 3, padding=1),
        nn.ReLU(),
        nn.Conv2d(4, 3, 3, padding=1, padding_mode="circular"),
        nn.Tanh(),
        nn.Flatten(),
        nn.Linear(48, 3),
    )
    return model.double(), torch.randn(6, 2, 4, 4, dtype=F64), torch.randn(6, 3, dtype=F64)


def dense():
    torch.manual_seed(4)
    model = nn.Sequential(nn.Linear(9, 8), nn.ReLU(), nn.Linear(8, 5), nn.Sigmoid(), nn.Linear(5, 3))
    return model.double(), torch.randn(7, 9, dtype=F64), torch.randn(7, 3, dtype=F64)


def reads_of(solver: Solver, problem, X, Y, weights=None) -> list[str]:
    """What the host waits for in three steps after a first one, which fills caches."""
    with PretendDevice():
        if next(problem.model.parameters()).device != ELSEWHERE:
            move_model(problem.model)
        X, Y = X.to(ELSEWHERE), Y.to(ELSEWHERE)
        batch = Batch.whole(problem, X, Y, None if weights is None else weights.to(ELSEWHERE))
        state = solver.init(problem, batch)
        state = solver.step(problem, state, batch)
        start = [p.detach().cpu().clone() for p in problem.model.parameters()]
        with HostReads() as reads:
            for _ in range(3):
                state = solver.step(problem, state, batch)
        ends = [p.detach().cpu() for p in problem.model.parameters()]
    assert state.steps == 4 and not all(map(torch.equal, start, ends))
    assert all(bool(end.isfinite().all()) for end in ends)
    return reads.found


SETTINGS = {
    "default": {},
    "sample space": {"inputs": 1},
    "with decay": {"total_steps": 20, "epochs": 2},
    "micro-batches": {"micro_batches": 2},
}


@pytest.mark.parametrize("settings", SETTINGS)
@pytest.mark.parametrize("weighted", [False, True], ids=["plain", "weighted"])
@pytest.mark.parametrize("network", [dense, convolutions])
def test_steps_on_chains_read_nothing(network, weighted, settings, monkeypatch):
    chosen = dict(SETTINGS[settings])
    monkeypatch.setattr(rule, "WIDEST_INPUTS", chosen.pop("inputs", 256))
    model, X, Y = network()
    problem = lb.lift(model, loss=lb.SquaredError())
    weights = torch.linspace(0.5, 1.5, len(X), dtype=F64) if weighted else None
    assert reads_of(lb.GramSweep(**chosen), problem, X, Y, weights) == []


@pytest.mark.parametrize("name", NAMES)
def test_steps_on_the_problems_of_all_solvers_read_nothing(name):
    case = make(name)
    assert reads_of(lb.GramSweep(step_size=0.1), case.problem, case.X, case.Y) == []


@pytest.mark.parametrize(
    "penalty",
    [penalties.L1(0.01), penalties.SquaredL2(0.1), penalties.GroupL2(0.01), penalties.Nuclear(0.01)],
    ids=repr,
)
def test_steps_with_a_penalty_on_parameters_read_nothing(penalty):
    model, X, Y = dense()
    problem = lb.lift(model, loss=lb.SquaredError(), parameter_penalties={1: penalty})
    assert reads_of(lb.GramSweep(), problem, X, Y) == []


@pytest.mark.parametrize(
    "penalty",
    [penalties.L1(0.01), penalties.GroupL2(0.01), penalties.NonNegative(), penalties.Bounds(0.0, 2.0)],
    ids=repr,
)
def test_steps_with_a_penalty_on_variables_read_nothing(penalty):
    model, X, Y = dense()
    problem = lb.lift(model, loss=lb.SquaredError(), penalties={1: penalty})
    assert reads_of(lb.GramSweep(), problem, X, Y) == []


@pytest.mark.parametrize("name", [name for name in CASES if len(MODELS[name]()[1]) == 1])
def test_steps_on_graphs_read_nothing(name):
    torch.manual_seed(3)
    model, (X,) = MODELS[name]()
    Y = torch.randn_like(model.eval()(X).detach())
    with PretendDevice():
        move_model(model)
        problem = lb.lift(model, loss=lb.SquaredError(), example=X[:2].to(ELSEWHERE))
    assert reads_of(lb.GramSweep(), problem, X, Y) == []


def test_reads_and_copies_are_noticed():
    with PretendDevice(), HostReads() as reads:
        x = torch.ones(3).to(ELSEWHERE)
        for read in (
            lambda: float(x.sum()),
            lambda: bool(x.sum() > 0.0),
            lambda: x.tolist(),
            lambda: x.cpu(),
            lambda: x[x > 0.0],
            lambda: torch.equal(x, x),
            lambda: x.sum().item(),
        ):
            before = len(reads.found)
            read()
            assert len(reads.found) == before + 1


def test_a_run_makes_numbers_of_the_metrics():
    case = make("relu")
    result = lb.fit(case.problem, case.data, lb.GramSweep(), epochs=2, batch_size=5)
    assert {type(value) for value in result.state.metrics.values()} == {float}
    assert set(result.state.metrics) == {"output_residual", "fallbacks"}
