"""The default solver in parts: signal, move, length and schedule are functions of tensors, `sweep` has the solver.

signal     E of a term, from what its readers sent down
rows, move from the rows of a layer's inputs and its signal to a move of its parameters
length     how far each unit moves
schedule   what depends on the number of the step
forward    the forward pass of a lifted problem, and its pull-backs
parallel   every message to other ranks
sweep      `GramSweep`: settings, state, `init` and `step`
reference  the same step for dense layers, slowly and in a page: what the tests compare with
"""

from lifted_bregman.solvers.gram.sweep import GramSweep, GramSweepState

__all__ = ["GramSweep", "GramSweepState"]
