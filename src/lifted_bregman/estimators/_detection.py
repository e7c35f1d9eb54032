"""The base class of the two detectors: autoencoders, their training, and the scales of their energies."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from sklearn.base import BaseEstimator  # type: ignore[import-untyped]
from sklearn.utils import check_random_state  # type: ignore[import-untyped]
from sklearn.utils.validation import check_is_fitted, validate_data  # type: ignore[import-untyped]
from torch import Tensor, nn

from lifted_bregman._arguments import whole
from lifted_bregman._device import resolve_device
from lifted_bregman.activations import Activation
from lifted_bregman.errors import (
    CompatibilityError,
    DataError,
    LiftedBregmanError,
    SettingError,
    UnsupportedModuleError,
)
from lifted_bregman.estimators import _autoencoders as autoencoders
from lifted_bregman.estimators import _settings as settings
from lifted_bregman.estimators._base import RELU, Array
from lifted_bregman.estimators._training import report_end, start_at_mean
from lifted_bregman.graph import read_network
from lifted_bregman.losses import SquaredError
from lifted_bregman.problem import LiftedProblem
from lifted_bregman.problem.lift import lift
from lifted_bregman.solvers import Callback, Outcome, Solver
from lifted_bregman.tasks.detection import EnergyScale, require_contamination
from lifted_bregman.tasks.explanation import Explanation, mean_explanation
from lifted_bregman.tasks.term_energies import Where, require_autoencoder, require_where
from lifted_bregman.training.callbacks import Progress
from lifted_bregman.training.fit import default_solver, fit

_MOST_EPOCHS, _STEPS = 8, 60  # defaults, chosen on other tables than those of the benchmark
_ROWS = 4096  # samples in one forward pass, to bound the memory
_STANDARDISE = ("features", "samples", None)

Network = nn.Module | Callable[[tuple[int, ...]], nn.Module]


class EnergyDetector(BaseEstimator):  # type: ignore[misc]
    """Scores samples by the energies of autoencoders that a lifted solver trains."""

    model_: nn.Module
    scales_: list[EnergyScale]
    n_iter_: int
    history_: list[dict[str, float]]
    outcome_: Outcome
    message_: str

    def __init__(
        self,
        hidden: int | Sequence[int] | None = None,
        *,
        images: Sequence[int] | None = None,
        network: Network | None = None,
        activation: Activation | str = RELU,
        energy: Where = "forward",
        steps: int = 20,
        contamination: float = 0.1,
        standardise: str | None = "auto",
        members: int = 5,
        solver: Solver[Any] | None = None,
        epochs: int | None = None,
        batch_size: int | None = None,
        dtype: Any = None,
        device: str | torch.device | None = None,
        verbose: int = 0,
        callbacks: Sequence[Callback] = (),
        random_state: Any = None,
    ) -> None:
        self.hidden = hidden
        self.images = images
        self.network = network
        self.activation = activation
        self.energy = energy
        self.steps = steps
        self.contamination = contamination
        self.standardise = standardise
        self.members = members
        self.solver = solver
        self.epochs = epochs
        self.batch_size = batch_size
        self.dtype = dtype
        self.device = device
        self.verbose = verbose
        self.callbacks = callbacks
        self.random_state = random_state

    def __sklearn_is_fitted__(self) -> bool:
        return hasattr(self, "scales_")

    def explain(self, X: Any) -> Explanation:
        """Return the parts of each sample's score by layer, whose sum is the score, and the output's by feature."""
        inputs = self._tensor(self._checked(X))
        return mean_explanation([scale.explain(inputs) for scale in self.scales_])

    def reconstruct(self, X: Any) -> Array:
        """Return the mean of the autoencoders' outputs, (samples, features), in the units of X."""
        rows = self._checked(X)
        inputs = self._tensor(rows)
        with torch.no_grad():
            outputs = torch.stack([self._returned(scale.problem.model, inputs) for scale in self.scales_]).mean(0)
        restored: Array = self._restored(outputs.flatten(1).cpu().double().numpy(), rows).astype(rows.dtype)
        return restored

    @staticmethod
    def _returned(model: nn.Module, inputs: Tensor) -> Tensor:
        return torch.cat([model(piece) for piece in inputs.split(_ROWS)])

    # Training

    def _learn(self, X: Any) -> Array:
        """Train new autoencoders on X, and return the scores of its samples."""
        solver = default_solver() if self.solver is None else settings.solver(self.solver)
        epochs = None if self.epochs is None else whole(self.epochs, "epochs")
        batch_size = None if self.batch_size is None else whole(self.batch_size, "batch_size")
        require_where(self.energy, self.steps)
        require_contamination(self.contamination)
        shape = autoencoders.image_shape(self.images)
        rule = self._standardise_rule(shape)
        progress = [Progress(line_seconds=0.0)] if settings.verbose(self.verbose) else []
        device = resolve_device(self.device)
        members = whole(self.members, "members")
        self.__dict__.pop("scales_", None)  # a fit that fails leaves no scales of earlier data
        X = self._validated(autoencoders.flat_images(X, shape), reset=True)
        self._shape = (X.shape[1],) if shape is None else shape
        self._find_standards(X, rule)
        inputs = self._prepared(X).to(device)
        _require_size(inputs)
        epochs = _few_epochs(len(X), batch_size) if epochs is None else epochs
        random, scales = check_random_state(self.random_state), []
        for member in range(members):
            # An autoencoder, its initial weights and the order of the samples are functions of its seed.
            seed = int(random.randint(np.iinfo(np.int32).max))
            model = self._network(inputs.dtype, seed).to(device)
            problem = _lifted(model, inputs[:2])
            require_autoencoder(problem, inputs)
            if shape is None and self.network is None:
                start_at_mean(model, inputs, None)  # type: ignore[arg-type]  # built by dense_autoencoder
            data, callbacks = (inputs, inputs), [*self.callbacks, *progress]
            result = fit(problem, data, solver, epochs=epochs, batch_size=batch_size, seed=seed, callbacks=callbacks)
            report_end(result)
            model.eval()
            scales.append(EnergyScale.of(problem, inputs, at=self.energy, steps=self.steps))
            if member == 0:
                self.model_, self.n_iter_ = model, len(result.history)
                self.history_, self.outcome_, self.message_ = result.history, result.outcome, result.message
        self.scales_ = scales
        return self._scores(X)

    def _network(self, dtype: torch.dtype, seed: int) -> nn.Module:
        """Return an untrained autoencoder."""
        if self.network is not None:
            if self.hidden is not None:
                raise SettingError("hidden and network are both given: leave hidden out, the network has its widths.")
            if not isinstance(self.network, nn.Module) and not callable(self.network):
                raise SettingError(
                    f"network is {self.network!r}; it must be a torch.nn.Module or a function of a shape."
                )
            return autoencoders.given_network(self.network, self._shape, dtype, seed)
        widths = None if self.hidden is None else settings.widths(self.hidden)
        if widths == ():
            raise SettingError("hidden is empty; an autoencoder needs at least one hidden layer, its code.")
        activation = settings.activation(self.activation)
        if len(self._shape) == 3:
            return autoencoders.convolutional_autoencoder(self._shape, widths, activation, dtype, seed)
        return autoencoders.dense_autoencoder(self._shape[0], widths, activation, dtype, seed)

    # Preparation

    def _standardise_rule(self, shape: tuple[int, ...] | None) -> str | None:
        given = self.standardise
        if isinstance(given, str) and given == "auto":
            return "features" if shape is None else None
        if given not in _STANDARDISE:
            raise SettingError(f"standardise is {given!r}; it must be 'auto', 'features', 'samples' or None.")
        return given

    def _find_standards(self, X: Array, rule: str | None) -> None:
        """Set mean and deviation of each feature, if features are standardised; else 0 and 1."""
        self._by_sample = rule == "samples"
        self._mean, self._deviation = np.zeros(1), np.ones(1)
        if rule == "features":
            self._mean, self._deviation = _standards(X, 0)

    def _standards(self, X: Array) -> tuple[Array, Array]:
        """Return mean and deviation, of the training features or of each sample of X."""
        if not self._by_sample:
            return self._mean, self._deviation
        return _standards(X, 1)

    def _prepared(self, X: Array) -> Tensor:
        """Return (X - mean) / deviation in the shape of the network's inputs, on the CPU."""
        mean, deviation = self._standards(X)
        with np.errstate(over="ignore"):
            rows = ((X - mean) / deviation).astype(X.dtype)
        bad = ~np.isfinite(rows).all(1)
        if bad.any():
            raise DataError(
                f"sample {int(bad.argmax())} overflows {X.dtype} when its features are standardised: rescale the "
                "features, or leave such samples out."
            )
        return torch.from_numpy(rows).view(len(X), *self._shape)

    def _restored(self, outputs: Array, X: Array) -> Array:
        mean, deviation = self._standards(X)
        restored: Array = mean + deviation * outputs
        return restored

    # Scores

    def _validated(self, X: Any, *, reset: bool) -> Array:
        settings.refuse_masked(X, "X")
        dtype = settings.float_types(self.dtype) if reset else next(self.model_.parameters()).new_zeros(0).numpy().dtype
        least = 2 if reset else 1
        found: Array = validate_data(
            self,
            X,
            reset=reset,
            dtype=dtype,
            order="C",
            force_writeable=True,
            ensure_min_samples=least,
            ensure_all_finite=False,
        )
        settings.require_finite(found)
        return found

    def _checked(self, X: Any) -> Array:
        """Return X as rows of numbers, checked against the fitted detector."""
        check_is_fitted(self, msg="this %(name)s is not fitted yet: call fit(X) with samples of the usual kind first.")
        return self._validated(autoencoders.flat_images(X, self._shape if len(self._shape) == 3 else None), reset=False)

    def _tensor(self, X: Array) -> Tensor:
        return self._prepared(X).to(next(self.model_.parameters()).device)

    def _scores(self, X: Array) -> Array:
        """Return the scores, (samples,); higher is more abnormal."""
        pieces = []
        for first in range(0, len(X), _ROWS):
            inputs = self._tensor(X[first : first + _ROWS])
            pieces.append(torch.stack([scale.scores(inputs) for scale in self.scales_]).mean(0))
        scores: Array = torch.cat(pieces).cpu().numpy()
        return scores


