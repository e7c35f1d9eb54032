"""Solvers on networks that are no chains: signals against autograd, training without derivatives of activations."""

import pytest
import torch
from torch import nn

import lifted_bregman as lb
from lifted_bregman import solvers
from lifted_bregman.solvers import baselines
from lifted_bregman.solvers.gram import sweep
from lifted_bregman.solvers.gram.moves import Moves
from tests.graph.architectures import MODELS, answer, drawn, first
from tests.problem.test_graph_problems import CASES, lifted
from tests.sampling import pairwise


def signal_gradient(problem, batch, nudge, monkeypatch):
    """J_Θᵀ E_l/m of every parameter by GramSweep's own signals, as if every term moved along its gradient."""
    found = {}

    def keep(self, name, p, memory, g, *rest):
        found[id(p)] = g

    with monkeypatch.context() as patch:
        patch.setattr(sweep, "is_dense", lambda problem, layer: False)
        patch.setattr(sweep, "is_convolution", lambda problem, layer: False)
        patch.setattr(Moves, "plain", keep)
        solver = lb.GramSweep(nudge=nudge)
        solver.step(problem, solver.init(problem, batch), batch)
    return found


@pytest.mark.parametrize("name", CASES)
def test_signals_are_those_of_back_propagation_as_the_nudge_vanishes(name, monkeypatch):
    """E depends smoothly on ν where no kink is crossed: 2 E(ν/2) - E(ν) has an error of order ν²."""
    problem, X, Y = lifted(name)
    Y = Y + answer(problem.model, X).detach()  # residuals of unit size: signals of larger ones are divided by ρ²
    batch = solvers.Batch.whole(problem, X, Y)
    nudge = 1e-5 * problem.links.longest_path
    with lb.forbid_activation_derivatives():
        whole, half = (signal_gradient(problem, batch, nu, monkeypatch) for nu in (nudge, nudge / 2))
    loss = 0.5 * (answer(problem.model, X) - Y).square().sum() / len(Y)
    loss.backward()
    size = torch.cat([p.grad.flatten() for p in problem.model.parameters() if p.grad is not None]).norm()
    checked = 0
    for name, p in problem.model.named_parameters():
        if p.grad is not None:
            found = 2.0 * half[id(p)] - whole[id(p)]
            assert float((found - p.grad).norm()) <= 1e-7 * float(size), name
            checked += 1
    assert checked


def taught(name, samples=24):
    """A problem in float32 with targets from another model of the same kind."""
    torch.manual_seed(1)
    model, inputs = MODELS[name]()
    teacher, _ = MODELS[name]()
    for p in teacher.parameters():
        nn.init.normal_(p, std=0.5)
    X = drawn(inputs, samples)
    Y = answer(teacher.double().eval(), X).detach()
    model = model.double()
    return lb.lift(model, loss=lb.SquaredError(), example=first(X, 2)), X, Y


SOLVERS = {
    "default": (None, 8),
    "ImplicitSGD": (lb.ImplicitSGD(prox_weight=1.0, inner_steps=5), 8),
    "ProximalGradient": (lb.ProximalGradient(), None),
    "ProximalGradient by colours": (lb.ProximalGradient(sweep=solvers.OddEven()), None),
    "StochasticProximalGradient": (
        lb.StochasticProximalGradient(solvers.CurvatureStep(0.5, upper=False), solvers.CurvatureStep(1.0, upper=False)),
        8,
    ),
    "ModelAveraging": (lb.ModelAveraging(2, lb.ProximalGradient(), local_steps=3), None),
    "BregmanIterations": (lb.BregmanIterations(), None),
    "target sparsity": (
        solvers.TargetedPenalties(lb.ProximalGradient(), {1: solvers.TargetSparsity(0.2)}),
        None,
    ),
    "LinBreg": (lb.LinBreg(step_size=1e-4), 8),
    "AdaBreg": (lb.AdaBreg(step_size=0.001), 8),
}


@pytest.mark.parametrize(("name", "solver"), pairwise(CASES, list(SOLVERS)))
def test_training_lowers_the_loss_without_derivatives_of_activations(name, solver):
    problem, X, Y = taught(name)
    chosen, batch_size = SOLVERS[solver]
    if chosen is not None and not chosen.training_mode:
        problem.model.eval()
    if chosen is not None and not chosen.shared_parameters and problem.network.shared:
        with pytest.raises(lb.errors.CompatibilityError, match="occur in one term each"):
            lb.fit(problem, (X, Y), solver=chosen, epochs=1, batch_size=batch_size)
        return
    before = float(problem.objective(X, Y))
    with lb.forbid_activation_derivatives():
        result = lb.fit(problem, (X, Y), solver=chosen, epochs=8, batch_size=batch_size)
    # Solvers of the whole set lower the energy, while the network's own value may rise for long.
    best = min(min(row["objective"], row["energy"]) for row in result.history)
    assert best < before, result.message


@pytest.mark.parametrize(
    "name", ["post-activation residual", "language model", "recurrence", "two inputs", "three inputs"]
)
@pytest.mark.parametrize("solver", [baselines.SGD(0.001), baselines.AdamW(0.01)], ids=["SGD", "AdamW"])
def test_baselines_train_graphs(name, solver):
    problem, X, Y = taught(name)
    before = float(problem.objective(X, Y))
    result = lb.fit(problem, (X, Y), solver=solver, epochs=8, batch_size=8)
    assert result.history[-1]["objective"] < before
