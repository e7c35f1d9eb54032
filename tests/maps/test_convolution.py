"""Convolutions: values and pull-backs against torch's modules and autograd, patches and norms against Jacobians."""

import itertools

import numpy as np
import pytest
import torch
from torch import nn

import lifted_bregman as lb
from lifted_bregman.maps import Convolution, PowerIteration
from lifted_bregman.maps import convolution as convolutions

F64 = torch.float64
# torch's own module says that it copies its inputs for 'same' with an even kernel
pytestmark = pytest.mark.filterwarnings("ignore:Using padding='same' with even kernel")

# kind, arguments, options, shape of a sample; every option of torch's convolutions at least once, sides of different
# lengths, so that swapped axes show
CASES = {
    "1d": (nn.Conv1d, (2, 3, 3), {}, (2, 7)),
    "1d, same, even kernel": (nn.Conv1d, (2, 3, 4), {"padding": "same"}, (2, 7)),
    "2d": (nn.Conv2d, (2, 3, 3), {}, (2, 5, 6)),
    "2d, stride 2, padding": (nn.Conv2d, (2, 3, 3), {"stride": 2, "padding": 1}, (2, 5, 6)),
    "2d, each axis its own": (
        nn.Conv2d,
        (2, 3, (3, 2)),
        {"stride": (1, 3), "padding": (2, 1), "dilation": (2, 1)},
        (2, 5, 7),
    ),
    "2d, kernel 1, padding": (nn.Conv2d, (2, 3, 1), {"padding": 1}, (2, 3, 4)),
    "2d, valid": (nn.Conv2d, (2, 3, (2, 3)), {"padding": "valid", "dilation": 2}, (2, 5, 6)),
    "2d, same, uneven sides": (nn.Conv2d, (2, 3, (2, 4)), {"padding": "same"}, (2, 4, 5)),
    "2d, same, reflected": (nn.Conv2d, (2, 3, (2, 4)), {"padding": "same", "padding_mode": "reflect"}, (2, 4, 5)),
    "2d, reflected": (nn.Conv2d, (1, 2, 3), {"padding": (2, 1), "padding_mode": "reflect"}, (1, 5, 4)),
    "2d, replicated": (nn.Conv2d, (1, 2, 3), {"padding": (1, 2), "padding_mode": "replicate"}, (1, 5, 4)),
    "2d, circular": (nn.Conv2d, (2, 4, 3), {"padding": 1, "padding_mode": "circular"}, (2, 5, 6)),
    "2d, circular, stride": (
        nn.Conv2d,
        (2, 4, 3),
        {"padding": 1, "padding_mode": "circular", "stride": 2},
        (2, 4, 6),
    ),
    "2d, circular, wide": (nn.Conv2d, (2, 1, 3), {"padding": (3, 1), "padding_mode": "circular"}, (2, 4, 5)),
    "2d, groups, no bias": (nn.Conv2d, (4, 6, 2), {"groups": 2, "bias": False, "padding": 1}, (4, 4, 3)),
    "2d, depthwise": (nn.Conv2d, (3, 3, 3), {"groups": 3, "padding": 1}, (3, 4, 5)),
    "3d": (nn.Conv3d, (2, 3, (2, 1, 3)), {"padding": (1, 0, 1), "stride": (1, 2, 1)}, (2, 3, 4, 5)),
    "3d, replicated": (nn.Conv3d, (1, 2, 2), {"padding": 1, "padding_mode": "replicate"}, (1, 3, 2, 3)),
    "transposed 1d": (nn.ConvTranspose1d, (2, 3, 3), {"stride": 2, "padding": 1, "output_padding": 1}, (2, 5)),
    "transposed 2d": (nn.ConvTranspose2d, (2, 3, (3, 2)), {"stride": (2, 3)}, (2, 3, 4)),
    "transposed 2d, dilated": (nn.ConvTranspose2d, (2, 3, 2), {"dilation": (2, 3), "padding": 1}, (2, 4, 3)),
    "transposed 2d, groups": (nn.ConvTranspose2d, (4, 6, 3), {"stride": 2, "groups": 2, "padding": 1}, (4, 3, 2)),
    "transposed 3d": (nn.ConvTranspose3d, (2, 1, 2), {"bias": False}, (2, 2, 3, 2)),
}


