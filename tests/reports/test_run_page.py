"""`lifted report` for the folder of a run: what `fit` left there, drawn and told."""

import json
import math
import random
import re
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

import lifted_bregman as lb
from lifted_bregman.errors import CheckpointError, SettingError
from lifted_bregman.reports import Charts
from lifted_bregman.reports.report import write_report
from lifted_bregman.reports.run_page import run_page
from tests.experiments.test_damaged_runs import another_line, another_number
from tests.reports.svg import read_chart
from tests.training.test_checkpoint_mutations import IN_A_FILE

EPOCHS = 6


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A classifier with validation, trained for a few epochs; `lifted train` adds settings.toml."""
    folder = tmp_path_factory.mktemp("runs") / "a run"
    generator = torch.Generator().manual_seed(0)
    X = torch.randn(90, 5, generator=generator)
    y = (X[:, 0] > 0).long()
    train, validation = (X[:60], y[:60]), (X[60:], y[60:])
    model = nn.Sequential(nn.Linear(5, 8), nn.ReLU(), nn.Linear(8, 7), nn.Tanh(), nn.Linear(7, 2))
    problem = lb.lift(model, loss=lb.SquaredError())
    lb.fit(problem, train, lb.baselines.Adam(0.01), epochs=EPOCHS, batch_size=20, validation=validation, out=folder)
    (folder / "settings.toml").write_text('data = "my <digits>"\nepochs = 6\n')
    return folder


def history(folder: Path) -> list[dict[str, float]]:
    return [json.loads(line) for line in (folder / "history.jsonl").read_text().splitlines()]


@pytest.fixture
def loose(run: Path, tmp_path: Path) -> Path:
    """A folder with the run's history alone."""
    (tmp_path / "history.jsonl").write_bytes((run / "history.jsonl").read_bytes())
    return tmp_path


def test_every_curve_is_that_of_the_rows(run: Path) -> None:
    html = write_report(run).read_text(encoding="utf-8")
    drawings = iter(re.findall(r"<h3>(.*?)</h3>.*?(<svg .*?</svg>)", html, re.DOTALL))
    stored = history(run)
    charts = {
        "Objective": ("objective", "validation"),
        "Accuracy": ("accuracy", "validation_accuracy"),
        "Zeros in the middle layer": ("sparsity",),
        "Lifted energy": ("energy",),
        "Energy of each layer": ("energy_1", "energy_2", "energy_3"),
    }
    for against in ("epoch", "seconds"):
        for title, names in charts.items():
            heading, drawing = next(drawings)
            assert heading.removesuffix(" (log scale)") == title
            values = [[row[name] for row in stored] for name in names]
            spread = max(map(max, values)) - min(map(min, values))
            if spread == 0.0:
                continue  # a flat line, for which no scale can be read off
            lines = read_chart(drawing, "log scale" in heading)
            for line, expected in zip(reversed(lines), values, strict=True):
                x, y = zip(*line.points, strict=True)
                reach = stored[-1][against] - stored[0][against]
                np.testing.assert_allclose(x, [row[against] for row in stored], atol=1e-2 * reach)
                np.testing.assert_allclose(y, expected, rtol=1e-2, atol=1e-2 * spread)
    assert next(drawings, None) is None


def test_the_page_has_outcome_and_settings(run: Path) -> None:
    html = write_report(run).read_text(encoding="utf-8")
    assert f"<title>Run {run.name}</title>" in html
    assert "The run took all the steps it was asked for." in html
    assert "data = &#34;my &lt;digits&gt;&#34;" in html


def test_the_table_has_the_last_row_and_that_of_the_lowest_validation(loose: Path) -> None:
    stored = history(loose)
    stored[2]["validation"] = 1e-3
    (loose / "history.jsonl").write_text("".join(json.dumps(row) + "\n" for row in stored))
    html = write_report(loose).read_text()
    cells = re.findall(r"<td>(.*?)</td>\s*<td class=\"number\">(.*?)</td>\s*<td class=\"number\">(.*?)</td>", html)
    table = {name: (last, best) for name, last, best in cells}
    assert table["epochs"] == (str(EPOCHS), "3")
    assert table["validation objective"] == (f"{stored[-1]['validation']:.6g}", "0.001")
    for name, entry in {"training objective": "objective", "lifted energy": "energy"}.items():
        assert table[name] == tuple(f"{row[entry]:.6g}" for row in (stored[-1], stored[2]))
    accuracies = tuple(f"{100 * row['validation_accuracy']:.2f} %" for row in (stored[-1], stored[2]))
    assert table["validation accuracy"] == accuracies


