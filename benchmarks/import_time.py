"""What `import lifted_bregman` adds to `import torch`, and what `lifted --help` takes.

    python benchmarks/import_time.py [--rounds 15] [--json FILE]

Each round starts a fresh interpreter for each, in alternating order.  Aim: at most 0.3 s more than torch.
"""

from __future__ import annotations

import subprocess
import sys
import time

from _interleaved import arguments, ratios, report, sentence


def start(*command: str) -> float:
    began = time.perf_counter()
    subprocess.run([sys.executable, *command], check=True, stdout=subprocess.DEVNULL)
    return time.perf_counter() - began


def main() -> None:
    given = arguments(__doc__, rounds=15)
    result = ratios(
        lambda: start("-c", "import torch, lifted_bregman"), lambda: start("-c", "import torch"), given.rounds
    )
    added = (result["ours_ms"] - result["other_ms"]) / 1e3
    command_line = ratios(
        lambda: start("-m", "lifted_bregman.cli", "--help"), lambda: start("-c", "import torch"), given.rounds
    )
    print(f"import torch                  {result['other_ms']:.0f} ms")
    print(f"import torch, lifted_bregman  {result['ours_ms']:.0f} ms: {added:.3f} s more (aim: at most 0.3 s)")
    print(sentence(result, "the difference above"))
    print(f"lifted --help                 {command_line['ours_ms']:.0f} ms")
    report(given, result | {"added_seconds": added, "help_ms": command_line["ours_ms"], "limit_seconds": 0.3})


if __name__ == "__main__":
    main()
