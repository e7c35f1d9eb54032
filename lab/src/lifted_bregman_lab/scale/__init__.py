"""`lifted bench scale`: the speed-up of two processes over one on this machine."""

from lifted_bregman_lab.scale.cases import CASES, QUICK, Case
from lifted_bregman_lab.scale.results import ScaleStudy, read_scale, write_scale
from lifted_bregman_lab.scale.running import ScaleSettings, missing_arrivals, run_scale
from lifted_bregman_lab.scale.target import samples_of

__all__ = [
    "CASES",
    "QUICK",
    "Case",
    "ScaleSettings",
    "ScaleStudy",
    "missing_arrivals",
    "read_scale",
    "run_scale",
    "samples_of",
    "write_scale",
]
