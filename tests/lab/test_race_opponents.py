"""The opponents of the race do what torch does by hand: schedules, steps, and which parameter is whose."""

from __future__ import annotations

import math

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.optim.lr_scheduler import CosineAnnealingLR, LinearLR, SequentialLR

from lifted_bregman import lifted_backward
from lifted_bregman.errors import SettingError
from lifted_bregman.solvers import Batch
from lifted_bregman.solvers.batches import epoch_order
from lifted_bregman.solvers.evaluation import evaluate_network
from lifted_bregman.solvers.schedules import Constant
from lifted_bregman_lab.packages import missing_packages
from lifted_bregman_lab.race import networks
from lifted_bregman_lab.race.opponents import (
    OPPONENTS,
    QUICK,
    REFERENCE,
    Opponent,
    Trainer,
    choose_opponents,
    cosine,
    tuned_as,
    warm_up_steps,
)  # fmt: skip
from lifted_bregman_lab.race.problems import IMAGES, NUMBERS, PIXELS, PROBLEMS, RaceProblem, Task
from lifted_bregman_lab.race.running import left_out
from lifted_bregman_lab.race.runs import BackpropRun, refusal
from lifted_bregman_lab.race.samples import RaceSamples
from tests.lab.races import TINY, three_clouds


@pytest.mark.parametrize("steps", [100, 37, 3])
def test_the_schedule_is_torchs_linear_warm_up_and_cosine(steps: int) -> None:
    rising = max(1, math.ceil(0.05 * steps))
    assert warm_up_steps(steps) == rising
    optimiser = torch.optim.SGD([nn.Parameter(torch.zeros(1))], lr=1.0)
    first = LinearLR(optimiser, 1.0 / rising, total_iters=max(rising - 1, 1))
    second = CosineAnnealingLR(optimiser, T_max=steps - rising)
    schedule = SequentialLR(optimiser, [first, second], milestones=[rising])
    expected = []
    for _ in range(steps):
        expected.append(optimiser.param_groups[0]["lr"])
        optimiser.step()
        schedule.step()
    assert [cosine(steps).value(step) for step in range(steps)] == pytest.approx(expected, abs=1e-9)
    assert cosine(steps).value(steps) == 0.0


def test_adamw_takes_the_steps_that_torch_takes_by_hand() -> None:
    data = three_clouds()
    run = BackpropRun(TINY, data, epochs=3, seed=4, opponent=OPPONENTS["adamw"], rate=0.03)
    model = TINY.build(4, data)
    optimiser = torch.optim.AdamW(model.parameters(), lr=0.03, weight_decay=0.01)
    for step in range(12):
        epoch, place = divmod(step, 4)
        batch = epoch_order(60, 16, 4, epoch + 1)[place]
        optimiser.param_groups[0]["lr"] = 0.03 * cosine(12).value(step)
        optimiser.zero_grad()
        F.cross_entropy(model(data.X[batch]), data.Y[batch]).backward()
        optimiser.step()
    run.advance(12)
    assert run.steps == 12 and run.outcome == "FINISHED"
    for own, expected in zip(run.model.parameters(), model.parameters(), strict=True):
        torch.testing.assert_close(own, expected, rtol=1e-4, atol=1e-6)  # the fused kernel rounds otherwise


def test_muon_has_the_matrices_and_adamw_the_rest() -> None:
    model = networks.GPT(tokens=7, context=4, layers=1, heads=2, width=8)
    problem = TINY
    trainer = OPPONENTS["muon"].make(problem, model, 0.01, 10)  # type: ignore[misc]
    muon, adamw = trainer._optimisers
    assert isinstance(muon, torch.optim.Muon) and isinstance(adamw, torch.optim.AdamW)
    mine, others = ({id(p) for group in o.param_groups for p in group["params"]} for o in (muon, adamw))
    linear = {id(m.weight) for m in model.modules() if isinstance(m, nn.Linear)}
    assert not mine & others and mine | others == {id(p) for p in model.parameters()}
    assert mine == linear | {id(model.place)} and id(model.token.weight) in others


