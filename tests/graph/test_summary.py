"""The summary names every term, and says what is lifted, shared, unused, coupled and random."""

from torch import nn

import lifted_bregman as lb
from lifted_bregman.graph import read_network, summarise
from tests.graph.architectures import MODELS


def rows(text):
    """Cells of the table, which are two blanks apart."""
    return [[cell.strip() for cell in line.split("  ") if cell.strip()] for line in text.split("\n\n")[0].splitlines()]


def test_the_table_of_a_residual_network():
    model, x = MODELS["post-activation residual"]()
    text = summarise(read_network(model.eval(), x[0][:2]))
    table = rows(text)
    assert table[0] == ["name", "map", "activation", "reads", "parameters"]
    assert table[2] == ["1", "relu", "conv 2->4, 3x3", "ReLU()", "input", str(2 * 4 * 9 + 4)]
    assert table[8] == ["7", "layers_0_relu_1", "sum", "ReLU()", "max_pool2d, layers_0_bn2", "-"]
    assert len(table) == 2 + 13
    assert "5 activations are variables; 7 further variables have the identity" in text
    assert "inside a map: none" in text
    assert "coupled" not in text
    model.train()
    assert "Samples are coupled (batch normalisation in training mode): model.layers.0.bn1" in summarise(
        read_network(model)
    )


def test_shared_unused_random_and_left_out_parts_are_noted():
    model, x = MODELS["shared block"]()
    text = summarise(read_network(model, x))
    assert "Shared parameters: block.0.weight (terms 2, 4), block.0.bias (terms 2, 4)." in text
    assert "does not depend on: free.module.weight, free.module.bias, never.weight, never.bias." in text
    model, x = MODELS["dropout"]()
    assert "Random (dropout in training mode): model.b (Linear)." in summarise(read_network(model, x))
    assert "dropout of model, model.drop." in summarise(read_network(model.eval(), x))


def test_activations_inside_a_map_are_named():
    model = nn.Sequential(lb.Map(nn.Sequential(nn.Linear(3, 3), nn.GELU())), nn.ReLU(), nn.Linear(3, 2), nn.Softmax(1))
    text = summarise(read_network(model))
    assert "inside a map: model.0.module.1 (GELU)." in text
    assert rows(text)[2][1:4] == ["1", "lb.Map(Sequential)", "ReLU()"]
    assert rows(text)[3][3] == "Softmax() (the loss's)"


def test_inputs_have_the_names_of_the_forward_method():
    model, x = MODELS["two inputs"]()
    table = rows(summarise(read_network(model, x)))
    assert table[2][4] == "ids"
    assert table[3][4] == "facts"
    assert [row[5] for row in table[2:4]] == ["28", "16"]
