"""The base class of the three estimators: settings, training, continuation, prediction."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, ClassVar

import numpy as np
import torch
from numpy.typing import NDArray
from sklearn.base import BaseEstimator  # type: ignore[import-untyped]
from sklearn.utils import check_random_state  # type: ignore[import-untyped]
from sklearn.utils.validation import check_is_fitted, validate_data  # type: ignore[import-untyped]
from torch import Tensor, nn

from lifted_bregman._arguments import whole
from lifted_bregman._device import resolve_device
from lifted_bregman.activations import Activation, Identity, ReLU
from lifted_bregman.errors import SettingError
from lifted_bregman.estimators import _settings as settings
from lifted_bregman.estimators._training import (
    Continuation,
    TargetScale,
    dense_network,
    report_end,
    seeks_lowest_objective,
    split,
    standardise,
    start_at_mean,
)
from lifted_bregman.losses import BregmanLoss, CrossEntropy, SquaredError
from lifted_bregman.maps.noise import check_noise, insert_noise
from lifted_bregman.penalties import Penalty
from lifted_bregman.problem import LiftedProblem, lift
from lifted_bregman.problem.blocks import hidden_layers, layers
from lifted_bregman.solvers import Batch, Callback, Outcome, Solver
from lifted_bregman.solvers.evaluation import evaluate_network
from lifted_bregman.training.callbacks import EarlyStopping, Progress
from lifted_bregman.training.fit import default_solver, fit

Array = NDArray[Any]

RELU = ReLU()
_ROWS = 4096  # samples in one forward pass, to bound the memory of a prediction


class LiftedEstimator(BaseEstimator):  # type: ignore[misc]
    """A dense network with scikit-learn's interface; its subclasses prepare inputs and targets and read the outputs."""

    default_loss: ClassVar[type[SquaredError | CrossEntropy]]

    model_: nn.Sequential
    out_activation_: Activation
    n_iter_: int
    history_: list[dict[str, float]]
    loss_curve_: list[float]
    loss_: float
    outcome_: Outcome
    message_: str
    _seed: int
    _left: dict[str, Any] | None
    _target_scale: TargetScale | None

    def __init__(
        self,
        hidden: int | Sequence[int] = (100,),
        *,
        activation: Activation | str = RELU,
        loss: BregmanLoss | None = None,
        solver: Solver[Any] | None = None,
        epochs: int = 100,
        batch_size: int | None = None,
        weights: float | Sequence[float] | None = None,
        parameter_penalty: Penalty | None = None,
        dropout: float = 0.0,
        input_noise: float = 0.0,
        tol: float | None = None,
        n_iter_no_change: int = 10,
        early_stopping: bool | str = "auto",
        validation_fraction: float = 0.1,
        warm_start: bool = False,
        dtype: Any = None,
        device: str | torch.device | None = None,
        verbose: int = 0,
        callbacks: Sequence[Callback] = (),
        random_state: Any = None,
    ) -> None:
        self.hidden = hidden
        self.activation = activation
        self.loss = loss
        self.solver = solver
        self.epochs = epochs
        self.batch_size = batch_size
        self.weights = weights
        self.parameter_penalty = parameter_penalty
        self.dropout = dropout
        self.input_noise = input_noise
        self.tol = tol
        self.n_iter_no_change = n_iter_no_change
        self.early_stopping = early_stopping
        self.validation_fraction = validation_fraction
        self.warm_start = warm_start
        self.dtype = dtype
        self.device = device
        self.verbose = verbose
        self.callbacks = callbacks
        self.random_state = random_state

    def __sklearn_is_fitted__(self) -> bool:
        return hasattr(self, "model_")

    # The parts of the lifted problem

    def _hidden_activations(self) -> list[Activation]:
        """Return σ_1 .. σ_{L-1}."""
        return [settings.activation(self.activation)] * len(settings.widths(self.hidden))

    def _penalties(self, depth: int) -> dict[int, Penalty]:
        """Return the penalties R_l on the variables of a network of L = depth layers."""
        return {}

    def _loss(self) -> BregmanLoss:
        return self.default_loss() if self.loss is None else self.loss

    def _problem(self, model: nn.Sequential) -> LiftedProblem:
        penalty, depth = self.parameter_penalty, (len(model) + 1) // 2
        return lift(
            insert_noise(model, dropout=self.dropout, input_noise=self.input_noise),  # shares the modules of the model
            loss=self._loss(),
            weights=self.weights,
            penalties=self._penalties(depth),
            parameter_penalties=None if penalty is None else dict.fromkeys(layers(depth), penalty),
        )

    # Training

    def _continues(self, incremental: bool = False) -> bool:
        """Whether training continues with the fitted network."""
        return hasattr(self, "model_") and (incremental or bool(self.warm_start))

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags.sparse = True
        return tags

    def _training_data(self, X: Any, y: Any = "no_validation", *, continues: bool, **checks: Any) -> Any:
        """Return X, or X and y, after scikit-learn's checks; a sparse X becomes a dense array."""
        found = self._validated(X, y, continues=continues, **checks)
        samples = found[0] if isinstance(found, tuple) else found
        settings.require_memory(samples)
        return (settings.dense(samples), found[1]) if isinstance(found, tuple) else settings.dense(samples)

    def _validated(self, X: Any, y: Any = "no_validation", *, continues: bool, **checks: Any) -> Any:
        """Return X, or X and y, after scikit-learn's checks; sparse matrices become CSR."""
        settings.refuse_masked(X, "X")
        settings.refuse_masked(y, "y")
        dtype = self._model_dtype() if continues else settings.float_types(self.dtype)
        if not continues:
            self.__dict__.pop("model_", None)  # a fit that fails leaves no model of earlier data
        return validate_data(
            self, X, y, reset=not continues, accept_sparse="csr", dtype=dtype, order="C", force_writeable=True, **checks
        )

    def _train(
        self,
        X: Array,
        Y: Array,
        outputs: int,
        *,
        continues: bool,
        incremental: bool = False,
        sample_weight: Array | None = None,
        labels: Array | None = None,
    ) -> dict[str, float]:
        """Train a new network, or continue with the fitted one; return its metrics on the samples."""
        solver = default_solver() if self.solver is None else settings.solver(self.solver)
        if solver.ends_with_run and (continues or incremental):
            raise SettingError(
                f"a schedule of {solver!r} ends with the run, but this run is one of several: give the schedule the "
                "number "
                "of all steps, steps=, or use fit with warm_start=False."
            )
        continuation = Continuation(solver, self._left if continues else None, ends=not incremental)
        if incremental:  # the number of calls to come is unknown
            solver = solver.planned(math.inf, epochs=0)
        # Settings.
        epochs = whole(self.epochs, "epochs")
        batch_size = None if self.batch_size is None else whole(self.batch_size, "batch_size")
        holds_out = settings.holds_out(self.early_stopping, len(X)) and not incremental
        fraction = settings.fraction(self.validation_fraction) if holds_out else 0.0
        stopper = None if incremental else self._stopper(solver, holds_out)
        progress = [Progress(line_seconds=0.0)] if settings.verbose(self.verbose) else []
        device = resolve_device(self.device)
        check_noise(self.dropout, self.input_noise)
        # The network, new or fitted, and its lifted problem.
        if continues:
            seed, model, history = self._seed, self.model_, self.history_
        else:
            seed = int(check_random_state(self.random_state).randint(np.iinfo(np.int32).max))
            widths = (X.shape[1], *settings.widths(self.hidden), outputs)
            model = dense_network(widths, self._hidden_activations(), torch.from_numpy(X).dtype, seed).to(device)
            history = []
        problem = self._problem(model)
        if continues:
            self._require_unchanged(problem, device)
        inputs, targets = self._inputs(torch.from_numpy(X), seed, continuation.epochs), torch.from_numpy(Y)
        # Training and held-out samples.
        w = None if sample_weight is None else torch.from_numpy(sample_weight)
        held_out = w_held_out = None
        if holds_out:
            train, other = split(len(X), fraction, labels, seed)
            held_out = inputs[other].to(device), targets[other]
            w_held_out = None if w is None else w[other].to(device)
            inputs, targets, w = inputs[train], targets[train], None if w is None else w[train]
        # Targets (y - mean) / deviation, with mean and deviation of the training targets.
        scale = self._target_scale if continues else self._find_target_scale(problem, targets, w)
        if scale is None and not continues and targets.is_floating_point() and problem.loss.activation == Identity():
            start_at_mean(model, targets, w)
        if held_out is not None:
            held_out = held_out[0], standardise(held_out[1], scale, inputs.dtype).to(device)
        targets = standardise(targets, scale, inputs.dtype)
        inputs, targets, w = inputs.to(device), targets.to(device), None if w is None else w.to(device)
        # Training.
        result = fit(
            problem,
            (inputs, targets),
            solver,
            epochs=continuation.epochs + (1 if incremental else epochs),
            batch_size=batch_size,
            seed=seed,
            validation=held_out,
            sample_weights=w,
            validation_weights=w_held_out,
            callbacks=[continuation, *([] if stopper is None else [stopper]), *self.callbacks, *progress],
        )
        # The solver's state does not belong to parameters of an earlier epoch.
        put_back = stopper is not None and stopper.restore_best and stopper.waited > 0
        if put_back or result.outcome in (Outcome.DIVERGED, Outcome.INTERRUPTED):
            continuation.forget_solver()
        if continues:
            self._left = continuation.left
        report_end(result)
        # Metrics of the final parameters, without noise.
        with problem.network.evaluating():
            reached = evaluate_network(problem, Batch.whole(problem, inputs, targets, w), classify=False)
        self.model_ = model
        self.out_activation_ = problem.loss.activation
        self.n_iter_ = continuation.epochs
        self.history_ = [*history, *result.history]
        self.loss_curve_ = [row["objective"] for row in self.history_]
        self.loss_ = reached["objective"]
        self.outcome_, self.message_ = result.outcome, result.message
        self._seed, self._left, self._target_scale = seed, continuation.left, scale
        return reached

    def _find_target_scale(self, problem: LiftedProblem, Y: Tensor, weights: Tensor | None) -> TargetScale | None:
        """Return mean and deviation by which training standardises the targets; None if it does not."""
        return None

    def _require_unchanged(self, problem: LiftedProblem, device: torch.device) -> None:
        """Raise an error unless the fitted network has the layers and the device of the settings."""
        linear = [module for module in problem.model.children() if isinstance(module, nn.Linear)]
        activations = [problem.network[layer].activation for layer in hidden_layers(problem.depth)]
        has = [module.out_features for module in linear[:-1]], activations, linear[0].weight.device
        wanted = list(settings.widths(self.hidden)), self._hidden_activations(), device
        for name, before, now in zip(("hidden layers of", "activations", "device"), has, wanted, strict=True):
            if before != now:
                raise SettingError(
                    f"training continues with {name} {before}, but {now} {'was' if name == 'device' else 'were'} "
                    "given: "
                    "use warm_start=False, or a new estimator."
                )

    def _inputs(self, X: Tensor, seed: int, epochs: int) -> Tensor:
        """Return the training inputs."""
        return X

    def _stopper(self, solver: Solver[Any], holds_out: bool) -> EarlyStopping | None:
        """Return the callback that ends a run which no longer improves.

        It restores the parameters of the best epoch, unless no samples are held out and the lowest objective is not
        the solver's aim.
        """
        tol, patience = settings.tolerance(self.tol), whole(self.n_iter_no_change, "n_iter_no_change")
        if holds_out:
            return EarlyStopping("validation", patience, tol or 0.0)
        if tol is None:
            return None
        return EarlyStopping("objective", patience, tol, restore_best=seeks_lowest_objective(solver))

    # Prediction

    def _model_dtype(self) -> Any:
        return np.float32 if self.model_[0].weight.dtype == torch.float32 else np.float64

    def _checked(self, X: Any) -> Any:
        """Return X, checked against the fitted network: an array, or a sparse matrix as CSR."""
        check_is_fitted(self)
        return self._validated(X, continues=True)

    def _forward(self, module: nn.Module, X: Any) -> Tensor:
        """Return the module's outputs on the CPU; samples are moved and made dense `_ROWS` at a time."""
        device = self.model_.get_parameter("0.weight").device
        parts = (settings.dense(X[first : first + _ROWS]) for first in range(0, X.shape[0], _ROWS))
        with torch.no_grad():
            return torch.cat([module(torch.from_numpy(rows).to(device)).cpu() for rows in parts])