def build(name, samples=4):
    torch.manual_seed(5)
    kind, arguments, options, shape = CASES[name]
    return Convolution(kind(*arguments, **options).double()), torch.randn(samples, *shape, dtype=F64)


def close(value, expected):
    torch.testing.assert_close(value, expected, rtol=1e-12, atol=1e-12)


def input_jacobian(f, x):
    return torch.autograd.functional.jacobian(f.module, x[:1]).reshape(-1, x[:1].numel())


def parameter_jacobian(f, x):
    """(numbers of z, trained numbers), by autograd."""
    trained = f.parameters

    def function(*values):
        return torch.func.functional_call(f.module, dict(zip(trained, values, strict=True)), (x,))

    parts = torch.autograd.functional.jacobian(function, tuple(p.detach() for p in trained.values()))
    z = f.module(x).numel()
    return torch.cat([part.reshape(z, -1) for part in parts], 1)


def top(matrix):
    return float(np.linalg.svd(matrix.detach().numpy(), compute_uv=False)[0]) ** 2


@pytest.mark.parametrize("name", CASES)
def test_values_and_pull_backs_agree_with_autograd(name):
    f, x = build(name)
    x.requires_grad_()
    z = f.module(x)
    d = torch.randn_like(z)
    expected = torch.autograd.grad((z * d).sum(), [x, *f.parameters.values()])
    close(f.apply(x), z.detach())
    close(f.pull_back_input(x, d), expected[0])
    both, together = f.pull_back(x, d, scale=-0.3)
    close(both, expected[0])
    alone = f.pull_back_parameters(x, d, scale=-0.3)
    assert list(alone) == list(together) == list(f.parameters)
    for pulled in (alone, together):
        for value, gradient in zip(pulled.values(), expected[1:], strict=True):
            close(value, -0.3 * gradient)


@pytest.mark.parametrize("name", CASES)
def test_no_graph_is_recorded_and_no_grad_field_is_filled(name):
    f, x = build(name)
    x.requires_grad_()
    z = f.apply(x)
    pulled, gradients = f.pull_back(x, z)
    results = [z, pulled, f.pull_back_input(x, z), *gradients.values(), *f.pull_back_parameters(x, z).values()]
    assert not any(t.requires_grad for t in [*results, f.design(x), f.gram(x), f.gram(x, rows=3)])
    assert x.grad is None and all(p.grad is None for p in f.parameters.values())


@pytest.mark.parametrize("decay", [1.0, 0.5, 0.0])
@pytest.mark.parametrize("name", ["2d, stride 2, padding", "2d, reflected", "transposed 2d, groups"])
def test_accumulate_is_decay_times_old_plus_scale_times_pull_back(name, decay):
    f, x = build(name)
    z = f.module(x)
    d = torch.randn_like(z)
    gradients = torch.autograd.grad((z * d).sum(), list(f.parameters.values()))
    start = torch.nan if decay == 0.0 else 1.5  # decay = 0 overwrites whatever was there
    into = {key: torch.full_like(p, start).detach() for key, p in f.parameters.items()}
    f.accumulate_parameters(x, d, into, scale=2.5, decay=decay)
    for value, gradient in zip(into.values(), gradients, strict=True):
        close(value, (decay * 1.5 if decay else 0.0) + 2.5 * gradient)


def test_accumulating_into_the_parameters_is_a_gradient_step_on_the_users_module():
    f, x = build("2d, stride 2, padding")
    d = torch.randn_like(f.apply(x))
    before = {key: (p.data_ptr(), p.detach().clone()) for key, p in f.parameters.items()}
    for decay in (1.0, 0.9, 0.0):
        step = f.pull_back_parameters(x, d)
        values = {key: p.detach().clone() for key, p in f.parameters.items()}
        f.accumulate_parameters(x, d, f.parameters, scale=-0.1, decay=decay)
        for key, p in f.parameters.items():
            assert p is getattr(f.module, key) and p.data_ptr() == before[key][0]
            close(p.detach(), decay * values[key] - 0.1 * step[key])