def test_an_average_is_judged_and_put_back() -> None:
    """What schedule-free offers: eval() and train() of the optimiser around an evaluation."""

    class Averaging(torch.optim.SGD):
        def eval(self) -> None:
            calls.append("eval")

        def train(self) -> None:
            calls.append("train")

    calls: list[str] = []
    model = TINY.build(0, three_clouds())
    trainer = Trainer(TINY, model, [Averaging(model.parameters(), 0.1)], Constant(1.0))
    with trainer.evaluating():
        assert not model.training
        calls.append("judged")
    assert calls == ["eval", "judged", "train"] and model.training


def test_lifted_signals_with_adamw_are_the_answers_of_lifted_backward() -> None:
    data = three_clouds()
    run = BackpropRun(TINY, data, 3, 4, OPPONENTS["lifted-adamw"], 0.03)
    plain = BackpropRun(TINY, data, 3, 4, OPPONENTS["adamw"], 0.03)
    model = lifted_backward(TINY.build(4, data))
    optimiser = torch.optim.AdamW(model.parameters(), lr=0.03, weight_decay=0.01, fused=True)
    for step in range(4):
        batch = epoch_order(60, 16, 4, 1)[step]
        optimiser.param_groups[0]["lr"] = 0.03 * cosine(12).value(step)
        optimiser.zero_grad()
        F.cross_entropy(model(data.X[batch]), data.Y[batch]).backward()
        optimiser.step()
    run.advance(4)
    plain.advance(4)
    assert all(map(torch.equal, run.model.parameters(), model.parameters()))
    assert not all(map(torch.equal, run.model.parameters(), plain.model.parameters()))
    assert refusal(PROBLEMS["mnist-1k"], RaceSamples(*[torch.zeros(2, 784)] * 4, 784), OPPONENTS["lifted-adamw"])


@pytest.mark.parametrize("name", ["schedule-free", "soap", "shampoo", "locoprop"])
def test_the_packages_of_others_train(name: str) -> None:
    opponent = OPPONENTS[name]
    if missing := missing_packages(opponent.needs):
        pytest.skip(f"{', '.join(missing)} is not installed")
    run = BackpropRun(TINY, three_clouds(), 20, 0, opponent, opponent.grid[-3])
    run.record()
    run.advance(run.steps)
    run.record()
    assert run.outcome == "FINISHED" and run.trace[-1][2] < 0.7 * run.trace[0][2]


def sparse(data: RaceSamples) -> nn.Module:
    return networks.sparse_autoencoder(4, 0.1)


@pytest.mark.parametrize(
    ("task", "penalty", "target"),
    [(TINY.task, 0.0, None), (NUMBERS, 0.0, "numbers"), (IMAGES, 0.3, "inputs"), (PIXELS, 0.0, "pixels")],
    ids=["classes", "numbers", "sparse code", "pixels"],
)
def test_opponents_have_the_loss_that_is_lifted(task: Task, penalty: float, target: str | None) -> None:
    """The library's objective at the forward pass is the loss of back-propagation, but for the entropy of pixels."""
    data = three_clouds()
    targets = {None: data.Y, "numbers": data.X[:, :3], "inputs": data.X, "pixels": torch.sigmoid(data.X[:, :3])}
    data = RaceSamples(data.X, targets[target], data.X_new, data.Y_new, 3)
    network = sparse if penalty else TINY.network
    problem = RaceProblem("t", "T", "tables", lambda folder: data, network, task, 10, 1, 1, code_penalty=penalty)
    model = problem.build(1, data)
    lifted = problem.lifted(model, data)
    found = evaluate_network(lifted, Batch.whole(lifted, data.X, data.Y), False)["objective"]
    p = data.Y
    entropy = -(p * p.log() + (1 - p) * (1 - p).log()).sum(1).mean().item() if target == "pixels" else 0.0
    assert problem.loss(model, data.X, data.Y).item() == pytest.approx(found + entropy, rel=1e-5)


def test_the_list_of_opponents() -> None:
    assert {"adamw", "sgd-momentum", "muon", "schedule-free", "soap", "shampoo", "locoprop", "adam"} <= set(OPPONENTS)
    for opponent in OPPONENTS.values():
        assert list(opponent.grid) == sorted(set(opponent.grid)) and all(rate > 0 for rate in opponent.grid)
        assert (opponent.make is None) == (opponent.name == "lifted")
        assert len(opponent.grid) >= 6 or (not opponent.grid and opponent.name in ("lifted", "lifted-adamw"))
        assert OPPONENTS[tuned_as(opponent.name)].grid or opponent.name == "lifted"
        assert ("constant" in opponent.title) == (opponent.name == "adam")
    assert not any(OPPONENTS[name].needs for name in QUICK) and REFERENCE in QUICK
    assert [one.name for one in choose_opponents(["muon", "adam"])] == ["muon", "adam"]
    with pytest.raises(SettingError, match=r"'adams'; did you mean 'adam'\?.*locoprop"):
        choose_opponents(["adams"])


