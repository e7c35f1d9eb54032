"""Solvers: one algorithm per file, behind one interface, run by one loop."""

from lifted_bregman.solvers import baselines
from lifted_bregman.solvers._admm_blocks import ResidualBalancing
from lifted_bregman.solvers._callbacks import Callback
from lifted_bregman.solvers._meter import Meter
from lifted_bregman.solvers.acceleration import Acceleration, Anderson, HeavyBall, Nesterov, NoAcceleration
from lifted_bregman.solvers.adabreg import AdaBreg
from lifted_bregman.solvers.admm import ADMM
from lifted_bregman.solvers.agreement import Agreement, Stop
from lifted_bregman.solvers.asynchronous_piag import AsynchronousPIAG, AsynchronousState
from lifted_bregman.solvers.asynchronous_teams import AsynchronousTeam, AtRandom, InTurn, Recorded, SimulatedTeam
from lifted_bregman.solvers.batches import Source
from lifted_bregman.solvers.block_solvers import BlockSolution, minimise_block
from lifted_bregman.solvers.bregman_iterations import BregmanIterations
from lifted_bregman.solvers.constrained import Constrained
from lifted_bregman.solvers.coordinate_descent import BregmanCoordinateDescent, CoordinateDescent
from lifted_bregman.solvers.data_ranks import DataRanks
from lifted_bregman.solvers.directions import Direction, LiftedDirection
from lifted_bregman.solvers.gram import GramSweep
from lifted_bregman.solvers.implicit_sgd import Coupling, ImplicitSGD, ParameterUpdate, Space
from lifted_bregman.solvers.inner_steps import Corrected, InnerStep, LayerByLayer, Literal, LoopOrder, Majorised, Sweeps
from lifted_bregman.solvers.interface import Batch, Solver, SolverState
from lifted_bregman.solvers.linbreg import LinBreg
from lifted_bregman.solvers.loop import Run, run
from lifted_bregman.solvers.model_averaging import ImplicitParallel, ModelAveraging, OneProcess, Team
from lifted_bregman.solvers.outcome import Outcome, Result
from lifted_bregman.solvers.piag import PIAG
from lifted_bregman.solvers.pipelined_sweep import PipelinedSweep
from lifted_bregman.solvers.primal_dual import DualityGap, PrimalDual
from lifted_bregman.solvers.proximal_gradient import ProximalGradient
from lifted_bregman.solvers.random_coordinate_descent import RandomCoordinateDescent
from lifted_bregman.solvers.saga import SAG, SAGA
from lifted_bregman.solvers.schedules import (
    Constant,
    CosineDecay,
    Decaying,
    Growing,
    LinearDecay,
    Schedule,
    StepDecay,
)
from lifted_bregman.solvers.sparsity import TargetSparsity, sparse_start
from lifted_bregman.solvers.steps import Backtracking, CurvatureStep, FixedStep, StepRule
from lifted_bregman.solvers.stochastic_admm import StochasticADMM
from lifted_bregman.solvers.stochastic_proximal_gradient import (
    ParametersFirst,
    Simultaneous,
    StochasticProximalGradient,
    UpdateOrder,
    VariablesFirst,
)
from lifted_bregman.solvers.sweeps import BottomUp, Jacobi, OddEven, Permutation, Sweep, TopDown
from lifted_bregman.solvers.targeted import TargetedPenalties

__all__ = [
    "ADMM",
    "PIAG",
    "SAG",
    "SAGA",
    "Acceleration",
    "AdaBreg",
    "Agreement",
    "Anderson",
    "AsynchronousPIAG",
    "AsynchronousState",
    "AsynchronousTeam",
    "AtRandom",
    "Backtracking",
    "Batch",
    "BlockSolution",
    "BottomUp",
    "BregmanCoordinateDescent",
    "BregmanIterations",
    "Callback",
    "Constant",
    "Constrained",
    "CoordinateDescent",
    "Corrected",
    "CosineDecay",
    "Coupling",
    "CurvatureStep",
    "DataRanks",
    "Decaying",
    "Direction",
    "DualityGap",
    "FixedStep",
    "GramSweep",
    "Growing",
    "HeavyBall",
    "ImplicitParallel",
    "ImplicitSGD",
    "InTurn",
    "InnerStep",
    "Jacobi",
    "LayerByLayer",
    "LiftedDirection",
    "LinBreg",
    "LinearDecay",
    "Literal",
    "LoopOrder",
    "Majorised",
    "Meter",
    "ModelAveraging",
    "Nesterov",
    "NoAcceleration",
    "OddEven",
    "OneProcess",
    "Outcome",
    "ParameterUpdate",
    "ParametersFirst",
    "Permutation",
    "PipelinedSweep",
    "PrimalDual",
    "ProximalGradient",
    "RandomCoordinateDescent",
    "Recorded",
    "ResidualBalancing",
    "Result",
    "Run",
    "Schedule",
    "SimulatedTeam",
    "Simultaneous",
    "Solver",
    "SolverState",
    "Source",
    "Space",
    "StepDecay",
    "StepRule",
    "StochasticADMM",
    "StochasticProximalGradient",
    "Stop",
    "Sweep",
    "Sweeps",
    "TargetSparsity",
    "TargetedPenalties",
    "Team",
    "TopDown",
    "UpdateOrder",
    "VariablesFirst",
    "baselines",
    "minimise_block",
    "run",
    "sparse_start",
]