@pytest.mark.parametrize("frozen", [("weight",), ("bias",), ("weight", "bias")])
@pytest.mark.parametrize("name", ["2d, stride 2, padding", "transposed 2d"])
def test_frozen_parameters_are_used_but_belong_to_no_block(name, frozen):
    f, x = build(name)
    z = f.apply(x)
    d = torch.randn_like(z)
    pulled, everything = f.pull_back(x, d)
    for key in frozen:
        getattr(f.module, key).requires_grad_(False)
    rest = [key for key in ("weight", "bias") if key not in frozen]
    assert list(f.parameters) == rest
    close(f.apply(x), z)
    close(f.pull_back(x, d)[0], pulled)
    for found in (f.pull_back(x, d)[1], f.pull_back_parameters(x, d)):
        assert list(found) == rest
        for key in rest:
            close(found[key], everything[key])
    into = {key: torch.zeros_like(getattr(f.module, key)).detach() for key in rest}
    f.accumulate_parameters(x, d, into)
    for key in rest:
        close(into[key], everything[key])


# Patches


def rows_of(z):
    return z.movedim(1, -1).flatten(0, -2)


@pytest.mark.parametrize("name", CASES)
def test_the_design_times_unit_rows_is_the_map(name):
    f, x = build(name)
    A, g = f.design(x), f.module.groups
    z = rows_of(f.module(x).detach())
    units = f.unit_rows(f.module.weight.detach())
    assert A.shape[-2:] == (len(z), units.shape[1]) and A.ndim == (3 if g > 1 else 2)
    A = A if g > 1 else A[None]
    found = torch.cat([a @ w.t() for a, w in zip(A, units.chunk(g), strict=True)], 1)
    close(found + (0.0 if f.module.bias is None else f.module.bias.detach()), z)


@pytest.mark.parametrize("name", CASES)
def test_unit_rows_have_the_weights_of_one_output_channel_each_and_are_undone(name):
    f, x = build(name, samples=1)
    W = f.module.weight.detach()
    matrix = f.unit_rows(W)
    channels = f.apply(x).shape[1]
    assert len(matrix) == channels
    assert torch.equal(f.from_unit_rows(matrix, W), W)
    for unit in range(channels):  # a unit whose row is 0 gives its bias
        changed = matrix.clone()
        changed[unit] = 0.0
        z = torch.func.functional_call(f.module, {"weight": f.from_unit_rows(changed, W)}, (x,))[0]
        still = torch.zeros(()) if f.module.bias is None else f.module.bias[unit]
        assert (z[unit] == still).all()
        others = [c for c in range(channels) if c != unit]
        close(z[others], f.module(x)[0][others])


