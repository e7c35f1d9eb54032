"""The default solver, one part in each file; most parts are pure functions of tensors.

forward     x_l = σ_l(f_l(x_{l-1}))
signal      the error signal E_l of one term
top_down    the signals of all terms of a graph, from the output down
rule        the formulas of the update of one layer, from inputs A and signals E
moves       the updates of all layers in one step; `lb.optim.Gram` uses them too
sweep       the solver
parallel    messages between ranks that share the layers
reference   a slow step for dense layers on one page, with which the tests compare the fast one
"""

from lifted_bregman.solvers.gram.sweep import GramSweep, GramSweepState

__all__ = ["GramSweep", "GramSweepState"]
