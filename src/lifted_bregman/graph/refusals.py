"""Errors for models that cannot be lifted: they name module, line of the forward method, reason and remedy."""

from __future__ import annotations

import linecache
import sys
from pathlib import Path
from types import FrameType, TracebackType
from typing import NoReturn

import torch
from torch import nn

from lifted_bregman.errors import UnsupportedModuleError
from lifted_bregman.maps.determinism import refuse

_TRACER = str(Path(__file__).with_name("tracer.py"))
_LIBRARIES = (str(Path(torch.__file__).parent), str(Path(__file__).parents[1]))


def refuse_call(
    path: str, module: nn.Module, line: str | None, reason: str, remedy: str, error: Exception | None = None
) -> NoReturn:
    """Raises the error for a line of a forward method that cannot be lifted."""
    where = f", at {line}" if line else ""
    raise UnsupportedModuleError(
        f"{path} ({type(module).__name__}) cannot be lifted{where}: {reason}: {remedy}."
    ) from error


def require_unwrapped(path: str, module: nn.Module) -> None:
    """Raises an error for compiled and parallel modules; it names the module inside."""
    if isinstance(module, (nn.DataParallel, nn.parallel.DistributedDataParallel)):
        refuse(
            path,
            module,
            f"it spreads batches over devices, which fit does by itself: give lift the model inside, {path}.module, "
            "and fit parallel=lb.Parallel(data=...)",
        )
    if isinstance(module, nn.Module) and "_orig_mod" in module._modules:
        refuse(
            path,
            module,
            f"it is compiled, and its layers cannot be read: use the module inside, {path}._orig_mod, which shares its "
            "parameters with the compiled one",
        )


def require_no_hooks(path: str, module: nn.Module) -> None:
    """Raises an error for a module with forward hooks, but for those that a deleted `lb.optim.Gram` has left."""
    hooks = (*module._forward_hooks.values(), *module._forward_pre_hooks.values())
    states = [getattr(hook, "gram_is_alive", None) for hook in hooks]
    if any(states):
        refuse(
            path,
            module,
            "an lb.optim.Gram has hooks on it, and would record what lifted training computes: delete the optimiser "
            "(del optimizer), or lift a copy of the model, copy.deepcopy(model)",
        )
    if None in states:
        refuse(
            path,
            module,
            "it has forward hooks (weight or spectral normalisation, for example), which lifted training would not "
            "run: remove them first",
        )


def is_user_code(filename: str) -> bool:
    """Whether a source file belongs neither to torch nor to this library."""
    return not filename.startswith(_LIBRARIES) and filename != "<string>"


def current_line() -> str | None:
    """The line of the user's forward method that runs now; None if only code of torch runs."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None and not (frame.f_code.co_name == "run" and frame.f_code.co_filename == _TRACER):
        if is_user_code(frame.f_code.co_filename):
            return _shown(frame.f_code.co_filename, frame.f_lineno)
        frame = frame.f_back
    return None


def line_of(traceback: TracebackType | None) -> str | None:
    """The last line of a user's forward method in a traceback; None if there is none."""
    found, tracing = None, False
    while traceback is not None:
        code = traceback.tb_frame.f_code
        tracing = tracing or (code.co_name == "run" and code.co_filename == _TRACER)
        if tracing and is_user_code(code.co_filename):
            found = _shown(code.co_filename, traceback.tb_lineno)
        traceback = traceback.tb_next
    return found


def _shown(filename: str, line: int) -> str:
    text = linecache.getline(filename, line).strip()
    return f"{Path(filename).name}:{line}, `{text}`" if text else f"{Path(filename).name}:{line}"
