"""The code and the commands in the documentation run as they stand; its tables say what the code says."""

from __future__ import annotations

import importlib.util
import inspect
import json
import math
import re
import shlex
from pathlib import Path
from statistics import median

import pytest
import torch

import lifted_bregman as lb
from lifted_bregman.cli import main
from lifted_bregman.cli.exit_codes import ExitCode
from lifted_bregman.distributed import launcher
from lifted_bregman.solvers import Outcome
from lifted_bregman.training import default_solver
from tests.distributed.processes import launch_forks

DOCS = Path(__file__).parent.parent / "docs"
BLOCK = re.compile(r"```(python|console|toml)\n(.*?)```", re.S)
PAGES = sorted(page.name for page in DOCS.glob("*.md") if BLOCK.search(page.read_text()))


@pytest.mark.parametrize("page", PAGES)
def test_code_and_commands_of_a_page_run(page, capsys, tmp_path, monkeypatch):
    """In the order of the page and in one folder; the blocks of a page share their names, as a reader would."""
    monkeypatch.setattr(launcher, "launch", launch_forks)
    run_page(page, capsys, tmp_path, monkeypatch)


@pytest.mark.long
def test_the_page_about_processes_runs_with_workers_that_import_everything(capsys, tmp_path, monkeypatch):
    run_page("distributed.md", capsys, tmp_path, monkeypatch)


def run_page(page, capsys, tmp_path, monkeypatch):
    pytest.importorskip("sklearn")
    monkeypatch.chdir(tmp_path)
    known = dict(lb.data.SETS)
    names: dict[str, object] = {}
    try:
        for language, block in BLOCK.findall((DOCS / page).read_text()):
            if language == "python":
                exec(compile(block, page, "exec"), names)
            elif language == "console":
                for line in block.splitlines():
                    run(line, capsys)
            else:
                read_settings(block)
    finally:
        lb.data.SETS.clear()
        lb.data.SETS.update(known)  # a page registers a set


def run(line, capsys):
    program, *arguments = shlex.split(line, comments=True)
    assert program == "lifted", f"only commands of the library are run: {line}"
    capsys.readouterr()
    code = main(arguments)
    assert code == 0, f"{line}: {capsys.readouterr().err}"


def read_settings(text):
    import tomllib

    from lifted_bregman.experiments import from_entries

    from_entries(tomllib.loads(text)).resolved()


def test_the_landing_page_names_a_command_that_another_page_runs():
    """It takes too long to run twice."""
    (command,) = re.findall(r"```text\n(.*?)\n```", (DOCS / "index.md").read_text(), re.S)
    run_there = [
        block for language, block in BLOCK.findall((DOCS / "reproduce.md").read_text()) if language == "console"
    ]
    assert command in "".join(run_there)


def test_there_are_pages_with_code():
    assert {"solvers.md", "training.md", "data.md", "estimators.md", "when-not.md", "command-line.md"} <= set(PAGES)
    assert {"write-your-own-solver.md", "write-your-own-loop.md", "can-i-lift-my-model.md"} <= set(PAGES)


def rows(page, heading):
    """The first cells of the table that follows a heading."""
    section = (DOCS / page).read_text().split(f"## {heading}\n", 1)[1].split("\n## ", 1)[0]
    lines = [line for line in section.splitlines() if line.startswith("|")]
    return [line.strip("|").split("|")[0].strip() for line in lines[2:]]


def test_the_summary_on_the_page_is_the_one_that_its_code_prints(capsys):
    page = (DOCS / "can-i-lift-my-model.md").read_text()
    (_, code), *_ = BLOCK.findall(page)
    exec(compile(code, "can-i-lift-my-model.md", "exec"), {})
    shown = re.search(r"```text\n(.*?)```", page, re.S).group(1)
    assert capsys.readouterr().out.strip() == shown.strip()


