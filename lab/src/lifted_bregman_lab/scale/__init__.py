"""What several processes gain: measured with two of them against one, on this machine."""

from lifted_bregman_lab.scale.cases import CASES, QUICK, Case
from lifted_bregman_lab.scale.results import Scale, read_scale, write_scale
from lifted_bregman_lab.scale.running import ScaleSettings, missing_arrivals, run_scale
from lifted_bregman_lab.scale.target import samples_of

__all__ = [
    "CASES",
    "QUICK",
    "Case",
    "Scale",
    "ScaleSettings",
    "missing_arrivals",
    "read_scale",
    "run_scale",
    "samples_of",
    "write_scale",
]
