"""The unfolded denoiser against its own algorithm, closed forms and convex solvers."""

import copy
import math

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from scipy.optimize import lsq_linear

import lifted_bregman as lb
from lifted_bregman.errors import SettingError, TensorError
from lifted_bregman.models import UnfoldedDenoiser
from lifted_bregman.models.unfolded import FilterBank

F64 = torch.float64


def randn(*shape, seed=0):
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=F64)


def denoiser(layers=3, filters=4, kernel_size=3, seed=0, noise=0.6, **settings):
    """A denoiser in float64 whose layers differ in filters, thresholds and step sizes."""
    torch.manual_seed(seed)
    model = UnfoldedDenoiser(layers, filters, kernel_size, noise=noise, **settings).double()
    for number, parameter in enumerate(model.parameters()):
        parameter.data += 0.1 * randn(*parameter.shape, seed=number)
    return model


def problem_of(weight, threshold, step, layers, padding=0):
    """A shared denoiser of the convex problem ½‖x - z‖² + Σ_c θ_c‖(Lx)_c‖₁, with a given step size."""
    filters, channels, *kernel = weight.shape
    model = UnfoldedDenoiser(layers, filters, tuple(kernel), channels=channels, shared=True, padding=padding).double()
    inner = model.steps[0].module
    inner.bank.weight.data = weight
    inner.bank.log_threshold.data = torch.as_tensor(threshold, dtype=F64).log().expand(filters).reshape(-1, 1, 1)
    inner.log_step.data.fill_(math.log(step))
    return model.requires_grad_(False)


def matrix_of(weight, height, width):
    """L as a matrix, column by column, by torch's convolution."""
    channels = weight.shape[1]
    columns = torch.eye(channels * height * width, dtype=F64).view(-1, channels, height, width)
    return F.conv2d(columns, weight).flatten(1).t()


