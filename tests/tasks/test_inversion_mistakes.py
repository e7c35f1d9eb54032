"""What `invert` refuses, in one sentence each, before any work."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import torch
from scipy.optimize import minimize_scalar
from scipy.special import lambertw
from torch import Tensor, nn
from torch.nn import functional as F

import lifted_bregman as lb
from lifted_bregman.errors import CompatibilityError, DomainError, SettingError, TensorError
from lifted_bregman.penalties import L1, GroupL2, TotalVariation
from lifted_bregman.solvers import Outcome
from lifted_bregman.tasks import InversionProgress


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


class Squashed(nn.Module):
    """A linear map, F.silu in place, and a view."""

    def __init__(self) -> None:
        super().__init__()
        self.map = nn.Linear(10, 6)

    def forward(self, x: Tensor) -> Tensor:
        """The output in another shape."""
        return F.silu(self.map(x), inplace=True).view(x.size(0), 2, 3)


@pytest.mark.parametrize(
    ("gate", "name"),
    [
        (nn.GELU(), "GELU"),
        (nn.GELU(approximate="tanh"), "GELU(approximate='tanh')"),
        (nn.SiLU(), "SiLU"),
        (nn.Mish(), "Mish"),
        (nn.Hardswish(), "Hardswish"),
    ],
    ids=str,
)
def test_outputs_below_the_least_value_of_a_gate_are_named(gate: nn.Module, name: str) -> None:
    def value(z: float) -> float:
        return float(gate(torch.tensor(z, dtype=torch.float64)))

    least = minimize_scalar(value, bounds=(-3.0, 0.0), method="bounded", options={"xatol": 1e-9}).fun
    model = nn.Sequential(nn.Linear(10, 6), gate, nn.Flatten())
    said = f"samples 0, 1 of y cannot be outputs of {name}: sample 0 holds -7, .* value is {least:.6g};"
    with pytest.raises(DomainError, match=re.escape(said).replace(r"\.\*", ".*")):
        lb.invert(model, torch.full((2, 6), -7.0))
    # The least value itself is feasible, and a value 1e-4 below it is not.
    y = torch.full((1, 6), least)
    assert lb.invert(model, y, steps=1).outcome is Outcome.FINISHED
    with pytest.raises(DomainError, match=re.escape(name)):
        lb.invert(model, y - 1e-4)
    assert lb.invert(nn.Sequential(*model, nn.Linear(6, 6)), y - 7.0, steps=1).outcome is Outcome.FINISHED


def test_the_least_value_of_silu_is_a_value_of_lamberts_function() -> None:
    """(x sigmoid(x))' = 0 at 1 + x + e^x = 0, where x sigmoid(x) = -W(1/e)."""
    with pytest.raises(DomainError, match=rf"outputs of SiLU: .* value is {-lambertw(torch.e**-1).real:.6g};"):
        lb.invert(Squashed(), torch.full((1, 2, 3), -0.3))


def test_whole_numbers_outside_the_range_get_the_sentence_of_floats() -> None:
    relu = nn.Sequential(nn.Linear(10, 6), nn.ReLU())
    sentences = []
    for y in (torch.full((2, 6), -5.0), torch.full((2, 6), -5)):
        with pytest.raises(
            DomainError, match=r"samples 0, 1 of y .* holds -5, and the nearest feasible value is 0;"
        ) as e:
            lb.invert(relu, y)
        sentences.append(str(e.value))
    assert sentences[0] == sentences[1]
    with pytest.raises(DomainError, match="samples 0, 1 of y cannot be outputs of GELU"):
        lb.invert(nn.Sequential(nn.Linear(10, 6), nn.GELU()), torch.full((2, 6), -5))


