"""The default solver in parts, each a file of functions of tensors as far as it can be.

forward     x_l = σ_l(f_l(x_{l-1}))
signal      the error signals E_l, and `top_down` their way through a graph
rule        the formulas of a move, from inputs A and signals E
moves       the moves of all layers of a step together, which `lb.optim.Gram` shares
sweep       the solver
parallel    messages between ranks that share the layers
reference   a step for dense layers once more, slowly and in a page: what the tests compare with
"""

from lifted_bregman.solvers.gram.sweep import GramSweep, GramSweepState

__all__ = ["GramSweep", "GramSweepState"]
