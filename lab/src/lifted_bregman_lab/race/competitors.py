"""The competitors of the race: the solver for a value of the tuned setting, and the grid of that setting."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from lifted_bregman.errors import SettingError
from lifted_bregman.solvers import AdaBreg, Coupling, ImplicitSGD, Solver, baselines
from lifted_bregman.solvers.readings import Literal as Printed
from lifted_bregman.training import default_solver
from lifted_bregman_lab.race.problems import RaceProblem, choose

Kind = Literal["lifted", "back-propagation"]
REFERENCE = "adam"
_INNER_STEPS = 15  # the paper's N
_PROX_WEIGHT = 0.5  # the paper's τ for ISGD-BP


@dataclass(frozen=True)
class Competitor:
    """One way to train.

    Args:
        name: for the command line.
        title: for readers.
        kind: "lifted" or "back-propagation".
        make: makes the solver from a value of the tuned setting; the value is NaN where nothing is tuned.
        tuned: name of the setting that is chosen from the grid; None where nothing is tuned.
        grid: values > 0 of that setting to try; empty where nothing is tuned.
        batch_factors: multiples > 0 of the problem's batch size to try.
    """

    name: str
    title: str
    kind: Kind
    make: Callable[[float], Solver[Any]]
    tuned: str | None = None
    grid: tuple[float, ...] = ()
    batch_factors: tuple[float, ...] = (1.0,)

    def __post_init__(self) -> None:
        if (self.tuned is None) != (not self.grid):
            raise SettingError(f"the competitor '{self.name}' needs both a tuned setting and its grid, or neither.")
        if not all(value > 0.0 for value in (*self.grid, *self.batch_factors)) or not self.batch_factors:
            raise SettingError(f"the grids of the competitor '{self.name}' must hold numbers above 0.")

    def batch_sizes(self, problem: RaceProblem) -> tuple[int, ...]:
        """The batch sizes to try on a problem."""
        return tuple(dict.fromkeys(max(1, round(factor * problem.batch_size)) for factor in self.batch_factors))


def _algorithm_1(prox_weight: float) -> Solver[Any]:
    # The step size printed for classification.  The one for autoencoders is |B| times as long and diverges at once.
    return ImplicitSGD(prox_weight, _INNER_STEPS, reading=Printed(), coupling=Coupling.BEFORE)


def _back_propagation(
    name: str, title: str, make: Callable[[float], Solver[Any]], grid: tuple[float, ...], *batch_factors: float
) -> Competitor:
    return Competitor(name, title, "back-propagation", make, "learning_rate", grid, batch_factors or (1.0,))


_ADAPTIVE = (1e-4, 2e-4, 3e-4, 5e-4, 1e-3, 2e-3)
_SWEEP = "lifted sweep with Adam's step sizes (AdaBreg)"
_PRINTED = f"the paper's Algorithm 1 as printed, N = {_INNER_STEPS}"
_IMPLICIT = f"implicit SGD by back-propagation (ISGD-BP), τ = {_PROX_WEIGHT:g}, N = {_INNER_STEPS}"
COMPETITORS: dict[str, Competitor] = {
    competitor.name: competitor
    for competitor in (
        Competitor("lifted", "lifted, the default of fit, not tuned", "lifted", lambda _: default_solver()),
        Competitor("lifted-adabreg", _SWEEP, "lifted", lambda rate: AdaBreg(step_size=rate), "step_size", _ADAPTIVE),
        Competitor("algorithm-1", _PRINTED, "lifted", _algorithm_1, "prox_weight", (0.1, 1.0, 10.0, 100.0)),
        _back_propagation("sgd", "SGD", baselines.SGD, (5e-3, 1e-2, 2e-2, 5e-2, 1e-1, 2e-1)),
        _back_propagation(
            "sgd-momentum",
            "SGD with momentum 0.9",
            lambda rate: baselines.SGD(rate, momentum=0.9),
            (1e-3, 2e-3, 5e-3, 1e-2, 2e-2, 5e-2),
        ),
        _back_propagation(REFERENCE, "Adam, fused", baselines.Adam, _ADAPTIVE, 0.5, 1.0, 2.0),
        _back_propagation(
            "implicit-backprop",
            _IMPLICIT,
            lambda rate: baselines.ImplicitBackprop(_PROX_WEIGHT, _INNER_STEPS, rate),
            (1e-3, 3e-3, 1e-2, 3e-2, 1e-1),
        ),
    )
}
QUICK = ("lifted", "sgd", REFERENCE, "algorithm-1")


def choose_competitors(names: Sequence[str]) -> tuple[Competitor, ...]:
    """The competitors of these names, in this order; all if there are none."""
    return choose(names, COMPETITORS, "competitor of the race")


def reference_of(competitors: Sequence[Competitor]) -> str:
    """The name of Adam where it takes part, else of the first that uses back-propagation, else of the first."""
    return min(competitors, key=lambda one: (one.name != REFERENCE, one.kind != "back-propagation")).name