def _lifted(model: nn.Module, example: Tensor) -> LiftedProblem:
    """Lift an autoencoder; errors name the last activation, or the width that does not fit the samples."""
    try:
        return lift(model, loss=SquaredError(), example=example)
    except CompatibilityError:
        final = read_network(model, example).final_activation
        if final is None:
            raise
        raise CompatibilityError(
            f"network ends with the activation {final!r}, and a detector needs an output without activation: remove "
            "the last activation."
        ) from None
    except UnsupportedModuleError as error:
        # If the network can be lifted without an example, its width is wrong: `forward_state` names both widths.
        try:
            problem = lift(model, loss=SquaredError())
        except LiftedBregmanError:
            raise error from None
        problem.forward_state(example)
        raise


def _standards(X: Array, axis: int) -> tuple[Array, Array]:
    """Return mean and deviation over an axis in float64; the deviation of equal values is 1."""
    # X is divided by a power of two, which is exact, so that no square overflows or underflows.
    _, exponent = np.frexp(np.abs(X).max(axis, keepdims=True))
    scaled = np.ldexp(X.astype(np.float64), -exponent)
    mean, deviation = scaled.mean(axis, keepdims=True), scaled.std(axis, keepdims=True)
    # The computed deviation of equal values is of the size of rounding errors: count it as 0, and divide by 1.
    rounding = X.shape[axis] * np.finfo(np.float64).eps * np.abs(mean)
    return np.ldexp(mean, exponent), np.where(deviation > rounding, np.ldexp(deviation, exponent), 1.0)


def _require_size(inputs: Tensor) -> None:
    """Raise DataError if all inputs are so small that energies vanish; inputs that are all 0 are allowed."""
    largest = float(inputs.abs().max())
    if 0.0 < largest < torch.finfo(inputs.dtype).eps:
        raise DataError(
            f"the features are at most {largest:.3g} in magnitude, and their squares vanish in {inputs.dtype}: rescale "
            "the features, or give standardise='features'."
        )


def _few_epochs(samples: int, batch_size: int | None) -> int:
    """Return the number of epochs for about 60 steps, from 1 to 8."""
    return min(_MOST_EPOCHS, max(1, round(_STEPS * (batch_size or 100) / samples)))
