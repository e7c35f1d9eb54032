"""`lifted_backward` and `plain_backward`: lifted activations in a user's own training loop, and back to autograd."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from typing import Any, TypeVar

import torch
from torch import Tensor, nn

from lifted_bregman._arguments import positive
from lifted_bregman.activations.torch_modules import is_activation
from lifted_bregman.backward._forward import LiftedForward, rule_of
from lifted_bregman.backward._rule import ActivationRow, Rule
from lifted_bregman.backward._survey import nothing_to_lift
from lifted_bregman.errors import CompatibilityError, SettingError, UnsupportedModuleError
from lifted_bregman.graph.decompose import MODULES
from lifted_bregman.maps import Map
from lifted_bregman.penalties import Penalty

Model = TypeVar("Model", bound=nn.Module)
LossScale = float | Callable[[], Any] | torch.amp.GradScaler
"""A number, a function that returns it, or a GradScaler."""


def lifted_backward(
    model: Model,
    nudge: float = 0.5,
    reduction: str = "mean",
    *,
    terms_per_sample: float = 1,
    loss_scale: LossScale = 1.0,
    penalties: Mapping[str, Penalty] | None = None,
    gates: bool = False,
    leave: Collection[str] = (),
    example: Any = None,
) -> Model:
    """Gives every proximal activation of a model a backward pass without derivative; returns the same model.

    Forward passes compute the same as before.  In `loss.backward()` an activation x = σ(z) = prox_Ψ(z) answers the
    gradient G of its output with

        (σ(z) - prox_Ψ(z - ν c G))/(ν c)     in place of     σ'(z) G ,

    with one ν for each sample: ν_i = min(ν/P, 0.3 ‖z_i‖/‖c G_i‖).  P is the number of activations on the longest path
    through the model.  ν → 0 gives autograd's gradients.  The result is never longer than G.  Units that are switched
    off or saturated get a signal where autograd gives 0.

    Activations are found as modules, functions and methods while forward runs.  The class of the model, its parameters
    and the keys of `state_dict` stay the same.  `backward_report` lists the activations; `plain_backward` undoes the
    change.

    Args:
        model: any `nn.Module`.  Dimension 0 of the first tensor that its forward takes holds the samples.
        nudge: ν > 0.
        reduction: "mean" or "sum", as your loss reduces the samples' losses.  It sets c, for which c G_i is the
            gradient of one sample's loss.  If it is wrong, ν is off by a factor of the batch size.
        terms_per_sample: how many terms of a "mean" belong to one sample: 1 for one label each, T for a label at each
            of T positions, the number of outputs for `F.mse_loss`.  c is the number of samples times this.
        loss_scale: the factor on the loss before backward(): the GradScaler you use, 1/k when you accumulate
            the gradients of k batches as loss/k, or a function that returns it.
        penalties: R on outputs of activations, {name of the module that calls the activation: penalty}.  The backward
            pass of these activations uses prox_{Ψ + νR} with ν <= 0.001.  R is added to each sample's loss.
        gates: SiLU, GELU, Mish, Hardswish and GLU are products x σ(x) and no proximal maps.  With False, autograd
            differentiates them.  With True, they are written out as products and their σ is lifted, as in `lb.lift`;
            a gate then takes several times as long.
        leave: names of modules whose activations autograd differentiates, such as a fused recurrent layer.
        example: an input of the model, or a tuple of its inputs.  With an example, one forward pass now finds and
            counts the activations.  Without one, the first forward pass does.  `torch.compile` needs an example, or a
            forward pass before it.

    Example:
        >>> relu = lb.lifted_backward(nn.Sequential(nn.ReLU()), nudge=0.5, reduction="sum")
        >>> z = torch.tensor([[-0.01, 4.0]], requires_grad=True)
        >>> relu(z).backward(torch.tensor([[-1.0, -1.0]]))
        >>> z.grad
        tensor([[-0.9800, -1.0000]])
    """
    rule = _rule(model, nudge, reduction, terms_per_sample, loss_scale, penalties, gates, leave)
    for path, module in model.named_modules():
        if _is_watched(path, module, rule):
            module.__dict__["forward"] = LiftedForward(module, path, rule)
    if example is not None:
        try:
            _look(model, example)
        except BaseException:
            plain_backward(model)
            raise
    return model


def plain_backward(model: Model) -> Model:
    """Undoes `lifted_backward`: autograd differentiates the activations again.  Returns the same model.

    Example:
        >>> model = lb.plain_backward(lb.lifted_backward(nn.Sequential(nn.ReLU())))
        >>> z = torch.tensor([[-0.1, 1.0]], requires_grad=True)
        >>> model(z).sum().backward()
        >>> z.grad
        tensor([[0., 1.]])
    """
    rule_of(model, "plain_backward")
    for module in model.modules():
        own = module.__dict__.get("forward")
        if isinstance(own, LiftedForward):
            if own.before is None:
                del module.__dict__["forward"]
            else:
                module.__dict__["forward"] = own.before
    return model


def _rule(
    model: nn.Module,
    nudge: float,
    reduction: str,
    terms_per_sample: float,
    loss_scale: LossScale,
    penalties: Mapping[str, Penalty] | None,
    gates: bool,
    leave: Collection[str],
) -> Rule:
    """The settings as a `Rule`, after all checks that need no forward pass."""
    if not isinstance(model, nn.Module):
        raise UnsupportedModuleError(
            f"lifted_backward was given a {type(model).__name__}; it takes an nn.Module: put your function into the "
            "forward method of one."
        )
    _require_inside(model)
    # Numbers
    positive(nudge, "nudge")
    if reduction not in ("mean", "sum"):
        none = " A loss with reduction 'none' is no number to differentiate: take its mean or sum." * (
            reduction == "none"
        )
        raise SettingError(f"reduction is {reduction!r}; it must be 'mean' or 'sum', as your loss has it.{none}")
    positive(terms_per_sample, "terms_per_sample")
    if not (callable(loss_scale) or hasattr(loss_scale, "get_scale")):
        positive(loss_scale, "loss_scale")
    # `leave` and `penalties` name modules of the model
    names = {name for name, _ in model.named_modules()}
    for argument, given in (("leave", leave), ("penalties", penalties or {})):
        if isinstance(given, str) or not set(given) <= names:
            unknown = given if isinstance(given, str) else sorted(set(given) - names)[0]
            raise SettingError(
                f"{argument} names {unknown!r}; expected a collection of names of modules, as model.named_modules() "
                "gives them."
            )
    for name, penalty in (penalties or {}).items():
        if not isinstance(penalty, Penalty):
            raise SettingError(
                f"penalties[{name!r}] is {penalty!r}; it must be a penalty, such as lb.penalties.L1(0.1)."
            )
    # No module has a lifted backward pass already, and a model of torch's layers alone has an activation
    for path, module in model.named_modules():
        if isinstance(module.__dict__.get("forward"), LiftedForward):
            where = f"its module {path}" if path else "the model"
            raise CompatibilityError(
                f"{where} has a lifted backward pass already: call lb.plain_backward first, then lifted_backward again."
            )
    if all(_is_torchs(module) for module in model.modules()):
        inside = [module for module in model.modules() if is_activation(module) or type(module) in MODULES]
        if not inside:
            raise UnsupportedModuleError(nothing_to_lift([]))
    return Rule(
        nudge=float(nudge),
        mean=reduction == "mean",
        terms_per_sample=terms_per_sample,
        loss_scale=loss_scale,
        gates=gates,
        leave=frozenset(leave),
        penalties=dict(penalties or {}),
    )


def _require_inside(model: nn.Module) -> None:
    """An error for a wrapper around a model: DataParallel, a compiled model, TorchScript."""
    if isinstance(model, nn.DataParallel | nn.parallel.DistributedDataParallel):
        name = type(model).__name__
        raise CompatibilityError(
            f"lifted_backward was given a {name}; it takes the model inside: call lb.lifted_backward(model), then "
            f"{name}(model)."
        )
    if "_orig_mod" in model._modules:
        raise CompatibilityError(
            "lifted_backward was given a compiled model; it takes the model before: "
            "torch.compile(lb.lifted_backward(model, example=x))."
        )
    if isinstance(model, torch.jit.ScriptModule):
        raise UnsupportedModuleError(
            "lifted_backward was given a TorchScript module, whose calls cannot be seen: give it the module that it "
            "was made from."
        )


def _is_torchs(module: nn.Module) -> bool:
    """Whether the forward method of a module is that of a layer of torch."""
    return type(module).forward.__module__.startswith("torch.nn.")


def _is_watched(path: str, module: nn.Module, rule: Rule) -> bool:
    """Whether a module gets a `LiftedForward`: the model itself, activations, and modules with a user's forward."""
    if isinstance(module, torch.jit.ScriptModule):
        name = f"model.{path}" if path else "model"
        reason = "it is a TorchScript module, whose calls cannot be seen: use the module that it was made from"
        rule.rows[name, "ScriptModule"] = ActivationRow(path, "ScriptModule", name, reason)
        return False
    known = is_activation(module) or type(module) in MODULES or isinstance(module, Map)
    return path == "" or path in rule.leave or known or not _is_torchs(module)


def _look(model: nn.Module, example: Any) -> None:
    """Runs one forward pass, and restores random states and buffers afterwards."""
    given = example if isinstance(example, tuple) else (example,)
    buffers = {name: b.clone() for name, b in model.named_buffers()}
    devices = {p.device for p in (*model.parameters(), *given) if isinstance(p, Tensor) and p.device.type == "cuda"}
    with torch.random.fork_rng(devices=sorted(devices, key=str)), torch.enable_grad():
        try:
            model(*given)
        finally:
            with torch.no_grad():
                for name, b in model.named_buffers():
                    b.copy_(buffers[name])
