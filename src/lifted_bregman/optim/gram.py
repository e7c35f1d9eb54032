"""`lb.optim.Gram`: the update rule of the default solver, `GramSweep`, as a torch optimiser."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from lifted_bregman._autocast import full_precision
from lifted_bregman.errors import CompatibilityError, SettingError
from lifted_bregman.maps import Convolution, Dense
from lifted_bregman.optim._layers import Layer, find_layers
from lifted_bregman.optim._ranks import Ranks
from lifted_bregman.optim._records import Record, Recorder
from lifted_bregman.solvers.gram import GramSweep
from lifted_bregman.solvers.gram.moves import Moves, is_wide, updates_metrics

Calls = Mapping[nn.Module, list[Record]]


@dataclass
class _Run:
    """The counters of the run (`moves.StepCounter`), which the first parameter group stores."""

    steps: int = 0
    updates: int = 0
    inverted: int = 0
    fallbacks: Any = 0


class Gram(torch.optim.Optimizer):
    """The update rule of the default solver, `GramSweep`, as an optimiser for a training loop that you write.

    For each dense layer and convolution, hooks on the model record the inputs A and the gradients E of the loss with
    respect to the outputs.  The gradient is preconditioned by the damped inverses of AᵀA/m and EᵀE/m, the metric of
    `GramSweep`.  Moments, step sizes and schedule are those of `GramSweep` too.  Other parameters have no metric and
    otherwise follow the same rule: those of normalisation and embeddings, parameters that several modules share,
    modules that are called twice in a forward pass, and layers with a parametrisation such as weight_norm.

        model = lb.lifted_backward(model)              # optional: signals by proximal maps
        optimizer = lb.optim.Gram(model, total_steps=epochs * len(loader), epochs=epochs)
        for _ in range(epochs):
            for x, y in loader:
                optimizer.zero_grad()
                F.cross_entropy(model(x), y).backward()
                optimizer.step()

    With `lb.lifted_backward`, on a chain of dense layers, the steps are those of `lb.fit`.  For `SquaredError` this
    holds where targets are of about unit size: `lb.fit` lengthens the output layer's steps for large residuals, and
    this optimiser cannot see the loss.  Without `lb.lifted_backward`, E is the back-propagated gradient.  A constant
    factor of the loss changes nothing.  The sum of the samples' losses therefore gives the same steps as their mean.

    model        the model, or its DistributedDataParallel.  `step` then all-reduces sums and gathers rows of all ranks
    params       parameters or parameter groups as torch's optimisers take them; None for all with requires_grad.  A
                 group may have its own lr and weight_decay.  Weight and bias of a layer belong to the same group
    lr           a factor of the step size, for LR schedulers; 1 gives the steps of the default solver
    total_steps  K, the steps of the whole run.  The step size rises and falls to 0 in them: no scheduler is needed.
                 None for a step size that decays like 1/√k
    epochs       passes over the data in K steps, on which weight decay depends; None for no decay
    step_size    as of `GramSweep`, and so are damping and weight_decay
    loss_scale   the torch.amp.GradScaler, if you call its `unscale_` before `step`; otherwise a factor of the loss that
                 changes between steps, as a function that returns it

    Call the model in training mode; under torch.no_grad the hooks record nothing.  With torch.compile, each layer with
    weights causes a graph break.  The gradients of several backward passes before a step are added up.  Gradient
    clipping changes `p.grad`.  It has no effect on dense layers of more than 256 inputs, whose steps are computed from
    A and E.  `state_dict` has all that a resumed run needs.  When the optimiser is deleted, its hooks are removed.
    Copies and pickles of the model have hooks that do nothing.

    Example:
        >>> model = nn.Linear(1, 1)
        >>> optimizer = lb.optim.Gram(model, total_steps=200)
        >>> X = torch.linspace(-1, 1, 20).reshape(-1, 1)
        >>> for _ in range(200):
        ...     optimizer.zero_grad()
        ...     nn.functional.mse_loss(model(X), 2 * X + 1).backward()
        ...     optimizer.step()
        >>> round(model.weight.item(), 2), round(model.bias.item(), 2)
        (2.0, 1.0)
    """

    def __init__(
        self,
        model: nn.Module,
        params: Iterable[Any] | None = None,
        lr: float = 1.0,
        *,
        total_steps: float | None = None,
        epochs: float | None = None,
        step_size: float = 0.6,
        damping: float = 0.5,
        weight_decay: float = 0.15,
        loss_scale: Any = 1.0,
    ) -> None:
        if not lr >= 0.0:
            raise SettingError(f"lr is {lr!r}; it must be a number of at least 0.")
        self._settings = GramSweep(
            step_size=step_size,
            damping=damping,
            weight_decay=weight_decay,
            total_steps=total_steps,
            epochs=epochs,
        )
        parallel = isinstance(model, DistributedDataParallel)
        self._model = model.module if isinstance(model, DistributedDataParallel) else model
        self._ranks = Ranks(model.process_group if parallel else None)
        trained = [p for p in self._model.parameters() if p.requires_grad]
        if not trained:
            raise CompatibilityError(
                f"{type(self._model).__name__} has no parameters that are trained (requires_grad); there is nothing to "
                "move."
            )
        self._recorder = Recorder(self._model)
        self._loss_scale = loss_scale
        self._layers: list[Layer] = []
        super().__init__(trained if params is None else params, {"lr": lr, "weight_decay": weight_decay})
        self.param_groups[0] |= vars(_Run())
        self._arrange()
        # torch.amp.GradScaler then says in `grad_scale` and `found_inf` what it has found.
        self._step_supports_amp_scaling = True

    @property
    def fallbacks(self) -> int:
        """How many factorisations of a damped Gram matrix have failed so far.

        A multiple of the identity then took the place of the inverse.
        """
        return int(self.param_groups[0]["fallbacks"])

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """Adds parameters of the model: {"params": ..., "lr": ..., "weight_decay": ...}, both with defaults.

        Weight and bias of a layer belong to the same group.
        """
        super().add_param_group(param_group)
        if self._layers:
            self._arrange()

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Sets the gradients to None or 0, and discards the A and E that backward passes have completed."""
        super().zero_grad(set_to_none)
        self._recorder.clear(finished_only=True)

    @torch.no_grad()
    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        super().load_state_dict(state_dict)
        group = self.param_groups[0]
        if isinstance(group["fallbacks"], Tensor):
            group["fallbacks"] = group["fallbacks"].to(group["params"][0].device)
        self._expect()

    @torch.no_grad()
    @full_precision
    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """Takes one step; if a GradScaler has found infinities, the parameters stay as they are.

        A `closure` is called first.  It computes the loss and its gradients, and `step` returns the loss.
        """
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        try:
            scales = self._scales()
            if scales is not None:
                self._move(self._recorder.finished(), *scales)
        finally:
            self._recorder.clear()
            self._expect()
        return loss

    # One step

    def _arrange(self) -> None:
        """Finds the layers of the parameters, and the parameter group of each."""
        self._layers = find_layers(self._model, [p for group in self.param_groups for p in group["params"]])
        groups = {id(p): index for index, group in enumerate(self.param_groups) for p in group["params"]}
        self._groups: dict[Layer, int] = {}
        for layer in self._layers:
            found = {groups[id(p)] for p in layer.parameters.values()}
            if len(found) > 1:
                raise SettingError(
                    f"{layer.name}: its parameters are in different parameter groups, and they move together; put "
                    "them into one."
                )
            (self._groups[layer],) = found
            if half := [p.dtype for p in layer.parameters.values() if p.dtype in (torch.bfloat16, torch.float16)]:
                raise CompatibilityError(
                    f"{layer.name}: its parameters are {half[0]}, in which no metric can be computed; keep them in "
                    "float32, and use torch.autocast."
                )
        self._expect()

    def _expect(self) -> None:
        """Sets the layers whose A and E the hooks record for the next step.

        Every layer where the step updates the Gram matrices; otherwise only dense layers of more than 256 inputs.
        """
        group = self.param_groups[0]
        everything = updates_metrics(group["steps"] + 1, group["inverted"])
        self._recorder.wanted = {
            layer.module
            for layer in self._layers
            if layer.module is not None and layer.map is not None and (everything or _is_wide(layer))
        }

    def _scales(self) -> tuple[Any, Any] | None:
        """(factor of E, factor of `p.grad`) that undo the loss scale, each None for 1.

        Returns None if a GradScaler has found infinities.
        """
        found, scale, given = getattr(self, "found_inf", None), getattr(self, "grad_scale", None), self._loss_scale
        if found is not None and bool(found):
            return None
        if found is not None and scale is not None:  # the GradScaler's, which `p.grad` still has
            return 1.0 / scale, 1.0 / scale
        if found is not None and isinstance(given, float | int):
            raise SettingError(
                "a GradScaler has unscaled the gradients, and Gram cannot know its scale; give loss_scale=scaler."
            )
        factor = given.get_scale() if hasattr(given, "get_scale") else given() if callable(given) else given
        if isinstance(factor, float | int) and factor == 1.0:
            return None, None
        return 1.0 / factor, None if found is not None else 1.0 / factor

    def _move(self, calls: Calls, of_signals: Any, of_gradients: Any) -> None:
        """Changes the parameters: Θ ← Θ - η M̂/√V̂ for every layer with a gradient (`GramSweep` has the formulas)."""
        group, ranks = self.param_groups[0], self._ranks
        active = [layer for layer in self._layers if any(p.grad is not None for p in layer.parameters.values())]
        self._require(active, calls)
        run = _Run(*(group[name] for name in vars(_Run())))
        weights = sum(any(p.ndim > 1 for p in layer.parameters.values()) for layer in self._layers)
        moves = Moves(self._settings, run, weights, ranks)
        # Samples of all ranks of the layers that every rank has seen once in each forward pass
        seen = [layer for layer in active if layer.module in self._recorder.wanted]
        own = [_samples(layer, calls) for layer in seen]
        totals = ranks.totals([*own, *(int(count > 0) for count in own)], active[0].first)
        samples = {
            layer: total
            for layer, total, where in zip(seen, totals[: len(seen)], totals[len(seen) :], strict=True)
            if where == ranks.ranks
        }
        for layer in active:
            # ∇ of this layer by name, and the lr and weight decay of its parameter group
            gradient = layer.gradient(of_gradients)
            state, settings = self.state[layer.first], self.param_groups[self._groups[layer]]
            share, decay = settings["lr"], settings["weight_decay"]
            f, key = layer.map, "layer " + " ".join(gradient)
            # Without a metric: M and V of each parameter
            whole = f is not None and set(gradient) == set(f.parameters)
            if not (whole and (layer in samples or (key in state and layer not in seen))):
                _forget(state, gradient)
                for name, g in gradient.items():
                    moves.plain(name, layer.parameters[name], state.setdefault(name, {}), g, share, decay)
                continue
            # With the metric: G = P_E (EᵀA/m) P_A, where x and E are None if this step keeps the Gram matrices
            _forget(state, (key,))
            memory = state.setdefault(key, {})
            x, E = (
                (None, None)
                if layer not in samples
                else _joined(layer, calls, of_signals, samples[layer] / ranks.ranks)
            )
            output = layer.module is self._recorder.last
            if isinstance(f, Dense):
                count = samples.get(layer, 0)
                moves.dense(f, memory, x, E, count, output=output, gradient=gradient, share=share, weight_decay=decay)
            elif isinstance(f, Convolution):
                moves.convolution(f, memory, x, E, gradient, output=output, share=share, weight_decay=decay)
        # Θ of all layers together, then the counters and the warning for a step after the last one of the schedule
        moves.finish()
        if moves.failed:
            run.fallbacks = run.fallbacks + torch.stack(moves.failed).sum()
        group |= vars(run)
        if run.steps == (self._settings.total_steps or 0) + 1 > 1:
            warnings.warn(
                f"this is step {run.steps}, and total_steps is {run.steps - 1}: the rate has ended at 0, and nothing "
                "moves any more. Give the number of steps of the whole run.",
                RuntimeWarning,
                stacklevel=3,
            )

    def _require(self, active: list[Layer], calls: Calls) -> None:
        if not active:
            raise CompatibilityError("step() was called before loss.backward(): no parameter has a gradient.")
        known = [layer for layer in active if layer.module in self._recorder.wanted]
        if known and not calls:
            raise CompatibilityError(
                f"{known[0].name}: it has a gradient, but Gram's hooks saw no call of it; call the model in training "
                "mode (model.train()), through its modules; an exported copy of it has no hooks."
            )


