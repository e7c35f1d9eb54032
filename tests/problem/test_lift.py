"""`lift`: what fits together, what is refused and how it is said; and the checks on data."""

import math

import pytest
import torch
from torch import nn

import lifted_bregman as lb
from lifted_bregman import activations as act
from lifted_bregman import penalties
from lifted_bregman.errors import CompatibilityError, DomainError, LiftedBregmanError, SettingError, TensorError
from tests.solvers.pretend_device import elsewhere

from .networks import CASES, F64


def model(*end, widths=(4, 5, 6, 3)):
    a, b, c, d = widths
    return nn.Sequential(nn.Linear(a, b), nn.Tanh(), nn.Linear(b, c), nn.ReLU(), nn.Linear(c, d), *end).double()


def data(samples=7):
    torch.manual_seed(0)
    return torch.randn(samples, 4, dtype=F64), torch.randn(samples, 3, dtype=F64)


# Loss and final activation


@pytest.mark.parametrize(
    ("end", "loss", "activation"),
    [
        ([], lb.SquaredError(), act.Identity()),
        ([], lb.CrossEntropy(), act.Softmax()),
        ([], lb.BregmanLoss(act.Sigmoid()), act.Sigmoid()),
        ([nn.Identity()], lb.SquaredError(), act.Identity()),
        ([act.Identity().as_module()], lb.SquaredError(), act.Identity()),
        ([nn.Softmax(dim=1)], lb.CrossEntropy(), act.Softmax()),
        ([nn.Softmax(dim=-1)], lb.BregmanLoss(act.Softmax()), act.Softmax()),
        ([nn.Sigmoid()], lb.BregmanLoss(act.Sigmoid()), act.Sigmoid()),
        ([nn.ReLU6()], lb.BregmanLoss(act.Box(0.0, 6.0)), act.Box(0.0, 6.0)),
    ],
)
def test_a_loss_that_fits_gives_the_last_term_its_activation(end, loss, activation):
    problem = lb.lift(model(*end), loss=loss)
    assert problem.depth == 3
    assert problem.network[3].activation == activation
    assert problem.loss is loss


def test_with_a_final_activation_the_residual_is_that_of_the_models_output():
    net = model(nn.Sigmoid())
    X, _ = data()
    Y = torch.rand(7, 3, dtype=F64)
    problem = lb.lift(net, loss=lb.BregmanLoss(act.Sigmoid()))
    point = problem.evaluate(problem.forward_state(X), X, Y)
    torch.testing.assert_close(point.residual(3), net(X).detach() - Y)


@pytest.mark.parametrize(
    ("end", "loss", "remedy"),
    [
        ([nn.Sigmoid()], lb.SquaredError(), r"BregmanLoss\(Sigmoid\(\)\)"),
        ([nn.Softmax(dim=1)], lb.SquaredError(), r"CrossEntropy\(\)"),
        ([nn.ReLU()], lb.CrossEntropy(), r"BregmanLoss\(ReLU\(\)\)"),
        (
            [nn.Softshrink(0.5)],
            lb.BregmanLoss(act.SoftThreshold(0.4)),
            r"BregmanLoss\(SoftThreshold\(threshold=0.5\)\)",
        ),
    ],
)
def test_a_loss_that_does_not_fit_the_final_activation_is_refused(end, loss, remedy):
    with pytest.raises(CompatibilityError, match=remedy) as caught:
        lb.lift(model(*end), loss=loss)
    assert ("no Bregman loss" in str(caught.value)) == isinstance(loss, lb.SquaredError)


@pytest.mark.parametrize(
    ("loss", "remedy"),
    [
        (nn.MSELoss(), "SquaredError"),
        (nn.CrossEntropyLoss(), "CrossEntropy"),
        (nn.NLLLoss(), "For nn.NLLLoss take CrossEntropy"),
        (nn.BCEWithLogitsLoss(), r"take lb\.BregmanLoss\(lb\.activations\.Sigmoid\(\)\)"),
        (nn.BCELoss(), r"take lb\.BregmanLoss\(lb\.activations\.Sigmoid\(\)\)"),
        ("mse", "SquaredError"),
        (None, "SquaredError"),
    ],
)
def test_other_losses_are_refused(loss, remedy):
    with pytest.raises(CompatibilityError, match=remedy):
        lb.lift(model(), loss=loss)


def test_loss_has_no_default():
    with pytest.raises(TypeError, match="loss"):
        lb.lift(model())


# Settings