def test_what_a_solver_needs_is_what_its_class_declares():
    section = (DOCS / "solvers.md").read_text().split("## What a solver needs\n", 1)[1].split("\n## ", 1)[0]
    table = [[cell.strip() for cell in line.strip("|").split("|")] for line in section.splitlines() if "`" in line[:4]]
    said = {name.strip("`"): (shared, mode) for name, _, shared, mode in table}

    def word(declared):
        return "as its solver" if isinstance(declared, property) else "yes" if declared else "no"

    declared = {
        f"{home}{kind.__name__}": (word(kind.shared_parameters), word(kind.training_mode))
        for home, module in (("", lb.solvers), ("baselines.", lb.baselines))
        for kind in vars(module).values()
        if isinstance(kind, type) and issubclass(kind, lb.solvers.Solver) and not inspect.isabstract(kind)
    }
    assert said == declared


def test_every_outcome_is_explained():
    assert {cell.strip("`") for cell in rows("training.md", "How a run ends")} == set(Outcome.__members__)


def test_every_exit_code_is_explained():
    listed = {int(code) for cell in rows("command-line.md", "Exit codes") for code in cell.split(",")}
    assert listed == {int(code) for code in ExitCode}


def test_every_command_is_explained():
    from lifted_bregman.cli.commands import installed

    page = (DOCS / "command-line.md").read_text()
    for name in installed():
        assert re.search(rf"^\|.*`lifted {name}\b", page, re.M), name


def test_every_set_and_every_transform_is_explained():
    assert {cell.strip("`") for cell in rows("data.md", "What there is")} == set(lb.data.names())
    listed = {cell.strip("`").partition("(")[0] for cell in rows("data.md", "Transforms")}
    assert listed == {kind.__name__ for kind in vars(lb.data).values() if _is_transform(kind)}


def _is_transform(kind):
    return isinstance(kind, type) and issubclass(kind, lb.data.Transform) and kind is not lb.data.Transform


def test_every_entry_of_the_history_is_explained():
    cells = " ".join(rows("training.md", "The history"))
    digits = lb.data.load("digits-50")
    model = torch.nn.Sequential(torch.nn.Linear(64, 4), torch.nn.ReLU(), torch.nn.Linear(4, 10))
    problem = lb.lift(model, loss=lb.CrossEntropy())
    result = lb.fit(problem, digits.train, lb.ProximalGradient(), epochs=1, validation=digits.test, tolerance=1e-9)
    entries = set(result.history[0]) - set(result.state.metrics) - {"energy_2"}
    assert {name for name in entries if f"`{name}`" not in cells} == set()


def test_solvers_keep_as_many_tensors_of_the_weights_size_as_the_pages_say():
    """Counted in the states after a step, for a network with one weight of 5 x 7 numbers, 5 x 8 with the bias."""
    words = {"two": 2, "three": 3}
    page = " ".join((DOCS / "when-not.md").read_text().split())
    found = re.search(r"`GramSweep` keeps (\w+) between steps, Adam (\w+) \(its moments\), `AdaBreg` (\w+);", page)
    said = [words[word] for word in found.groups()]
    kept = []
    for solver in (lb.GramSweep(), lb.baselines.Adam(), lb.AdaBreg()):
        problem = lb.lift(torch.nn.Sequential(torch.nn.Linear(7, 5)), loss=lb.SquaredError())
        batch = lb.solvers.Batch.whole(problem, torch.randn(3, 7), torch.randn(3, 5))
        state = solver.step(problem, solver.init(problem, batch), batch)
        kept.append(sum(tensor.numel() in (35, 40) for tensor in tensors(state.state_dict())))
    assert kept == said
    assert "`GramSweep` keeps two tensors of the weights' size" in (DOCS / "speed.md").read_text()


def tensors(entries):
    if isinstance(entries, torch.Tensor):
        yield entries
    elif isinstance(entries, dict | list):
        for entry in entries.values() if isinstance(entries, dict) else entries:
            yield from tensors(entry)


