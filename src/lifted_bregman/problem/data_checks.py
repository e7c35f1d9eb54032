"""Checks of X, Y, sample weights and states, made before any work starts."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from lifted_bregman._autocast import autocast_dtype
from lifted_bregman.errors import CompatibilityError, SettingError, TensorError
from lifted_bregman.graph import Input, InputTensors, ModelInput, Network
from lifted_bregman.graph.inputs import InputLike, input_tensors
from lifted_bregman.losses import BregmanLoss
from lifted_bregman.maps import Borrowing, Dense, TracedMap
from lifted_bregman.maps.determinism import require_pure, unchanged
from lifted_bregman.problem.blocks import hidden_layers
from lifted_bregman.problem.state import LiftedState

_TRIED_SAMPLES = 16


class DataChecks:
    """Checks data against a network and its loss.  Shapes of layers are computed once for each shape of a sample."""

    def __init__(self, network: Network, loss: BregmanLoss) -> None:
        self._network = network
        self._loss = loss
        self._shapes: dict[tuple[torch.Size, ...], tuple[torch.Size, ...]] = {}
        self._tried: set[tuple[tuple[torch.Size, ...], tuple[bool, ...]]] = set()
        """(shapes of samples, modes of the modules in `lb.Map`) for which the maps have been tried."""

    def pure(self) -> None:
        """Raises unless every module, in its present mode, is a function of each sample alone, and autocast is off."""
        require_pure(self._network.model)
        _require_no_autocast(next(self._network.model.parameters()))

    def inputs(self, X: InputLike) -> ModelInput:
        """X, checked: a finite tensor (samples, ...) of the model's dtype, on its device, that fits every layer.

        A model that looks up embeddings takes whole numbers.  One with several inputs takes a tuple of tensors with
        the same number of samples and the dtypes of lift's example; it is returned as `InputTensors`.
        """
        given = require_all_inputs(self._network.inputs, X)
        like = next(self._network.model.parameters())
        require_not_meta(like, "the model's parameters are")
        for place, x in enumerate(given):
            self._require_input(x, place, like)
        if len({len(x) for x in given}) > 1:
            counts = ", ".join(f"{own.name} has {len(x)}" for own, x in zip(self._network.inputs, given, strict=True))
            raise TensorError(f"the inputs differ in their number of samples ({counts}): give one row for each sample.")
        X = X if isinstance(X, Tensor) else InputTensors(given)
        self.feature_shapes(X)
        self._try_maps(X)
        return X

    def _require_input(self, x: Tensor, place: int, like: Tensor) -> None:
        """Checks dtype, device, shape and values of input number `place` of the model."""
        # Dtype: bool, indices or the model's floating-point dtype
        own = self._network.inputs[place]
        name = own.name
        whole = own.dtype is not None and not (own.dtype.is_floating_point or own.dtype == torch.bool)
        if own.dtype == torch.bool:
            if x.dtype != torch.bool:
                raise TensorError(f"{name} is {x.dtype} and was bool in lift's example: use {name}.bool().")
        elif self._network.takes_indices(place) or whole:
            if x.is_floating_point() or x.dtype == torch.bool:
                uses = "the model looks up embeddings" + (" by it" if len(self._network.inputs) > 1 else "")
                reason = uses if self._network.takes_indices(place) else "held whole numbers in lift's example"
                raise TensorError(f"{name} is {x.dtype} and {reason}: use {name}.long().")
        elif x.dtype != like.dtype:
            raise TensorError(
                f"{name} is {x.dtype} and the model's parameters are {like.dtype}: use {name}.to({like.dtype})."
            )
        # Device, shape and values
        _require_device(x, name, like)
        least = 2 if len(self._network.inputs) == 1 else 1
        if x.ndim < least or x.numel() == 0:
            raise TensorError(
                f"{name} has shape {tuple(x.shape)}; it needs at least one sample and at least one feature, "
                "(samples, ...): a single sample x is given as x.unsqueeze(0)."
            )
        if x.is_floating_point():
            _require_finite(x, name)
        elif (entries := self._network.index_limit(place)) is not None:
            _require_entries(x, name, entries)

    @property
    def _dtype(self) -> torch.dtype:
        return next(self._network.model.parameters()).dtype

    def targets(self, X: ModelInput, Y: Tensor) -> Tensor:
        """Y in the shape of the network's outputs (labels become one-hot rows); X must have been checked before."""
        require_plain(Y, "Y")
        _require_device(Y, "Y", input_tensors(X)[0])
        if Y.ndim == 0 or len(Y) != len(X):
            count = len(Y) if Y.ndim else 0
            raise TensorError(f"X has {len(X)} samples and Y has {count}: give one target for every sample.")
        if Y.is_floating_point():
            _require_finite(Y, "Y")
        top = self._network[len(self._network)]
        made = torch.empty((len(X), *self.feature_shapes(X)[-1]), dtype=self._dtype, device=X.device)
        like = top.arrange(made)
        return top.restore(self._loss.encode(top.arrange(Y) if Y.ndim == like.ndim else Y, like))

    def state(self, state: LiftedState, X: ModelInput) -> None:
        """Raises unless `state` is one of this network for the samples of X; X must have been checked before."""
        hidden = hidden_layers(len(self._network))
        if not isinstance(state, LiftedState) or len(state) != len(hidden):
            given = f"{len(state)} variables" if isinstance(state, LiftedState) else f"a {type(state).__name__}"
            raise TensorError(
                f"the state is {given}; expected a LiftedState with x_1 .. x_{len(hidden)}, one for each hidden layer: "
                "problem.forward_state(X) makes one."
            )
        for layer, shape in zip(hidden, self.feature_shapes(X), strict=False):
            x, expected = state[layer], (len(X), *shape)
            if tuple(x.shape) != expected or x.dtype != self._dtype or x.device != X.device:
                raise TensorError(
                    f"x_{layer} is {tuple(x.shape)} of {x.dtype} on {x.device}; expected {expected} of {self._dtype} "
                    f"on {X.device}, the outputs of {self._network[layer].path} for these samples: make the state from "
                    "the same X, or select its samples with state.select(indices)."
                )

    def feature_shapes(self, X: ModelInput) -> tuple[torch.Size, ...]:
        """The shape of one sample's variable at every layer."""
        features = _features(X)
        if features not in self._shapes:
            with unchanged(self._network.model, input_tensors(X)[0]), self._network.evaluating():
                self._shapes[features] = self._probe(X)
        return self._shapes[features]

    def _try_maps(self, X: ModelInput) -> None:
        """Raises unless each `lb.Map`, tried on a few samples, is deterministic and treats each sample alone.

        They are tried once for every shape of a sample and every mode of their modules.
        """
        maps = [f.base if isinstance(f, Borrowing) else f for f in (layer.map for layer in self._network)]
        taken = [number for number, f in enumerate(maps, 1) if isinstance(f, TracedMap) and f.maps]
        modules = [module for f in maps if isinstance(f, TracedMap) for _, module in f.maps]
        key = (_features(X), tuple(inner.training for module in modules for inner in module.modules()))
        if not taken or key in self._tried:
            return
        x: list[Any] = [X[:_TRIED_SAMPLES].detach()]
        with self._network.evaluating():
            for number in range(1, taken[-1] + 1):
                f, read = maps[number - 1], self._network.read(x, number)
                z = f.require_one_answer(read) if isinstance(f, TracedMap) else f.apply(read)
                x.append(self._network[number].activate(z))
        self._tried.add(key)

    def _probe(self, X: ModelInput) -> tuple[torch.Size, ...]:
        """The feature shape of every layer, from one sample of zeros."""
        shapes = []
        zeros = tuple(x.new_zeros((1, *x.shape[1:])) for x in input_tensors(X))
        values: list[Any] = [zeros[0] if isinstance(X, Tensor) else InputTensors(zeros)]
        for number, layer in enumerate(self._network, 1):
            read = self._network.read(values, number)
            given = tuple(read.shape[1:]) if isinstance(read, Tensor) else [tuple(t.shape[1:]) for t in read]
            # Apply the map to one sample of zeros
            try:
                x = layer.map.apply(read)
            except (RuntimeError, ValueError, IndexError) as error:
                wants = ""
                if isinstance(layer.map, Dense):
                    wants = f" (it takes {layer.map.module.in_features} features)"
                names = " and ".join(
                    f"{own.name} has samples of shape {tuple(features)}"
                    for own, features in zip(self._network.inputs, _features(X), strict=True)
                )
                raise TensorError(
                    f"{names}, so that {layer.path} is given {given}, which it cannot take{wants}: change the data or "
                    f"the layer. torch says: {error}"
                ) from error
            # Its result has one row, and the dimension along which a joint activation acts
            if x.ndim < 2 or len(x) != 1:
                raise TensorError(
                    f"{layer.path} turns one sample into a tensor {tuple(x.shape)}; a map must keep samples apart, in "
                    "dimension 0."
                )
            if layer.activation.joint and not -x.ndim < layer.dim < x.ndim:
                where = "holds the samples, which a layer must not couple" if layer.dim == -x.ndim else "does not exist"
                raise CompatibilityError(
                    f"the activation after {layer.path} acts along dim={layer.dim}, which {where}, for it is given "
                    f"tensors of {x.ndim} dimensions: use dim=1 or dim=-1."
                )
            shapes.append(x.shape[1:])
            values.append(x)
        return tuple(shapes)


