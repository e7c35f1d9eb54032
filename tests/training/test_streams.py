"""Streams: each epoch is read again, steps equal those of a loop by hand, and a cut run resumes bit by bit."""

from __future__ import annotations

import gc
import math
import random
import weakref
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import pytest
import torch
from torch.utils.data import (
    BatchSampler,
    DataLoader,
    Dataset,
    IterableDataset,
    SequentialSampler,
    TensorDataset,
    WeightedRandomSampler,
)

import lifted_bregman as lb
from lifted_bregman import errors, solvers
from lifted_bregman.solvers import Outcome
from tests.cases import name, solver_cases
from tests.solvers.problems import make
from tests.training.runs import StopAt, assert_same, assert_same_end, parameters, scrambled

SOLVER = solvers.ImplicitSGD(prox_weight=5.0, inner_steps=2)


class Augmented(Dataset):
    """Samples with noise from the global generators of torch, NumPy and Python; `given` has what was read."""

    def __init__(self, case, rng=None):
        self.X, self.Y, self.rng = case.X, case.Y, rng
        self.given, self.noise = [], []

    def __len__(self):
        return len(self.X)

    def __getitem__(self, index):
        noise = 0.1 * torch.randn(5, dtype=torch.float64) + np.random.standard_normal() + random.gauss(0.0, 1.0)
        if self.rng is not None:
            noise += self.rng.standard_normal()
        self.noise.append(noise)
        self.given.append((self.X[index] + noise, self.Y[index]))
        return self.given[-1]


class Endings(IterableDataset):
    """An iterable set without a length, with noise."""

    def __init__(self, case, samples=12):
        self.case, self.samples = case, samples

    def __iter__(self):
        for x, y in zip(self.case.X[: self.samples], self.case.Y[: self.samples], strict=True):
            yield x + torch.randn(5, dtype=torch.float64), y


def by_hand(case, solver, batches):
    """Parameters after a step on each batch, and the objective of each before its step."""
    problem, state, objectives = case.problem, None, []
    for X, Y in batches:
        batch = solvers.Batch.whole(problem, X, Y)
        state = solver.init(problem, batch) if state is None else state
        objectives.append(float(problem.objective(X, Y)))
        state = solver.step(problem, state, batch)
    return parameters(case), objectives


def in_batches(given, *sizes):
    """What was read sample by sample, as the batches it was given in."""
    rows, found = iter(given), []
    for size in sizes:
        X, Y = zip(*(next(rows) for _ in range(size)), strict=True)
        found.append((torch.stack(X), torch.stack(Y)))
    assert next(rows, None) is None
    return found


def test_five_epochs_of_32_samples_read_160_and_augment_anew():
    case = make("relu", samples=32)
    data = Augmented(case)
    lb.fit(case.problem, DataLoader(data, batch_size=8, shuffle=True), SOLVER, epochs=5)
    assert len(data.given) == 160
    assert len(torch.stack(data.noise).unique(dim=0)) == 160  # no noise comes twice
    targets = torch.stack([y for _, y in data.given]).view(5, 32, 3)
    for epoch in targets:  # each sample once
        assert torch.equal(epoch[epoch[:, 0].argsort()], case.Y[case.Y[:, 0].argsort()])
    assert len({tuple(epoch[:, 0].tolist()) for epoch in targets}) == 5  # in an order of its own