def test_a_run_that_has_not_ended_can_be_shown(loose: Path) -> None:
    with (loose / "history.jsonl").open("a") as file:
        file.write('{"epoch": 7, "ste')  # a line that is just being written
    html = write_report(loose).read_text()
    assert "The run has not ended." in html and f"{EPOCHS} epochs" in html and "Settings" not in html


def test_one_row_is_enough(loose: Path) -> None:
    first = (loose / "history.jsonl").read_text().splitlines()[0]
    (loose / "history.jsonl").write_text(first + "\n")
    assert write_report(loose).read_text().count("<svg ") == 10


def test_rows_may_lack_entries_or_be_infinite(loose: Path) -> None:
    stored = history(loose)
    for row in stored[:3]:
        del row["validation"], row["energy_2"]
    stored[4]["objective"] = math.inf
    (loose / "history.jsonl").write_text("".join(json.dumps(row) + "\n" for row in stored))
    assert "lowest validation" not in write_report(loose).read_text()


def test_a_history_with_nothing_to_draw_says_so(loose: Path) -> None:
    (loose / "history.jsonl").write_text('{"epoch": 1, "step": 3, "seconds": 0.5}\n')
    assert "nothing to draw" in write_report(loose).read_text()


@pytest.mark.parametrize(
    ("content", "sentence"),
    [
        ("", "has no row yet"),
        ("[]\n", "line 1 .* is no row of a history"),
        ('{"epoch": 1, "step": 1, "seconds": "long"}\n', "line 1 .* is no row of a history"),
        ('{"epoch": NaN, "step": 1, "seconds": 1}\n', "line 1 .* is no row of a history"),
        ('{"objective": 1}\n', "line 1 .* is no row of a history"),
        ('{"epoch": 1, "step": 1, "seconds": 1}\n{\n', "line 2 .* is damaged"),
    ],
)
def test_a_damaged_history_is_refused(tmp_path: Path, content: str, sentence: str) -> None:
    (tmp_path / "history.jsonl").write_text(content)
    with pytest.raises(CheckpointError, match=sentence):
        write_report(tmp_path)


def test_entries_that_are_not_layer_energies_are_not_drawn(loose: Path) -> None:
    stored = history(loose)
    stored[-1] |= {f"energy_{name}": 1.0 for name in ("9" * 5000, "²", "01", "x", "")}
    (loose / "history.jsonl").write_text("".join(json.dumps(row) + "\n" for row in stored))
    html = write_report(loose).read_text(encoding="utf-8")
    assert "layer 3" in html and "layer 9" not in html and "layer ²" not in html


def test_a_mutated_history_is_a_page_or_a_named_error(loose: Path) -> None:
    """Its charts hold finite numbers that can be drawn."""
    path, draw, refused = loose / "history.jsonl", random.Random(20240603), 0
    sound = path.read_bytes()
    for mutation in (*IN_A_FILE, another_number, another_number, another_line) * 20:
        damaged = bytearray(sound)
        mutation(damaged, draw)
        path.write_bytes(damaged)
        try:
            page = run_page(loose)
        except CheckpointError:
            refused += 1
            continue
        charts = [
            chart
            for part in page.sections
            for block in part.blocks
            if isinstance(block, Charts)
            for chart in block.charts
        ]
        assert charts and all(math.isfinite(v) for c in charts for curve in c.curves for p in curve.points for v in p)
    assert 60 < refused < 240


def test_a_folder_without_a_run_is_refused(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="there is no folder"):
        write_report(tmp_path / "missing")
    kinds = "holds neither a run .* nor a finished demonstration: name the --out of 'lifted train' or 'lifted demo'"
    with pytest.raises(CheckpointError, match=kinds):
        write_report(tmp_path)


def test_damaged_settings_are_refused(loose: Path) -> None:
    (loose / "settings.toml").write_text("epochs = = 5")
    with pytest.raises((SettingError, CheckpointError), match=r"settings\.toml"):
        write_report(loose)