@pytest.mark.parametrize(
    ("y", "said"),
    [
        (torch.zeros(0, 4), r"^y has shape \(0, 4\), which holds no sample"),
        (torch.zeros(3, 5), r"expected \(samples, 4\)"),
        (torch.zeros(4), r"y\.unsqueeze\(0\)"),
        (torch.zeros(3, 4, dtype=torch.float64), r"y\.to\(torch\.float32\)"),
        (torch.tensor([[0.0, 0.0, torch.nan, 0.0]]), "NaN or infinity in sample 0"),
        ([[0.0]], "torch tensor"),
    ],
    ids=["no sample", "width", "one sample", "dtype", "nan", "list"],
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


@pytest.mark.parametrize("norm", [False, True], ids=["convolution", "with normalisation"])
def test_total_variation_has_the_dimensions_of_the_first_convolution(norm: bool) -> None:
    signals = nn.Sequential(nn.Conv1d(3, 4, 3), *[nn.BatchNorm1d(4)] * norm, nn.ReLU()).eval()
    y = torch.ones(1, 4, 6)
    with pytest.raises(
        CompatibilityError, match=r"model\.0 \(Conv1d\) takes signals \(channels, length\): take dims=1"
    ):
        lb.invert(signals, y, shape=(3, 8), penalty=L1(0.1) + TotalVariation(0.1))
    found = lb.invert(signals, y, shape=(3, 8), penalty=TotalVariation(0.1, dims=1), steps=2)
    assert found.input.shape == (1, 3, 8)
    pictures = nn.Sequential(nn.Conv2d(1, 2, 3), *[nn.BatchNorm2d(2)] * norm, nn.ReLU()).eval()
    with pytest.raises(CompatibilityError, match="take dims=2"):
        lb.invert(pictures, torch.ones(1, 2, 2, 2), shape=(1, 4, 4), penalty=TotalVariation(0.1, dims=1))


def test_a_shape_is_asked_for_where_the_model_flattens_pictures_itself() -> None:
    model = nn.Sequential(nn.Flatten(), nn.Linear(16, 4), nn.ReLU())
    with pytest.raises(CompatibilityError, match=r"has shape \(16,\): give shape=\(height, width\), or take dims=1\.$"):
        lb.invert(model, torch.zeros(1, 4), penalty=TotalVariation(0.1))


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
    first = nn.Sequential(nn.Linear(3, 2), nn.Dropout(0.5), nn.ReLU())  # then the first map is not dense
    with pytest.raises(lb.errors.UnsupportedModuleError, match=r"model\.1 \(Dropout\) .* call model\.eval\(\)"):
        lb.invert(first, torch.zeros(1, 2))
    assert lb.invert(first.eval(), torch.zeros(1, 2), steps=1).input.shape == (1, 3)


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
    for step_size in (1.5, 0, "a", float("nan")):
        with pytest.raises(SettingError, match=r"step_size is .*; it must be a number in \(0, 1\], or None"):
            lb.DescentInversion(step_size=step_size)  # type: ignore[arg-type]


def test_a_figure_is_written_to_a_picture_in_a_folder_that_exists(model: nn.Sequential, tmp_path: Path) -> None:
    found = lb.invert(model, torch.ones(1, 4), steps=1)
    with pytest.raises(SettingError, match=r"name a file that ends in \.png, \.pdf, \.svg"):
        found.plot(tmp_path / "found.xyz")
    with pytest.raises(SettingError, match="there is no folder"):
        found.plot(tmp_path / "nowhere" / "found.png")


class Still(lb.DescentInversion):
    """Descent whose samples have given distances: infinity for those that a step put back."""

    distances = ()
    gap = False

    def progress(self, inverse: lb.tasks.InverseProblem, state: object) -> InversionProgress:
        """The energies, and the given distances, if asked for as gaps."""
        distances = torch.tensor(self.distances)
        return InversionProgress(state.energies, distances, distances if self.gap else None)  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    ("distances", "said"),
    [
        ((0.25, 0.125), " The largest distance is 0.25, the tolerance 1e-06."),
        (
            (torch.inf, 0.125),
            " The last step left 1 of 2 samples in place, for it would have increased their energy. The largest "
            "distance of the others is 0.125, the tolerance 1e-06.",
        ),
        (
            (torch.inf, torch.inf),
            " The last step left 2 of 2 samples in place, for it would have increased their energy.",
        ),
    ],
    ids=str,
)
def test_samples_that_the_last_step_put_back_are_counted_in_words(
    model: nn.Sequential, monkeypatch: pytest.MonkeyPatch, distances: tuple[float, ...], said: str
) -> None:
    monkeypatch.setattr(Still, "distances", distances)
    found = lb.invert(model, torch.ones(2, 4), solver=Still(), steps=1)
    assert found.outcome is Outcome.FINISHED and found.message == Outcome.FINISHED.value + said
    monkeypatch.setattr(Still, "gap", True)
    message = lb.invert(model, torch.ones(2, 4), solver=Still(), steps=1).message
    count = distances.count(torch.inf)
    assert "inf" not in message and (f"The gap of {count} of 2 samples is not finite." in message) == (count > 0)


def test_a_callback_ends_the_inversion_and_an_interrupt_keeps_what_was_reached(model: nn.Sequential) -> None:
    stopped = lb.invert(model, torch.ones(1, 4), penalty=L1(0.1), callback=lambda row: row["step"] >= 20)
    assert stopped.outcome is Outcome.STOPPED and stopped.history[-1]["step"] == 20

    def interrupt(row: dict[str, float]) -> None:
        raise KeyboardInterrupt

    kept = lb.invert(model, torch.ones(1, 4), penalty=L1(0.1), callback=interrupt)
    assert kept.outcome is Outcome.INTERRUPTED and len(kept.history) == 1
