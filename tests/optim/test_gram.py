"""`lb.optim.Gram`: the numbers of the default solver from hooks, and what training loops do with an optimiser."""

from __future__ import annotations

import copy
import io
import math

import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

import lifted_bregman as lb
from lifted_bregman import solvers
from lifted_bregman.errors import CompatibilityError, SettingError
from lifted_bregman.solvers.gram.move import embedding_move, weight_move
from lifted_bregman.solvers.gram.rows import Rows
from lifted_bregman.solvers.gram.signal import lifted_signal, limit_nudge, sample_norms

F64 = torch.float64
TIGHT = {"rtol": 1e-10, "atol": 1e-10}
BATCHES = [(0, 7), (7, 14), (3, 8), (14, 15), (8, 15)] * 3


class Lifted(torch.autograd.Function):
    """σ(z) whose backward pass is the lifted signal, for a loss that is a mean over the batch."""

    @staticmethod
    def forward(ctx, z, activation, nudge):
        ctx.save_for_backward(z)
        ctx.settings = activation, nudge
        return activation(z)

    @staticmethod
    def backward(ctx, gradient):
        (z,), (activation, nudge) = ctx.saved_tensors, ctx.settings
        g = gradient * len(z)
        nudges = limit_nudge(sample_norms(z), g, nudge)
        return lifted_signal(activation, activation, -1, z, g, nudges).E / len(z), None, None


class LiftedModule(nn.Module):
    def __init__(self, activation, nudge):
        super().__init__()
        self.settings = activation, nudge

    def forward(self, z):
        return Lifted.apply(z, *self.settings)


def chain(seed=0):
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(9, 7), nn.ReLU(), nn.Linear(7, 4), nn.Tanh(), nn.Linear(4, 3)).double()


def data(seed=1):
    generator = torch.Generator().manual_seed(seed)
    return (torch.randn(15, n, dtype=F64, generator=generator) for n in (9, 3))


def half_squares(output, target):
    return 0.5 * (output - target).square().sum(1).mean()


def train(model, optimizer, X, Y, batches=BATCHES, loss=half_squares):
    for start, stop in batches:
        optimizer.zero_grad()
        loss(model(X[start:stop]), Y[start:stop]).backward()
        optimizer.step()


def values(model):
    return [p.detach().clone() for p in model.parameters()]


def by_solver(solver, model, X, Y, batches=BATCHES):
    """The parameters after the same steps of the library's own loop."""
    problem = lb.lift(model, loss=lb.SquaredError())
    batch = solvers.Batch.whole(problem, X, Y)
    state = solver.init(problem, batch)
    for start, stop in batches:
        state = solver.step(problem, state, batch.slice(start, stop))
    return values(model), state


SETTINGS = [
    {},
    {"block": 3, "damping": 0.4, "average": 0.6, "power": 0.5},
    {"average": 0.0, "step_size": 0.02, "narrow_damping": 0.3},
    {"damping": math.inf, "trust": 0.02},
]


@pytest.mark.parametrize("settings", SETTINGS, ids=str)
def test_lifted_signals_give_the_numbers_of_the_default_solver(settings):
    X, Y = data()
    expected, state = by_solver(lb.GramSweep(**settings), chain(), X, Y)
    model = chain()
    model[1], model[3] = LiftedModule(lb.activations.ReLU(), 0.25), LiftedModule(lb.activations.Tanh(), 0.25)
    optimizer = lb.optim.Gram(model, **settings)
    start = values(model)
    train(model, optimizer, X, Y)
    for p, q, r in zip(values(model), expected, start, strict=True):
        torch.testing.assert_close(p, q, **TIGHT)
        assert float((p - r).abs().max()) > 1e-3
    assert float(optimizer.param_groups[0]["distance"]) == pytest.approx(float(state.distance), rel=1e-9)
    assert optimizer.fallbacks == 0


@pytest.mark.parametrize("settings", SETTINGS, ids=str)
def test_lifted_backward_gives_the_numbers_of_fit(settings):
    X, Y = data()
    expected, _ = by_solver(lb.GramSweep(**settings), chain(), X, Y)
    model = lb.lifted_backward(chain(), nudge=0.5)
    train(model, lb.optim.Gram(model, **settings), X, Y)
    for p, q in zip(values(model), expected, strict=True):
        torch.testing.assert_close(p, q, **TIGHT)


