"""What the benchmarks time and weigh: the same step in every form, every product, every byte."""

from __future__ import annotations

import _backprop
import pytest
import torch
from _memory import LiveBytes, peak_of_a_step
from _tasks import Task, solver_step
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode

import lifted_bregman as lb
from tests.benchmarks.small_tasks import AUTOENCODER, CLASSIFIER

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
