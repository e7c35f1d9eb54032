"""The benchmarks run, and measure what they say: the same step everywhere, every byte, every product, right slopes.

How long anything takes is not judged here.
"""

from __future__ import annotations

import json
import math
import random
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode

import lifted_bregman as lb

REPOSITORY = Path(__file__).parents[1]
FOLDER = REPOSITORY / "benchmarks"
FIGURES = REPOSITORY / "docs" / "figures"
sys.path.append(str(FOLDER))

import _backprop  # noqa: E402
import _rounds  # noqa: E402
import growth  # noqa: E402
import step_cost  # noqa: E402
from _memory import LiveBytes, peak_of_a_step  # noqa: E402
from _tasks import Task, solver_step  # noqa: E402

AUTOENCODER = Task("autoencoder", (6, 5, 4, 5, 6), 7, code=2, dtype=torch.float64)
CLASSIFIER = Task("classifier", (6, 5, 3), 7, dtype=torch.float64)


# Every script, as a user starts it

SCRIPTS = sorted(path.stem for path in FOLDER.glob("[!_]*.py") if "__main__" in path.read_text())
SMALLEST = {"activations": [], "algorithm_1": ["--threads", "1", "--small"], "growth": ["--threads", "1", "--quick"]}
SMALLEST["robustness"] = ["--threads", "1", "--epochs", "1"]
TAKE_LONG = ("activations", "import_time", "training_loop")


@pytest.mark.parametrize(
    "script", [pytest.param(name, marks=[pytest.mark.long] if name in TAKE_LONG else []) for name in SCRIPTS]
)
def test_a_script_runs_and_writes_its_numbers(script, tmp_path):
    target = tmp_path / "numbers.json"
    options = ["--rounds", "1", "--json", str(target), *SMALLEST.get(script, ["--threads", "1"])]
    command = [sys.executable, str(FOLDER / f"{script}.py"), *options]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=280)
    assert done.returncode == 0, done.stderr
    assert "Warning" not in done.stderr and done.stdout.strip()
    numbers = list(leaves(json.loads(target.read_text())))
    assert numbers and all(math.isfinite(number) for number in numbers)


def leaves(entries):
    if isinstance(entries, dict | list):
        for entry in entries.values() if isinstance(entries, dict) else entries:
            yield from leaves(entry)
    elif isinstance(entries, int | float):
        yield entries


# The competitors


class Kept(Task):
    """Keeps the models it makes."""

    made: list[nn.Sequential] = []  # noqa: RUF012

    def model(self):
        self.made.append(super().model())
        return self.made[-1]


def adam_by_hand(task, steps, batches):
    """Parameters after some steps of Adam on the objective as the paper writes it."""
    model = task.model()
    X, Y = task.data(batches * task.batch)
    parameters = [p.detach().clone().requires_grad_() for p in model.parameters()]
    first, second = ([torch.zeros_like(p) for p in parameters] for _ in range(2))
    for k in range(1, steps + 1):
        place = (k - 1) % batches * task.batch
        x, y = X[place : place + task.batch], Y[place : place + task.batch]
        depth, penalty = len(parameters) // 2, 0.0
        for layer in range(1, depth + 1):
            x = x @ parameters[2 * layer - 2].T + parameters[2 * layer - 1]
            if layer == task.code:
                x = torch.where(x.abs() > task.alpha, x - task.alpha * x.sign(), 0.0)
                penalty = task.alpha * x.abs().sum() / task.batch
            elif layer < depth:
                x = torch.where(x > 0.0, x, 0.0)
        value = 0.5 * ((x - y) ** 2).sum() / task.batch + penalty
        gradients = torch.autograd.grad(value, parameters)
        with torch.no_grad():
            for p, g, m, v in zip(parameters, gradients, first, second, strict=True):
                m.mul_(0.9).add_(0.1 * g)
                v.mul_(0.999).add_(0.001 * g * g)
                p -= _backprop.RATE * (m / (1 - 0.9**k)) / ((v / (1 - 0.999**k)).sqrt() + 1e-8)
    return [p.detach() for p in parameters]