def test_weights_are_one_by_default_and_a_number_stands_for_all():
    assert lb.lift(model(), loss=lb.SquaredError()).weights == (1.0, 1.0)
    assert lb.lift(model(), loss=lb.SquaredError(), weights=3).weights == (3.0, 3.0)
    problem = lb.lift(model(), loss=lb.SquaredError(), weights=(0.5, 2))
    assert [problem.weight(l) for l in (1, 2, 3)] == [0.5, 2.0, 1.0]
    assert lb.lift(model(), loss=lb.SquaredError(), weights=torch.tensor([0.5, 2.0])).weights == (0.5, 2.0)


@pytest.mark.parametrize(
    "weights",
    [0.0, -1.0, math.nan, math.inf, [1.0], [1.0, 2.0, 3.0], [1.0, 0.0], [1.0, "a"], "12", object(), [[1.0, 2.0]]],
)
def test_invalid_weights_are_refused(weights):
    with pytest.raises(SettingError, match=r"weights|λ"):
        lb.lift(model(), loss=lb.SquaredError(), weights=weights)


@pytest.mark.parametrize("layer", [0, 3, -1, "7", 1.5, True])
def test_penalties_are_for_hidden_layers(layer):
    with pytest.raises(SettingError, match="hidden layers count from 1 to 2"):
        lb.lift(model(), loss=lb.SquaredError(), penalties={layer: penalties.L1(0.1)})


def test_parameter_penalties_are_for_all_layers():
    problem = lb.lift(model(), loss=lb.SquaredError(), parameter_penalties={3: penalties.L1(0.1)})
    assert list(problem.parameter_penalties) == [3]
    with pytest.raises(SettingError, match="layers count from 1 to 3"):
        lb.lift(model(), loss=lb.SquaredError(), parameter_penalties={4: penalties.L1(0.1)})
    with pytest.raises(SettingError, match="expected a penalty"):
        lb.lift(model(), loss=lb.SquaredError(), parameter_penalties={3: 0.1})
    frozen = model()
    frozen[2].weight.requires_grad_(False)
    with pytest.raises(SettingError, match=r"model\.2 \(Linear\).*no trained weight"):
        lb.lift(frozen, loss=lb.SquaredError(), parameter_penalties={2: penalties.L1(0.1)})


def test_a_penalty_that_cannot_be_combined_names_its_layer():
    net = nn.Sequential(nn.Linear(4, 5), nn.Hardtanh(1.0, 2.0), nn.Linear(5, 3)).double()
    with pytest.raises(CompatibilityError, match=r"penalties\[1\], after model\.0 \(Linear\)"):
        lb.lift(net, loss=lb.SquaredError(), penalties={1: penalties.Bounds(-1.0, 0.5)})  # nothing is in both boxes
    with pytest.raises(CompatibilityError, match=r"penalties\[2\], after model\.2 \(Linear\)"):
        lb.lift(model(), loss=lb.SquaredError(), penalties={2: penalties.GroupL2(0.1, group_size=4)})  # 6 units


@pytest.mark.parametrize("value", [[penalties.L1(0.1)], penalties.L1(0.1), 0.1])
def test_penalties_are_given_by_layer(value):
    with pytest.raises(SettingError, match="layer: penalty"):
        lb.lift(model(), loss=lb.SquaredError(), penalties=value)


def test_a_one_layer_network_has_no_hidden_layers():
    net = nn.Sequential(nn.Linear(4, 3)).double()
    problem = lb.lift(net, loss=lb.SquaredError())
    assert problem.weights == ()
    X, Y = data()
    assert len(problem.forward_state(X)) == 0
    torch.testing.assert_close(problem.energy(problem.forward_state(X), X, Y), problem.objective(X, Y))
    with pytest.raises(SettingError, match="do not exist"):
        lb.lift(net, loss=lb.SquaredError(), penalties={1: penalties.L1(0.1)})


def test_parameters_must_agree_and_be_finite():
    mixed = model()
    mixed[2].float()
    with pytest.raises(TensorError, match=r"2\.weight is torch\.float32.*model\.to"):
        lb.lift(mixed, loss=lb.SquaredError())
    with pytest.raises(TensorError, match="float16"):
        lb.lift(model().half(), loss=lb.SquaredError())
    broken = model()
    broken[4].bias.data[1] = math.nan
    with pytest.raises(TensorError, match=r"4\.bias holds NaN"):
        lb.lift(broken, loss=lb.SquaredError())


