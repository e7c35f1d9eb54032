"""Training where the model and the data are not on the CPU."""

from __future__ import annotations

import pytest
import torch
from torch.utils._pytree import tree_map_only

import lifted_bregman as lb
from lifted_bregman.errors import CompatibilityError
from lifted_bregman.solvers import Batch, Run, Solver
from tests.cases import name, solver_cases
from tests.graph.architectures import MODELS
from tests.problem.test_graph_problems import CASES
from tests.solvers.pretend_device import ELSEWHERE, PretendDevice, move_model
from tests.solvers.problems import NAMES, Case, make

SOLVERS = [
    lb.GramSweep(),
    lb.ImplicitSGD(prox_weight=5.0, inner_steps=2),
    lb.SAGA(),
    *solver_cases(),
]
GRAPH_SOLVERS = [
    lb.GramSweep(),
    lb.ImplicitSGD(prox_weight=5.0, inner_steps=1),
    lb.baselines.Adam(),
]
# torch has another second derivative of group and instance normalisation for tensors of a subclass, which fails.
NORMALISED = ("post-activation residual, group norm", "normalisations")
GRAPHS = [(kind, solver) for kind in CASES if len(MODELS[kind]()[1]) == 1 for solver in GRAPH_SOLVERS]
GRAPHS = [pair for pair in GRAPHS if not (pair[0] in NORMALISED and isinstance(pair[1], lb.ImplicitSGD))]


def problem_for(solver: Solver) -> Case:
    """A fresh copy of the first problem that the solver takes."""
    for kind in NAMES:
        case = make(kind)
        try:
            solver.require(case.problem)
        except CompatibilityError:
            continue
        return case
    raise AssertionError(solver)


@pytest.mark.parametrize("solver", SOLVERS, ids=name)
def test_a_run_on_another_device_has_the_numbers_of_the_cpu(solver: Solver):
    here, there = problem_for(solver), problem_for(solver)
    w = torch.arange(1.0, 13.0) if solver.weighted else None
    size = 5 if solver.minibatch else None
    lb.fit(here.problem, here.data, solver, epochs=2, batch_size=size, sample_weights=w)
    with PretendDevice():
        move_model(there.problem.model)
        data = there.X.to(ELSEWHERE), there.Y.to(ELSEWHERE)
        lb.fit(there.problem, data, solver, epochs=2, batch_size=size, sample_weights=w)
        ends = [p.detach().cpu() for p in there.problem.model.parameters()]
    for end, p in zip(ends, here.problem.model.parameters(), strict=True):
        torch.testing.assert_close(end, p.detach(), rtol=1e-12, atol=1e-14)


@pytest.mark.parametrize("solver", SOLVERS, ids=name)
def test_a_state_that_was_stored_on_the_cpu_goes_on_where_the_data_is(solver: Solver):
    """Checkpoints hold tensors of the CPU."""
    case = problem_for(solver)
    size = 5 if solver.minibatch else None
    with PretendDevice():
        move_model(case.problem.model)
        batch = Batch.whole(case.problem, case.X.to(ELSEWHERE), case.Y.to(ELSEWHERE))
        first = Run(case.problem, solver, batch, epochs=1, batch_size=size)
        first.execute()
        stored = tree_map_only(torch.Tensor, lambda tensor: tensor.cpu(), first.state_dict())
        second = Run(case.problem, solver, batch, epochs=2, batch_size=size)
        second.load_state_dict(stored)
        second.execute()
    assert second.state.steps == (6 if solver.minibatch else 2)


@pytest.mark.parametrize(("kind", "solver"), GRAPHS, ids=lambda value: value if isinstance(value, str) else name(value))
def test_a_graph_on_another_device_has_the_numbers_of_the_cpu(kind: str, solver: Solver):
    torch.manual_seed(3)
    (model, (X,)), (other, _) = MODELS[kind](), MODELS[kind]()
    other.load_state_dict(model.state_dict())
    Y = torch.randn_like(model.eval()(X).detach())
    lb.fit(lb.lift(model, loss=lb.SquaredError(), example=X[:2]), (X, Y), solver, epochs=2, batch_size=3)
    with PretendDevice():
        move_model(other.eval())
        data = X.to(ELSEWHERE), Y.to(ELSEWHERE)
        lb.fit(lb.lift(other, loss=lb.SquaredError(), example=data[0][:2]), data, solver, epochs=2, batch_size=3)
        ends = [p.detach().cpu() for p in other.parameters()]
    if "torch's own" in kind and isinstance(solver, lb.GramSweep):
        return  # attention's key biases have gradients of 0, whose rounding decides which way their units go
    for end, p in zip(ends, model.parameters(), strict=True):
        torch.testing.assert_close(end, p.detach(), rtol=1e-9, atol=1e-11)


def test_the_pretended_device_refuses_what_a_real_one_would():
    with PretendDevice():
        X = torch.ones(3, 2).to(ELSEWHERE)
        for wrong in (
            lambda: X.index_select(0, torch.tensor([1])),
            lambda: X + torch.ones(3, 2),
            lambda: torch.rand(3, generator=torch.Generator(), device=ELSEWHERE),
        ):
            with pytest.raises(RuntimeError, match=r"two devices|generator"):
                wrong()
        assert X[torch.tensor([1])].device == (X * torch.tensor(2.0)).device == ELSEWHERE