@pytest.mark.parametrize(
    "solver",
    [
        SOLVER,
        solvers.GramSweep(step_size=0.1),
        solvers.baselines.AdamW(0.01),
        solvers.LinBreg(step_size=0.05),
        solvers.PipelinedSweep(0.05),
    ],
    ids=name,
)
@pytest.mark.parametrize("problem", ["sparse code", "classes"])
def test_steps_and_running_means_are_those_of_a_loop_by_hand(solver, problem):
    if isinstance(solver, solvers.baselines.AdamW) and problem == "sparse code":
        problem = "relu"
    case, other = make(problem), make(problem)
    data = Augmented(case)
    result = lb.fit(case.problem, DataLoader(data, batch_size=5, shuffle=True), solver, epochs=2)
    sizes = (5, 5, 2)
    batches = in_batches(data.given, *sizes * 2)
    expected, objectives = by_hand(other, solver.planned(len(batches), 2), batches)
    assert_same(parameters(case), expected)
    for row, own in zip(result.history, (objectives[:3], objectives[3:]), strict=True):
        mean = sum(size * value for size, value in zip(sizes, own, strict=True)) / 12
        assert row["running_objective"] == pytest.approx(mean, rel=1e-12)
        assert "objective" not in row and "energy" not in row
        assert ("running_accuracy" in row) == (problem == "classes")


@pytest.mark.parametrize("solver", [SOLVER, solvers.GramSweep(), solvers.baselines.SGD(0.1)], ids=name)
def test_running_accuracy_counts_predictions_before_each_step(solver):
    case, other = make("classes"), make("classes")
    data = Augmented(case)
    result = lb.fit(case.problem, DataLoader(data, batch_size=5), solver, epochs=1)
    state, right = None, 0
    for X, Y in in_batches(data.given, 5, 5, 2):
        batch = solvers.Batch.whole(other.problem, X, Y)
        state = solver.init(other.problem, batch) if state is None else state
        right += int((other.problem.model(X).argmax(1) == Y).sum())
        state = solver.step(other.problem, state, batch)
    assert result.history[0]["running_accuracy"] == right / 12


def test_global_generators_are_put_back():
    def draws():
        return torch.rand(3).tolist(), np.random.random(3).tolist(), [random.random() for _ in range(3)]

    case = make("relu")
    found = []
    for train in (False, True):
        torch.manual_seed(7), np.random.seed(7), random.seed(7)
        if train:
            lb.fit(case.problem, DataLoader(Augmented(case), batch_size=5, shuffle=True), SOLVER, epochs=2)
        found.append(draws())
    assert found[0] == found[1]


def test_draws_are_a_function_of_the_seed():
    def given(seed):
        case = make("relu")
        data = Augmented(case, np.random.default_rng())
        torch.rand(len(found))  # whatever was drawn before
        lb.fit(case.problem, DataLoader(data, batch_size=5, shuffle=True), SOLVER, epochs=2, seed=seed)
        return torch.stack([x for x, _ in data.given])

    found = []
    for seed in (1, 1, 2):
        found.append(given(seed))
    assert torch.equal(found[0], found[1])
    assert not torch.equal(found[0], found[2])


def loaders(case, workers=0):
    """Streams of 3 batches an epoch, each with draws of its own."""
    generator = torch.Generator().manual_seed(torch.seed())
    weighted = WeightedRandomSampler(torch.arange(1.0, 13.0), 12, generator=generator)
    return {
        "shuffled": DataLoader(Augmented(case), batch_size=5, shuffle=True, num_workers=workers),
        "a generator of its own": DataLoader(
            Augmented(case, np.random.default_rng()), batch_size=5, shuffle=True, generator=generator
        ),
        "weighted": DataLoader(Augmented(case, random_state()), batch_size=5, sampler=weighted, drop_last=False),
        "iterable": DataLoader(Endings(case), batch_size=5),
        "a data set": Augmented(case),
        "anything": Anything(case),
    }


def random_state():
    return np.random.RandomState()


class Anything:
    """No loader of torch: draws when it is iterated over, and for each batch."""

    def __init__(self, case):
        self.case, self.random = case, random.Random()

    def __iter__(self):
        order = np.random.permutation(12)
        self.random.shuffle(order)
        for places in (order[:5], order[5:10], order[10:]):
            yield self.case.X[places] + torch.rand(1).double(), self.case.Y[places]


