"""Detection of abnormal samples: MNIST one class against the rest, tables against PyOD, and Fashion against MNIST."""

from lifted_bregman_lab.detection.results import Detection, Detections, read_detections, write_detections
from lifted_bregman_lab.detection.running import STUDIES, detect, missing_rivals

__all__ = [
    "STUDIES",
    "Detection",
    "Detections",
    "detect",
    "missing_rivals",
    "read_detections",
    "write_detections",
]
