"""`lb.optim.Gram`: the numbers of the default solver from hooks, and what training loops do with an optimiser."""

from __future__ import annotations

import copy
import gc
import io
import math
import pickle

import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

import lifted_bregman as lb
from lifted_bregman import solvers
from lifted_bregman.errors import CompatibilityError, SettingError, UnsupportedModuleError
from lifted_bregman.solvers.gram import moves, rule
from lifted_bregman.solvers.gram.reference import Reference, ReferenceLayer

F64 = torch.float64
TIGHT = {"rtol": 1e-10, "atol": 1e-10}
BATCHES = [(0, 7), (7, 14), (3, 8), (14, 15), (8, 15)] * 3


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
    return values(model)


CASES = {
    "default": {},
    "with decay": {"epochs": 8},
    "the first layer wide": {"inputs": 8},
    "two wide layers, in blocks": {"inputs": 5, "signals": 4, "block": 3},
    "other settings": {"step_size": 0.7, "damping": 3.0, "weight_decay": 0.5, "epochs": 6},
}


@pytest.fixture(params=CASES)
def settings(request, monkeypatch):
    """Settings of the optimiser; those of the rule are set."""
    case = dict(CASES[request.param])
    monkeypatch.setattr(rule, "WIDEST_INPUTS", case.pop("inputs", 256))
    monkeypatch.setattr(rule, "WIDEST_SIGNALS", case.pop("signals", 128))
    monkeypatch.setattr(moves, "LARGEST_BLOCK", case.pop("block", 256))
    return case


@pytest.mark.parametrize("total", [40, None])
def test_lifted_backward_gives_the_numbers_of_fit(settings, total):
    """Over as many steps as have some that update no metric, and record nothing of narrow layers."""
    (X, Y), batches = data(), (BATCHES * 3)[:40]
    expected = by_solver(lb.GramSweep(total_steps=total, **settings), chain(), X, Y, batches)
    model = lb.lifted_backward(chain(), nudge=0.5)
    optimizer, start = lb.optim.Gram(model, total_steps=total, **settings), values(model)
    train(model, optimizer, X, Y, batches)
    for p, q, r in zip(values(model), expected, start, strict=True):
        torch.testing.assert_close(p, q, **TIGHT)
        assert float((p - r).abs().max()) > 1e-3
    assert optimizer.fallbacks == 0


def test_every_step_is_that_of_the_slow_reference(settings):
    (X, Y), model = data(), lb.lifted_backward(chain(), nudge=0.5)
    dense = [f for f in model if isinstance(f, nn.Linear)]
    theta = [torch.cat((f.weight, f.bias[:, None]), 1).detach().clone() for f in dense]
    sigma = (torch.relu, torch.tanh, lambda z: z)
    reference = Reference([ReferenceLayer(t, s) for t, s in zip(theta, sigma, strict=True)], 30, **settings)
    reference.inputs, reference.signals, reference.block = rule.WIDEST_INPUTS, rule.WIDEST_SIGNALS, moves.LARGEST_BLOCK
    optimizer = lb.optim.Gram(model, total_steps=30, **settings)
    for k in range(30):
        start, stop = BATCHES[k % 5]
        reference.step(X[start:stop], Y[start:stop])
        train(model, optimizer, X, Y, [(start, stop)])
        for f, layer in zip(dense, reference.layers, strict=True):
            torch.testing.assert_close(f.weight.detach(), layer.theta[:, :-1], **TIGHT)
            torch.testing.assert_close(f.bias.detach(), layer.theta[:, -1], **TIGHT)


@pytest.mark.parametrize("pooled", [False, True])
def test_convolutions_have_the_numbers_of_fit(pooled):
    def network():
        torch.manual_seed(2)
        pool = (nn.AvgPool2d(2),) if pooled else (nn.Conv2d(4, 3, 2, stride=2), nn.Softplus())
        wide = 16 if pooled else 12
        return nn.Sequential(
            nn.Conv2d(2, 4, 3, padding=1),
            nn.Tanh(),
            *pool,
            nn.Flatten(),
            nn.Linear(wide, 5),
            nn.ReLU(),
            nn.Linear(5, 3),
        ).double()

    X, Y = torch.randn(15, 2, 4, 4, dtype=F64, generator=torch.Generator().manual_seed(0)), next(iter([*data()][1:]))
    expected = by_solver(lb.GramSweep(total_steps=15), network(), X, Y)
    model = lb.lifted_backward(network())
    train(model, lb.optim.Gram(model, total_steps=15), X, Y)
    for p, q in zip(values(model), expected, strict=True):
        torch.testing.assert_close(p, q, **TIGHT)


