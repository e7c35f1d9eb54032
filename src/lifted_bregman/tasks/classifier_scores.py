"""Scores by a classifier's energy for samples unlike those it was trained on; no labels are needed."""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor

from lifted_bregman._no_graph import no_graph
from lifted_bregman.errors import CompatibilityError, SettingError
from lifted_bregman.losses import CrossEntropy
from lifted_bregman.problem import LiftedProblem
from lifted_bregman.problem.energies import sample_energies
from lifted_bregman.tasks._hidden_problem import minimise_hidden
from lifted_bregman.tasks.term_energies import Where, require_where

_ROWS = 1000  # samples whose energies are computed together


@no_graph
def classifier_scores(
    problem: LiftedProblem,
    x: Tensor,
    *,
    score: Literal["free", "label"] = "free",
    at: Where = "forward",
    steps: int = 20,
) -> Tensor:
    """Return a score of each sample, (samples,); higher is less like the classifier's training samples.

        free   -φ*(z_L) = -log Σ_k exp z_Lk: the free energy of :cite:t:`liu2020energy`, here the conjugate of the loss
        label  E(x, y), the energy at the class y that the classifier predicts

    Args:
        problem: of a classifier with `CrossEntropy()`, in evaluation mode, as `lift` made it.
        x: (samples, ...).
        score: "free" or "label".
        at: for "label", the forward pass, where E is the loss of the label, or the minimum over the hidden variables.
        steps: sweeps of `DescentInversion` towards that minimum.

    Example:
        >>> problem, x = lb.lift(nn.Linear(2, 3), loss=lb.CrossEntropy()), torch.randn(10, 2)
        >>> z = problem.network.model(x)
        >>> torch.allclose(lb.tasks.classifier_scores(problem, x), -z.logsumexp(1))
        True
    """
    require_where(at, steps)
    if score not in ("free", "label"):
        raise SettingError(f"score is {score!r}; it must be 'free' or 'label'.")
    if not isinstance(problem.loss, CrossEntropy):
        raise CompatibilityError(
            f"the problem has the loss {problem.loss!r}, but these scores need the cross-entropy of a classifier: lift "
            "it with loss=lb.CrossEntropy()."
        )
    if score == "free" and at == "minimum":
        raise SettingError("at='minimum' is for score='label': the free energy has no label to minimise towards.")
    problem.forward_state(x[:1])  # checks the input, and that the model is in evaluation mode
    return torch.cat([_scores(problem, rows, score, at, steps) for rows in x.split(_ROWS)])


def _scores(problem: LiftedProblem, x: Tensor, score: str, at: Where, steps: int) -> Tensor:
    top = problem.network[problem.depth]
    point = problem.forward_point(x, x)
    z = point.z(problem.depth)
    if score == "free":
        return -top.phi_star(z)
    y = torch.nn.functional.one_hot(z.argmax(1), z.shape[1]).to(z.dtype)
    if at == "forward":
        return top.bregman(y, z)
    return sample_energies(problem, minimise_hidden(problem, x, y, steps))
