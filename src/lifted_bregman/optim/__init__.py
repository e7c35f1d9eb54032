"""Optimisers for a training loop of your own."""

from lifted_bregman.optim.gram import Gram

__all__ = ["Gram"]