@pytest.mark.parametrize("form", [*_backprop.FORMS, "library"])
@pytest.mark.parametrize("task", [AUTOENCODER, CLASSIFIER], ids=lambda task: task.name)
def test_all_forms_of_back_propagation_take_the_same_steps(task, form):
    kept = Kept(task.name, task.widths, task.batch, task.code, dtype=task.dtype)
    if form == "library":
        step = solver_step(kept, lb.baselines.Adam(_backprop.RATE), batches=3)
    else:
        step = _backprop.backprop_step(kept, form, batches=3)
    model = kept.made[-1]
    for _ in range(7):
        step()
    for ours, by_hand in zip(model.parameters(), adam_by_hand(task, 7, 3), strict=True):
        torch.testing.assert_close(ours.detach(), by_hand, rtol=1e-11, atol=1e-12)
    start = task.model()
    moved = [float((a - b).detach().abs().max()) for a, b in zip(model.parameters(), start.parameters(), strict=True)]
    assert min(moved) > _backprop.RATE, "some parameter was not trained"


def test_the_lifted_step_trains_the_same_network_on_the_same_batches():
    class Spy(lb.baselines.Adam):
        def step(self, problem, state, batch):
            seen.append((problem, batch))
            return state

    seen = []
    step = solver_step(AUTOENCODER, Spy(), batches=2)
    for _ in range(3):
        step()
    X, Y = AUTOENCODER.data(2 * AUTOENCODER.batch)
    for (problem, batch), place in zip(seen, (0, 7, 0), strict=True):
        torch.testing.assert_close(batch.X, X[place : place + 7], rtol=0, atol=0)
        torch.testing.assert_close(batch.Y, Y[place : place + 7], rtol=0, atol=0)
        assert problem.penalties == {2: lb.penalties.L1(0.09)}
    own, plain = seen[0][0], _backprop.objective(AUTOENCODER, seen[0][0].model)
    assert float(own.objective(X, Y)) == pytest.approx(float(plain(X, Y).detach()), rel=1e-13)


class Multiplications(TorchDispatchMode):
    """The multiplications of each matrix product."""

    def __init__(self):
        super().__init__()
        self.sizes = []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        name = func.overloadpacket.__name__
        if name in ("mm", "addmm", "addmm_"):
            a, b = [value for value in args if isinstance(value, torch.Tensor)][-2:]
            self.sizes.append(a.shape[0] * a.shape[1] * b.shape[1])
        else:
            assert name in ("t", "transpose", "detach"), f"{name} is no product"
        return func(*args, **(kwargs or {}))


def test_the_bare_products_are_two_in_the_first_layer_and_three_above():
    task = Task("", (7, 11, 5, 3), batch=13)
    step = _backprop.products(task)
    with Multiplications() as counted:
        step()
    assert sorted(counted.sizes) == sorted([13 * 7 * 11] * 2 + [13 * 11 * 5] * 3 + [13 * 5 * 3] * 3)
    with LiveBytes() as count:
        step()
        assert count.peak == 0, "it makes no tensors of its own"


# Memory


def test_live_bytes_counts_known_allocations():
    before = torch.ones(1000)
    with LiveBytes() as count:
        a = torch.empty(1000)
        assert count.now == count.peak == 4000
        view = a.view(10, 100)[3:]
        assert count.now == 4000, "a view has no memory of its own"
        del a
        assert count.now == 4000, "the view holds on to it"
        b = before + 1.0
        del view
        assert (count.now, count.peak) == (4000, 8000)
        b.mul_(2.0)
        assert count.now == 4000, "in place"
        double, parts = b.double(), before.reshape(4, 250).clone().unbind()
        assert count.now == 4000 + 8000 + 4000
        del double, parts, b
        assert (count.now, count.peak) == (0, 16000)
        count.reset_peak()
        assert count.peak == 0
        grown = torch.empty(0)
        torch.add(before, 1.0, out=grown)
        assert count.now == count.peak == 4000
    assert grown.sum() == 2000.0


