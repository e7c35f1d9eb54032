"""Makes a release in dist/: every check, the sdist, the wheel, the documentation as a zip file, and their SHA-256.

    python scripts/release.py

The tree must be clean.  `make test` runs first.  The wheel is built from the sdist, its contents are compared with the
sources, and it is installed without constraints in a new environment, where `lifted` and a short run are tried.  The
network is needed for the package index only.
"""

from __future__ import annotations

import hashlib
import re
import shutil
import subprocess
import sys
import tarfile
import tempfile
import tomllib
import zipfile
from collections.abc import Iterable
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
DIST = ROOT / "dist"
PACKAGE = "lifted_bregman"
BESIDE_THE_SOURCE = {"CHANGELOG.md", "CITATION.cff", "LICENSE", "PKG-INFO", "README.md", "pyproject.toml", ".gitignore"}
"""What an sdist holds beside src/.  hatchling adds .gitignore, by which it leaves files out, and PKG-INFO."""
METADATA = {"METADATA", "RECORD", "WHEEL", "entry_points.txt", "licenses/LICENSE"}
"""What a wheel holds beside the package, in its .dist-info."""
SMOKE = """
import torch
from torch import nn
import lifted_bregman as lb
X = torch.randn(200, 5)
problem = lb.lift(nn.Sequential(nn.Linear(5, 16), nn.ReLU(), nn.Linear(16, 5)), loss=lb.SquaredError())
history = lb.fit(problem, (X, X), epochs=10).history
assert history[-1]["objective"] < history[0]["objective"], history
print(lb.__version__, lb.__file__)
"""
"""A run in the new environment, which has the library alone: no extras, and not this folder."""


class ReleaseError(Exception):
    """What keeps a release from being made."""


def declared_versions(root: Path = ROOT) -> dict[str, str]:
    """The version by the place that declares it; a release needs the same in all."""
    found = {
        name: str(tomllib.loads((root / name).read_text())["project"]["version"])
        for name in ("pyproject.toml", "lab/pyproject.toml")
    }
    for name, pattern in (
        (f"src/{PACKAGE}/__init__.py", r'^__version__ = "(.+)"$'),
        ("CITATION.cff", r"^version: (.+)$"),
        ("CHANGELOG.md", r"^## \[(.+)\]"),
    ):
        match = re.search(pattern, (root / name).read_text(), re.M)
        found[name] = match[1] if match else "none"
    return found


def release_dates(root: Path = ROOT) -> dict[str, str]:
    """The day of the release, by the place that declares it."""
    patterns = {"CITATION.cff": r'^date-released: "?([\d-]+)"?$', "CHANGELOG.md": r"^## \[.+\] - ([\d-]+)$"}
    found = {name: re.search(pattern, (root / name).read_text(), re.M) for name, pattern in patterns.items()}
    return {name: match[1] if match else "none" for name, match in found.items()}


def package_files(root: Path = ROOT) -> set[str]:
    """The files of the library, from src/; caches of Python are none of them."""
    source = root / "src"
    files = (path.relative_to(source) for path in (source / PACKAGE).rglob("*") if path.is_file())
    return {str(path) for path in files if "__pycache__" not in path.parts}


def wheel_faults(wheel: Path, root: Path = ROOT) -> list[str]:
    """What a wheel lacks or should not hold."""
    with zipfile.ZipFile(wheel) as archive:
        names = set(archive.namelist())
    information = "-".join(wheel.name.split("-")[:2]) + ".dist-info"
    return _faults(names, package_files(root) | {f"{information}/{name}" for name in METADATA})


def sdist_faults(sdist: Path, root: Path = ROOT) -> list[str]:
    """What an sdist lacks or should not hold."""
    folder = sdist.name.removesuffix(".tar.gz")
    with tarfile.open(sdist) as archive:
        names = {member.name.removeprefix(f"{folder}/") for member in archive.getmembers() if member.isfile()}
    return _faults(names, {f"src/{name}" for name in package_files(root)} | BESIDE_THE_SOURCE)


def _faults(names: set[str], expected: set[str]) -> list[str]:
    missing = [f"{name} is missing" for name in sorted(expected - names)]
    return missing + [f"{name} does not belong there" for name in sorted(names - expected)]