def test_parameters_without_a_metric_train():
    """A tied embedding, normalisation and a layer that is called twice."""

    class Small(nn.Module):
        def __init__(self):
            super().__init__()
            self.table, self.other, self.norm = nn.Embedding(8, 6), nn.Embedding(8, 6, sparse=True), nn.LayerNorm(6)
            self.twice, self.head = nn.Linear(6, 6), nn.Linear(6, 8, bias=False)
            self.head.weight = self.table.weight

        def forward(self, index):
            h = self.norm((self.table(index) + self.other(index)).mean(1))
            return self.head(self.twice(torch.tanh(self.twice(h))))

    torch.manual_seed(0)
    model, index = Small(), torch.randint(0, 8, (40, 3))
    target, optimizer = index[:, 0], lb.optim.Gram(model, total_steps=80)
    names = {layer.name: layer.module for layer in optimizer._layers}
    assert names["table"] is None and "head" not in names  # which share one parameter
    losses = []
    for _ in range(80):
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(model(index), target)
        loss.backward()
        optimizer.step()
        losses.append(float(loss.detach()))
    assert losses[-1] < 0.3 * losses[0]


def test_a_layer_that_is_called_twice_moves_along_its_gradient():
    """In the first step M̂/√V̂ is g/|g|, but for a thousandth of the root mean square beside |g|."""

    class Twice(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = nn.Linear(3, 3, dtype=F64)

        def forward(self, x):
            return self.layer(torch.tanh(self.layer(x)))

    torch.manual_seed(0)
    model, x = Twice(), torch.randn(5, 3, dtype=F64)
    optimizer = lb.optim.Gram(model, total_steps=50, step_size=0.1)
    before = values(model)
    half_squares(model(x), x).backward()
    g = [p.grad.clone() for p in model.parameters()]
    optimizer.step()
    # c √(|Θ|/(50^¼ √n)) for one layer, in the first of 50 steps 1/2.5 of it; of a bias a tenth, with n = 1
    sizes = [max(float(p.square().mean().sqrt()), 0.1 / math.sqrt(n)) for p, n in zip(before, (3, 1), strict=True)]
    both = zip((0.4, 0.04), sizes, (3, 1), strict=True)
    rates = [s * 0.1 * math.sqrt(size / (50**0.25 * math.sqrt(n))) for s, size, n in both]
    for p, q, slope, rate in zip(before, values(model), g, rates, strict=True):
        expected = rate * slope / (slope.abs() + 1e-3 * slope.square().mean().sqrt())
        torch.testing.assert_close(p - q, expected, rtol=1e-9, atol=1e-12)


def test_the_layer_that_ends_last_is_the_output_layer_also_where_it_has_no_metric():
    """A hidden layer has a metric of its signals, and the output layer has none."""

    class Tied(nn.Module):
        def __init__(self):
            super().__init__()
            self.table, self.hidden, self.head = nn.Embedding(5, 4), nn.Linear(4, 4), nn.Linear(4, 5, bias=False)
            self.head.weight = self.table.weight

        def forward(self, index):
            return self.head(torch.relu(self.hidden(self.table(index))))

    torch.manual_seed(0)
    model, index = Tied(), torch.randint(0, 5, (12,))
    optimizer = lb.optim.Gram(model)
    nn.functional.cross_entropy(model(index), index).backward()
    optimizer.step()
    assert "signal_metric" in optimizer.state[model.hidden.weight]["layer weight bias"]
    (X, Y), model = data(), chain()
    optimizer = lb.optim.Gram(model)
    train(model, optimizer, X, Y, [(0, 7)])
    kept = ["signal_metric" in optimizer.state[model[place].weight]["layer weight bias"] for place in (0, 2, 4)]
    assert kept == [True, True, False]


# What a training loop does


@pytest.mark.parametrize("inputs", [128, 8])
@pytest.mark.parametrize("divided", [True, False])
def test_gradient_accumulation_is_the_whole_batch(inputs, divided, monkeypatch):
    monkeypatch.setattr(rule, "WIDEST_INPUTS", inputs)
    X, Y = data()
    whole, parts = chain(), chain()
    train(whole, lb.optim.Gram(whole), X, Y, [(0, 12)] * 20)
    optimizer = lb.optim.Gram(parts)
    for _ in range(20):
        optimizer.zero_grad()
        for rows in (slice(0, 6), slice(6, 12)):
            (half_squares(parts(X[rows]), Y[rows]) / (2 if divided else 1)).backward()
        optimizer.step()
    for p, q in zip(values(whole), values(parts), strict=True):
        torch.testing.assert_close(p, q, rtol=1e-8, atol=1e-8)


@pytest.mark.parametrize("inputs", [128, 8])
@pytest.mark.parametrize(
    "loss",
    [lambda z, y: 0.5 * (z - y).square().sum(), nn.functional.mse_loss, lambda z, y: 1000.0 * half_squares(z, y)],
    ids=["sum", "mean over outputs", "factor"],
)
def test_a_factor_of_the_loss_changes_nothing(loss, inputs, monkeypatch):
    """But for 1e-12 beside roots of second moments."""
    monkeypatch.setattr(rule, "WIDEST_INPUTS", inputs)
    X, Y = data()
    expected, model = chain(), chain()
    train(expected, lb.optim.Gram(expected), X, Y, BATCHES[:2] * 8)
    train(model, lb.optim.Gram(model), X, Y, BATCHES[:2] * 8, loss=loss)
    for p, q in zip(values(model), values(expected), strict=True):
        torch.testing.assert_close(p, q, rtol=1e-7, atol=1e-8)


def test_gradients_are_left_as_they_were():
    (X, Y), model = data(), chain()
    model.insert(1, nn.LayerNorm(7, dtype=F64))
    optimizer = lb.optim.Gram(model)
    half_squares(model(X), Y).backward()
    before = [p.grad.clone() for p in model.parameters()]
    optimizer.step()
    assert all(torch.equal(p.grad, g) for p, g in zip(model.parameters(), before, strict=True))


@pytest.mark.parametrize("dtype", [torch.float32, F64])
@pytest.mark.parametrize("inputs", [128, 8])
def test_a_resumed_run_has_the_same_bits(inputs, dtype, monkeypatch):
    monkeypatch.setattr(rule, "WIDEST_INPUTS", inputs)
    X, Y = (t.to(dtype) for t in data())
    batches = BATCHES * 3
    model = chain().to(dtype)
    optimizer = lb.optim.Gram(model, total_steps=45)
    train(model, optimizer, X, Y, batches[:29])
    stored = io.BytesIO()
    torch.save({"model": model.state_dict(), "optimizer": optimizer.state_dict()}, stored)
    train(model, optimizer, X, Y, batches[29:])
    stored.seek(0)
    loaded = torch.load(stored, weights_only=True)
    again = chain(seed=5).to(dtype)
    again.load_state_dict(loaded["model"])
    resumed = lb.optim.Gram(again, total_steps=45)
    resumed.load_state_dict(loaded["optimizer"])
    train(again, resumed, X, Y, batches[29:])
    assert all(torch.equal(p, q) for p, q in zip(values(again), values(model), strict=True))


def test_lr_is_a_factor_of_the_step_and_follows_a_scheduler():
    X, Y = data()
    moved = []
    for lr in (1.0, 0.25, 0.0):
        model = chain()
        start = values(model)
        train(model, lb.optim.Gram(model, lr=lr), X, Y, [(0, 7)])
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


def test_groups_have_a_weight_decay_of_their_own_and_may_be_added():
    """Where the loss has no gradient, decay is all that moves, once in eight steps."""
    (X, _), model = data(), chain()
    optimizer = lb.optim.Gram(model, model[0].parameters(), total_steps=40, weight_decay=0.25, epochs=4)
    optimizer.add_param_group({"params": model[2].parameters(), "weight_decay": 0.0})
    before = values(model)
    for _ in range(8):
        optimizer.zero_grad()
        (0.0 * model(X).sum()).backward()
        optimizer.step()
    factors = [1.0 - 8.0 * 2.0 * 0.5 * rule.schedule(8, 40) / 40, *[1.0] * 5]
    for p, q, factor in zip(before, values(model), factors, strict=True):
        torch.testing.assert_close(q, factor * p, rtol=1e-12, atol=1e-12)


def test_a_weight_that_is_frozen_later_and_trained_again():
    (X, Y), model = data(), chain()
    optimizer = lb.optim.Gram(model)
    for frozen in (False, True, False):
        model[2].weight.requires_grad_(not frozen)
        before = values(model)
        train(model, optimizer, X, Y, BATCHES[:3])
        changed = [not torch.equal(p, q) for p, q in zip(before, values(model), strict=True)]
        assert changed == [True, True, not frozen, True, True, True]


def test_a_closure_gives_the_same_step():
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


@pytest.mark.parametrize("reentrant", [False, True])
def test_activation_checkpointing_changes_nothing(reentrant):
    class Checkpointed(nn.Module):
        def __init__(self):
            super().__init__()
            self.layers = chain()

        def forward(self, x):
            return self.layers[2:](checkpoint(self.layers[:2], x, use_reentrant=reentrant))

    X, Y = data()
    X.requires_grad_(reentrant)  # which reentrant checkpointing asks for
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


def hooks(model):
    return [h for m in model.modules() for h in (*m._forward_hooks.values(), *m._forward_pre_hooks.values())]


def test_hooks_are_removed_with_the_optimizer():
    model = chain()
    for _ in range(3):
        optimizer = lb.optim.Gram(model)
    with pytest.raises(SettingError, match="lr is -1"):
        lb.optim.Gram(model, lr=-1.0)
    with pytest.raises(SettingError, match="params has 6 parameters"):
        lb.optim.Gram(model, chain().parameters())
    gc.collect()
    assert len(hooks(model)) == 5  # of the last one: before and after the forward pass, and one for each layer
    del optimizer
    gc.collect()
    assert hooks(model) == []
    lb.lift(model, loss=lb.SquaredError())


def test_a_model_with_an_optimizer_is_copied_and_pickled_with_hooks_that_do_nothing():
    (X, Y), model = data(), chain()
    optimizer = lb.optim.Gram(model)
    stored = io.BytesIO()
    torch.save(model, stored)
    stored.seek(0)
    copies = [copy.deepcopy(model), pickle.loads(pickle.dumps(model)), torch.load(stored, weights_only=False)]
    for other in copies:
        half_squares(other(X), Y).backward()
        assert not optimizer._recorder.records and optimizer._recorder._forward == 0
        expected, again = chain(), lb.optim.Gram(other)
        train(expected, lb.optim.Gram(expected), X, Y, BATCHES[:3])
        train(other, again, X, Y, BATCHES[:3])
        assert all(torch.equal(p, q) for p, q in zip(values(other), values(expected), strict=True))
        del again
        gc.collect()
        lb.lift(other, loss=lb.SquaredError())
    train(model, optimizer, X, Y, BATCHES[:1])  # the model itself still has its hooks
    assert optimizer.param_groups[0]["steps"] == 1


def test_lift_names_an_optimizer_that_is_still_there():
    model = chain()
    optimizer = lb.optim.Gram(model)
    with pytest.raises(UnsupportedModuleError, match=r"an lb.optim.Gram has hooks on it, .*: delete the optimiser"):
        lb.lift(model, loss=lb.SquaredError())
    lb.lift(copy.deepcopy(model), loss=lb.SquaredError())
    model[0].register_forward_hook(lambda module, args, output: None)
    del optimizer
    gc.collect()
    with pytest.raises(UnsupportedModuleError, match=r"it has forward hooks \(weight or spectral"):
        lb.lift(model, loss=lb.SquaredError())


@pytest.mark.parametrize("layers", [(0, 2, 4), (2,)], ids=["all", "one"])
def test_parametrised_layers_move_without_a_metric(layers):
    (X, Y), model = data(), chain()
    for place in layers:
        nn.utils.parametrizations.weight_norm(model[place])
    optimizer, start = lb.optim.Gram(model, total_steps=150), float(half_squares(model(X), Y).detach())
    train(model, optimizer, X, Y, BATCHES * 10)
    assert float(half_squares(model(X), Y).detach()) < 0.5 * start
    metrics = {name for state in optimizer.state.values() for name in state if name.startswith("layer")}
    assert bool(metrics) == (len(layers) == 1)


def test_a_step_that_updates_no_metric_records_wide_layers_only(monkeypatch):
    monkeypatch.setattr(rule, "WIDEST_INPUTS", 8)
    (X, Y), model = data(), chain()
    optimizer = lb.optim.Gram(model)
    recorded = []
    for _ in range(100):
        model(X)
        recorded.append(len(optimizer._recorder.records))
        train(model, optimizer, X, Y, [(0, 7)])
    # All three in every step at first, and then in every third step and in every tenth, which inverts
    assert recorded[:15] == [3] * 15
    assert set(recorded) == {1, 3} and recorded[-30:].count(3) in range(10, 14)


# Mistakes


def test_settings_out_of_range_are_refused_by_name():
    X, Y = data()
    model = chain()
    with pytest.raises(SettingError, match="lr is -1"):
        lb.optim.Gram(model, lr=-1.0)
    with pytest.raises(SettingError, match=r"total_steps is 0"):
        lb.optim.Gram(model, total_steps=0)
    with pytest.raises(CompatibilityError, match=r"0: its parameters are torch.bfloat16, in which no metric"):
        lb.optim.Gram(chain().bfloat16())
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


def test_a_step_beyond_the_last_is_told():
    (X, Y), model = data(), chain()
    optimizer = lb.optim.Gram(model, total_steps=3)
    train(model, optimizer, X, Y, BATCHES[:3])
    before = values(model)
    with pytest.warns(RuntimeWarning, match="this is step 4, and total_steps is 3: the rate has ended at 0"):
        train(model, optimizer, X, Y, BATCHES[:1])
    train(model, optimizer, X, Y, BATCHES[:1])  # once
    for p, q in zip(before, values(model), strict=True):
        torch.testing.assert_close(p, q, rtol=0, atol=1e-15)
