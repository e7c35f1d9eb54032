"""Optimiser or architecture: the error on new samples at equal training loss, by eight optimisers on three networks."""

from lifted_bregman_lab.study.optimisers import OPTIMISERS, Optimiser
from lifted_bregman_lab.study.problems import ARCHITECTURES, SETS, study_problem
from lifted_bregman_lab.study.results import Crossing, Study, StudyRun, Trial, read_study, write_study
from lifted_bregman_lab.study.running import LEVELS, run_study
from lifted_bregman_lab.study.variance import Effect, explain_variance

__all__ = [
    "ARCHITECTURES",
    "LEVELS",
    "OPTIMISERS",
    "SETS",
    "Crossing",
    "Effect",
    "Optimiser",
    "Study",
    "StudyRun",
    "Trial",
    "explain_variance",
    "read_study",
    "run_study",
    "study_problem",
    "write_study",
]