def main() -> int:
    """Every step in turn; the first that fails ends the release, and says why."""
    try:
        require_clean_tree()
        require_one_version()
        shutil.rmtree(ROOT / "docs" / "_build", ignore_errors=True)  # pages that are gone would stay
        run("make", "test")
        require_clean_tree()
        wheel = build()
        with tempfile.TemporaryDirectory() as folder:
            try_in_new_environment(wheel, Path(folder))
        pack_documentation(wheel)
        write_hashes()
    except (ReleaseError, subprocess.CalledProcessError) as error:
        print(f"no release: {error}", file=sys.stderr)
        return 1
    print("\n".join(["", "in dist/:", *sorted(path.name for path in DIST.iterdir())]))
    return 0


def run(*command: str | Path, cwd: Path = ROOT) -> None:
    """Runs a command and shows it; CalledProcessError if it fails."""
    print("$", *command, flush=True)
    subprocess.run(command, cwd=cwd, check=True)


def require_clean_tree() -> None:
    """ReleaseError where a file is not committed."""
    changed = subprocess.run(("git", "status", "--porcelain"), cwd=ROOT, check=True, capture_output=True, text=True)
    if changed.stdout:
        raise ReleaseError(f"these files are not committed:\n{changed.stdout}")


def require_one_version() -> None:
    """ReleaseError where places declare different versions or dates."""
    for declared in (declared_versions(), release_dates()):
        if len(set(declared.values())) > 1 or "none" in declared.values():
            raise ReleaseError("; ".join(f"{name} has {value}" for name, value in declared.items()))


def build() -> Path:
    """The sdist and the wheel in dist/, which is emptied first; the path of the wheel."""
    shutil.rmtree(DIST, ignore_errors=True)
    run(sys.executable, "-m", "build", "--outdir", DIST)
    (wheel,), (sdist,) = DIST.glob("*.whl"), DIST.glob("*.tar.gz")
    require_none(f"{sdist.name}: {fault}" for fault in sdist_faults(sdist))
    require_none(f"{wheel.name}: {fault}" for fault in wheel_faults(wheel))
    return wheel


def require_none(faults: Iterable[str]) -> None:
    """ReleaseError with the faults, if there are any."""
    if found := list(faults):
        raise ReleaseError("\n".join(found))


def try_in_new_environment(wheel: Path, folder: Path) -> None:
    """Installs the wheel as a user would, and tries it; then checks CITATION.cff by its schema.

    torch is installed first, in the pinned version, for a plain install may bring GPU packages of several gigabytes.
    """
    run(sys.executable, "-m", "venv", folder / "venv")
    python, lifted = folder / "venv" / "bin" / "python", folder / "venv" / "bin" / "lifted"
    install = (python, "-m", "pip", "--disable-pip-version-check", "install", "-q")
    pinned = re.search(r"^torch==.+$", (ROOT / "constraints.txt").read_text(), re.M)
    run(*install, pinned[0] if pinned else "torch", cwd=folder)
    run(*install, wheel, cwd=folder)
    run(python, "-m", "pip", "check", cwd=folder)
    run(lifted, "demo", "--help", cwd=folder)
    run(lifted, "doctor", cwd=folder)
    run(python, "-c", SMOKE, cwd=folder)
    run(*install, "cffconvert", cwd=folder)
    run(folder / "venv" / "bin" / "cffconvert", "--validate", "-i", ROOT / "CITATION.cff", cwd=folder)


def pack_documentation(wheel: Path) -> None:
    """The pages that `make test` built, as a zip file in dist/ with one folder in it."""
    name = "-".join(wheel.name.split("-")[:2]) + "-docs"
    with zipfile.ZipFile(DIST / f"{name}.zip", "w", zipfile.ZIP_DEFLATED) as archive:
        pages = ROOT / "docs" / "_build" / "html"
        for path in sorted(path for path in pages.rglob("*") if path.is_file()):
            archive.write(path, f"{name}/{path.relative_to(pages)}")


def write_hashes() -> None:
    """SHA256SUMS of all files of the release, for `sha256sum --check`."""
    lines = [f"{hashlib.sha256(path.read_bytes()).hexdigest()}  {path.name}" for path in sorted(DIST.iterdir())]
    (DIST / "SHA256SUMS").write_text("\n".join(lines) + "\n")


if __name__ == "__main__":
    sys.exit(main())
