"""Solvers, their parts and activations by name: complete, and each name and value comes back as it was."""

from __future__ import annotations

import dataclasses
import inspect
import math
from typing import Any

import pytest

import lifted_bregman as lb
from lifted_bregman import activations, solvers
from lifted_bregman.errors import NotProximalError, SettingError
from lifted_bregman.experiments import specs
from lifted_bregman.experiments.solver_names import SOLVERS, default_name, make_solver, solver_settings
from lifted_bregman.solvers import Solver
from lifted_bregman.training import default_solver
from tests import cases

# What cannot be built from plain values, and why.
NEEDS_PYTHON = {solvers.TargetedPenalties: "it is put around a solver and needs a target for certain layers"}
# Values for the settings that have no default.
REQUIRED = {
    "stochastic-proximal-gradient": {"step_parameter": 0.05},
    "piag": {"delay_bound": 4},
    "asynchronous-piag": {"workers": 2, "delay_bound": 4},
    "model-averaging": {"workers": 2},
    "implicit-parallel": {"workers": 2, "prox_weight": 1.0},
    "sgd": {"learning_rate": 0.1},
    "gradient-descent": {"learning_rate": 0.1},
    "implicit-backprop": {"prox_weight": 1.0, "inner_steps": 3, "learning_rate": 0.05},
}


def exported_solvers() -> set[type[Solver[Any]]]:
    exported = [getattr(home, name) for home in (solvers, solvers.baselines) for name in home.__all__]
    return {c for c in exported if inspect.isclass(c) and issubclass(c, Solver) and not inspect.isabstract(c)}


def test_every_solver_has_a_name() -> None:
    assert set(SOLVERS.values()) | set(NEEDS_PYTHON) == exported_solvers()
    assert not set(SOLVERS.values()) & set(NEEDS_PYTHON)
    assert len(set(SOLVERS.values())) == len(SOLVERS)
    for name, kind in SOLVERS.items():
        assert name.replace("-", "") == kind.__name__.lower(), "a name that nobody could guess"


@pytest.mark.parametrize("name", SOLVERS)
def test_a_solver_is_built_from_its_plain_settings(name: str) -> None:
    solver = make_solver(name, REQUIRED.get(name, {}))
    assert type(solver) is SOLVERS[name]
    assert solver == SOLVERS[name](**REQUIRED.get(name, {}))
    assert make_solver(name, solver_settings(solver)) == solver


def test_without_a_name_it_is_the_default_of_fit() -> None:
    assert make_solver(None, {}) == make_solver(default_name(), {}) == default_solver() == solvers.GramSweep()
    assert make_solver(None, {"step_size": 0.5}) == solvers.GramSweep(step_size=0.5)


@pytest.mark.parametrize("name", REQUIRED)
def test_a_setting_without_default_is_asked_for(name: str) -> None:
    for missing in REQUIRED[name]:
        others = {key: value for key, value in REQUIRED[name].items() if key != missing}
        with pytest.raises(SettingError, match=f"--set {missing}=VALUE"):
            make_solver(name, others)


def test_the_solvers_of_the_cases_are_built_from_plain_settings() -> None:
    """The solvers of the product tests, with settings of many kinds; only a part that holds a part cannot be said."""
    unsaid = []
    for solver in cases.solver_cases():
        name = next((name for name, kind in SOLVERS.items() if kind is type(solver)), None)
        if name is None or make_solver(name, solver_settings(solver)) != solver:
            unsaid.append(solver)
    nested = solvers.Corrected(solvers.CurvatureStep(1.0, upper=False))
    assert len(unsaid) == 2
    assert all(type(solver) in NEEDS_PYTHON or getattr(solver, "reading", None) == nested for solver in unsaid)


