"""Solvers: one algorithm per file, behind one interface, run by one loop."""

from lifted_bregman.solvers._interface import Batch, Solver, SolverState
from lifted_bregman.solvers._loop import run
from lifted_bregman.solvers.acceleration import Anderson, HeavyBall, Nesterov, NoAcceleration
from lifted_bregman.solvers.outcome import Outcome, Result
from lifted_bregman.solvers.proximal_gradient import ProximalGradient
from lifted_bregman.solvers.steps import Backtracking, CurvatureStep, FixedStep
from lifted_bregman.solvers.sweeps import BottomUp, Jacobi, OddEven, Permutation, TopDown

__all__ = [
    "Anderson",
    "Backtracking",
    "Batch",
    "BottomUp",
    "CurvatureStep",
    "FixedStep",
    "HeavyBall",
    "Jacobi",
    "Nesterov",
    "NoAcceleration",
    "OddEven",
    "Outcome",
    "Permutation",
    "ProximalGradient",
    "Result",
    "Solver",
    "SolverState",
    "TopDown",
    "run",
]