def test_convolutions_and_plain_autograd():
    """A small nudge of the solver gives back-propagated signals: the same moves up to the order of ν."""

    def network():
        torch.manual_seed(2)
        modules = nn.Conv2d(2, 4, 3, padding=1), nn.Tanh(), nn.Conv2d(4, 3, 2, stride=2), nn.Tanh(), nn.Flatten()
        return nn.Sequential(*modules, nn.Linear(12, 3)).double()

    X, Y = torch.randn(15, 2, 4, 4, dtype=F64, generator=torch.Generator().manual_seed(0)), next(iter([*data()][1:]))
    expected, _ = by_solver(lb.GramSweep(nudge=1e-6, step_size=0.02), network(), X, Y)
    model = network()
    train(model, lb.optim.Gram(model, step_size=0.02), X, Y)
    for p, q in zip(values(model), expected, strict=True):
        torch.testing.assert_close(p, q, rtol=0, atol=1e-6)


def test_an_embedding_is_a_dense_layer_with_unit_vectors_as_rows():
    generator = torch.Generator().manual_seed(0)
    index, E = torch.randint(0, 6, (11,), generator=generator), torch.randn(11, 4, dtype=F64, generator=generator)
    A = nn.functional.one_hot(index, 7).double()
    dense = weight_move(Rows.of(A, bias=False), E, 0.7)
    move = embedding_move(A.T @ E / 11, A.sum(0), 11, 0.7)
    torch.testing.assert_close(move.delta, dense.delta.T, **TIGHT)
    # A length for each entry: the change of the outputs is that of the entries that were looked up.
    f = torch.rand(7, dtype=F64, generator=generator)
    change = A @ (f[:, None] * move.delta)
    size = float((f.square() * move.change["unit"]).sum().sqrt())
    assert size == pytest.approx(float(change.square().mean().sqrt()), rel=1e-12)


def test_embeddings_norms_and_shared_weights_train():
    """A tied embedding, normalisation and a layer that is called twice: parameters without a rule of their own."""

    class Small(nn.Module):
        def __init__(self):
            super().__init__()
            self.table, self.other, self.norm = nn.Embedding(8, 6), nn.Embedding(8, 6), nn.LayerNorm(6)
            self.twice, self.head = nn.Linear(6, 6), nn.Linear(6, 8, bias=False)
            self.head.weight = self.table.weight

        def forward(self, index):
            h = self.norm((self.table(index) + self.other(index)).mean(1))
            return self.head(self.twice(torch.tanh(self.twice(h))))

    torch.manual_seed(0)
    model, index = Small(), torch.randint(0, 8, (40, 3))
    target, optimizer = index[:, 0], lb.optim.Gram(model)
    names = {layer.name: layer.module for layer in optimizer._layers}
    assert names["table"] is None and "head" not in names  # which share one parameter
    losses = []
    for _ in range(60):
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(model(index), target)
        loss.backward()
        optimizer.step()
        losses.append(float(loss.detach()))
    assert losses[-1] < 0.3 * losses[0]


