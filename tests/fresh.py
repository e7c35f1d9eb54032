"""Scripts in processes of their own that have imported torch and nothing of this library: forks of one that waits.

A new interpreter needs more than a second for torch alone.  The one process is started when it is first needed, once
for a pytest process, and ends with it.
"""

from __future__ import annotations

import atexit
import json
import os
import subprocess
import sys
import tempfile
import traceback
from collections.abc import Mapping
from pathlib import Path

ROOT = Path(__file__).parents[1]
PATIENCE = 300.0  # seconds after which something hangs; never a judgement of speed
_server: subprocess.Popen[str] | None = None


def run(
    script: str, *arguments: object, cwd: Path = ROOT, env: Mapping[str, str] | None = None, check: bool = True
) -> subprocess.CompletedProcess[str]:
    """What `python -c script arguments` would do where torch had been imported; `check` as in `subprocess.run`."""
    global _server
    if _server is None:
        command, pipe = [sys.executable, "-m", "tests.fresh"], subprocess.PIPE
        _server = subprocess.Popen(command, stdin=pipe, stdout=pipe, text=True, cwd=ROOT)
        atexit.register(_close)
    assert _server.stdin is not None and _server.stdout is not None
    with tempfile.TemporaryDirectory() as folder:
        request = {"script": script, "arguments": list(map(str, arguments)), "folder": folder, "cwd": str(cwd)}
        print(json.dumps(request | {"environment": dict(env or os.environ)}), file=_server.stdin, flush=True)
        code = int(_server.stdout.readline())
        said, complained = ((Path(folder) / name).read_text() for name in ("stdout", "stderr"))
    assert code == 0 or not check, complained
    return subprocess.CompletedProcess(["python", "-c", script], code, said, complained)


def _close() -> None:
    assert _server is not None and _server.stdin is not None and _server.stdout is not None
    _server.stdin.close()
    _server.wait(PATIENCE)
    _server.stdout.close()


def _child(request: dict) -> int:
    for descriptor, name in ((1, "stdout"), (2, "stderr")):
        os.dup2(os.open(Path(request["folder"]) / name, os.O_WRONLY | os.O_CREAT), descriptor)
    os.environ.clear()
    os.environ.update(request["environment"])
    os.chdir(request["cwd"])
    sys.argv[:] = ["-c", *request["arguments"]]
    try:
        exec(compile(request["script"], "<string>", "exec"), {"__name__": "__main__"})
    except SystemExit as end:
        return int(end.code or 0)
    except BaseException:
        traceback.print_exc()
        return 1
    return 0


def _serve() -> None:
    import torch  # noqa: F401

    for line in sys.stdin:
        pid = os.fork()
        if not pid:
            code = 1
            try:
                code = _child(json.loads(line))
            finally:
                sys.stdout.flush()
                sys.stderr.flush()
                os._exit(code)
        sys.stdout.write(f"{os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])}\n")
        sys.stdout.flush()


if __name__ == "__main__":
    _serve()
