"""Lifted problems of networks that are no chains: energies, gradients and curvatures against autograd in float64."""

import pytest
import torch

import lifted_bregman as lb
from lifted_bregman.graph import Links
from lifted_bregman.losses import bregman_loss
from lifted_bregman.problem import blocks
from lifted_bregman.problem.blocks import ParameterBlock, VariableBlock
from tests.graph.architectures import MODELS, answer, drawn, first

F64 = torch.float64
CASES = [name for name in MODELS if name != "chain"]


def lifted(name, samples=5, weights=None):
    torch.manual_seed(3)
    model, inputs = MODELS[name]()
    model = model.double().eval()
    X = drawn(inputs, samples)
    Y = torch.randn_like(answer(model, X).detach())
    problem = lb.lift(model, loss=lb.SquaredError(), example=first(X, 2), weights=weights)
    return problem, X, Y


@pytest.mark.parametrize("name", CASES)
def test_the_energy_at_the_forward_state_is_the_loss_of_the_model(name):
    problem, X, Y = lifted(name)
    loss = 0.5 * (answer(problem.model, X).detach() - Y).square().flatten(1).sum(1).mean()
    assert float(problem.energy(problem.forward_state(X), X, Y)) == pytest.approx(float(loss), rel=1e-12)
    assert float(problem.objective(X, Y)) == pytest.approx(float(loss), rel=1e-12)


@pytest.mark.parametrize("name", CASES)
def test_gradients_of_all_blocks_are_those_of_autograd(name):
    """At a point off the forward pass, with another λ for each term: ∇ of Σ_t λ_t B_t(x_t, z_t), x_t held in B_t."""
    problem, X, Y = lifted(name)
    problem = problem.with_weights([0.5 + 0.1 * l for l in range(1, problem.depth)])
    network = problem.network
    state = problem.forward_state(X)
    for l in blocks.hidden_layers(problem.depth):
        inside = network[l].prox(state[l] + 0.05 * torch.randn_like(state[l]), 0.5)
        state[l] = inside
    x = [problem.prepare(X, Y)[0], *(state[l].clone().requires_grad_() for l in blocks.hidden_layers(problem.depth)), Y]
    value = 0.0
    for l in blocks.layers(problem.depth):
        own, z = network[l], network[l].map.evaluate(network.read(x, l))
        value = (
            value + problem.weight(l) * bregman_loss(own.arrange(x[l].detach()), own.arrange(z), own.activation).sum()
        )
    (value / len(Y)).backward()
    point = problem.evaluate(state, X, Y)
    for l in blocks.hidden_layers(problem.depth):
        expected = x[l].grad * len(Y) - problem.weight(l) * point.z(l)
        torch.testing.assert_close(problem.variable_gradient(point, l), expected, rtol=1e-9, atol=1e-10)
    found = {}
    for l in blocks.layers(problem.depth):
        for key, g in problem.parameter_gradient(point, l).items():
            found[id(network[l].map.parameters[key])] = g
    for key, p in problem.model.named_parameters():
        if p.grad is not None:
            torch.testing.assert_close(
                found.pop(id(p)), p.grad, rtol=1e-9, atol=1e-10, msg=lambda m, key=key: f"{key}: {m}"
            )
    assert not [g for g in found.values() if g.count_nonzero()]


@pytest.mark.parametrize("name", ["pre-activation residual", "dense block", "x - relu(f(x))", "language model"])
def test_the_gradient_of_a_block_depends_on_its_neighbours_only(name):
    problem, X, Y = lifted(name)
    state = problem.forward_state(X)

    def gradient(block, state):
        point = problem.evaluate(state, X, Y)
        if isinstance(block, VariableBlock):
            return [problem.variable_gradient(point, block.layer)]
        return list(problem.parameter_gradient(point, block.layer).values())

    for block in blocks.all_blocks(problem.depth):
        before = gradient(block, state)
        for other in blocks.hidden_layers(problem.depth):
            moved = state.clone()
            moved[other] = moved[other] * 0.9 + 0.01 * moved[other].mean()
            same = all(map(torch.equal, before, gradient(block, moved)))
            near = VariableBlock(other) in problem.neighbours(block) | {block}
            assert same or near


def test_colours_of_a_graph_are_independent_and_complete():
    """Term 3 reads x_1 and x_2, term 4 reads x_1 and x_3: x_1 .. x_3 all meet, so that three colours are needed."""
    links = Links([(0,), (0,), (1, 2), (1, 3)])
    assert links.readers == ((1, 2), (3, 4), (3,), (4,), ())
    parameters, *variables = blocks.by_colour(links)
    assert sorted(v.layer for group in variables for v in group) == [1, 2, 3]
    assert len(variables) == 3 and all(blocks.independent(group, links) for group in variables)
    assert parameters == tuple(map(ParameterBlock, (1, 2, 3, 4)))
    assert links.longest_path == 2 and not links.is_chain and Links.chain(3).is_chain


def test_a_shared_parameter_is_in_all_terms_that_use_it():
    links = Links([(0,), (1,), (2,)], [(1, 3), (2,), (3,)])
    assert blocks.terms(ParameterBlock(1), links) == (1, 3)
    assert blocks.neighbours(ParameterBlock(1), links) == {VariableBlock(1), VariableBlock(2), ParameterBlock(3)}


@pytest.mark.parametrize("name", ["x - relu(f(x))", "pre-activation residual", "recurrence"])
def test_curvatures_bound_the_change_of_gradients(name):
    """‖∇(x + h) - ∇(x)‖ <= L‖h‖ for the variables of one term, 1 % above the estimate."""
    problem, X, Y = lifted(name)
    state = problem.forward_state(X)
    point = problem.evaluate(state, X, Y)
    for l in blocks.hidden_layers(problem.depth):
        bound = 1.02 * problem.variable_curvature(point, l)
        start = problem.variable_gradient(point, l) + problem.weight(l) * point.z(l)
        for _ in range(3):
            moved = state.clone()
            h = 1e-4 * torch.randn_like(moved[l])
            moved[l] = moved[l] + h
            there = problem.evaluate(moved, X, Y)
            gap = problem.variable_gradient(there, l) + problem.weight(l) * there.z(l) - start
            norms = gap.flatten(1).norm(dim=1), h.flatten(1).norm(dim=1)
            assert bool((norms[0] <= bound * norms[1] + 1e-12).all())


def test_penalties_and_weights_go_by_name():
    problem, *_ = lifted("pre-activation residual")
    names = [name for layer in problem.network.layers[:-1] for name in layer.names]
    by_name = lb.lift(
        problem.model, loss=lb.SquaredError(), penalties={names[0]: lb.penalties.L1(0.2)}, weights={names[0]: 3.0}
    )
    place = by_name.network.named(names[0])
    assert by_name.penalties == {place: lb.penalties.L1(0.2)} and by_name.weight(place) == 3.0
    with pytest.raises(lb.errors.SettingError, match="did you mean"):
        lb.lift(problem.model, loss=lb.SquaredError(), penalties={names[0] + "x": lb.penalties.L1(0.2)})
