"""What `read_network` takes, how it cuts a model into layers, and what it refuses, with path, reason and remedy."""

import copy

import pytest
import torch
from torch import nn

import lifted_bregman as lb
from lifted_bregman import activations as act
from lifted_bregman.graph import read_network
from lifted_bregman.maps import Dense, TracedMap

Z = torch.linspace(-9.0, 9.0, 1201, dtype=torch.float64).reshape(-1, 1)

READ = {
    "ReLU": (nn.ReLU(), act.ReLU()),
    "ReLU in place": (nn.ReLU(inplace=True), act.ReLU()),
    "ReLU6": (nn.ReLU6(), act.Box(0.0, 6.0)),
    "Hardtanh": (nn.Hardtanh(-0.5, 2.0), act.Box(-0.5, 2.0)),
    "LeakyReLU": (nn.LeakyReLU(0.3), act.LeakyReLU(0.3)),
    "LeakyReLU, slope 1": (nn.LeakyReLU(1.0), act.LeakyReLU(1.0)),
    "LeakyReLU, slope 0": (nn.LeakyReLU(0.0), act.ReLU()),
    "Softshrink": (nn.Softshrink(0.7), act.SoftThreshold(0.7)),
    "Softshrink 0": (nn.Softshrink(0.0), act.Identity()),
    "Threshold": (nn.Threshold(0.0, 0.0), act.ReLU()),
    "Tanh": (nn.Tanh(), act.Tanh()),
    "Sigmoid": (nn.Sigmoid(), act.Sigmoid()),
    "Softsign": (nn.Softsign(), act.Softsign()),
    "ELU": (nn.ELU(0.6), act.ELU(0.6)),
    "ELU 0": (nn.ELU(0.0), act.ReLU()),
    "CELU 1": (nn.CELU(), act.ELU(1.0)),
    "CELU": (nn.CELU(2.5), None),
    "Softplus": (nn.Softplus(), act.Softplus()),
    "Softplus, beta": (nn.Softplus(beta=3.0), None),
    "LogSigmoid": (nn.LogSigmoid(), None),
    "Hardsigmoid": (nn.Hardsigmoid(), None),
    "Tanhshrink": (nn.Tanhshrink(), None),
    "of this library": (act.Arctan().as_module(), act.Arctan()),
}


@pytest.mark.parametrize("name", READ)
def test_torch_activations_are_read_as_the_proximal_maps_they_are(name):
    module, expected = READ[name]
    network = read_network(nn.Sequential(nn.Linear(1, 1), module, nn.Linear(1, 1)))
    found = network[1].activation
    if expected is not None:
        assert found == expected
    torch.testing.assert_close(found(Z), copy.deepcopy(module)(Z.clone()).detach(), rtol=1e-8, atol=1e-8)


def test_equal_settings_give_equal_activations_also_by_from_scalar():
    def first(module):
        return read_network(nn.Sequential(nn.Linear(1, 1), module, nn.Linear(1, 1)))[1].activation

    assert first(nn.CELU(2.5)) == first(nn.CELU(2.5)) != first(nn.CELU(3.0))
    assert first(nn.LogSigmoid()) == first(nn.LogSigmoid())


def layers_of(*modules):
    return list(read_network(nn.Sequential(*modules)))


def test_a_sequential_of_dense_layers_is_a_chain_of_dense_maps():
    model = nn.Sequential(nn.Linear(5, 4), nn.ReLU(), nn.Linear(4, 3), nn.Tanh(), nn.Linear(3, 2))
    network = read_network(model)
    assert len(network) == 3
    assert [type(layer.map) for layer in network] == [Dense] * 3
    assert [layer.activation for layer in network] == [act.ReLU(), act.Tanh(), act.Identity()]
    assert [layer.path for layer in network] == ["model.0 (Linear)", "model.2 (Linear)", "model.4 (Linear)"]
    assert network[2].map.module is model[2]
    assert network.final_activation is None
    assert network.model is model