def test_the_list_of_problems() -> None:
    tables = [problem for problem in PROBLEMS.values() if problem.group == "tables"]
    assert len(tables) == 12 and {p.task.error_name for p in tables} == {
        "fraction of wrong classes",
        "root mean squared error",
    }
    assert all(problem.short < problem.long for problem in PROBLEMS.values())
    present = {"fashion-1k", "mnist-1k", "fashion-10k", "mnist-classify", "fashion-classify", "deep-narrow"}
    assert present <= set(PROBLEMS)


def test_the_deep_autoencoder_has_the_layers_of_the_benchmark() -> None:
    def widths(repeats: int) -> list[int]:
        layers = [m for m in networks.deep_autoencoder(repeats) if isinstance(m, nn.Linear)]
        return [layers[0].in_features, *(layer.out_features for layer in layers)]

    assert widths(1) == [784, 1000, 500, 250, 30, 250, 500, 1000, 784]
    assert widths(8).count(500) == 16
    network = networks.deep_autoencoder()
    code = 7  # the fourth dense layer is followed by the fifth, without an activation
    assert [type(m) for m in list(network)[code - 1 : code + 1]] == [nn.Linear, nn.Linear]
    bound = math.sqrt(6 / (784 + 1000))
    assert 0.99 * bound < network[0].weight.abs().max().item() <= bound and not network[0].bias.any()


def test_lenet_has_the_parameters_of_the_original() -> None:
    """The count of LeCun's table for dense convolutions, 61,706, for pictures of one channel."""
    for channels, padding, size in ((1, 2, 28), (3, 0, 32)):
        model = networks.lenet(channels, 10, padding)
        assert sum(p.numel() for p in model.parameters()) == 61_706 + 150 * (channels - 1)
        assert model(torch.zeros(2, channels, size, size)).shape == (2, 10)


def test_the_deep_residual_network_has_128_layers_and_keeps_the_size_of_the_stream() -> None:
    torch.manual_seed(0)
    model = networks.residual_dense(784, 10)
    assert [type(m) for m in model] == [nn.Linear, *[networks._DenseResidual] * 64, nn.Linear]
    assert len([m for m in model.modules() if isinstance(m, nn.Linear)]) == 2 + 128
    x = torch.randn(500, 64)
    with torch.no_grad():
        growth = model[1:-1](x).square().mean() / x.square().mean()
    assert float(growth) == pytest.approx((1 + 1 / 64) ** 64, rel=0.1)  # each block adds 1/64, nearly uncorrelated


def test_locoprop_is_refused_where_layers_are_not_dense() -> None:
    data = RaceSamples(torch.zeros(4, 3, 32, 32), torch.zeros(4).long(), torch.zeros(1), torch.zeros(1), 10)
    reason = refusal(PROBLEMS["cifar-cnn"], data, OPPONENTS["locoprop"])
    assert reason is not None and "locoprop" in reason
    assert refusal(TINY, three_clouds(), OPPONENTS["locoprop"]) is None
    assert refusal(TINY, three_clouds(), OPPONENTS["lifted"]) is None


def test_a_network_that_cannot_be_lifted_is_refused_with_the_reason() -> None:
    def network(data: RaceSamples) -> nn.Module:
        return nn.Sequential(nn.Linear(4, 3), nn.Sigmoid())  # the loss of classes is that of softmax

    problem = RaceProblem("t", "T", "tables", three_clouds, network, TINY.task, 10, 1, 1)
    reason = refusal(problem, three_clouds(), OPPONENTS["lifted"])
    assert reason is not None and "Sigmoid" in reason


def test_missing_packages_are_named_as_pip_knows_them() -> None:
    needy = Opponent("needy", "T", needs=("no_such_module",))
    assert missing_packages(["torch", "no_such_module"]) == ("no-such-module",)
    assert left_out([TINY], [needy, OPPONENTS["adam"]]) == {"needy": "no-such-module"}
