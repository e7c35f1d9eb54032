"""`lift`: from a PyTorch model and a loss to the lifted problem, with everything checked first."""

from __future__ import annotations

from dataclasses import replace

from torch import Tensor, nn

from lifted_bregman._device import SUPPORTED_DTYPES
from lifted_bregman.activations import Activation, Identity, Softmax
from lifted_bregman.errors import CompatibilityError, SettingError, TensorError
from lifted_bregman.graph import Layer, Network, Streams, read_network
from lifted_bregman.losses import BregmanLoss
from lifted_bregman.maps import Dense
from lifted_bregman.penalties import Penalty
from lifted_bregman.problem.blocks import hidden_layers, layers
from lifted_bregman.problem.composite import require_composable
from lifted_bregman.problem.data_checks import require_not_meta
from lifted_bregman.problem.lifted import LiftedProblem
from lifted_bregman.problem.settings import Penalties, Weights, check_penalties, check_weights

_LOSSES: dict[type[nn.Module], str] = {
    nn.MSELoss: "SquaredError(), which is ½‖y - z‖² summed over features",
    nn.CrossEntropyLoss: "CrossEntropy()",
    nn.NLLLoss: "CrossEntropy(), and leave nn.LogSoftmax out of the model",
    nn.BCEWithLogitsLoss: "lb.BregmanLoss(lb.activations.Sigmoid()), which is summed over features",
    nn.BCELoss: "lb.BregmanLoss(lb.activations.Sigmoid()), which is summed over features",
}
"""What to take in place of a loss of torch."""


def lift(
    model: nn.Module,
    *,
    loss: BregmanLoss,
    example: Tensor | tuple[Tensor, ...] | None = None,
    weights: Weights | None = None,
    penalties: Penalties | None = None,
    parameter_penalties: Penalties | None = None,
    streams: Streams = Streams.VARIABLES,
) -> LiftedProblem:
    """The lifted problem (eq. 13) of a model, on the model's own parameters.

    `problem.summary()` lists its terms: what is lifted, and what is a map.

    Args:
        model: any module that torch.fx can trace, as `read_network` takes it: maps and proximal activations, as
            modules, functions or methods.  Parameters with requires_grad=False stay fixed.
        loss: `SquaredError()`, `CrossEntropy()` or `BregmanLoss(activation)`.  It owns the final activation: a model
            that ends with one needs the Bregman loss of that activation; a model that ends with a map takes any.
        example: a few samples of the model's input, or a tuple of them for several inputs, where the model's code reads
            shapes.
        weights: λ_1 .. λ_{L-1} > 0, or one number for all, or some by place; 1 by default.
        penalties: R_l on the variables, {place: penalty}.  A place is the name of a module or value, as in the summary,
            or the number of a layer, from 1 to L-1.
        parameter_penalties: P_l on the weights (not the biases), {place: penalty} with layers from 1 to L.
        streams: whether a sum that several terms read, such as a residual stream, is a variable (`Streams.VARIABLES`)
            or is added up in each of these terms (`Streams.DERIVED`).

    Example:
        >>> model = nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 2))
        >>> lb.lift(model, loss=lb.SquaredError(), penalties={1: lb.penalties.L1(0.1)})
        LiftedProblem of 2 layers, 26 parameters of float32 on cpu
          1: model.0 (Linear) 3 → 4, 16 parameters, ReLU(), λ = 1, L1(weight=0.1)
          2: model.2 (Linear) 4 → 2, 10 parameters, loss SquaredError(Identity(), reduction='mean')
    """
    network = read_network(model, example, streams)
    for term in network:
        term.map.require_pure()
    _require_parameters(network)
    top = replace(network.layers[-1], activation=_output_activation(network, loss))
    network = replace(network, layers=(*network.layers[:-1], top))
    depth = len(network)
    checked_weights = check_weights(weights, network)
    on_variables = check_penalties(penalties, network, hidden_layers(depth), "penalties", "hidden layers")
    for layer, penalty in on_variables.items():
        _require_composable(network[layer], penalty, f"penalties[{layer}]")
    on_parameters = check_penalties(parameter_penalties, network, layers(depth), "parameter_penalties", "layers")
    for layer in on_parameters:
        if not any(p.ndim > 1 for p in network[layer].map.parameters.values()):
            raise SettingError(
                f"parameter_penalties has a penalty for layer {layer}, {network[layer].path}, which has no trained "
                "weight: leave it out, or set requires_grad of the weight."
            )
    return LiftedProblem(network, loss, checked_weights, on_variables, on_parameters)


def _require_composable(layer: Layer, penalty: Penalty, name: str) -> None:
    width = layer.map.module.out_features if isinstance(layer.map, Dense) else None
    try:
        require_composable(layer.activation, penalty, width)
    except CompatibilityError as error:
        raise CompatibilityError(f"{name}, after {layer.path}: {error}") from error


def _require_parameters(network: Network) -> None:
    """One dtype, one device, no NaN."""
    named = list(network.model.named_parameters())
    for name, parameter in named:
        require_not_meta(parameter, f"parameter {name} is")
    first_name, first = named[0]
    if first.dtype not in SUPPORTED_DTYPES:
        raise TensorError(f"parameter {first_name} is {first.dtype}; use float32 or float64: model.to(torch.float32).")
    for name, parameter in named:
        if parameter.dtype != first.dtype or parameter.device != first.device:
            raise TensorError(
                f"parameter {first_name} is {first.dtype} on {first.device} and {name} is {parameter.dtype} on "
                f"{parameter.device}; all must agree: use model.to(device, dtype)."
            )
        if not parameter.isfinite().all():
            raise TensorError(f"parameter {name} holds NaN or infinity: initialise or load the model again.")


def _output_activation(network: Network, loss: BregmanLoss) -> Activation:
    """The activation σ_L of the loss; raises if the model itself ends with another activation."""
    if not isinstance(loss, BregmanLoss):
        own = next((take for kind, take in _LOSSES.items() if isinstance(loss, kind)), None)
        hint = "" if own is None else f" For nn.{type(loss).__name__} take {own}."
        raise CompatibilityError(
            f"loss is {loss!r}; lifted training needs a Bregman loss: SquaredError(), CrossEntropy() or "
            f"BregmanLoss(activation).{hint}"
        )
    final, owned = network.final_activation, loss.activation
    if final is None or final == owned:
        return owned
    reason = ""
    if owned == Identity():
        reason = ", and ½‖y - σ(z)‖² is no Bregman loss: it is in general not convex in z"
    own_loss = "CrossEntropy()" if final == Softmax() else f"BregmanLoss({final!r})"
    raise CompatibilityError(
        f"the model ends with the activation {final!r}, but the loss {type(loss).__name__} is that of {owned!r}{reason}"
        f". Use {own_loss}, the loss of the final activation, or remove that activation from the model."
    )
