"""Modules that are random or couple samples in training mode: refused there, and right in evaluation mode."""

import copy

import pytest
import torch
from torch import nn
from torch.nn import functional as F

import lifted_bregman as lb
from lifted_bregman.errors import CompatibilityError, UnsupportedModuleError


class FunctionalDropout(nn.Module):
    def forward(self, x):
        return F.dropout(x, 0.5, training=self.training)


class Centred(nn.Module):
    """Takes off the mean of the batch, in every mode."""

    def forward(self, x):
        return x - x.mean(0)


def data():
    generator = torch.Generator().manual_seed(0)
    return torch.randn(24, 3, generator=generator), torch.randn(24, 2, generator=generator)


def model(*modules):
    torch.manual_seed(1)
    return nn.Sequential(nn.Linear(3, 4), *modules, nn.ReLU(), nn.Linear(4, 2))


def lift(net):
    return lb.lift(net, loss=lb.SquaredError())


def batch_norm(**settings):
    """With statistics and parameters that are not those of a new one."""
    norm = nn.BatchNorm1d(4, **settings)
    if norm.running_mean is not None:
        norm.running_mean.copy_(torch.tensor([0.3, -0.2, 0.1, 0.5]))
        norm.running_var.copy_(torch.tensor([2.0, 0.5, 1.5, 1.0]))
    return norm


IN_TRAINING_MODE = {
    "dropout in a Map": (lb.Map(nn.Dropout(0.5)), r"model\.1\.module \(Dropout\).*random"),
    "dropout deep in a Map": (
        lb.Map(nn.Sequential(nn.Linear(4, 4), nn.Sequential(nn.AlphaDropout(0.1)))),
        r"model\.1\.module\.1\.0 \(AlphaDropout\).*random",
    ),
    "batch normalisation in a Map": (lb.Map(batch_norm()), r"model\.1\.module \(BatchNorm1d\).*couple the samples"),
    "random slope in a Map": (lb.Map(nn.RReLU()), r"model\.1\.module \(RReLU\).*random"),
    "attention in a Map": (lb.Map(nn.MultiheadAttention(4, 1, dropout=0.1)), r"\(MultiheadAttention\).*0\.1 is random"),
}


@pytest.mark.parametrize("name", IN_TRAINING_MODE)
def test_lift_refuses_training_mode_and_names_the_module_and_the_remedy(name):
    module, sentence = IN_TRAINING_MODE[name]
    with pytest.raises(UnsupportedModuleError, match=rf"{sentence}.*model\.eval\(\)"):
        lift(model(copy.deepcopy(module)))


def test_batch_normalisation_without_running_statistics_is_refused_in_evaluation_mode_too():
    with pytest.raises(UnsupportedModuleError, match=r"evaluation mode too.*track_running_stats=True"):
        lift(model(lb.Map(batch_norm(track_running_stats=False))).eval())


ACCEPTED = {
    "dropout in a Map, evaluation mode": (lb.Map(nn.Dropout(0.5)), False),
    "dropout in a Map, p = 0": (lb.Map(nn.Dropout(0.0)), True),
    "dropout, evaluation mode": (nn.Dropout(0.5), False),
    "dropout, p = 0": (nn.Dropout(0.0), True),
    "batch normalisation in a Map": (lb.Map(batch_norm()), False),
    "batch normalisation": (batch_norm(), False),
    "batch normalisation without parameters": (batch_norm(affine=False), False),
    "layer normalisation in a Map": (lb.Map(nn.LayerNorm(4)), True),
    "functional dropout, evaluation mode": (lb.Map(FunctionalDropout()), False),
}


@pytest.mark.parametrize("name", ACCEPTED)
def test_what_is_deterministic_is_trained_as_the_network_that_the_model_computes(name):
    module, training = ACCEPTED[name]
    net = model(copy.deepcopy(module)).train(training)
    X, Y = data()
    problem = lift(net)
    expected = 0.5 * (net(X) - Y).square().sum(1).mean().detach()
    torch.testing.assert_close(problem.objective(X, Y), expected)
    result = lb.fit(problem, (X, Y), epochs=3, validation=(X, Y))
    assert result.history[-1]["objective"] < float(expected)
    reached = float(0.5 * (net(X) - Y).square().sum(1).mean().detach())
    assert result.history[-1]["validation"] == pytest.approx(reached, rel=1e-5)


def test_dropout_in_evaluation_mode_adds_no_layer():
    assert lift(model(nn.Dropout(0.5)).eval()).depth == 2


@pytest.mark.parametrize(
    ("module", "error"),
    [
        (nn.Dropout(0.5), CompatibilityError),
        (lb.Map(nn.Dropout(0.5)), UnsupportedModuleError),
        (lb.Map(batch_norm()), UnsupportedModuleError),
    ],
)
def test_training_mode_after_lift_is_found_when_training_starts(module, error):
    net = model(copy.deepcopy(module)).eval()
    problem = lift(net)
    net.train()
    with pytest.raises(error, match=r"model\.eval\(\)"):
        lb.fit(problem, data(), epochs=1)


def test_an_energy_in_training_mode_after_lift_is_refused_with_the_remedy():
    net = model(nn.Dropout(0.5)).eval()
    problem, (X, Y) = lift(net), data()
    state = problem.forward_state(X)
    net.train()
    for call in (
        lambda: problem.energy(state, X, Y),
        lambda: problem.forward_state(X),
        lambda: problem.linear_units(X),
    ):
        with pytest.raises(UnsupportedModuleError, match=r"model\.1 \(Dropout\).*model\.eval\(\)"):
            call()


class ToTrainingMode(lb.callbacks.Callback):
    def recorded(self, run, row):
        run.problem.model.train()


@pytest.mark.parametrize("solver", [None, lb.baselines.SGD(0.01)])
def test_training_mode_during_a_run_is_an_error_and_not_a_random_network(solver):
    net = model(lb.Map(nn.Dropout(0.5))).eval()
    with pytest.raises(UnsupportedModuleError, match=r"model\.1\.module \(Dropout\)"):
        lb.fit(lift(net), data(), solver, epochs=3, callbacks=[ToTrainingMode()])


@pytest.mark.parametrize(
    ("module", "sentence"), [(FunctionalDropout(), "must not be random"), (Centred(), "treat each alone")]
)
def test_what_a_forward_method_hides_is_found_before_training_starts(module, sentence):
    net = model(lb.Map(module))
    torch.manual_seed(5)
    expected = torch.rand(3)
    torch.manual_seed(5)
    with pytest.raises(UnsupportedModuleError, match=rf"model\.1 \(Map\).*{sentence}"):
        lb.fit(lift(net), data(), epochs=1)
    assert torch.equal(torch.rand(3), expected)  # the check draws from numbers of its own


class RunningMean(nn.Module):
    """A module of the user with statistics that change in training mode."""

    def __init__(self):
        super().__init__()
        self.register_buffer("mean", torch.zeros(4))

    def forward(self, x):
        if self.training:
            self.mean.mul_(0.9).add_(x.detach().mean(0), alpha=0.1)
        return x - 0.5


def test_statistics_of_a_users_module_are_refused_and_left_as_they_were():
    net = model(lb.Map(RunningMean()))
    with pytest.raises(UnsupportedModuleError, match="changes one of its buffers"):
        lb.fit(lift(net), data(), epochs=1)
    assert torch.equal(net[1].module.mean, torch.zeros(4))
    lb.fit(lift(net.eval()), data(), epochs=1)


def test_pruning_keeps_dropout_in_evaluation_mode():
    net = model(nn.Dropout(0.5))
    net[1].eval()
    assert not lb.prune(net)[1].training
