"""The race as it runs: only steps are timed, in rotating turns, from equal weights and with equal batches."""

from __future__ import annotations

import math
import os
import signal
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

from lifted_bregman import solvers
from lifted_bregman.errors import CheckpointError, SettingError
from lifted_bregman.solvers import baselines
from lifted_bregman.solvers._batches import epoch_order
from lifted_bregman.training import default_solver
from lifted_bregman_lab.race import RaceSettings, Rates, run_race, running, timed_run
from lifted_bregman_lab.race.competitors import Competitor, reference_of
from lifted_bregman_lab.race.entries import make_entries
from lifted_bregman_lab.race.rates import Choice
from lifted_bregman_lab.race.timed_run import TimedRun
from tests.lab.races import AUTOENCODER, CLASSIFIER, Clock, paced, run_of

pytest.importorskip("sklearn")
NOTHING = Rates({})


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Iterator[Clock]:
    with Clock().installed(monkeypatch) as installed:
        yield installed


@pytest.fixture
def slow_evaluation(clock: Clock, monkeypatch: pytest.MonkeyPatch) -> None:
    """Point takes much longer than steps."""
    measured = timed_run.measured

    def delayed(*arguments: Any) -> dict[str, float]:
        clock.now += 1000.0
        return measured(*arguments)

    monkeypatch.setattr(timed_run, "measured", delayed)


def steps_of(log: list[Any], name: str) -> list[Any]:
    return [event for event in log if event[:2] == ("step", name)]


def race(*competitors: Any, problem: Any = CLASSIFIER, **settings: Any) -> Any:
    return run_race([problem], competitors, NOTHING, RaceSettings(**({"repetitions": 1} | settings)))