def test_a_layer_that_is_called_twice_moves_along_its_gradient():
    """Unit by unit: the first step is r_0/√n times the gradient over its root mean square, of each row."""

    class Twice(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = nn.Linear(3, 3, dtype=F64)

        def forward(self, x):
            return self.layer(torch.tanh(self.layer(x)))

    torch.manual_seed(0)
    model, x = Twice(), torch.randn(5, 3, dtype=F64)
    optimizer = lb.optim.Gram(model, step_size=1e-3, average=0.0, trust=1e6)
    before = model.layer.weight.detach().clone()
    half_squares(model(x), x).backward()
    g = model.layer.weight.grad.clone()
    optimizer.step()
    expected = 1e-3 / math.sqrt(3.0) * g / g.square().mean(1, keepdim=True).sqrt()
    torch.testing.assert_close(before - model.layer.weight.detach(), expected, rtol=1e-9, atol=1e-12)


# What a training loop does


def test_gradient_accumulation_is_the_whole_batch():
    X, Y = data()
    whole, parts = chain(), chain()
    train(whole, lb.optim.Gram(whole, block=3), X, Y, [(0, 12)] * 4)
    optimizer = lb.optim.Gram(parts, block=3, loss_scale=0.5)
    for _ in range(4):
        optimizer.zero_grad()
        for rows in (slice(0, 6), slice(6, 12)):
            (half_squares(parts(X[rows]), Y[rows]) / 2).backward()
        optimizer.step()
    for p, q in zip(values(whole), values(parts), strict=True):
        torch.testing.assert_close(p, q, **TIGHT)


@pytest.mark.parametrize(
    ("settings", "loss"),
    [
        ({"reduction": "sum"}, lambda z, y: 0.5 * (z - y).square().sum()),
        ({"terms_per_sample": 3}, lambda z, y: 1.5 * (z - y).square().mean() / 3.0),
        ({"loss_scale": 8.0}, lambda z, y: 8.0 * half_squares(z, y)),
        ({"loss_scale": lambda: 8.0}, lambda z, y: 8.0 * half_squares(z, y)),
    ],
    ids=["sum", "terms", "number", "function"],
)
def test_how_a_loss_is_reduced_is_undone(settings, loss):
    X, Y = data()
    expected, model = chain(), chain()
    train(expected, lb.optim.Gram(expected), X, Y)
    if "terms_per_sample" in settings:
        loss = lambda z, y: 0.5 * (z - y).square().mean()  # noqa: E731
    train(model, lb.optim.Gram(model, **settings), X, Y, loss=loss)
    for p, q in zip(values(model), values(expected), strict=True):
        torch.testing.assert_close(p, q, **TIGHT)


def test_a_resumed_run_has_the_same_bits():
    X, Y = data()
    model = chain()
    optimizer = lb.optim.Gram(model, block=3)
    train(model, optimizer, X, Y, BATCHES[:6])
    stored = io.BytesIO()
    torch.save({"model": model.state_dict(), "optimizer": optimizer.state_dict()}, stored)
    train(model, optimizer, X, Y, BATCHES[6:])
    stored.seek(0)
    loaded = torch.load(stored, weights_only=True)
    again = chain(seed=5)
    again.load_state_dict(loaded["model"])
    resumed = lb.optim.Gram(again, block=3)
    resumed.load_state_dict(loaded["optimizer"])
    train(again, resumed, X, Y, BATCHES[6:])
    assert all(torch.equal(p, q) for p, q in zip(values(again), values(model), strict=True))


def test_lr_is_a_factor_of_the_step_and_follows_a_scheduler():
    X, Y = data()
    moved = []
    for lr in (1.0, 0.25, 0.0):
        model = chain()
        start = values(model)
        train(model, lb.optim.Gram(model, lr=lr, average=0.0), X, Y, [(0, 7)])
        moved.append([q - p for p, q in zip(start, values(model), strict=True)])
    for whole, part, nothing in zip(*moved, strict=True):
        torch.testing.assert_close(part, 0.25 * whole, **TIGHT)
        assert not nothing.any()
    model = chain()
    optimizer = lb.optim.Gram(model)
    scheduler = torch.optim.lr_scheduler.LinearLR(optimizer, 1.0, 0.0, total_iters=2)
    for expected in (1.0, 0.5, 0.0):
        assert optimizer.param_groups[0]["lr"] == pytest.approx(expected)
        train(model, optimizer, X, Y, [(0, 7)])
        scheduler.step()


def test_parameter_groups_and_frozen_parameters():
    X, Y = data()
    model = chain()
    model[2].weight.requires_grad_(False)
    groups = [{"params": model[0].parameters(), "lr": 0.0}, {"params": [model[2].bias, *model[4].parameters()]}]
    before = values(model)
    train(model, lb.optim.Gram(model, groups), X, Y)
    changed = [not torch.equal(p, q) for p, q in zip(before, values(model), strict=True)]
    assert changed == [False, False, False, True, True, True]


def test_closures():
    X, Y = data()
    expected, model = chain(), chain()
    train(expected, lb.optim.Gram(expected), X, Y, [(0, 7)] * 3)
    optimizer = lb.optim.Gram(model)

    def closure():
        optimizer.zero_grad()
        loss = half_squares(model(X[:7]), Y[:7])
        loss.backward()
        return loss

    losses = [float(optimizer.step(closure).detach()) for _ in range(3)]
    assert losses[-1] < losses[0]
    assert all(torch.equal(p, q) for p, q in zip(values(model), values(expected), strict=True))


def test_zero_grad_forgets_and_evaluation_is_not_recorded():
    """What was recorded before zero_grad, in evaluation mode or under no_grad takes no part in the step."""
    X, Y = data()
    expected, model = chain(), chain()
    train(expected, lb.optim.Gram(expected), X, Y, [(0, 7)])
    optimizer = lb.optim.Gram(model)
    half_squares(model(X[7:]), Y[7:]).backward()
    with torch.no_grad():
        model(X)
    model.eval()(X)
    model.train()
    output = model(X[:7])
    optimizer.zero_grad()
    half_squares(output, Y[:7]).backward()
    optimizer.step()
    assert all(torch.equal(p, q) for p, q in zip(values(model), values(expected), strict=True))
    assert not any(optimizer._recorder.records.values())  # nothing is kept after a step


@pytest.mark.parametrize("known", [True, False], ids=["scaler given", "scaler found"])
@pytest.mark.parametrize("unscale", [True, False])
def test_a_grad_scaler_changes_nothing_and_skips_infinities(known, unscale):
    X, Y = (t.float() for t in data())
    expected, model = chain().float(), chain().float()
    for net in (expected, model):
        net.insert(1, nn.LayerNorm(7))  # which moves along p.grad
    train(expected, lb.optim.Gram(expected), X, Y, [(0, 8)] * 3)
    scaler = torch.amp.GradScaler("cpu", init_scale=1024.0, growth_interval=1)
    optimizer = lb.optim.Gram(model, **({"loss_scale": scaler} if known else {}))

    def step(factor=1.0):
        optimizer.zero_grad()
        scaler.scale(factor * half_squares(model(X[:8]), Y[:8])).backward()
        if unscale:
            scaler.unscale_(optimizer)
        scaler.step(optimizer)
        scaler.update()

    if unscale and not known:
        with pytest.raises(SettingError, match="give loss_scale=scaler"):
            step()
        return
    for _ in range(3):
        step()
    for p, q in zip(values(model), values(expected), strict=True):
        torch.testing.assert_close(p, q, rtol=1e-5, atol=1e-6)
    before = values(model)
    step(math.inf)
    assert all(torch.equal(p, q) for p, q in zip(values(model), before, strict=True))
    assert optimizer.param_groups[0]["steps"] == 3 and not any(optimizer._recorder.records.values())


def test_activation_checkpointing_changes_nothing():
    class Checkpointed(nn.Module):
        def __init__(self):
            super().__init__()
            self.layers = chain()

        def forward(self, x):
            return self.layers[2:](checkpoint(self.layers[:2], x, use_reentrant=False))

    X, Y = data()
    expected, model = chain(), Checkpointed()
    train(expected, lb.optim.Gram(expected), X, Y)
    train(model, lb.optim.Gram(model), X, Y)
    assert all(torch.equal(p, q) for p, q in zip(values(model), values(expected), strict=True))


def test_autocast_computes_systems_in_float32():
    X, Y = (t.float() for t in data())
    expected, model = chain().float(), chain().float()
    train(expected, lb.optim.Gram(expected), X, Y)
    optimizer = lb.optim.Gram(model)
    for start, stop in BATCHES:
        optimizer.zero_grad()
        with torch.autocast("cpu", torch.bfloat16):
            output = model(X[start:stop])
        half_squares(output.float(), Y[start:stop]).backward()
        with torch.autocast("cpu", torch.bfloat16):
            optimizer.step()
    for p, q in zip(values(model), values(expected), strict=True):
        assert p.dtype == torch.float32
        torch.testing.assert_close(p, q, rtol=0.05, atol=0.05)


@pytest.mark.long
@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor:UserWarning")  # by torch.compile itself
def test_compiled_models():
    """The same numbers, whether Gram or the first compiled call was there first."""
    X, Y = data()
    expected, model, late = chain(), chain(), chain()
    train(expected, lb.optim.Gram(expected), X, Y, BATCHES[:3])
    optimizer = lb.optim.Gram(model)
    train(torch.compile(model, backend="aot_eager"), optimizer, X, Y, BATCHES[:3])
    for p, q in zip(values(model), values(expected), strict=True):
        torch.testing.assert_close(p, q, **TIGHT)
    compiled = torch.compile(late, backend="aot_eager")
    compiled(X[:7])
    train(compiled, lb.optim.Gram(late), X, Y, BATCHES[:3])
    for p, q in zip(values(late), values(expected), strict=True):
        torch.testing.assert_close(p, q, **TIGHT)


def test_an_optimizer_that_is_dropped_records_nothing():
    model = chain()
    optimizer = lb.optim.Gram(model)
    recorder = optimizer._recorder
    del optimizer
    X, _ = data()
    model(X)
    calls = sum(map(len, recorder.records.values()))
    del recorder
    model(X)  # without an error
    assert calls == 3


# Mistakes


def test_mistakes_are_sentences():
    X, Y = data()
    model = chain()
    with pytest.raises(SettingError, match="reduction is 'none'; it must be 'mean' or 'sum'"):
        lb.optim.Gram(model, reduction="none")
    with pytest.raises(SettingError, match="lr is -1"):
        lb.optim.Gram(model, lr=-1.0)
    with pytest.raises(SettingError, match=r"average is 1\.0"):
        lb.optim.Gram(model, average=1.0)
    with pytest.raises(CompatibilityError, match="Sequential has no parameters that are trained"):
        lb.optim.Gram(copy.deepcopy(model).requires_grad_(False))
    with pytest.raises(SettingError, match="params has 6 parameters that Sequential does not have"):
        lb.optim.Gram(model, chain().parameters())
    with pytest.raises(SettingError, match="0: its parameters are in different parameter groups"):
        lb.optim.Gram(model, [{"params": [model[0].weight]}, {"params": [model[0].bias]}])
    optimizer = lb.optim.Gram(model)
    with pytest.raises(CompatibilityError, match=r"step\(\) was called before loss.backward\(\)"):
        optimizer.step()
    model.eval()
    half_squares(model(X), Y).backward()
    with pytest.raises(CompatibilityError, match=r"0: it has a gradient, but Gram's hooks saw no call of it"):
        optimizer.step()