@pytest.mark.parametrize(("channels", "kernel"), [(1, (3, 3)), (3, (2, 5)), (2, (1, 1))])
def test_analysis_is_torchs_convolution_and_synthesis_its_transpose(channels, kernel):
    weight, x = randn(4, channels, *kernel), randn(3, channels, 7, 9, seed=1)
    bank = FilterBank(weight, 0.2)
    u = randn(3, 4, 8 - kernel[0], 10 - kernel[1], seed=2)
    torch.testing.assert_close(bank.analyse(x), F.conv2d(x, weight), rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(bank.synthesise(u), F.conv_transpose2d(u, weight), rtol=1e-12, atol=1e-12)
    noise = bank.analyse(0.2 * randn(2000, channels, *kernel, seed=3)).std(0).flatten()  # in each coefficient
    torch.testing.assert_close(bank.threshold.detach().view(4), 1.5 * noise, rtol=0.1, atol=0)


@pytest.mark.parametrize("padding", [None, 0, (2, 1)])
def test_layers_are_steps_of_dual_forward_backward_splitting(padding):
    """In the variable u = θv, with torch's convolutions and a clamp to each filter's threshold."""
    model, image = denoiser(padding=padding), randn(2, 1, 8, 11)
    top, left = {None: (1, 1), 0: (0, 0)}.get(padding, padding)
    z = F.pad(image, (left, left, top, top), mode="reflect") if top else image
    v = None
    for step in model.steps:
        bank, tau = step.module.bank, step.module.log_step.exp()
        theta = bank.log_threshold.exp()
        u = torch.zeros_like(F.conv2d(z, bank.weight)) if v is None else theta * v
        u = u - tau * F.conv2d(F.conv_transpose2d(u, bank.weight) - z, bank.weight)
        v = torch.maximum(torch.minimum(u, theta), -theta) / theta
    bank = model.primal.module.bank
    x = z - F.conv_transpose2d(bank.log_threshold.exp() * v, bank.weight)
    torch.testing.assert_close(model(image), x[..., top : top + 8, left : left + 11], rtol=1e-12, atol=1e-12)
    assert float((v.abs() == 1.0).double().mean()) > 0.1 and float((v.abs() < 1.0).double().mean()) > 0.1


def test_with_an_orthonormal_operator_one_layer_is_the_soft_threshold():
    """1 x 1 filters that rotate colours: argmin ½‖x - z‖² + Σθ_c‖(Lx)_c‖₁ = Lᵀ soft_θ(Lz)."""
    L = torch.linalg.qr(randn(3, 3)).Q
    threshold, z = torch.tensor([0.1, 0.5, 1.0], dtype=F64), randn(4, 3, 5, 6, seed=1)
    coefficients = torch.einsum("cd,ndhw->nchw", L, z)
    t = threshold.view(3, 1, 1)
    soft = coefficients.sign() * (coefficients.abs() - t).clamp(min=0.0)
    expected = torch.einsum("cd,nchw->ndhw", L, soft)
    weight = L.view(3, 3, 1, 1)
    torch.testing.assert_close(problem_of(weight, threshold, 1.0, 1)(z), expected, rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(problem_of(weight, threshold, 0.5, 60)(z), expected, rtol=1e-12, atol=1e-12)


def test_differences_of_neighbours_give_the_proximal_map_of_total_variation():
    """The exact map of a line, which cuts level sets and iterates nothing."""
    signal = randn(2, 12, seed=3).cumsum(1)
    weight = torch.tensor([-1.0, 1.0], dtype=F64).view(1, 1, 1, 2)
    model = problem_of(weight, 0.7, 0.5, 500)
    expected = lb.penalties.TotalVariation(0.7, dims=1).prox(signal)
    torch.testing.assert_close(model(signal.view(2, 1, 1, 12)).view(2, 12), expected, rtol=0, atol=1e-6)


@pytest.mark.parametrize("step", [1.0, 1.9])
def test_many_layers_find_the_minimiser_of_the_convex_problem(step):
    """A frame of cosines, another threshold for each filter; SciPy solves the dual least squares in the box."""
    torch.manual_seed(0)
    weight = UnfoldedDenoiser(1, 8, 3).steps[0].module.bank.weight.detach().double()
    threshold, z = torch.linspace(0.05, 0.2, 8, dtype=F64), randn(1, 1, 6, 7, seed=4)
    L, noisy = matrix_of(weight, 6, 7).numpy(), z.flatten().numpy()
    box = threshold.repeat_interleave(len(L) // 8).numpy()
    dual = lsq_linear(L.T, noisy, (-box, box), tol=1e-15, lsq_solver="exact", max_iter=1000).x
    x = noisy - L.T @ dual
    # The certificate that x is the minimiser: <u, Lx> = Σθ|Lx|, for u in the box
    assert abs(dual @ (L @ x) - box @ np.abs(L @ x)) < 1e-8 and np.all(np.abs(dual) <= box)
    found = problem_of(weight, threshold, step, 600)(z).flatten()
    torch.testing.assert_close(found, torch.from_numpy(x), rtol=0, atol=1e-6)
    few = problem_of(weight, threshold, step, 1)(z).flatten()
    assert float((few - torch.from_numpy(x)).abs().max()) > 1e-3  # one layer is not enough


def test_a_layer_is_nonexpansive_up_to_the_step_size_two_over_the_squared_norm():
    weight = randn(3, 2, 3, 3, seed=5)
    norm = float(torch.linalg.matrix_norm(matrix_of(weight, 6, 5), 2))
    image = torch.zeros(20, 2, 6, 5, dtype=F64)

    def stretch(step, u, w):
        layer = problem_of(weight, 1e3, step / norm**2, 2).steps[1]
        project = lb.activations.Box()
        return (project(layer(image, u)) - project(layer(image, w))).flatten(1).norm(dim=1) / (u - w).flatten(1).norm(
            dim=1
        )

    u, w = 2.0 * randn(20, 3, 4, 3, seed=6), randn(20, 3, 4, 3, seed=7)
    for step in (0.5, 1.0, 2.0):
        assert float(stretch(step, u, w).max()) <= 1.0 + 1e-12
    worst = torch.linalg.svd(matrix_of(weight, 6, 5)).U[:, 0].view(1, 3, 4, 3)
    assert float(stretch(2.2, 0.1 * worst, -0.1 * worst)[0]) > 1.1  # |1 - 2.2| = 1.2


@pytest.mark.parametrize(
    ("filters", "channels", "kernel"), [(8, 1, 3), (5, 1, (2, 4)), (20, 1, 3), (4, 3, 1), (40, 2, 3)]
)
def test_filters_start_without_mean_and_with_norm_at_most_one(filters, channels, kernel):
    torch.manual_seed(1)
    model = UnfoldedDenoiser(1, filters, kernel, channels=channels).double()
    weight = model.steps[0].module.bank.weight.detach()
    assert float(torch.linalg.matrix_norm(matrix_of(weight, 9, 8), 2)) <= 1.0 + 1e-6
    assert float(weight.flatten(1).sum(1).abs().max()) < 1e-6
    assert float(weight.flatten(1).norm(dim=1).min()) > 0.05
    step = float(model.steps[0].module.log_step.detach().exp())
    assert step == 1.0 and model.steps[0].module.bank is not model.primal.module.bank


def test_a_whole_basis_of_cosines_is_a_tight_frame():
    """Inside, away from the edges, LᵀLx = x - mean over each patch, averaged: for images without mean frequencies x."""
    torch.manual_seed(0)
    weight = UnfoldedDenoiser(1, 8, 3).steps[0].module.bank.weight.detach().double()
    constant = torch.full((1, 1, 3, 3), 1.0 / 9.0, dtype=F64)  # the filter left out, over √9 · √9
    x = randn(1, 1, 12, 12)
    whole = torch.cat((weight, constant))
    again = F.conv_transpose2d(F.conv2d(x, whole), whole)
    torch.testing.assert_close(again[..., 2:-2, 2:-2], x[..., 2:-2, 2:-2], rtol=1e-5, atol=1e-6)


def test_lift_makes_one_term_of_each_layer():
    model, image = denoiser(layers=4), randn(3, 1, 9, 10)
    problem = lb.lift(model, loss=lb.SquaredError(), example=image[:2])
    assert problem.depth == 5
    boxes = [layer.activation for layer in problem.network][:4]
    assert boxes == [lb.activations.Box(-1.0, 1.0)] * 4
    reads = [layer.inputs for layer in problem.network]
    assert reads == [(0,), (0, 1), (0, 2), (0, 3), (0, 4)]
    text = problem.summary()
    assert "Lifted: 4 activations are variables; 0 further" in text and "inside a map: none" in text
    clean = randn(3, 1, 9, 10, seed=1)
    state = problem.forward_state(image)
    expected = 0.5 * (model(image) - clean).square().sum().detach() / 3
    torch.testing.assert_close(problem.energy(state, image, clean), expected)


@pytest.mark.parametrize("shared", [False, True])
def test_signals_of_small_nudges_are_autograds_gradients(shared):
    plain, image = denoiser(shared=shared), randn(3, 1, 8, 8)
    lifted = lb.lifted_backward(copy.deepcopy(plain), nudge=1e-7, reduction="sum")
    for model in (plain, lifted):
        model(image).square().sum().backward()
    for p, q in zip(plain.parameters(), lifted.parameters(), strict=True):
        torch.testing.assert_close(p.grad, q.grad, rtol=1e-5, atol=1e-5 * float(p.grad.abs().max()))


@pytest.mark.parametrize("solver", [lb.GramSweep(), lb.ImplicitSGD(prox_weight=10.0, inner_steps=2)])
@pytest.mark.parametrize("shared", [False, True])
def test_lifted_training_lowers_the_error_without_a_derivative_of_the_projection(solver, shared):
    torch.manual_seed(0)
    model = UnfoldedDenoiser(3, 8, 3, noise=1.0, shared=shared)
    clean = (randn(40, 1, 12, 12) > 0).float().cumsum(3) / 12
    noisy = clean + 0.1 * randn(40, 1, 12, 12, seed=1).float()
    problem = lb.lift(model, loss=lb.SquaredError(), example=noisy[:2])
    before = 0.5 * float((model(noisy) - clean).detach().square().sum()) / 40
    with lb.forbid_activation_derivatives():
        result = lb.fit(problem, (noisy, clean), solver=solver, epochs=3, batch_size=10)
    assert result.history[-1]["objective"] < (0.99 if isinstance(solver, lb.ImplicitSGD) else 0.9) * before


def test_it_is_an_ordinary_module():
    model, image = denoiser(), randn(2, 1, 9, 7)
    again = denoiser(seed=3)
    again.load_state_dict(model.state_dict())
    assert torch.equal(again(image), model(image))
    exported = torch.export.export(model, (image,)).module()
    torch.testing.assert_close(exported(image), model(image))
    assert model(randn(1, 1, 31, 18)).shape == (1, 1, 31, 18)
    count = sum(p.numel() for p in model.parameters())
    assert count == 4 * (4 * 9 + 4) + 3  # four banks of filters and thresholds, three step sizes
    one = UnfoldedDenoiser(3, 4, 3, shared=True)
    assert sum(p.numel() for p in one.parameters()) == 4 * 9 + 4 + 1


@pytest.mark.parametrize(
    ("shape", "said"),
    [
        ((8, 8), r"shape \(8, 8\); UnfoldedDenoiser takes \(samples, channels, height, width\): add"),
        ((1, 8, 8), r"shape \(1, 8, 8\)"),
        ((2, 3, 8, 8), r"3 channels and the denoiser 1: build UnfoldedDenoiser\(channels=3\), or give images of 1"),
        ((2, 1, 3, 8), r"3 x 8 pixels, too few for filters of 7 x 5: give at least 4 x 3"),
        ((2, 1, 4, 2), r"4 x 2 pixels, too few"),
    ],
)
def test_images_that_do_not_fit_are_refused(shape, said):
    model = UnfoldedDenoiser(2, 4, (7, 5))
    with pytest.raises(TensorError, match=said):
        model(torch.zeros(shape))
    assert model(torch.zeros(2, 1, 4, 3)).shape == (2, 1, 4, 3)


@pytest.mark.parametrize(
    ("images", "said"),
    [
        (torch.zeros(2, 1, 8, 8, dtype=F64), r"torch.float64 and .* parameters are torch.float32: use images\.to\("),
        (
            torch.zeros(2, 1, 8, 8, dtype=torch.uint8),
            r"uint8; .* pixels from 0 to 1: use images\.to\(torch\.float32\) / 255",
        ),
        (np.zeros((2, 1, 8, 8)), r"a ndarray; .* a tensor .*: use torch\.as_tensor\(images, dtype=torch\.float32\)"),
    ],
    ids=["float64", "uint8", "numpy"],
)
def test_images_of_another_type_than_the_parameters_are_refused(images, said):
    with pytest.raises(TensorError, match=said):
        UnfoldedDenoiser(2, 4, 3)(images)


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"layers": 0}, "layers is 0"),
        ({"filters": 2.5}, "filters is 2.5"),
        ({"kernel_size": (3, 3, 3)}, r"kernel_size is \(3, 3, 3\); it must be a number, or a pair"),
        ({"kernel_size": 0}, "kernel_size is 0"),
        ({"channels": 0}, "channels is 0"),
        ({"noise": 0.0}, "noise is 0.0"),
        ({"padding": -1}, "padding is -1"),
    ],
)
def test_settings_out_of_range_are_refused(settings, said):
    with pytest.raises(SettingError, match=said):
        UnfoldedDenoiser(**settings)
