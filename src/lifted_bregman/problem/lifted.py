"""The lifted problem: its energy, the gradients and curvatures of its blocks, and its proximal maps."""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from lifted_bregman._no_graph import no_graph
from lifted_bregman.errors import CompatibilityError
from lifted_bregman.graph import ModelInput, Network, Partition, summarise
from lifted_bregman.graph.inputs import InputLike, as_model_input
from lifted_bregman.losses import BregmanLoss
from lifted_bregman.maps import Borrowing, Dense
from lifted_bregman.penalties import Penalty
from lifted_bregman.problem import diagnostics, energies
from lifted_bregman.problem.blocks import (
    Block,
    hidden_layers,
    layers,
    neighbours,
)
from lifted_bregman.problem.border import Border, enter
from lifted_bregman.problem.composite import composite_prox
from lifted_bregman.problem.curvature import PowerMemory, parameter_curvature, variable_curvature
from lifted_bregman.problem.data_checks import DataChecks, sample_weights
from lifted_bregman.problem.point import Point
from lifted_bregman.problem.settings import check_weights
from lifted_bregman.problem.shard import WHOLE, Shard
from lifted_bregman.problem.state import LiftedState
from lifted_bregman.problem.work import Work

Parameters = dict[int, dict[str, Tensor]]
"""A tensor for each trained parameter, by layer and name."""


@dataclass(frozen=True)
class BlockGradients:
    """Gradients of all blocks, by layer (from 1)."""

    parameters: dict[int, dict[str, Tensor]]
    variables: dict[int, Tensor]


