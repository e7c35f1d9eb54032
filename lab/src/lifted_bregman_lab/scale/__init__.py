"""What several processes gain: measured on this machine with two of them, and by a model of time beyond it."""

from lifted_bregman_lab.scale.analysis import Checked, Gain, Model, calibrated, checks, gains
from lifted_bregman_lab.scale.cases import CASES, QUICK, Case
from lifted_bregman_lab.scale.layouts import SCENES, Best, Scene, best_layouts
from lifted_bregman_lab.scale.model import ComputingCost, Layout, Link, Network, step_seconds
from lifted_bregman_lab.scale.results import Scale, read_scale, write_scale
from lifted_bregman_lab.scale.running import ScaleSettings, missing_arrivals, run_scale
from lifted_bregman_lab.scale.target import samples_of

__all__ = [
    "CASES",
    "QUICK",
    "SCENES",
    "Best",
    "Case",
    "Checked",
    "ComputingCost",
    "Gain",
    "Layout",
    "Link",
    "Model",
    "Network",
    "Scale",
    "ScaleSettings",
    "Scene",
    "best_layouts",
    "calibrated",
    "checks",
    "gains",
    "missing_arrivals",
    "read_scale",
    "run_scale",
    "samples_of",
    "step_seconds",
    "write_scale",
]
