"""Models as their users write and use them: which activations are found, and that all else stays as it was."""

import copy
import pickle

import pytest
import torch
from torch import nn
from torch.nn import functional as F

import lifted_bregman as lb
from lifted_bregman import activations as act
from tests.backward.nets import Residual, Transformer, assert_same, batch, chain, gradients
from tests.graph import architectures


class Called(nn.Module):
    """An activation in some form, between two linear maps."""

    def __init__(self, call):
        super().__init__()
        torch.manual_seed(0)
        self.a, self.b, self.call = nn.Linear(5, 7), nn.Linear(7, 3), copy.deepcopy(call)

    def forward(self, x):
        return self.b(self.call(self.a(x)))


def unused_result(z):
    z = z * 1.0
    F.relu(z, inplace=True)
    return z


FORMS = {
    "relu": [
        nn.ReLU(), nn.ReLU(inplace=True), F.relu, torch.relu, torch.relu_, lambda z: z.relu(), lambda z: z.relu_(),
        lambda z: F.relu(z, True), lambda z: F.relu(input=z), lambda z: z.clamp(min=0), lambda z: torch.clamp_min(z, 0),
        lambda z: z.clamp_(min=0.0), unused_result, act.ReLU().as_module(), nn.Threshold(0.0, 0.0),
    ],
    "softmax": [
        nn.Softmax(-1), nn.Softmax(dim=1), lambda z: F.softmax(z, -1), lambda z: z.softmax(1),
        lambda z: torch.softmax(z, dim=-1), act.Softmax().as_module(), lambda z: F.softmax(z, -1, dtype=torch.float64),
    ],
    "tanh": [nn.Tanh(), torch.tanh, lambda z: z.tanh_(), F.tanh, act.Tanh().as_module()],
    "leaky": [nn.LeakyReLU(0.1), nn.LeakyReLU(0.1, inplace=True), lambda z: F.leaky_relu(z, 0.1, True)],
}  # fmt: skip


@pytest.mark.parametrize("name", FORMS)
def test_every_form_of_an_activation_gives_the_same_gradients(name):
    x, y = batch()
    found = [gradients(lb.lifted_backward(Called(form).double(), 2.0), x, y) for form in FORMS[name]]
    for other in found[1:]:
        assert_same(other, found[0], rtol=1e-12, atol=1e-15)
    plain = gradients(Called(FORMS[name][0]).double(), x, y)
    assert any((plain[key] - g).abs().max() > 1e-4 for key, g in found[0].items())


@pytest.mark.parametrize("model", [architectures.ResNet(), Residual(), Transformer()], ids=lambda m: type(m).__name__)
def test_class_parameters_and_keys_stay_and_plain_backward_undoes_it(model):
    kind, keys, names = type(model), list(model.state_dict()), list(vars(model))
    plain = copy.deepcopy(model)
    assert lb.lifted_backward(model) is model
    assert type(model) is kind and list(model.state_dict()) == keys
    assert [id(p) for p in model.parameters()] == [id(p) for p in model.parameters()]
    model.load_state_dict(plain.state_dict())
    assert lb.plain_backward(model) is model and list(vars(model)) == names
    assert not any("forward" in vars(module) for module in model.modules())


def test_inference_is_bitwise_the_plain_models():
    ids = torch.arange(12).view(3, 4) % 11
    x = torch.randn(3, 2, 8, 8)
    for model, data in ((Transformer(), ids), (architectures.ResNet(), x)):
        plain = copy.deepcopy(model).eval()
        lifted = lb.lifted_backward(model).eval()
        with torch.no_grad():
            assert torch.equal(lifted(data), plain(data))
    with torch.enable_grad():
        assert torch.equal(lifted(x), plain(x))  # a ResNet's also with gradients


