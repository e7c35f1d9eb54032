"""The base of solvers that make one top-down sweep for each batch: the signals of a graph, from the output down."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import partial
from typing import ClassVar, TypeVar

import torch
from torch import Tensor

from lifted_bregman.activations import Identity
from lifted_bregman.maps import Convolution, Dense
from lifted_bregman.problem import LiftedProblem
from lifted_bregman.problem.blocks import hidden_layers
from lifted_bregman.problem.composite import composite_prox
from lifted_bregman.solvers.gram.forward import Forward, Gradients, add_pulled, core
from lifted_bregman.solvers.gram.parallel import receive_signal, send_signals
from lifted_bregman.solvers.gram.signal import lifted_signal, limit_nudge, output_signal, penalised_signal
from lifted_bregman.solvers.interface import Batch, Solver, SolverState

S = TypeVar("S", bound=SolverState)


class TopDownSweep(Solver[S]):
    """A solver that moves each layer once for each batch, by its error signal E_l."""

    minibatch: ClassVar[bool] = True
    shared_parameters: ClassVar[bool] = True
    training_mode: ClassVar[bool] = True
    weighted: ClassVar[bool] = True
    autocast: ClassVar[bool] = True
    counts: ClassVar[tuple[str, ...]] = ("fallbacks",)

    nudge: float
    penalised_nudge: float
    micro_batches: int

    @property
    def data_parallel(self) -> bool:  # type: ignore[override]
        """Where a batch is in one part."""
        return self.micro_batches == 1

    @property
    def layer_parallel(self) -> bool:
        """Always."""
        return True

    def _signals(
        self,
        problem: LiftedProblem,
        passed: Forward,
        output: Tensor | None,
        norms: Mapping[int, Tensor],
        gradients: Gradients,
    ) -> Iterator[tuple[int, Tensor]]:
        """(l, E_l) from the top down; a layer may move as soon as it is yielded, since its pull-back is done."""
        partition, hidden = problem.partition, hidden_layers(problem.depth)
        found: dict[int, list[Tensor]] = {layer: [] for layer in partition.terms}
        if output is not None:
            found[problem.depth].append(output)
        for number, rows in enumerate(passed.parts):
            pulled: dict[int, Tensor] = {}  # Σ_t J_xᵀ E_t of each variable, over the terms t that were visited
            for layer in reversed(partition.terms):
                if layer == problem.depth:
                    assert output is not None
                    E = output[rows]
                else:
                    x, z = passed.x[layer][rows], passed.z[layer][rows]
                    g = receive_signal(problem, x) if layer in partition.lent else pulled.pop(layer)
                    E = self._signal(problem, layer, x, z, g, norms[layer][rows])
                    found[layer].append(E)
                # J_xᵀ E_l for the variables that f_l reads, with Θ_l before its move
                wanted = [v for v in problem.links.inputs[layer] if v in hidden]
                if layer in passed.pulls:
                    below = gradients.pull(layer, passed.pulls[layer][number], E, rows, bool(wanted))
                elif wanted:
                    below = core(problem, layer).pull_back_input(passed.read(problem, layer)[rows], E)
                else:
                    below = None
                if wanted and layer in passed.heads:
                    below, _ = passed.heads[layer][number](below)
                add_pulled(pulled, problem.links.inputs[layer], below, wanted)
                if rows is passed.parts[-1] and not partition.borrowed:
                    yield layer, _joined(found.pop(layer))
            send_signals(problem, pulled)
        for layer in reversed(list(found)):
            yield layer, _joined(found[layer])

    def _signal(self, problem: LiftedProblem, layer: int, x: Tensor, z: Tensor, g: Tensor, z_norms: Tensor) -> Tensor:
        """E_l from g = Σ J_xᵀ E of the terms that read x_l = σ_l(z_l); ‖z_i‖ of each sample is known."""
        own, weight = problem.network[layer], problem.weight(layer)
        if layer in problem.penalties:
            nudge = self.penalised_nudge / weight
            return penalised_signal(x, z, g, nudge, partial(_penalised_prox, problem, layer, nudge))
        if isinstance(own.activation, Identity):
            return g
        nudges = limit_nudge(z_norms, g, self.nudge / problem.links.longest_path / weight)
        return lifted_signal(own.activation, own.activate, own.dim, z, g, nudges)


def _joined(parts: list[Tensor]) -> Tensor:
    """The signal of a batch from those of its parts, in order."""
    return parts[0] if len(parts) == 1 else torch.cat(parts)


def output_of(problem: LiftedProblem, passed: Forward, batch: Batch) -> Tensor | None:
    """E_L; None where another rank has the output."""
    top = problem.depth
    if top not in passed.z:
        return None
    return output_signal(passed.x[top], batch.Y, problem.weight(top))


def is_dense(problem: LiftedProblem, layer: int) -> bool:
    """Whether a layer has the metric of its inputs: a dense map that shares no parameters and has no penalty."""
    f, alone = core(problem, layer), len(problem.links.users[layer]) == 1
    return isinstance(f, Dense) and alone and not problem.has_parameter_prox(layer) and bool(f.parameters)


def is_convolution(problem: LiftedProblem, layer: int) -> bool:
    """Whether a layer has the metric of its patches: a convolution that shares no parameters and has no penalty."""
    alone = len(problem.links.users[layer]) == 1
    return isinstance(core(problem, layer), Convolution) and alone and not problem.has_parameter_prox(layer)


def _penalised_prox(problem: LiftedProblem, layer: int, nudge: float, v: Tensor) -> Tensor:
    """prox_{Ψ_l + (ν_l/λ_l) R_l}(v)."""
    own = problem.network[layer]
    return own.restore(composite_prox(own.activation, problem.penalties[layer], own.arrange(v), 1.0, nudge))
