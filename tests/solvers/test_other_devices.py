"""Training where the model and the data are not on the CPU."""

from __future__ import annotations

import pytest
import torch
from torch.utils._pytree import tree_map_only

import lifted_bregman as lb
from lifted_bregman.solvers import Batch, Run, Solver
from tests.cases import name
from tests.solvers.pretend_device import ELSEWHERE, PretendDevice, move_model
from tests.solvers.problems import make

SOLVERS = [
    lb.GramSweep(),
    lb.ImplicitSGD(prox_weight=5.0, inner_steps=2),
    lb.SAGA(),
    lb.baselines.SGD(learning_rate=0.02, momentum=0.5),
    lb.baselines.Adam(),
]


@pytest.mark.parametrize("solver", SOLVERS, ids=name)
def test_a_run_on_another_device_has_the_numbers_of_the_cpu(solver: Solver):
    here, there = make("relu"), make("relu")
    w = torch.arange(1.0, 13.0) if solver.weighted else None
    lb.fit(here.problem, here.data, solver, epochs=2, batch_size=5, sample_weights=w)
    with PretendDevice():
        move_model(there.problem.model)
        data = there.X.to(ELSEWHERE), there.Y.to(ELSEWHERE)
        lb.fit(there.problem, data, solver, epochs=2, batch_size=5, sample_weights=w)
        ends = [p.detach().cpu() for p in there.problem.model.parameters()]
    for end, p in zip(ends, here.problem.model.parameters(), strict=True):
        torch.testing.assert_close(end, p.detach(), rtol=1e-12, atol=1e-14)


@pytest.mark.parametrize("solver", SOLVERS, ids=name)
def test_a_state_that_was_stored_on_the_cpu_goes_on_where_the_data_is(solver: Solver):
    """Checkpoints hold tensors of the CPU."""
    case = make("relu")
    with PretendDevice():
        move_model(case.problem.model)
        batch = Batch.whole(case.problem, case.X.to(ELSEWHERE), case.Y.to(ELSEWHERE))
        first = Run(case.problem, solver, batch, epochs=1, batch_size=5)
        first.execute()
        stored = tree_map_only(torch.Tensor, lambda tensor: tensor.cpu(), first.state_dict())
        second = Run(case.problem, solver, batch, epochs=2, batch_size=5)
        second.load_state_dict(stored)
        second.execute()
    assert second.state.steps == 6


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
