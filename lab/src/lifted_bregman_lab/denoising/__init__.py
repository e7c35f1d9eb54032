"""`lifted bench denoising`: an unfolded denoiser trained lifted and by back-propagation, at equal processor time."""

from lifted_bregman_lab.denoising.arms import ARMS
from lifted_bregman_lab.denoising.results import ArmRow, Study, read_study, write_study
from lifted_bregman_lab.denoising.running import StudySettings, run_study

__all__ = ["ARMS", "ArmRow", "Study", "StudySettings", "read_study", "run_study", "write_study"]
