"""`lb.optim.Gram`: the moves of the default solver as a torch optimiser."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from lifted_bregman._arguments import require_count
from lifted_bregman._autocast import full_precision
from lifted_bregman.errors import CompatibilityError, SettingError
from lifted_bregman.maps import Convolution
from lifted_bregman.optim._ranks import Ranks
from lifted_bregman.optim._records import Record, Recorder, Reduction
from lifted_bregman.optim._rule import LayerStep, RunState, Seen, apply_rule
from lifted_bregman.solvers.gram import GramSweep

CONVOLUTIONS = (nn.Conv1d, nn.Conv2d, nn.Conv3d, nn.ConvTranspose1d, nn.ConvTranspose2d, nn.ConvTranspose3d)


@dataclass(frozen=True, eq=False)
class _Layer:
    """The parameters of one module, which move together."""

    name: str
    module: nn.Module | None
    """None for a parameter that several modules share."""
    parameters: dict[str, nn.Parameter]
    convolution: Convolution | None = None

    @property
    def first(self) -> nn.Parameter:
        """The parameter in whose state the rule keeps what it remembers of the layer."""
        return next(iter(self.parameters.values()))

    def gradient(self) -> dict[str, Tensor]:
        """The gradients that there are, by name."""
        found = {name: p.grad for name, p in self.parameters.items() if p.grad is not None}
        return {name: g.to_dense() if g.is_sparse else g for name, g in found.items()}


class Gram(torch.optim.Optimizer):
    """The moves of the default solver in a training loop of your own.

    Hooks on the model's layers record their inputs A and the gradients E of the loss in their outputs.  `step` then
    makes the moves of `GramSweep`: a dense layer solves (AᵀA/m + tI) Δ = AᵀE/m, in sample space where it has more
    inputs than `block`; a convolution takes the metric of some of its patches, an embedding that of the counts of its
    entries; other parameters, and those that occur in several modules or calls, move along `p.grad`.  Each unit gets
    the length r_k/√(n Σ s_j), and the parameters stay between the fast iterate V and its average.

        model = lb.lifted_backward(model)              # optional: signals by proximal maps
        optimizer = lb.optim.Gram(model)
        for x, y in loader:
            optimizer.zero_grad()
            F.cross_entropy(model(x), y).backward()
            optimizer.step()

    With `lb.lifted_backward` on a chain of dense layers these are the numbers of `lb.fit`'s default; without it the
    same moves with back-propagated signals.

    model             the model, or its DistributedDataParallel: then sums and rows of all ranks are joined in `step`
    params            parameters or parameter groups as torch's optimisers take them; None for all that are trained.  A
                      group may have its own lr.  Weight and bias of a layer belong to one group
    lr                a factor of the steps, for LR schedulers; 1 is the default solver
    reduction         "mean" or "sum", what the loss is over the samples of a batch
    terms_per_sample  how many terms of a sample a mean is over besides: the outputs of a sample for nn.MSELoss
    loss_scale        what the loss is multiplied by: a number (1/K where it is divided by K for gradient
                      accumulation), a function that returns it, or a torch.amp.GradScaler
    total_steps       the steps of the whole run, for rules that end with it; the present rule needs none
    step_size ..      as of `lb.GramSweep`

    The model is called in training mode; nothing is recorded under torch.no_grad.  A model that torch.compile compiles
    is cut at its layers.  Several backward passes before a step add up.  Moves have lengths of their own: clipping
    changes `p.grad` only, and with it those parameters that move along it.  `state_dict` has all that a resumed run
    needs.
    """

    def __init__(
        self,
        model: nn.Module,
        params: Iterable[Any] | None = None,
        lr: float = 1.0,
        *,
        reduction: str = "mean",
        terms_per_sample: float = 1.0,
        loss_scale: Any = 1.0,
        total_steps: int | None = None,
        step_size: float = 0.3,
        trust: float = 0.15,
        damping: float = 0.15,
        narrow_damping: float = 3.0,
        average: float = 0.97,
        power: float = 2.0,
        block: int = 100,
    ) -> None:
        if reduction not in ("mean", "sum"):
            raise SettingError(
                f"reduction is {reduction!r}; it must be 'mean' or 'sum', what the loss is over a batch."
            )
        if not lr >= 0.0:
            raise SettingError(f"lr is {lr!r}; it must be a number of at least 0.")
        if total_steps is not None:
            require_count(total_steps, "total_steps")
        self._total_steps = total_steps
        self._settings = GramSweep(
            step_size=step_size,
            trust=trust,
            damping=damping,
            narrow_damping=narrow_damping,
            average=average,
            power=power,
            block=block,
        )
        inner = model.module if isinstance(model, DistributedDataParallel) else model
        self._ranks = Ranks(model.process_group if isinstance(model, DistributedDataParallel) else None)
        trained = [p for p in inner.parameters() if p.requires_grad]
        if not trained:
            raise CompatibilityError(
                f"{type(inner).__name__} has no parameters that are trained (requires_grad); there is nothing to move."
            )
        super().__init__(trained if params is None else params, {"lr": lr})
        self._layers = _layers(inner, [p for group in self.param_groups for p in group["params"]])
        self._groups = {id(p): index for index, group in enumerate(self.param_groups) for p in group["params"]}
        for layer in self._layers:
            if len({self._groups[id(p)] for p in layer.parameters.values()}) > 1:
                raise SettingError(
                    f"{layer.name}: its parameters are in different parameter groups, and they move together; put "
                    "them into one."
                )
        self.param_groups[0] |= {"steps": 0, "distance": trained[0].new_full((), step_size), "fallbacks": 0}
        recorded = [layer.module for layer in self._layers if layer.module is not None and _is_known(layer)]
        self._recorder = Recorder(inner, recorded, Reduction(reduction == "mean", terms_per_sample, loss_scale))
        self._loss_scale = loss_scale
        # torch.amp.GradScaler then says in `grad_scale` and `found_inf` what it has found.
        self._step_supports_amp_scaling = True

    @property
    def fallbacks(self) -> int:
        """Moves in which a gradient step replaced the solution of a linear system."""
        return int(self.param_groups[0]["fallbacks"])

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Sets the gradients to None or 0, and forgets what backward passes have recorded."""
        super().zero_grad(set_to_none)
        self._recorder.clear(finished_only=True)

    @torch.no_grad()
    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        super().load_state_dict(state_dict)
        for name, value in self.param_groups[0].items():
            if isinstance(value, Tensor):
                self.param_groups[0][name] = value.to(self.param_groups[0]["params"][0].device)

    @torch.no_grad()
    @full_precision
    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """Moves the parameters once; a closure computes the loss and its gradients first, and is returned."""
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        try:
            scales = self._scales()
            if scales is not None:
                self._move_all(self._recorder.finished(), *scales)
        finally:
            self._recorder.clear()
        return loss

    # One step

    def _scales(self) -> tuple[Any, Any] | None:
        """By what E and `p.grad` must be multiplied; None where a GradScaler has found infinities."""
        found, scale = getattr(self, "found_inf", None), getattr(self, "grad_scale", None)
        if found is None:
            return 1.0, 1.0
        if bool(found):
            return None
        if self._loss_scale == 1.0:
            if scale is None:
                raise SettingError(
                    "a GradScaler has unscaled the gradients, and Gram cannot know its scale; give loss_scale=scaler."
                )
            return 1.0 / scale, 1.0 / scale
        # The hooks have divided by the scale of the loss; gradients may be unscaled already.
        unscaled = scale is None and hasattr(self._loss_scale, "get_scale")
        return 1.0, self._loss_scale.get_scale() if unscaled else 1.0

    def _move_all(self, calls: Mapping[nn.Module, list[Record]], of_signals: Any, of_gradients: Any) -> None:
        active = [layer for layer in self._layers if any(p.grad is not None for p in layer.parameters.values())]
        self._require(active, calls)
        group = self.param_groups[0]
        run = RunState(group["steps"], group["distance"], group["fallbacks"])
        factor, samples = _reduction(calls, self._ranks)
        # J_Θᵀ E/samples of all ranks, whose mean DistributedDataParallel has computed
        scale = factor * of_gradients * self._ranks.count / samples
        output, steps = _last(calls), []
        for layer in active:
            parameters = {name: p.detach() for name, p in layer.parameters.items() if p.grad is not None}
            seen = _seen(layer, calls, of_signals, layer.module is output, self._ranks)
            wanted = seen is None or seen.kind != "dense"
            gradient = {name: g * scale for name, g in layer.gradient().items()} if wanted else {}
            lr, state = self._group(layer)["lr"], self.state[layer.first]
            steps.append(LayerStep(parameters, gradient, seen, layer.convolution, lr, state))
        apply_rule(self._settings, steps, run, self._total_steps, self._ranks)
        group |= {"steps": run.steps, "distance": run.distance, "fallbacks": run.fallbacks}

    def _require(self, active: list[_Layer], calls: Mapping[nn.Module, list[Record]]) -> None:
        if not active:
            raise CompatibilityError("step() was called before loss.backward(): no parameter has a gradient.")
        known = [layer for layer in active if layer.module is not None and _is_known(layer)]
        if known and not calls:
            raise CompatibilityError(
                f"{known[0].name}: it has a gradient, but Gram's hooks saw no call of it; call the model in training "
                "mode (model.train()), through its modules; an exported copy of it has no hooks."
            )

    def _group(self, layer: _Layer) -> dict[str, Any]:
        return self.param_groups[self._groups[id(layer.first)]]