def test_the_race_measures_what_its_tables_say():
    """The script is run by hand, for it takes minutes; here its parts are."""
    race = example("race")
    assert race.SOLVERS["`GramSweep`, the default"] == [default_solver()]
    row = race.race(race.classifier, 0.5, "`GramSweep`, the default", default_solver())
    assert row.seconds is not None and 0.0 < row.seconds < race.LIMIT and row.objective <= 0.5
    page = (DOCS / "when-not.md").read_text()
    for name in race.SOLVERS:
        assert page.count(f"| {name} |") == 2, name


def test_too_large_a_step_kills_the_code_as_the_page_says():
    """With a code of zeros the output is constant, and ½ the variance of the data is the least a constant can reach."""
    race = example("race")
    objective, zeros = race.after_20_epochs(lb.baselines.Adam(1e-2), seed=1)
    _, (X, _) = race.autoencoder()
    assert zeros > 0.99
    assert objective >= 0.5 * float(X.var(0, correction=0).sum()) - 1e-3
    lifted, zeros = race.after_20_epochs(lb.AdaBreg(step_size=1e-2), seed=1)
    assert lifted < 0.5 * objective and zeros < 0.9


def example(name):
    spec = importlib.util.spec_from_file_location(name, DOCS / "examples" / f"{name}.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_races_of_the_page_are_those_that_are_stored():
    """Every row of the table, worked out anew from the rows of the races in docs/races."""
    page = (DOCS / "race.md").read_text().splitlines()
    files = sorted((DOCS / "races").glob("*.json"))
    assert len(files) == 6
    for path in files:
        line = _race_line(json.loads(path.read_text()))
        assert line in page, f"the line should be:\n{line}"


def _race_line(race):
    """Lifted beside Adam as it was tuned for the objective and, where that is another entry, for validation."""
    (problem,) = race["problems"]
    names = [entry["name"] for entry in problem["entries"]]
    first, second = "adam", "adam-validation" if "adam-validation" in names else "adam"
    classify = problem["classify"]
    traces = [{trace["entry"]: trace["rows"] for trace in heat["traces"]} for heat in race["heats"]]
    to_objective, to_error = [], []
    for rows_of in traces:
        target = rows_of[first][-1]["objective"]
        to_objective.append(_share(rows_of, first, lambda row, t=target: row["objective"] <= t))
        best = min(rows_of[second], key=lambda row: row["validation_error"])
        to_error.append(_share(rows_of, second, lambda row, b=best: _as_good(row, b, classify)))
    last = [median(rows_of[name][-1]["objective"] for rows_of in traces) for name in ("lifted", first)]
    lowest = [
        median(min(row["validation_error"] for row in rows_of[name]) for rows_of in traces)
        for name in ("lifted", second)
    ]
    shown = [f"{100 * (1 - e):.2f} %" for e in lowest] if classify else [f"{e:.5f}" for e in lowest]
    cells = [
        f"`{problem['name']}`",
        str(len(traces)),
        _shares(to_objective),
        _shares(to_error),
        ", ".join(f"{value:.2g}" for value in last),
        f"{'accuracy' if classify else 'error'} {', '.join(shown)}",
    ]
    return f"| {' | '.join(cells)} |"


def _as_good(row, best, classify):
    good = row["validation_error"] <= best["validation_error"]
    return good and (classify or row["sparsity"] >= best["sparsity"])


def _share(rows_of, reference, reached):
    """Lifted's time over the reference's, each to its first row that shows the target."""
    times = [
        next((row["seconds"] for row in rows_of[name] if reached(row)), math.inf) for name in ("lifted", reference)
    ]
    return times[0] / times[1]


def _shares(values):
    reached = [value for value in values if math.isfinite(value)]
    if not reached:
        return "not reached"
    middle = median(values)
    if len(reached) == len(values):
        return f"{middle:.2f} ({min(values):.2f} to {max(values):.2f})"
    first = f"{middle:.2f}" if math.isfinite(middle) else f"{min(reached):.2f} at best"
    return f"{first} (reached in {len(reached)} of {len(values)})"
