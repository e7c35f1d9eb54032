"""The share of mutmut's mutants of activations, losses and problem that the tests kill.

    python scripts/mutation_score.py [--least 85] [--workers 2] [PATTERN ...]

mutmut changes the source in every place it knows how to and runs the tests that cover the place.  It runs in a copy of
the tree, takes hours on two cores, and the exit code is 1 below the least percentage.  Patterns such as
"lifted_bregman.losses*" restrict it to some mutants.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent


def main() -> None:
    """Runs mutmut and prints the score."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("patterns", nargs="*", help="mutants to try; all by default")
    parser.add_argument("--least", type=float, default=85.0, metavar="PERCENT")
    parser.add_argument("--workers", type=int, default=2)
    options = parser.parse_args()
    environment = os.environ | {"OMP_NUM_THREADS": "1", "HYPOTHESIS_PROFILE": "mutation"}
    with tempfile.TemporaryDirectory() as directory:
        tree = Path(directory) / "tree"
        shutil.copytree(
            ROOT, tree, ignore=shutil.ignore_patterns(".venv", ".git", "__pycache__", "out", "mutants", "_build")
        )
        mutmut = [sys.executable, "-m", "mutmut"]
        subprocess.run(
            [*mutmut, "run", "--max-children", str(options.workers), *options.patterns],
            cwd=tree,
            env=environment,
            check=False,
        )
        subprocess.run([*mutmut, "export-cicd-stats"], cwd=tree, env=environment, check=True)
        counts = json.loads((tree / "mutants" / "mutmut-cicd-stats.json").read_text())
        survivors = subprocess.run(
            [*mutmut, "results"], cwd=tree, env=environment, capture_output=True, text=True, check=False
        )
    print(survivors.stdout)
    killed = counts["killed"] + counts.get("timeout", 0) + counts.get("segfault", 0)
    tried = killed + counts["survived"] + counts.get("suspicious", 0)
    score = 100.0 * killed / max(tried, 1)
    print(f"{killed} of {tried} mutants killed: {score:.1f} %")
    sys.exit(0 if score >= options.least else 1)


if __name__ == "__main__":
    main()