def require_all_inputs(inputs: Sequence[Input], X: Any) -> tuple[Any, ...]:
    """The tensors of X, one for each input of the model; an error names a missing input."""
    names = ", ".join(own.name for own in inputs)
    if len(inputs) == 1:
        if isinstance(X, InputTensors) or (isinstance(X, tuple) and all(isinstance(x, Tensor) for x in X)):
            count = len(X.tensors if isinstance(X, InputTensors) else X)
            raise TensorError(f"X is a tuple of {count} tensors and the model takes one: give one tensor.")
        require_plain(X, "X")
        return (X,)
    given = X.tensors if isinstance(X, InputTensors) else X
    if not isinstance(given, tuple | list):
        raise TensorError(
            f"X is a {type(X).__name__} and the model takes {len(inputs)} tensors: give a tuple ({names})."
        )
    if len(given) < len(inputs):
        raise TensorError(
            f"X has {len(given)} of the {len(inputs)} tensors that the model takes, and {inputs[len(given)].name} is "
            f"missing: give a tuple ({names})."
        )
    if len(given) > len(inputs):
        raise TensorError(f"X has {len(given)} tensors and the model takes {len(inputs)}: give a tuple ({names}).")
    for own, x in zip(inputs, given, strict=True):
        require_plain(x, own.name)
    return tuple(given)


