"""Inversion: one layer against SciPy, certificates against true minima, deep networks by descent and stationarity."""

from __future__ import annotations

import math
import runpy
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
import torch
from scipy.optimize import minimize
from torch import Tensor, nn

import lifted_bregman as lb
from lifted_bregman.penalties import L1, Bounds, GroupL2, NonNegative, Penalty, SquaredL2, TotalVariation
from lifted_bregman.solvers import Outcome
from lifted_bregman.tasks._inverse_problem import InverseProblem
from lifted_bregman.tasks._inversion_checks import lift_model
from lifted_bregman.tasks.primal_dual import PrimalDualInversion

N, M = 7, 5
STUDY = Path(__file__).parents[2] / "scripts" / "inversion_study.py"


def layer(final: nn.Module | None, seed: int = 0, features: int = N, outputs: int = M) -> nn.Sequential:
    generator = torch.Generator().manual_seed(seed)
    linear = nn.Linear(features, outputs, dtype=torch.float64)
    with torch.no_grad():
        for p in linear.parameters():
            p.copy_(0.7 * torch.randn(p.shape, generator=generator, dtype=torch.float64))
    return nn.Sequential(linear) if final is None else nn.Sequential(linear, final)


def outputs_of(model: nn.Module, samples: int = 2, features: int = N) -> Tensor:
    generator = torch.Generator().manual_seed(9)
    with torch.no_grad():
        return model(torch.rand(samples, features, generator=generator, dtype=torch.float64))


CONJUGATES = {  # φ* and its derivative, from their definitions
    "identity": (None, lambda z: 0.5 * z**2, lambda z: z),
    "relu": (nn.ReLU(), lambda z: 0.5 * np.maximum(z, 0.0) ** 2, lambda z: np.maximum(z, 0.0)),
    "sigmoid": (nn.Sigmoid(), lambda z: np.logaddexp(0.0, z), lambda z: 1.0 / (1.0 + np.exp(-z))),
    "tanh": (nn.Tanh(), lambda z: np.logaddexp(z, -z) - math.log(2.0), np.tanh),
}
PENALTIES: dict[str, tuple[Penalty, tuple[float, float, float, float, float]]] = {
    # the weights of TV, L1 and SquaredL2, and the box
    "tv": (TotalVariation(0.1, dims=1), (0.1, 0.0, 0.0, -np.inf, np.inf)),
    "tv+box": (TotalVariation(0.1, dims=1) + Bounds(0.1, 0.8), (0.1, 0.0, 0.0, 0.1, 0.8)),
    "l1": (L1(0.15), (0.0, 0.15, 0.0, -np.inf, np.inf)),
    "ridge": (SquaredL2(0.3) + NonNegative(), (0.0, 0.0, 0.3, 0.0, np.inf)),
    "all": (TotalVariation(0.05, dims=1) + L1(0.05) + SquaredL2(0.1), (0.05, 0.05, 0.1, -np.inf, np.inf)),
}


def by_scipy(model: nn.Sequential, y: np.ndarray, name: str, weights: tuple[float, ...]) -> tuple[np.ndarray, float]:
    """The minimiser and minimum of φ*(Wu + b) - <y, Wu + b> + J(u), with |·| written by slack variables, by SLSQP."""
    _, phi_star, sigma = CONJUGATES[name]
    W, b = (p.detach().numpy() for p in model[0].parameters())
    tv, l1, l2, low, high = weights
    D = np.diff(np.eye(N), axis=0)
    rows = np.concatenate([tv * D, l1 * np.eye(N)])  # Σ |rows u| by slacks t >= ±rows u

    def value(v: np.ndarray) -> tuple[float, np.ndarray]:
        u, t = v[:N], v[N:]
        z = W @ u + b
        slope = W.T @ (sigma(z) - y) + l2 * u
        return float(phi_star(z).sum() - y @ z + 0.5 * l2 * u @ u + t.sum()), np.concatenate([slope, np.ones(len(t))])

    A = np.block([[-rows, np.eye(len(rows))], [rows, np.eye(len(rows))]])
    begin = np.concatenate([np.clip(np.full(N, 0.3), low, high), np.ones(len(rows))])
    solved = minimize(
        value,
        begin,
        jac=True,
        method="SLSQP",
        bounds=[(low, high)] * N + [(0.0, None)] * len(rows),
        constraints=[{"type": "ineq", "fun": lambda v: A @ v, "jac": lambda v: A}],
        options={"ftol": 1e-15, "maxiter": 1000},
    )
    return solved.x[:N], float(solved.fun)