def test_copies_and_pickles_are_lifted_and_apart():
    x, y = batch(dtype=torch.float32)
    for model in (lb.lifted_backward(Residual()), lb.lifted_backward(Residual(), example=x)):
        expected = gradients(model, x, y)
        for other in (copy.deepcopy(model), pickle.loads(pickle.dumps(model))):
            assert_same(gradients(other, x, y), expected)
            assert lb.backward_report(other).lifted == lb.backward_report(model).lifted
            lb.plain_backward(other)
            with torch.no_grad():
                next(other.parameters()).add_(1.0)
            assert_same(gradients(model, x, y), expected)


def test_in_place_activations_write_into_their_input():
    plain = Called(unused_result)
    x, _ = batch(dtype=torch.float32)
    assert torch.equal(lb.lifted_backward(copy.deepcopy(plain))(x), plain(x))


def test_an_output_may_be_modified_in_place_afterwards():
    def modified(z):
        h = torch.tanh(z)
        h += 1.0
        return h.mul_(2.0)

    x, y = batch()
    found = gradients(lb.lifted_backward(Called(modified).double()), x, y)
    assert_same(found, gradients(lb.lifted_backward(Called(lambda z: 2.0 * (torch.tanh(z) + 1.0)).double()), x, y))


def test_an_activation_that_is_called_twice_answers_each_call_by_itself():
    class Twice(nn.Module):
        def __init__(self, tanh, other):
            super().__init__()
            torch.manual_seed(3)
            self.a, self.b, self.c = nn.Linear(5, 6), nn.Linear(6, 6), nn.Linear(6, 3)
            self.first, self.second = tanh, other

        def forward(self, x):
            return self.c(self.second(self.b(self.first(self.a(x)))))

    x, y = batch(dtype=torch.float32)
    shared = nn.Tanh()
    model = lb.lifted_backward(Twice(shared, shared))
    assert_same(gradients(model, x, y), gradients(lb.lifted_backward(Twice(nn.Tanh(), nn.Tanh())), x, y))
    # two forward passes before one backward pass
    model.zero_grad()
    (F.cross_entropy(model(x[:4]), y[:4]) + F.cross_entropy(model(x), y)).backward()
    both = {key: p.grad.clone() for key, p in model.named_parameters()}
    one, other = gradients(model, x[:4], y[:4]), gradients(model, x, y)
    assert_same(both, {key: one[key] + other[key] for key in one}, rtol=1e-5, atol=1e-7)


def test_gradients_accumulate_and_are_clipped():
    model = lb.lifted_backward(Residual().double(), loss_scale=0.5)
    x, y = batch(samples=8)
    whole = gradients(lb.lifted_backward(copy.deepcopy(lb.plain_backward(model))), x, y)
    lb.lifted_backward(model, loss_scale=0.5)  # the mean over 8 samples is half the sum of the means over 4
    model.zero_grad()
    for rows in (slice(4), slice(4, 8)):
        (0.5 * F.cross_entropy(model(x[rows]), y[rows])).backward()
    assert_same({key: p.grad for key, p in model.named_parameters()}, whole, rtol=1e-12, atol=1e-15)
    total = nn.utils.clip_grad_norm_(model.parameters(), 1e-3)
    assert total > 1e-3
    torch.testing.assert_close(
        torch.cat([p.grad.flatten() for p in model.parameters()]).norm(),
        torch.tensor(1e-3).double(),
        rtol=1e-3,
        atol=0.0,
    )


def test_frozen_parameters_and_inputs_without_gradients():
    model = lb.lifted_backward(Residual())
    model.enter.requires_grad_(False)
    x, y = batch(dtype=torch.float32)
    F.cross_entropy(model(x), y).backward()
    assert model.enter.weight.grad is None and model.block.weight.grad is not None


# Which activations are found


