"""`lifted bench denoising`: an unfolded denoiser trained lifted and by back-propagation, at equal processor time."""

from lifted_bregman_lab.denoising.arms import ARMS
from lifted_bregman_lab.denoising.results import ArmRow, DenoisingStudy, read_denoising, write_denoising
from lifted_bregman_lab.denoising.running import StudySettings, run_denoising

__all__ = ["ARMS", "ArmRow", "DenoisingStudy", "StudySettings", "read_denoising", "run_denoising", "write_denoising"]
