"""The order of the gallery: what is wanted first comes first."""

import re
from importlib.util import find_spec
from pathlib import Path

ORDER = (
    "train_a_sequential",
    "residual_network",
    "residual_form",
    "small_gpt",
    "unet_denoiser",
    "unfolded_denoiser",
    "data_loader_augmentation",
    "scikit_learn_pipeline",
    "sparse_codes",
    "invert_a_network",
    "detect_abnormal_samples",
    "save_and_load",
    "export_to_onnx",
    "fine_tune",
    "resume",
    "your_own_loop",
    "your_own_parts",
    "with_lightning",
    "with_accelerate",
    "with_tensorboard",
    "with_mlflow",
    "with_wandb",
)

NEEDS = {
    "export_to_onnx": "onnxruntime",
    "with_lightning": "lightning",
    "with_accelerate": "accelerate",
    "with_tensorboard": "tensorboard",
    "with_mlflow": "mlflow",
    "with_wandb": "wandb",
}
"""The packages of other projects that an example imports: without them its page shows the code, and it is not run."""


def key(name):
    """The place of an example; one that is not listed is an error, so that none is forgotten."""
    return ORDER.index(Path(name).stem)


def not_run():
    """The examples whose packages are not installed."""
    return [name for name, package in NEEDS.items() if find_spec(package) is None]


def executed(skipped):
    """A pattern for the files of all examples but those that are skipped."""
    names = "|".join(map(re.escape, skipped))
    return rf"/(?!(?:{names})\.py$)\w+\.py$" if names else r"\.py$"
