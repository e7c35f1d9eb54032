"""`fit`: every form of data is the same run, rows mean what they say, and the same seed gives the same bits."""

from __future__ import annotations

import itertools
import json
import math

import numpy as np
import pytest
import torch
from torch import nn
from torch.utils.data import Dataset, TensorDataset

import lifted_bregman as lb
from lifted_bregman import errors, solvers
from lifted_bregman.solvers import Outcome
from lifted_bregman.solvers.finite import flat_metrics
from tests import fresh
from tests.cases import name, solver_cases
from tests.solvers.problems import make
from tests.training.runs import Pairs, assert_same, case_in, parameters, train

SOLVER = solvers.ImplicitSGD(prox_weight=5.0, inner_steps=2)


def data_forms(case):
    X, Y = case.data
    pairs = TensorDataset(X, Y)
    return {
        "tensors": (X, Y),
        "list": [X, Y],
        "arrays": (X.numpy(), Y.numpy()),
        "Dataset": pairs,
        "Dataset of arrays": [(x, y) for x, y in zip(X.numpy(), Y.numpy(), strict=True)],
        "read-only arrays": (read_only(X.numpy()), read_only(Y.numpy())),
        "big-endian arrays": (X.numpy().astype(">f8"), Y.numpy().astype(Y.numpy().dtype.newbyteorder(">"))),
        "arrays backwards": (X.numpy()[::-1].copy()[::-1], Y.numpy()[::-1].copy()[::-1]),
        "masked arrays without a mask": (np.ma.masked_array(X.numpy()), np.ma.masked_array(Y.numpy())),
        "Dataset of odd arrays": [
            (x[::-1].copy()[::-1], read_only(y.astype(y.dtype.newbyteorder(">"))))
            for x, y in zip(X.numpy(), Y.numpy(), strict=True)
        ],
        "Dataset with X and y": Attributes(X, Y),
    }


def read_only(array):
    array = np.array(array)
    array.setflags(write=False)
    return array


class Attributes(Dataset):
    """A set that keeps raw numbers as X and y, and gives others."""

    def __init__(self, X, Y):
        self.pairs, self.X, self.y = (X, Y), 255.0 * X, Y

    def __len__(self):
        return len(self.y)

    def __getitem__(self, index):
        return self.pairs[0][index], self.pairs[1][index]


@pytest.mark.parametrize("problem", ["relu", "classes"])
@pytest.mark.parametrize("form", list(data_forms(make("relu"))))
def test_every_form_of_data_is_the_same_run(form, problem):
    expected_case, case = make(problem), make(problem)
    expected = solvers.run(expected_case.problem, expected_case.data, SOLVER, epochs=3, batch_size=5, seed=3)
    data = data_forms(case)[form]
    data, streamed = Pairs(data) if form.startswith("Dataset of") else data, form.startswith("Dataset")
    result = lb.fit(case.problem, data, SOLVER, epochs=3, batch_size=5, seed=3, evaluate_training=streamed)
    assert_same(parameters(case), parameters(expected_case))
    if streamed:  # whose rows are those of another test
        objectives = [[row["objective"] for row in rows] for rows in (result.history, expected.history)]
        assert objectives[0] == pytest.approx(objectives[1], rel=1e-12)
        return
    rows = [{key: value for key, value in row.items() if key != "accuracy"} for row in result.history]
    assert_same(rows, expected.history)


def test_float64_arrays_become_the_models_precision_and_wrong_tensors_are_refused():
    case = case_in(torch.float32)
    lb.fit(case.problem, (case.X.double().numpy(), case.Y.double().numpy()), SOLVER, epochs=1)
    with pytest.raises(errors.TensorError, match="float64"):
        lb.fit(case.problem, (case.X.double(), case.Y), SOLVER, epochs=1)


