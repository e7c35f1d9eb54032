"""`lifted bench nudges`: its networks, its opponents, its tables, and that the page in the docs is what is stored."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from lifted_bregman import lifted_backward
from lifted_bregman_lab.race.nudges import NUDGED, NUDGES, PROBLEMS, nudge_page, nudge_rows
from lifted_bregman_lab.race.opponents import OPPONENTS
from lifted_bregman_lab.race.running import RaceSettings, run_race
from lifted_bregman_lab.race.samples import RaceSamples
from lifted_bregman_lab.race.store import Store, final
from tests.lab.races import TINY, race_row, three_clouds

FIGURES = Path(__file__).parents[2] / "docs" / "figures"


def test_the_page_is_that_of_the_stored_rows() -> None:
    store = Store.open(FIGURES / "nudges.jsonl")
    assert {row["problem"] for row in store.rows.values()} == set(PROBLEMS)
    assert (FIGURES / "nudges.inc").read_text(encoding="utf-8") == nudge_page(store.rows.values())


def test_what_the_page_says_of_the_nudges_holds_in_the_stored_rows() -> None:
    rows = list(Store.open(FIGURES / "nudges.jsonl").rows.values())
    titles = {problem.title: name for name, problem in PROBLEMS.items()}
    marks = {
        criterion: {
            titles[line[0]]: "".join(cell[-1] if cell[-1] in "+-" else "." for cell in line[3:]) for line in table
        }
        for criterion in ("loss", "error")
        for table in [nudge_rows(rows, criterion)[1]]
    }
    assert marks["loss"]["saturated-hardtanh"].endswith("+++")
    assert marks["loss"]["saturated-tanh"].endswith("++")
    assert marks["loss"]["plain-40"][1] == marks["error"]["plain-40"][1] == "+"
    assert [name for name, found in marks["error"].items() if "+" in found] == ["plain-40"]
    assert "+" not in marks["loss"]["relu"] + marks["loss"]["tanh"]
    assert marks["loss"]["batch-norm"].endswith("--") and marks["loss"]["thresholds"].endswith("--")
    assert marks["loss"]["negative-biases"] == "...."
    assert all(len(found) == len(NUDGES) for table in marks.values() for found in table.values())
    untrained = [row for row in rows if row["problem"] == "large-thresholds" and row["part"] == "race"]
    assert min(final(row, "error") for row in untrained) == 0.9


def digits(samples: int = 400) -> RaceSamples:
    """Samples of the size and spread of centred images of MNIST."""
    generator = torch.Generator().manual_seed(1)
    X = 0.26 * torch.randn(samples, 784, generator=generator)
    return RaceSamples(X, torch.arange(samples) % 10, X[:10], torch.arange(10), 10)


def hidden(model: nn.Sequential, X: Tensor, kind: type[nn.Module]) -> list[Tensor]:
    """What each activation of a kind returns."""
    found = []
    with torch.no_grad():
        for module in model:
            X = module(X)
            if isinstance(module, kind):
                found.append(X)
    return found


def test_units_that_are_off_for_all_samples_have_no_derivative_and_a_signal_of_a_large_nudge() -> None:
    data = digits()
    model = PROBLEMS["negative-biases"].build(0, data)
    assert isinstance(model, nn.Sequential)
    assert not hidden(model, data.X, nn.ReLU)[1].any()
    weight = model.get_parameter("2.weight")
    PROBLEMS["negative-biases"].loss(model, data.X, data.Y).backward()
    assert weight.grad is not None and not weight.grad.any()
    lifted_backward(model, nudge=NUDGES[-1])
    PROBLEMS["negative-biases"].loss(model, data.X, data.Y).backward()
    assert weight.grad.any()


@pytest.mark.parametrize("name", ["saturated-hardtanh", "saturated-tanh"])
def test_saturated_networks_begin_on_flat_pieces(name: str) -> None:
    data = digits()
    model = PROBLEMS[name].build(0, data)
    assert isinstance(model, nn.Sequential)
    for x in hidden(model, data.X, (nn.Hardtanh if name.endswith("hardtanh") else nn.Tanh)):
        assert (x.abs() > 0.9).double().mean() > 0.6


def test_each_nudge_is_adamw_with_this_nudge_at_the_rate_of_derivatives(tmp_path: Path) -> None:
    store = Store.open(tmp_path / "rows.jsonl")
    assert run_race([TINY], NUDGED[:1], RaceSettings(seeds=1), store)
    assert {row["opponent"] for row in store.select(part="tune")} == {"adamw"}
    rates = {row["rate"] for row in store.select(part="race", opponent="adamw")}
    assert {row["rate"] for row in store.select(part="race", opponent="nudge 0.1")} == rates
    data, (nudged, *_) = three_clouds(), NUDGED
    model, other = TINY.build(0, data), lifted_backward(TINY.build(0, data), nudge=0.1)
    assert nudged.make is not None and OPPONENTS["adamw"].make is not None
    trainers = [nudged.make(TINY, model, 0.01, 4), OPPONENTS["adamw"].make(TINY, other, 0.01, 4)]
    for trainer in trainers:
        trainer.step(data.X, data.Y)
        trainer.step(data.X, data.Y)
    assert all(map(torch.equal, model.parameters(), other.parameters()))


def test_the_table_has_means_spreads_and_marks_at_the_chosen_rate() -> None:
    named = {"problem": "relu", "title": PROBLEMS["relu"].title}
    rows = [race_row("adamw", 1000, 1.0, part="tune", rate=0.1, **named)]
    rows += [race_row("adamw", 1000, 2.0, part="tune", rate=0.2, **named)]
    for seed in range(3):
        rows.append(race_row("adamw", seed, 2.0 + 0.1 * seed, rate=0.1, **named))
        rows.append(race_row("adamw", seed, 9.0, rate=0.2, **named))
        for name, loss in {"nudge 0.1": 1.0 + 0.1 * seed, "nudge 0.5": 3.0 + 0.1 * seed, "nudge 2": 2.1}.items():
            rows.append(race_row("adamw", seed, loss, rate=0.1, **named) | {"opponent": name})
    (line,) = nudge_rows(rows, "loss")[1]
    cells = [cell.replace("\u00a0", " ") for cell in line[1:]]  # marks stay on the line of their number
    assert cells == ["0.1", "2100 ± 100", "1100 ± 100 +", "3100 ± 100 -", "2100 ± 0", "-"]
