"""What a user may get wrong with a graph: one sentence before work starts, which says what, where and what to do."""

import pytest
import torch
from torch import nn
from torch.nn import functional as F

import lifted_bregman as lb
from lifted_bregman.errors import CompatibilityError, SettingError, TensorError, UnsupportedModuleError

X, Y = torch.randn(9, 3), torch.randn(9, 2)
IDS = torch.arange(27).view(9, 3) % 5


class Model(nn.Module):
    def __init__(self, function):
        super().__init__()
        self.function = function
        self.a, self.b, self.c = nn.Linear(3, 4), nn.Linear(4, 2), nn.Linear(4, 4)

    def forward(self, x):
        return self.function(self, x)


def words():
    return nn.Sequential(nn.Embedding(5, 4), nn.Linear(4, 4), nn.Tanh(), nn.Linear(4, 5))


def normed():
    return nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.ReLU(), nn.Linear(4, 2))


def fails(error, sentence, model, X=X, Y=Y, loss=None, **settings):
    """The error of `fit` or `lift`, in one sentence, with the model as it was."""
    before = {name: value.clone() for name, value in model.state_dict().items()}
    with pytest.raises(error, match=sentence) as found:
        problem = lb.lift(model, loss=loss or lb.SquaredError(), example=X[:2])
        lb.fit(problem, (X, Y), epochs=1, **settings)
    assert "\n" not in str(found.value) and str(found.value).endswith(".")
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())


def test_control_flow_that_depends_on_numbers():
    model = Model(lambda m, x: m.b(m.a(x)) if m.a(x).mean() > 0 else m.b(-m.a(x)))
    fails(UnsupportedModuleError, r"test_graph_mistakes.py:\d+.*control flow depends on the numbers in a tensor", model)


@pytest.mark.parametrize(("made", "kind"), [(lambda y: {"y": y}, "a dict"), (lambda y: (y, y), "a tuple")])
def test_an_output_that_is_no_tensor(made, kind):
    model = Model(lambda m, x: made(m.b(m.a(x).relu())))
    fails(UnsupportedModuleError, f"returns {kind} and not one tensor: return the tensor that the loss takes", model)


def test_an_activation_of_an_activation_names_both():
    model = Model(lambda m, x: m.b(m.a(x).relu().tanh()))
    fails(UnsupportedModuleError, r"at test_graph_mistakes.*tanh follows another activation, relu: put a map", model)
    chain = nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Tanh(), nn.Linear(4, 2))
    fails(UnsupportedModuleError, r"model\.2 \(Tanh\).*it follows another activation, model\.1: put a map", chain)


def test_two_activations_of_one_tensor_are_two_variables():
    """relu(h) and tanh(h) of one h: the energy at the forward pass is the model's loss."""

    def function(m, x):
        h = m.a(x)
        return m.b(h.relu() + h.tanh())

    model = Model(function)
    problem = lb.lift(model, loss=lb.SquaredError(), example=X[:2])
    expected = 0.5 * (model(X).detach() - Y).square().sum(1).mean()
    assert float(problem.energy(problem.forward_state(X), X, Y)) == pytest.approx(float(expected), rel=1e-5)


def test_a_variable_that_is_changed_in_place_and_read_afterwards():
    def function(m, x):
        h = m.a(x).relu()
        g = m.c(h)
        h.mul_(2.0)
        return m.b(h + g)

    fails(UnsupportedModuleError, r"changes a tensor in place that .* reads afterwards.*returns a new", Model(function))


@pytest.mark.parametrize("solver", [None, lb.baselines.AdamW()], ids=["default", "AdamW"])
def test_batch_normalisation_of_one_sample(solver):
    fails(SettingError, "there is one sample, and batch normalisation.*give at least two", normed(), X[:1], Y[:1])
    fails(SettingError, "batch_size is 1, and batch normalisation.*at least 2", normed(), batch_size=1, solver=solver)
    sentence = r"the last batch of an epoch has one sample \(9 samples, batch_size 4\).*drop_last=True"
    fails(SettingError, sentence, normed(), batch_size=4, solver=solver)


@pytest.mark.parametrize("bad", [5, -100])
def test_a_label_out_of_range_names_sample_and_position(bad):
    labels = IDS.clone()
    labels[4, 1] = bad
    sentence = f"the label of sample 4 at position 1 is {bad}; with 5 outputs, labels run from 0 to 4"
    fails(TensorError, sentence, words(), IDS, labels, lb.CrossEntropy())


@pytest.mark.parametrize("bad", [5, -1])
@pytest.mark.parametrize("function", [False, True], ids=["module", "function"])
def test_an_entry_that_the_embedding_does_not_have(bad, function):
    class Table(nn.Module):
        def __init__(self):
            super().__init__()
            self.table, self.out = nn.Parameter(torch.randn(5, 4)), nn.Linear(4, 5)

        def forward(self, ids):
            return self.out(F.embedding(ids, self.table).tanh())

    ids = IDS.clone()
    ids[3, 2] = bad
    model = Table() if function else words()
    problem = lb.lift(model, loss=lb.CrossEntropy(), example=IDS[:2])
    sentence = f"X holds {bad} in sample 3, and the embedding has the entries 0 to 4"
    with pytest.raises(TensorError, match=sentence):
        lb.fit(problem, (ids, IDS), epochs=1)


def test_real_numbers_for_an_embedding():
    problem = lb.lift(words(), loss=lb.CrossEntropy(), example=IDS[:2])
    with pytest.raises(TensorError, match=r"X is torch.float32 and the model looks up embeddings: use X.long\(\)"):
        lb.fit(problem, (IDS.float(), IDS), epochs=1)
    fails(UnsupportedModuleError, r"model\.0 \(Embedding\).*example=X\[:2\]\.long\(\)", words(), IDS.float(), IDS)


@pytest.mark.parametrize("before", [True, False])
def test_a_mode_that_changes_after_lift(before):
    """A forward method of two kinds, and dropout that was left out."""
    by_mode = Model(lambda m, x: m.b(m.a(x).relu() if m.training else m.a(x).tanh())).train(before)
    problem = lb.lift(by_mode, loss=lb.SquaredError(), example=X[:2])
    lb.fit(problem, (X, Y), epochs=1)
    by_mode.train(not before)
    with pytest.raises(CompatibilityError, match=r"in the mode in which it was lifted.*and lift it again"):
        lb.fit(problem, (X, Y), epochs=1)
    dropped = Model(lambda m, x: m.b(F.dropout(m.a(x).relu(), 0.5, training=m.training))).train(before)
    problem = lb.lift(dropped, loss=lb.SquaredError(), example=X[:2])
    dropped.train(not before)
    if before:
        lb.fit(problem, (X, Y), epochs=1)  # in evaluation mode dropout is the identity
    else:
        with pytest.raises(CompatibilityError, match=r"its dropout was left out.*model\.train\(\) before lift"):
            lb.fit(problem, (X, Y), epochs=1)
