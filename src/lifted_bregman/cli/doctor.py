"""`lifted doctor`: what is installed, where the data are, and whether the mathematics is right on this machine."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import torch
from torch import nn

from lifted_bregman import data
from lifted_bregman.activations import Sigmoid, Softmax, SoftThreshold, Tanh
from lifted_bregman.activations.checks import check_bregman, check_conjugate, check_prox
from lifted_bregman.cli import terminal
from lifted_bregman.cli.exit_codes import ExitCode
from lifted_bregman.errors import CheckError, DataError
from lifted_bregman.experiments.environment import environment, package_version
from lifted_bregman.losses import SquaredError
from lifted_bregman.problem import LiftedProblem, lift
from lifted_bregman.problem.blocks import layers
from lifted_bregman.solvers import ProximalGradient, run
from lifted_bregman.training.checkpoints import Checkpoints, Snapshot, verify_checkpoint

_NEEDED = ("safetensors", "rich", "cyclopts", "pydantic", "tomlkit")
_EXTRAS = {
    "plot": ("jinja2", "matplotlib"),
    "data": ("mlxtend", "pillow", "pooch", "scikit-learn"),
    "sklearn": ("scikit-learn",),
    "track": ("tensorboard",),
    "onnx": ("onnx", "onnxruntime", "onnxscript"),
}


def doctor_command() -> int:
    """Show versions, threads, data sets and extras, and check the mathematics; exit code 0 only if all is right.

    lifted doctor
    """
    shown = environment() | {name: package_version(name) or "missing" for name in _NEEDED}
    shown["accelerator"] = _accelerator()
    for extra, packages in _EXTRAS.items():
        missing = [name for name in packages if package_version(name) is None]
        shown[f"extra {extra}"] = "there" if not missing else f"without {', '.join(missing)}"
    shown["data folder"] = _data_folder()
    shown |= {f"data {name}": data.whereabouts(info) for name, info in data.SETS.items()}
    wrong = 0
    for name, check in CHECKS.items():
        started = time.perf_counter()
        try:
            shown[f"check {name}"] = f"{check()} ({time.perf_counter() - started:.2f} s)"
        except Exception as error:
            wrong += 1
            shown[f"check {name}"] = f"WRONG: {type(error).__name__}: {error}"
    terminal.show_rows(shown)
    if wrong:
        terminal.say("lifted", f"{wrong} of {len(CHECKS)} checks failed: install torch and lifted-bregman again.")
        return ExitCode.FAILED
    return ExitCode.OK


def _prox_maps() -> str:
    """Theorem 10 and the identities of conjugates at random points."""
    generator = torch.Generator().manual_seed(0)
    z = 2.0 * torch.randn(6, 4, generator=generator, dtype=torch.float64)
    activations = (SoftThreshold(0.5), Tanh(), Sigmoid(), Softmax())
    for activation in activations:
        x = activation(z.roll(1, 0))
        check_prox(activation, z)
        check_conjugate(activation, x, z)
        check_bregman(activation, x, z)
    return f"prox, conjugate and Bregman loss of {len(activations)} activations satisfy their identities"


def _gradients() -> str:
    """The hand-written gradients against autograd's, of E written with torch's own functions."""
    problem, X, Y = _small_problem()
    state = problem.forward_state(X)
    state[1] = (0.5 * state[1] + 0.1).clone()
    point = problem.point(state, X, Y)
    W_1, b_1, W_2, b_2 = parameters = list(problem.model.parameters())
    x, z = state[1], X @ W_1.t() + b_1
    energy = 0.5 * x.square() + _psi_tanh(x) + z.cosh().log() - x * z
    total = (energy.sum(1) + 0.5 * (x @ W_2.t() + b_2 - Y).square().sum(1)).mean()
    expected = torch.autograd.grad(total, parameters)
    found = [problem.parameter_gradient(point, l)[name] for l in layers(2) for name in ("weight", "bias")]
    worst = max(float((a - b).abs().max()) for a, b in zip(found, expected, strict=True))
    if not worst < 1e-12:
        raise CheckError(f"a gradient differs from autograd's by {worst:.1e}.")
    return f"gradients agree with autograd's to {worst:.0e}"


def _training() -> str:
    problem, X, Y = _small_problem()
    before = float(problem.energy(problem.forward_state(X), X, Y))
    result = run(problem, (X, Y), ProximalGradient(), epochs=2)
    after = [row["energy"] for row in result.history]
    if not after[1] < after[0] < before:
        raise CheckError(
            f"two steps should decrease the energy, which went {before:.6g}, {after[0]:.6g}, {after[1]:.6g}."
        )
    return f"two steps decrease the energy, {before:.4g} to {after[1]:.4g}"


def _round_trip() -> str:
    with tempfile.TemporaryDirectory() as folder:
        problem, *_ = _small_problem()
        saved = problem.model.state_dict()
        checkpoints = Checkpoints(Path(folder) / "checkpoints")
        path = checkpoints.save(Snapshot(1, {"model": saved}, {}, {}))
        verify_checkpoint(path)
        loaded = checkpoints.load().snapshot.parts["model"]
    if not all(torch.equal(loaded[name], value) for name, value in saved.items()):
        raise CheckError("a checkpoint does not come back as it was saved.")
    return f"a checkpoint comes back as it was saved, in {tempfile.gettempdir()}"


CHECKS: dict[str, Callable[[], str]] = {
    "identities": _prox_maps,
    "gradients": _gradients,
    "training": _training,
    "checkpoints": _round_trip,
}


def _small_problem() -> tuple[LiftedProblem, torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(1)
    model = nn.Sequential(nn.Linear(5, 4), nn.Tanh(), nn.Linear(4, 3)).double()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.copy_(0.5 * torch.randn(parameter.shape, generator=generator, dtype=torch.float64))
    X, Y = (torch.randn(12, width, generator=generator, dtype=torch.float64) for width in (5, 3))
    return lift(model, loss=SquaredError()), X, Y


def _psi_tanh(x: torch.Tensor) -> torch.Tensor:
    """Ψ of tanh: x atanh x + ½ log(1 - x²) - ½ x²."""
    return x * x.atanh() + 0.5 * (1.0 - x * x).log() - 0.5 * x * x


def _data_folder() -> str:
    try:
        return str(data.cache_folder())
    except DataError as error:
        return f"none: {error}"


def _accelerator() -> str:
    if torch.cuda.is_available():
        return f"{torch.cuda.get_device_name()}, which --device cuda uses"
    return "none; the command line trains on the processor"
