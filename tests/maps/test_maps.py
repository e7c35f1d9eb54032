"""Maps: values and pull-backs against torch's own forward and autograd, memory shared with the user's module."""

import pytest
import torch
from torch import nn

import lifted_bregman as lb
from lifted_bregman.maps import Dense
from lifted_bregman.maps.traced import trace_chain


class Bend(nn.Module):
    """A map that is affine neither in x nor in its parameters, with a buffer."""

    def __init__(self):
        super().__init__()
        self.gain = nn.Parameter(torch.tensor([0.3, -1.2, 0.7]))
        self.register_buffer("shift", torch.tensor([0.1, 0.2, 0.3]))

    def forward(self, x):
        return (x * self.gain.square() + self.shift) ** 3 + x[:, [1, 2, 0]] * self.gain


def cases():
    return {
        "dense": (lambda: Dense(nn.Linear(4, 3)), nn.Linear, (4,)),
        "dense without bias": (lambda: Dense(nn.Linear(4, 3, bias=False)), nn.Linear, (4,)),
        "dense, flattened images": (lambda: Dense(nn.Linear(12, 3), flatten=True), nn.Linear, (3, 2, 2)),
        "dense, sequences": (lambda: Dense(nn.Linear(4, 3)), nn.Linear, (5, 4)),
        "conv1d": (lambda: trace_chain(nn.Conv1d(2, 3, 3), affine=True), nn.Conv1d, (2, 6)),
        "conv2d": (lambda: trace_chain(nn.Conv2d(2, 3, 3, stride=2, padding=1), affine=True), nn.Conv2d, (2, 5, 6)),
        "conv3d": (lambda: trace_chain(nn.Conv3d(1, 2, 2), affine=True), nn.Conv3d, (1, 3, 3, 3)),
        "transposed conv": (lambda: trace_chain(nn.ConvTranspose2d(2, 3, 2), affine=True), nn.Module, (2, 3, 3)),
        "pool, flatten, linear": (
            lambda: trace_chain(nn.AvgPool2d(2), nn.Flatten(), nn.Linear(8, 3), affine=True),
            nn.Linear,
            (2, 4, 4),
        ),
        "pool": (lambda: trace_chain(nn.AvgPool2d(2), affine=True), nn.AvgPool2d, (2, 4, 4)),
        "any module": (lambda: trace_chain(lb.Map(Bend()), affine=False), Bend, (3,)),
        "pool, any module": (
            lambda: trace_chain(nn.AvgPool1d(2), nn.Flatten(), lb.Map(Bend()), affine=False),
            Bend,
            (1, 6),
        ),
    }


def build(name, samples=5):
    torch.manual_seed(7)
    make, _, shape = cases()[name]
    f = make()
    module = f.module if isinstance(f, Dense) else f.graph
    module.double()
    return f, torch.randn(samples, *shape, dtype=torch.float64)


def reference(f, x):
    """The map as torch computes it, with an autograd graph."""
    if isinstance(f, Dense):
        return f.module(x.flatten(1) if f.flatten else x)
    for module in f.modules:
        x = module(x)
    return x


