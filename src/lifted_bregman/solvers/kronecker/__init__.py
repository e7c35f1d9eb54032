"""`KroneckerSweep` in parts: `rule` has the formulas as functions of tensors, `moves` the step of all layers,
`sweep` the solver.

`reference` has a step for dense layers once more, slowly and in a page: what the tests compare with.
"""

from lifted_bregman.solvers.kronecker.sweep import KroneckerSweep, KroneckerSweepState

__all__ = ["KroneckerSweep", "KroneckerSweepState"]
