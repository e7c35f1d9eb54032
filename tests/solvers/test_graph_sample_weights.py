"""Whole numbers as sample weights are duplicated samples, on networks that are no chains."""

import pytest
import torch

import lifted_bregman as lb
from lifted_bregman.errors import CompatibilityError
from lifted_bregman.solvers import baselines
from tests.graph.architectures import MODELS, answer, drawn, first

F64 = torch.float64
KINDS = ["pre-activation residual", "language model", "dense block", "two inputs", "recurrence"]
SOLVERS = {
    "default": lb.GramSweep(step_size=0.02),
    "Kronecker": lb.GramSweep(step_size=0.2, total_steps=40),
    "ProximalGradient": lb.ProximalGradient(step_rule=lb.solvers.FixedStep(0.01, 0.05)),
    "AdamW": baselines.AdamW(0.02),
}
COUNTS = torch.tensor([1, 3, 2, 1, 2])


def case(name):
    model, inputs = MODELS[name]()
    torch.manual_seed(4)
    X = drawn(inputs, len(COUNTS))
    Y = torch.randn_like(answer(model.eval(), X).detach())
    return lb.lift(model, loss=lb.SquaredError(), example=first(X, 2)), X, Y


def repeated(X, Y):
    def each(t):
        return t.repeat_interleave(COUNTS, 0)

    return (tuple(map(each, X)) if isinstance(X, tuple) else each(X)), each(Y)


@pytest.mark.parametrize("name", KINDS)
def test_energies_and_gradients_are_those_of_duplicated_samples(name):
    problem, X, Y = case(name)
    w = COUNTS.double() / COUNTS.double().mean()
    XX, YY = repeated(X, Y)
    assert float(problem.objective(X, Y, weights=w)) == pytest.approx(float(problem.objective(XX, YY)), rel=1e-12)
    one = problem.evaluate(problem.forward_state(X), X, Y, weights=w)
    many = problem.evaluate(problem.forward_state(XX), XX, YY)
    for layer in range(1, problem.depth + 1):
        for key, g in problem.parameter_gradient(one, layer).items():
            torch.testing.assert_close(g, problem.parameter_gradient(many, layer)[key], rtol=1e-9, atol=1e-11)


@pytest.mark.parametrize("solver", SOLVERS)
@pytest.mark.parametrize(("name", "unit"), [*((name, 1.0) for name in KINDS), ("pre-activation residual", 50.0)])
def test_a_run_on_weights_is_the_run_on_duplicated_samples(name, unit, solver):
    chosen = SOLVERS[solver]
    one, X, Y = case(name)
    many, *_ = case(name)
    Y = unit * Y  # the default solver's steps follow the unit of large targets
    size = None if solver == "ProximalGradient" else 100
    lb.fit(one, (X, Y), solver=chosen, epochs=3, batch_size=size, sample_weights=COUNTS.numpy())
    lb.fit(many, repeated(X, Y), solver=chosen, epochs=3, batch_size=size)
    for (key, a), b in zip(one.model.named_parameters(), many.model.parameters(), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-6, atol=1e-7, msg=lambda m, key=key: f"{key}: {m}")


def test_weights_and_batch_statistics_are_refused_together():
    model, inputs = MODELS["post-activation residual"]()
    X = drawn(inputs, 6)
    problem = lb.lift(model.train(), loss=lb.SquaredError(), example=X[:2])
    with pytest.raises(CompatibilityError, match=r"bn1.*couples them; call model\.eval\(\), or leave the weights out"):
        lb.fit(problem, (X, torch.randn(6, 3, dtype=F64)), epochs=1, sample_weights=torch.ones(6))
