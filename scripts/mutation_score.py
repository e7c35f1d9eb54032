"""The share of mutmut's mutants of activations, losses and problem that the tests kill.

    python scripts/mutation_score.py [--least 85] [--workers 2] [--sample N [--seed 0]] [PATTERN ...]

mutmut changes the source in every place it knows how to and runs the tests that cover the place.  It runs in a copy of
the tree, takes hours on two cores, and the exit code is 1 below the least percentage.  Patterns such as
"lifted_bregman.losses*" restrict it to some mutants.

With --sample, N mutants are drawn at random, without replacement.  The share p of them that is killed is an estimate of
the score, with the standard error √(p(1 - p)/N); the exit code is 1 where it is more than two of those below the least.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import random
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from fnmatch import fnmatch
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
MUTMUT = [sys.executable, "-m", "mutmut"]
NONE = "no mutant has this name"
SKIPPED = 34  # the exit code by which mutmut knows it


def keep_a_sample(
    number: int, seed: int, patterns: Sequence[str], run: Sequence[str], tree: Path, env: Mapping[str, str]
) -> None:
    """Has mutmut make its mutants, and marks all but so many as skipped, which a run without names leaves alone."""
    subprocess.run([*run, NONE], cwd=tree, env=env, check=False, stderr=subprocess.DEVNULL)
    files = {path: json.loads(path.read_text()) for path in sorted((tree / "mutants").rglob("*.meta"))}
    found = sorted(name for entries in files.values() for name in entries["exit_code_by_key"])
    names = [name for name in found if not patterns or any(fnmatch(name, pattern) for pattern in patterns)]
    if not names:
        sys.exit("mutmut made no mutants that fit the patterns")
    chosen = set(random.Random(seed).sample(names, min(number, len(names))))
    print(f"{len(chosen)} of {len(names)} mutants", flush=True)
    for path, entries in files.items():
        codes = entries["exit_code_by_key"]
        path.write_text(
            json.dumps(entries | {"exit_code_by_key": {n: None if n in chosen else SKIPPED for n in codes}})
        )


def main() -> None:
    """Runs mutmut and prints the score."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("patterns", nargs="*", help="mutants to try; all by default")
    parser.add_argument("--least", type=float, default=85.0, metavar="PERCENT")
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--sample", type=int, metavar="N", help="an estimate from so many mutants; all by default")
    parser.add_argument("--seed", type=int, default=0, help="of the sample")
    options = parser.parse_args()
    environment = os.environ | {"OMP_NUM_THREADS": "1", "HYPOTHESIS_PROFILE": "mutation"}
    with tempfile.TemporaryDirectory() as directory:
        tree = Path(directory) / "tree"
        shutil.copytree(
            ROOT, tree, ignore=shutil.ignore_patterns(".venv", ".git", "__pycache__", "out", "mutants", "_build")
        )
        run, chosen = [*MUTMUT, "run", "--max-children", str(options.workers)], options.patterns
        if options.sample is not None:
            keep_a_sample(options.sample, options.seed, options.patterns, run, tree, environment)
            chosen = []
        subprocess.run([*run, *chosen], cwd=tree, env=environment, check=False)
        subprocess.run([*MUTMUT, "export-cicd-stats"], cwd=tree, env=environment, check=True)
        counts = json.loads((tree / "mutants" / "mutmut-cicd-stats.json").read_text())
        survivors = subprocess.run(
            [*MUTMUT, "results"], cwd=tree, env=environment, capture_output=True, text=True, check=False
        )
    print("\n".join(line for line in survivors.stdout.splitlines() if not line.endswith(("not checked", "skipped"))))
    killed = counts["killed"] + counts.get("timeout", 0) + counts.get("segfault", 0)
    tried = killed + counts["survived"] + counts.get("suspicious", 0)
    share = killed / max(tried, 1)
    error = 0.0 if options.sample is None else math.sqrt(share * (1.0 - share) / max(tried, 1))
    sampled = "" if options.sample is None else f", with a standard error of {100.0 * error:.1f} %"
    print(f"{killed} of {tried} mutants killed: {100.0 * share:.1f} %{sampled}")
    sys.exit(0 if tried and 100.0 * (share + 2.0 * error) >= options.least else 1)


if __name__ == "__main__":
    main()
