"""Match: whether a call of a traced model is an activation, a differentiable map, or neither."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NoReturn

import torch
from torch import Tensor, fx, nn
from torch.nn.modules.lazy import LazyModuleMixin

from lifted_bregman.activations import Activation
from lifted_bregman.activations.torch_functions import is_activation_function, read_function
from lifted_bregman.activations.torch_modules import NotLiftableError, from_function, read_activation
from lifted_bregman.graph.decompose import normal_cdf
from lifted_bregman.graph.proxies import UNKNOWN, name_of_target, value_of
from lifted_bregman.graph.refusals import refuse_call
from lifted_bregman.graph.tracer import FACTORIES
from lifted_bregman.maps.base import Map
from lifted_bregman.maps.determinism import BATCH_NORM, INSTANCE_NORM, RANDOM, refuse
from lifted_bregman.maps.sites import Site

CONVOLUTIONS = (
    nn.Conv1d, nn.Conv2d, nn.Conv3d, nn.ConvTranspose1d, nn.ConvTranspose2d, nn.ConvTranspose3d
)  # fmt: skip
POOLING = (
    nn.AvgPool1d, nn.AvgPool2d, nn.AvgPool3d, nn.AdaptiveAvgPool1d, nn.AdaptiveAvgPool2d, nn.AdaptiveAvgPool3d
)  # fmt: skip
_MAX_POOLING = (
    nn.MaxPool1d, nn.MaxPool2d, nn.MaxPool3d, nn.AdaptiveMaxPool1d, nn.AdaptiveMaxPool2d, nn.AdaptiveMaxPool3d
)  # fmt: skip
AFFINE_MODULES: tuple[type[nn.Module], ...] = (nn.Linear, nn.Flatten, nn.Unflatten, *CONVOLUTIONS, *POOLING)
"""Modules that are affine, with matrices whose entries have the signs of the weights."""
_MAP_MODULES: tuple[type[nn.Module], ...] = (
    *AFFINE_MODULES, *_MAX_POOLING, *BATCH_NORM, *INSTANCE_NORM, *RANDOM, nn.LayerNorm, nn.GroupNorm, nn.RMSNorm,
    nn.LocalResponseNorm, nn.Embedding, nn.Bilinear, nn.Identity, nn.LPPool1d, nn.LPPool2d, nn.Upsample,
    nn.UpsamplingNearest2d, nn.UpsamplingBilinear2d, nn.PixelShuffle, nn.PixelUnshuffle, nn.ChannelShuffle, nn.Fold,
    nn.Unfold, nn.ZeroPad1d, nn.ZeroPad2d, nn.ZeroPad3d, nn.ConstantPad1d, nn.ConstantPad2d, nn.ConstantPad3d,
    nn.ReflectionPad1d, nn.ReflectionPad2d, nn.ReflectionPad3d, nn.ReplicationPad1d, nn.ReplicationPad2d,
    nn.ReplicationPad3d, nn.CircularPad1d, nn.CircularPad2d, nn.CircularPad3d, nn.CosineSimilarity,
    nn.PairwiseDistance,
)  # fmt: skip
_RECURRENT = "it has activations inside, which the reader cannot see: write the network as linear maps and activations"
_REFUSED: dict[type[nn.Module], str] = {
    **dict.fromkeys(
        (nn.RNN, nn.LSTM, nn.GRU, nn.RNNCell, nn.LSTMCell, nn.GRUCell, nn.MultiheadAttention, nn.Transformer,
         nn.TransformerEncoder, nn.TransformerEncoderLayer, nn.TransformerDecoder, nn.TransformerDecoderLayer),
        _RECURRENT,
    ),
    nn.FractionalMaxPool2d: "it draws its regions at random: use nn.MaxPool2d or nn.AvgPool2d",
    nn.FractionalMaxPool3d: "it draws its regions at random: use nn.MaxPool3d or nn.AvgPool3d",
    nn.EmbeddingBag: "its bags have no samples in dimension 0: use nn.Embedding and a mean over the sequence",
}  # fmt: skip

VIEWS = frozenset(
    "reshape view flatten unflatten permute transpose swapaxes movedim squeeze unsqueeze expand expand_as "
    "view_as reshape_as narrow select chunk split tensor_split unbind getitem contiguous t mT T ravel clone detach "
    "broadcast_to hsplit vsplit dsplit swapdims moveaxis atleast_2d".split()
)
"""Calls that only arrange the numbers of one tensor."""
SUMS = frozenset(
    "add iadd radd sum mean cat concat concatenate stack avg_pool1d avg_pool2d avg_pool3d adaptive_avg_pool1d "
    "adaptive_avg_pool2d adaptive_avg_pool3d repeat repeat_interleave tile roll flip index_select".split()
)
"""Further calls that are affine in their tensors, without negative coefficients."""
_MAPS = VIEWS | SUMS | frozenset(
    "sub isub rsub mul imul rmul multiply div true_divide truediv itruediv rtruediv divide neg pow ipow rpow square "
    "matmul imatmul rmatmul mm bmm mv dot addmm baddbmm addmv einsum linear bilinear conv1d conv2d conv3d "
    "conv_transpose1d conv_transpose2d conv_transpose3d outer tensordot kron inner subtract "
    "var std norm vector_norm logsumexp exp expm1 log log1p log2 sqrt rsqrt sin cos reciprocal erf cumsum prod "
    "layer_norm group_norm rms_norm local_response_norm instance_norm normalize "
    "max_pool1d max_pool2d max_pool3d adaptive_max_pool1d adaptive_max_pool2d adaptive_max_pool3d lp_pool1d lp_pool2d "
    "amax amin max min maximum minimum abs dropout dropout1d dropout2d dropout3d embedding interpolate upsample pad "
    "pixel_shuffle pixel_unshuffle unfold fold grid_sample affine_grid masked_fill where tril triu diagonal diag_embed "
    "gather take_along_dim index to float double type_as type half bfloat16 lerp addcmul addcdiv log_softmax "
    "cosine_similarity rot90 cdist sort topk kthvalue median cummax cummin".split()
)  # fmt: skip
_WHOLE = frozenset(
    "eq ne lt le gt ge logical_and logical_or logical_not logical_xor bitwise_and bitwise_or bitwise_not and_ or_ not_ "
    "xor invert and or argmax argmin argsort long int bool byte floor round ceil sign floordiv mod remainder any all "
    "isnan isinf isfinite floor_divide cumprod count_nonzero ones_like zeros_like full_like new_zeros new_ones "
    "new_full new_empty empty_like arange new_tensor rand".split()
)
"""Calls whose results carry no derivative: constants, masks and indices."""
_NEW = frozenset("ones_like zeros_like full_like new_zeros new_ones new_full new_empty empty_like new_tensor".split())
_REDUCTIONS = frozenset(
    "sum mean var std norm logsumexp amax amin prod softmax max min cumsum vector_norm sort topk kthvalue median "
    "cummax cummin".split()
)
_SECOND_THEN_DIM = frozenset("norm vector_norm topk kthvalue".split())
"""Reductions whose dimension is their third argument."""
_LAST_DIM = frozenset("sort topk kthvalue".split())
"""Reductions that run over the last dimension where none is given."""
_MIXING = frozenset("cat concat concatenate stack".split())
_WRAP = "wrap it in lb.Map(module) if it is a differentiable map without activation"
_RANDOM_METHODS = frozenset("bernoulli bernoulli_ normal_ uniform_ random_ exponential_ rrelu".split())


@dataclass(frozen=True)
class Matched:
    """What a call is: an activation along `dim`, or a map where `activation` is None."""

    activation: Activation | None
    dim: int | None = None


def name_of(node: fx.Node) -> str:
    """The plain name of a function or method: "add" for `torch.add`, `Tensor.add_`, `operator.add` and `x + y`."""
    name = name_of_target(node).removeprefix("special_").removeprefix("linalg_")
    return name.strip("_") if name not in ("and_", "or_", "not_") else name


def match(node: fx.Node, modules: Mapping[str, nn.Module], depends: bool, differentiable: bool) -> Matched:
    """Whether a node of the graph is an activation or a map; raises an error that names it if it is neither.

    depends         whether the value changes with inputs or parameters
    differentiable  whether one of its arguments carries a derivative
    """
    if node.op == "call_module":
        return _match_module(node, modules[str(node.target)])
    # Constants, and values that carry no derivative, are part of a map
    name, path, owner = name_of(node), node.meta["path"], node.meta["owner"]
    line = node.meta.get("line")
    if not depends or not differentiable:
        return Matched(None)
    # Activations
    if node.target is normal_cdf:
        return Matched(from_function(normal_cdf))
    if is_activation_function(name) and _from_torch(node):
        try:
            found = read_function(name, _after_tensor(node), {k: v for k, v in node.kwargs.items() if k != "input"})
        except NotLiftableError as error:
            if name == "log_softmax" and len(node.users) and not _is_output(node):
                return Matched(None)
            refuse_at(path, owner, line, f"{_shown(node)}: {error}")
        except TypeError as error:
            refuse_at(path, owner, line, f"the arguments of {_shown(node)} are not understood ({error}): {_WRAP}")
        if found is not None:
            return Matched(*_joint_dimension(node, *found))
    # Maps: known calls of torch that keep samples apart
    if name in _RANDOM_METHODS:
        refuse_at(path, owner, line, f"{_shown(node)} draws random numbers: use nn.Dropout or lb.GaussianNoise")
    if name in _MAPS and _from_torch(node) and name not in _WHOLE:
        _require_samples_apart(node, name)
        return Matched(None)
    if name in _NEW and _from_torch(node):
        return Matched(None)
    # Calls without a derivative, allowed on data only
    if name in _WHOLE and _from_torch(node):
        if node.meta["data_only"]:
            return Matched(None)
        refuse_at(
            path,
            owner,
            line,
            f"{_shown(node)} of a variable has no derivative: use an activation such as nn.Sigmoid, or {_WRAP}",
        )
    refuse_at(path, owner, line, f"{_shown(node)} is neither an activation nor a map that the reader knows: {_WRAP}")


def refuse_at(path: str, owner: nn.Module, line: str | None, reason_and_remedy: str) -> NoReturn:
    """Raises the error for a call in a forward method."""
    reason, _, remedy = reason_and_remedy.rpartition(": ")
    refuse_call(path, owner, line, reason, remedy)


def _match_module(node: fx.Node, module: nn.Module) -> Matched:
    path = str(node.target)
    kind = type(module)
    try:
        found = read_activation(module)
    except NotLiftableError as error:
        if kind is nn.LogSoftmax and not _is_output(node):
            return Matched(None)
        refuse(path, module, str(error))
    if found is not None:
        return Matched(*_joint_dimension(node, *found))
    # Maps: those of the library, and modules of torch that are known to be differentiable without activation
    if isinstance(module, Map | Site):
        return Matched(None)
    if isinstance(module, LazyModuleMixin):
        refuse(path, module, "its size is not known yet: run the model once on a sample before lifting it")
    if kind in _REFUSED:
        refuse(path, module, _REFUSED[kind])
    if kind not in _MAP_MODULES:
        refuse(
            path,
            module,
            "an activation may hide in it, which the reader cannot see: wrap it in lb.Map(module) if it is a "
            "differentiable map without activation, or write it as nn.Linear, nn.Conv2d, ... and activations",
        )
    if (kind is nn.Flatten and module.start_dim == 0) or (kind is nn.Unflatten and module.dim == 0):
        refuse(path, module, "it reaches dimension 0, which holds the samples: let it start at dimension 1")
    return Matched(None)


def _joint_dimension(node: fx.Node, activation: Activation, dim: int | None) -> tuple[Activation, int | None]:
    """The dimension of a joint activation, checked against the dimension of the samples where that is known."""
    shape, batch = node.meta.get("shape"), node.meta.get("batch")
    if dim is None or not activation.joint:
        return activation, None
    if shape is not None and batch and (dim % len(shape)) in batch:
        refuse(
            node.meta["path"],
            node.meta["owner"],
            f"{_shown(node)} acts along dim={dim}, which holds the samples, which a layer must not couple: use another "
            "dimension",
        )
    if shape is None and dim == 0:
        reason = "dimension 0 holds the samples, which a layer must not couple: use dim=1 or dim=-1"
        refuse(node.meta["path"], node.meta["owner"], reason)
    return activation, dim


def _require_samples_apart(node: fx.Node, name: str) -> None:
    """Raises for a reduction over samples; without known shapes, dimension 0 is taken as that of the samples."""
    if name not in _REDUCTIONS and name not in _MIXING:
        return
    first: Any = node.args[0] if node.args else node.kwargs.get("input", node.kwargs.get("tensors"))
    if isinstance(first, tuple | list):
        first = next((n for n in first if isinstance(n, fx.Node)), None)
    if not isinstance(first, fx.Node) or (name in ("max", "min") and len(node.all_input_nodes) > 1):
        return
    place = 2 if name in _SECOND_THEN_DIM else 1
    given: Any = node.args[place] if len(node.args) > place else None
    given = node.kwargs.get("dim", node.kwargs.get("axis", given))
    if given is None and (name in _MIXING or name in _LAST_DIM):
        given = 0 if name in _MIXING else -1
    dims: set[int] | None = None
    if given is not None and given != ():
        dims = {given} if isinstance(given, int) else set(given)
    shape, batch = first.meta.get("shape"), first.meta.get("batch")
    if shape is None:
        couples = dims is None or 0 in dims
    elif name == "stack":  # which makes a new dimension and mixes none; where it stands is seen in its result
        couples = False
    else:
        couples = bool(batch) and (dims is None or bool({d % len(shape) for d in dims} & set(batch or ())))
    if couples:
        refuse_at(
            node.meta["path"],
            node.meta["owner"],
            node.meta.get("line"),
            f"{_shown(node)} runs over the dimension of the samples, which a map must not couple: name the dimensions "
            "of the features",
        )


def _after_tensor(node: fx.Node) -> tuple[Any, ...]:
    """The arguments after the tensor; constants stand for nodes that hold one number."""
    rest = node.args[1:] if "input" not in node.kwargs else node.args
    return tuple(_constant(a) for a in rest)


def _constant(argument: Any) -> Any:
    if isinstance(argument, fx.Node):
        value = value_of(argument)
        if isinstance(value, Tensor) and value.ndim == 0 and not isinstance(value, nn.Parameter):
            return float(value)
        return value if value is not UNKNOWN else torch.zeros(())
    return argument


def _from_torch(node: fx.Node) -> bool:
    if node.op == "call_method":
        return True
    home = getattr(node.target, "__module__", None) or "torch"  # functions of torch in C have no module
    return home.startswith(("torch", "_operator")) or node.target in FACTORIES


def _is_output(node: fx.Node) -> bool:
    return any(user.op == "output" for user in node.users)


def _shown(node: fx.Node) -> str:
    name = name_of_target(node)
    return f"{name}(...)" if node.op != "call_module" else name