def test_the_report_lists_what_is_lifted_and_why_something_is_not():
    class Mixed(nn.Module):
        def __init__(self):
            super().__init__()
            self.l = nn.ModuleList(nn.Linear(5, 5) for _ in range(5))
            self.prelu, self.box = nn.PReLU(), nn.Hardtanh()
            self.kept = nn.Sequential(nn.Linear(5, 5), nn.Tanh())
            self.gain = nn.Parameter(torch.ones(5))

        def forward(self, x):
            x = F.selu(self.l[0](x)) * torch.sigmoid(self.gain)
            x = self.box(self.l[1](self.prelu(x)))
            x = F.gelu(self.kept(self.l[2](x)))
            return F.log_softmax(self.l[3](x).clamp(min=torch.zeros(5)), -1)

    model = lb.lifted_backward(Mixed(), leave=["kept"])
    early = lb.backward_report(model)
    assert early.longest_path is None and {row.path for row in early.rows} == {"prelu", "box", "kept.1"}
    model(torch.randn(2, 5))
    report = lb.backward_report(model)
    assert [(row.path, row.kind) for row in report.lifted] == [("box", "Box(low=-1.0, high=1.0)")]
    reasons = {row.kind: row.reason for row in report.left_to_autograd}
    assert set(reasons) == {"selu", "sigmoid", "prelu", "gelu", "tanh", "clamp", "log_softmax"}
    assert "parameter" in reasons["sigmoid"] and "leave" in reasons["tanh"] and "learned" in reasons["prelu"]
    text = str(report)
    assert "left to autograd: its slope is learned" in text and text.count("\n") == 8
    assert "test_models.py" in text and "shared by 1 on the longest path" in text


def test_the_longest_path_is_counted_and_counted_anew():
    model = architectures.UNet()
    x = torch.randn(2, 2, 8, 8)
    assert lb.backward_report(lb.lifted_backward(model, example=x)).longest_path == 2

    class Deep(nn.Module):
        def __init__(self):
            super().__init__()
            self.f, self.depth = nn.Linear(5, 5), 2

        def forward(self, x):
            side = torch.tanh(self.f(x))
            for _ in range(self.depth):
                x = torch.relu(self.f(x))
            return x + side

    model = lb.lifted_backward(Deep(), example=torch.randn(2, 5))
    assert lb.backward_report(model).longest_path == 2
    model.depth = 4
    for _ in range(2):
        model(torch.randn(2, 5))
    assert lb.backward_report(model).longest_path == 4


def test_an_example_leaves_buffers_and_random_numbers_alone():
    model = nn.Sequential(nn.Linear(5, 4), nn.BatchNorm1d(4), nn.Dropout(0.5), nn.ReLU())
    before = copy.deepcopy(model.state_dict())
    torch.manual_seed(7)
    expected = torch.rand(3)
    torch.manual_seed(7)
    lb.lifted_backward(model, example=torch.randn(6, 5, generator=torch.Generator().manual_seed(0)))
    assert torch.equal(torch.rand(3), expected)
    assert all(torch.equal(value, before[key]) for key, value in model.state_dict().items())
    assert lb.backward_report(model).longest_path == 1


