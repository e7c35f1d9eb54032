"""Reads an `nn.Sequential` into layers; what cannot be lifted is refused with its path, the reason and the remedy."""

from __future__ import annotations

from collections.abc import Iterator

from torch import nn
from torch.nn.modules.lazy import LazyModuleMixin
from torch.nn.parameter import is_lazy

from lifted_bregman.activations import Activation, Identity
from lifted_bregman.activations.torch_modules import NotLiftableError, read_activation
from lifted_bregman.errors import UnsupportedModuleError
from lifted_bregman.graph.terms import Layer, Network
from lifted_bregman.maps.base import LayerMap, Map
from lifted_bregman.maps.dense import Dense
from lifted_bregman.maps.determinism import BATCH_NORM, DROPOUT, INSTANCE_NORM, refuse, require_pure
from lifted_bregman.maps.modules import ModuleMap

Named = tuple[str, nn.Module]

_CONVOLUTIONS = (
    nn.Conv1d, nn.Conv2d, nn.Conv3d, nn.ConvTranspose1d, nn.ConvTranspose2d, nn.ConvTranspose3d
)  # fmt: skip
_POOLING = (
    nn.AvgPool1d, nn.AvgPool2d, nn.AvgPool3d, nn.AdaptiveAvgPool1d, nn.AdaptiveAvgPool2d, nn.AdaptiveAvgPool3d
)  # fmt: skip
_AFFINE: tuple[type[nn.Module], ...] = (nn.Linear, nn.Flatten, nn.Unflatten, *_CONVOLUTIONS, *_POOLING)

_MAX_POOL = "a maximum is neither affine nor a proximal map: use average pooling, or a convolution with a stride"
_NORMALISATION = (
    "it divides by statistics of the sample, which is neither affine nor a proximal map: leave it out, or wrap it in "
    "lb.Map(module), which takes any differentiable map"
)
_EMBEDDING = (
    "it looks up rows by whole numbers, but the inputs of a lifted layer are real numbers: give fit the rows, "
    "X = embedding(indices).detach(), and lift the rest of the model; or, to train the rows, give fit one-hot inputs "
    "and use nn.Linear(num_embeddings, embedding_dim, bias=False)"
)
_RECURRENT = "it has activations inside, which the reader cannot see: write the network as linear maps and activations"
_REFUSED: dict[type[nn.Module], str] = {
    **dict.fromkeys(
        (nn.MaxPool1d, nn.MaxPool2d, nn.MaxPool3d, nn.AdaptiveMaxPool1d, nn.AdaptiveMaxPool2d, nn.AdaptiveMaxPool3d,
         nn.FractionalMaxPool2d, nn.FractionalMaxPool3d, nn.LPPool1d, nn.LPPool2d), _MAX_POOL
    ),
    **dict.fromkeys(
        (nn.LayerNorm, nn.GroupNorm, nn.RMSNorm, *INSTANCE_NORM, nn.LocalResponseNorm), _NORMALISATION
    ),
    **dict.fromkeys((nn.Embedding, nn.EmbeddingBag), _EMBEDDING),
    **dict.fromkeys(
        (nn.RNN, nn.LSTM, nn.GRU, nn.RNNCell, nn.LSTMCell, nn.GRUCell, nn.MultiheadAttention, nn.Transformer,
         nn.TransformerEncoder, nn.TransformerEncoderLayer), _RECURRENT
    ),
}  # fmt: skip


def read_network(model: nn.Module, example: object = None) -> Network:
    """The layers of `model`, an `nn.Sequential` that may hold others.

    Parameter-free maps (pooling, flattening) fold into the next map with parameters, or into the one before when an
    activation or the end comes first.  Two maps with parameters in a row get a variable between them, with the identity
    as activation, so that every parameter block stays convex.  `nn.Identity` is skipped, and so is dropout in
    evaluation mode or with p = 0.  Batch normalisation in evaluation mode is a map.  Modules that are random or couple
    samples as they are set now are refused.
    """
    _require_unwrapped("model", model)
    if not isinstance(model, nn.Sequential):
        raise UnsupportedModuleError(
            f"lift was given a {type(model).__name__}; it reads nn.Sequential (nested too): write the model as "
            "nn.Sequential(...), wrapping what is a differentiable map without activation in lb.Map(module)."
        )
    layers: list[Layer] = []
    pending: list[Named] = []
    final: Activation | None = None
    owners: dict[int, str] = {}

    for path, module in _leaves(model, "model"):
        if type(module) is nn.Identity or type(module) in DROPOUT:  # which training mode would make random: see below
            _require_no_hooks(path, module)
            continue
        found = _activation(path, module)
        if found is None:
            _require_map(path, module)
            _require_numbers(path, module)
            _require_unshared(path, module, owners)
            if _has_parameters(module) and any(_has_parameters(m) for _, m in pending):
                last = max(index for index, (_, m) in enumerate(pending) if _has_parameters(m))
                layers.append(_layer(pending[: last + 1], Identity(), None))
                pending = pending[last + 1 :]
            pending.append((path, module))
            final = None
        elif pending:
            layers.append(_layer(pending, *found))
            pending = []
            final = found[0]
        elif layers:
            refuse(
                path,
                module,
                "it follows another activation: put a map between them, or make one activation of both with "
                "lb.activations.FromScalar(...).as_module()",
            )
        else:
            refuse(path, module, "no map comes before it: apply it to the data instead, or start with a map")
    if pending:
        layers.append(_layer(pending, Identity(), None))
    if not owners:
        raise UnsupportedModuleError(
            "the model has no map with parameters, so there is nothing to train: add a layer such as nn.Linear."
        )
    require_pure(model)
    top = layers[-1]
    return Network(model, (*layers[:-1], Layer(top.map, Identity(), top.path, top.dim)), final)


