"""The pipelined sweep: iterates by brute force, whatever the number of micro-batches, and its step sizes."""

from __future__ import annotations

import numpy as np
import pytest
import torch

import lifted_bregman as lb
from lifted_bregman import errors, solvers
from lifted_bregman.solvers import CurvatureStep, PipelinedSweep
from tests.solvers.brute_networks import NETWORKS, assert_same, batches


@pytest.mark.parametrize("micro_batches", [1, 2, 3, 50])
@pytest.mark.parametrize("name", NETWORKS)
def test_iterates_against_brute_force(name: str, micro_batches: int):
    """From the top: Θ_l ahead of x_{l-1}, which moves with the old Θ_l; all Θ change at the end of the batch."""
    problem, net, X, Y = NETWORKS[name]()
    t_theta, t_x = 0.06, 0.3
    solver = PipelinedSweep(t_theta, t_x, micro_batches)
    parts = batches(problem, X, Y, 7)
    state = solver.init(problem, parts[0])
    for batch in parts * 2:
        x = [*net.forward(batch.X, batch.Y)]
        ahead = {}
        for l in range(net.depth, 0, -1):
            ahead[l] = net.moved_theta(l, x, net, 0.0, t_theta)
            if l > 1:
                x[l - 1] = net.moved_x(l - 1, x, t_x)
        for l, theta in ahead.items():
            net.set_theta(l, theta)
        state = solver.step(problem, state, batch)
        assert_same(problem, x, net, x)


@pytest.mark.parametrize("micro_batches", [1, 3])
def test_step_sizes_are_those_of_the_whole_batch(micro_batches: int):
    problem, _, X, Y = NETWORKS["relu soft tanh"]()
    batch = batches(problem, X, Y, len(X))[0]
    solver = PipelinedSweep(CurvatureStep(0.8, upper=True), CurvatureStep(0.7, upper=True), micro_batches)
    inputs = [X, *problem.forward_state(X)]
    norms = [np.linalg.norm(np.hstack([x.numpy(), np.ones((len(x), 1))]), 2) ** 2 / len(x) for x in inputs]
    state = solver.step(problem, solver.init(problem, batch), batch)
    for layer, norm in enumerate(norms, start=1):
        expected = 0.8 / (problem.weight(layer) * norm)
        assert 0.98 * expected < state.metrics["step"][layer] <= expected  # a bound, with room for rounding


def test_work_is_counted_for_a_batch_however_it_is_cut():
    counts = []
    for micro_batches in (1, 4):
        problem, _, X, Y = NETWORKS["relu soft tanh"]()
        batch = batches(problem, X, Y, len(X))[0]
        solver = PipelinedSweep(0.1, 0.1, micro_batches)
        solver.step(problem, solver.init(problem, batch), batch)
        counts.append(problem.work.as_dict())
    assert counts[0] == counts[1]
    assert counts[0] == {"forward_maps": 4, "adjoints": 3, "parameter_gradients": 4, "prox_maps": 4 + 3}


def test_it_trains():
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(64, 32), torch.nn.ReLU(), torch.nn.Linear(32, 10))
    problem = lb.lift(model, loss=lb.CrossEntropy())
    result = lb.fit(problem, "digits", PipelinedSweep(), epochs=10, batch_size=50)
    assert result.history[-1]["accuracy"] > 0.9


@pytest.mark.parametrize("hidden", [1, 2])
def test_no_epoch_with_the_default_steps_ends_above_the_start(hidden: int):
    """With a squared error, where steps of 1.9/L end above it."""
    from sklearn.datasets import load_digits

    digits = load_digits()
    torch.manual_seed(0)
    inner = [module for _ in range(hidden - 1) for module in (torch.nn.Linear(32, 32), torch.nn.ReLU())]
    model = torch.nn.Sequential(torch.nn.Linear(64, 32), torch.nn.ReLU(), *inner, torch.nn.Linear(32, 10))
    problem = lb.lift(model.double(), loss=lb.SquaredError())
    X, Y = torch.tensor(digits.data[:600] / 16), torch.eye(10, dtype=torch.float64)[digits.target[:600]]
    start = float(problem.objective(X, Y))
    result = lb.fit(problem, (X, Y), PipelinedSweep(), epochs=4, batch_size=50)
    assert max(row["objective"] for row in result.history) < 0.75 * start


@pytest.mark.parametrize("settings", [{"micro_batches": 0}, {"micro_batches": 1.5}, {"step_parameter": -1.0}])
def test_settings_out_of_range_are_refused(settings: dict):
    with pytest.raises(errors.SettingError):
        PipelinedSweep(**settings)


def test_the_solver_takes_batches_and_is_layer_parallel():
    assert PipelinedSweep().minibatch and PipelinedSweep().layer_parallel
    assert isinstance(PipelinedSweep(), solvers.Solver)