def test_nested_sequentials_with_names():
    model = nn.Sequential()
    model.add_module("encoder", nn.Sequential(nn.Linear(5, 4), nn.ReLU()))
    model.add_module("decoder", nn.Sequential(nn.Sequential(nn.Linear(4, 3)), nn.Sigmoid()))
    network = read_network(model)
    assert [layer.path for layer in network] == ["model.encoder.0 (Linear)", "model.decoder.0.0 (Linear)"]
    assert network.final_activation == act.Sigmoid()


def test_the_final_activation_is_kept_apart():
    network = read_network(nn.Sequential(nn.Linear(5, 4), nn.ReLU(), nn.Linear(4, 3), nn.Softmax(dim=1)))
    assert network.final_activation == act.Softmax()
    assert network[2].activation == act.Identity()


def test_two_maps_in_a_row_get_an_identity_between_them():
    found = layers_of(nn.Linear(5, 4), nn.Linear(4, 3), nn.ReLU(), nn.Linear(3, 2), nn.Linear(2, 2))
    assert [layer.activation for layer in found] == [act.Identity(), act.ReLU(), act.Identity(), act.Identity()]


def test_identity_modules_are_skipped():
    found = layers_of(
        nn.Identity(), nn.Linear(5, 4), nn.Identity(), nn.ReLU(), nn.Identity(), nn.Linear(4, 3), nn.Identity()
    )
    assert [layer.activation for layer in found] == [act.ReLU(), act.Identity()]


def test_flatten_before_linear_is_dense():
    (layer,) = layers_of(nn.Flatten(), nn.Linear(12, 3))
    assert isinstance(layer.map, Dense)
    assert layer.map.flatten


def test_parameter_free_maps_fold_into_the_next_map_with_parameters():
    model = nn.Sequential(
        nn.AvgPool2d(2), nn.Conv2d(1, 2, 3), nn.ReLU(), nn.AvgPool2d(2), nn.Flatten(), nn.Linear(8, 3), nn.Tanh()
    )
    network = read_network(model)
    assert [layer.map.modules for layer in network] == [tuple(model[:2]), tuple(model[3:6])]
    assert [layer.path for layer in network] == ["model.1 (Conv2d)", "model.5 (Linear)"]
    assert [layer.dim for layer in network] == [1, -1]


def test_pooling_between_two_maps_with_parameters_goes_to_the_second():
    model = nn.Sequential(nn.Conv2d(1, 2, 3), nn.AvgPool2d(2), nn.Conv2d(2, 3, 1), nn.ReLU(), nn.Flatten())
    network = read_network(model)
    assert network[1].map.module is model[0]
    assert [layer.map.modules for layer in network.layers[1:]] == [(model[1], model[2]), (model[4],)]
    assert [layer.activation for layer in network] == [act.Identity(), act.ReLU(), act.Identity()]


def test_pooling_before_an_activation_or_the_end_stays_with_the_map_before_it():
    model = nn.Sequential(nn.Conv2d(1, 2, 3), nn.AvgPool2d(2), nn.ReLU(), nn.Conv2d(2, 3, 1), nn.Flatten())
    network = read_network(model)
    assert [layer.map.modules for layer in network] == [(model[0], model[1]), (model[3], model[4])]
    assert [layer.dim for layer in network] == [1, -1]


def test_pooling_between_two_activations_is_a_layer_without_parameters():
    network = read_network(nn.Sequential(nn.Conv2d(1, 2, 3), nn.ReLU(), nn.AvgPool2d(2), nn.Tanh(), nn.Conv2d(2, 1, 1)))
    assert len(network) == 3
    assert network[2].map.parameters == {}


def test_frozen_layers_are_layers():
    model = nn.Sequential(nn.Linear(3, 3), nn.ReLU(), nn.Linear(3, 2))
    model[0].requires_grad_(False)
    assert read_network(model)[1].map.parameters == {}


def test_a_module_in_map_is_one_traced_map():
    model = nn.Sequential(lb.Map(nn.Sequential(nn.Linear(3, 3), nn.GELU())), nn.ReLU(), nn.Linear(3, 2))
    network = read_network(model)
    assert isinstance(network[1].map, TracedMap)
    assert not network[1].map.affine
    assert list(network[1].map.parameters) == ["0.weight", "0.bias"]


