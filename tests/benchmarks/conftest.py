"""The tests import the benchmarks as the scripts import each other: by their names alone."""

import sys
from pathlib import Path

sys.path.append(str(Path(__file__).parents[2] / "benchmarks"))