def digits_network(*widths: int) -> lb.LiftedProblem:
    torch.manual_seed(0)
    modules = [module for a, b in itertools.pairwise(widths) for module in (nn.Linear(a, b), nn.ReLU())]
    return lb.lift(nn.Sequential(*modules[:-1]), loss=lb.SquaredError())


def test_a_set_by_name_is_its_training_images_and_labels():
    digits = lb.data.load("digits-200")
    by_name, by_hand, by_samples = (digits_network(64, 9, 10) for _ in range(3))
    named = lb.fit(by_name, "digits-200", SOLVER, epochs=1, validation=digits.test)
    lb.fit(by_hand, (digits.train.X, digits.train.y), SOLVER, epochs=1)
    lb.fit(by_samples, digits.train, SOLVER, epochs=1)
    assert_same(list(by_name.model.parameters()), list(by_hand.model.parameters()))
    assert_same(list(by_samples.model.parameters()), list(by_hand.model.parameters()))
    assert "validation_accuracy" in named.history[-1] and len(digits.train.X) == 200


@pytest.mark.parametrize(("widths", "words"), [((64, 9, 64), "autoencoder"), ((64, 9, 7), "10 classes")])
def test_a_set_by_name_for_a_model_with_other_outputs_is_refused(widths, words):
    with pytest.raises(errors.DataError, match=words):
        lb.fit(digits_network(*widths), "digits", SOLVER, epochs=1)


def test_whole_numbers_may_be_numpys():
    plain, numpys = make("relu"), make("relu")
    lb.fit(plain.problem, plain.data, SOLVER, epochs=2, batch_size=5, seed=3, record_every=1)
    one = np.int64(1)
    lb.fit(numpys.problem, numpys.data, SOLVER, epochs=2 * one, batch_size=5 * one, seed=3 * one, record_every=one)
    assert_same(parameters(plain), parameters(numpys))


def test_callbacks_may_be_given_as_they_come():
    case = make("relu")
    stopping = lb.callbacks.EarlyStopping(patience=1, min_delta=1e9)
    result = lb.fit(case.problem, case.data, SOLVER, epochs=5, callbacks=iter([stopping]))
    assert result.outcome is Outcome.STOPPED


@pytest.mark.parametrize("penalty", [lb.penalties.NonNegative(), lb.penalties.Bounds(-0.2, 0.3)])
@pytest.mark.parametrize("solver", [None, SOLVER, lb.ProximalGradient(), lb.AdaBreg(step_size=0.01)], ids=name)
def test_a_constraint_on_variables_is_no_divergence(solver, penalty):
    """It holds for the variables; the network's own outputs need not satisfy it, and are not charged for that."""
    case = make("smooth")
    model, X, Y = case.problem.model, *case.data
    problem = lb.lift(model, loss=case.problem.loss, penalties={1: penalty})
    free = lb.lift(model, loss=case.problem.loss)
    result = lb.fit(problem, (X, Y), solver, epochs=3)
    assert result.outcome is Outcome.FINISHED
    assert result.history[-1]["objective"] == float(problem.objective(X, Y)) == float(free.objective(X, Y))
    assert all(math.isfinite(row[name]) for row in result.history for name in row)
    if result.state.variables is not None:
        assert float(penalty.value(result.state.variables[1]).max()) == 0.0
    outside = problem.forward_state(X)
    assert float(penalty.value(outside[1]).max()) == math.inf == float(problem.energy(outside, X, Y))


