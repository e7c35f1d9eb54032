"""What activations answer: the limits, the bound, the signals of the library's own solver."""

import copy

import pytest
import torch
from torch import nn
from torch.nn import functional as F

import lifted_bregman as lb
from lifted_bregman import activations as act
from tests.backward.nets import Residual, Transformer, assert_same, batch, chain, chain_by_hand, gradients
from tests.cases import ACTIVATIONS, name
from tests.graph import architectures


@pytest.mark.parametrize("activation", ACTIVATIONS, ids=name)
def test_without_nudge_the_gradients_are_autograds(activation):
    model = chain(activation.as_module(), nn.Tanh())
    x, y = batch()
    expected = gradients(model, x, y)
    lifted = gradients(lb.lifted_backward(model, nudge=1e-7), x, y)
    assert_same(lifted, expected, rtol=1e-6, atol=1e-8)


@pytest.mark.parametrize("activation", [a for a in ACTIVATIONS if a != act.Identity()], ids=name)
@pytest.mark.parametrize("nudge", [0.5, 30.0])
def test_an_answer_is_never_longer_than_the_gradient(activation, nudge):
    z = torch.randn(5, 8, dtype=torch.float64, generator=torch.Generator().manual_seed(0)).mul(2.0).requires_grad_()
    model = lb.lifted_backward(nn.Sequential(activation.as_module()), nudge)
    G = torch.randn(5, 8, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    model(z).backward(G)
    assert (z.grad.norm(dim=1) <= G.norm(dim=1) * (1.0 + 1e-12)).all() and z.grad.abs().sum() > 0


def test_dead_and_saturated_units_get_a_signal():
    for module, value in ((nn.ReLU(), -0.5), (nn.Hardtanh(), 1.2), (nn.ReLU6(), 6.5), (nn.Softshrink(0.5), 0.3)):
        z = torch.full((1, 1), value, requires_grad=True)
        # the loss would fall if the output moved back into the range in which the activation has a slope
        G = torch.tensor([[-8.0 if value < 0.0 or isinstance(module, nn.Softshrink) else 8.0]])
        module(z).backward(G)
        assert z.grad.abs().item() == 0.0
        lifted = lb.lifted_backward(nn.Sequential(module), nudge=1.0)
        z.grad = None
        lifted(torch.cat([z, torch.full((1, 1), 9.0)], 1)).backward(torch.cat([G, torch.zeros(1, 1)], 1))
        assert z.grad.sign().item() == G.sign().item()


def test_gradients_of_a_chain_follow_the_formula_of_the_answer():
    activations = (act.Softplus(), act.ReLU(), act.Tanh())
    model = chain(*(a.as_module() for a in activations))
    x, y = batch()
    for nudge in (1e-3, 0.5, 50.0):  # not limited, and limited by 0.3 ‖z‖
        lifted = lb.lifted_backward(copy.deepcopy(model), nudge)
        assert_same(gradients(lifted, x, y), chain_by_hand(model, activations, x, y, nudge), rtol=1e-10, atol=1e-13)


def test_mean_and_sum_of_the_losses_give_the_same_signals():
    model = chain(nn.ReLU(), nn.Tanh())
    x, y = batch()
    mean = gradients(lb.lifted_backward(copy.deepcopy(model)), x, y)
    summed = gradients(
        lb.lifted_backward(copy.deepcopy(model), reduction="sum"),
        x,
        y,
        lambda z, y: F.cross_entropy(z, y, reduction="sum"),
    )
    assert_same({key: g / len(x) for key, g in summed.items()}, mean, rtol=1e-12, atol=1e-15)
    several = gradients(
        lb.lifted_backward(copy.deepcopy(model), terms_per_sample=3), x, y, lambda z, y: F.cross_entropy(z, y) / 3
    )
    assert_same({key: 3 * g for key, g in several.items()}, mean, rtol=1e-12, atol=1e-15)
    assert any(not torch.allclose(gradients(model, x, y)[key], g, rtol=1e-3) for key, g in mean.items())


def test_a_sample_has_its_signal_whatever_the_others_are():
    model = lb.lifted_backward(chain(nn.ReLU(), nn.Tanh()), nudge=20.0, reduction="sum")
    x, y = batch()

    def signal(rows):
        inputs = x[rows].clone().requires_grad_()
        F.cross_entropy(model(inputs), y[rows], reduction="sum").backward()
        return inputs.grad[0]

    torch.testing.assert_close(signal([0, 1, 2]), signal([0, 4, 3, 5]), rtol=1e-12, atol=1e-15)


def graph_gradients(model, X, y, nudge):
    """Gradients of the mean cross-entropy from the terms of `lb.lift`, with the signals of a sweep from the top down.

    g_v = Σ J_xᵀ E_t over the terms t that read x_v, E_v = (σ(z_v) - σ(z_v - ν_i g_v))/ν_i, and the gradient J_Θᵀ E/m.
    """
    problem = lb.lift(model, loss=lb.CrossEntropy(), example=X[:2])
    network, inputs = problem.network, problem.links.inputs
    x, z, pulls, pulled, found = {0: X}, {}, {}, {}, {}
    for l in range(1, problem.depth + 1):
        z[l], pulls[l] = network[l].map.linearise(network.read(x, l))
        x[l] = network[l].activate(z[l])
    for l in range(problem.depth, 0, -1):
        own = network[l]
        if l == problem.depth:
            E = z[l].softmax(-1) - F.one_hot(y, z[l].shape[-1])
        elif isinstance(own.activation, act.Identity):
            E = pulled[l]
        else:
            norms = [t.flatten(1).norm(dim=1).view(-1, *[1] * (t.ndim - 1)) for t in (z[l], pulled[l])]
            nu = (0.3 * norms[0] / norms[1]).clamp(max=nudge)
            E = (x[l] - own.activate(z[l] - nu * pulled[l])) / nu
        below, gradient = pulls[l](E, 1.0 / len(X), any(v > 0 for v in inputs[l]))
        for v, g in zip(inputs[l], below if isinstance(below, tuple) else (below,), strict=True):
            if v > 0:
                pulled[v] = pulled[v] + g if v in pulled else g
        lenders = getattr(own.map, "lenders", {})  # of parameters that an earlier term has too
        for key, g in gradient.items():
            owner, there = lenders.get(key, (l, key))
            place = id(network[owner].map.parameters[there])
            found[place] = found[place] + g if place in found else g
    return {key: found[id(p)] for key, p in model.named_parameters()}


@pytest.mark.parametrize("nudge", [0.01, 3.0])
@pytest.mark.parametrize(
    "model",
    [chain(nn.Softplus(), nn.ReLU(), nn.Tanh()), Residual(), architectures.PreActivation(), Transformer()],
    ids=["chain", "residual", "pre-activation", "transformer"],
)
def test_the_gradients_are_those_of_the_lifted_graph(model, nudge):
    model = copy.deepcopy(model).double()
    if isinstance(model, Transformer):
        x, y = torch.randint(0, 11, (6, 4), generator=torch.Generator().manual_seed(2)), torch.arange(6) % 3
    else:
        x, y = batch()
    plain = gradients(model, x, y)
    expected = graph_gradients(model, x, y, nudge)
    # ν/P of both, whatever P is: the graph also counts variables with the identity as activation
    path = lb.backward_report(lb.lifted_backward(copy.deepcopy(model), example=x[:2])).longest_path
    found = gradients(lb.lifted_backward(model, nudge * path), x, y)
    assert_same(found, expected, rtol=1e-9, atol=1e-11)
    assert max((plain[key] - g).abs().max() for key, g in found.items()) > 1e-6


def test_no_activation_is_differentiated():
    x, y = batch()
    ids = torch.arange(12).view(3, 4) % 11
    with lb.forbid_activation_derivatives():
        gradients(lb.lifted_backward(Residual().double()), x, y)
        gradients(lb.lifted_backward(Transformer()), ids, torch.arange(3))
        gradients(lb.lifted_backward(chain(act.Sparsemax().as_module(), nn.ReLU(inplace=True))), x, y)
        with pytest.raises(lb.errors.ActivationDerivativeError):
            gradients(Residual().double(), x, y)


def test_a_layer_that_begins_at_zero_gets_autograds_signal():
    # 0.3 ‖z‖ is 0 there, and a nudge of 0 would leave it where it is
    model = chain(nn.Sigmoid(), nn.Tanh())
    with torch.no_grad():
        model[2].weight.zero_()
        model[2].bias.zero_()
    x, y = batch()
    assert_same(gradients(lb.lifted_backward(copy.deepcopy(model), 1e-6), x, y), gradients(model, x, y), 1e-5, 1e-8)


def test_overflowed_gradients_stay_visible():
    for module in (nn.ReLU(), nn.Tanh(), nn.Softmax(-1), nn.Hardtanh()):
        for bad in (float("inf"), float("nan")):
            z = torch.randn(2, 3, requires_grad=True)
            model = lb.lifted_backward(nn.Sequential(copy.deepcopy(module)))
            model(z).backward(torch.tensor([[bad, 1.0, 1.0], [1.0, 1.0, 1.0]]))
            assert not z.grad[0].isfinite().all() and z.grad[1].isfinite().all()


def test_a_penalty_adds_its_own_signal():
    # ν → 0: σ'(z)(G + ∂R(x)/c); R = ½w‖x‖² has the gradient w x
    model = chain(nn.Softplus(), nn.Tanh())
    x, y = batch()
    lifted = lb.lifted_backward(copy.deepcopy(model), 1e-6, penalties={"1": lb.penalties.SquaredL2(0.7)})

    def penalised(model, x, y):
        model.zero_grad()
        h = model[1](model[0](x))
        (F.cross_entropy(model[2:](h), y) + 0.35 * h.square().sum() / len(x)).backward()
        return {key: p.grad for key, p in model.named_parameters()}

    assert_same(gradients(lifted, x, y), penalised(model, x, y), rtol=1e-4, atol=1e-7)


@pytest.mark.long
def test_an_l1_penalty_makes_sparse_codes():
    torch.manual_seed(0)
    x = torch.rand(64, 12)
    found = {}
    for penalties in ({}, {"1": lb.penalties.L1(1.0)}):
        torch.manual_seed(1)
        model = nn.Sequential(nn.Linear(12, 24), nn.ReLU(), nn.Linear(24, 12))
        lb.lifted_backward(model, terms_per_sample=12, penalties=penalties)
        optimizer = torch.optim.Adam(model.parameters(), 0.01)
        for _ in range(80):
            optimizer.zero_grad()
            F.mse_loss(model(x), x).backward()
            optimizer.step()
        found[bool(penalties)] = (model[1](model[0](x)) == 0).float().mean().item()
    assert found[True] > found[False] + 0.2