def test_live_bytes_counts_what_autograd_keeps():
    with LiveBytes() as count:
        w = torch.ones(1000, requires_grad=True)
        y = w.exp().sin()  # keeps exp(w), which is both exp's result and sin's argument
        assert count.now == 12000
        total = y.sum()
        del y
        assert count.now == 8004
        total.backward()
        assert count.now == 8004, "exp(w) is gone and the gradient is there"
        assert count.peak >= 12004


@pytest.mark.parametrize("form", [*_backprop.FORMS, "lifted"])
def test_the_peak_is_that_of_the_allocator(form):
    """torch's profiler sees every allocation and every end of one, by other means."""
    task = Task("", (64, 128, 32, 16), batch=50)
    with (
        torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU], profile_memory=True) as profile,
        LiveBytes() as count,
    ):
        if form == "lifted":
            step = solver_step(task, lb.AdaBreg(), batches=1)
        else:
            step = _backprop.backprop_step(task, form, batches=1)
        for _ in range(3):
            step()
    events = [event for event in profile.profiler.kineto_results.events() if event.name() == "[memory]"]
    live = peak = 0
    for event in sorted(events, key=lambda event: event.start_ns()):
        live += event.nbytes()
        peak = max(peak, live)
    assert count.peak == pytest.approx(peak, rel=0.01)
    assert count.now == pytest.approx(live, rel=0.01)


def test_the_peak_of_a_step_has_state_and_step_but_no_warm_up():
    calls = []

    def make():
        state = torch.ones(1000)

        def step():
            size = 5000 if len(calls) < 3 else 2000
            calls.append(torch.ones(size).sum() + state.sum())

        return step

    kept, made = 4 * (1000 + 3), 4 * 2000
    assert peak_of_a_step(make, warm_up=3) in range(kept + made, kept + made + 13)  # and up to three single numbers


# Rounds and ratios


def test_rounds_turn_their_order_round_and_time_all(monkeypatch):
    clock, calls = [0.0], []
    monkeypatch.setattr(_rounds.time, "perf_counter", lambda: clock[0])

    def competitor(name, cost):
        def step():
            calls.append(name)
            clock[0] += cost

        return step

    found = _rounds.timed({"a": competitor("a", 0.004), "b": competitor("b", 0.016)}, rounds=3, span=0.032)
    assert found["a"] == pytest.approx([0.004] * 3) and found["b"] == pytest.approx([0.016] * 3)
    one, other = ["a"] * 9, ["b"] * 3  # one step that is not timed, and 32 ms
    assert (
        calls == ["a"] * (_rounds.WARM_UP + 2) + ["b"] * (_rounds.WARM_UP + 2) + one + other + other + one + one + other
    )
    assert _rounds.fastest(found) == "a"


def test_a_ratio_is_the_median_of_the_ratios_of_the_rounds():
    other = [1.0, 2.0, 4.0, 8.0, 16.0, 1.0, 1.0, 1.0, 1.0, 1.0]
    factors = [3.0, 1.0, 2.0, 5.0, 4.0, 6.0, 7.0, 8.0, 9.0, 10.0]
    found = _rounds.compare([a * b for a, b in zip(other, factors, strict=True)], other)
    assert (found["ratio"], found["ratio_10_percent"], found["ratio_90_percent"]) == (5.5, 2.0, 10.0)
    assert found["other_ms"] == 1000.0


# Exponents and charts


def test_exponents_of_power_laws_are_exact_where_only_the_upper_half_is_one():
    sizes = [1, 2, 4, 8, 16, 32, 64, 128, 256]
    values = [9.0, 1.0, 7.0, 2.0, *(3.0 * size**1.7 for size in sizes[4:])]
    found = growth.fit(sizes, values)
    assert found.exponent == pytest.approx(1.7, abs=1e-13) and found.error == pytest.approx(0.0, abs=1e-13)


