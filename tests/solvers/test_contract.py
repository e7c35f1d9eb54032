"""What every solver promises: exact continuation, progress, frozen parameters untouched, refusals before work."""

from __future__ import annotations

import copy

import pytest
import torch

import lifted_bregman as lb
from lifted_bregman import errors, solvers
from lifted_bregman.solvers.batches import InMemory
from tests import cases
from tests.sampling import pairwise
from tests.solvers.problems import NAMES, Case, make

SOLVERS = cases.solver_cases()


def compatible(solver, case: Case) -> bool:
    try:
        solver.require(case.problem)
    except errors.CompatibilityError:
        return False
    return True


def batches(solver, case: Case, epochs: int):
    whole = solvers.Batch.whole(case.problem, *case.data)
    return [
        b for epoch in range(1, epochs + 1) for b in InMemory(whole, 5 if solver.minibatch else None, 0).epoch(epoch)
    ]


def parameters(case: Case):
    return {name: p.detach().clone() for name, p in case.problem.model.named_parameters()}


@pytest.mark.parametrize("solver", SOLVERS, ids=cases.name)
def test_a_loaded_state_continues_bitwise(solver):
    """Saved after some steps and loaded with a fresh problem, five more steps give the same bits."""
    name = next(n for n in NAMES if compatible(solver, make(n)))
    case = make(name)
    steps = batches(solver, case, 6)
    cut = len(steps) - 5
    state = solver.init(case.problem, steps[0])
    for batch in steps[:cut]:
        state = solver.step(case.problem, state, batch)
    saved, model = copy.deepcopy(state.state_dict()), copy.deepcopy(case.problem.model.state_dict())
    for batch in steps[cut:]:
        state = solver.step(case.problem, state, batch)

    other = make(name, seed=0)
    other.problem.model.load_state_dict(model)
    again = solver.init(other.problem, steps[0])
    again.load_state_dict(saved)
    for batch in steps[cut:]:
        again = solver.step(other.problem, again, batch)
    for key, value in parameters(case).items():
        assert torch.equal(value, parameters(other)[key]), key
    if state.variables is not None:
        for l, x in enumerate(state.variables, start=1):
            assert torch.equal(x, again.variables[l]), f"x_{l}"
    assert state.metrics == again.metrics and state.steps == again.steps


@pytest.mark.parametrize(("solver", "name"), pairwise(SOLVERS, NAMES), ids=cases.name)
def test_progress_on_every_problem(solver, name):
    """From the same start every solver lowers what it minimises, stays finite, and leaves frozen parameters alone.

    Lifted solvers on the whole set lower the energy; the others lower the objective of the nested network.  The
    classical lifted method and MAC-QP minimise other energies, and are only required to stay finite.
    """
    case = make(name)
    if not compatible(solver, case):
        before = parameters(case)
        with pytest.raises(errors.CompatibilityError, match=f"{type(solver).__name__} requires .*; missing: "):
            solvers.run(case.problem, case.data, solver, epochs=1)
        assert all(torch.equal(before[k], v) for k, v in parameters(case).items())
        return
    before, start = parameters(case), float(case.problem.objective(*case.data))
    result = solvers.run(case.problem, case.data, solver, epochs=25, batch_size=5 if solver.minibatch else None)
    assert result.outcome in (solvers.Outcome.FINISHED, solvers.Outcome.STALLED), result.message
    rows = result.history
    after = parameters(case)
    assert all(bool(v.isfinite().all()) for v in after.values())
    for key, parameter in case.problem.model.named_parameters():
        assert torch.equal(before[key], after[key]) is (not parameter.requires_grad), key
    other_energy = isinstance(solver, solvers.baselines.ClassicalLifted | solvers.baselines.MACQP)
    if "energy" in rows[-1] and not other_energy and not isinstance(solver, solvers.Constrained):
        assert rows[-1]["energy"] < start
    elif not other_energy:
        assert rows[-1]["objective"] < start
    assert all(row["forward_maps"] > 0 and row["parameter_gradients"] >= 0 for row in rows)


@pytest.mark.parametrize("solver", SOLVERS, ids=cases.name)
def test_same_seed_same_bits(solver):
    name = next(n for n in NAMES if compatible(solver, make(n)))
    runs = []
    for _ in range(2):
        case = make(name)
        solvers.run(case.problem, case.data, solver, epochs=3, batch_size=5 if solver.minibatch else None)
        runs.append(parameters(case))
    assert all(torch.equal(runs[0][key], runs[1][key]) for key in runs[0])


@pytest.mark.parametrize("solver", SOLVERS, ids=cases.name)
def test_settings_are_frozen_and_a_foreign_state_is_refused(solver):
    with pytest.raises(AttributeError):
        solver.steps = 3
    name = next(n for n in NAMES if compatible(solver, make(n)))
    case = make(name)
    state = solver.init(case.problem, batches(solver, case, 1)[0])
    with pytest.raises(errors.SettingError, match="solver that saved it"):
        state.load_state_dict({"something": 1})


def test_every_solver_is_a_case():
    import inspect

    listed = {type(solver) for solver in SOLVERS}
    public = [*vars(solvers).values(), *vars(solvers.baselines).values()]
    classes = {c for c in public if inspect.isclass(c) and issubclass(c, solvers.Solver) and not inspect.isabstract(c)}
    assert classes == listed
    assert lb.baselines is solvers.baselines
