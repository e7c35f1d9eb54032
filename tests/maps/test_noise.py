"""`GaussianNoise` and dropout as regularisers: their law, their modes, and the penalties that they are in expectation.

Expectations are sums over all masks, or over all signs of ±s, which have the mean and covariance of the noise and so
its expectation of every quadratic; Gauss-Hermite quadrature where the function is not quadratic.
"""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
import torch
from scipy.stats import kstest
from torch import nn

import lifted_bregman as lb
from lifted_bregman.errors import SettingError, TensorError, UnsupportedModuleError
from lifted_bregman.graph.reader import read_network
from lifted_bregman.graph.summary import summarise
from lifted_bregman.maps.sites import RandomSite
from tests import cases

F64 = torch.float64


def generator(seed=0):
    return torch.Generator().manual_seed(seed)


def drawn(*shape, seed=0):
    return torch.randn(*shape, generator=generator(seed), dtype=F64)


def layer_with(module, inputs, outputs):
    """A dense layer behind `module`, read as one term, and the site of that module."""
    torch.manual_seed(inputs)
    network = read_network(nn.Sequential(module, nn.Linear(inputs, outputs)).double())
    site = next(site for site in network[1].map.sites if isinstance(site, RandomSite))
    return network[1].map, site


def expected_loss(f, site, X, Y, draws, chances):
    """Σ_k chance_k · mean over samples of ½‖f(x; draw_k) - y‖²; the same draw for all samples."""
    total = 0.0
    with f.frozen():
        for draw, chance in zip(draws, chances, strict=True):
            site.drawn = draw.expand_as(X)
            total += chance * float(0.5 * (f.apply(X) - Y).square().sum(1).mean())
    return total


def signs(width, std):
    return [std * torch.tensor(s, dtype=F64) for s in itertools.product((-1.0, 1.0), repeat=width)]


def test_noise_on_the_input_of_a_least_squares_layer_is_ridge():
    std, X, Y = 0.7, drawn(5, 6), drawn(5, 3, seed=1)
    f, site = layer_with(lb.GaussianNoise(std), 6, 3)
    noisy = expected_loss(f, site, X, Y, signs(6, std), [2.0**-6] * 64)
    W, b = f.parameters["weight"].detach(), f.parameters["bias"].detach()
    clean = float(0.5 * (X @ W.T + b - Y).square().sum(1).mean())
    ridge = float(lb.penalties.SquaredL2(std**2).value(W).sum())
    assert ridge == pytest.approx(0.5 * std**2 * float(W.square().sum()), rel=1e-14)
    assert noisy == pytest.approx(clean + ridge, rel=1e-13)


@pytest.mark.parametrize("p", [0.2, 0.5, 0.9])
def test_dropout_of_a_least_squares_layer_is_ridge_weighted_by_the_energies_of_the_columns(p):
    X, Y = drawn(5, 6), drawn(5, 3, seed=1)
    f, site = layer_with(nn.Dropout(p), 6, 3)
    masks = [torch.tensor(mask, dtype=F64) for mask in itertools.product((0.0, 1.0), repeat=6)]
    chances = [math.prod(1 - p if kept else p for kept in mask.tolist()) for mask in masks]
    noisy = expected_loss(f, site, X, Y, [mask / (1 - p) for mask in masks], chances)
    W, b = f.parameters["weight"].detach(), f.parameters["bias"].detach()
    clean = float(0.5 * (X @ W.T + b - Y).square().sum(1).mean())
    ridge = float(0.5 * p / (1 - p) * (X.square().mean(0) * W.square().sum(0)).sum())
    assert noisy == pytest.approx(clean + ridge, rel=1e-12)


def test_noise_has_the_law_of_a_gaussian_and_masks_that_of_torchs():
    X = torch.zeros(400, 25, dtype=F64)
    f, site = layer_with(lb.GaussianNoise(0.3), 25, 2)
    torch.manual_seed(3)
    f.apply(X)
    assert site.drawn.dtype == F64 and site.drawn.shape == X.shape
    assert kstest(site.drawn.flatten().numpy() / 0.3, "norm").pvalue > 1e-3
    f, site = layer_with(nn.Dropout(0.2), 25, 2)
    f.apply(X)
    assert set(site.drawn.unique().tolist()) == {0.0, 1.25}


def test_the_mean_over_draws_of_the_module_itself_is_ridge_within_five_standard_errors():
    std, count = 0.5, 4000
    model = nn.Sequential(lb.GaussianNoise(std), nn.Linear(4, 2)).double()
    X, Y = drawn(3, 4), drawn(3, 2, seed=1)
    torch.manual_seed(5)
    with torch.no_grad():
        Z = model(X.repeat(count, 1, 1))
        losses = 0.5 * (Z - Y).square().sum(-1).mean(1)
        clean = float(0.5 * (model.eval()(X) - Y).square().sum(1).mean())
    expected = clean + 0.5 * std**2 * float(model[1].weight.detach().square().sum())
    assert abs(float(losses.mean()) - expected) < 5.0 * float(losses.std()) / math.sqrt(count)