def test_exponents_and_their_errors_are_those_of_scipy():
    stats = pytest.importorskip("scipy.stats")
    draw = random.Random(0)
    for count, used in ((3, 3), (4, 3), (5, 3), (6, 3), (7, 4), (9, 5), (10, 5)):
        sizes = [10.0 * 1.5**n for n in range(count)]
        values = [size**0.8 * draw.uniform(0.8, 1.2) for size in sizes]
        oracle = stats.linregress([math.log(s) for s in sizes[-used:]], [math.log(v) for v in values[-used:]])
        found = growth.fit(sizes, values)
        assert found.exponent == pytest.approx(oracle.slope, rel=1e-10)
        assert found.error == pytest.approx(oracle.stderr, rel=1e-8)


def test_growing_samples_count_with_their_bytes():
    axis = growth.Axis("samples", (20, 60), (), lambda _: Task("", (8, 8, 4), batch=10), epoch=True)
    small, large = (growth.measure(axis, size, rounds=1) for size in axis.sizes)
    assert large["other_bytes"] - small["other_bytes"] == 40 * (8 + 4) * 4
    assert large["ours_bytes"] - small["ours_bytes"] >= 40 * (8 + 4) * 4
    assert small["ours_ms"] > 0.0 and small["other_ms"] > 0.0


def made_up_rows():
    exponents = {"samples": 1.0, "width": 2.0, "depth": 1.5, "batch": 0.5}
    return [
        {"axis": axis.name, "size": n, "ours_ms": 2.0 * n**p, "other_ms": n**p, "ours_bytes": n**1.25, "other_bytes": n}
        for axis in growth.AXES
        for n, p in ((n, exponents[axis.name]) for n in axis.sizes)
    ]


def test_the_table_has_the_exponents_and_the_ratios_of_the_ends():
    _, *table = growth.exponents(made_up_rows())
    assert [line[0] for line in table] == [axis.name for axis in growth.AXES for _ in range(2)]
    for line, p in zip(table[::2], ("1.00", "2.00", "1.50", "0.50"), strict=True):
        assert line[3:] == ("time", f"{p} ± 0.00", f"{p} ± 0.00", "2.00", "2.00")
    for line, axis in zip(table[1::2], growth.AXES, strict=True):
        ends = axis.sizes[0], axis.sizes[-1]
        assert line[1:3] == tuple(map(str, ends))
        assert line[3:] == ("memory", "1.25 ± 0.00", "1.00 ± 0.00", *(f"{n**0.25:.2f}" for n in ends))