def _seen(
    layer: _Layer, calls: Mapping[nn.Module, list[Record]], scale: Any, output: bool, ranks: Ranks
) -> Seen | None:
    """None where the layer moves along its gradient: no rule for it, or several calls in one forward pass."""
    module = layer.module
    if module is None or not _is_known(layer) or module not in calls:
        return None
    done = calls[module]
    if len({record.forward for record in done}) < len(done):
        return None
    dtype = layer.first.dtype
    E = _joined([record.E for record in done if record.E is not None]).to(dtype)
    E = E if isinstance(scale, float) and scale == 1.0 else E * scale
    x = _joined([record.x for record in done])
    if isinstance(module, nn.Linear):
        kind, x, E = "dense", x.to(dtype), E.reshape(-1, E.shape[-1])
        rows = len(E)
    elif isinstance(module, nn.Embedding):
        kind, rows = "embedding", x.numel()
    else:
        kind, x, rows = "convolution", x.to(dtype), len(E) * math.prod(E.shape[2:])
    square = torch.stack([record.square for record in done]).sum().to(dtype)
    residual = torch.linalg.vector_norm(E).square_()
    ranks.all_sum(square, residual)
    counts = rows, sum(record.samples for record in done), E.numel()
    total_rows, samples, entries = (ranks.total(count, E) for count in counts)
    return Seen(kind, x, E, total_rows, samples, square, residual, entries, output)