@pytest.mark.usefixtures("slow_evaluation")
def test_only_steps_are_timed(clock: Clock, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("lifted_bregman.solvers._loop.measured", lambda *_: pytest.fail("evaluated twice"))
    log: list[Any] = []
    result = race(paced("a", clock, 1.0, log, "back-propagation"), paced("b", clock, 0.5, log))
    for name, seconds in (("a", 1.0), ("b", 0.5)):
        rows = run_of(result, name)["rows"]
        assert [row["seconds"] for row in rows] == [seconds * row["step"] for row in rows]
        assert rows[-1]["step"] == 12 and rows[-1]["epoch"] == 4.0  # 60 samples, batches of 20, 4 epochs


def test_all_go_to_the_same_time_in_each_turn_and_the_order_rotates(clock: Clock) -> None:
    """12 steps of a second in 4 rows: turns of 3 seconds."""
    log: list[Any] = []
    names = ("a", "b", "c")
    seconds = {"a": 1.0, "b": 1.0, "c": 1.5}
    race(*(paced(name, clock, seconds[name], log, "back-propagation") for name in names), first_seed=1)
    begin = max(place for place, event in enumerate(log) if event[0] == "start")
    order = [event[1] for event in log[begin:] if event[0] == "step"]
    # The turns of seed 1: c, a, b; a, b, c; b, c, a; c, a, b.  Then c, which has 8 of its 12 steps, until 1.5 * 12 s.
    assert "".join(order) == "ccaaabbbaaabbbccbbbccaaaccaaabbbcccc"


def test_a_slow_one_ends_at_the_budget_and_rests_when_a_step_took_its_next_turn(clock: Clock) -> None:
    """Steps of 4 s, turns of 3 s: at 12 s it is as far as the fourth turn goes; 1.5 times 12 s are over at 20 s."""
    log: list[Any] = []
    result = race(paced("a", clock, 1.0, log, "back-propagation"), paced("slow", clock, 4.0, log))
    slow = run_of(result, "slow")
    assert [row["seconds"] for row in slow["rows"]] == [0.0, 4.0, 8.0, 12.0, 16.0, 20.0]
    assert slow["outcome"] == "STOPPED" and "1.5 times that of a" in slow["message"]
    assert run_of(result, "a")["outcome"] == "FINISHED"
    other = race(paced("a", clock, 1.0, log, "back-propagation"), paced("slow", clock, 4.0, log), budget=3.0)
    assert run_of(other, "slow")["rows"][-1]["seconds"] == 36.0
    log.clear()
    race(paced("a", clock, 1.0, log, "back-propagation"), paced("slow", clock, 7.0, log))
    begin = max(place for place, event in enumerate(log) if event[0] == "start")
    order = [event[1][0] for event in log[begin:] if event[0] == "step"]
    assert "".join(order) == "saaaaaasaaaaaas"  # 7 s, rest, 14 s, rest, 21 s


def test_weights_and_batches_are_the_same_for_all_and_drawn_by_the_seed(clock: Clock) -> None:
    log: list[Any] = []
    pair = paced("a", clock, 1.0, log, "back-propagation"), paced("another", clock, 2.0, log)
    race(*pair, repetitions=2, first_seed=5)
    starts = [event for event in log if event[0] == "start"]
    assert len(starts) == 8  # two repetitions, two competitors, each with a copy to warm up
    for first in (0, 4):
        for other in starts[first + 1 : first + 4]:
            assert all(torch.equal(p, q) for p, q in zip(starts[first][2], other[2], strict=True))
    assert not torch.equal(starts[0][2][0], starts[4][2][0])
    places = [place for place, event in enumerate(log) if event[0] == "start"]
    for number, seed in ((3, 5), (7, 6)):  # behind the last start of each repetition are the steps that count
        own = log[places[number] :][: next((p for p in places if p > places[number]), len(log)) - places[number]]
        expected = [batch.tolist() for epoch in range(1, 5) for batch in epoch_order(60, 20, seed, epoch)]
        assert [event[3] for event in steps_of(own, "a")] == expected
        others = [event[3] for event in steps_of(own, "another")]
        assert len(others) >= 9 and others == expected[: len(others)]
        assert [event[2] for event in steps_of(own, "a")] == list(range(12))


def test_warming_up_leaves_no_trace_in_clock_or_weights(clock: Clock) -> None:
    log: list[Any] = []
    result = race(paced("a", clock, 1.0, log, "back-propagation"), paced("b", clock, 1.0, log))
    last_start = max(place for place, event in enumerate(log) if event[0] == "start")
    assert len([event for event in log[:last_start] if event[0] == "step"]) == 2 + 3 + 2
    assert [event[1] for event in log if event[0] == "attach"] == ["a", "b", "a", "b"]
    for own in result.repetitions[0]["traces"]:
        assert own["rows"][0]["seconds"] == own["rows"][0]["step"] == 0.0
        assert own["rows"][-1]["seconds"] == 12.0


@pytest.mark.parametrize("solver", [default_solver(), baselines.Adam(0.01), baselines.SGD(0.1, momentum=0.9)], ids=repr)
def test_a_run_in_turns_is_the_run_in_one_go(solver: Any) -> None:
    samples = AUTOENCODER.load(3)
    whole = AUTOENCODER.build(3, samples)
    result = solvers.run(whole, samples.train, solver, epochs=3, batch_size=20, seed=3)
    own = TimedRun(AUTOENCODER, solver, samples, batch_size=20, seed=3)
    assert own.steps == 9
    for steps in (1, 2, 3, 5, 6, 8, 20):
        own.advance(steps=steps)
        own.record()
    assert own.outcome == "FINISHED" and own.fraction == 1.0
    parameters = zip(whole.model.parameters(), own.run.problem.model.parameters(), strict=True)
    assert all(torch.equal(p, q) for p, q in parameters)
    by_epoch = {row["epoch"]: row for row in own.rows}
    for row in result.history:
        assert by_epoch[row["epoch"]]["objective"] == row["objective"]
        assert by_epoch[row["epoch"]]["sparsity"] == row["sparsity"]


def forward(model: Any, X: np.ndarray, threshold: float) -> tuple[np.ndarray, np.ndarray]:
    """The autoencoder in numpy: ReLU, soft threshold, ReLU, linear."""
    layers = [(m.weight.detach().double().numpy(), m.bias.detach().double().numpy()) for m in model[::2]]
    x = np.maximum(X @ layers[0][0].T + layers[0][1], 0.0)
    z = x @ layers[1][0].T + layers[1][1]
    code = np.sign(z) * np.maximum(np.abs(z) - threshold, 0.0)
    hidden = np.maximum(code @ layers[2][0].T + layers[2][1], 0.0)
    return code, hidden @ layers[3][0].T + layers[3][1]


def test_the_numbers_of_an_autoencoder_s_row(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(timed_run, "_AT_ONCE", 7)  # pieces of 7, 7 and 6
    samples = AUTOENCODER.load(0)
    own = TimedRun(AUTOENCODER, baselines.Adam(0.01), samples, batch_size=20, seed=0)
    own.advance(steps=7)
    own.record()
    own.record()
    (row,), model = own.rows, own.run.problem.model
    X, V = (part[0].double().numpy() for part in (samples.train, samples.validation))
    assert X.shape == (50, 64) and V.shape == (20, 64)
    code, out = forward(model, X, 0.09)
    objective = (0.5 * np.square(out - X).sum(1) + 0.05 * np.abs(code).sum(1)).mean()
    assert row["objective"] == pytest.approx(objective, rel=1e-5)
    assert row["sparsity"] == pytest.approx((code == 0).mean(), abs=1e-9)
    assert row["validation_error"] == pytest.approx(np.square(forward(model, V, 0.09)[1] - V).mean(), rel=1e-5)
    assert row["step"] == 7 and row["epoch"] == pytest.approx(7 / 3)


def test_the_numbers_of_a_classifier_s_row() -> None:
    samples = CLASSIFIER.load(0)
    own = TimedRun(CLASSIFIER, baselines.Adam(0.01), samples, batch_size=20, seed=0)
    own.advance(steps=6)
    own.record()
    (row,), model = own.rows, own.run.problem.model
    (X, y), (V, w) = samples.train, samples.validation
    out = model(X).detach().double()
    target = torch.nn.functional.one_hot(y, 10).double()
    assert row["objective"] == pytest.approx(float(0.5 * (out - target).square().sum(1).mean()), rel=1e-5)
    wrong = float((model(V).argmax(1) != w).double().mean())
    assert 0.0 < wrong < 1.0
    assert row["validation_error"] == pytest.approx(wrong) and row["validation_accuracy"] == pytest.approx(1.0 - wrong)


def test_one_that_diverges_keeps_its_last_rows_and_the_others_go_on(clock: Clock) -> None:
    def poison(solver: Any, problem: Any, state: Any) -> None:
        if state.steps == 7:
            with torch.no_grad():
                problem.model[0].weight[0, 0] = math.nan

    log: list[Any] = []
    result = race(paced("a", clock, 1.0, log, "back-propagation"), paced("b", clock, 1.0, log, on_step=poison))
    bad = run_of(result, "b")
    assert bad["outcome"] == "DIVERGED" and bad["rows"][-1]["step"] == 6
    assert run_of(result, "a")["rows"][-1]["step"] == 12 and result.whole


def test_ctrl_c_keeps_what_is_done(clock: Clock) -> None:
    def interrupt(solver: Any, problem: Any, state: Any) -> None:
        steps = len(steps_of(log, "b"))
        if steps == 2 + 12 + 2 + 5:  # in the second repetition, after its warm-up
            os.kill(os.getpid(), signal.SIGINT)

    log: list[Any] = []
    before = signal.getsignal(signal.SIGINT)
    pair = paced("a", clock, 1.0, log, "back-propagation"), paced("b", clock, 1.0, log, on_step=interrupt)
    result = race(*pair, repetitions=3)
    assert result.interrupted and [own["whole"] for own in result.repetitions] == [True, False]
    assert set(result.rows_of("tiny")["seed"]) == {0}
    assert len(steps_of(log, "b")) == 2 + 12 + 2 + 5
    assert signal.getsignal(signal.SIGINT) is before


def test_ctrl_c_before_the_first_turn_leaves_an_empty_race(clock: Clock) -> None:
    def interrupt(solver: Any, problem: Any, state: Any) -> None:
        if len(log) == 3:  # its first step
            os.kill(os.getpid(), signal.SIGINT)

    log: list[Any] = []
    result = race(paced("a", clock, 1.0, log, on_step=interrupt), paced("b", clock, 1.0, log))
    assert result.interrupted and result.repetitions == () and result.problems == ()
    assert steps_of(log, "b") == []  # nobody else warms up


def test_every_repetition_is_kept_as_soon_as_it_is_whole(clock: Clock) -> None:
    kept: list[tuple[int, Any]] = []
    log: list[Any] = []
    pair = paced("a", clock, 1.0, log, "back-propagation"), paced("b", clock, 1.0, log)
    settings = RaceSettings(3)
    result = run_race([CLASSIFIER], pair, NOTHING, settings, keep=lambda so_far: kept.append((len(log), so_far)))
    assert [[own["seed"] for own in so_far.repetitions] for _, so_far in kept] == [[0], [0, 1], [0, 1, 2]]
    assert [so_far.interrupted for _, so_far in kept] == [True, True, False]
    assert kept[-1] == (len(log), result) and kept[0][1].problems == result.problems
    assert len({events for events, _ in kept}) == 3  # each before the next one began


def cut_second(race: Any) -> Any:
    return race.repetitions[0], race.repetitions[1] | {"whole": False}


def test_a_stored_part_is_not_run_again(clock: Clock, monkeypatch: pytest.MonkeyPatch) -> None:
    log: list[Any] = []
    loads = iter(range(1000))  # whoever asks later finds the machine busier
    monkeypatch.setattr(running, "load_average", lambda: float(next(loads)))

    def again(stored: Any, problems: Any = (CLASSIFIER,), **settings: Any) -> Any:
        log.clear()
        pair = paced("a", clock, 1.0, log, "back-propagation"), paced("b", clock, 1.0, log)
        return run_race(problems, pair, NOTHING, RaceSettings(**({"repetitions": 3} | settings)), stored=stored)

    whole = again(None)
    events = len(log)
    part = replace(whole, repetitions=cut_second(whole), interrupted=True, load_before=1e6)
    result = again(part)
    assert len(log) == events * 2 / 3 and not result.interrupted
    assert result.repetitions[0] is whole.repetitions[0] and result.whole == result.repetitions
    runs = [[own["traces"] for own in race.repetitions] for race in (result, whole)]
    assert runs[0] == runs[1]  # the clock is ours
    assert result.load_before == 1e6  # the busiest of its beginnings
    assert again(whole) == whole and log == []  # with the load before it, for nothing was run under the present one
    longer = again(whole, repetitions=5)
    assert [own["seed"] for own in longer.repetitions] == [0, 1, 2, 3, 4] and len(log) == events * 2 / 3
    assert whole.load_before == 0.0 and longer.load_before > 0.0
    other = replace(CLASSIFIER, name="again")
    assert [own["problem"] for own in again(whole, (other, CLASSIFIER)).repetitions] == ["again"] * 3 + ["tiny"] * 3
    for settings in ({"repetitions": 2}, {"first_seed": 1}, {"budget": 2.0}):
        with pytest.raises(CheckpointError, match="the race that is stored is another one"):
            again(whole, **settings)
    assert log == []
    with pytest.raises(CheckpointError, match="epochs was 4 and is 5"):
        again(whole, (CLASSIFIER.with_epochs(5),))


def test_an_interrupt_before_the_first_turn_loses_nothing_that_was_stored(clock: Clock) -> None:
    def interrupt(solver: Any, problem: Any, state: Any) -> None:
        if armed and armed.pop():
            os.kill(os.getpid(), signal.SIGINT)

    armed: list[bool] = []
    log: list[Any] = []
    competitor = paced("a", clock, 1.0, log, on_step=interrupt)
    whole = race(competitor, repetitions=2)
    part = replace(whole, repetitions=cut_second(whole), interrupted=True)
    armed.append(True)
    ended = run_race([CLASSIFIER], [competitor], NOTHING, RaceSettings(2), stored=part)
    assert ended.repetitions == part.repetitions and ended.interrupted


def test_progress_goes_from_0_to_1(clock: Clock) -> None:
    log: list[Any] = []
    seen: list[tuple[str, float]] = []
    pair = [paced("a", clock, 1.0, log, "back-propagation"), paced("slow", clock, 4.0, log)]
    problems = [CLASSIFIER, replace(CLASSIFIER, name="again")]
    run_race(problems, pair, NOTHING, RaceSettings(2), lambda *shown: seen.append(shown))
    parts = [part for _, part in seen]
    assert parts == sorted(parts) and parts[-1] == 1.0 and 0.0 < parts[0] < 0.25
    assert [name for name, part in seen if part == 0.5] == ["tiny, seed 1"]
    assert parts.count(0.25) == 1  # not while the slow one is still on its way
    assert list(dict.fromkeys(name for name, _ in seen)) == [
        f"{p}, seed {s}" for p in ("tiny", "again") for s in (0, 1)
    ]


def test_threads_are_set_for_the_race_alone_and_told(clock: Clock) -> None:
    before = torch.get_num_threads()
    seen = []
    watched = paced("a", clock, 1.0, [], on_step=lambda *_: seen.append(torch.get_num_threads()))
    result = race(watched, threads=before + 1)
    assert set(seen) == {before + 1} and torch.get_num_threads() == before
    assert result.environment["threads"] == str(before + 1) and result.environment["torch"] == torch.__version__


def tuned(name: str) -> Any:
    return Competitor(name, name, "back-propagation", baselines.SGD, "learning_rate", (0.1, 0.2))


def test_an_entry_for_each_choice() -> None:
    same, other = Choice(0.1, 20), Choice(0.2, 10)
    rates = Rates(
        {"tiny": {"one": {"objective": same, "validation": same}, "two": {"objective": same, "validation": other}}}
    )
    entries = make_entries(CLASSIFIER, [tuned("one"), tuned("two")], rates)
    assert [(e.name, e.chosen_by, e.value, e.batch_size) for e in entries] == [
        ("one", ("objective", "validation"), 0.1, 20),
        ("two", ("objective",), 0.1, 20),
        ("two-validation", ("validation",), 0.2, 10),
    ]
    assert "learning_rate=0.2" in entries[2].solver
    part = replace(CLASSIFIER, name="part", tuned_as="tiny")
    assert make_entries(part, [tuned("one")], rates)[0].value == 0.1


def test_what_cannot_be_run_is_refused_before_any_work(clock: Clock) -> None:
    log: list[Any] = []
    with pytest.raises(SettingError, match=r"no rate of 'adam' for 'tiny'.*lifted bench tune --problems tiny"):
        run_race([CLASSIFIER], [paced("a", clock, 1.0, log), tuned("adam")], NOTHING, RaceSettings(1))
    assert log == []
    with pytest.raises(SettingError, match="at least one problem"):
        run_race([], [paced("a", clock, 1.0, log)], NOTHING, RaceSettings(1))
    for settings in ({"repetitions": 0}, {"first_seed": -1}, {"threads": 0}, {"budget": 0.5}, {"repetitions": True}):
        with pytest.raises(SettingError, match=next(iter(settings))):
            RaceSettings(**settings)
    with pytest.raises(SettingError, match="rows of 'tiny' is 0"):
        replace(CLASSIFIER, rows=0)


def test_the_reference() -> None:
    clock = Clock()
    lifted, other = paced("a", clock, 1.0, []), paced("b", clock, 1.0, [], "back-propagation")
    assert reference_of([lifted, other, tuned("adam")]) == "adam"
    assert reference_of([lifted, other]) == "b"
    assert reference_of([lifted]) == "a"