def _leaves(module: nn.Module, path: str) -> Iterator[Named]:
    if not isinstance(module, nn.Sequential):
        yield path, module
        return
    if type(module).forward is not nn.Sequential.forward:
        refuse(
            path,
            module,
            "it has a forward of its own, which the reader would ignore: use a plain nn.Sequential, or wrap it in "
            "lb.Map(module) if it is a differentiable map without activation",
        )
    _require_no_hooks(path, module)
    for name, child in module._modules.items():
        if child is not None:
            yield from _leaves(child, f"{path}.{name}")


def _activation(path: str, module: nn.Module) -> tuple[Activation, int | None] | None:
    try:
        found = read_activation(module)
    except NotLiftableError as error:
        refuse(path, module, str(error))
    if found is not None:
        _require_no_hooks(path, module)
    return found


def _layer(modules: list[Named], activation: Activation, dim: int | None) -> Layer:
    path, module = next((named for named in modules if _has_parameters(named[1])), modules[0])
    layer_map = _layer_map(modules)
    if dim is None:
        dim = 1 if layer_map.channels_first else -1
    return Layer(layer_map, activation, f"{path} ({type(module).__name__})", dim)


def _layer_map(named: list[Named]) -> LayerMap:
    paths, modules = zip(*named, strict=True)
    *before, last = modules
    if type(last) is nn.Linear and all(_flattens_samples(module) for module in before):
        return Dense(last, flatten=bool(before))
    channels_first = True
    for module in modules:
        if type(module) not in (*_POOLING, *BATCH_NORM):  # which keep the layout
            channels_first = type(module) in (nn.Unflatten, *_CONVOLUTIONS)
    affine = all(type(module) in _AFFINE for module in modules)
    return ModuleMap(modules, affine=affine, channels_first=channels_first, paths=paths)


def _flattens_samples(module: nn.Module) -> bool:
    return type(module) is nn.Flatten and (module.start_dim, module.end_dim) == (1, -1)


def _has_parameters(module: nn.Module) -> bool:
    return any(True for _ in module.parameters())


def _require_map(path: str, module: nn.Module) -> None:
    kind = type(module)
    if isinstance(module, Map):
        return
    if isinstance(module, LazyModuleMixin):
        refuse(path, module, "its size is not known yet: run the model once on a sample before lifting it")
    if kind in _REFUSED:
        refuse(path, module, _REFUSED[kind])
    _require_unwrapped(path, module)
    if kind not in (*_AFFINE, *BATCH_NORM):
        refuse(
            path,
            module,
            "an activation may hide in it, which the reader cannot see: wrap it in lb.Map(module) if it is a "
            "differentiable map without activation, or write it as nn.Linear, nn.Conv2d, ... and activations",
        )
    if (kind is nn.Flatten and module.start_dim == 0) or (kind is nn.Unflatten and module.dim == 0):
        refuse(path, module, "it reaches dimension 0, which holds the samples: let it start at dimension 1")
    _require_no_hooks(path, module)


def _require_unwrapped(path: str, module: nn.Module) -> None:
    """An error for compiled and parallel modules, which names the module inside."""
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


def _require_numbers(path: str, module: nn.Module) -> None:
    """An error for parameters without numbers: layers of width 0, and layers whose size is not known yet."""
    for name, parameter in module.named_parameters():
        if is_lazy(parameter):
            refuse(path, module, f"the size of {name} is not known yet: run the model once on a sample before lifting")
        if parameter.numel() == 0:
            refuse(
                path,
                module,
                f"its parameter {name} has shape {tuple(parameter.shape)}, which holds no numbers: give the layer at "
                "least one input and one output, or leave it out",
            )


def _require_no_hooks(path: str, module: nn.Module) -> None:
    if module._forward_hooks or module._forward_pre_hooks:
        refuse(
            path,
            module,
            "it has forward hooks (weight or spectral normalisation, for example), which lifted training would not "
            "run: remove them first",
        )


def _require_unshared(path: str, module: nn.Module, owners: dict[int, str]) -> None:
    for name, parameter in module.named_parameters():
        where = f"{path}.{name}"
        # Two parameters on one memory are as shared as one parameter in two modules.
        owner = owners.setdefault(parameter.data_ptr() or id(parameter), where)
        if owner != where:
            refuse(
                path,
                module,
                f"its parameter {name} is shared with {owner}, but every layer needs parameters of its own: use "
                "copy.deepcopy(module) for one of them",
            )