@pytest.mark.parametrize("kind", list(loaders(make("relu"))))
@pytest.mark.parametrize("cut", [2, 3, 4])
def test_a_run_that_is_cut_goes_on_bit_by_bit(kind, cut, tmp_path):
    size = {"batch_size": 5} if kind == "a data set" else {}
    whole, part = make("relu"), make("relu")
    expected = lb.fit(whole.problem, loaders(whole)[kind], SOLVER, epochs=3, validation=whole.data, **size)
    settings = {"epochs": 3, "validation": part.data, "out": tmp_path, **size}
    stopped = lb.fit(part.problem, loaders(part)[kind], SOLVER, callbacks=[StopAt(cut)], **settings)
    assert stopped.state.steps == cut
    torch.manual_seed(cut), np.random.seed(cut), random.seed(cut)
    resumed = lb.fit(
        scrambled(part).problem, loaders(part)[kind], SOLVER, callbacks=[StopAt()], resume=True, **settings
    )
    assert_same_end(part, resumed, whole, expected)


@pytest.mark.parametrize(
    "kind",
    ["kept", pytest.param("iterable", marks=pytest.mark.long), pytest.param("shuffled", marks=pytest.mark.long)],
)
def test_a_run_with_worker_processes_goes_on_bit_by_bit(kind, tmp_path):
    def loader(case):
        data = Endings(case) if kind == "iterable" else Augmented(case, np.random.default_rng())
        order = {} if kind == "iterable" else {"shuffle": True}
        return DataLoader(data, batch_size=4, num_workers=2, persistent_workers=kind == "kept", **order)

    whole, part = make("relu", samples=32), make("relu", samples=32)  # more batches than are read ahead
    expected = lb.fit(whole.problem, loader(whole), SOLVER, epochs=2)
    lb.fit(part.problem, loader(part), SOLVER, epochs=2, out=tmp_path, callbacks=[StopAt(10)])
    again = {"out": tmp_path, "resume": True, "callbacks": [StopAt()]}
    resumed = lb.fit(scrambled(part).problem, loader(part), SOLVER, epochs=2, **again)
    assert_same_end(part, resumed, whole, expected)
    assert not torch.equal(*(torch.tensor(list(row.values())) for row in expected.history))


class Stateful:
    """A loader that can be told where to go on; `reads` counts what it was asked for."""

    def __init__(self, case):
        self.case, self.reads, self._next, self._order, self._told = case, 0, 0, None, False

    def __len__(self):
        return 3

    def __iter__(self):
        if not self._told:
            self._next, self._order = 0, torch.randperm(12)
        self._told = False
        while self._next < 3:
            self.reads += 1
            places = self._order[4 * self._next : 4 * self._next + 4]
            self._next += 1
            yield self.case.X[places] + torch.randn(1, dtype=torch.float64), self.case.Y[places]

    def state_dict(self):
        return {"next": self._next, "order": self._order}

    def load_state_dict(self, entries):
        self._next, self._order, self._told = entries["next"], entries["order"], True


def test_a_loader_with_a_state_is_not_read_again(tmp_path):
    whole, part = make("relu"), make("relu")
    expected = lb.fit(whole.problem, Stateful(whole), SOLVER, epochs=2)
    lb.fit(part.problem, Stateful(part), SOLVER, epochs=2, out=tmp_path, callbacks=[StopAt(5)])
    loader = Stateful(part)
    again = {"out": tmp_path, "resume": True, "callbacks": [StopAt()]}
    resumed = lb.fit(scrambled(part).problem, loader, SOLVER, epochs=2, **again)
    assert_same_end(part, resumed, whole, expected)
    assert loader.reads == 2  # the first batch of all, which tells whether the data are the same, and the sixth