class LiftedProblem:
    """min over Θ and x_1 .. x_{L-1} of the lifted energy (eq. 13); made by `lift`, which checks its settings.

        E(Θ, X) = (1/s) Σ_i [ ℓ(y, z_L) + Σ_{l<L} ( λ_l B_l(x_l, z_l) + R_l(x_l) ) ] + Σ_l P_l(Θ_l) + Σ (τ/2)‖Θ - Θ⁰‖²

    with z_l = f_l(x_u, x_w, ..; Θ_l), f_l(x_{l-1}, Θ_l) in a chain, and the loss ℓ(y, z_L) = B_L(y, z_L).  So term L
    is like the others, with x_L = y and λ_L = 1.  Terms ("layers") count from 1, in topological order.  The
    parameters are those of the user's model.  Methods that take X and Y check them.  Inner loops check once with
    `prepare`, then call `evaluate(..., check=False)` or `point`, and methods that take a point.

    Maps may couple samples or be random, as batch normalisation and dropout in training mode.  A step of a solver then
    draws masks and measures statistics once, so that it has one energy.  Methods that check a state refuse such maps:
    call `model.eval()` first.

    Samples may have weights w_i > 0, not to be confused with the λ_l: every mean over samples is then (1/s) Σ_i w_i.
    They change energies, and gradients and curvatures in Θ.  For fixed Θ each sample's variables minimise the energy of
    that sample, in which w_i cancels: gradients, curvatures and proximal maps of x_l do not depend on weights.

    In a layer-parallel run `partition` has the terms of this rank, and `border` sends the messages to the others.

    Example:
        >>> problem = lb.lift(nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 2)), loss=lb.SquaredError())
        >>> problem
        LiftedProblem of 2 layers, 26 parameters of float32 on cpu
          1: model.0 (Linear) 3 → 4, 16 parameters, ReLU(), λ = 1
          2: model.2 (Linear) 4 → 2, 10 parameters, loss SquaredError(Identity(), reduction='mean')
        >>> X, Y = torch.randn(10, 3), torch.randn(10, 2)
        >>> state = problem.forward_state(X)  # there the energy is the loss of the network
        >>> torch.equal(problem.energy(state, X, Y), problem.objective(X, Y))
        True
    """

    def __init__(
        self,
        network: Network,
        loss: BregmanLoss,
        weights: Sequence[float],
        penalties: Mapping[int, Penalty],
        parameter_penalties: Mapping[int, Penalty],
    ) -> None:
        self.network = network
        self.model = network.model
        self.loss = loss
        self.links = network.links
        """Which term reads which variable."""
        self.depth = len(network)
        self.weights = tuple(weights)
        """λ_1 .. λ_{L-1}."""
        self.penalties = dict(penalties)
        """R_l by layer, on variables."""
        self.parameter_penalties = dict(parameter_penalties)
        """P_l by layer, on weights (parameters of two or more dimensions), and not on biases."""
        self.anchors: tuple[tuple[Parameters, float], ...] = ()
        """(Θ⁰, τ > 0) of each quadratic term (τ/2)‖Θ - Θ⁰‖²; see `anchored`."""
        self.is_subproblem = False
        """Whether a solver made this problem by `anchored`, for one of its steps."""
        self._weight = dict(zip(layers(self.depth), (*self.weights, 1.0), strict=True))
        self._checks = DataChecks(network, loss)
        self._power: PowerMemory = {}
        self.work = Work()
        """Counters of the operations on this problem since the last run began."""
        self.border = Border(Partition(self.links))
        """The messages to and from ranks that hold other terms."""

    def summary(self) -> str:
        """A table of the terms: number, name, map, activation, inputs and parameters.

        Notes below it name parameters that are shared or unused, maps that couple samples or are random, and
        activations that are differentiated inside a map.
        """
        return summarise(self.network)

    def __repr__(self) -> str:
        parameters = list(self.model.parameters())
        total = sum(p.numel() for p in parameters)
        frozen = sum(p.numel() for p in parameters if not p.requires_grad)
        dtype, device = str(parameters[0].dtype).removeprefix("torch."), parameters[0].device
        first = f"LiftedProblem of {self.depth} layers, {total:,} parameters of {dtype} on {device}"
        first += f", {frozen:,} of them frozen" if frozen else ""
        return "\n".join([first, *(f"  {layer}: {self._shown(layer)}" for layer in layers(self.depth))])

    def _shown(self, layer: int) -> str:
        """One line of `repr` for a layer: map, trained parameters, activation or loss, weight and penalties."""
        own = self.network[layer]
        widths = f" {own.map.module.in_features} → {own.map.module.out_features}" if isinstance(own.map, Dense) else ""
        trained = f"{sum(p.numel() for p in own.map.parameters.values()):,} parameters"
        if layer in self.parameter_penalties:
            trained += f" with {self.parameter_penalties[layer]!r}"
        parts = [own.path + widths, trained]
        if layer == self.depth:
            return ", ".join([*parts, f"loss {self.loss!r}"])
        on_variables = [repr(self.penalties[layer])] if layer in self.penalties else []
        return ", ".join([*parts, repr(own.activation), f"λ = {self.weight(layer):g}", *on_variables])

    def weight(self, layer: int) -> float:
        """λ_l, with λ_L = 1."""
        return self._weight[layer]

    def with_weights(self, weights: float | Sequence[float]) -> LiftedProblem:
        """The problem with other λ_1 .. λ_{L-1}, on the same parameters."""
        checked = check_weights(weights, self.network)
        other = LiftedProblem(self.network, self.loss, checked, self.penalties, self.parameter_penalties)
        other.border, other.anchors = self.border, self.anchors
        return other

    def anchored(self, centre: Parameters, weight: float) -> LiftedProblem:
        """The problem plus (τ/2)‖Θ - Θ⁰‖², as an implicit step has it; settings, counters and parameters are shared.

        Energies include the term.  `parameter_prox` handles it together with the penalties, so that gradients and
        curvatures do not include it.  Power iterations start without a stored vector.

        centre  Θ⁰ by layer and name; not copied
        weight  τ >= 0
        """
        view = copy.copy(self)
        view.anchors = (*self.anchors, (centre, weight)) if weight else self.anchors
        view._power, view.is_subproblem = {}, True
        return view

    @property
    def anchor_weight(self) -> float:
        """The sum of τ over the quadratic terms."""
        return sum(tau for _, tau in self.anchors)

    def has_parameter_prox(self, layer: int) -> bool:
        """Whether a step in Θ_l has a proximal part: a penalty or a quadratic term."""
        return layer in self.parameter_penalties or bool(self.anchors)

    @property
    def partition(self) -> Partition:
        """Which terms are on this rank; all of them for one process."""
        return self.border.partition

    def with_border(self, border: Border) -> LiftedProblem:
        """The problem on a rank that holds some of its terms; settings, counters and parameters are shared."""
        view = copy.copy(self)
        view.border, view._power = border, {}
        return view

    def neighbours(self, block: Block) -> frozenset[Block]:
        """The blocks whose values the update of `block` reads."""
        return neighbours(block, self.links)

    # Points

    def prepare(self, X: InputLike, Y: Tensor) -> tuple[ModelInput, Tensor]:
        """X and Y, checked, with Y in the form that the loss takes (labels become one-hot).

        Rows of both need no more checks.  A tuple X, for a model of several inputs, is returned as `InputTensors`.
        """
        X = self._checks.inputs(X)
        return X.detach(), self._checks.targets(X, Y).detach()

    def forward_state(self, X: InputLike, check: bool = True) -> LiftedState:
        """x_l = σ_l(f_l(x_{l-1}, Θ_l)) for l < L: the variables at which every coupling term vanishes."""
        if check:
            self._checks.pure()
            X = self._checks.inputs(X)
        X = as_model_input(X)
        if self.partition.count > 1:
            return self.forward_point(X, X).state  # type: ignore[arg-type]  # a chain, whose X is a tensor
        X = X.detach() if X.requires_grad else X  # else the same object, for which a shard has the rows of other ranks
        variables = self.network.forward(X, hidden_layers(self.depth))
        self.work.forward_maps += len(variables)
        self.work.prox_maps += len(variables)
        return LiftedState(variables)

    def shapes(self, X: InputLike) -> tuple[torch.Size, ...]:
        """The shapes of one sample's x_1 .. x_L."""
        return self._checks.feature_shapes(as_model_input(X))

    @no_graph
    def evaluate(
        self, state: LiftedState, X: InputLike, Y: Tensor, check: bool = True, weights: Tensor | None = None
    ) -> Point:
        """The point (Θ, X) with all z_l, σ_l(z_l) and d_l; check=False skips the checks of X, Y, state and weights."""
        return self._point(state, X, Y, weights, check).complete()

    def _point(self, state: LiftedState, X: InputLike, Y: Tensor, weights: Tensor | None, check: bool = True) -> Point:
        if check:
            self._checks.pure()
            X, Y = self.prepare(X, Y)
            self._checks.state(state, X)
            weights = None if weights is None else sample_weights(weights, Y)
        return self.point(state, X, Y, weights)

    def point(
        self, state: LiftedState, X: InputLike, Y: Tensor, weights: Tensor | None = None, shard: Shard = WHOLE
    ) -> Point:
        """A point whose z_l and d_l are computed when first read; X and Y come from `prepare` and are not checked.

        weights  w_i > 0, (s,), in the dtype and on the device of Y; None for all equal to 1
        shard    which part of the batch the samples are
        """
        return Point(self.network, (as_model_input(X), *state, Y), self.work, weights, shard)

    def forward_point(self, X: InputLike, Y: Tensor, weights: Tensor | None = None, shard: Shard = WHOLE) -> Point:
        """The point of `forward_state`, with its z_l and σ_l(z_l); arguments as for `point`."""
        point = Point(self.network, (as_model_input(X), *[Y] * self.depth), self.work, weights, shard)
        enter(self, point)
        return point

    # Energies

    def energy(self, state: LiftedState, X: InputLike, Y: Tensor, *, weights: Tensor | None = None) -> Tensor:
        """E(Θ, X), a scalar: mean over samples, sum over features.

        weights: w_i > 0, one for each sample: the mean becomes (1/s) Σ_i w_i (...).  For a weighted mean divide them
        by their own mean first.
        """
        return self.energy_at(self._point(state, X, Y, weights))

    def energy_at(self, point: Point) -> Tensor:
        """`energy` at a point."""
        return energies.layer_energies(self, point).sum()

    def layer_energies(self, state: LiftedState, X: InputLike, Y: Tensor, *, weights: Tensor | None = None) -> Tensor:
        """The parts of E by layer, (L,): mean of λ_l B_l + R_l, or of the loss for l = L, plus P_l; their sum is E.

        weights: as for `energy`.
        """
        return energies.layer_energies(self, self._point(state, X, Y, weights))

    def sample_energies(self, state: LiftedState, X: InputLike, Y: Tensor) -> Tensor:
        """The parts of E by sample, (s,); their mean, weighted if samples have weights, plus Σ_l P_l(Θ_l) is E."""
        return energies.sample_energies(self, self._point(state, X, Y, None))

    def objective(self, X: InputLike, Y: Tensor, *, weights: Tensor | None = None) -> Tensor:
        """The nested network's value: mean loss plus penalties at the forward pass.  Comparable across all methods.

        Batch normalisation, dropout and noise act as in evaluation mode.  Constraints on variables (`Bounds`,
        `NonNegative`) are left out, because a forward pass may violate them.  weights: as for `energy`.
        """
        X, Y = self.prepare(X, Y)
        weights = None if weights is None else sample_weights(weights, Y)
        with self.network.evaluating():
            return energies.objective(self, self.point(self.forward_state(X, check=False), X, Y, weights))

    def nonsmooth_energy(
        self,
        state: LiftedState,
        X: InputLike,
        Y: Tensor,
        smooth_quadratic: bool = False,
        *,
        weights: Tensor | None = None,
    ) -> Tensor:
        """G of the split E = G + H: λ_l φ_l(x_l) + R_l(x_l) and P_l; smooth_quadratic replaces φ_l by Ψ_l."""
        return energies.nonsmooth(self, self._point(state, X, Y, weights), smooth_quadratic)

    def smooth_energy(
        self,
        state: LiftedState,
        X: InputLike,
        Y: Tensor,
        smooth_quadratic: bool = False,
        *,
        weights: Tensor | None = None,
    ) -> Tensor:
        """H of the split E = G + H: λ_l(φ_l*(z_l) - <x_l, z_l>) and φ_L(y); smooth_quadratic adds λ_l ½‖x_l‖²."""
        return energies.smooth(self, self._point(state, X, Y, weights), smooth_quadratic)

    # Gradients

    @no_graph
    def parameter_gradient(self, point: Point, layer: int) -> dict[str, Tensor]:
        """∇_{Θ_l}(E - P_l) = (λ_l/s) J_Θᵀ d_l for each trained parameter.

        Dense: (λ_l/s) d_lᵀ x_{l-1} for the weight (out, in), and λ_l mean(d_l) for the bias.  With sample weights the
        rows of d_l are multiplied by w_i.
        """
        self.work.parameter_gradients += 1
        scale, d = self.weight(layer) / point.samples, point.weigh(point.residual(layer))
        if not point.shard.whole:
            d = d.clone()  # a map may return d itself, and `all_sum` works in place
        gradient = self.network[layer].map.pull_back_parameters(point.read(layer), d, scale)
        for user in self.links.users[layer][1:]:
            self._add_shared(point, user, layer, gradient)
        point.shard.all_sum(*gradient.values())
        return gradient

    def _add_shared(self, point: Point, user: int, owner: int, into: Mapping[str, Tensor], scale: float = 1.0) -> None:
        """into ← into + scale·∇ of term `user` in the parameters that it borrows from `owner`."""
        self.work.parameter_gradients += 1
        scale *= self.weight(user) / point.samples
        f, d = self.network[user].map, point.weigh(point.residual(user))
        assert isinstance(f, Borrowing)
        for name, gradient in f.pull_back_borrowed(point.read(user), d, owner, scale).items():
            into[name].add_(gradient)

    @no_graph
    def accumulate_parameter_gradient(
        self, point: Point, layer: int, into: Mapping[str, Tensor], scale: float = 1.0, decay: float = 1.0
    ) -> None:
        """into ← decay·into + scale·∇_{Θ_l}(E - P_l), in place.

        With `into = network[l].map.parameters` and scale = -t this is the gradient step of eq. 17; call
        `point.parameters_changed(l)` afterwards.
        """
        if not point.shard.whole or len(self.links.users[layer]) > 1:
            for name, g in self.parameter_gradient(point, layer).items():
                if decay == 0.0:
                    torch.mul(g, scale, out=into[name].detach())
                else:
                    into[name].mul_(decay).add_(g, alpha=scale)
            return
        self.work.parameter_gradients += 1
        scale *= self.weight(layer) / point.samples
        f, d = self.network[layer].map, point.weigh(point.residual(layer))
        f.accumulate_parameters(point.read(layer), d, into, scale=scale, decay=decay)

    @no_graph
    def variable_gradient(self, point: Point, layer: int, smooth_quadratic: bool = False) -> Tensor:
        """The gradient in x_l of the smooth part of each sample's energy, that is s times the gradient of H.

        Σ_{t reads x_l} λ_t J_xᵀ d_t - λ_l z_l        (+ λ_l x_l if smooth_quadratic)

        In a chain the sum is λ_{l+1} J_xᵀ d_{l+1}.  With sample weights the result is unchanged, and s/w_i times the
        gradient of H.
        """
        z = point.z(layer)
        if smooth_quadratic:
            z = z - point.x[layer]
        return torch.sub(self.pulled_back(point, layer), z, alpha=self.weight(layer))

    @no_graph
    def pulled_back(self, point: Point, layer: int) -> Tensor:
        """Σ_t λ_t J_xᵀ d_t over the terms t that read x_l; received from the rank above if that holds the reader.

        The result may share memory with a residual.
        """
        if layer in self.partition.lent:
            return self.border.from_above(point.x[layer])
        total: Tensor | None = None
        for term in self.links.readers[layer]:
            pulled, weight = self._pulled_through(point, term, layer), self.weight(term)
            if total is None:
                total = pulled if weight == 1.0 else weight * pulled
            else:
                total = torch.add(total, pulled, alpha=weight)
        assert total is not None, "every hidden variable is read"
        return total

    def _pulled_through(self, point: Point, term: int, layer: int) -> Tensor:
        """J_xᵀ d_t for one of the variables that term t reads."""
        inputs = self.links.inputs[term]
        if len(inputs) == 1:
            self.work.adjoints += 1
            own: Tensor = self.network[term].map.pull_back_input(point.x[layer], point.residual(term))
            return own
        return point.pulled(term)[inputs.index(layer)]

    @no_graph
    def gradients(self, point: Point, smooth_quadratic: bool = False) -> BlockGradients:
        """`parameter_gradient` and `variable_gradient` of every layer at one point, as for simultaneous updates."""
        return BlockGradients(
            {layer: self.parameter_gradient(point, layer) for layer in layers(self.depth)},
            {layer: self.variable_gradient(point, layer, smooth_quadratic) for layer in hidden_layers(self.depth)},
        )

    # Curvature

    def parameter_curvature(self, point: Point, layer: int, upper: bool = False) -> float:
        """A Lipschitz constant of ∇_{Θ_l}(E - P_l): λ_l ‖J_Θ‖₂²/s; for a dense layer λ_l ‖[X_{l-1} 1]‖₂²/s.

        σ_l is 1-Lipschitz, so φ_l* has curvature at most 1.  By default the norm is an estimate from below, by a power
        iteration that starts where the last one for this block ended.  upper=True gives a guaranteed bound.  Dense
        layers: c such that c·I - AAᵀ, A = [X_{l-1} 1], has a Cholesky factor in float64, with room for rounding.
        Convolutions: the Collatz-Wielandt bound of the matrix of absolute values.  Modules in `lb.Map` have no
        guaranteed bound and raise `CompatibilityError`.

        With sample weights the rows of A of a dense layer are multiplied by √w_i; for other maps the result is that
        without weights times the largest w_i.
        """
        return parameter_curvature(self, point, layer, self._power, upper, margin=0.0)

    def variable_curvature(
        self, point: Point, layer: int, upper: bool = False, smooth_quadratic: bool = False
    ) -> float:
        """A Lipschitz constant of `variable_gradient`: Σ_t λ_t ‖J_x f_t‖₂² (+ λ_l if smooth_quadratic), t reading x_l.

        For a dense layer above it is λ_{l+1} ‖W_{l+1}‖₂².  Estimates and guarantees are those of `parameter_curvature`,
        with W_{l+1} for A; small convolutions are written as a matrix for a tighter bound.  Weights change nothing.
        """
        curvature = variable_curvature(self, point, layer, self._power, upper, margin=0.0)
        return curvature + (self.weight(layer) if smooth_quadratic else 0.0)

    # Proximal maps

    @no_graph
    def variable_prox(self, layer: int, v: Tensor, step: float, smooth_quadratic: bool = False) -> Tensor:
        """argmin_x (1/2t)‖x - v‖² + λ_l φ_l(x) + R_l(x) for step t: the backward half of eq. 17.

            prox_{(tλ_l Ψ_l + t R_l) / (1 + tλ_l)}( v / (1 + tλ_l) )

        smooth_quadratic replaces φ_l by Ψ_l: prox_{tλ_l Ψ_l + t R_l}(v).
        """
        self.work.prox_maps += 1
        own, penalty = self.network[layer], self.penalties.get(layer)
        scale, penalty_scale = step * self.weight(layer), step
        if not smooth_quadratic:
            shrink = 1.0 + scale
            v, scale, penalty_scale = v / shrink, scale / shrink, penalty_scale / shrink
        if penalty is None:
            return own.prox(v, scale)
        return own.restore(composite_prox(own.activation, penalty, own.arrange(v), scale, penalty_scale))

    @no_graph
    def parameter_prox(self, layer: int, values: Mapping[str, Tensor], step: float | Tensor) -> dict[str, Tensor]:
        """argmin_Θ (1/2t)‖Θ - v‖² + P_l(Θ) + Σ (τ_i/2)‖Θ - Θ⁰_i‖² for step t: the backward half of eq. 17.

            prox_{tP_l/(1+tτ)}( (v + t Σ τ_i Θ⁰_i) / (1 + tτ) ),   τ = Σ τ_i

        P_l acts on weights, as (units, rest) matrices, and not on biases.  A tensor () as step stays on the device.
        """
        if self.anchors:
            if missing := set(self.anchors[0][0][layer]) - set(values):
                raise CompatibilityError(
                    f"the proximal term of layer {layer} acts on {sorted(self.anchors[0][0][layer])}, but the solver "
                    f"moves {sorted(missing)} without it; take ProximalGradient or CoordinateDescent for the "
                    "sub-problem."
                )
            shrink = 1.0 + step * self.anchor_weight
            values = {name: self._pulled_to_anchors(layer, name, v, step, shrink) for name, v in values.items()}
            step = step / shrink
        penalty, f = self.parameter_penalties.get(layer), self.network[layer].map
        if penalty is None:
            return dict(values)
        return {
            name: f.from_unit_rows(penalty.prox(f.unit_rows(v), step), v) if v.ndim > 1 else v
            for name, v in values.items()
        }

    def _pulled_to_anchors(
        self, layer: int, name: str, v: Tensor, step: float | Tensor, shrink: float | Tensor
    ) -> Tensor:
        """(v + t Σ τ_i Θ⁰_i) / (1 + tτ)."""
        total = v.clone()
        for centre, tau in self.anchors:
            if isinstance(step, Tensor):
                total.addcmul_(centre[layer][name], step, value=tau)
            else:
                total.add_(centre[layer][name], alpha=step * tau)
        return total.div_(shrink)

    # Diagnostics

    def certificates(
        self, state: LiftedState, X: InputLike, Y: Tensor, step: float = 1.0, *, weights: Tensor | None = None
    ) -> diagnostics.Certificates:
        """The prox-gradient residual of each block, others fixed: 0 exactly where the block is stationary.

            Θ_l:  ‖Θ_l - prox_{tP_l}(Θ_l - t∇)‖ / t, which is ‖∇_{Θ_l} E‖ without a penalty
            x_l:  ‖x_l - x_l⁺‖ / (t√s), with x_l⁺ the proximal gradient step (eq. 17) of each sample: a root mean square

        Blocks are convex for affine maps, so that 0 means a minimum.  Every step t > 0 has the same zeros.  Weights
        are used as `energy` does, in the residuals of Θ_l; those of x_l do not depend on them.
        """
        return diagnostics.certificates(self, self.evaluate(state, X, Y, weights=weights), step)

    def consistency(self, state: LiftedState, X: InputLike) -> tuple[float, ...]:
        """‖x_l - σ_l(z_l)‖ / ‖σ_l(z_l)‖ of each hidden layer, over all samples, with z_l from the state's own x_{l-1}.

        0 where both norms vanish, infinity where only the second does.
        """
        self._checks.pure()
        X = self._checks.inputs(X)
        self._checks.state(state, X)
        return diagnostics.consistency(self, state, X)

    def linear_units(self, X: InputLike) -> tuple[diagnostics.LinearUnits, ...]:
        """How many units of each hidden layer act linearly in a forward pass, in per cent (Table 2).

        A unit acts linearly for a sample if σ(z) = z.  `pairs` counts pairs (sample, unit); `units` counts units that
        act linearly for every sample of X (samples, ...).
        """
        self._checks.pure()
        return diagnostics.linear_units(self, self._checks.inputs(X))

    def sparsity(self, codes: LiftedState | Tensor, layer: int | None = None) -> float:
        """The fraction of exact zeros in x_l of a state, or in a tensor of codes."""
        return diagnostics.sparsity(codes, layer)
