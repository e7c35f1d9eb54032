"""What `invert` refuses, in one sentence each, before any work."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import lifted_bregman as lb
from lifted_bregman.errors import CompatibilityError, DomainError, SettingError, TensorError
from lifted_bregman.penalties import L1, GroupL2, TotalVariation
from lifted_bregman.solvers import Outcome


@pytest.fixture
def model() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(12, 4), nn.ReLU())


def test_outputs_outside_the_range_are_named_with_the_nearest_feasible_value(model: nn.Sequential) -> None:
    y = torch.tensor([[1.0, 0.0, 0.5, 2.0], [0.1, -0.25, 0.0, -0.5], [0.0, 0.0, 0.0, 0.0], [1.0, 1.0, -3.0, 1.0]])
    with pytest.raises(DomainError, match=r"samples 1, 3 of y .*ReLU\(\): sample 1 holds -0.5, .* value is 0;"):
        lb.invert(model, y)
    softmax = nn.Sequential(nn.Linear(12, 2), nn.Softmax(-1))
    with pytest.raises(DomainError, match=r"sample 0 of y .* holds 0\.9.* nearest feasible value is 0\.7"):
        lb.invert(softmax, torch.tensor([[0.9, 0.5]]))
    tanh = nn.Sequential(nn.Linear(12, 2), nn.Tanh())
    with pytest.raises(DomainError, match=r"holds 1\.5, and the nearest feasible value is (1|0\.99)"):
        lb.invert(tanh, torch.tensor([[1.5, 0.5]]))


@pytest.mark.parametrize(
    ("y", "said"),
    [
        (torch.zeros(3, 5), r"expected \(samples, 4\)"),
        (torch.zeros(4), r"y\.unsqueeze\(0\)"),
        (torch.zeros(3, 4, dtype=torch.float64), r"y\.to\(torch\.float32\)"),
        (torch.tensor([[0.0, 0.0, torch.nan, 0.0]]), "NaN or infinity in sample 0"),
        ([[0.0]], "torch tensor"),
    ],
    ids=["width", "one sample", "dtype", "nan", "list"],
)
def test_outputs_of_another_shape_or_type_are_refused(model: nn.Sequential, y: object, said: str) -> None:
    with pytest.raises(TensorError, match=said):
        lb.invert(model, y)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("penalty", "said"),
    [
        (TotalVariation(0.1), r"pictures .* shape \(12,\): put nn\.Flatten\(\)"),
        (TotalVariation(0.1) + L1(0.1), r"pictures .* shape \(12,\)"),
        (GroupL2(0.1, 5), "groups of 5"),
    ],
    ids=repr,
)
def test_penalties_that_do_not_fit_the_inputs_shape_are_refused(
    model: nn.Sequential, penalty: lb.penalties.Penalty, said: str
) -> None:
    with pytest.raises(CompatibilityError, match=said):
        lb.invert(model, torch.zeros(1, 4), penalty=penalty)


def test_total_variation_of_signals_is_refused_for_pictures() -> None:
    model = nn.Sequential(nn.Conv2d(1, 2, 3), nn.ReLU())
    with pytest.raises(CompatibilityError, match="take dims=2"):
        lb.invert(model, torch.zeros(1, 2, 2, 2), shape=(1, 4, 4), penalty=TotalVariation(0.1, dims=1))


def test_an_unknown_input_shape_is_asked_for() -> None:
    with pytest.raises(SettingError, match=r"not known from model\.0 .*give shape="):
        lb.invert(nn.Sequential(nn.Conv2d(1, 2, 3), nn.ReLU()), torch.zeros(1, 2, 2, 2))


@pytest.mark.parametrize("guess", [{"shape": (3, 7, 7)}, {"start": torch.zeros(1, 3, 7, 7)}], ids=["shape", "start"])
def test_a_colour_picture_for_a_model_of_grey_ones(guess: dict[str, object]) -> None:
    model = nn.Sequential(nn.Conv2d(1, 2, 3, stride=2, padding=1), nn.ReLU())
    with pytest.raises(TensorError, match=r"shape \(3, 7, 7\), so that model\.0 \(Conv2d\) .* cannot take"):
        lb.invert(model, torch.zeros(1, 2, 4, 4), **guess)  # type: ignore[arg-type]


def test_a_shape_with_other_numbers_than_the_model_takes() -> None:
    model = nn.Sequential(nn.Flatten(), nn.Linear(12, 4), nn.ReLU())
    with pytest.raises(TensorError, match=r"shape \(5, 5\), so that model\.1 \(Linear\) .* takes 12 features"):
        lb.invert(model, torch.zeros(1, 4), shape=(5, 5))


def test_pictures_of_odd_sizes() -> None:
    """Stride 2 turns 7 rows into 4 and those into 7 again, and 8 rows into 7."""
    down, up = nn.Conv2d(1, 2, 3, stride=2, padding=1), nn.ConvTranspose2d(2, 1, 3, stride=2, padding=1)
    model = nn.Sequential(down, nn.ReLU(), up)
    penalty = TotalVariation(0.1)
    found = lb.invert(model, torch.zeros(1, 1, 7, 5), penalty=penalty, shape=(1, 7, 5), steps=2)
    assert found.input.shape == (1, 1, 7, 5)
    with pytest.raises(
        TensorError, match=r"y is \(1, 1, 8, 8\); expected \(samples, 1, 7, 7\), the outputs of the model"
    ):
        lb.invert(model, torch.zeros(1, 1, 8, 8), penalty=penalty, shape=(1, 8, 8))


def test_models_that_cannot_be_inverted_are_refused() -> None:
    with pytest.raises(CompatibilityError, match="embedding"):
        lb.invert(nn.Sequential(nn.Embedding(5, 3), nn.Flatten(), nn.Linear(6, 2)), torch.zeros(1, 2))
    with pytest.raises(SettingError, match=r"torch\.nn\.Module"):
        lb.invert(3, torch.zeros(1, 2))  # type: ignore[arg-type]
    dropout = nn.Sequential(nn.Linear(3, 2), nn.ReLU(), nn.Dropout(0.5), nn.Linear(2, 2))
    with pytest.raises(lb.errors.LiftedBregmanError, match="eval"):
        lb.invert(dropout, torch.zeros(1, 2))


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ({"penalty": 0.1}, "penalty is 0.1"),
        ({"steps": 0}, "steps is 0"),
        ({"tolerance": -1.0}, "tolerance is -1.0"),
        ({"solver": "pdhg"}, "solver is 'pdhg'"),
        ({"shape": "12"}, "shape is '12'"),
        ({"shape": (3, 0)}, "a size in shape is 0"),
    ],
    ids=lambda value: str(value),
)
def test_settings_out_of_range_are_named(model: nn.Sequential, arguments: dict[str, object], said: str) -> None:
    with pytest.raises(SettingError, match=said):
        lb.invert(model, torch.zeros(1, 4), **arguments)  # type: ignore[arg-type]


def test_a_start_of_another_shape_is_refused(model: nn.Sequential) -> None:
    with pytest.raises(TensorError, match="one guess for each output"):
        lb.invert(model, torch.zeros(2, 4), start=torch.zeros(3, 12))
    with pytest.raises(TensorError, match="leave one of the two out"):
        lb.invert(model, torch.zeros(2, 4), start=torch.zeros(2, 12), shape=(3, 4))
    with pytest.raises(TensorError, match="NaN or infinity"):
        lb.invert(model, torch.zeros(1, 4), start=torch.full((1, 12), torch.nan))


def test_a_negative_weight_is_refused_by_the_penalty() -> None:
    with pytest.raises(SettingError, match=r"weight is -0\.015"):
        TotalVariation(-0.015)


def test_primal_dual_steps_need_one_affine_layer() -> None:
    deep = nn.Sequential(nn.Linear(3, 2), nn.ReLU(), nn.Linear(2, 2))
    with pytest.raises(CompatibilityError, match=r"2 layers.*DescentInversion"):
        lb.invert(deep, torch.zeros(1, 2), solver=lb.PrimalDualInversion())
    with pytest.raises(SettingError, match="step_size"):
        lb.DescentInversion(step_size=1.5)


def test_a_callback_ends_the_inversion_and_an_interrupt_keeps_what_was_reached(model: nn.Sequential) -> None:
    stopped = lb.invert(model, torch.ones(1, 4), penalty=L1(0.1), callback=lambda row: row["step"] >= 20)
    assert stopped.outcome is Outcome.STOPPED and stopped.history[-1]["step"] == 20

    def interrupt(row: dict[str, float]) -> None:
        raise KeyboardInterrupt

    kept = lb.invert(model, torch.ones(1, 4), penalty=L1(0.1), callback=interrupt)
    assert kept.outcome is Outcome.INTERRUPTED and len(kept.history) == 1