@pytest.mark.parametrize(
    ("name", "settings", "expected"),
    [
        ("implicit-sgd", {"prox_weight": 5}, solvers.ImplicitSGD(prox_weight=5.0)),
        ("implicit-sgd", {"prox_weight": "growing:5"}, solvers.ImplicitSGD(prox_weight=solvers.Growing(5.0))),
        ("implicit-sgd", {"reading": "literal:true"}, solvers.ImplicitSGD(reading=solvers.Literal(batch_factor=True))),
        (
            "implicit-sgd",
            {"solver": "proximal-gradient"},
            solvers.ImplicitSGD(solver=solvers.ProximalGradient()),
        ),
        ("implicit-sgd", {"parameters": "explicit"}, solvers.ImplicitSGD(parameters=solvers.ParameterUpdate.EXPLICIT)),
        (
            "implicit-sgd",
            {"reading": "majorised", "space": "samples"},
            solvers.ImplicitSGD(reading=solvers.Majorised(), space=solvers.Space.SAMPLES),
        ),
        ("gram-sweep", {"damping": 1, "micro_batches": 2}, solvers.GramSweep(damping=1.0, micro_batches=2)),
        ("gram-sweep", {"total_steps": math.inf}, solvers.GramSweep(total_steps=math.inf)),
        ("linbreg", {"penalties": "box:-inf:2"}, solvers.LinBreg(penalties=lb.penalties.Bounds(-math.inf, 2.0))),
        ("admm", {"balancing": "none"}, solvers.ADMM(balancing=None)),
        ("admm", {"sweep": "top-down", "monotone": False}, solvers.ADMM(sweep=solvers.TopDown(), monotone=False)),
        ("linbreg", {"penalties": "l1:0.001"}, solvers.LinBreg(penalties=lb.penalties.L1(0.001))),
        ("linbreg", {"penalties": "target-sparsity:0.9"}, solvers.LinBreg(penalties=lb.TargetSparsity(0.9))),
        ("adabreg", {"betas": [0.5, 0.75]}, solvers.AdaBreg(betas=(0.5, 0.75))),
        ("saga", {"step_parameter": 0.5}, solvers.SAGA(step_parameter=0.5)),
        (
            "sgd",
            {"learning_rate": 1, "normalisation": "sum"},
            solvers.baselines.SGD(1.0, normalisation=solvers.baselines.Normalisation.SUM),
        ),
        (
            "sgd",
            {"learning_rate": "step-decay:0.1:30", "weight_decay": 0.01},
            solvers.baselines.SGD(solvers.StepDecay(0.1, 30), weight_decay=0.01),
        ),
        (
            "adamw",
            {"learning_rate": "cosine-decay:0.01:5", "clip_norm": 1},
            solvers.baselines.AdamW(solvers.CosineDecay(0.01, warm_up=5), clip_norm=1.0),
        ),
        (
            "classical-lifted",
            {"step_rule": "fixed-step:0.1:0.2"},
            solvers.baselines.ClassicalLifted(step_rule=solvers.FixedStep(0.1, 0.2)),
        ),
    ],
    ids=lambda value: str(value) if isinstance(value, dict) else "",
)
def test_settings_of_every_kind(name: str, settings: dict[str, Any], expected: Solver[Any]) -> None:
    made = make_solver(name, settings)
    assert made == expected
    assert make_solver(name, solver_settings(made)) == expected


def test_settings_that_were_added_are_shown_only_where_they_are_used() -> None:
    """Stored runs and races are found by what they were stored with."""
    plain, decayed = solvers.baselines.Adam(0.01), solvers.baselines.Adam(0.01, weight_decay=0.1)
    assert repr(plain) == "Adam(learning_rate=0.01, first_decay=0.9, second_decay=0.999, epsilon=1e-08)"
    assert set(solver_settings(plain)) == {"learning_rate", "first_decay", "second_decay", "epsilon"}
    assert repr(decayed) == repr(plain)[:-1] + ", weight_decay=0.1)"
    assert make_solver("adam", solver_settings(decayed)) == decayed != plain
    sums = solvers.baselines.Normalisation.SUM
    shown = f"SGD(learning_rate=0.01, momentum=0.0, normalisation={sums!r}"
    assert repr(solvers.baselines.SGD(0.01, normalisation=sums)) == f"{shown})"
    assert repr(solvers.baselines.SGD(0.01, normalisation=sums, clip_norm=1.0)) == f"{shown}, clip_norm=1.0)"