@pytest.mark.long
@pytest.mark.filterwarnings("ignore:'set_vital' is deprecated:UserWarning")  # torchdata 0.11 calls it
@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("cut", [2, 3, 5])
def test_torchdatas_stateful_loader_goes_on_bit_by_bit(workers, cut, tmp_path):
    torchdata = pytest.importorskip("torchdata.stateful_dataloader")

    def loader(case):
        data = Augmented(case)
        return torchdata.StatefulDataLoader(data, batch_size=5, shuffle=True, num_workers=workers), data

    whole, part = make("relu"), make("relu")
    expected = lb.fit(whole.problem, loader(whole)[0], SOLVER, epochs=3)
    lb.fit(part.problem, loader(part)[0], SOLVER, epochs=3, out=tmp_path, callbacks=[StopAt(cut)])
    again = {"out": tmp_path, "resume": True, "callbacks": [StopAt()]}
    own, data = loader(part)
    resumed = lb.fit(scrambled(part).problem, own, SOLVER, epochs=3, **again)
    assert_same_end(part, resumed, whole, expected)
    if workers == 0 and cut == 2:
        assert len(data.given) == 5 + 2 + 24  # the first batch of all, the third, and two epochs


def test_an_iterable_set_is_read_in_batches_of_the_given_size():
    case, other = make("relu"), make("relu")
    found = lb.fit(case.problem, Endings(case), SOLVER, epochs=2, batch_size=5)
    expected = lb.fit(other.problem, DataLoader(Endings(other), batch_size=5), SOLVER, epochs=2)
    assert_same_end(case, found, other, expected)
    assert found.state.steps == 6


def test_few_batches_are_in_memory_at_a_time():
    case, alive, most = make("relu", samples=60), weakref.WeakSet(), []

    def collate(samples):
        X, Y = (torch.stack(column) for column in zip(*samples, strict=True))
        alive.add(X.untyped_storage())
        return X, Y

    class Count(StopAt):
        def stepped(self, run):
            gc.collect()
            most.append(len(alive))

    loader = DataLoader(TensorDataset(*case.data), batch_size=3, collate_fn=collate)
    gc.freeze()  # a collection then looks at what is made from here on, and not at all that the suite holds
    try:
        lb.fit(case.problem, loader, solvers.GramSweep(), epochs=2, callbacks=[Count()], validation=loader)
    finally:
        gc.unfreeze()
    assert len(most) == 40 and max(most) <= 4  # the first of both streams, that of this step, and the one before


def test_samplers_of_the_users_own_give_the_order():
    orders = {
        "a batch sampler": {"batch_sampler": [[0, 1, 2], [3, 4]]},
        "part of the set": {"batch_sampler": BatchSampler(SequentialSampler(range(5)), 3, False)},
    }
    for order in orders.values():
        case, other = make("relu"), make("relu")
        lb.fit(case.problem, DataLoader(TensorDataset(*case.data), **order), SOLVER, epochs=2)
        batches = [(other.X[places], other.Y[places]) for places in (slice(0, 3), slice(3, 5))] * 2
        assert_same(parameters(case), by_hand(other, SOLVER, batches)[0])


def test_samplers_and_data_sets_are_told_the_epoch():
    class Told(Augmented):
        epochs = ()

        def set_epoch(self, epoch):
            self.epochs = (*self.epochs, epoch)

    case = make("relu")
    data = Told(case)
    lb.fit(case.problem, DataLoader(data, batch_size=6), SOLVER, epochs=3)
    assert data.epochs == (1, 2, 3)


def test_a_validation_stream_is_evaluated_in_pieces_with_the_same_draws_at_each_row():
    case, other = make("classes"), make("classes")
    frozen = solvers.baselines.SGD(1e-300)
    pairs = DataLoader(TensorDataset(*case.data), batch_size=5, shuffle=True)
    held = lb.fit(other.problem, other.data, frozen, epochs=3, validation=other.data)
    rows = lb.fit(case.problem, case.data, frozen, epochs=3, validation=pairs).history
    for row, expected in zip(rows, held.history, strict=True):
        assert row["validation"] == pytest.approx(expected["validation"], rel=1e-12)
        assert row["validation_accuracy"] == expected["validation_accuracy"]
    noisy = lb.fit(case.problem, case.data, frozen, epochs=3, validation=Augmented(case)).history
    assert noisy[0]["validation"] == noisy[1]["validation"] == noisy[2]["validation"] != rows[0]["validation"]


