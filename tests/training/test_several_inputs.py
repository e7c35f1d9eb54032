"""`fit` of models that take several tensors: forms of data, mistakes, resuming, and the same numbers as one tensor."""

import copy

import numpy as np
import pytest
import torch
from torch import nn
from torch.utils.data import TensorDataset

import lifted_bregman as lb
from lifted_bregman.errors import CheckpointError, TensorError
from lifted_bregman.graph import InputTensors
from lifted_bregman.problem import gradient_agreement
from lifted_bregman.solvers import Batch, baselines
from tests.graph.architectures import MODELS, drawn, first
from tests.training.runs import Pairs

F64 = torch.float64


def case(name="two inputs", samples=12):
    model, inputs = MODELS[name]()
    torch.manual_seed(5)
    X = drawn(inputs, samples)
    Y = torch.randn(samples, 2, dtype=F64)
    return lb.lift(model, loss=lb.SquaredError(), example=first(X, 2)), X, Y


def state_of(problem):
    return {name: value.clone() for name, value in problem.model.state_dict().items()}


def trained(data, **settings):
    problem, *_ = case()
    lb.fit(problem, data, epochs=2, batch_size=5, **settings)
    return state_of(problem)


def assert_equal(a, b):
    assert a.keys() == b.keys()
    for name in a:
        assert torch.equal(a[name], b[name]), name


def test_every_form_of_data_gives_the_same_run():
    _, (ids, facts), Y = case()
    expected = trained(((ids, facts), Y))
    arrays = (ids.numpy(), facts.numpy())
    samples = [((i, f), y) for i, f, y in zip(*arrays, Y.numpy(), strict=True)]
    forms = {
        "arrays": (arrays, Y.numpy()),
        "narrow whole numbers and another byte order": ([arrays[0].astype(np.int16), arrays[1].astype(">f8")], Y),
        "InputTensors": (InputTensors((ids, facts)), Y),
        "a TensorDataset of three": TensorDataset(ids, facts, Y),
        "a Dataset of ((a, b), y)": Pairs(samples),
    }
    for name, data in forms.items():
        problem, *_ = case()
        lb.fit(problem, data, epochs=2, batch_size=5)
        for key, value in state_of(problem).items():
            assert torch.equal(value, expected[key]), f"{name}: {key}"


class Pair(nn.Module):
    def __init__(self):
        super().__init__()
        self.a, self.b, self.out = nn.Linear(3, 4), nn.Linear(2, 4), nn.Linear(4, 2)

    def forward(self, left, right):
        return self.out(torch.tanh(self.a(left) + self.b(right).relu()))


class Joined(Pair):
    def forward(self, x):
        return super().forward(x[:, :3], x[:, 3:])


@pytest.mark.parametrize("solver", [baselines.SGD(0.05), baselines.AdamW(0.02)], ids=["SGD", "AdamW"])
def test_two_tensors_train_like_one_tensor_that_the_model_splits(solver):
    """The run on X = [A B], a tensor of five columns, is the oracle of the run on (A, B); weights included."""
    torch.manual_seed(2)
    one, two = Joined().double(), Pair().double()
    two.load_state_dict(one.state_dict())
    X, Y, w = torch.randn(20, 5, dtype=F64), torch.randn(20, 2, dtype=F64), torch.rand(20, dtype=F64) + 0.5
    parts = (X[:, :3].clone(), X[:, 3:].clone())
    settings = {"solver": solver, "epochs": 3, "batch_size": 6, "sample_weights": w}
    joined = lb.fit(lb.lift(one, loss=lb.SquaredError(), example=X[:2]), (X, Y), validation=(X, Y), **settings)
    split = lb.fit(
        lb.lift(two, loss=lb.SquaredError(), example=first(parts, 2)), (parts, Y), validation=(parts, Y), **settings
    )
    for a, b in zip(one.parameters(), two.parameters(), strict=True):
        torch.testing.assert_close(b, a, rtol=1e-12, atol=1e-12)
    for a, b in zip(joined.history, split.history, strict=True):
        assert b["objective"] == pytest.approx(a["objective"], rel=1e-12)
        assert b["validation"] == pytest.approx(a["validation"], rel=1e-12)


def test_batches_keep_the_rows_of_all_inputs_together():
    problem, (image, facts, counted), Y = case("three inputs")
    batch = Batch.whole(problem, (image, facts, counted), Y)
    places = torch.tensor([7, 2, 2, 11])
    for given, rows in ((batch.select(places), places), (batch.slice(3, 8), slice(3, 8))):
        assert len(given) == len(image[rows])
        for found, whole in zip((*given.X.tensors, given.Y), (image, facts, counted, Y), strict=True):
            assert torch.equal(found, whole[rows])


def test_diagnostics_take_a_tuple():
    problem, X, Y = case("three inputs")
    state = problem.forward_state(X)
    assert problem.consistency(state, X) == pytest.approx([0.0] * (problem.depth - 1), abs=1e-15)
    assert len(problem.linear_units(X)) == problem.depth - 1
    assert problem.certificates(state, X, Y).largest > 0.0
    found = gradient_agreement(problem, X, Y, weight=1e5)
    assert min(found.cosines) > 0.999  # the lifted gradient tends to the back-propagated one as λ grows
    shapes = problem.shapes(X)
    assert shapes[-1] == (2,) and len(shapes) == problem.depth