def weighted_ridge(X, Y, weights):
    """argmin of mean ½‖Wx + b - y‖² + ½ Σ_j weights_j ‖W_{:,j}‖², with a free b."""
    A, B = X - X.mean(0), Y - Y.mean(0)
    W = torch.linalg.solve(A.T @ A / len(X) + torch.diag(weights), A.T @ B / len(X)).T
    return W, Y.mean(0) - W @ X.mean(0)


@pytest.mark.parametrize("solver", [lb.GramSweep(), lb.baselines.SGD(lb.solvers.CosineDecay(0.1))], ids=cases.name)
@pytest.mark.parametrize("module", [lb.GaussianNoise(0.8), nn.Dropout(0.4)], ids=repr)
def test_training_with_noise_or_dropout_ends_at_the_ridge_solution(module, solver):
    """400 random steps with lengths that fall to 0 end within a fifth of the way from least squares to ridge."""
    scales = torch.tensor([2.0, 1.5, 1.0, 0.7, 0.5, 0.3], dtype=F64)
    X, noise = drawn(40, 6) * scales, drawn(40, 2, seed=1)
    Y = X @ drawn(6, 2, seed=2) + 0.3 * noise + 0.5
    dropping = isinstance(module, nn.Dropout)
    weights = 0.4 / 0.6 * X.square().mean(0) if dropping else torch.full_like(scales, 0.8**2)
    (W, b), (least_squares, _) = weighted_ridge(X, Y, weights), weighted_ridge(X, Y, torch.zeros_like(scales))
    torch.manual_seed(1)
    model = nn.Sequential(module, nn.Linear(6, 2)).double()
    lb.fit(lb.lift(model, loss=lb.SquaredError()), (X, Y), solver, epochs=400, batch_size=40)
    assert float((model[1].weight.detach() - W).norm()) < 0.2 * float((least_squares - W).norm())
    torch.testing.assert_close(model[1].bias.detach(), b, rtol=0.0, atol=0.2)


@pytest.mark.parametrize("activation", cases.ACTIVATIONS, ids=cases.name)
def test_noise_adds_between_zero_and_ridge_to_a_bregman_term(activation):
    """B(x, z) is convex in z with a 1-Lipschitz gradient; for the identity the upper bound is what noise adds."""
    std, X = 0.4, drawn(3, 4)
    f, site = layer_with(lb.GaussianNoise(std), 4, 3)
    x = cases.domain_points(activation, drawn(3, 3, seed=2))
    clean = lb.bregman_loss(x, X @ f.parameters["weight"].detach().T + f.parameters["bias"].detach(), activation)
    with f.frozen():
        noisy = 0.0
        for draw in signs(4, std):
            site.drawn = draw.expand_as(X)
            noisy = noisy + lb.bregman_loss(x, f.apply(X), activation) / 16
    ridge = 0.5 * std**2 * float(f.parameters["weight"].detach().square().sum())
    added = noisy - clean
    assert (added > -1e-12).all() and (added < ridge + 1e-12).all()
    if activation == lb.activations.Identity():
        torch.testing.assert_close(added, torch.full_like(added, ridge), rtol=1e-12, atol=1e-12)


def test_noise_of_a_network_adds_half_the_variance_times_the_trace_of_the_hessian_to_second_order():
    """E L(x + sn) = L(x) + (s²/2) tr ∇²L(x) + O(s⁴): halving s divides the remainder by 16."""
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(2, 5), nn.Tanh(), nn.Linear(5, 3)).double()
    x, y = drawn(1, 2), drawn(1, 3, seed=1)
    nodes, weights = np.polynomial.hermite_e.hermegauss(30)
    weights = weights / weights.sum()
    points = torch.tensor(list(itertools.product(nodes, repeat=2)), dtype=F64)
    chances = torch.tensor([a * b for a, b in itertools.product(weights, repeat=2)], dtype=F64)

    def loss(inputs):
        return 0.5 * (net(inputs) - y).square().sum(1)

    tikhonov = float(torch.autograd.functional.hessian(lambda t: loss(t[None])[0], x[0]).trace())
    remainders = []
    for std in (0.1, 0.05):
        network = read_network(nn.Sequential(lb.GaussianNoise(std), *net))
        site = next(site for site in network[1].map.sites if isinstance(site, RandomSite))
        with network[1].map.frozen():
            site.drawn = std * points
            outputs = network.forward(x.expand_as(points))[-1]
        noisy = float(chances @ (0.5 * (outputs - y).square().sum(1)))
        remainders.append(noisy - float(loss(x).detach()) - 0.5 * std**2 * tikhonov)
    assert remainders[0] / remainders[1] == pytest.approx(16.0, rel=0.05)