@pytest.mark.parametrize("penalty", PENALTIES)
@pytest.mark.parametrize("name", CONJUGATES)
def test_one_layer_against_scipy(name: str, penalty: str) -> None:
    model = layer(CONJUGATES[name][0])
    y = outputs_of(model)
    J, weights = PENALTIES[penalty]
    found = lb.invert(model, y, penalty=J, tolerance=1e-9, steps=20_000, record_every=50)
    assert found.outcome is Outcome.CONVERGED and found.gap is not None
    activation = lift_model(model, None, None, None).loss.activation
    for sample in range(len(y)):
        _, least = by_scipy(model, y[sample].numpy(), name, weights)
        # E differs from SciPy's objective by φ(y)
        constant = float(activation.potential(y[sample]) + 0.5 * y[sample].square().sum())
        difference = float(found.energy[sample]) - constant - least
        assert abs(difference) < 1e-6
        assert difference <= float(found.gap[sample]) + 1e-7  # the certificate, up to SciPy's own accuracy


@pytest.mark.parametrize("penalty", [*PENALTIES, "none", "group"])
def test_the_gap_holds_for_every_input_and_every_iterate(penalty: str) -> None:
    """E(u) - E(v) <= gap·max(1, ‖v - u‖/radius), tried at random inputs and at the minimum, after few steps."""
    model = layer(nn.ReLU())
    y = outputs_of(model)
    J = {"none": None, "group": GroupL2(0.1)}.get(penalty) or (PENALTIES[penalty][0] if penalty in PENALTIES else None)
    best = lb.invert(model, y, penalty=J, tolerance=1e-9, steps=5000, record_every=50)
    inverse = InverseProblem(lift_model(model, None, None, None), y, J)
    solver = PrimalDualInversion()
    state = solver.init(inverse, torch.zeros(2, N, dtype=torch.float64))
    generator = torch.Generator().manual_seed(3)
    for step in range(1, 40):
        state = solver.step(inverse, state)
        if step not in (1, 3, 10, 39):
            continue
        reached = solver.progress(inverse, state)
        others = [best.input] + [state.u + s * torch.randn(2, N, generator=generator) for s in (0.01, 0.1, 1.0, 10.0)]
        for v in others:
            lower = inverse.energies(inverse.point(v, ()))
            factor = ((v - state.u).norm(dim=1) / reached.radius).clamp(min=1.0)
            assert bool((reached.energies - lower <= reached.gap * factor + 1e-9).all())
        torch.testing.assert_close(reached.energies, inverse.energies(inverse.point(state.u, ())))


def test_bounds_make_the_certificate_global() -> None:
    model = layer(nn.ReLU())
    y = outputs_of(model)
    for J, bounded in [(Bounds(0.0, 1.0), True), (SquaredL2(0.1), True), (NonNegative(), False), (L1(0.1), False)]:
        radius = lb.invert(model, y, penalty=J, steps=20).radius
        assert radius is not None and bool(radius.isinf().all()) == bounded


@pytest.mark.parametrize("simultaneous", [False, True])
def test_descent_and_primal_dual_agree_on_one_layer(simultaneous: bool) -> None:
    model = layer(nn.Tanh())
    y = outputs_of(model)
    J = TotalVariation(0.05, dims=1) + SquaredL2(0.2)
    best = lb.invert(model, y, penalty=J, tolerance=1e-11, steps=20_000)
    other = lb.invert(
        model, y, penalty=J, tolerance=1e-9, steps=20_000, solver=lb.DescentInversion(simultaneous=simultaneous)
    )
    torch.testing.assert_close(other.input, best.input, rtol=0.0, atol=1e-5)
    assert other.gap is None and other.outcome is Outcome.CONVERGED