def test_softmax_keeps_its_dimension():
    network = read_network(
        nn.Sequential(nn.Conv2d(1, 4, 1), nn.Softmax(dim=1), nn.Conv2d(4, 4, 1), nn.Softmax(dim=-1), nn.Conv2d(4, 1, 1))
    )
    assert [layer.dim for layer in network] == [1, -1, 1]


def test_a_joint_activation_of_this_library_acts_along_its_dimension():
    """Dense features by default, channels with dim=1; model and lifted problem compute the same."""
    assert layers_of(nn.Linear(3, 4), act.Sparsemax().as_module(), nn.Linear(4, 2))[0].dim == -1
    modules = (nn.Conv2d(1, 4, 1), act.Sparsemax().as_module(dim=1), nn.Conv2d(4, 1, 1))
    first = layers_of(*modules)[0]
    x = torch.randn(2, 1, 3, 3)
    assert first.dim == 1
    torch.testing.assert_close(first.activate(first.map.apply(x)), nn.Sequential(*modules[:2])(x))
    assert bool(((first.activate(first.map.apply(x)).sum(1) - 1.0).abs() < 1e-6).all())


def test_one_activation_module_may_be_used_twice():
    relu = nn.ReLU()
    assert len(layers_of(nn.Linear(3, 3), relu, nn.Linear(3, 3), relu, nn.Linear(3, 2))) == 3


def test_layers_count_from_one():
    network = read_network(nn.Sequential(nn.Linear(3, 3), nn.ReLU(), nn.Linear(3, 2)))
    for wrong in (0, 3, -1):
        with pytest.raises(lb.errors.SettingError, match="from 1 to 2"):
            network[wrong]


class Custom(nn.Module):
    def forward(self, x):
        return x


def hooked():
    linear = nn.Linear(3, 3)
    linear.register_forward_hook(lambda module, inputs, output: 2 * output)
    return linear


REFUSED = {
    "SELU": (nn.SELU(), "slope", "nn.ELU"),
    "ELU": (nn.ELU(1.5), "slope above 1", "(0, 1]"),
    "ELU, negative": (nn.ELU(-0.5), "decreasing", "(0, 1]"),
    "LeakyReLU, steep": (nn.LeakyReLU(1.5), "slope above 1", "(0, 1]"),
    "LeakyReLU, negative": (nn.LeakyReLU(-0.1), "decreasing", "(0, 1]"),
    "Softplus, cut off": (nn.Softplus(2.0, threshold=1.0), "jumps where beta z is 1", "at least 20"),
    "PReLU": (nn.PReLU(), "learned", "nn.LeakyReLU"),
    "RReLU": (nn.RReLU(), "random", "nn.LeakyReLU"),
    "Hardshrink": (nn.Hardshrink(), "jumps", "nn.Softshrink"),
    "Threshold": (nn.Threshold(0.5, 0.0), "jump", "nn.ReLU"),
    "Softmax without dimension": (nn.Softmax(), "dimension", "dim=1"),
    "Softmax over samples": (nn.Softmax(dim=0), "samples", "dim=1"),
    "hooks": (hooked(), "hooks", "remove"),
    "weight normalised": (nn.utils.parametrizations.weight_norm(nn.Linear(3, 3)), "may hide", "lb.Map"),
    "lazy": (nn.LazyLinear(3), "size", "run the model once"),
    "lazy in a Map": (lb.Map(nn.LazyLinear(3)), "size", "run the model once"),
    "flatten over samples": (nn.Flatten(0), "samples", "dimension 1"),
    "data parallel": (nn.DataParallel(nn.Linear(3, 3)), "devices", "model.2.1.module"),
}


@pytest.mark.filterwarnings("ignore:Lazy modules are a new feature")
@pytest.mark.parametrize("name", REFUSED)
def test_refusals_name_path_reason_and_remedy(name):
    module, reason, remedy = REFUSED[name]
    model = nn.Sequential(nn.Linear(3, 3), nn.ReLU(), nn.Sequential(nn.Linear(3, 3), module), nn.Linear(3, 2))
    with pytest.raises(lb.errors.UnsupportedModuleError) as caught:
        read_network(model)
    sentence = str(caught.value)
    assert f"model.2.1 ({type(module).__name__})" in sentence
    assert reason in sentence
    assert remedy in sentence
    assert isinstance(caught.value, TypeError)


