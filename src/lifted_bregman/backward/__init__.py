"""Lifted signals inside autograd, for a training loop that you write."""

from lifted_bregman.backward._rule import ActivationRow
from lifted_bregman.backward.report import BackwardReport, backward_report
from lifted_bregman.backward.switching import lifted_backward, plain_backward

__all__ = ["ActivationRow", "BackwardReport", "backward_report", "lifted_backward", "plain_backward"]