@pytest.mark.parametrize(
    "solver", [lb.GramSweep(total_steps=12, epochs=4), lb.ProximalGradient(), baselines.AdamW(0.01)], ids=repr
)
def test_a_resumed_run_is_the_undisturbed_one(tmp_path, solver):
    size = 5 if solver.minibatch else None  # of 12 samples: 3 batches
    problem, X, Y = case()
    lb.fit(problem, (X, Y), solver=solver, epochs=4, batch_size=size)
    half, *_ = case()
    lb.fit(half, (X, Y), solver=solver, epochs=2, batch_size=size, out=tmp_path / "run")
    rest, *_ = case()
    lb.fit(rest, (X, Y), solver=solver, epochs=4, batch_size=size, out=tmp_path / "run", resume=True)
    assert_equal(state_of(rest), state_of(problem))


@pytest.mark.parametrize("place", [0, 1])
def test_other_data_in_one_input_is_not_the_same_run(tmp_path, place):
    problem, X, Y = case()
    lb.fit(problem, (X, Y), epochs=1, out=tmp_path / "run")
    changed = [x.clone() for x in X]
    changed[place][3] = (changed[place][3] + 1) % 5
    with pytest.raises(CheckpointError, match="saved with data ="):
        lb.fit(problem, (tuple(changed), Y), epochs=2, out=tmp_path / "run", resume=True)


IDS, FACTS = torch.zeros(12, 4, dtype=torch.int64), torch.ones(12, 3, dtype=F64)


@pytest.mark.parametrize(
    ("X", "sentence"),
    [
        (IDS, r"X is a Tensor and the model takes 2 tensors: give a tuple \(ids, facts\)"),
        ((IDS,), r"X has 1 of the 2 tensors that the model takes, and facts is missing"),
        ((IDS, FACTS, FACTS), r"X has 3 tensors and the model takes 2: give a tuple \(ids, facts\)"),
        ((IDS, FACTS[:11]), r"differ in their number of samples \(ids has 12, facts has 11\)"),
        ((IDS.double(), FACTS), r"ids is torch.float64 and the model looks up embeddings by it: use ids.long\(\)"),
        ((IDS, FACTS.float()), r"facts is torch.float32 and the model's parameters are torch.float64"),
        ((IDS, FACTS * float("nan")), r"facts holds NaN or infinity, first in sample 0"),
        ((IDS, FACTS[:, :2]), r"facts has samples of shape \(2,\), so that model.facts"),
        ((IDS, "words"), r"facts of data holds strings such as 'words'"),
        ((IDS, None), r"facts of data is a NoneType"),
    ],
    ids=["one tensor", "missing", "too many", "samples", "float ids", "dtype", "NaN", "shape", "a string", "None"],
)
def test_a_mistake_in_one_input_is_named(X, sentence):
    problem, _, Y = case()
    before = state_of(problem)
    with pytest.raises(TensorError, match=sentence) as found:
        lb.fit(problem, (X, Y), epochs=1)
    assert "\n" not in str(found.value)
    assert_equal(state_of(problem), before)
    if not isinstance(X, tuple) or all(isinstance(x, torch.Tensor) for x in X):
        with pytest.raises(TensorError, match=sentence):
            problem.objective(X, Y)


def test_a_mask_must_be_bool_and_whole_numbers_whole():
    problem, (image, facts, counted), Y = case("three inputs")
    with pytest.raises(TensorError, match=r"counted is torch.float64 and was bool in lift's example: use counted"):
        problem.objective((image, facts, counted.double()), Y)


def test_one_input_refuses_a_tuple_and_another_number_of_parts_names_the_form():
    model = nn.Linear(3, 2).double()
    problem = lb.lift(model, loss=lb.SquaredError())
    with pytest.raises(TensorError, match="X is a tuple of 2 tensors and the model takes one"):
        problem.objective((FACTS, FACTS), torch.zeros(12, 2, dtype=F64))
    with pytest.raises(TensorError, match="X is a tuple of 2 tensors and the model takes one"):
        lb.fit(problem, ((FACTS, FACTS), torch.zeros(12, 2, dtype=F64)), epochs=1)
    several, (ids, facts), Y = case()
    with pytest.raises(TensorError, match=r"data has 3 parts; expected \(\(ids, facts\), Y\)"):
        lb.fit(several, (ids, facts, Y), epochs=1)


def test_whole_numbers_for_embeddings_may_be_arrays_and_data_sets():
    """A model of one input that looks up embeddings: the same run from a tensor, an array and a data set."""
    torch.manual_seed(4)
    start = nn.Sequential(nn.Embedding(6, 3), nn.Flatten(), nn.Tanh(), nn.Linear(6, 2)).double()
    ids, Y = torch.randint(0, 6, (10, 2)), torch.randn(10, 2, dtype=F64)
    found = []
    expected = 0.5 * (start(ids).detach() - Y).square().sum(1).mean()
    read = lb.lift(copy.deepcopy(start), loss=lb.SquaredError())  # without an example
    assert float(read.objective(ids, Y)) == pytest.approx(float(expected), 1e-12)
    with pytest.raises(TensorError, match=r"X is torch.float64 and the model looks up embeddings: use X.long\(\)"):
        read.objective(ids.double(), Y)
    forms = [(ids, Y), (ids.numpy().astype(np.uint8), Y.numpy()), TensorDataset(ids, Y)]
    for data in forms:
        model = copy.deepcopy(start)
        lb.fit(lb.lift(model, loss=lb.SquaredError(), example=ids[:2]), data, epochs=2, batch_size=10)
        found.append(model.state_dict())
    for other in found[1:]:
        assert_equal(dict(other), dict(found[0]))
