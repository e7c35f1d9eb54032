"""`lifted demo`: what a short run leaves, and the page made of it."""

import dataclasses
import json
import math
import re
import signal
import subprocess
import sys
import time
from html.parser import HTMLParser
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.numpy import load_file

from lifted_bregman.errors import SettingError
from lifted_bregman.experiments import demo, demo_folder, read_settings
from lifted_bregman.experiments.demo import DEMO_METHODS, DemoSettings
from lifted_bregman.reports.demo_page import demo_page
from lifted_bregman.training import default_solver
from tests import fresh
from tests.reports.short_demo import ENVIRONMENT, SECONDS, ShortDemo, lifted
from tests.reports.svg import read_chart

KEYS = ("lifted", "sgd", "adam")
NAMES = ("lifted", "SGD", "Adam")


def rows(folder: Path, key: str) -> list[dict[str, float]]:
    return [json.loads(line) for line in (folder / f"{key}.jsonl").read_text().splitlines()]


# The run.


def test_the_three_methods_train_for_the_same_time(short_demo: ShortDemo) -> None:
    """Each ends with the first row for which its time is over, lifted at the latest: its epochs are planned."""
    for key in KEYS:
        *before, last = [row["seconds"] for row in rows(short_demo.folder, key)]
        assert max(before) < SECONDS and (SECONDS <= last or key == "lifted")


def test_all_start_from_the_same_weights_and_get_better(short_demo: ShortDemo) -> None:
    starts = [rows(short_demo.folder, key)[0] for key in KEYS]
    assert starts[0] == starts[1] == starts[2]
    for key in KEYS:
        first, last = rows(short_demo.folder, key)[0], rows(short_demo.folder, key)[-1]
        assert (first["epoch"], first["step"], first["seconds"]) == (0, 0, 0)
        assert last["objective"] < 0.8 * first["objective"]
        assert last["validation_error"] < first["validation_error"]
        assert 0.05 < last["sparsity"] < 0.99
        times = [row["seconds"] for row in rows(short_demo.folder, key)]
        assert times == sorted(set(times)) and len(times) >= 2