@pytest.mark.parametrize(
    ("name", "settings", "words"),
    [
        ("adam", {"learning_rate": True}, "must be a number"),
        ("adam", {"learning_rate": [1.0]}, "must be a number"),
        ("implicit-sgd", {"inner_steps": 1.5}, "a whole number"),
        ("implicit-sgd", {"order": 3}, "one of layer-by-layer, sweeps"),
        ("implicit-sgd", {"space": "both"}, "one of automatic, samples, weights"),
        ("gram-sweep", {"micro_batches": 1.5}, "a whole number"),
        ("gram-sweep", {"damping": -math.inf}, "damping is -inf; it must be a finite number greater than 0"),
        ("gram-sweep", {"damping": math.nan}, "damping of 'gram-sweep' is nan; it must be a number"),
        ("gram-sweep", {"damping": 10**400}, "it must be a number"),
        ("gram-sweep", {"step_size": math.inf}, "step_size is inf"),
        ("gram-sweep", {"micro_batches": math.inf}, "a whole number"),
        ("implicit-sgd", {"prox_weight": "growing:inf"}, "initial is inf"),
        ("gram-sweep", {"total_steps": 1.5}, r"total_steps is 1.5; it must be a whole number"),
        ("implicit-sgd", {"coupling": "during"}, "one of before, after"),
        ("implicit-sgd", {"prox_weight": "top-down"}, "no prox_weight of 'implicit-sgd' 'top-down'"),
        ("implicit-sgd", {"prox_weight": "growing:-1"}, "initial is -1"),
        ("adabreg", {"betas": [0.5]}, "a list of numbers"),
        ("bregman-iterations", {"penalties": {"1": "l1:1"}}, "in Python"),
    ],
    ids=lambda value: str(value) if isinstance(value, dict) else "",
)
def test_wrong_values_are_named(name: str, settings: dict[str, Any], words: str) -> None:
    with pytest.raises(SettingError, match=words):
        make_solver(name, settings)


def test_every_activation_has_a_name() -> None:
    exported = {getattr(activations, name) for name in activations.__all__}
    kinds = {c for c in exported if inspect.isclass(c) and issubclass(c, activations.Activation)}
    plain = {c for c in kinds if not inspect.isabstract(c)} - {activations.FromScalar}
    assert set(specs.ACTIVATIONS.values()) == plain
    for name, kind in specs.ACTIVATIONS.items():
        assert name.replace("-", "") == kind.__name__.lower()


@pytest.mark.parametrize("activation", cases.SCALAR_ACTIVATIONS + cases.JOINT_ACTIVATIONS, ids=cases.name)
def test_an_activation_comes_back_from_its_spec(activation: activations.Activation) -> None:
    spec = specs.spec_of(activation, specs.ACTIVATIONS)
    assert spec is not None
    assert specs.activation(spec) == activation
    numbers = [getattr(activation, field.name) for field in dataclasses.fields(activation)]  # type: ignore[arg-type]
    assert [float(part) for part in spec.split(":")[1:]] == numbers


@pytest.mark.parametrize("name", ["gelu", "GELU", "silu", "mish", "selu"])
def test_what_is_no_proximal_map_is_refused(name: str) -> None:
    with pytest.raises(NotProximalError, match="no proximal map"):
        specs.activation(name)


def test_kebab_case() -> None:
    assert [specs.kebab(name) for name in ("TopDown", "L1", "SquaredL2", "NoAcceleration", "ADMM")] == [
        "top-down",
        "l1",
        "squared-l2",
        "no-acceleration",
        "admm",
    ]