def deep() -> nn.Sequential:
    torch.manual_seed(4)
    return nn.Sequential(nn.Linear(6, 9), nn.Tanh(), nn.Linear(9, 8), nn.ReLU(), nn.Linear(8, 7), nn.Sigmoid()).double()


@pytest.mark.parametrize("solver", [lb.DescentInversion(), lb.DescentInversion(accelerate=False)], ids=repr)
def test_energies_of_every_sample_fall_and_the_end_is_stationary(solver: lb.DescentInversion) -> None:
    model = deep()
    y = outputs_of(model, 3, 6)
    J = TotalVariation(0.01, dims=1) + SquaredL2(0.2)
    rows: list[float] = []
    found = lb.invert(
        model,
        y,
        penalty=J,
        weights=(2.0, 0.5),
        solver=solver,
        tolerance=1e-9,
        steps=20_000,
        record_every=1,
        callback=lambda row: rows.append(row["energy"]),
    )
    assert found.outcome is Outcome.CONVERGED
    assert all(b <= a * (1.0 + 1e-12) for a, b in pairwise(rows))
    # E from its definition, in SciPy's hands: no smaller value near the solution, block by block and together
    acts = [lb.activations.Tanh(), lb.activations.ReLU(), lb.activations.Sigmoid()]

    def energy(u: Tensor, hidden: list[Tensor]) -> Tensor:
        total, x = J.value(u), u
        for linear, act, target, weight in zip(model[::2], acts, [*hidden, y], (2.0, 0.5, 1.0), strict=True):
            with torch.no_grad():
                total = total + weight * act.bregman(target, linear(x))
            x = target
        return total

    at = energy(found.input, list(found.hidden))
    torch.testing.assert_close(at, found.energy)
    generator = torch.Generator().manual_seed(0)
    for size in (1e-2, 1e-3):
        for block in range(3):
            moved = [found.input, *found.hidden]
            noise = size * torch.randn(moved[block].shape, generator=generator, dtype=torch.float64)
            moved[block] = moved[block] + noise
            assert bool((energy(moved[0], moved[1:]) >= at - 1e-9).all())


def test_the_gradient_of_the_input_is_that_of_autograd() -> None:
    """∇_u B_1(x_1, f_1(u)) = W_1ᵀ(σ_1(z_1) - x_1), by autograd on φ* = log cosh in float64."""
    model = deep()
    y = outputs_of(model, 3, 6)
    inverse = InverseProblem(lift_model(model, None, (2.0, 0.5), None), y, None)
    u = torch.randn(3, 6, dtype=torch.float64, requires_grad=True)
    x1 = 0.5 * torch.rand(3, 9, dtype=torch.float64)
    z = model[0](u)
    (2.0 * (z.cosh().log() - x1 * z).sum()).backward()
    point = inverse.point(u.detach(), [x1, torch.rand(3, 8, dtype=torch.float64)])
    torch.testing.assert_close(inverse.gradient(point, 0), u.grad)


def test_samples_do_not_depend_on_each_other() -> None:
    model = deep()
    y = outputs_of(model, 3, 6)
    together = lb.invert(model, y, penalty=SquaredL2(0.05), steps=30, tolerance=0.0)
    alone = lb.invert(model, y[1:2], penalty=SquaredL2(0.05), steps=30, tolerance=0.0)
    torch.testing.assert_close(together.input[1:2], alone.input, rtol=0.0, atol=1e-10)


def test_the_start_is_a_forward_pass_of_the_guess() -> None:
    model = deep()
    guess = torch.rand(2, 6, dtype=torch.float64)
    with torch.no_grad():
        y = model(guess)
    # with no penalty the energy vanishes at the guess, which is a minimum
    found = lb.invert(model, y, start=guess, steps=5)
    torch.testing.assert_close(found.input, guess)
    assert float(found.energy.max()) < 1e-12 and float(found.residual.max()) < 1e-6


