"""The constrained form: weights λ_l as multipliers of B_l <= ε, found by proximal ascent (Appendix B, corrected)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar, Self

from lifted_bregman._arguments import positive, require_count, require_not_negative
from lifted_bregman.errors import SettingError
from lifted_bregman.graph import Layer
from lifted_bregman.problem import LiftedProblem
from lifted_bregman.problem.blocks import hidden_layers
from lifted_bregman.solvers._shares import own_variables
from lifted_bregman.solvers.interface import Batch, Solver, SolverState, lacking, of_inner
from lifted_bregman.solvers.proximal_gradient import ProximalGradient


@dataclass
class ConstrainedState(SolverState):
    """The variables, λ_1 .. λ_{L-1} in `multipliers`, and the state of the wrapped solver in `inner`."""

    multipliers: list[float] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.inner: SolverState = SolverState()

    def state_dict(self) -> dict[str, Any]:
        return super().state_dict() | {"inner": self.inner.state_dict()}

    def load_state_dict(self, entries: Mapping[str, Any]) -> None:
        super().load_state_dict({name: value for name, value in entries.items() if name != "inner"})
        self.inner.load_state_dict(entries.get("inner", {}))


@dataclass(frozen=True)
class Constrained(Solver[ConstrainedState]):
    """min over (Θ, X) of the loss and the penalties subject to B_l(x_l, z_l) <= ε, in the mean over samples, l < L.

        (Θ, X) ← `inner_steps` steps of `solver` on E with the current weights λ
        λ_l    ← min( max( λ_l + ρ (mean B_l - ε), floor ), cap )

    The second line is the proximal ascent argmax_λ λ(mean B_l - ε) - (λ - λ_l)²/2ρ over [floor, cap], with B_l at the
    new (Θ, X).  The first weights are the problem's.  Since B_l >= 0, λ can only grow for ε = 0, as printed; a positive
    tolerance or the cap bounds it.

    solver       any solver that keeps the variables of the whole set
    tolerance    ε >= 0
    rate         ρ > 0
    floor        > 0, the smallest λ_l; λ_l = 0 would cut the network at layer l
    cap          >= floor, the largest λ_l
    inner_steps  at least 1

    A fixed point (Θ, X, λ) is a stationary point of E with the weights λ.  There B_l <= ε for every λ_l below the cap,
    and B_l >= ε for every λ_l above the floor.  With all λ_l between floor and cap it is a Karush-Kuhn-Tucker point.
    Where the inner problem is convex
    (one hidden layer, Θ frozen) and solved, the ascent is that of the dual and converges for small ρ; in (Θ, X)
    together it is a heuristic, because min and sup do not commute.  `problem.energy` uses the problem's own weights;
    `problem.with_weights(state.multipliers)` has the energy that is minimised.

    Metrics: those of the solver, `multiplier_l` and `bregman_l` = mean B_l of each hidden layer, and
    `violation` = max(0, max_l mean B_l - ε).

    Example:
        >>> X = torch.linspace(-1, 1, 20).reshape(-1, 1)
        >>> problem = lb.lift(nn.Sequential(nn.Linear(1, 8), nn.ReLU(), nn.Linear(8, 1)), loss=lb.SquaredError())
        >>> result = lb.fit(problem, (X, X.abs()), solver=lb.Constrained(tolerance=1e-3), epochs=10)
        >>> result.history[-1]["objective"] < result.history[0]["objective"]
        True
    """

    shared_parameters: ClassVar[bool] = of_inner("shared_parameters")
    training_mode: ClassVar[bool] = of_inner("training_mode")
    weighted: ClassVar[bool] = of_inner("weighted")
    data_parallel: ClassVar[bool] = of_inner("data_parallel")

    solver: Solver[Any] = field(default_factory=ProximalGradient)
    tolerance: float = 1e-3
    rate: float = 1.0
    floor: float = 1e-3
    cap: float = 1e4
    inner_steps: int = 10

    def __post_init__(self) -> None:
        require_not_negative(self.tolerance, "tolerance")
        positive(self.rate, "rate")
        if not positive(self.floor, "floor") <= positive(self.cap, "cap"):
            raise SettingError(f"floor is {self.floor!r} and cap is {self.cap!r}; the floor must not exceed the cap.")
        require_count(self.inner_steps, "inner_steps")
        if not isinstance(self.solver, Solver):
            raise SettingError(f"solver is {self.solver!r}; it must be a solver such as ProximalGradient().")

    def require(self, problem: LiftedProblem) -> None:
        if not hidden_layers(problem.depth):
            raise lacking(self, "at least one hidden layer, whose B_l it constrains", "the model has one layer only")
        if self.solver.minibatch:
            required = "a solver that keeps the variables of the whole set, such as ProximalGradient"
            raise lacking(self, required, f"{type(self.solver).__name__} is made for changing batches")
        self.solver.require(problem)

    def require_steps(self, problem: LiftedProblem, steps: int) -> None:
        self.solver.require_steps(problem, steps * self.inner_steps)

    @property
    def ends_with_run(self) -> bool:
        """Whether the wrapped solver's numbers depend on the length of the run."""
        return self.solver.ends_with_run

    def planned(self, steps: float, epochs: float) -> Self:
        return self._changed(solver=self.solver.planned(steps * self.inner_steps, epochs))

    def init(self, problem: LiftedProblem, batch: Batch) -> ConstrainedState:
        state = ConstrainedState(multipliers=[self._limited(weight) for weight in problem.weights])
        state.inner = self.solver.init(self._weighted(problem, state), batch)
        if state.inner.variables is None:
            required = "a solver with auxiliary variables, such as ProximalGradient"
            raise lacking(self, required, f"{type(self.solver).__name__} has none")
        state.variables = state.inner.variables
        return state

    def step(self, problem: LiftedProblem, state: ConstrainedState, batch: Batch) -> ConstrainedState:
        weighted = self._weighted(problem, state)
        state.inner.variables = state.variables
        for _ in range(self.inner_steps):
            state.inner = self.solver.step(weighted, state.inner, batch)
        state.variables = state.inner.variables
        assert state.variables is not None
        point = batch.point(weighted, own_variables(batch.shard, state.variables))
        violation = 0.0
        hidden = hidden_layers(problem.depth)
        own = [Layer.bregman(problem.network[l], point.x[l], point.z(l)) for l in hidden]  # without a proximal term
        losses = [float(loss) for loss in point.means(own)]
        for place, loss in enumerate(losses):
            state.multipliers[place] = self._limited(state.multipliers[place] + self.rate * (loss - self.tolerance))
            violation = max(violation, loss - self.tolerance)
        by_term = {
            "multiplier": dict(zip(hidden, state.multipliers, strict=True)),
            "bregman": dict(zip(hidden, losses, strict=True)),
        }
        state.metrics = state.inner.metrics | by_term | {"violation": violation}
        state.steps += 1
        return state

    def finish(self, problem: LiftedProblem, state: ConstrainedState) -> None:
        self.solver.finish(self._weighted(problem, state), state.inner)

    def _limited(self, weight: float) -> float:
        return min(max(weight, self.floor), self.cap)

    def _weighted(self, problem: LiftedProblem, state: ConstrainedState) -> LiftedProblem:
        weighted = problem.with_weights(state.multipliers)
        weighted.work = problem.work  # what is done for the one is done for the other
        return weighted