def test_rows_are_what_the_network_and_the_problem_are_worth():
    """The oracle of each entry is the model itself, or the problem's own checked methods, at the end of the run."""
    case = make("classes", samples=40)
    X_val, y_val = case.X[:9] + 0.1, case.Y[:9]
    result = lb.fit(case.problem, case.data, SOLVER, epochs=3, batch_size=7, validation=(X_val, y_val))
    row, model = result.history[-1], case.problem.model
    assert (row["epoch"], row["step"]) == (3, 18)
    with torch.no_grad():
        loss, right = nn.functional.cross_entropy(model(case.X), case.Y), model(case.X).argmax(1) == case.Y
        assert row["objective"] == pytest.approx(float(loss), rel=1e-12)
        assert row["accuracy"] == pytest.approx(float(right.double().mean()))
        assert row["validation"] == pytest.approx(float(nn.functional.cross_entropy(model(X_val), y_val)), rel=1e-12)
        assert row["validation_accuracy"] == pytest.approx(float((model(X_val).argmax(1) == y_val).double().mean()))
    assert row["energy"] == pytest.approx(row["energy_1"] + row["energy_2"], rel=1e-12)
    assert row["forward_maps"] == case.problem.work.forward_maps
    with torch.no_grad():
        hidden = model[:2](case.X)
    assert row["sparsity"] == float((hidden == 0).double().mean())


def test_a_fit_counts_its_own_work_and_no_earlier():
    """A step of SGD has L forward maps and L parameter gradients; 12 samples are 3 batches of at most 5."""
    case = make("relu")
    for epochs in (2, 1):
        case.problem.energy(case.problem.forward_state(case.X), *case.data)
        row = lb.fit(case.problem, case.data, lb.baselines.SGD(0.01), epochs=epochs, batch_size=5).history[-1]
        assert row["forward_maps"] == row["parameter_gradients"] == 3 * 3 * epochs
        assert case.problem.work.as_dict().items() <= row.items()


def test_the_energy_is_that_of_the_solvers_own_variables():
    case = make("sparse code")
    row = lb.fit(case.problem, case.data, solvers.ProximalGradient(), epochs=4).history[-1]
    state = solvers.run(again := make("sparse code").problem, case.data, solvers.ProximalGradient(), epochs=4).state
    parts = again.layer_energies(state.variables, *case.data)
    assert [row[f"energy_{l}"] for l in (1, 2, 3)] == pytest.approx(parts.tolist(), rel=1e-12)
    adam = make("sparse code")
    row = lb.fit(adam.problem, adam.data, lb.baselines.Adam(learning_rate=0.01), epochs=2, batch_size=5).history[-1]
    assert row["energy"] == pytest.approx(row["objective"], rel=1e-12)  # at the forward pass both are the same
    with torch.no_grad():
        codes = adam.problem.model[:2](adam.X)
    assert row["sparsity"] == float((codes == 0).double().mean())


@pytest.mark.parametrize("size", [None, 12, 50])
def test_a_batch_of_the_whole_set_is_paired_with_its_own_variables(size):
    """The energy and the certificate of a row are those of the state that the run ends with."""
    case = make("relu")
    result = lb.fit(case.problem, case.data, SOLVER, epochs=3, batch_size=size, tolerance=1e-12)
    variables, row = result.state.variables, result.history[-1]
    assert row["energy"] == pytest.approx(float(case.problem.energy(variables, *case.data)), rel=1e-12)
    assert row["certificate"] == pytest.approx(case.problem.certificates(variables, *case.data).largest, rel=1e-12)


def test_the_sparsity_is_that_of_the_middle_layer():
    """An autoencoder of four layers has its code in x_2; its neighbours have other fractions of zeros."""
    torch.manual_seed(0)
    widths, thresholds = (5, 9, 8, 7, 5), (0.1, 0.4, 0.2)
    modules = [
        module
        for a, b, t in zip(widths, widths[1:], thresholds, strict=False)
        for module in (nn.Linear(a, b), nn.Softshrink(t))
    ]
    model = nn.Sequential(*modules, nn.Linear(7, 5)).double()
    X = torch.randn(30, 5, dtype=torch.float64)
    row = lb.fit(lb.lift(model, loss=lb.SquaredError()), (X, X), solvers.ProximalGradient(), epochs=2).history[-1]
    with torch.no_grad():
        zeros = [float((model[:end](X) == 0).double().mean()) for end in (2, 4, 6)]
    assert len(set(zeros)) == 3 and row["sparsity"] == zeros[1]


