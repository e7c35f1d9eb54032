"""`prune` of any traced model: removes units of convolutions and linear layers, with their batch normalisation."""

from __future__ import annotations

import copy
from typing import Any

import torch
from torch import Tensor, nn

from lifted_bregman.errors import UnsupportedModuleError
from lifted_bregman.graph.trace import trace
from lifted_bregman.graph.units import CONVOLUTIONS, OUTPUT, Units, find_units
from lifted_bregman.maps.determinism import nearly_equal, unchanged


@torch.no_grad()
def prune_graph(model: nn.Module, example: tuple[Tensor, ...]) -> tuple[nn.Module, dict[str, str]]:
    """A smaller copy of the model, and {layer with dead units that were kept: what needs them}.

    Units that meet in a sum are removed together or not at all.  Both models agree in evaluation mode.
    """
    smaller = copy.deepcopy(model)
    held: dict[str, str] = {}
    while _pass(smaller, example, held):
        pass
    if not nearly_equal(_answer(model, example), _answer(smaller, example)):
        raise UnsupportedModuleError(
            "the model cannot be pruned: without its dead units it computes something else, for its forward reads the "
            "widths of its layers; write that part with sizes of tensors."
        )
    return smaller, held


def _pass(model: nn.Module, example: tuple[Tensor, ...], held: dict[str, str]) -> bool:
    """Removes the units that are dead now; returns whether there were any."""
    graph, _, _ = trace(model, example)
    everything = model.named_modules(remove_duplicate=False)
    modules: dict[str, Any] = {f"model.{name}" if name else "model": module for name, module in everything}
    units = find_units(graph, modules)
    constants = _constants(model, example, units, modules)
    gone: set[int] = set()
    held.clear()
    left = {path: len(made) for path, made in units.made.items()}
    for own in sorted({units.class_of(unit) for made in units.made.values() for unit in made}):
        members = {path: _places(made, own, units) for path, made in units.made.items()}
        members = {path: places for path, places in members.items() if places}
        reason = _why_not(own, members, units, modules, constants)
        if reason is None and all(left[path] > len(places) for path, places in members.items()):
            gone.add(own)
            for path, places in members.items():
                left[path] -= len(places)
        elif reason:
            held |= dict.fromkeys(members, reason)
    if gone:
        _shift(gone, units, modules, constants)
        _shrink(gone, units, modules)
    return bool(gone)


def _why_not(
    own: int, members: dict[str, list[int]], units: Units, modules: dict[str, Any], constants: dict[str, Tensor]
) -> str | None:
    """None if a class of units can be removed, "" if it is not dead, else what needs its dead units."""
    constant = all(not modules[path].weight[places].any() for path, places in members.items())
    if own in units.held:
        return units.held[own] if constant and units.held[own] != OUTPUT else ""
    for path, labels in units.read.items():
        weight = modules[path].weight
        places = [j for j in _places(labels.units, own, units) if bool(weight[:, j].any())]
        if not places:
            continue
        if not constant:
            return ""
        low, high = constants[path][:, places]
        if bool((high - low > 8.0 * torch.finfo(low.dtype).eps * high.abs()).any()):
            return f"{path}, whose input from them is not the same everywhere"
        if bool(low.any()) and not _keeps_constants(modules[path]):
            return f"the zero padding of {path}, which a constant other than 0 does not pass"
    return None


def _places(labels: tuple[int, ...], own: int, units: Units) -> list[int]:
    """The positions of the units of a class."""
    return [place for place, unit in enumerate(labels) if units.class_of(unit) == own]


def _keeps_constants(module: Any) -> bool:
    """Whether a constant input acts like a bias: not with zero padding, which differs at the edges."""
    if type(module) not in CONVOLUTIONS or module.padding_mode != "zeros" or module.padding == "valid":
        return True
    return module.padding != "same" and not any(module.padding)


def _constants(
    model: nn.Module, example: tuple[Tensor, ...], units: Units, modules: dict[str, Any]
) -> dict[str, Tensor]:
    """The smallest and largest value of each input of a layer over samples and places, (2, inputs)."""
    found: dict[str, Tensor] = {}

    def note(path: str) -> Any:
        def hook(module: nn.Module, args: tuple[Tensor, ...]) -> None:
            rows = args[0].movedim(units.read[path].axis, 0).flatten(1)
            found[path] = torch.stack((rows.amin(1), rows.amax(1)))

        return hook

    hooks = [modules[path].register_forward_pre_hook(note(path)) for path in units.read]
    try:
        _answer(model, example)
    finally:
        for hook in hooks:
            hook.remove()
    return found


def _answer(model: nn.Module, example: tuple[Tensor, ...]) -> Tensor:
    """The model's output in evaluation mode."""
    modes = {module: module.training for module in model.modules()}
    try:
        model.eval()
        with unchanged(model, example[0]):
            output: Tensor = model(*example)
    finally:
        for module, mode in modes.items():
            module.training = mode
    return output


def _shift(gone: set[int], units: Units, modules: dict[str, Any], constants: dict[str, Tensor]) -> None:
    """Adds W σ(b) of the removed constant units to the biases of the layers that read them."""
    for path, labels in units.read.items():
        module = modules[path]
        removed = torch.tensor([units.class_of(u) in gone for u in labels.units], device=module.weight.device)
        W = module.weight.flatten(2).sum(2) if module.weight.ndim > 2 else module.weight
        removed &= module.weight.transpose(0, 1).flatten(1).any(1)  # the constants of unread ones do not count
        shift = W[:, removed] @ constants[path][0][removed]
        if not bool(shift.any()):
            continue
        trained = module.weight.requires_grad if module.bias is None else module.bias.requires_grad
        module.bias = nn.Parameter(shift if module.bias is None else module.bias + shift, requires_grad=trained)


def _shrink(gone: set[int], units: Units, modules: dict[str, Any]) -> None:
    """Removes rows, columns and statistics of the removed units from the modules."""

    def kept(labels: tuple[int, ...], like: Tensor) -> Tensor:
        return torch.tensor([units.class_of(u) not in gone for u in labels], device=like.device)

    for path, made in units.made.items():
        module = modules[path]
        rows = kept(made, module.weight)
        _replace(module, ("weight", "bias"), rows)
        setattr(module, "out_features" if isinstance(module, nn.Linear) else "out_channels", int(rows.sum()))
    for path, labels in units.read.items():
        module = modules[path]
        columns = kept(labels.units, module.weight)
        module.weight = nn.Parameter(module.weight[:, columns].clone(), requires_grad=module.weight.requires_grad)
        setattr(module, "in_features" if isinstance(module, nn.Linear) else "in_channels", int(columns.sum()))
    for path, acted_on in units.normalised.items():
        module = modules[path]
        rows = kept(acted_on, next(modules["model"].parameters()))
        _replace(module, ("weight", "bias", "running_mean", "running_var"), rows)
        module.num_features = int(rows.sum())


def _replace(module: Any, names: tuple[str, ...], rows: Tensor) -> None:
    """Replaces parameters and buffers of a module, by name, by the given rows of them."""
    for name in names:
        value = getattr(module, name)
        if isinstance(value, nn.Parameter):
            setattr(module, name, nn.Parameter(value[rows].clone(), requires_grad=value.requires_grad))
        elif value is not None:
            setattr(module, name, value[rows].clone())