def test_the_loss_named_for_binary_cross_entropy_is_its_sum_over_features():
    z, y = torch.randn(6, 3, dtype=F64), torch.randint(0, 2, (6, 3)).double()
    expected = nn.BCEWithLogitsLoss(reduction="sum")(z, y) / 6
    torch.testing.assert_close(lb.BregmanLoss(act.Sigmoid())(z, y), expected)


def test_a_model_on_the_meta_device_is_refused():
    with pytest.raises(TensorError, match=r"0\.weight is on the meta device.*to_empty"):
        lb.lift(model().to("meta"), loss=lb.SquaredError())


def test_the_model_is_not_changed_by_lifting():
    net = model()
    before = {name: (p.data_ptr(), p.detach().clone()) for name, p in net.named_parameters()}
    X, Y = data()
    problem = lb.lift(net, loss=lb.SquaredError())
    problem.certificates(problem.forward_state(X), X, Y)
    for name, p in net.named_parameters():
        assert p.data_ptr() == before[name][0]
        assert torch.equal(p, before[name][1])
    assert problem.model is net


def test_new_values_in_the_model_are_seen_by_the_problem():
    net = model()
    X, Y = data()
    problem = lb.lift(net, loss=lb.SquaredError())
    problem.objective(X, Y)
    net.load_state_dict(model().state_dict())
    torch.testing.assert_close(problem.objective(X, Y), 0.5 * (net(X) - Y).square().sum(1).mean().detach())
    net.float()
    assert problem.objective(X.float(), Y.float()).dtype == torch.float32


# Data


def spoil(tensor, value, index):
    tensor = tensor.clone()
    tensor[index] = value
    return tensor


X, Y = data()
BAD_DATA = {
    "a list": (X.tolist(), Y, "as_tensor"),
    "another dtype": (X.float(), Y, r"X\.to\(torch\.float64\)"),
    "integers": (X.long(), Y, r"X\.to\(torch\.float64\)"),
    "one sample without its dimension": (X[0], Y[0], "unsqueeze"),
    "no samples": (X[:0], Y[:0], "at least one sample"),
    "too few features": (X[:, :3], Y, r"model\.0 \(Linear\).*takes 4 features"),
    "NaN": (spoil(X, math.nan, (5, 2)), Y, "X holds NaN or infinity, first in sample 5"),
    "infinity": (spoil(X, math.inf, (3, 0)), Y, "X holds NaN or infinity, first in sample 3"),
    "on another device": (elsewhere(X), Y, r"X\.to\('cpu'\)"),
    "targets as a list": (X, Y.tolist(), "as_tensor"),
    "fewer targets": (X, Y[:5], "7 samples and Y has 5"),
    "a single target": (X, torch.tensor(1.0, dtype=F64), "7 samples and Y has 0"),
    "targets of another width": (X, Y[:, :2], r"\(7, 2\).*\(7, 3\)"),
    "targets with NaN": (X, spoil(Y, math.nan, (4, 1)), "Y holds NaN or infinity, first in sample 4"),
    "targets on another device": (X, elsewhere(Y), r"Y\.to\('cpu'\)"),
}


@pytest.mark.parametrize("method", ["objective", "energy", "certificates", "evaluate"])
@pytest.mark.parametrize("name", BAD_DATA)
def test_bad_data_is_named_before_work_starts(name, method):
    problem = lb.lift(model(), loss=lb.SquaredError())
    inputs, targets, sentence = BAD_DATA[name]
    state = () if method == "objective" else (problem.forward_state(X),)
    with pytest.raises(TensorError, match=sentence):
        getattr(problem, method)(*state, inputs, targets)


@pytest.mark.parametrize("name", [name for name in BAD_DATA if "target" not in name])
def test_bad_inputs_are_named_where_there_are_no_targets(name):
    problem = lb.lift(model(), loss=lb.SquaredError())
    inputs, _, sentence = BAD_DATA[name]
    state = problem.forward_state(X)
    for call in (problem.forward_state, problem.linear_units, lambda X: problem.consistency(state, X)):
        with pytest.raises(TensorError, match=sentence):
            call(inputs)


def test_targets_outside_the_domain_name_the_sample():
    problem = lb.lift(model(), loss=lb.BregmanLoss(act.Sigmoid()))
    with pytest.raises(DomainError, match="sample 2"):
        problem.objective(X, spoil(torch.full((7, 3), 0.5, dtype=F64), 1.5, (2, 0)))