def test_evaluating_the_whole_stream_gives_the_objective_of_the_rows_parameters():
    case = make("sparse code")
    loader = DataLoader(TensorDataset(*case.data), batch_size=5, shuffle=True)
    result = lb.fit(case.problem, loader, SOLVER, epochs=2, evaluate_training=True)
    assert result.history[-1]["objective"] == pytest.approx(float(case.problem.objective(*case.data)), rel=1e-12)
    hidden = case.problem.forward_state(case.X)[1]
    assert result.history[-1]["sparsity"] == pytest.approx(float((hidden == 0).double().mean()), rel=1e-12)
    assert "running_objective" in result.history[-1]


def test_a_run_that_evaluates_the_whole_stream_goes_on_in_the_middle_after_a_last_row(tmp_path):
    class StopWithRow(StopAt):
        def stepped(self, run):
            if run.state.steps in self.steps:
                run.stop(Outcome.STOPPED, "The test asked for it.", record=True)

    whole, part = make("relu"), make("relu")
    for loader in (Stateful, lambda case: DataLoader(Augmented(case), batch_size=4, shuffle=True)):
        folder = tmp_path / str(loader)[1:9]
        whole, part = make("relu"), make("relu")
        lb.fit(whole.problem, loader(whole), SOLVER, epochs=2, evaluate_training=True)
        settings = {"epochs": 2, "evaluate_training": True, "out": folder}
        lb.fit(part.problem, loader(part), SOLVER, callbacks=[StopWithRow(2)], **settings)
        again = lb.fit(
            scrambled(part).problem, loader(part), SOLVER, callbacks=[StopWithRow()], resume=True, **settings
        )
        assert_same(parameters(part), parameters(whole))
        assert len(again.history) == 3


@dataclass(frozen=True)
class Exploding(solvers.Solver):
    """Has no metrics, and finite parameters, which are far too large after the second step."""

    minibatch: ClassVar[bool] = True

    def init(self, problem, batch):
        return solvers.SolverState()

    def step(self, problem, state, batch):
        state.steps += 1
        with torch.no_grad():
            for parameter in problem.model.parameters():
                parameter.mul_(1e300 if state.steps == 2 else 1.0)
        return state


def test_a_run_that_diverges_on_a_stream_ends_at_once_with_the_initial_parameters():
    case = make("smooth")
    before = parameters(case)
    data = Augmented(case)
    result = lb.fit(case.problem, DataLoader(data, batch_size=2), Exploding(), epochs=9)
    assert result.outcome is Outcome.DIVERGED and "objective of the batch is nan before step 3" in result.message
    assert_same(parameters(case), before)
    assert len(data.given) == 6  # not at the end of the epoch
    first = float(case.problem.objective(*in_batches(data.given[:2], 2)[0]))
    assert [row["epoch"] for row in result.history] == [0]
    assert result.history[0]["running_objective"] == pytest.approx(first, rel=1e-12)


def test_monitors_name_the_entries_that_a_stream_has():
    case = make("relu")
    loader = DataLoader(TensorDataset(*case.data), batch_size=5)
    stopper = lb.callbacks.EarlyStopping(patience=1, min_delta=1e9)
    assert lb.fit(case.problem, loader, SOLVER, epochs=9, callbacks=[stopper]).outcome is Outcome.STOPPED
    with pytest.raises(errors.SettingError, match=r"monitor is 'objective'.*running_objective"):
        lb.fit(case.problem, loader, SOLVER, epochs=1, callbacks=[lb.callbacks.EarlyStopping("objective")])


