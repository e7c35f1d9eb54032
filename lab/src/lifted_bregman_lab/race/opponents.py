"""The opponents of the race: torch's optimisers and others', each with a grid of rates and a schedule; and ours."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from lifted_bregman import lifted_backward
from lifted_bregman.solvers.schedules import Constant, CosineDecay, Schedule
from lifted_bregman_lab.packages import load_package
from lifted_bregman_lab.race.problems import RaceProblem, choose

REFERENCE = "adamw"
"""Sets the targets, and its time is the unit of all times."""
OURS = "lifted"
WARM_UP = 0.05
"""The fraction of the steps in which a rate grows to its full value."""


def warm_up_steps(steps: int) -> int:
    """The number of warm-up steps, at least one."""
    return max(1, math.ceil(WARM_UP * steps))


def cosine(steps: int) -> Schedule:
    """The fraction of the rate at each of so many steps: linear over the warm-up, then half a cosine to 0."""
    return CosineDecay(1.0, min(warm_up_steps(steps), steps - 1), steps)


class Trainer:
    """Trains a network by back-propagation with optimisers of torch's kind.

    Args:
        problem: gives the loss.
        model: is trained in place.
        optimisers: share the network's parameters among themselves.
        schedule: what their rates are multiplied by.
    """

    def __init__(self, problem: RaceProblem, model: nn.Module, optimisers: Sequence[Any], schedule: Schedule) -> None:
        self._problem, self._model, self._optimisers = problem, model, optimisers
        self._schedule, self._step = schedule, 0
        self._groups = [(group, group["lr"]) for optimiser in optimisers for group in optimiser.param_groups]

    def step(self, X: Tensor, Y: Tensor) -> float:
        """One step on a batch; the loss before it."""
        for group, rate in self._groups:
            group["lr"] = rate * self._schedule.value(self._step)
        self._step += 1
        return self._move(X, Y)

    def _move(self, X: Tensor, Y: Tensor) -> float:
        for optimiser in self._optimisers:
            optimiser.zero_grad()
        loss = self._problem.loss(self._model, X, Y)
        loss.backward()
        for optimiser in self._optimisers:
            optimiser.step()
        return float(loss.detach())

    @contextmanager
    def evaluating(self) -> Iterator[None]:
        """The network has the parameters to be judged by, such as an average, and is in eval mode."""
        averaging = [optimiser for optimiser in self._optimisers if hasattr(optimiser, "eval")]
        for optimiser in averaging:
            optimiser.eval()
        self._model.eval()
        try:
            yield
        finally:
            self._model.train()
            for optimiser in averaging:
                optimiser.train()


class LocoPropTrainer(Trainer):
    """LocoProp with the matching losses of the activations, on dense layers, by its Python package.

    Each layer's target is σ(z) - γ ∂L/∂z; RMSProp takes five steps towards it on the layer's own matching loss.
    """

    def __init__(self, problem: RaceProblem, model: nn.Sequential, rate: float, steps: int) -> None:
        package = load_package("locoprop")
        final = problem.task.bregman().activation.as_module()
        modules = [module for module in model if not isinstance(module, nn.Flatten)]
        layers = []
        for place, module in enumerate(modules):
            if isinstance(module, nn.Linear):
                after = modules[place + 1] if place + 1 < len(modules) else final
                activation = nn.Identity() if isinstance(after, nn.Linear) else after
                layers.append(package.LocoLayer(module, activation, implicit=place + 1 == len(modules)))
        options = {"lr": rate, "eps": 1e-6, "momentum": 0.999, "alpha": 0.9}
        self._loco = package.LocopropTrainer(nn.Sequential(*layers), problem.task.loss, optimizer_hparams=options)
        super().__init__(problem, model, [one for one in self._loco.opts if one is not None], cosine(steps))

    def _move(self, X: Tensor, Y: Tensor) -> float:
        return float(self._loco.step(X.flatten(1), Y).detach())


@dataclass(frozen=True)
class Opponent:
    """One way to train by back-propagation, or ours.

    Args:
        name: for the command line.
        title: for readers, with the settings that are the same on all problems.
        grid: rates > 0 to choose from, in rising order; empty where nothing is tuned.
        rates_of: the opponent whose chosen rates it takes, in place of a grid.
        make: makes the trainer of a network from rate and number of steps; None for ours, which `lb.fit` trains.
        needs: modules of optional packages.
        suits: whether it can train a network for a problem.
    """

    name: str
    title: str
    grid: tuple[float, ...] = ()
    make: Callable[[RaceProblem, nn.Module, float, int], Trainer] | None = None
    needs: tuple[str, ...] = ()
    suits: Callable[[RaceProblem, nn.Module], bool] = lambda problem, model: True
    rates_of: str = ""


def _by(
    name: str,
    title: str,
    grid: tuple[float, ...],
    optimisers: Callable[[nn.Module, float, int], Iterable[Any]],
    needs: tuple[str, ...] = (),
    otherwise: str = "",
) -> Opponent:
    def make(problem: RaceProblem, model: nn.Module, rate: float, steps: int) -> Trainer:
        schedule = Constant(1.0) if otherwise else cosine(steps)
        return Trainer(problem, model, list(optimisers(model, rate, steps)), schedule)

    return Opponent(name, f"{title}; {otherwise or '5 % warm-up, cosine to 0'}", grid, make, needs)


def _muon(model: nn.Module, rate: float, steps: int) -> Iterator[torch.optim.Optimizer]:
    """Muon for matrices, AdamW for the rest; embeddings count as the rest."""
    tables = {id(module.weight) for module in model.modules() if isinstance(module, nn.Embedding)}
    matrices = [p for p in model.parameters() if p.ndim == 2 and id(p) not in tables]
    others = [p for p in model.parameters() if p.ndim != 2 or id(p) in tables]
    if matrices:
        yield torch.optim.Muon(matrices, lr=rate, weight_decay=0.01, adjust_lr_fn="match_rms_adamw")
    if others:
        yield torch.optim.AdamW(others, lr=rate, weight_decay=0.01, fused=True)


def _schedule_free(model: nn.Module, rate: float, steps: int) -> Iterator[Any]:
    package = load_package("schedulefree")
    rising = warm_up_steps(steps)
    optimiser = package.AdamWScheduleFree(model.parameters(), lr=rate, weight_decay=0.01, warmup_steps=rising)
    optimiser.train()
    yield optimiser


def _lifted_signals(problem: RaceProblem, model: nn.Module, rate: float, steps: int) -> Trainer:
    """AdamW with the signals of `lb.lifted_backward`; the loss of a GPT is a mean over the places of a window, too."""
    lifted_backward(model, terms_per_sample=getattr(model, "context", 1))
    trainer = OPPONENTS[REFERENCE].make
    assert trainer is not None
    return trainer(problem, model, rate, steps)


def _dense_only(problem: RaceProblem, model: nn.Module) -> bool:
    """Whether LocoProp can train it: dense layers with activations between them, and no penalty of the code."""
    known = (nn.Linear, nn.ReLU, nn.Tanh, nn.Flatten)
    return isinstance(model, nn.Sequential) and not problem.code_penalty and all(isinstance(m, known) for m in model)


_ADAPTIVE = (1e-4, 3e-4, 1e-3, 3e-3, 1e-2, 3e-2, 1e-1)
OPPONENTS: dict[str, Opponent] = {
    opponent.name: opponent
    for opponent in (
        Opponent(OURS, "lifted: what lb.fit does by default; not tuned"),
        _by(
            REFERENCE,
            "AdamW, fused, weight decay 0.01",
            _ADAPTIVE,
            lambda model, rate, steps: [torch.optim.AdamW(model.parameters(), rate, weight_decay=0.01, fused=True)],
        ),
        Opponent(
            "lifted-adamw",
            "AdamW as above, at the same rate, with the signals of lb.lifted_backward; 5 % warm-up, cosine to 0",
            make=_lifted_signals,
            rates_of=REFERENCE,
            suits=lambda problem, model: not problem.code_penalty,
        ),
        _by(
            "adam",
            "Adam, fused",
            _ADAPTIVE,
            lambda model, rate, steps: [torch.optim.Adam(model.parameters(), rate, fused=True)],
            otherwise="constant rate",
        ),
        _by(
            "sgd-momentum",
            "SGD with momentum 0.9, fused",
            (1e-3, 3e-3, 1e-2, 3e-2, 1e-1, 3e-1),
            lambda model, rate, steps: [torch.optim.SGD(model.parameters(), rate, momentum=0.9, fused=True)],
        ),
        _by("muon", "Muon for matrices, AdamW for the rest, weight decay 0.01", (*_ADAPTIVE[1:], 3e-1), _muon),
        _by(
            "schedule-free",
            "schedule-free AdamW, weight decay 0.01",
            _ADAPTIVE,
            _schedule_free,
            ("schedulefree",),
            otherwise="5 % warm-up, then its average",
        ),
        _by(
            "soap",
            "SOAP, weight decay 0.01",
            _ADAPTIVE,
            lambda model, rate, steps: [load_package("pytorch_optimizer").SOAP(model.parameters(), lr=rate)],
            ("pytorch_optimizer",),
        ),
        _by(
            "shampoo",
            "Shampoo, roots every 10 steps",
            (1e-3, 3e-3, 1e-2, 3e-2, 1e-1, 3e-1),
            lambda model, rate, steps: [
                load_package("pytorch_optimizer").ScalableShampoo(
                    model.parameters(), lr=rate, preconditioning_compute_steps=10
                )
            ],
            ("pytorch_optimizer",),
        ),
        Opponent(
            "locoprop",
            "LocoProp, matching losses, 5 local steps of RMSProp, γ = 10; 5 % warm-up, cosine to 0",
            (1e-6, 3e-6, 1e-5, 3e-5, 1e-4, 3e-4),
            lambda problem, model, rate, steps: LocoPropTrainer(problem, model, rate, steps),  # type: ignore[arg-type]
            ("locoprop",),
            _dense_only,
        ),
    )
}
QUICK = (OURS, REFERENCE, "adam", "muon")
"""The opponents of a quick race: nothing but torch."""


def tuned_as(name: str) -> str:
    """The name of the opponent whose tuning gives the rates of this one."""
    return OPPONENTS[name].rates_of or name if name in OPPONENTS else name


def choose_opponents(names: Sequence[str]) -> tuple[Opponent, ...]:
    """The opponents of these names, in this order; all if there are none.  SettingError for an unknown name."""
    return choose(names, OPPONENTS, "opponent of the race")