def test_labels_out_of_range_name_the_sample():
    problem = lb.lift(model(), loss=lb.CrossEntropy())
    with pytest.raises(LiftedBregmanError, match="sample 6"):
        problem.objective(X, torch.tensor([0, 1, 2, 0, 1, 2, 3]))


def test_an_image_of_the_wrong_size_names_the_layer_that_cannot_take_it():
    problem = CASES["convolutions"]().problem()
    with pytest.raises(TensorError, match=r"\(2, 8, 8\).*model\.6 \(Linear\)"):
        problem.forward_state(torch.randn(3, 2, 8, 8, dtype=F64))


def test_a_state_of_other_data_is_refused():
    problem = lb.lift(model(), loss=lb.SquaredError())
    good = problem.forward_state(X)
    for bad, sentence in [
        ([good[1], good[2]], "a list"),
        (lb.LiftedState([good[1]]), "1 variables"),
        (lb.LiftedState([good[2], good[1]]), r"x_1 is \(7, 6\).*expected \(7, 5\).*model\.0 \(Linear\)"),
        (good.select(torch.arange(3)), r"x_1 is \(3, 5\).*state\.select"),
        (good.to(torch.float32), "x_1 is .* of torch.float32"),
    ]:
        with pytest.raises(TensorError, match=sentence):
            problem.energy(bad, X, Y)
        with pytest.raises(TensorError, match=sentence):
            problem.consistency(bad, X)


@pytest.mark.parametrize(
    ("modules", "sample", "says"),
    [
        ([nn.Linear(3, 3), nn.Softmax(dim=-2), nn.Linear(3, 1)], (3,), "holds the samples"),
        ([nn.Linear(3, 3), act.BallProjection(1.0).as_module(dim=-2), nn.Linear(3, 1)], (3,), "holds the samples"),
        ([nn.Linear(3, 3), nn.Softmax(dim=-3), nn.Linear(3, 1)], (2, 3), "holds the samples"),
        ([nn.Linear(3, 3), nn.Softmax(dim=2), nn.Linear(3, 1)], (3,), "does not exist"),
        ([nn.Linear(3, 3), nn.Softmax(dim=-3), nn.Linear(3, 1)], (3,), "does not exist"),
    ],
)
def test_activations_along_the_samples_are_refused_with_the_data(modules, sample, says):
    """Whether a negative dimension is that of the samples is known with the data's shape, before any work."""
    problem, X = lb.lift(nn.Sequential(*modules).double(), loss=lb.SquaredError()), torch.randn(4, *sample, dtype=F64)
    for call in (
        lambda: problem.forward_state(X),
        lambda: lb.fit(problem, (X, torch.randn(*X.shape[:-1], 1, dtype=F64)), epochs=1),
    ):
        with pytest.raises(CompatibilityError, match=f"after model.0 .* {says}.* use dim=1"):
            call()


def test_a_negative_dimension_of_features_is_followed():
    modules = [nn.Linear(3, 3), nn.Softmax(dim=-2), nn.Linear(3, 1)]
    problem, X = lb.lift(nn.Sequential(*modules).double(), loss=lb.SquaredError()), torch.randn(4, 2, 3, dtype=F64)
    torch.testing.assert_close(problem.forward_state(X)[1], modules[1](modules[0](X)).detach())


# What is shown


def test_a_problem_is_shown_layer_by_layer():
    shown_model = nn.Sequential(
        nn.Conv2d(1, 2, 3), nn.ReLU(), nn.Flatten(), nn.Linear(32, 5), nn.Tanh(), nn.Linear(5, 3, bias=False)
    )
    shown_model[5].weight.requires_grad_(False)
    problem = lb.lift(
        shown_model,
        loss=lb.CrossEntropy(),
        weights=[0.5, 2.0],
        penalties={2: penalties.L1(0.1)},
        parameter_penalties={1: penalties.GroupL2(0.2)},
    )
    assert repr(problem) == "\n".join(
        [
            "LiftedProblem of 3 layers, 200 parameters of float32 on cpu, 15 of them frozen",
            f"  1: model.0 (Conv2d), 20 parameters with {penalties.GroupL2(0.2)!r}, ReLU(), λ = 0.5",
            f"  2: model.3 (Linear) 32 → 5, 165 parameters, Tanh(), λ = 2, {penalties.L1(0.1)!r}",
            "  3: model.5 (Linear) 5 → 3, 0 parameters, loss CrossEntropy(Softmax(), reduction='mean')",
        ]
    )
