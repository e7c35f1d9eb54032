"""Solvers by name, with settings from plain values: {"inner_steps": 3, "prox_weight": "growing:5"}.

The settings are the fields of the solver's class.  A field that takes an object, such as a sweep or a schedule, is
given as a spec (see `specs`), one that takes a member of an enumeration by its name.  A number may be inf where the
solver takes it.
"""

from __future__ import annotations

import dataclasses
import inspect
from collections.abc import Mapping
from enum import Enum
from functools import cache
from typing import Any, get_args, get_origin, get_type_hints

from lifted_bregman import penalties, solvers
from lifted_bregman._text import unknown
from lifted_bregman.distributed import Parallel
from lifted_bregman.errors import SettingError
from lifted_bregman.experiments import specs
from lifted_bregman.solvers import Solver, baselines
from lifted_bregman.solvers.interface import shown_settings
from lifted_bregman.training import default_solver

SOLVERS: dict[str, type[Solver[Any]]] = {
    "gram-sweep": solvers.GramSweep,
    "implicit-sgd": solvers.ImplicitSGD,
    "proximal-gradient": solvers.ProximalGradient,
    "pipelined-sweep": solvers.PipelinedSweep,
    "stochastic-proximal-gradient": solvers.StochasticProximalGradient,
    "coordinate-descent": solvers.CoordinateDescent,
    "bregman-coordinate-descent": solvers.BregmanCoordinateDescent,
    "random-coordinate-descent": solvers.RandomCoordinateDescent,
    "admm": solvers.ADMM,
    "stochastic-admm": solvers.StochasticADMM,
    "primal-dual": solvers.PrimalDual,
    "constrained": solvers.Constrained,
    "bregman-iterations": solvers.BregmanIterations,
    "linbreg": solvers.LinBreg,
    "adabreg": solvers.AdaBreg,
    "saga": solvers.SAGA,
    "sag": solvers.SAG,
    "piag": solvers.PIAG,
    "asynchronous-piag": solvers.AsynchronousPIAG,
    "model-averaging": solvers.ModelAveraging,
    "implicit-parallel": solvers.ImplicitParallel,
    "sgd": baselines.SGD,
    "adam": baselines.Adam,
    "adamw": baselines.AdamW,
    "gradient-descent": baselines.GradientDescent,
    "implicit-backprop": baselines.ImplicitBackprop,
    "mac-qp": baselines.MACQP,
    "classical-lifted": baselines.ClassicalLifted,
    "fenchel-lifted": baselines.FenchelLifted,
    "lpom": baselines.LPOM,
}


def default_name(parallel: Parallel | None = None) -> str:
    """The name of `default_solver`."""
    kind = type(default_solver(parallel))
    return next(name for name, known in SOLVERS.items() if known is kind)


def make_solver(name: str | None, settings: Mapping[str, Any], parallel: Parallel | None = None) -> Solver[Any]:
    """The solver with these settings; its class gives the defaults, or `default_solver` does where the name is None."""
    base = default_solver(parallel) if name is None else None
    name = default_name(parallel) if name is None else name
    if name not in SOLVERS:
        raise SettingError(unknown("solver", name, SOLVERS))
    kind = SOLVERS[name]
    hints, fields = get_type_hints(kind), {field.name: field for field in dataclasses.fields(kind)}  # type: ignore[arg-type]
    given: dict[str, Any] = {}
    for key, value in settings.items():
        if key not in fields:
            raise SettingError(unknown(f"setting of the solver '{name}' that is called", key, fields))
        given[key] = _value(name, key, value, hints[key])
    if base is not None:
        return dataclasses.replace(base, **given)  # type: ignore[type-var]
    missing = [key for key in _required(kind) if key not in given]
    if missing:
        flags = " ".join(f"--set {key}=VALUE" for key in missing)
        raise SettingError(f"the solver '{name}' needs a value for {' and '.join(missing)}: give {flags}.")
    return kind(**given)


def solver_settings(solver: Solver[Any]) -> dict[str, Any]:
    """The settings that `repr` of a solver shows, as plain values; those without a plain value are left out."""
    found = {}
    for name, field in shown_settings(solver).items():
        given = getattr(solver, name)
        value = "none" if given is None and field.default is not None else _plain_value(given)
        if value is not None:
            found[name] = value
    return found


def _value(solver: str, key: str, value: Any, hint: Any) -> Any:
    options = specs.union_members(hint)
    if value in (None, "none") and type(None) in options:
        return None
    for option in options:
        if (made := specs.plain(value, option)) is not None:
            return made
        if get_origin(option) is tuple and isinstance(value, list) and len(value) == len(get_args(option)):
            return tuple(value)
        if inspect.isclass(option) and issubclass(option, Enum) and isinstance(value, str):
            found = {_enum_name(member): member for member in option}
            if value.lower() not in found:
                raise SettingError(f"{key} of '{solver}' is '{value}'; it must be one of {', '.join(found)}.")
            return found[value.lower()]
    parts = {name: part for option in options for name, part in _parts(option).items()}
    if isinstance(value, str) and parts:
        return specs.make(value, parts, f"{key} of '{solver}'")
    raise SettingError(f"{key} of '{solver}' is {value!r}; it must be {_expected(options, parts)}.")


def _expected(options: tuple[Any, ...], parts: Mapping[str, Any]) -> str:
    words = {float: "a number", int: "a whole number", bool: "true or false", type(None): "none"}
    ways = [words[option] for option in words if option in options and not (option is float and int in options)]
    if any(get_origin(option) is tuple for option in options):
        ways.append("a list of numbers")
    ways += [f"one of {', '.join(parts)}"] if parts else []
    return " or ".join(ways) if ways else "left out here: it can only be set in Python"


def _plain_value(value: Any) -> Any:
    """The inverse of `_value`: the plain value of `value`; None if there is none."""
    if isinstance(value, bool | int | float):
        return value
    if isinstance(value, Enum):
        return _enum_name(value)
    if isinstance(value, tuple):
        return list(value)
    if isinstance(value, Solver):
        name = next((name for name, kind in SOLVERS.items() if kind is type(value)), None)
        return name if name is not None and value == SOLVERS[name]() else None
    return specs.spec_of(value, _all_parts())


def _required(kind: Any) -> list[str]:
    return [field.name for field in dataclasses.fields(kind) if specs.is_required(field)]


def _enum_name(member: Enum) -> str:
    return member.name.lower().replace("_", "-")


def _parts(option: Any) -> dict[str, Any]:
    """The classes whose objects a field of this type takes, by name."""
    base = get_origin(option) or option
    if not inspect.isclass(base) or base in (int, float, bool, str, type(None)):
        return {}
    if issubclass(base, Solver):
        return {name: kind for name, kind in SOLVERS.items() if not _required(kind)}
    return {name: kind for name, kind in _all_parts().items() if issubclass(kind, base)}


@cache
def _all_parts() -> dict[str, Any]:
    """The public dataclasses that occur as settings of solvers, by name."""
    exported = [getattr(home, name) for home in (solvers, penalties) for name in home.__all__]
    kinds = [kind for kind in exported if dataclasses.is_dataclass(kind) and not issubclass(kind, Solver)]  # type: ignore[arg-type]
    parts = specs.by_kebab_name(kind for kind in kinds if not inspect.isabstract(kind))
    parts["box"] = parts.pop("bounds")  # the word for [low, high] of activations and of `lifted invert` too
    return parts