def test_the_first_row_is_that_of_the_paper_s_network(short_demo: ShortDemo) -> None:
    """The untrained network written out in numpy: Glorot weights, ReLU, soft threshold, ReLU, linear."""
    from lifted_bregman import data
    from lifted_bregman.experiments.build import build_model

    settings = DemoSettings(SECONDS, seed=3)
    model = build_model(settings.of_run(DEMO_METHODS[0]), 784, 784)
    digits = data.load("mnist-5k", seed=3).apply(data.Subset(1000, seed=3))
    X = digits.train.X.double().numpy()
    X_validation = digits.test.X.double().numpy() - X.mean(0)
    X -= X.mean(0)
    assert X.shape == X_validation.shape == (1000, 784)

    def forward(x: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        linear = [(m.weight.detach().double().numpy().T, m.bias.detach().double().numpy()) for m in model[::2]]
        assert [W.shape for W, _ in linear] == [(784, 784)] * 4
        x = np.maximum(x @ linear[0][0] + linear[0][1], 0.0)
        z = x @ linear[1][0] + linear[1][1]
        code = np.sign(z) * np.maximum(np.abs(z) - 0.09, 0.0)
        return code, np.maximum(code @ linear[2][0] + linear[2][1], 0.0) @ linear[3][0] + linear[3][1]

    code, out = forward(X)
    first = rows(short_demo.folder, "lifted")[0]
    objective = (0.5 * np.square(out - X).sum(1) + 0.09 * np.abs(code).sum(1)).mean()
    assert first["objective"] == pytest.approx(objective, rel=1e-4)
    assert first["sparsity"] == pytest.approx((code == 0).mean(), abs=1e-4)
    assert first["validation_error"] == pytest.approx(
        np.square(forward(X_validation)[1] - X_validation).mean(), rel=1e-4
    )


def test_settings_and_environment_are_stored(short_demo: ShortDemo) -> None:
    stored = json.loads((short_demo.folder / "settings.json").read_text())
    assert (stored["seconds"], stored["seed"], stored["samples"], stored["alpha"]) == (SECONDS, 3, 1000, 0.09)
    assert stored["environment"]["torch"] == torch.__version__
    assert stored["environment"]["threads"] == "1"
    lifted, *others = [entry["outcome"] for entry in stored["methods"]]
    assert lifted in ("FINISHED", "STOPPED") and others == ["STOPPED"] * 2
    for entry, method in zip(stored["methods"], DEMO_METHODS, strict=True):
        if method.tuned is not None:
            assert f"{method.tuned}={method.value}" in entry["solver"]
            assert method.value in method.grid and f"{method.value:g}" in entry["grid"]


def test_nothing_of_the_lifted_method_is_tuned(short_demo: ShortDemo) -> None:
    """It is what `fit` does by itself, and the page says so."""
    lifted_method, *others = DEMO_METHODS
    assert DemoSettings().of_run(lifted_method).make_solver() == default_solver()
    assert (lifted_method.tuned, lifted_method.grid) == (None, ()) and all(method.tuned for method in others)
    stored = json.loads((short_demo.folder / "settings.json").read_text())["methods"][0]
    assert stored["solver"] == repr(default_solver()) and stored["grid"] == "not tuned"
    assert stored["settings"] == type(default_solver()).__name__
    assert f"--solver {lifted_method.solver} " in stored["command"] and "--set" not in stored["command"]
    assert "for lifted nothing was tuned" in short_demo.page.read_text(encoding="utf-8")


def test_the_table_and_the_page_s_place_are_printed(short_demo: ShortDemo) -> None:
    header, *lines, page = short_demo.run.stdout.splitlines()
    assert header.split("   ")[0].strip() == "method"
    assert page == f"page: {short_demo.page}"
    for key, name, line in zip(KEYS, NAMES, lines, strict=True):
        last = rows(short_demo.folder, key)[-1]
        shown = [cell.strip() for cell in re.split(r"\s{2,}", line.strip())]
        assert shown[0] == name and shown[1] == f"{last['epoch']:.0f}"
        assert float(shown[3]) == pytest.approx(last["objective"], abs=5e-4)
        assert float(shown[4]) == pytest.approx(last["validation_error"], abs=5e-6)
        lowest, at = shown[5].removesuffix(" s").split(" at ")
        ways = [(row["validation_error"], row["seconds"]) for row in rows(short_demo.folder, key)]
        assert (float(lowest), float(at)) == (
            pytest.approx(min(ways)[0], abs=5e-6),
            pytest.approx(min(ways)[1], abs=0.05),
        )
        assert float(shown[6].removesuffix(" %")) == pytest.approx(100 * last["sparsity"], abs=0.05)
    assert all(any(line.startswith(name) for line in short_demo.run.stderr.splitlines()) for name in NAMES)


def test_the_pictures_are_digits_and_reconstructions(short_demo: ShortDemo) -> None:
    pictures = load_file(short_demo.folder / "pictures.safetensors")
    made = {f"{key}/{part}" for key in KEYS for part in ("train", "validation", "codes")}
    assert set(pictures) == {"train", "validation"} | made
    for part in ("train", "validation"):
        assert pictures[part].shape == (10, 28, 28)
        assert pictures[part].min() > -1e-6 and pictures[part].max() < 1 + 1e-6
        for key in KEYS:  # after a second of training a reconstruction is nearer to its own digit than to others
            distances = ((pictures[part][:, None] - pictures[f"{key}/{part}"][None]) ** 2).sum((2, 3))
            others = (distances.sum() - distances.trace()) / 90
            assert distances.trace() / 10 < 0.95 * others
    for key in KEYS:
        assert 0.0 < (pictures[f"{key}/codes"] == 0).mean() < 1.0


def test_pictures_are_the_network_s_own() -> None:
    from lifted_bregman import data
    from lifted_bregman.experiments.build import build_problem

    digits = data.load("mnist-5k", seed=0).apply(data.Subset(30), data.Centre())
    problem = build_problem(DemoSettings().of_run(DEMO_METHODS[0]), 784, 784)
    shown = {"train": digits.train.X[:4], "validation": digits.test.X[:5]}
    made = demo._pictures(problem, "key", shown, digits.preparation)
    mean = data.load("mnist-5k", seed=0).apply(data.Subset(30)).train.X.mean(0)
    with torch.no_grad():
        for part, X in shown.items():
            expected = (problem.model(X) + mean).reshape(-1, 28, 28)
            torch.testing.assert_close(made[f"key/{part}"], expected)
        torch.testing.assert_close(made["key/codes"], problem.model[:4](shown["validation"]))


# The page.


class Reader(HTMLParser):
    """Headings, and the cells of each table."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.headings: list[str] = []
        self.tables: list[list[list[str]]] = []
        self._inside = ""
        self.feed(html)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self._inside = tag
        if tag == "table":
            self.tables.append([])
        elif tag == "tr":
            self.tables[-1].append([])
        elif tag in ("td", "th"):
            self.tables[-1][-1].append("")

    def handle_endtag(self, tag: str) -> None:
        self._inside = ""

    def handle_data(self, data: str) -> None:
        if self._inside in ("td", "th"):
            self.tables[-1][-1][-1] += data
        elif self._inside == "h2":
            self.headings.append(data)


def test_the_page_has_its_sections_and_the_numbers_of_the_rows(short_demo: ShortDemo) -> None:
    html = short_demo.page.read_text(encoding="utf-8")
    page = Reader(html)
    assert page.headings == ["Result", "Progress", "Reconstructions", "Codes", "Settings", "How to rerun"]
    result = page.tables[0]
    assert result[0][1:] == list(NAMES)
    by_name = {line[0]: line[1:] for line in result[1:]}
    for place, key in enumerate(KEYS):
        last = rows(short_demo.folder, key)[-1]
        assert float(by_name["objective"][place]) == pytest.approx(last["objective"], abs=5e-4)
        assert float(by_name["seconds"][place]) == pytest.approx(last["seconds"], abs=0.05)
        assert float(by_name["zeros in the code"][place].removesuffix(" %")) == pytest.approx(
            100 * last["sparsity"], abs=0.05
        )
    assert f"lifted demo --seconds {SECONDS:g} --seed 3" in html
    for method in DEMO_METHODS[1:]:
        assert f"{method.tuned} = {method.value:g}" in html


def test_the_curves_are_those_of_the_rows(short_demo: ShortDemo) -> None:
    html = short_demo.page.read_text(encoding="utf-8")
    drawings = re.findall(r"<svg .*?</svg>", html, re.DOTALL)
    quantities = (
        ("objective", "seconds"),
        ("validation_error", "seconds"),
        ("sparsity", "seconds"),
        ("objective", "epoch"),
    )
    for drawing, (name, against) in zip(drawings, quantities, strict=True):
        lines = read_chart(drawing, logarithmic=name != "sparsity")
        for key, line in zip(reversed(KEYS), lines, strict=True):
            expected = [(row[against], row[name]) for row in rows(short_demo.folder, key)]
            np.testing.assert_allclose(line.points, expected, rtol=2e-2, atol=2e-2)


def test_the_page_names_the_best_method_of_the_rows(copy: Path) -> None:
    def end(key: str, row: int = -1, **values: float) -> None:
        stored = rows(copy, key)
        stored[row] |= values
        (copy / f"{key}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in stored))

    def verdict() -> str:
        html = demo_page(demo_folder.load_demo(copy)).html()
        return next(line for line in html.splitlines() if "In this run" in line)

    end("lifted", objective=1.0, validation_error=0.5, sparsity=0.1)
    end("sgd", objective=2.0, validation_error=0.1, sparsity=0.2)
    end("adam", objective=3.0, validation_error=0.2, sparsity=0.9)
    end("lifted", row=0, validation_error=1e-6)  # lower than any that was reached
    assert re.search("objective is that of lifted,.* error that of SGD, .* of lifted, .* those of Adam", verdict())
    end("sgd", row=0, validation_error=1e-7)
    end("adam", objective=0.5, validation_error=0.05, sparsity=0.05)
    end("lifted", sparsity=0.3)
    assert re.search("objective is that of Adam,.* error that of Adam, .* of SGD, .* those of lifted", verdict())
    end("sgd", validation_error=0.9)
    assert re.search("error of .*SGD.* was lower on the way", verdict())


def test_a_method_that_diverged_says_so(copy: Path) -> None:
    stored = json.loads((copy / "settings.json").read_text())
    stored["methods"][1] |= {"outcome": "DIVERGED", "message": "W of layer 1 is not finite."}
    (copy / "settings.json").write_text(json.dumps(stored))
    assert "SGD: W of layer 1 is not finite." in demo_page(demo_folder.load_demo(copy)).html()


def test_lifted_train_makes_the_same_run_by_the_command_on_the_page(short_demo: ShortDemo, tmp_path: Path) -> None:
    listing = re.findall(r"<code>(lifted train .*?)</code>", short_demo.page.read_text(encoding="utf-8"), re.DOTALL)
    command = listing[0].split("\n\n")[1].replace("\\\n", " ").split()  # the second method, SGD
    assert command[:2] == ["lifted", "train"] and command[-2] == "--out"
    run = lifted("train", *command[2:-1], tmp_path / "run", "--threads", 1)
    assert run.returncode == 0, run.stderr
    settings = read_settings(tmp_path / "run" / "settings.toml")
    assert settings == dataclasses.replace(DemoSettings(SECONDS, seed=3).of_run(DEMO_METHODS[1]), threads=1)
    row = json.loads((tmp_path / "run" / "history.jsonl").read_text().splitlines()[0])
    same = [there for there in rows(short_demo.folder, "sgd") if there["step"] == row["step"]]
    assert all(there["objective"] == row["objective"] for there in same)


# Mistakes.


@pytest.mark.parametrize(
    ("settings", "sentence"),
    [
        ({"seconds": 0.0}, "seconds"),
        ({"seconds": math.inf}, "seconds"),
        ({"seed": -1}, "seed is -1"),
        ({"threads": 0}, "threads is 0"),
        ({"threads": True}, "threads is True"),
    ],
)
def test_wrong_settings_are_refused(settings: dict, sentence: str) -> None:
    with pytest.raises(SettingError, match=sentence):
        DemoSettings(**settings)


def test_ctrl_c_ends_the_demonstration_without_a_page(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "lifted_bregman.cli", "demo", "--seconds", "250", "--out", str(tmp_path)]
    with subprocess.Popen(command, stderr=subprocess.PIPE, env=ENVIRONMENT) as process:
        while not (tmp_path / "lifted.jsonl").exists():
            assert process.poll() is None, process.communicate()
            time.sleep(0.05)
        process.send_signal(signal.SIGINT)
        _, messages = process.communicate(timeout=120)
    assert process.returncode == 130 and b"Traceback" not in messages
    assert not demo_folder.is_demo(tmp_path) and not (tmp_path / "index.html").exists()


def test_missing_drawing_packages_are_an_error_before_training(tmp_path: Path) -> None:
    script = (
        "import sys; sys.modules['matplotlib'] = None\n"
        "from lifted_bregman.cli import main\n"
        f"raise SystemExit(main(['demo', '--seconds', '250', '--out', {str(tmp_path / 'out')!r}]))"
    )
    run = fresh.run(script, env=ENVIRONMENT, check=False)
    assert run.returncode == 2 and "extra 'plot'" in run.stderr and "Traceback" not in run.stderr
    assert not (tmp_path / "out").exists()


def test_importing_the_demo_does_not_import_matplotlib() -> None:
    script = (
        "import sys; from lifted_bregman.experiments import demo; from lifted_bregman.reports import report\n"
        "assert not {'matplotlib', 'jinja2', 'PIL'} & set(sys.modules)"
    )
    fresh.run(script)
