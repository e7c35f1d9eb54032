"""Training within torch.autocast: products of the maps in bfloat16, everything else in float32."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import lifted_bregman as lb
from lifted_bregman import errors
from lifted_bregman.solvers import Batch, Solver
from tests.cases import name, solver_cases

U = 2.0**-8
"""The unit of rounding of bfloat16: half the distance of 1 and the next number, which has 8 bits."""
SOLVERS = [
    lb.GramSweep(),
    lb.GramSweep(damping=0.3, micro_batches=2),
    lb.baselines.SGD(learning_rate=0.02, momentum=0.5),
    lb.baselines.Adam(),
    lb.baselines.AdamW(),
    lb.baselines.GradientDescent(learning_rate=0.05),
]


class Residual(nn.Module):
    """A graph with a sum and a convolution."""

    def __init__(self):
        super().__init__()
        self.conv = nn.Conv2d(2, 4, 3, padding=1)
        self.inner, self.out = nn.Linear(64, 64), nn.Linear(64, 3)

    def forward(self, x):
        h = torch.relu(self.conv(x)).flatten(1)
        return self.out(torch.tanh(h + self.inner(h)))


def chain():
    return nn.Sequential(
        nn.Conv2d(2, 4, 3, padding=1), nn.ReLU(), nn.Flatten(), nn.Linear(64, 20), nn.Tanh(), nn.Linear(20, 3)
    )


def task(make, seed=0):
    torch.manual_seed(seed)
    model, X = make(), torch.randn(40, 2, 4, 4)
    Y = torch.tanh(X.flatten(1) @ torch.randn(32, 3) * 0.3)
    return lb.lift(model, loss=lb.SquaredError(), example=X[:2]), X, Y


@pytest.mark.parametrize("make", [chain, Residual])
@pytest.mark.parametrize("solver", SOLVERS, ids=name)
def test_a_run_is_close_to_that_of_float32_and_keeps_its_dtypes(solver: Solver, make):
    size = 10 if solver.minibatch else None
    ends, objectives = [], []
    for enabled in (False, True):
        problem, X, Y = task(make)
        start = float(problem.objective(X, Y))
        with torch.autocast("cpu", torch.bfloat16, enabled=enabled):
            result = lb.fit(problem, (X, Y), solver, epochs=3, batch_size=size)
        assert result.outcome is lb.solvers.Outcome.FINISHED
        assert {p.dtype for p in problem.model.parameters()} == {torch.float32}
        stored = [t for t in torch.utils._pytree.tree_leaves(result.state.state_dict()) if isinstance(t, torch.Tensor)]
        assert {t.dtype for t in stored if t.is_floating_point()} <= {torch.float32}
        ends.append(torch.cat([p.detach().flatten() for p in problem.model.parameters()]))
        objectives.append(float(problem.objective(X, Y)))
    assert objectives[1] < start and not torch.equal(*ends)  # bfloat16 was at work
    # Objectives differ by some roundings of z, relative to how far they have come.
    assert abs(objectives[1] - objectives[0]) <= 16 * U * start


@pytest.mark.parametrize("make", [chain, Residual])
def test_maps_round_to_bfloat16_and_return_float32(make):
    problem, X, _ = task(make)
    network = problem.network
    values = [X]
    for number, layer in enumerate(network, 1):
        read = network.read(values, number)
        exact, pull = layer.map.linearise(read)
        with torch.autocast("cpu", torch.bfloat16):
            z, pull_half = layer.map.linearise(read)
            assert torch.equal(z, layer.map.apply(read)) and torch.equal(z, layer.map.evaluate(read))
            d = torch.randn_like(z)
            pulled = _tensors(pull_half(d))
        assert z.dtype == torch.float32 and {t.dtype for t in pulled} == {torch.float32}
        for found, true in zip((z, *pulled), (exact, *_tensors(pull(d))), strict=True):
            error = float((found - true).norm() / true.norm())
            assert error <= 4 * U
        if layer.map.parameters:  # what has no product is exact
            assert not torch.equal(z, exact)
        values.append(layer.activate(z))


def _tensors(pulled):
    below, gradients = pulled
    return [*(below if isinstance(below, tuple) else (below,)), *gradients.values()]


def test_differences_are_taken_in_float32(monkeypatch):
    """Signals have the digits of float32, although z and g were computed in bfloat16: against float64."""
    problem, X, Y = task(chain)
    found, real = [], lb.GramSweep._signal

    def spy(self, problem, layer, x, z, g, norms):
        signal = real(self, problem, layer, x, z, g, norms)
        found.append((problem.network[layer].activate, z.double(), g.double(), norms.double(), signal))
        return signal

    monkeypatch.setattr(lb.GramSweep, "_signal", spy)
    solver, batch = lb.GramSweep(nudge=1e-3), Batch.whole(problem, X, Y)
    state = solver.init(problem, batch)
    with torch.autocast("cpu", torch.bfloat16):
        solver.step(problem, state, batch)
    assert found
    for activate, z, g, norms, E in found:
        nu = 1e-3 / problem.links.longest_path
        assert float(nu * g.norm()) < 0.3 * float(norms.min())  # no sample is limited
        assert E.dtype == torch.float32
        torch.testing.assert_close(E.double(), (activate(z) - activate(z - nu * g)) / nu, rtol=1e-4, atol=1e-7)


def test_parameters_are_read_anew_in_every_step():
    """Autocast remembers rounded parameters as long as it lasts; a run must not."""
    problem, X, Y = task(chain)
    with torch.autocast("cpu", torch.bfloat16):
        before = problem.model(X).float()
        lb.fit(problem, (X, Y), lb.GramSweep(), epochs=2, batch_size=10)
        inside = problem.model(X).float()
    with torch.autocast("cpu", torch.bfloat16):
        after = problem.model(X).float()
    assert torch.equal(inside, after) and not torch.equal(before, after)


@pytest.mark.parametrize("solver", [s for s in solver_cases() if not s.autocast], ids=name)
def test_other_solvers_refuse_by_name(solver):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 3), nn.ReLU(), nn.Linear(3, 2))
    problem = lb.lift(model, loss=lb.SquaredError())
    refused = f"{type(solver).__name__} requires .*float32; missing: autocast is active for cpu"
    with pytest.raises(errors.CompatibilityError, match=refused), torch.autocast("cpu", torch.bfloat16):
        lb.fit(problem, (torch.randn(6, 4), torch.randn(6, 2)), solver, epochs=1)