def _joined(parts: list[Tensor]) -> Tensor:
    return parts[0] if len(parts) == 1 else torch.cat(parts)


def _reduction(calls: Mapping[nn.Module, list[Record]], ranks: Ranks) -> tuple[Any, int]:
    """c of a forward pass, and the samples of all forward passes on all ranks."""
    passes = {record.forward: record for done in calls.values() for record in done}
    if not passes:
        return 1.0, ranks.count
    first = next(iter(passes.values()))
    return first.factor, ranks.total(sum(record.samples for record in passes.values()), first.square)


def _last(calls: Mapping[nn.Module, list[Record]]) -> nn.Module | None:
    """The layer that was called last in a forward pass: the output layer."""
    found = [(record.forward, record.place, module) for module, done in calls.items() for record in done]
    return max(found, key=lambda entry: entry[:2])[2] if found else None


def _is_known(layer: _Layer) -> bool:
    """Whether there is a rule for the layer besides the gradient, and its module computes what its class does."""
    module = layer.module
    if isinstance(module, nn.Linear):
        return type(module).forward is nn.Linear.forward
    if isinstance(module, nn.Embedding):
        plain = module.max_norm is None and not module.scale_grad_by_freq
        return type(module).forward is nn.Embedding.forward and plain
    return layer.convolution is not None


def _layers(model: nn.Module, given: list[nn.Parameter]) -> list[_Layer]:
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
        convolution = Convolution(module) if alone and type(module) in CONVOLUTIONS else None
        parameters = {own: p for _, _, own, p in entries}
        layers.append(_Layer(path or name, module if alone else None, parameters, convolution))
    return layers