def _is_wide(layer: Layer) -> bool:
    return isinstance(layer.map, Dense) and is_wide(layer.map)


def _forget(state: dict[str, Any], names: Iterable[str]) -> None:
    """Removes every entry of `state` except `names`: moments of an earlier step that used another rule."""
    for name in set(state) - set(names):
        del state[name]


def _samples(layer: Layer, calls: Calls) -> int:
    """Rows of a dense layer or samples of a convolution on this rank; 0 where a forward pass has called it twice."""
    done = calls.get(layer.module, []) if layer.module is not None else []
    if len({record.forward for record in done}) < len(done):
        return 0
    return sum(len(_batched(layer, record.x)) for record in done)


def _joined(layer: Layer, calls: Calls, scale: Any, samples: float) -> tuple[Tensor, Tensor]:
    """A and E of all backward passes, such that AᵀE/samples is `p.grad`."""
    assert layer.module is not None
    done, dtype = calls[layer.module], layer.first.dtype
    x = torch.cat([_batched(layer, record.x) for record in done]) if len(done) > 1 else _batched(layer, done[0].x)
    signals = [_batched(layer, record.E) for record in done if record.E is not None]
    E = torch.cat(signals) if len(signals) > 1 else signals[0]
    return x.to(dtype), E.to(dtype) * (samples if scale is None else samples * scale)


def _batched(layer: Layer, t: Tensor) -> Tensor:
    """Inputs or signals with one batch dimension: rows of a dense layer, samples of a convolution."""
    if isinstance(layer.map, Dense):
        return t.reshape(-1, t.shape[-1])
    assert isinstance(layer.map, Convolution)
    return t if t.ndim == layer.map.module.weight.ndim else t[None]