def test_maps_that_are_not_affine_are_inverted_with_safe_steps() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(6, 8), nn.LayerNorm(8), nn.Tanh(), nn.Linear(8, 5)).double()
    y = outputs_of(model, 2, 6)
    rows: list[float] = []
    found = lb.invert(
        model,
        y,
        penalty=SquaredL2(1e-3),
        start=torch.full((2, 6), 0.1, dtype=torch.float64),
        steps=300,
        record_every=1,
        callback=lambda row: rows.append(row["energy"]),
    )
    assert all(b <= a + 1e-12 for a, b in pairwise(rows))
    assert rows[-1] < 0.2 * rows[0] and math.isfinite(float(found.residual.max()))


class Residual(nn.Module):
    """The input is read by two terms."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b, self.c = nn.Linear(6, 8), nn.Linear(8, 6), nn.Linear(6, 4)

    def forward(self, x: Tensor) -> Tensor:
        return torch.tanh(self.c(x + self.b(torch.relu(self.a(x)))))


def test_a_residual_network_is_inverted() -> None:
    torch.manual_seed(0)
    model = Residual().double()
    y = outputs_of(model, 3, 6)
    found = lb.invert(model, y, penalty=SquaredL2(1e-3), shape=6, steps=400)
    with torch.no_grad():
        distances = (model(found.input) - y).norm(dim=1)
    torch.testing.assert_close(found.residual, distances)
    assert float(distances.max()) < 0.02


def test_the_model_does_not_change_and_no_activation_is_differentiated() -> None:
    model = deep()
    before = {name: p.clone() for name, p in model.state_dict().items()}
    with lb.forbid_activation_derivatives():
        lb.invert(model, outputs_of(model, 2, 6), penalty=L1(0.01), steps=10)
    assert all(torch.equal(p, before[name]) for name, p in model.state_dict().items())
    assert all(p.grad is None and p.requires_grad for p in model.parameters())


def test_pictures_of_odd_sizes_channels_and_strided_convolutions() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Conv2d(2, 3, 3, stride=2), nn.ReLU(), nn.Conv2d(3, 2, 2), nn.Tanh())
    with torch.no_grad():
        y = model(torch.rand(2, 2, 9, 7))
    found = lb.invert(model, y, penalty=TotalVariation(1e-3) + Bounds(0.0, 1.0), shape=(2, 9, 7), steps=30)
    assert found.input.shape == (2, 2, 9, 7) and found.input.dtype == torch.float32
    assert float(found.input.min()) >= 0.0 and float(found.input.max()) <= 1.0
    assert found.history[-1]["energy"] < found.history[0]["energy"]


@pytest.mark.long
def test_the_error_falls_like_the_noise() -> None:
    """D_J(u_α, u†) = O(δ) for α ~ δ, where p† = Wᵀω is a subgradient of J at u† (the source condition)."""
    rows = runpy.run_path(str(STUDY))["rates"](seed=2)
    noise, errors = ([row[name] for row in rows] for name in ("noise", "bregman_distance"))
    slope = np.polyfit(np.log(noise), np.log(errors), 1)[0]
    assert len(rows) == 5 and abs(slope - 1.0) < 0.1


def test_a_picture_is_written(tmp_path) -> None:
    pytest.importorskip("matplotlib")
    model = nn.Sequential(nn.Flatten(), nn.Linear(12, 6), nn.ReLU())
    with torch.no_grad():
        y = model(torch.rand(2, 3, 4))
    found = lb.invert(model, y, penalty=TotalVariation(0.01), shape=(3, 4), steps=20)
    found.plot(tmp_path / "found.png", truth=torch.rand(2, 3, 4))
    assert (tmp_path / "found.png").stat().st_size > 1000
    assert len(found.figure().axes) == 3 and "Inversion((2, 3, 4)" in repr(found)
    with pytest.raises(lb.errors.CompatibilityError, match="one true input"):
        found.figure(torch.rand(2, 4, 3))
