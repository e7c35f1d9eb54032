"""The complete lists that product tests run over.  `test_cases.py` proves that nothing public is missing."""

from __future__ import annotations

import torch

import lifted_bregman as lb
from lifted_bregman import activations as act
from lifted_bregman import solvers

# One entry per activation and per setting that changes its branch structure.
SCALAR_ACTIVATIONS: list[act.Activation] = [
    act.Identity(),
    act.ReLU(),
    act.LeakyReLU(0.1),
    act.LeakyReLU(1.0),
    act.Box(),
    act.Box(0.0, 6.0),
    act.Box(-0.3, 0.7),
    act.SoftThreshold(0.5),
    act.SoftThreshold(0.09),
    act.NonNegativeSoftThreshold(0.3),
    act.Tanh(),
    act.Sigmoid(),
    act.Softsign(),
    act.Arctan(),
    act.ISRU(),
    act.Asinh(),
    act.ELU(1.0),
    act.ELU(0.4),
    act.Softplus(),
]
CUSTOM_ACTIVATIONS: list[act.Activation] = [act.FromScalar(torch.tanh), act.FromScalar(torch.nn.functional.hardsigmoid)]
JOINT_ACTIVATIONS: list[act.Activation] = [
    act.Softmax(),
    act.Sparsemax(),
    act.GroupSoftThreshold(0.7),
    act.BallProjection(1.3),
]
ACTIVATIONS = SCALAR_ACTIVATIONS + CUSTOM_ACTIVATIONS + JOINT_ACTIVATIONS

LOSSES = [lb.SquaredError(), lb.CrossEntropy(), lb.BregmanLoss(act.Tanh()), lb.QuadraticPenalty(act.Tanh())]

PENALTIES = [
    lb.penalties.L1(0.3),
    lb.penalties.SquaredL2(0.7),
    lb.penalties.NonNegative(),
    lb.penalties.GroupL2(0.4),
    lb.penalties.Bounds(-0.2, 0.6),
]
PARAMETER_PENALTIES = [
    *PENALTIES,
    lb.penalties.Nuclear(0.2),
    lb.penalties.TotalVariation(0.2, dims=1),
    lb.penalties.L1(0.1) + lb.penalties.SquaredL2(0.5),
]


def name(case: object) -> str:
    """Readable test ids, equal in every process."""
    if isinstance(case, act.FromScalar):
        return f"FromScalar({case.function.__name__})"
    return repr(case).replace(" ", "")


def domain_points(activation: act.Activation, z: torch.Tensor) -> torch.Tensor:
    """Points of the activation's domain, made from arbitrary z: its image under maps of several scales."""
    return activation.prox(z, 0.3)


def solver_cases() -> list[solvers.Solver]:
    """Every solver, with settings that make progress on small problems."""
    base = solvers.baselines
    return [
        solvers.ProximalGradient(),
        solvers.ProximalGradient(step_rule=solvers.Backtracking(), sweep=solvers.Jacobi()),
        solvers.ProximalGradient(acceleration=solvers.Nesterov(), step_rule=solvers.CurvatureStep(1.0)),
        solvers.ProximalGradient(acceleration=solvers.HeavyBall(0.5), step_rule=solvers.CurvatureStep(1.0)),
        solvers.ProximalGradient(acceleration=solvers.Anderson(3)),
        solvers.CoordinateDescent(tolerance=1e-6, block_iterations=100),
        solvers.BregmanCoordinateDescent(),
        solvers.RandomCoordinateDescent(parts=3, sample_parts=2),
        solvers.ADMM(),
        solvers.StochasticADMM(),
        solvers.PrimalDual(),
        solvers.Constrained(),
        solvers.BregmanIterations(),
        solvers.ImplicitSGD(prox_weight=5.0, inner_steps=3),
        solvers.ImplicitSGD(
            prox_weight=solvers.Growing(5.0),
            inner_steps=2,
            order=solvers.LayerByLayer(),
            reading=solvers.Corrected(solvers.CurvatureStep(1.0, upper=False)),
        ),
        solvers.ImplicitSGD(prox_weight=1.0, inner_steps=2, solver=solvers.ProximalGradient()),
        solvers.ImplicitSGD(prox_weight=5.0, inner_steps=3, parameters=solvers.ParameterUpdate.EXPLICIT),
        solvers.GramSweep(step_size=0.2, total_steps=40),
        solvers.GramSweep(step_size=0.1, weight_decay=0.0),
        solvers.StochasticProximalGradient(step_parameter=0.05),
        solvers.ModelAveraging(workers=2, local_steps=3),
        solvers.ImplicitParallel(workers=2, prox_weight=1.0, local_steps=3),
        solvers.PipelinedSweep(0.05),
        solvers.PIAG(delay_bound=4),
        solvers.AsynchronousPIAG(workers=3, delay_bound=4, updates=9, team=solvers.AtRandom(1)),
        solvers.SAGA(),
        solvers.SAG(),
        solvers.LinBreg(step_size=0.05),
        solvers.LinBreg(step_size=0.05, momentum=0.5, penalties=lb.penalties.L1(1e-3)),
        solvers.AdaBreg(step_size=0.01),
        solvers.TargetedPenalties(solvers.ProximalGradient(), variables={1: solvers.TargetSparsity(0.3)}),
        base.GradientDescent(learning_rate=0.05),
        base.SGD(learning_rate=0.02, momentum=0.5),
        base.Adam(learning_rate=0.01),
        base.AdamW(learning_rate=solvers.CosineDecay(0.01, warm_up=2, steps=1000), clip_norm=0.5),
        base.ImplicitBackprop(prox_weight=1.0, inner_steps=3, learning_rate=0.05),
        base.MACQP(),
        base.ClassicalLifted(),
        base.FenchelLifted(),
        base.LPOM(),
    ]