def test_noise_is_drawn_for_each_call_kept_while_frozen_and_off_in_evaluation_mode():
    noise = lb.GaussianNoise(0.5)
    model = nn.Sequential(noise, nn.Linear(3, 2)).double()
    network, X = read_network(model), drawn(4, 3)
    f = network[1].map
    assert f.random and network.random and not network.couples_samples
    first = f.apply(X)
    assert not torch.equal(f.apply(X), first)
    with f.frozen():
        held = f.apply(X)
        assert torch.equal(f.apply(X), held)
        with pytest.raises(TensorError, match=r"noise was drawn for \(4, 3\) and is applied to \(2, 3\)"):
            f.apply(X[:2])
    clean = X @ model[1].weight.detach().T + model[1].bias.detach()
    with network.evaluating():
        torch.testing.assert_close(f.apply(X), clean, rtol=1e-14, atol=1e-14)
    model.eval()
    torch.testing.assert_close(f.apply(X), clean, rtol=1e-14, atol=1e-14)
    assert torch.equal(noise(X), X) and not f.random


def test_the_pull_backs_are_those_of_the_noisy_layer():
    f, site = layer_with(lb.GaussianNoise(0.5), 4, 3)
    X, d = drawn(6, 4), drawn(6, 3, seed=1)
    z, pull = f.linearise(X)
    W, seen = f.parameters["weight"].detach(), X + site.drawn
    torch.testing.assert_close(z, seen @ W.T + f.parameters["bias"].detach(), rtol=1e-13, atol=1e-13)
    back, gradients = pull(d)
    torch.testing.assert_close(back, d @ W, rtol=1e-13, atol=1e-13)
    torch.testing.assert_close(gradients["weight"], d.T @ seen, rtol=1e-13, atol=1e-13)


def test_the_summary_names_noise_and_what_was_left_out():
    model = nn.Sequential(lb.GaussianNoise(0.25), nn.Linear(3, 4), nn.ReLU(), nn.Dropout(0.5), nn.Linear(4, 2))
    shown = summarise(read_network(model))
    assert "noise 0.25, linear 3->4" in shown and "dropout 0.5, linear 4->2" in shown
    assert "Random (dropout and noise in training mode): model.1 (Linear), model.4 (Linear)." in shown
    left = summarise(read_network(model.eval()))
    assert "dropout of model.3." in left and "noise of model.0." in left and "Random" not in left
    assert repr(model[0]) == "GaussianNoise(std=0.25)"


def test_noise_of_zero_is_left_out_and_takes_no_random_numbers():
    network = read_network(nn.Sequential(lb.GaussianNoise(0.0), nn.Linear(3, 2)))
    assert not network.random and [left.path for left in network.skipped] == ["model.0"]
    assert network.skipped_active is None


@pytest.mark.parametrize("std", [-0.1, math.nan, math.inf, "0.1", True, None])
def test_invalid_standard_deviations_are_refused(std):
    with pytest.raises(SettingError, match=r"std is .*; the standard deviation of noise must be a finite number >= 0"):
        lb.GaussianNoise(std)


def test_noise_on_indices_is_refused():
    with pytest.raises(TensorError, match=r"torch\.int64.*put it after the embedding"):
        lb.GaussianNoise(0.1)(torch.zeros(2, 3, dtype=torch.int64))


def test_noise_in_a_map_and_outside_of_a_step_is_refused_by_name():
    with pytest.raises(UnsupportedModuleError, match=r"model\.0\.module \(GaussianNoise\).*random.*model\.eval\(\)"):
        lb.lift(nn.Sequential(lb.Map(lb.GaussianNoise(0.1)), nn.Linear(3, 2)), loss=lb.SquaredError())
    problem = lb.lift(nn.Sequential(lb.GaussianNoise(0.1), nn.Linear(3, 2)), loss=lb.SquaredError())
    with pytest.raises(UnsupportedModuleError, match=r"model\.0 \(GaussianNoise\).*model\.eval\(\)"):
        problem.forward_state(torch.zeros(2, 3))


def test_noise_that_was_left_out_and_a_solver_that_takes_none_are_refused_before_training():
    data = torch.zeros(4, 3), torch.zeros(4, 2)
    model = nn.Sequential(lb.GaussianNoise(0.1), nn.Linear(3, 2)).eval()
    problem = lb.lift(model, loss=lb.SquaredError())
    model.train()
    with pytest.raises(lb.errors.CompatibilityError, match=r"its noise was left out.*model\.train\(\) before lift"):
        lb.fit(problem, data, epochs=1)
    problem = lb.lift(model, loss=lb.SquaredError())
    with pytest.raises(lb.errors.CompatibilityError, match=r"model\.1 \(Linear\) is none in training mode"):
        lb.fit(problem, data, lb.ADMM(), epochs=1)


def test_pruning_keeps_noise():
    model = nn.Sequential(lb.GaussianNoise(0.1), nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 2))
    with torch.no_grad():
        model[1].weight[1], model[1].bias[1] = 0.0, 0.0
    smaller = lb.prune(model, torch.zeros(2, 3))
    assert isinstance(smaller[0], lb.GaussianNoise) and smaller[1].out_features == 3