@pytest.mark.parametrize("solver", solver_cases(), ids=name)
def test_no_metric_of_a_solver_hides_an_entry_of_the_row(solver):
    case = make("relu")
    result = lb.fit(case.problem, case.data, solver, epochs=1, batch_size=5 if solver.minibatch else None)
    own = {"step", "epoch", "seconds", "objective", "sparsity", "energy", *case.problem.work.as_dict()}
    assert not own & set(flat_metrics(result.state.metrics)) and own <= set(result.history[-1])


def test_large_sets_are_evaluated_in_pieces_with_the_same_value():
    case = make("sparse code", samples=9001)
    result = lb.fit(case.problem, case.data, lb.baselines.SGD(learning_rate=0.01), epochs=1, batch_size=3000)
    assert result.history[-1]["objective"] == pytest.approx(float(case.problem.objective(*case.data)), rel=1e-12)


def test_weights_of_two_are_samples_twice():
    """ProximalGradient on weighted samples is ProximalGradient on the set in which they occur that often."""
    weighted, doubled = make("smooth"), make("smooth")
    w = torch.tensor([1.0, 2.0, 3.0] * 4, dtype=torch.float64)
    places = torch.repeat_interleave(torch.arange(12), w.long())
    solver = solvers.ProximalGradient(step_rule=solvers.FixedStep(parameter=0.1, variable=0.1))
    one = lb.fit(weighted.problem, weighted.data, solver, epochs=20, sample_weights=w.numpy())
    two = lb.fit(doubled.problem, (doubled.X[places], doubled.Y[places]), solver, epochs=20)
    for p, q in zip(weighted.problem.model.parameters(), doubled.problem.model.parameters(), strict=True):
        torch.testing.assert_close(p, q, rtol=1e-10, atol=1e-12)
    for name_of in ("objective", "energy"):
        assert one.history[-1][name_of] == pytest.approx(two.history[-1][name_of], rel=1e-10)


def test_a_weighted_run_converges_to_the_weighted_solution():
    """The certificate is that of the weighted energy; the oracle is weighted least squares."""
    torch.manual_seed(0)
    problem = lb.lift(nn.Sequential(nn.Linear(3, 2)).double(), loss=lb.SquaredError())
    X, Y = torch.randn(20, 3, dtype=torch.float64), torch.randn(20, 2, dtype=torch.float64)
    w = 0.1 + 3.0 * np.random.default_rng(0).random(20)
    result = lb.fit(problem, (X, Y), solvers.ProximalGradient(), epochs=5000, tolerance=1e-8, sample_weights=w)
    assert result.outcome is Outcome.CONVERGED
    root = np.sqrt(w)[:, None]
    solution = np.linalg.lstsq(root * np.c_[X.numpy(), np.ones(20)], root * Y.numpy(), rcond=None)[0]
    np.testing.assert_allclose(problem.model[0].weight.detach().numpy(), solution[:3].T, atol=1e-6)


def test_no_solver_named_trains():
    case = make("classes", samples=40)
    result = lb.fit(case.problem, case.data, epochs=60, batch_size=5)
    assert result.outcome is Outcome.FINISHED
    assert result.history[-1]["objective"] < 0.9 * result.history[0]["objective"]


def test_tolerance_ends_a_converged_run():
    torch.manual_seed(0)
    problem = lb.lift(nn.Sequential(nn.Linear(3, 2)).double(), loss=lb.SquaredError())
    X, Y = torch.randn(20, 3, dtype=torch.float64), torch.randn(20, 2, dtype=torch.float64)
    result = lb.fit(problem, (X, Y), solvers.ProximalGradient(), epochs=5000, tolerance=1e-8)
    assert result.outcome is Outcome.CONVERGED and "certificate" in result.message
    A = np.c_[X.numpy(), np.ones(20)]
    solution = np.linalg.lstsq(A, Y.numpy(), rcond=None)[0]
    np.testing.assert_allclose(problem.model[0].weight.detach().numpy(), solution[:3].T, atol=1e-6)