@pytest.mark.parametrize("fused", [True, False])
def test_softmax_inside_attention_is_lifted(fused):
    class Fused(architectures.Attention):
        def forward(self, x):
            B, T, C = x.size()
            q, k, v = (t.view(B, T, self.heads, -1).transpose(1, 2) for t in self.qkv(x).split(C, dim=2))
            y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
            return self.proj(y.transpose(1, 2).contiguous().view(B, T, C))

    torch.manual_seed(0)
    model = lb.lifted_backward((Fused if fused else architectures.Attention)().double(), 5.0)
    x = torch.randn(3, 6, 8, dtype=torch.float64)
    found = gradients(model, x, torch.zeros_like(x), F.mse_loss)
    (row,) = lb.backward_report(model).lifted
    assert row.kind == "Softmax()"
    torch.manual_seed(0)
    other = lb.lifted_backward(architectures.Attention().double(), 5.0)
    assert_same(found, gradients(other, x, torch.zeros_like(x), F.mse_loss), rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize(
    "module",
    [nn.MultiheadAttention(8, 2, batch_first=True), nn.LSTM(8, 5, batch_first=True), nn.GRU(8, 5), nn.RNN(8, 5)],
    ids=lambda m: type(m).__name__,
)
def test_layers_of_torch_with_activations_inside_are_lifted(module):
    class Around(nn.Module):
        def __init__(self):
            super().__init__()
            self.inner = copy.deepcopy(module).double()

        def forward(self, x):
            return (self.inner(x, x, x) if isinstance(self.inner, nn.MultiheadAttention) else self.inner(x))[0]

    x = torch.randn(3, 4, 8, dtype=torch.float64)
    plain = Around()
    model = lb.lifted_backward(copy.deepcopy(plain), 1e-5)
    torch.testing.assert_close(model(x), plain(x), rtol=1e-10, atol=1e-12)
    target = torch.zeros_like(plain(x))
    expected = gradients(plain, x, target, F.mse_loss)
    assert_same(gradients(model, x, target, F.mse_loss), expected, rtol=1e-5, atol=1e-8)
    assert lb.backward_report(model).lifted and not lb.backward_report(model).left_to_autograd


@pytest.mark.parametrize("call", [nn.GELU(), nn.GELU("tanh"), F.silu, nn.Mish(), nn.Hardswish(inplace=True), nn.SiLU()])
def test_gates_are_left_to_autograd_or_their_factor_is_lifted(call):
    x, y = batch()
    plain = gradients(Called(call).double(), x, y)
    both = Called(lambda z: torch.tanh(call(z * 1.0)))
    model = lb.lifted_backward(copy.deepcopy(both).double(), 1.0)
    gradients(model, x, y)
    assert len(lb.backward_report(model).lifted) == len(lb.backward_report(model).left_to_autograd) == 1
    lifted = lb.lifted_backward(Called(call).double(), 1e-7, gates=True)
    assert_same(gradients(lifted, x, y), plain, rtol=1e-5, atol=1e-8)
    assert lb.backward_report(lifted).lifted and not lb.backward_report(lifted).left_to_autograd


def test_gates_in_place_write_into_their_input():
    def unused(z):
        z = z * 1.0
        F.silu(z, inplace=True)
        return z

    x, y = batch()
    plain = Called(unused).double()
    lifted = lb.lifted_backward(copy.deepcopy(plain), 1e-6, gates=True)
    torch.testing.assert_close(lifted(x), plain(x), rtol=1e-12, atol=1e-14)
    assert_same(gradients(lifted, x, y), gradients(plain, x, y), rtol=1e-5, atol=1e-8)


def test_a_map_is_left_to_autograd():
    inner = nn.Sequential(nn.Linear(5, 5), nn.Tanh())
    model = lb.lifted_backward(nn.Sequential(lb.Map(inner), nn.ReLU(), nn.Linear(5, 3)))
    gradients(model, *batch(dtype=torch.float32))
    (row,) = lb.backward_report(model).left_to_autograd
    assert "lb.Map" in row.reason and [row.kind for row in lb.backward_report(model).lifted] == ["ReLU()"]


def test_another_tools_forward_method_is_kept():
    model = chain(nn.ReLU(), dtype=torch.float32)
    x, y = batch(dtype=torch.float32)
    calls = []
    own = model.forward
    model.forward = lambda x: (calls.append(1), own(x))[1]
    given = model.forward
    lifted = gradients(lb.lifted_backward(model), x, y)
    assert calls and lb.plain_backward(model).forward is given
    del model.forward
    assert_same(gradients(lb.lifted_backward(model), x, y), lifted)


def test_a_unit_that_is_dead_for_all_samples_comes_back():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 1))
    with torch.no_grad():
        model[0].weight[0], model[0].bias[0], model[2].weight[0, 0] = 0.0, -0.2, 1.0
    x = torch.randn(32, 4)
    y = x.sum(1, keepdim=True).abs()
    assert gradients(model, x, y, F.mse_loss)["0.weight"][0].abs().max() == 0.0
    lb.lifted_backward(model, nudge=5.0)
    optimizer = torch.optim.Adam(model.parameters(), 0.05)
    for _ in range(30):
        optimizer.zero_grad()
        F.mse_loss(model(x), y).backward()
        optimizer.step()
    assert (model[0](x)[:, 0] > 0.0).any()
