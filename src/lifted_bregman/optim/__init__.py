"""Optimisers for a training loop that you write."""

from lifted_bregman.optim.gram import Gram

__all__ = ["Gram"]