@pytest.mark.parametrize("solver", solver_cases(), ids=name)
def test_the_same_seed_gives_the_same_bits(solver):
    """Five times, for every solver; another seed gives other bits where the order matters."""
    ends = []
    for _ in range(5):
        case = make("relu")
        lb.fit(case.problem, case.data, solver, epochs=2, batch_size=5 if solver.minibatch else None, seed=7)
        ends.append(parameters(case))
    for end in ends[1:]:
        assert_same(end, ends[0])
    if solver.minibatch:
        case = make("relu")
        lb.fit(case.problem, case.data, solver, epochs=2, batch_size=5, seed=8)
        assert any(not torch.equal(p, q) for p, q in zip(parameters(case), ends[0], strict=True))


def test_the_same_bits_in_another_process():
    script = (
        "import hashlib, torch, lifted_bregman as lb\n"
        "from tests.solvers.problems import make\n"
        "case = make('smooth')\n"
        "lb.fit(case.problem, case.data, epochs=3, batch_size=5, seed=2)\n"
        "print(hashlib.sha256(b''.join(p.detach().numpy().tobytes() for p in case.problem.model.parameters()))"
        ".hexdigest())\n"
    )
    runs = [fresh.run(script) for _ in "ab"]
    assert runs[0].stdout == runs[1].stdout != ""


def test_the_folder_of_a_run(tmp_path):
    case = make("classes")
    result = train(case, SOLVER, 3, tmp_path / "deep" / "run")
    folder = lb.training.RunFolder(tmp_path / "deep" / "run")
    rows = [json.loads(line) for line in (folder.path / "history.jsonl").read_text().splitlines()]
    assert_same(rows, result.history)
    ending = json.loads((folder.path / "result.json").read_text())
    assert ending["outcome"] == "FINISHED" and ending["epochs"] == 3 and ending["steps"] == 9
    fresh = make("classes")
    fresh.problem.model.load_state_dict(folder.model_parameters())
    assert_same(parameters(fresh), parameters(case))
    content = bytearray((folder.path / "model.safetensors").read_bytes())
    content[-1] ^= 1
    (folder.path / "model.safetensors").write_bytes(content)
    with pytest.raises(errors.CheckpointError, match="damaged"):
        folder.model_parameters()


def test_rows_are_on_disk_as_soon_as_they_are_there(tmp_path):
    class Reader(lb.callbacks.Callback):
        def __init__(self):
            self.seen = []

        def stepped(self, run):
            self.seen.append((run.epoch, len(lb.training.RunFolder(tmp_path / "run").history())))

    reader = Reader()
    train(make("relu"), SOLVER, 3, tmp_path / "run", reader)
    assert reader.seen == [(epoch, epoch - 1) for epoch in (1, 2, 3) for _ in range(3)]


def test_two_processes_do_not_share_a_folder(tmp_path):
    class Other(lb.callbacks.Callback):
        def stepped(self, run):
            script = (
                "import lifted_bregman as lb; from tests.solvers.problems import make; case = make('relu')\n"
                f"lb.fit(case.problem, case.data, epochs=1, out={str(tmp_path / 'run')!r}, resume=True)"
            )
            self.run = fresh.run(script, check=False)
            run.stop(Outcome.STOPPED, "Seen.")

    other = Other()
    train(make("relu"), SOLVER, 1, tmp_path / "run", other)
    assert other.run.returncode == 1 and "another process is training" in other.run.stderr


def test_seconds_are_those_of_steps(tmp_path):
    case = make("relu")
    history = train(case, SOLVER, 4, tmp_path / "run").history
    seconds = [row["seconds"] for row in history]
    assert 0.0 < seconds[0] and seconds == sorted(set(seconds))
    assert math.isfinite(seconds[-1])