@pytest.mark.parametrize("name", cases())
def test_values_and_pull_backs_agree_with_autograd(name):
    f, x = build(name)
    x.requires_grad_()
    z = reference(f, x)
    d = torch.randn_like(z)
    parameters = f.parameters
    expected = torch.autograd.grad((z * d).sum(), [x, *parameters.values()])
    torch.testing.assert_close(f.apply(x), z.detach())
    torch.testing.assert_close(f.pull_back_input(x, d), expected[0], rtol=1e-12, atol=1e-12)
    pulled = f.pull_back_parameters(x, d, scale=-0.3)
    assert list(pulled) == list(parameters)
    for value, gradient in zip(pulled.values(), expected[1:], strict=True):
        torch.testing.assert_close(value, -0.3 * gradient, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("name", cases())
def test_no_graph_is_recorded_and_no_grad_field_is_filled(name):
    f, x = build(name)
    x.requires_grad_()
    z = f.apply(x)
    results = [z, f.pull_back_input(x, z), *f.pull_back_parameters(x, z).values()]
    assert not any(t.requires_grad for t in results)
    assert all(p.grad is None for p in f.parameters.values())


@pytest.mark.parametrize("decay", [1.0, 0.5, 0.0])
@pytest.mark.parametrize("name", ["dense", "dense without bias", "dense, sequences", "conv2d", "any module"])
def test_accumulate_is_decay_times_old_plus_scale_times_pull_back(name, decay):
    f, x = build(name)
    d = torch.randn_like(f.apply(x))
    into = {key: torch.randn_like(p) for key, p in f.parameters.items()}
    expected = {key: decay * into[key] + 2.5 * g for key, g in f.pull_back_parameters(x, d).items()}
    f.accumulate_parameters(x, d, into, scale=2.5, decay=decay)
    for key in expected:
        torch.testing.assert_close(into[key], expected[key], rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("name", ["dense", "conv2d"])
def test_accumulate_with_decay_zero_overwrites_nan(name):
    f, x = build(name)
    d = torch.randn_like(f.apply(x))
    into = {key: torch.full_like(p, torch.nan) for key, p in f.parameters.items()}
    f.accumulate_parameters(x, d, into, decay=0.0)
    for key, g in f.pull_back_parameters(x, d).items():
        torch.testing.assert_close(into[key], g, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("name", ["dense", "conv2d", "any module"])
def test_accumulating_into_the_parameters_is_a_gradient_step_on_the_users_module(name):
    f, x = build(name)
    d = torch.randn_like(f.apply(x))
    before = {key: (p.data_ptr(), p.detach().clone()) for key, p in f.parameters.items()}
    step = f.pull_back_parameters(x, d)
    f.accumulate_parameters(x, d, f.parameters, scale=-0.1)
    for key, p in f.parameters.items():
        assert p.data_ptr() == before[key][0]
        torch.testing.assert_close(p.detach(), before[key][1] - 0.1 * step[key])
    torch.testing.assert_close(f.apply(x), reference(f, x).detach())


@pytest.mark.parametrize("frozen", ["weight", "bias"])
@pytest.mark.parametrize("name", ["dense", "conv2d", "pool, flatten, linear"])
def test_frozen_parameters_are_used_but_belong_to_no_block(name, frozen):
    f, x = build(name)
    everything = f.pull_back_parameters(x, torch.ones_like(f.apply(x)))
    z = f.apply(x)
    f.parameters[frozen].requires_grad_(False)
    (other,) = {"weight", "bias"} - {frozen}
    assert list(f.parameters) == [other]
    torch.testing.assert_close(f.apply(x), z)
    pulled = f.pull_back_parameters(x, torch.ones_like(z))
    assert list(pulled) == [other]
    torch.testing.assert_close(pulled[other], everything[other])


def test_a_map_takes_modules_only():
    with pytest.raises(lb.errors.UnsupportedModuleError, match="function"):
        lb.Map(torch.sin)


def test_map_is_its_module():
    torch.manual_seed(0)
    inner = nn.Linear(3, 2)
    x = torch.randn(4, 3)
    assert torch.equal(lb.Map(inner)(x), inner(x))


class Blend(nn.Module):
    """(1 + w) a - w b, with b averaged over the batch if it is asked to."""

    def __init__(self, couple=False):
        super().__init__()
        self.w, self.couple = nn.Parameter(torch.tensor(0.3)), couple

    def forward(self, a, b):
        return (1.0 + self.w) * a - self.w * (b.mean(0, keepdim=True) if self.couple else b)


class Blended(nn.Module):
    def __init__(self, couple=False):
        super().__init__()
        self.enter, self.blend = nn.Linear(3, 3), lb.Map(Blend(couple))

    def forward(self, x):
        return self.blend(self.enter(x).relu(), x)


def test_a_map_may_read_several_variables():
    torch.manual_seed(0)
    model, x, y = Blended().double(), *torch.randn(2, 5, 3, dtype=torch.float64)
    problem = lb.lift(model, loss=lb.SquaredError())
    assert [term.inputs for term in problem.network] == [(0,), (0, 1)]
    state = problem.forward_state(x)
    expected = 0.5 * (model(x) - y).square().sum(1).mean()
    torch.testing.assert_close(problem.energy(state, x, y), expected.detach())
    gradient = torch.autograd.grad(expected, model.blend.module.w)[0]
    torch.testing.assert_close(problem.parameter_gradient(problem.point(state, x, y), 2)["w"], gradient)


def test_a_map_of_several_variables_that_couples_samples_is_refused():
    problem = lb.lift(Blended(couple=True), loss=lb.SquaredError())
    with pytest.raises(lb.errors.UnsupportedModuleError, match="changes with the rest of the batch"):
        lb.fit(problem, (torch.randn(5, 3), torch.randn(5, 3)), epochs=1)