@pytest.mark.parametrize("solver", solver_cases(), ids=name)
def test_every_solver_takes_a_stream_or_says_before_reading_what_it_needs(solver):
    case = make("relu")
    data = Augmented(case)
    loader = DataLoader(data, batch_size=6)
    if solver.minibatch and not solver.indexed:
        assert lb.fit(case.problem, loader, solver, epochs=1).state.steps == 2
        return
    with pytest.raises(errors.CompatibilityError, match=r"requires .*missing: .*lb\.data\.gathered\(data\).*GramSweep"):
        lb.fit(case.problem, loader, solver, epochs=1)
    assert not data.given


def test_gathered_data_train_every_solver_as_tensors_do():
    case, other = make("relu"), make("relu")
    X, Y = lb.data.gathered(DataLoader(TensorDataset(*case.data), batch_size=5), torch.float64)
    assert torch.equal(X, case.X) and torch.equal(Y, case.Y)
    found = [lb.fit(c.problem, d, lb.ADMM(), epochs=2) for c, d in ((case, (X, Y)), (other, other.data))]
    assert_same(found[0].history, found[1].history)
    torch.rand(5)
    first, again = (lb.data.gathered(Augmented(case), torch.float32, seed=4) for _ in range(2))
    assert first[0].dtype == torch.float32 and torch.equal(first[0], again[0])
    (a, b), y = lb.data.gathered(TensorDataset(case.X, case.X[:, :2], torch.arange(12)), torch.float64)
    assert torch.equal(b, case.X[:, :2]) and y.dtype == torch.int64 and a.shape == (12, 5)


class Endless(IterableDataset):
    """Samples without end."""

    def __iter__(self):
        while True:
            yield torch.randn(5, dtype=torch.float64), torch.randn(3, dtype=torch.float64)


def test_epochs_of_a_stream_without_end_have_the_given_number_of_steps(tmp_path):
    whole, part = make("relu"), make("relu")
    settings = {"epochs": 3, "epoch_steps": 4, "batch_size": 2}
    expected = lb.fit(whole.problem, Endless(), SOLVER, **settings)
    assert [row["step"] for row in expected.history] == [4, 8, 12]
    assert len({row["running_objective"] for row in expected.history}) == 3
    lb.fit(part.problem, Endless(), SOLVER, **settings, out=tmp_path, callbacks=[StopAt(6)])
    again = {"out": tmp_path, "resume": True, "callbacks": [StopAt()]}
    with pytest.raises(errors.CheckpointError, match="batches = 4 and this run has 5"):
        lb.fit(part.problem, Endless(), SOLVER, epochs=3, epoch_steps=5, batch_size=2, **again)
    resumed = lb.fit(scrambled(part).problem, Endless(), SOLVER, **settings, **again)
    assert_same_end(part, resumed, whole, expected)


def test_a_schedule_that_ends_with_the_run_needs_a_length():
    case = make("relu")
    solver = solvers.baselines.SGD(solvers.CosineDecay(0.1))
    with pytest.raises(errors.SettingError, match=r"ends with the run.*give epoch_steps=, the data a length"):
        lb.fit(case.problem, DataLoader(Endings(case), batch_size=5), solver, epochs=2)
    known = DataLoader(TensorDataset(*case.data), batch_size=5)
    assert lb.fit(case.problem, known, solver, epochs=2).state.metrics["learning_rate"] < 0.01
    told = lb.fit(case.problem, DataLoader(Endings(case), batch_size=5), solver, epochs=2, epoch_steps=3)
    assert told.state.metrics["learning_rate"] == pytest.approx(0.05 * (1 + math.cos(math.pi * 5 / 6)), rel=1e-12)
    fixed = solvers.baselines.SGD(solvers.CosineDecay(0.1, steps=6))
    assert lb.fit(case.problem, DataLoader(Endings(case), batch_size=5), fixed, epochs=2).state.steps == 6
