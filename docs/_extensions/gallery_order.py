"""The order of the gallery: what is wanted first comes first."""

from pathlib import Path

ORDER = (
    "train_a_sequential",
    "residual_network",
    "small_gpt",
    "unet_denoiser",
    "data_loader_augmentation",
    "scikit_learn_pipeline",
    "sparse_codes",
    "invert_a_network",
    "save_and_load",
    "export_to_onnx",
    "fine_tune",
    "resume",
    "your_own_loop",
    "your_own_parts",
)


def key(name):
    """The place of an example; one that is not listed is an error, so that none is forgotten."""
    return ORDER.index(Path(name).stem)