def gram_from_jacobian(f, x):
    """AᵀA/m of every group from autograd's Jacobian in the parameters of the first unit of the group."""
    J = parameter_jacobian(f, x).detach()
    z = f.module(x)
    m, units, g = z.numel() // z.shape[1], z.shape[1], f.module.groups
    columns = J.view(*z.shape, -1).movedim(1, -2).reshape(m, units, -1)
    grams = []
    for group in range(g):
        unit = group * (units // g)
        A = columns[:, unit, trained_order(f, unit)]
        grams.append(A.t() @ A / m)
    return torch.stack(grams) if g > 1 else grams[0]


def trained_order(f, unit):
    """Which trained numbers belong to a unit, its weights first and its bias last."""
    W = f.module.weight
    order = []
    if "weight" in f.parameters:
        order += f.unit_rows(torch.arange(W.numel()).view(W.shape))[unit].tolist()
    if "bias" in f.parameters:
        order.append(("weight" in f.parameters) * W.numel() + unit)
    return order


@pytest.mark.parametrize("frozen", [None, "weight", "bias"])
@pytest.mark.parametrize("name", CASES)
def test_the_gram_matrix_is_that_of_the_jacobian(name, frozen):
    f, x = build(name, samples=3)
    if frozen == "bias" and f.module.bias is None:
        return
    if frozen:
        getattr(f.module, frozen).requires_grad_(False)
    if not f.parameters:
        assert f.gram(x).shape[-1] == 0
        return
    close(f.gram(x), gram_from_jacobian(f, x))


@pytest.mark.parametrize("groups", [1, 2])
def test_a_gram_matrix_of_several_blocks_is_whole(groups):
    torch.manual_seed(6)
    f = Convolution(nn.Conv2d(16 * groups, 2, 3, groups=groups, dtype=F64))  # 145 columns in blocks of 64
    x = torch.randn(3, 16 * groups, 5, 4, dtype=F64)
    close(f.gram(x), gram_from_jacobian(f, x))


def test_the_gram_matrix_is_added_up_over_parts(monkeypatch):
    f, x = build("2d, stride 2, padding", samples=7)
    expected = gram_from_jacobian(f, x)
    monkeypatch.setattr(convolutions, "_DESIGN_ENTRIES", 1000)  # 9 outputs of 18 inputs, a few samples at a time
    close(f.gram(x), expected)


@pytest.mark.parametrize("name", ["2d, stride 2, padding", "2d, groups, no bias", "transposed 2d", "2d, circular"])
def test_a_part_of_the_patches_holds_patches_of_the_design(name):
    f, x = build(name)
    A = f.design(x) if f.module.groups > 1 else f.design(x)[None]
    chosen = f._patches_of(x).some(x, f.module.groups, 11, None)
    assert chosen.shape == (f.module.groups, 11, A.shape[2])
    for own, every in zip(chosen, A, strict=True):
        where = [int((every - row).abs().sum(1).argmin()) for row in own]
        assert torch.equal(every[where], own)
    ones = torch.ones(*chosen.shape[:2], 1, dtype=F64)
    B = chosen if f.module.bias is None else torch.cat((chosen, ones), 2)
    gram = f.gram(x, rows=11)
    close(gram if f.module.groups > 1 else gram[None], B.mT @ B / 11)
    assert torch.equal(f.gram(x, rows=11), gram)  # nothing is random


@pytest.mark.parametrize("rows", [32, 50, 64, 100, 128, 500])
def test_chosen_patches_are_spread_over_samples_rows_and_columns(rows):
    f = Convolution(nn.Conv2d(1, 1, 1, dtype=F64))
    s, h, w = 40, 16, 16
    sample, row, column = torch.meshgrid(*(torch.arange(n, dtype=F64) for n in (s, h, w)), indexing="ij")
    for values in (sample, row, column):
        chosen = f._patches_of(values[:, None]).some(values[:, None], 1, rows, None).flatten().numpy()
        edges = np.histogram(chosen, bins=4, range=(0, int(values.max()) + 1))[0]
        assert abs(edges / rows - 0.25).max() <= 0.1  # a quarter of the patches in every quarter
    place = f._patches_of(sample[:, None]).some((sample * h * w + row * w + column)[:, None], 1, rows, None).flatten()
    assert len(place.unique()) == rows


def test_the_mean_over_random_draws_is_the_exact_gram_matrix():
    f, x = build("2d, stride 2, padding", samples=6)
    generator = torch.Generator().manual_seed(0)
    draws = torch.stack([f.gram(x, rows=7, generator=generator) for _ in range(4000)])
    exact = gram_from_jacobian(f, x)
    error = (draws.mean(0) - exact).abs() / (draws.std(0) / len(draws) ** 0.5 + 1e-12)
    assert float(error.max()) < 4.5  # standard errors, over 19² entries
    assert float(draws.std(0).max()) > 0.01


def test_all_patches_are_taken_where_rows_would_be_most_of_them():
    f, x = build("2d, stride 2, padding")
    m = len(x) * 9
    assert torch.equal(f.gram(x, rows=m), f.gram(x)) and torch.equal(f.gram(x, rows=m // 2 + 1), f.gram(x))
    assert not torch.equal(f.gram(x, rows=m // 2), f.gram(x))


def test_patches_follow_the_shape_of_the_inputs():
    f, x = build("2d, stride 2, padding")
    for inputs in (x, x[:2], torch.randn(3, 2, 6, 5, dtype=F64), torch.randn(3, 2, 9, 9, dtype=F64)):
        close(f.gram(inputs), gram_from_jacobian(f, inputs))
        chosen = f._patches_of(inputs).some(inputs, 1, 5, None)[0]
        every = f.design(inputs)
        assert all(float((every - row).abs().sum(1).min()) == 0.0 for row in chosen)


def test_rows_have_to_be_positive():
    f, x = build("2d")
    with pytest.raises(lb.errors.SettingError, match="rows is 0"):
        f.gram(x, rows=0)


# Norms


@pytest.mark.parametrize("name", CASES)
def test_norms_against_singular_values_of_the_jacobian(name):
    f, x = build(name)
    exact = top(input_jacobian(f, x))
    assert 0.97 * exact <= f.input_curvature(x) <= exact * (1.0 + 1e-12)
    assert exact <= f.input_curvature(x, upper=True) <= 1.06 * exact
    exact = top(parameter_jacobian(f, x))
    assert 0.97 * exact <= f.parameter_curvature(x) <= exact * (1.0 + 1e-12)
    assert exact <= f.parameter_curvature(x, upper=True) <= 1.03 * exact


@pytest.mark.parametrize("name", CASES)
def test_the_bound_for_maps_too_large_to_write_out(name, monkeypatch):
    monkeypatch.setattr(convolutions, "_MATRIX_ENTRIES", 0)
    f, x = build(name)
    exact = top(input_jacobian(f, x))
    copies = {"reflect": 2.0, "replicate": 3.0, "circular": 2.0}.get(getattr(f.module, "padding_mode", ""), 1.0)
    assert exact <= f.input_curvature(x, upper=True) <= 2.1 * copies**2 * exact
    f.module.weight.data.abs_()
    exact = top(input_jacobian(f, x))
    assert exact <= f.input_curvature(x, upper=True) <= 1.05 * exact  # tight for weights that are not negative


@pytest.mark.parametrize("side", [4, 6])
@pytest.mark.parametrize("stride", [1, 2])
def test_the_symbol_has_the_norm_of_a_circular_convolution(side, stride, monkeypatch):
    monkeypatch.setattr(convolutions, "_MATRIX_ENTRIES", 0)
    torch.manual_seed(side)
    f = Convolution(nn.Conv2d(3, 5, 3, stride, padding=1, padding_mode="circular", dtype=F64))
    x = torch.randn(2, 3, side, side, dtype=F64)
    exact = top(input_jacobian(f, x))
    assert exact <= f.input_curvature(x, upper=True) <= 1.03 * exact


def gabor(kernel):
    """A kernel whose symbol has its peak at one frequency, and is small far from it."""
    place = torch.arange(kernel, dtype=F64)
    return torch.cos(1.9 * place)[:, None] * torch.cos(0.8 * place + 0.4)


SETTINGS = list(itertools.product([1, 2, 3], [1, 2], [0, 1, 3], [2, 3]))


@pytest.mark.parametrize(("stride", "dilation", "padding", "kernel"), SETTINGS)
def test_the_symbol_bound_holds_and_is_tight_for_large_images(stride, dilation, padding, kernel, monkeypatch):
    monkeypatch.setattr(convolutions, "_MATRIX_ENTRIES", 0)
    torch.manual_seed(1)
    for transposed, side in ((False, 14), (True, 16 if stride == 1 else 9)):
        kind = nn.ConvTranspose2d if transposed else nn.Conv2d
        settings = {"stride": stride, "dilation": dilation, "padding": padding}
        f = Convolution(kind(1, 1, kernel, **settings, dtype=F64))
        f.module.weight.data.copy_(gabor(kernel))
        x = torch.zeros(1, 1, side, side, dtype=F64)
        exact = top(input_jacobian(f, x))
        assert exact <= f.input_curvature(x, upper=True) <= 1.35 * exact


@pytest.mark.parametrize("points", [3, 4, 16])
def test_the_bound_between_the_points_of_a_coarse_grid_holds(points, monkeypatch):
    """With few points the factor for what lies between them is large, and needed: no grid point meets the peak."""
    monkeypatch.setattr(convolutions, "_MATRIX_ENTRIES", 0)
    monkeypatch.setattr("lifted_bregman.maps._symbol._POINTS", points)
    slack = 1.0 / np.cos(np.pi / points)
    f = Convolution(nn.Conv1d(1, 1, 3, bias=False, dtype=F64))
    missed = False
    for peak in np.linspace(0.1, 3.0, 9):
        # |a + b·e^iθ + c·e^2iθ|² has its maximum where cos θ = -b(a + c)/4ac, if ac < 0
        w = np.array([1.0, np.cos(peak) / 0.75, -0.25])
        f.module.weight.data.copy_(torch.from_numpy(w))
        x = torch.zeros(1, 1, 300, dtype=F64)
        exact = top(input_jacobian(f, x))
        assert exact <= f.input_curvature(x, upper=True) <= 1.01 * slack * exact
        grid = abs(np.polyval(w, np.exp(2j * np.pi * np.arange(2 * points) / (2 * points)))) ** 2
        missed = missed or grid.max() < 0.999 * exact
    assert missed


UNEVEN = {
    "same, even kernel": ({"padding": "same"}, 2, 3, [1.0, -1.0]),  # 3.25, but 3 on a torus of 3
    "same, one input": ({"padding": "same"}, 2, 1, [1.0, -1.0]),
    "same, kernel 4": ({"padding": "same"}, 4, 3, [1.0, -1.0, 1.0, -1.0]),
    "circular, odd side, stride": ({"padding": 1, "padding_mode": "circular", "stride": 2}, 3, 3, [1.0, 1.0, 1.0]),
    "circular, twice around": ({"padding": 3, "padding_mode": "circular"}, 3, 3, [1.0, -2.0, 1.0]),
    "padding beyond the kernel": ({"padding": 5}, 2, 2, [1.0, -1.0]),
}


@pytest.mark.parametrize("name", UNEVEN)
def test_the_symbol_holds_where_a_torus_of_the_inputs_would_be_too_small(name, monkeypatch):
    monkeypatch.setattr(convolutions, "_MATRIX_ENTRIES", 0)
    options, kernel, size, weights = UNEVEN[name]
    f = Convolution(nn.Conv1d(1, 1, kernel, **options, dtype=F64))
    f.module.weight.data.copy_(torch.tensor(weights))
    x = torch.zeros(1, 1, size, dtype=F64)
    exact = top(input_jacobian(f, x))
    assert exact <= f.input_curvature(x, upper=True) <= 4.1 * exact


def test_the_curvature_is_that_of_the_largest_group():
    f, x = build("2d, groups, no bias")
    for loud in (slice(0, 2), slice(2, 4)):
        scaled = x.clone()
        scaled[:, loud] *= 10.0
        exact = top(parameter_jacobian(f, scaled))
        assert exact <= f.parameter_curvature(scaled, upper=True) <= 1.03 * exact


def test_the_bound_is_within_twelve_per_cent_for_a_hidden_layer_of_images():
    """A hidden layer for images: the matrix would have 2^25 entries, so that its norm is estimated from below."""
    torch.manual_seed(2)
    f = Convolution(nn.Conv2d(16, 32, 3, padding=1, dtype=F64))
    x = torch.randn(1, 16, 32, 32, dtype=F64)
    power = PowerIteration()
    for _ in range(10):
        estimate = f.input_curvature(x, power)
    assert estimate <= f.input_curvature(x, upper=True) <= 1.12 * estimate


def test_zero_weights_have_no_curvature():
    f, x = build("2d, stride 2, padding")
    nn.init.zeros_(f.module.weight)
    assert f.input_curvature(x) == f.input_curvature(x, upper=True) == 0.0
    assert f.input_curvature(torch.zeros(1, 2, 90, 90, dtype=F64), upper=True) == 0.0


def test_frozen_parameters_have_no_curvature():
    f, x = build("2d, stride 2, padding")
    f.module.weight.requires_grad_(False)
    assert f.parameter_curvature(x) == f.parameter_curvature(x, upper=True) == 4 * 9.0  # ‖1‖² over samples and outputs
    f.module.bias.requires_grad_(False)
    assert f.parameter_curvature(x) == f.parameter_curvature(x, upper=True) == 0.0
    f.module.weight.requires_grad_(True)
    exact = top(parameter_jacobian(f, x))
    assert exact <= f.parameter_curvature(x, upper=True) <= 1.03 * exact


def test_bounds_of_float32_maps_hold_in_float64():
    torch.manual_seed(3)
    f = Convolution(nn.Conv2d(2, 3, 3, padding=1))
    x = torch.randn(4, 2, 5, 6)
    double = Convolution(nn.Conv2d(2, 3, 3, padding=1).double())
    double.module.load_state_dict(f.module.state_dict())
    for found, exact in (
        (f.input_curvature(x, upper=True), top(input_jacobian(double, x.double()))),
        (f.parameter_curvature(x, upper=True), top(parameter_jacobian(double, x.double()))),
    ):
        assert exact <= found <= 1.06 * exact
    assert f.gram(x).dtype == f.gram(x, rows=5).dtype == torch.float32


def test_other_modules_are_refused():
    with pytest.raises(lb.errors.UnsupportedModuleError, match="Linear"):
        Convolution(nn.Linear(3, 2))
