"""Index rules: which block touches which, against the sparsity of the energy itself."""

import pytest
import torch

from lifted_bregman.graph import Links
from lifted_bregman.problem import blocks
from lifted_bregman.problem.blocks import ParameterBlock as P
from lifted_bregman.problem.blocks import VariableBlock as V

from .networks import dense_case


def test_a_parameter_block_is_in_its_own_term_and_a_variable_in_two():
    assert blocks.terms(P(3), Links.chain(4)) == (3,)
    assert blocks.terms(V(3), Links.chain(4)) == (3, 4)


def test_neighbours_by_hand_for_four_layers():
    assert blocks.neighbours(P(1), Links.chain(4)) == {V(1)}
    assert blocks.neighbours(P(2), Links.chain(4)) == {V(1), V(2)}
    assert blocks.neighbours(P(4), Links.chain(4)) == {V(3)}
    assert blocks.neighbours(V(1), Links.chain(4)) == {P(1), P(2), V(2)}
    assert blocks.neighbours(V(2), Links.chain(4)) == {P(2), P(3), V(1), V(3)}
    assert blocks.neighbours(V(3), Links.chain(4)) == {P(3), P(4), V(2)}


def test_one_layer_has_one_block_without_neighbours():
    assert blocks.all_blocks(1) == (P(1),)
    assert blocks.neighbours(P(1), Links.chain(1)) == frozenset()
    assert blocks.top_down(1) == blocks.bottom_up(1) == (P(1),)


def test_terms_are_those_parts_of_the_energy_that_a_block_changes():
    case = dense_case()
    problem = case.problem()
    before = problem.layer_energies(case.state(), case.X, case.Y)
    for block in blocks.all_blocks(problem.depth):
        state = case.state()
        if isinstance(block, V):
            state[block.layer] = state[block.layer] * 0.9
            after = problem.layer_energies(state, case.X, case.Y)
        else:
            weight = problem.network[block.layer].map.module.weight
            with torch.no_grad():
                weight.mul_(1.1)
                after = problem.layer_energies(state, case.X, case.Y)
                weight.div_(1.1)
        changed = (~torch.isclose(after, before, rtol=1e-12)).nonzero().flatten() + 1
        assert tuple(changed.tolist()) == blocks.terms(block, problem.links)


def test_the_gradient_of_a_block_depends_on_its_neighbours_only():
    case = dense_case()
    problem = case.problem()
    depth = problem.depth

    def gradient(block, state):
        point = problem.evaluate(state, case.X, case.Y)
        if isinstance(block, V):
            return problem.variable_gradient(point, block.layer)
        return problem.parameter_gradient(point, block.layer)["weight"]

    for block in blocks.all_blocks(depth):
        assert problem.neighbours(block) == blocks.neighbours(block, Links.chain(depth))
        for other in map(V, blocks.hidden_layers(depth)):
            state = case.state()
            before = gradient(block, state)
            state[other.layer] = state[other.layer] * 0.9
            same = torch.equal(before, gradient(block, state))
            assert same == (other not in blocks.neighbours(block, Links.chain(depth)) | {block})


@pytest.mark.parametrize("depth", range(1, 8))
def test_neighbours_are_mutual(depth):
    for block in blocks.all_blocks(depth):
        assert all(
            block in blocks.neighbours(other, Links.chain(depth))
            for other in blocks.neighbours(block, Links.chain(depth))
        )
        assert blocks.neighbours(block, Links.chain(depth)) <= set(blocks.all_blocks(depth))


@pytest.mark.parametrize("depth", range(1, 8))
def test_sweeps_visit_every_block_once(depth):
    every = sorted(blocks.all_blocks(depth), key=repr)
    for order in (
        blocks.top_down(depth),
        blocks.bottom_up(depth),
        [b for g in blocks.by_colour(Links.chain(depth)) for b in g],
    ):
        assert sorted(order, key=repr) == every


def test_top_down_is_the_order_of_algorithm_1():
    assert blocks.top_down(3) == (P(3), V(2), P(2), V(1), P(1))
    assert blocks.bottom_up(3) == (P(1), V(1), P(2), V(2), P(3))


@pytest.mark.parametrize("depth", range(1, 8))
def test_the_groups_of_odd_even_are_independent(depth):
    for group in blocks.by_colour(Links.chain(depth)):
        assert blocks.independent(group, Links.chain(depth))
        assert all(a not in blocks.neighbours(b, Links.chain(depth)) for a in group for b in group)


def test_neighbouring_blocks_are_not_independent():
    assert not blocks.independent([V(1), V(2)], Links.chain(4))
    assert not blocks.independent([P(2), V(1)], Links.chain(4))
    assert blocks.independent([P(1), V(2)], Links.chain(4))
