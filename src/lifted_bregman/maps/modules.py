"""Any other differentiable map, through `torch.func`."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager

import torch
from torch import Tensor, nn
from torch.func import functional_call, vjp

from lifted_bregman._linalg import (
    NormalOperator,
    PowerIteration,
    Vector,
    certified_bound,
    positive_bound,
)
from lifted_bregman._no_graph import no_graph
from lifted_bregman.activations.torch_modules import is_activation
from lifted_bregman.errors import ActivationDerivativeError, CompatibilityError
from lifted_bregman.maps.base import LayerMap, Map
from lifted_bregman.maps.determinism import changes_with_mode, require_pure, submodules

_TRANSPOSED = (nn.ConvTranspose1d, nn.ConvTranspose2d, nn.ConvTranspose3d)
_MATRIX_ENTRIES = 2**22  # a map with at most this many is written out as a matrix for a tight bound


class ModuleMap(LayerMap):
    """The composition of `modules`, at most one of which has parameters; Jacobians by `torch.func.vjp`.

    affine=True is for torch's own linear modules (convolution, average pooling, flattening, `nn.Linear`), whose
    matrices have entries of the sign of their weights.

    paths says where each of the modules stands in the user's model.  With paths, every use of the map raises
    `UnsupportedModuleError` while one of the modules is random or couples samples, which training mode can do at any
    time.
    """

    def __init__(
        self,
        modules: Sequence[nn.Module],
        affine: bool,
        channels_first: bool = False,
        paths: Sequence[str] = (),
    ) -> None:
        self.modules = tuple(modules)
        self.paths = tuple(paths)
        self._changing = [
            (where, inner)
            for path, module in zip(self.paths, self.modules, strict=False)
            for where, inner in submodules(module, path)
            if changes_with_mode(inner)
        ]
        self.affine = affine
        self.channels_first = channels_first
        self._chain = nn.Sequential(*modules)
        holders = [index for index, module in enumerate(modules) if any(True for _ in module.parameters())]
        self._holder = self.modules[holders[0]] if holders else None
        # The names of a user's module inside this chain, and inside `Map`, carry no information.
        self._prefix = f"{holders[0]}." if holders else ""
        if isinstance(self._holder, Map):
            self._holder, self._prefix = self._holder.module, self._prefix + "module."

    @property
    def parameters(self) -> dict[str, nn.Parameter]:
        if self._holder is None:
            return {}
        return {name: p for name, p in self._holder.named_parameters() if p.requires_grad}

    def unit_rows(self, weight: Tensor) -> Tensor:
        if not isinstance(self._holder, _TRANSPOSED):
            return super().unit_rows(weight)
        groups = self._holder.groups  # the weight is (groups·inputs, units of a group, ...)
        split: Tensor = weight.unflatten(0, (groups, -1))
        return split.transpose(1, 2).flatten(0, 1).flatten(1)

    def from_unit_rows(self, matrix: Tensor, weight: Tensor) -> Tensor:
        if not isinstance(self._holder, _TRANSPOSED):
            return super().from_unit_rows(matrix, weight)
        inputs = len(weight) // self._holder.groups
        split: Tensor = matrix.unflatten(0, (self._holder.groups, -1)).unflatten(2, (inputs, *weight.shape[2:]))
        return split.transpose(1, 2).flatten(0, 1)

    def require_pure(self) -> None:
        """An error that names a module which is random, or couples samples, as it is set now."""
        for path, module in self._changing:
            require_pure(module, path)

    @no_graph
    def apply(self, x: Tensor) -> Tensor:
        self.require_pure()
        z: Tensor = self._chain(x)
        return z

    def evaluate(self, x: Tensor) -> Tensor:
        self.require_pure()
        for module in self.modules:
            x = module(x)
        return x

    @no_graph
    def pull_back_input(self, x: Tensor, d: Tensor) -> Tensor:
        with self._differentiating():
            pull_back = vjp(self._chain, x.detach())[1]
            pulled: Tensor = pull_back(d.detach())[0]
        return pulled

    @no_graph
    def accumulate_parameters(
        self, x: Tensor, d: Tensor, into: Mapping[str, Tensor], scale: float = 1.0, decay: float = 1.0
    ) -> None:
        for name, pulled in self.pull_back_parameters(x, d).items():
            if decay == 0.0:
                torch.mul(pulled, scale, out=into[name].detach())
            else:
                into[name].mul_(decay).add_(pulled, alpha=scale)

    @no_graph
    def pull_back_parameters(self, x: Tensor, d: Tensor, scale: float = 1.0) -> dict[str, Tensor]:
        values = {name: p.detach() for name, p in self.parameters.items()}
        if not values:
            return {}
        with self._differentiating():
            pull_back = vjp(self._as_function_of_parameters(x.detach()), values)[1]
            pulled: dict[str, Tensor] = pull_back(d.detach() * scale if scale != 1.0 else d.detach())[0]
        return pulled

    @no_graph
    def input_curvature(
        self, x: Tensor, power: PowerIteration | None = None, upper: bool = False, which: int = 0
    ) -> float:
        """‖J_x‖₂².  Upper bound: N = |J|ᵀ|J| dominates JᵀJ entry by entry and has no negative entry (`positive_bound`).

        |J| is the map with the absolute values of its weights.  Small maps are also written out as a matrix, whose
        `certified_bound` is tighter; the smaller of the two is returned.
        """
        base = x[:1].detach() if self.affine else x.detach()
        if not upper:
            with self._differentiating():
                return (power or PowerIteration()).estimate(_normal_in_input(self._chain, base), (base,))
        self._require_affine()
        base = base.double()
        absolute = self._with(lambda p: p.detach().double().abs())
        bound = positive_bound(_normal_in_input(absolute, base), (base,))
        exact = self._with(lambda p: p.detach().double())
        zero = torch.zeros_like(base)
        offset = exact(zero)
        if base.numel() * offset.numel() <= _MATRIX_ENTRIES:
            units = torch.eye(base.numel(), dtype=base.dtype, device=base.device).view(-1, *base.shape[1:])
            matrix = (exact(units) - offset).flatten(1)
            estimate = PowerIteration().estimate(lambda v: (matrix @ (matrix.t() @ v[0]),), (matrix[:, 0],))
            bound = min(bound, certified_bound(matrix, estimate))
        return bound

    @no_graph
    def parameter_curvature(self, x: Tensor, power: PowerIteration | None = None, upper: bool = False) -> float:
        """‖J_Θ‖₂².  Upper bound: |x| in place of x makes J_Θ larger and non-negative (`positive_bound`).

        It is tight for inputs that are not negative, such as images and the outputs of ReLU layers.
        """
        values = {name: p.detach() for name, p in self.parameters.items()}
        if not values:
            return 0.0
        x = x.detach()
        if upper:
            self._require_affine()
            x = x.double().abs()
            values = {name: p.double() for name, p in values.items()}
        with self._differentiating():
            normal = _normal_in_parameters(self._as_function_of_parameters(x), values)
            if upper:
                return positive_bound(normal, tuple(values.values()))
            return (power or PowerIteration()).estimate(normal, tuple(values.values()))

    @contextmanager
    def _differentiating(self) -> Iterator[None]:
        """Around every Jacobian: modules are checked, and an `ActivationDerivativeError` names the `lb.Map`."""
        self.require_pure()
        try:
            yield
        except ActivationDerivativeError as error:
            maps = [(path, m) for path, m in zip(self.paths, self.modules, strict=False) if isinstance(m, Map)]
            found = {
                path: [f"{where} ({type(m).__name__})" for where, m in submodules(module, path) if is_activation(m)]
                for path, module in maps
            }
            if not found:
                raise
            path = next((path for path, inside in found.items() if inside), maps[0][0])
            raise ActivationDerivativeError(
                f"{path} (Map) holds {' and '.join(found[path]) or 'an activation'}, which its Jacobian "
                "differentiates, within forbid_activation_derivatives(): take the activation out of the Map, so that "
                "it stands in the nn.Sequential and is lifted; or leave the context."
            ) from error

    def _as_function_of_parameters(self, x: Tensor) -> Callable[[dict[str, Tensor]], Tensor]:
        frozen = self._values(lambda p: p.detach().to(x.dtype))

        def function(values: dict[str, Tensor]) -> Tensor:
            named = frozen | {self._prefix + name: value for name, value in values.items()}
            z: Tensor = functional_call(self._chain, named, (x,))
            return z

        return function

    def _with(self, change: Callable[[Tensor], Tensor]) -> Callable[[Tensor], Tensor]:
        """The map with every parameter changed."""
        values = self._values(change)

        def function(x: Tensor) -> Tensor:
            z: Tensor = functional_call(self._chain, values, (x,))
            return z

        return function

    def _values(self, change: Callable[[Tensor], Tensor]) -> dict[str, Tensor]:
        return {name: change(p) for name, p in self._chain.named_parameters()}

    def _require_affine(self) -> None:
        if not self.affine:
            raise CompatibilityError(
                f"no guaranteed bound on the curvature of {type(self._holder or self.modules[0]).__name__} is known, "
                "because lb.Map takes any differentiable module: ask for an estimate (upper=False) and use a step-size "
                "rule that checks its own descent, such as backtracking."
            )


def _normal_in_input(function: Callable[[Tensor], Tensor], x: Tensor) -> NormalOperator:
    z, pull_back = vjp(function, x)[:2]
    # u -> Jᵀu is linear, so that its own pull-back is v -> Jv, without forward-mode differentiation.
    push = vjp(lambda u: vjp(function, x)[1](u)[0], z)[1]

    def normal(v: Vector) -> Vector:
        return (pull_back(push(*v)[0])[0],)

    return normal


def _normal_in_parameters(function: Callable[[dict[str, Tensor]], Tensor], values: dict[str, Tensor]) -> NormalOperator:
    z, pull_back = vjp(function, values)[:2]
    push = vjp(lambda u: vjp(function, values)[1](u)[0], z)[1]

    def normal(v: Vector) -> Vector:
        image = push(dict(zip(values, v, strict=True)))[0]
        return tuple(pull_back(image)[0].values())

    return normal
