"""The forward method of a model with lifted activations: it runs the model's own, and replaces activations."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from types import CodeType, MethodType
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.overrides import TorchFunctionMode

from lifted_bregman.activations import ActivationModule, Identity
from lifted_bregman.backward import _calls
from lifted_bregman.backward._answer import Call, Share, lifted
from lifted_bregman.backward._rule import Rule
from lifted_bregman.backward._survey import Survey, checkpoint_around
from lifted_bregman.errors import CompatibilityError
from lifted_bregman.graph.decompose import MODULES, normal_cdf
from lifted_bregman.maps import Map


class LiftedForward:
    """Replaces the forward method of one module of the model; picklable, and copied with the model.

    module  the module
    path    its name in the model, "" for the model itself
    rule    the settings of `lifted_backward`, shared by all modules of the model
    """

    def __init__(self, module: nn.Module, path: str, rule: Rule) -> None:
        self.module, self.path, self.rule = module, path, rule
        self.before: Callable[..., Any] | None = module.__dict__.get("forward")
        """The forward method that another tool set on this instance; None for the method of its class."""
        self.written_out = _written_out(module) if self.before is None else None
        """Computes the module with a separate call of each activation inside; None where the module needs none."""
        self.left: str | None = None
        """Why the activations inside are left to autograd; None where they are lifted."""
        if path in rule.leave:
            self.left = f"it is in {path or 'the model'}, which leave names"
        elif isinstance(module, Map):
            self.left = f"it is in {path or 'the model'}, which is an lb.Map"

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        watch = _watching(self.rule)
        if watch is None:
            differentiated = torch.is_grad_enabled() and not torch.compiler.is_exporting()
            return self._enter(args, kwargs) if differentiated else self._plain(*args, **kwargs)
        outside, left = watch.path, watch.left
        watch.path, watch.left = self.path, left or self.left
        try:
            return self._run(watch, args, kwargs)
        finally:
            watch.path, watch.left = outside, left

    def _enter(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """The forward pass of the model, or of a part of it that is called on its own."""
        # ν/P and c of this pass
        rule, compiling = self.rule, torch.compiler.is_compiling()
        if not compiling and torch._C._current_graph_task_id() != -1 and rule.last is not None:
            # Activation checkpointing runs this part of the last forward pass again, within the backward pass.
            share, terms = rule.last
        else:
            share, terms = rule.share_of(self.path), rule.terms_of(args, kwargs)
        watch = Watch(rule, self.path, share, terms, self.left)
        if compiling:
            if not share.counted:
                raise CompatibilityError(_COMPILED_TOO_EARLY)
        elif torch._C._current_graph_task_id() == -1:
            rule.last = share, terms
            watch.survey = None if share.counted and not share.stale else Survey(rule, self.path)
        # the module's own forward method, under the watch
        with watch:
            result = self._run(watch, args, kwargs)
        # P, from the graph of the result
        if watch.survey is not None:
            watch.survey.finish(share, result, watch.calls)
        elif not compiling and share is rule.shares.get(self.path):
            share.stale = watch.calls != share.calls  # the graph has changed: the next pass counts P again
        return result

    def _run(self, watch: Watch, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        if watch.left is not None or not torch.is_grad_enabled():
            return self._plain(*args, **kwargs)
        if self.written_out is not None:
            return self.written_out(self.module, *args, **kwargs)
        if isinstance(self.module, ActivationModule):
            return watch.activation(_calls.activate, (*args, self.module), kwargs)
        return self._plain(*args, **kwargs)

    def _plain(self, *args: Any, **kwargs: Any) -> Any:
        if self.before is not None:
            return self.before(*args, **kwargs)
        return type(self.module).forward(self.module, *args, **kwargs)

    @property
    def __wrapped__(self) -> Callable[..., Any]:
        """The forward method that this object replaces: `inspect.signature` and torch.export read its arguments."""
        return self.before or MethodType(type(self.module).forward, self.module)

    @property
    def __code__(self) -> CodeType:
        code: CodeType = self.__wrapped__.__code__
        return code


_COMPILED_TOO_EARLY = (
    "the model was compiled before its activations were counted: give lifted_backward an example input, "
    "lb.lifted_backward(model, example=x[:2]), or call model(x) once before torch.compile."
)


class Watch(TorchFunctionMode):
    """A function mode that gives each activation called in a forward method its lifted backward pass."""

    def __init__(self, rule: Rule, path: str, share: Share, terms: Any, left: str | None) -> None:
        super().__init__()
        self.rule, self.path, self.share, self.terms, self.left = rule, path, share, terms, left
        self.inside = False  # whether an activation is being computed, whose own calls are not replaced
        self.calls = 0
        self.survey: Survey | None = None

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: Sequence[type],
        args: tuple[Any, ...] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        kwargs = kwargs or {}
        if self.inside:
            return func(*args, **kwargs)
        if self.left is None and _calls.is_written_out(func, self.rule.gates):
            return self._written_out(func, args, kwargs) if torch.is_grad_enabled() else func(*args, **kwargs)
        if not _calls.is_candidate(func):
            return func(*args, **kwargs)
        return self.activation(func, args, kwargs)

    def _written_out(self, func: Callable[..., Any], args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
        """The result of a function with activations inside, computed with a separate call of each."""
        z, rest, named = _split(args, kwargs)
        if func is F.gelu and named.get("approximate", "none") == "none":  # x Φ(x)
            return z * self.activation(normal_cdf, (z,), {})
        in_place = _calls.is_gate(func) and _calls.is_in_place(func, rest, named)
        with self:
            if in_place:
                return z.copy_(_calls.write_out(func, (z.clone(), *rest), named))
            return _calls.write_out(func, args, kwargs)

    def activation(self, func: Callable[..., Any], args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
        """The result of a call of an activation, with its lifted backward pass."""
        z, rest, named = _split(args, kwargs)
        if not isinstance(z, Tensor) or not z.is_floating_point():
            return func(*args, **kwargs)
        node = None
        if not torch.is_grad_enabled():
            # Reentrant checkpointing builds no graph now, and repeats this call in the backward pass.
            node = None if torch.compiler.is_compiling() else checkpoint_around()
            if node is None or self.survey is None:
                return func(*args, **kwargs)
        # the activation, or why it is left to autograd
        found = self.left or _why_left(z, named) or self._read(func, rest, named)
        if isinstance(found, str):
            if self.survey is not None:
                self.survey.note(self.path, _calls.name_of(func), None, found)
            return func(*args, **kwargs)
        activation, dim = found
        if isinstance(activation, Identity):
            return func(*args, **kwargs)
        # the count of calls and the report
        if node is None:
            self.calls += 1
        place = f"model.{self.path}" if self.path else "model"
        if self.survey is not None:
            place = self.survey.note(self.path, _calls.name_of(func), activation, None)
            if node is not None:
                self.survey.hide(node)
                return func(*args, **kwargs)
        # σ(z) with the lifted backward pass
        in_place = _calls.is_in_place(func, rest, named)
        sigma = _calls.out_of_place(func, rest, named)
        call = Call(
            activation,
            -1 if dim is None else dim,
            sigma,
            self.share,
            self.terms,
            place,
            self.rule.penalties.get(self.path),
        )
        self.inside = True
        try:
            return lifted(z, call, in_place)
        finally:
            self.inside = False

    def _read(self, func: Callable[..., Any], rest: tuple[Any, ...], named: Mapping[str, Any]) -> _calls.Found:
        """The activation of a call; the first forward pass stores it in the rule for `torch.compile`."""
        if func is _calls.activate or any(isinstance(value, Tensor) for value in (*rest, *named.values())):
            return _calls.read(func, rest, named)
        key = (_calls.name_of(func), rest, tuple(named.items()))
        found = self.rule.known.get(key)
        if found is None:
            found = self.rule.known[key] = _calls.read(func, rest, named)
        return found


def _written_out(module: nn.Module) -> Callable[..., Any] | None:
    return None if isinstance(module, _calls.GATES) else MODULES.get(type(module))  # gates call a function of torch


def _watching(rule: Rule) -> Watch | None:
    """The active watch of this model in this thread; None without one."""
    for place in range(torch._C._len_torch_function_stack()):
        mode = torch._C._get_function_stack_at(place)
        if isinstance(mode, Watch) and mode.rule is rule:
            return mode
    return None


def _split(args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> tuple[Any, tuple[Any, ...], dict[str, Any]]:
    """The tensor of a call, and its other arguments."""
    if args:
        return args[0], args[1:], dict(kwargs)
    return kwargs.get("input"), (), {key: value for key, value in kwargs.items() if key != "input"}


def _why_left(z: Tensor, named: Mapping[str, Any]) -> str | None:
    """Why a call is left to autograd because of its arguments; None if nothing prevents lifting it."""
    if named.get("out") is not None:
        return "it writes into the tensor given as out"
    if isinstance(z, nn.Parameter):
        return "it is applied to a parameter, which has no samples"
    return None


def rule_of(model: nn.Module, function: str) -> Rule:
    """The settings that `lifted_backward` stored in a model; an error that names `function` if it was not called."""
    own = model.__dict__.get("forward") if isinstance(model, nn.Module) else None
    if isinstance(own, LiftedForward):
        return own.rule
    modules = model.named_modules() if isinstance(model, nn.Module) else ()
    inside = [path for path, module in modules if isinstance(module.__dict__.get("forward"), LiftedForward)]
    remedy = f"give it the module inside, model.{inside[0]}" if inside else "call lb.lifted_backward(model) first"
    raise CompatibilityError(
        f"{function} was given a {type(model).__name__} that lifted_backward was not applied to: {remedy}."
    )
