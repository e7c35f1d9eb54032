"""The parameters of a model, grouped by module, and which modules have a metric."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from torch import Tensor, nn
from torch.nn.utils.parametrize import is_parametrized

from lifted_bregman.errors import SettingError
from lifted_bregman.maps import Convolution, Dense

CONVOLUTIONS = (nn.Conv1d, nn.Conv2d, nn.Conv3d, nn.ConvTranspose1d, nn.ConvTranspose2d, nn.ConvTranspose3d)


@dataclass(frozen=True, eq=False)
class Layer:
    """The parameters of one module, which move together."""

    name: str
    module: nn.Module | None
    """None for a parameter that several modules share."""
    parameters: dict[str, nn.Parameter]
    map: Dense | Convolution | None
    """The map in whose metric the layer moves; None where it moves along its gradient."""

    @property
    def first(self) -> nn.Parameter:
        """The first parameter of the layer; the optimiser's `state` of the whole layer is stored under it."""
        return next(iter(self.parameters.values()))

    def gradient(self, scale: Any) -> dict[str, Tensor]:
        """`p.grad` times `scale` by name, for the parameters that have a gradient."""
        found = {name: p.grad for name, p in self.parameters.items() if p.grad is not None}
        dense = {name: g.to_dense() if g.is_sparse else g for name, g in found.items()}
        return dense if scale is None else {name: g * scale for name, g in dense.items()}


def find_layers(model: nn.Module, given: list[nn.Parameter]) -> list[Layer]:
    """The given parameters by the modules that have them; a parameter of several modules is a layer by itself."""
    wanted = {id(p) for p in given}
    owners: dict[int, list[tuple[str, nn.Module, str, nn.Parameter]]] = {}
    for path, module in model.named_modules():
        for name, p in module.named_parameters(recurse=False):
            if id(p) in wanted:
                owners.setdefault(id(p), []).append((path, module, name, p))
    if missing := [p for p in given if id(p) not in owners]:
        raise SettingError(
            f"params has {len(missing)} parameters that {type(model).__name__} does not have, the first of shape "
            f"{tuple(missing[0].shape)}; give the model that they belong to."
        )
    shared = {id(entry[1]) for found in owners.values() if len(found) > 1 for entry in found}
    grouped: dict[Any, list[Any]] = {}
    for key, found in owners.items():
        path, module, name, p = found[0]
        grouped.setdefault((key,) if len(found) > 1 else id(module), []).append((path, module, name, p))
    layers = []
    for entries in grouped.values():
        path, module, name, _ = entries[0]
        alone = id(module) not in shared
        parameters = {own: p for _, _, own, p in entries}
        layers.append(Layer(path or name, module if alone else None, parameters, _map(module) if alone else None))
    return layers


def _map(module: nn.Module) -> Dense | Convolution | None:
    """The dense or convolution map of a module; None for other modules, and for subclasses that redefine forward.

    None also where a weight is parametrised: it is computed from parameters of another module.
    """
    if is_parametrized(module):
        return None
    if isinstance(module, nn.Linear) and type(module).forward is nn.Linear.forward:
        return Dense(module)
    return Convolution(module) if type(module) in CONVOLUTIONS else None  # type: ignore[arg-type]