def test_the_validation_objective_is_the_mean_by_the_weights_of_its_samples():
    case = case_in(torch.float64)
    X, Y = case.X[:5].flip(1), case.Y[:5]
    weights = torch.tensor([0.5, 1.0, 2.0, 4.0, 0.25], dtype=torch.float64)
    still = lb.baselines.SGD(1e-30)
    result = lb.fit(case.problem, case.data, still, epochs=1, validation=(X, Y), validation_weights=weights)
    losses = torch.stack([case.problem.objective(X[i : i + 1], Y[i : i + 1]) for i in range(5)])
    assert result.history[-1]["validation"] == pytest.approx(float(weights @ losses / weights.sum()), rel=1e-12)
    with pytest.raises(errors.SettingError, match=r"validation_weights .* without validation"):
        lb.fit(case.problem, case.data, still, epochs=1, validation_weights=weights)
    with pytest.raises(errors.TensorError, match="validation: "):
        lb.fit(case.problem, case.data, still, epochs=1, validation=(X, Y), validation_weights=weights[:4])


def scaled_run(X, model=None, **settings):
    """One epoch on 40 samples of 3 features."""
    model = nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 1)).double() if model is None else model
    Y = torch.zeros(len(X), 1, dtype=torch.float64)
    return lb.fit(lb.lift(model, loss=lb.SquaredError()), (X, Y), epochs=1, **settings)


def standardised():
    return torch.randn(40, 3, dtype=torch.float64, generator=torch.Generator().manual_seed(0))


@pytest.mark.parametrize(
    ("scale", "offset", "words"),
    [
        ((1.0, 1.0, 1.0), (1e4, 1e4, 1e4), r"its root mean square is 1e\+04\. .*give \(X - mean\) / deviation"),
        ((2e3, 2e3, 2e3), (0.0, 0.0, 0.0), "its root mean square is [12]"),
        ((1.0, 1.0, 1.0), (0.0, 0.0, -150.0), "feature 2 is between -15[0-9.]+ and -14"),
        ((1e-3, 1e-3, 1e-3), (0.0, 1.0, 0.0), "feature 1 is between 0.99[0-9]+ and 1.00"),
    ],
    ids=["far away", "large", "one feature far away", "one small feature far away"],
)
def test_features_that_are_far_from_standardised_are_warned_of(scale, offset, words):
    X = standardised() * torch.tensor(scale, dtype=torch.float64) + torch.tensor(offset, dtype=torch.float64)
    with pytest.warns(RuntimeWarning, match="X is far from standardised: " + words) as caught:
        scaled_run(X)
    assert len(caught) == 1 and caught[0].filename == __file__


@pytest.mark.filterwarnings("error")
def test_other_features_are_not_warned_of():
    X = standardised()
    scaled_run(X + 3.0)
    scaled_run(torch.full_like(X, 500.0))  # constant
    scaled_run(torch.randint(0, 256, X.shape, generator=torch.Generator().manual_seed(0)).double())  # raw pixels
    pixel = X.clone()
    pixel[:, 1] = -0.13 + 1e-3 * X[:, 1]  # of an image that was centred by one number
    scaled_run(pixel)
    rare = torch.ones_like(X)
    rare[3, 1] = 0.0
    scaled_run(rare)
    scaled_run(X[:3] + 150.0)  # too few rows to tell
    far = 1e4 + X
    scaled_run(far, nn.Sequential(nn.BatchNorm1d(3), nn.Linear(3, 1)).double())
    words = nn.Sequential(nn.Embedding(90_000, 2), nn.Flatten(), nn.Linear(6, 1)).double()
    scaled_run(torch.arange(80_000, 80_120).reshape(40, 3), words)
    stream = TensorDataset(far, torch.zeros(40, 1, dtype=torch.float64))
    model = nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 1)).double()
    lb.fit(lb.lift(model, loss=lb.SquaredError()), stream, epochs=1)