def test_the_chart_has_eight_panels_with_both_curves():
    pytest.importorskip("matplotlib")
    rows = made_up_rows()
    panels = growth.figure(rows).axes
    assert len(panels) == 8
    for number, panel in enumerate(panels):
        axis, unit = growth.AXES[number % 4], ("ms", "bytes")[number // 4]
        chosen = [row for row in rows if row["axis"] == axis.name]
        assert (panel.get_xscale(), panel.get_yscale()) == ("log", "log")
        for line, method in zip(panel.lines, ("ours", "other"), strict=True):
            scale = 1e6 if unit == "bytes" else 1.0
            assert list(line.get_xdata()) == list(axis.sizes)
            assert list(line.get_ydata()) == pytest.approx([row[f"{method}_{unit}"] / scale for row in chosen])
        low, high = panel.get_ylim()
        assert any(low <= tick <= high for tick in panel.get_yticks())


def test_redrawing_gives_the_same_files(tmp_path):
    pytest.importorskip("matplotlib")
    place = {"processor": "P", "threads": "2", "torch": "9.9"}
    result = {"rows": made_up_rows(), "rounds": 9, "environment": place, "load_before": 0.25}
    made = []
    for name in ("one", "two"):
        path = tmp_path / name / "growth.json"
        path.parent.mkdir()
        path.write_text(json.dumps(result))
        growth.write(json.loads(path.read_text()), path)
        made.append([path.with_name(file).read_bytes() for file in ("growth.svg", "growth_dark.svg")])
    assert made[0] == made[1] and made[0][0] != made[0][1]
    text = path.with_suffix(".inc").read_text()
    assert "{image} two/growth.svg" in text and "{image} two/growth_dark.svg" in text
    assert "P, 2 threads, torch 9.9; 9 rounds, load before the run 0.25." in text


# The step-cost table and the page


def test_every_pair_of_steps_is_compared(monkeypatch):
    task = Task("small", (8, 8, 8, 8, 8), 5, code=2)
    variant = step_cost.Variant(lb.AdaBreg, {(step_cost.ADAM, task): 1e9, (step_cost.PRODUCTS, task): 1e-9})
    monkeypatch.setattr(step_cost, "VARIANTS", {"mine": variant})
    rows = step_cost.times(task, rounds=2)
    pairs = [(row["step"], row["beside"], row["limit"]) for row in rows]
    adam, products, library = step_cost.ADAM, step_cost.PRODUCTS, step_cost.LIBRARY
    assert pairs == [("mine", adam, 1e9), ("mine", products, 1e-9), (library, adam, 1.05), (adam, products, None)]
    _, *table = step_cost.time_table(rows)
    assert [line[-1] for line in table[:2]] == ["kept", "missed"] and table[3][-2:] == ("", "")
    (row,) = step_cost.memory(task)
    parameters = 4 * (64 + 8)
    assert row["other_bytes"] >= 4 * 4 * parameters
    assert row["ratio"] == row["ours_bytes"] / row["other_bytes"]


def test_the_opponent_is_the_fastest_and_the_leanest_form(monkeypatch):
    seconds = {"freed first": 3.0, "freed late": 2.0, "zeroed": 4.0, step_cost.LIBRARY: 5.0, step_cost.PRODUCTS: 1.0}
    monkeypatch.setattr(step_cost, "VARIANTS", {"mine": step_cost.Variant(lb.AdaBreg, {})})
    monkeypatch.setattr(step_cost, "timed", lambda steps, rounds: {name: [seconds.get(name, 6.0)] for name in steps})
    mine, _, library, adam = step_cost.times(CLASSIFIER, rounds=1)
    assert {row["adam_form"] for row in (mine, library, adam)} == {"freed late"}
    assert (mine["ratio"], library["ratio"], adam["ratio"]) == (3.0, 2.5, 2.0)
    peaks = iter((300, 200, 400, 500))
    monkeypatch.setattr(step_cost, "peak_of_a_step", lambda make: next(peaks))
    assert step_cost.memory(CLASSIFIER)[0]["ratio"] == 2.5


def test_the_limits_are_those_of_networks_that_are_measured():
    for variant in step_cost.VARIANTS.values():
        for (opponent, task), limit in variant.limits.items():
            assert opponent in (step_cost.ADAM, step_cost.PRODUCTS) and task in step_cost.TASKS and limit >= 1.0
    parameters = sum(p.numel() for p in step_cost.SMALL.model().parameters())
    assert parameters == 2_461_760  # the paper's network


@pytest.mark.parametrize(
    ("name", "page"), [("step_costs", lambda result, path: step_cost.page(result)), ("growth", growth.page)]
)
def test_the_page_shows_the_stored_numbers(name, page):
    path = FIGURES / f"{name}.json"
    shown = path.with_suffix(".inc").read_text(encoding="utf-8")
    if path.exists():
        assert shown == page(json.loads(path.read_text(encoding="utf-8")), path)
    else:
        assert shown.startswith("*Not measured yet:")
    assert f"{{include}} figures/{name}.inc" in (REPOSITORY / "docs" / "step-costs.md").read_text(encoding="utf-8")