def test_a_compiled_model_names_the_model_inside():
    compiled = torch.compile(nn.Linear(3, 2), backend="eager")  # which is not run
    with pytest.raises(lb.errors.UnsupportedModuleError, match=r"compiled.*model\._orig_mod"):
        read_network(compiled)
    with pytest.raises(lb.errors.UnsupportedModuleError, match=r"compiled.*model\.1\._orig_mod"):
        read_network(nn.Sequential(nn.Linear(3, 3), compiled))


def test_a_distributed_model_names_the_model_inside():
    torch.distributed.init_process_group("gloo", store=torch.distributed.HashStore(), rank=0, world_size=1)
    try:
        model = nn.parallel.DistributedDataParallel(nn.Sequential(nn.Linear(3, 2)))
        with pytest.raises(lb.errors.UnsupportedModuleError, match=r"model\.module.*lb\.Parallel"):
            read_network(model)
    finally:
        torch.distributed.destroy_process_group()


@pytest.mark.filterwarnings("ignore:Initializing zero-element tensors")
@pytest.mark.parametrize("widths", [(20, 0), (0, 20)])
def test_a_layer_of_width_zero_is_refused(widths):
    first, second = nn.Linear(*widths), nn.Linear(widths[1], 3)
    with pytest.raises(lb.errors.UnsupportedModuleError, match=r"model\.0 \(Linear\).*holds no numbers.*at least one"):
        read_network(nn.Sequential(first, nn.ReLU(), second))


def test_a_shared_layer_is_read_and_named():
    linear = nn.Linear(3, 3)
    network = read_network(nn.Sequential(linear, nn.ReLU(), linear))
    assert len(network) == 2
    assert network.shared == {"0.weight": (1, 2), "0.bias": (1, 2)}


def test_a_shared_parameter_is_read_and_named():
    first, second = nn.Linear(3, 3), nn.Linear(3, 3)
    second.weight = first.weight
    assert read_network(nn.Sequential(first, nn.ReLU(), second)).shared == {"0.weight": (1, 2)}


def test_two_parameters_on_one_memory_are_refused():
    first, second = nn.Linear(3, 3), nn.Linear(3, 3)
    second.weight = nn.Parameter(first.weight.data)
    with pytest.raises(
        lb.errors.UnsupportedModuleError, match=r"model\.2 \(Linear\).*weight is shared with model\.0\.weight.*deepcopy"
    ):
        read_network(nn.Sequential(first, nn.ReLU(), second))


def test_an_activation_without_a_map_before_it_is_refused():
    with pytest.raises(lb.errors.UnsupportedModuleError, match=r"model\.0 \(ReLU\).*no map comes before it"):
        read_network(nn.Sequential(nn.ReLU(), nn.Linear(3, 2)))


def test_two_activations_in_a_row_are_refused():
    with pytest.raises(lb.errors.UnsupportedModuleError, match=r"model\.2 \(Tanh\).*follows another activation"):
        read_network(nn.Sequential(nn.Linear(3, 2), nn.ReLU(), nn.Tanh(), nn.Linear(2, 2)))


@pytest.mark.parametrize(
    "model", [nn.Sequential(), nn.Sequential(nn.Flatten()), nn.Sequential(nn.AvgPool1d(2), nn.ReLU()), Custom()]
)
def test_a_model_without_parameters_is_refused(model):
    with pytest.raises(lb.errors.UnsupportedModuleError, match="nothing to train"):
        read_network(model)


def test_a_single_linear_layer_is_one_term():
    (layer,) = read_network(nn.Linear(3, 2))
    assert isinstance(layer.map, Dense)
    assert (layer.path, layer.inputs) == ("model (Linear)", (0,))


def test_only_modules_are_read():
    with pytest.raises(lb.errors.UnsupportedModuleError, match=r"given a str.*nn\.Module"):
        read_network("model")
