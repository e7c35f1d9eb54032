"""Energies of an autoencoder's terms and the scores made of them, against NumPy, closed forms and torch's losses."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

import lifted_bregman as lb
from lifted_bregman.errors import CompatibilityError, SettingError, TensorError
from lifted_bregman.graph.terms import Layer
from lifted_bregman.problem.energies import sample_energies
from lifted_bregman.tasks import EnergyScale, classifier_scores, term_energies
from lifted_bregman.tasks._hidden_problem import minimise_hidden


def autoencoder(*widths: int, seed: int = 0) -> tuple[nn.Sequential, lb.LiftedProblem]:
    """Dense layers with ReLU between them, tanh before the last map."""
    torch.manual_seed(seed)
    modules: list[nn.Module] = []
    for place, (inside, outside) in enumerate(pairwise(widths)):
        modules += [nn.Linear(inside, outside), nn.Tanh() if place == len(widths) - 3 else nn.ReLU()]
    model = nn.Sequential(*modules[:-1]).double()
    return model, lb.lift(model, loss=lb.SquaredError())


def test_unit_energies_sum_to_the_bregman_distance() -> None:
    torch.manual_seed(1)
    z = torch.randn(3, 4, 2, 5, dtype=torch.float64)
    for activation in (lb.activations.ReLU(), lb.activations.Sigmoid(), lb.activations.Softmax()):
        layer = Layer(None, activation, "", dim=1)  # type: ignore[arg-type]  # the map plays no part
        x = layer.activate(torch.randn_like(z))
        units = layer.bregman_units(x, z)
        assert units.shape == (3, 10 if activation.joint else 40) and bool((units >= 0).all())
        torch.testing.assert_close(units.sum(1), layer.bregman(x, z), rtol=1e-12, atol=0.0)


def test_energies_at_the_forward_pass_compare_the_reconstruction_with_the_sample() -> None:
    model, problem = autoencoder(5, 7, 3, 5)
    x = torch.randn(6, 5, dtype=torch.float64)
    found = term_energies(problem, x)
    (w1, b1), (w2, b2), (w3, b3) = (
        (m.weight.detach().numpy(), m.bias.detach().numpy()) for m in model if isinstance(m, nn.Linear)
    )
    X = x.numpy()

    def encode(inputs: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
        z1 = inputs @ w1.T + b1
        x1 = np.maximum(z1, 0.0)
        z2 = x1 @ w2.T + b2
        return z1, x1, z2, np.tanh(z2)

    z1, _, z2, x2 = encode(X)
    z3 = x2 @ w3.T + b3
    _, again1, _, again2 = encode(z3)
    # ReLU: φ = ½x² on x >= 0 and φ* = ½max(z, 0)²;  tanh: φ = x artanh x + ½log(1 - x²) and φ* = log cosh z
    relu = 0.5 * again1**2 + 0.5 * np.maximum(z1, 0.0) ** 2 - again1 * z1
    tanh = again2 * np.arctanh(again2) + 0.5 * np.log1p(-(again2**2)) + np.log(np.cosh(z2)) - again2 * z2
    for own, expected in zip(found.units, (relu, tanh, 0.5 * (X - z3) ** 2), strict=True):
        np.testing.assert_allclose(own.numpy(), expected, rtol=1e-9, atol=1e-12)
    np.testing.assert_allclose(found.code.numpy(), x2, rtol=1e-12)
    np.testing.assert_allclose(found.layers()[:, 2].numpy(), 0.5 * ((X - z3) ** 2).sum(1), rtol=1e-12)


def test_all_energies_vanish_where_the_network_returns_the_sample() -> None:
    model, problem = autoencoder(4, 8, 4, 4)
    with torch.no_grad():  # (x, -x) through ReLU, back to x, an identity in place of tanh
        identity = torch.eye(4, dtype=torch.float64)
        model[0].weight.copy_(torch.cat([identity, -identity]))
        model[2].weight.copy_(torch.cat([identity, -identity], 1))
        model[4].weight.copy_(identity)
        for module in (model[0], model[2], model[4]):
            module.bias.zero_()
    plain = nn.Sequential(*list(model)[:3], nn.Identity(), model[4])
    problem = lb.lift(plain, loss=lb.SquaredError())
    found = term_energies(problem, torch.randn(5, 4, dtype=torch.float64))
    assert float(found.layers().max()) == 0.0


def test_the_minimum_is_that_of_the_normal_equations() -> None:
    torch.manual_seed(2)
    down, up = nn.Linear(6, 3), nn.Linear(3, 6)
    problem = lb.lift(nn.Sequential(down, up).double(), loss=lb.SquaredError())
    x = torch.randn(7, 6, dtype=torch.float64)
    found = term_energies(problem, x, at="minimum", steps=2000)
    # min over c of ½‖c - Wx - a‖² + ½‖x - Vc - b‖²: (I + VᵀV) c = Wx + a + Vᵀ(x - b)
    with torch.no_grad():
        forward, V, b = down(x), up.weight, up.bias
        c = torch.linalg.solve(torch.eye(3, dtype=torch.float64) + V.T @ V, (forward + (x - b) @ V).T).T
        expected = torch.stack([0.5 * (c - forward).square().sum(1), 0.5 * (x - up(c)).square().sum(1)], 1)
    torch.testing.assert_close(found.code, c, rtol=1e-6, atol=1e-8)
    torch.testing.assert_close(found.layers(), expected, rtol=1e-6, atol=1e-10)


def test_minimising_moves_the_hidden_variables_alone_and_never_up() -> None:
    _, problem = autoencoder(5, 7, 3, 5)
    x = torch.randn(6, 5, dtype=torch.float64)
    forward = sample_energies(problem, problem.point(problem.forward_state(x), x, x))
    reached = [sample_energies(problem, minimise_hidden(problem, x, x, steps)) for steps in (1, 5, 50)]
    point = minimise_hidden(problem, x, x, 5)
    assert point.x[0].equal(x) and point.x[-1].equal(x)
    for before, after in zip([forward, *reached], reached, strict=False):
        assert bool((after <= before + 1e-12).all())
    assert bool((reached[-1] < forward - 1e-6).all())


@pytest.fixture(params=["forward", "minimum"])
def scale(request: pytest.FixtureRequest) -> tuple[EnergyScale, Tensor]:
    _, problem = autoencoder(5, 8, 2, 8, 5)
    x = torch.randn(40, 5, dtype=torch.float64)
    return EnergyScale.of(problem, x, at=request.param, steps=10), x


def test_every_kind_of_part_has_mean_1_over_usual_samples(scale: tuple[EnergyScale, Tensor]) -> None:
    found, x = scale
    parts = found.explain(x).layers
    assert found.names == ("layer 1", "layer 3", "code", "output")
    means = parts.mean(0)
    torch.testing.assert_close(means[:2].sum(), torch.tensor(1.0, dtype=torch.float64))
    torch.testing.assert_close(means[2:], torch.ones(2, dtype=torch.float64))


def test_parts_sum_to_the_score_and_features_to_the_part_of_the_output(scale: tuple[EnergyScale, Tensor]) -> None:
    found, x = scale
    explained = found.explain(x[:9] + 0.5)
    torch.testing.assert_close(explained.scores, found.scores(x[:9] + 0.5))
    torch.testing.assert_close(explained.layers.sum(1), explained.scores)
    assert explained.features.shape == (9, 5)
    torch.testing.assert_close(explained.features.sum(1), explained.layers[:, -1])
    (place, part), *_ = explained.top_features(3)
    assert part == float(explained.features[3].max()) and place == int(explained.features[3].argmax())


def test_the_code_part_is_a_mahalanobis_distance() -> None:
    _, problem = autoencoder(5, 8, 2, 8, 5)
    x, new = torch.randn(400, 5, dtype=torch.float64), torch.randn(6, 5, dtype=torch.float64)
    found = EnergyScale.of(problem, x).explain(new).layers[:, 2].numpy()
    codes, other = term_energies(problem, x).code.numpy(), term_energies(problem, new).code.numpy()
    C = np.cov(codes.T, bias=True)
    P = np.linalg.inv(C + 0.01 * np.trace(C) / 2 * np.eye(2))
    distances = [np.einsum("ij,jk,ik->i", d, P, d) for d in (other - codes.mean(0), codes - codes.mean(0))]
    np.testing.assert_allclose(found, distances[0] / distances[1].mean(), rtol=1e-6)


def test_scores_are_those_of_one_sample_at_a_time(scale: tuple[EnergyScale, Tensor]) -> None:
    found, x = scale
    if found.at == "forward":
        torch.testing.assert_close(torch.cat([found.scores(row) for row in x.split(1)]), found.scores(x))


def test_a_classifier_is_scored_by_its_conjugate_or_its_label() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(6, 9), nn.ReLU(), nn.Linear(9, 4)).double()
    problem = lb.lift(model, loss=lb.CrossEntropy())
    x = torch.randn(8, 6, dtype=torch.float64)
    with torch.no_grad():
        z = model(x)
    torch.testing.assert_close(classifier_scores(problem, x), -z.logsumexp(1))
    label = classifier_scores(problem, x, score="label")
    torch.testing.assert_close(label, F.cross_entropy(z, z.argmax(1), reduction="none"))
    lower = classifier_scores(problem, x, score="label", at="minimum", steps=30)
    assert bool((lower < label).all()) and bool((lower >= 0).all())


def test_pictures_and_tables_are_explained_by_a_figure(tmp_path) -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Conv2d(1, 2, 3, stride=2, padding=1), nn.ReLU(), nn.ConvTranspose2d(2, 1, 2, stride=2))
    images = torch.rand(12, 1, 6, 6)
    problem = lb.lift(model, loss=lb.SquaredError(), example=images)
    explained = EnergyScale.of(problem, images).explain(images)
    explained.plot(tmp_path / "pictures.png")
    assert (tmp_path / "pictures.png").stat().st_size > 5000
    axes = explained.figure([3]).axes
    assert len(axes) == 3 and axes[1].get_title().startswith("sample 3: score")
    torch.testing.assert_close(
        torch.tensor([bar.get_width() for bar in axes[1].patches], dtype=torch.float64), explained.layers[3]
    )
    _, table = autoencoder(5, 8, 2, 5)
    rows = torch.randn(20, 5, dtype=torch.float64)
    figure = EnergyScale.of(table, rows).explain(rows).figure([0, 1], feature_names=list("abcde"))
    assert len(figure.axes) == 4
    assert {label.get_text() for label in figure.axes[1].get_yticklabels()} == set("abcde")
    with pytest.raises(SettingError, match="there is no sample 12: samples count from 0 to 11"):
        explained.figure([12])
    with pytest.raises(SettingError, match=r"name a file that ends in \.png, \.pdf, \.svg"):
        explained.plot(tmp_path / "explained.xyz")


def test_mistakes_are_one_sentence_each() -> None:
    _, problem = autoencoder(5, 8, 2, 5)
    x = torch.randn(4, 5, dtype=torch.float64)
    with pytest.raises(SettingError, match=r"energy is 'lowest'; it must be 'forward' or 'minimum'\.$"):
        term_energies(problem, x, at="lowest")  # type: ignore[arg-type]
    with pytest.raises(SettingError, match="steps is 0"):
        EnergyScale.of(problem, x, steps=0)
    with pytest.raises(SettingError, match="1 sample is too few for a mean"):
        EnergyScale.of(problem, x[:1])
    with pytest.raises(CompatibilityError, match="no hidden variable"):
        term_energies(lb.lift(nn.Linear(5, 5).double(), loss=lb.SquaredError()), x)
    torch.manual_seed(0)
    odd = nn.Sequential(nn.Conv2d(1, 2, 3, stride=2, padding=1), nn.ReLU(), nn.ConvTranspose2d(2, 1, 2, stride=2))
    images = torch.rand(4, 1, 5, 5)
    with pytest.raises(TensorError, match=r"returns \(1, 6, 6\) for samples of shape \(1, 5, 5\): .* pad or crop"):
        term_energies(lb.lift(odd, loss=lb.SquaredError(), example=images), images)
    with pytest.raises(CompatibilityError, match=r"loss=lb\.CrossEntropy"):
        classifier_scores(problem, x)
    classifier = lb.lift(nn.Sequential(nn.Linear(5, 4), nn.ReLU(), nn.Linear(4, 3)).double(), loss=lb.CrossEntropy())
    with pytest.raises(SettingError, match="score is 'energy'"):
        classifier_scores(classifier, x, score="energy")  # type: ignore[arg-type]
    with pytest.raises(SettingError, match="has no label to minimise towards"):
        classifier_scores(classifier, x, at="minimum")


@pytest.mark.parametrize("shape", [(1, 9, 9), (3, 7, 7)], ids=["larger", "colour"])
def test_samples_of_another_shape_than_the_usual_ones_are_refused(shape: tuple[int, ...]) -> None:
    down, up = nn.Conv2d(1, 2, 3, stride=2, padding=1), nn.ConvTranspose2d(2, 1, 3, stride=2, padding=1)
    problem = lb.lift(nn.Sequential(down, nn.ReLU(), up).eval(), loss=lb.SquaredError())
    scale = EnergyScale.of(problem, torch.rand(5, 1, 7, 7))
    for ask in (scale.scores, scale.explain):
        with pytest.raises(TensorError, match=r"the usual samples have \(1, 7, 7\): scale, crop or convert"):
            ask(torch.rand(2, *shape))
