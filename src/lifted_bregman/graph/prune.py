"""`prune`: the smaller model that computes the same function as one with dead units."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor, nn

from lifted_bregman.errors import UnsupportedModuleError
from lifted_bregman.graph.prune_graph import prune_graph
from lifted_bregman.graph.reader import read_network
from lifted_bregman.graph.units import CONVOLUTIONS
from lifted_bregman.maps.dense import Dense


@dataclass(frozen=True)
class PruneReport:
    """What `prune` removed, and what kept other dead units.

    Example:
        >>> model = nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 1))
        >>> with torch.no_grad():
        ...     model[0].weight[:2] = 0.0
        >>> lb.prune(model).report.widths_after
        (2,)
    """

    widths_before: tuple[int, ...]
    """m_1 .. m_{L-1}, the hidden widths; of a model that was traced, the widths of all its prunable layers."""
    widths_after: tuple[int, ...]
    parameters_before: int
    parameters_after: int
    zeros_before: float
    """The fraction of weights, biases not counted, that are exactly zero."""
    zeros_after: float
    held: Mapping[str, str] = field(default_factory=dict)
    """{layer with dead units that were kept: what needs them}, of a model that was traced."""

    @property
    def message(self) -> str:
        """The result as a sentence."""
        zeros = f"{100.0 * self.zeros_after:.1f} % of the weights"
        held = "".join(f" Dead units of {path} stay, because of {reason}." for path, reason in self.held.items())
        return self._removed(zeros) + held

    def _removed(self, zeros: str) -> str:
        if self.widths_before == self.widths_after:
            if self.zeros_after == 0.0:
                return "Nothing was removed: no weight is zero."
            return (
                f"Nothing was removed: {zeros} are zero, but no hidden unit has only zero incoming or only zero "
                "outgoing weights. Such unstructured zeros make no smaller dense model: train with GroupL2, which "
                "makes whole rows zero, or use a sparse format."
            )
        return (
            f"Hidden widths {self.widths_before} became {self.widths_after}, and {self.parameters_before} parameters "
            f"{self.parameters_after}; {zeros} that remain are zero."
        )


class PrunedSequential(nn.Sequential):
    """The result of `prune` for an `nn.Sequential`, with a report."""

    report: PruneReport


@torch.no_grad()
def prune(model: nn.Module, example: Tensor | tuple[Tensor, ...] | None = None) -> Any:
    """A smaller model without dead hidden units; it computes the same function.

    A hidden unit is dead if all its outgoing weights are zero, or all its incoming weights.  In the second case its
    output is the constant σ(b), and W_{l+1}σ(b) is added to the next layer's bias.  Removing units can make others
    dead; pruning is repeated until no unit is dead.  A layer keeps at least one unit.  The given model is not changed,
    and the result shares no memory with it.  `result.report` lists what was removed.

    model    an `nn.Sequential` of `nn.Linear` and activations that `lift` knows.  Activations between the layers must
      act on each unit alone: a joint one (softmax, group soft threshold, ball) changes its other outputs when one of
      its inputs is removed.  The last activation may be joint, for no output is ever removed.  With an example, any
      module that `lift` can trace; the result is a smaller copy of it.
    example  a few samples, or a tuple of those for several inputs.  Then units of convolutions (channels) and linear
      layers are removed, with their batch normalisation; both models agree in evaluation mode.  Units that a sum adds
      up, as in a residual stream, are removed together or kept.  A unit with a constant output other than 0 is kept if
      a layer with zero padding reads it.  Units that group norm, attention or grouped convolutions read are kept.
      `report.held` names the layers with such units

    Example:
        >>> model = nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 1))
        >>> with torch.no_grad():
        ...     model[0].weight[:2] = 0.0
        >>> smaller, x = lb.prune(model), torch.randn(5, 3)
        >>> smaller
        PrunedSequential(
          (0): Linear(in_features=3, out_features=2, bias=True)
          (1): ReLU()
          (2): Linear(in_features=2, out_features=1, bias=True)
        )
        >>> torch.allclose(smaller(x), model(x))
        True
    """
    if example is not None:
        return _pruned_graph(model, example)
    if not isinstance(model, nn.Sequential):
        raise UnsupportedModuleError(
            f"prune was given a {type(model).__name__}; it takes an nn.Sequential of nn.Linear and activations, or any "
            "model with an example of its input: use prune(model, X[:2])."
        )
    # (W_l, b_l) of each linear layer, and the activations between two of them
    leaves = _leaves(model, "model")
    _require_prunable(model)
    places = [place for place, leaf in enumerate(leaves) if isinstance(leaf, nn.Linear)]
    linears = [leaf for leaf in leaves if isinstance(leaf, nn.Linear)]
    between = [nn.Sequential(*leaves[low + 1 : high]) for low, high in pairwise(places)]
    stack = [(linear.weight.detach().clone(), _bias(linear)) for linear in linears]
    # Remove dead units layer by layer, until a pass over the layers finds none
    changed = True
    while changed:
        changed = False
        for l, activation in enumerate(between):
            (W, b), (W_up, b_up) = stack[l], stack[l + 1]
            removed = ~W.any(1) | ~W_up.any(0)  # constant units and unread ones
            if bool(removed.all()):
                removed[0] = False  # a layer keeps one unit
            if not bool(removed.any()):
                continue
            # b_{l+1} ← b_{l+1} + W_{l+1} σ(b_l) over the removed units, then the rows of W_l and columns of W_{l+1} go
            outputs = activation((W.new_zeros(len(W)) if b is None else b)[None])[0]
            shift = W_up @ torch.where(removed, outputs, 0.0)  # unread units have zeros in W_up
            if b_up is not None or bool(shift.any()):
                b_up = shift if b_up is None else b_up + shift
            kept = ~removed
            stack[l] = W[kept], None if b is None else b[kept]
            stack[l + 1] = W_up[:, kept], b_up
            changed = True
    # The smaller model and its report
    result = PrunedSequential(*_modules(leaves, dict(zip(places, stack, strict=True))))
    result.training = model.training  # each module has the mode of the one it stands for
    result.report = _report([linear.weight for linear in linears], [W for W, _ in stack], model, result)
    return result


def _pruned_graph(model: nn.Module, example: Tensor | tuple[Tensor, ...]) -> nn.Module:
    read_network(model, example)  # which refuses what cannot be traced, by name
    given = example if isinstance(example, tuple) else (example,)
    smaller, held = prune_graph(model, given)
    before, after = _weights(model), _weights(smaller)
    report = PruneReport(
        widths_before=tuple(map(len, before)),
        widths_after=tuple(map(len, after)),
        parameters_before=sum(p.numel() for p in model.parameters()),
        parameters_after=sum(p.numel() for p in smaller.parameters()),
        zeros_before=_zeros(before),
        zeros_after=_zeros(after),
        held=held,
    )
    smaller.report = report  # type: ignore[assignment]
    return smaller


def _weights(model: nn.Module) -> list[Tensor]:
    return [module.weight for module in model.modules() if isinstance(module, (nn.Linear, *CONVOLUTIONS))]


def _require_prunable(model: nn.Sequential) -> None:
    # No shared parameters, dense maps only
    network = read_network(model)
    if network.shared:
        name, terms = next(iter(network.shared.items()))
        raise UnsupportedModuleError(
            f"the model cannot be pruned: its parameter {name} is shared by {network[terms[0]].path} and "
            f"{network[terms[1]].path}; use copy.deepcopy(module) for one of them."
        )
    for layer in network:
        if not isinstance(layer.map, Dense):
            raise UnsupportedModuleError(
                f"{layer.path} cannot be pruned: its map is not dense; without an example prune takes nn.Linear and "
                "activations only: use prune(model, X[:2])."
            )
    # Activations act on each unit alone, and each unit is one input of the next layer
    for layer, upper in pairwise(network.layers):
        if layer.activation.joint:
            raise UnsupportedModuleError(
                f"the layer of {layer.path} cannot be pruned: its activation {layer.activation!r} couples the units, "
                "so that leaving one out changes the others; use an activation that acts on each unit alone."
            )
        assert isinstance(layer.map, Dense) and isinstance(upper.map, Dense)
        given, taken = layer.map.module.out_features, upper.map.module.in_features
        if given != taken:
            raise UnsupportedModuleError(
                f"{upper.path} cannot be pruned: it takes {taken} inputs and the layer before it has {given} units; "
                "prune needs one input for each unit."
            )


def _leaves(module: nn.Module, path: str) -> list[nn.Module]:
    """The modules of nested plain `nn.Sequential`s, in order."""
    if not isinstance(module, nn.Sequential):
        return [module]
    if type(module).forward is not nn.Sequential.forward:
        raise UnsupportedModuleError(
            f"{path} ({type(module).__name__}) cannot be pruned: it has a forward of its own; prune takes plain "
            "nn.Sequential, nn.Linear and activations only."
        )
    children = ((name, child) for name, child in module._modules.items() if child is not None)
    return [leaf for name, child in children for leaf in _leaves(child, f"{path}.{name}")]


def _bias(linear: nn.Linear) -> Tensor | None:
    bias: Tensor | None = linear.bias
    return None if bias is None else bias.detach().clone()


def _modules(leaves: list[nn.Module], stack: dict[int, tuple[Tensor, Tensor | None]]) -> list[nn.Module]:
    """The leaves, copied, with the new weights in place of the old."""
    modules: list[nn.Module] = []
    for place, leaf in enumerate(leaves):
        if not isinstance(leaf, nn.Linear):
            modules.append(copy.deepcopy(leaf))
            continue
        W, b = stack[place]
        linear = nn.utils.skip_init(
            nn.Linear, W.shape[1], W.shape[0], bias=b is not None, device=W.device, dtype=W.dtype
        )
        linear.train(leaf.training)
        linear.weight = nn.Parameter(W, requires_grad=leaf.weight.requires_grad)
        if b is not None:
            old: Tensor | None = leaf.bias
            linear.bias = nn.Parameter(b, requires_grad=old is None or old.requires_grad)
        modules.append(linear)
    return modules


def _report(before: list[Tensor], after: list[Tensor], model: nn.Module, result: nn.Module) -> PruneReport:
    return PruneReport(
        widths_before=tuple(len(W) for W, _ in pairwise(before)),
        widths_after=tuple(len(W) for W, _ in pairwise(after)),
        parameters_before=sum(p.numel() for p in model.parameters()),
        parameters_after=sum(p.numel() for p in result.parameters()),
        zeros_before=_zeros(before),
        zeros_after=_zeros(after),
    )


def _zeros(weights: list[Tensor]) -> float:
    return 1.0 - sum(int(W.count_nonzero()) for W in weights) / max(sum(W.numel() for W in weights), 1)
