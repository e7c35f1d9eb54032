"""Experiments: runs described by plain settings, stored in folders, continued and used from there."""

from lifted_bregman.experiments.run_data import RunData, load_data
from lifted_bregman.experiments.runs import StoredRun, resume, train
from lifted_bregman.experiments.settings import Settings
from lifted_bregman.experiments.settings_file import as_toml, from_entries, read_entries, read_settings, to_entries
from lifted_bregman.experiments.trained import TrainedRun

__all__ = [
    "RunData",
    "Settings",
    "StoredRun",
    "TrainedRun",
    "as_toml",
    "from_entries",
    "load_data",
    "read_entries",
    "read_settings",
    "resume",
    "to_entries",
    "train",
]