def _features(X: ModelInput) -> tuple[torch.Size, ...]:
    """The shape of one sample of each input."""
    return tuple(x.shape[1:] for x in input_tensors(X))


def sample_weights(weights: Tensor, Y: Tensor) -> Tensor:
    """The weights, checked, in dtype and on the device of the targets Y: a finite number above 0 for each sample."""
    if isinstance(weights, Tensor):
        require_plain(weights, "sample_weights")
    if not isinstance(weights, Tensor) or weights.shape != (len(Y),):
        given = tuple(weights.shape) if isinstance(weights, Tensor) else type(weights).__name__
        raise TensorError(f"the sample weights are {given}; expected a tensor ({len(Y)},), one number for each sample.")
    w = weights.detach().to(Y)
    bad = ~(w.isfinite() & (w > 0.0))
    if bad.any():
        first = int(bad.nonzero()[0])
        raise TensorError(
            f"the weight of sample {first} is {float(w[first]):g}; weights must be finite and above 0: leave samples "
            "of weight 0 out."
        )
    return w


def require_plain(tensor: Tensor, name: str) -> None:
    """Raises unless `tensor`, called `name` in the message, is a dense tensor of real numbers."""
    variable = name.split()[0]
    if not isinstance(tensor, Tensor):
        raise TensorError(f"{name} is a {type(tensor).__name__}; expected a torch tensor: use torch.as_tensor({name}).")
    if tensor.is_nested:
        raise TensorError(
            f"{name} is a nested tensor, whose samples may differ in shape; expected samples of one shape: pad them, "
            f"as torch.nested.to_padded_tensor({variable}, 0.0) does."
        )
    if tensor.layout is not torch.strided:
        raise TensorError(f"{name} is a sparse tensor; expected a dense one: give {variable}.to_dense().")
    if torch.masked.is_masked_tensor(tensor):
        raise TensorError(
            f"{name} is a masked tensor; expected a number in every place: leave such samples out, or choose a number "
            f"for them by {variable}.to_tensor(number)."
        )
    require_not_meta(tensor, f"{name} is")
    if tensor.is_complex():
        raise TensorError(f"{name} is {tensor.dtype}; expected real numbers: use {variable}.real or {variable}.abs().")
    if tensor.is_quantized:
        raise TensorError(f"{name} is {tensor.dtype}; expected real numbers: use {variable}.dequantize().")


def require_not_meta(tensor: Tensor, which: str) -> None:
    """Raises if the tensor is on torch's meta device; the message begins with `which`, such as "X is"."""
    if tensor.is_meta:
        instead = "create it on another, such as device='cpu'"
        if isinstance(tensor, nn.Parameter):
            instead = "use model.to_empty(device='cpu') and initialise or load the parameters"
        raise TensorError(f"{which} on the meta device, which holds no numbers: {instead}.")


def _require_no_autocast(like: Tensor) -> None:
    """Raises if autocast would change the dtype of the layers' outputs."""
    kind, dtype = like.device.type, autocast_dtype(like)
    if dtype is not None:
        raise SettingError(
            f"autocast is active for {kind}, so that layers would return {dtype}; energies and their gradients are "
            f"computed in the model's {like.dtype}: leave the autocast block, or put the call into "
            f"`with torch.autocast({kind!r}, enabled=False):`."
        )


def _require_device(tensor: Tensor, name: str, like: Tensor) -> None:
    if tensor.device != like.device:
        raise TensorError(f"{name} is on {tensor.device}; expected {like.device}: use {name}.to({str(like.device)!r}).")


def _require_entries(x: Tensor, name: str, entries: int) -> None:
    outside = ((x < 0) | (x >= entries)).flatten(1) if x.ndim > 1 else ((x < 0) | (x >= entries)).unsqueeze(1)
    if outside.any():
        first = int(outside.any(1).nonzero()[0])
        value = int(x[first].flatten()[outside[first]][0])
        raise TensorError(
            f"{name} holds {value} in sample {first}, and the embedding has the entries 0 to {entries - 1}: number the "
            "entries from 0, or give the model a larger nn.Embedding."
        )


def _require_finite(tensor: Tensor, name: str) -> None:
    finite = tensor.isfinite()
    if not finite.all():
        first = int((~finite.flatten(1).all(1) if tensor.ndim > 1 else ~finite).nonzero()[0])
        raise TensorError(f"{name} holds NaN or infinity, first in sample {first}: remove or repair such samples.")
