"""Golden runs: a short float64 run of every solver on a chain, whose numbers a rebuilt core must reproduce.

    python -m tests.golden.runs            compare, and say which runs have the same bits
    python -m tests.golden.runs --write    store the numbers of this tree

The stored numbers are this library's own output.  They prove that a change kept them, and nothing else.
"""

from __future__ import annotations

import hashlib
import json
import sys
from pathlib import Path
from typing import Any

import torch

from lifted_bregman import errors, solvers
from tests import cases
from tests.solvers.problems import NAMES, make

STORED = Path(__file__).with_name("runs.json")
EPOCHS = 4
BATCH = 5


def run_cases() -> dict[str, tuple[solvers.Solver, str]]:
    """Solver and problem by name: each solver on the first chain that it takes, the default solver on all chains."""
    found = {}
    for solver in cases.solver_cases():
        taken = [name for name in NAMES if _takes(solver, name)]
        for name in taken if type(solver) is solvers.GramSweep else taken[:1]:
            found[f"{cases.name(solver)} on {name}"] = (solver, name)
    return found


def record(solver: solvers.Solver, problem: str) -> dict[str, Any]:
    """Objectives and energies by epoch, two projections of the parameters, and the sha256 of their bytes."""
    torch.set_num_threads(1)
    case = make(problem)
    result = solvers.run(case.problem, case.data, solver, epochs=EPOCHS, batch_size=BATCH if solver.minibatch else None)
    parameters = torch.cat([p.detach().reshape(-1) for p in case.problem.model.parameters()])
    directions = torch.randn(2, len(parameters), generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    return {
        "objective": [row["objective"] for row in result.history],
        "energy": [row["energy"] for row in result.history if "energy" in row],
        "projections": (directions @ parameters).tolist(),
        "norm": float(parameters.norm()),
        "sha256": hashlib.sha256(parameters.numpy().tobytes()).hexdigest(),
    }


def _takes(solver: solvers.Solver, problem: str) -> bool:
    try:
        solver.require(make(problem).problem)
    except errors.CompatibilityError:
        return False
    return True


def main() -> None:
    """Writes or compares."""
    found = {name: record(*case) for name, case in run_cases().items()}
    if "--write" in sys.argv:
        STORED.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")
        return
    stored = json.loads(STORED.read_text(encoding="utf-8"))
    for name, run in found.items():
        same = name in stored and stored[name]["sha256"] == run["sha256"]
        print("same bits " if same else "other bits" if name in stored else "new       ", name)


if __name__ == "__main__":
    main()
