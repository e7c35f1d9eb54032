"""What a release holds: one version in every place, and the library alone in sdist and wheel."""

from __future__ import annotations

import hashlib
import importlib.util
import tarfile
import zipfile
from pathlib import Path

import pytest

import lifted_bregman

ROOT = Path(__file__).parents[1]


def _script():
    specification = importlib.util.spec_from_file_location("release", ROOT / "scripts" / "release.py")
    module = importlib.util.module_from_spec(specification)
    specification.loader.exec_module(module)
    return module


RELEASE = _script()


@pytest.fixture(scope="module")
def built(tmp_path_factory):
    """The sdist and the wheel that hatchling makes of this folder, in this process and without a network."""
    pytest.importorskip("hatchling")
    from hatchling.builders.sdist import SdistBuilder
    from hatchling.builders.wheel import WheelBuilder

    folder = tmp_path_factory.mktemp("dist")
    (sdist,) = SdistBuilder(str(ROOT)).build(directory=str(folder), versions=["standard"])
    (wheel,) = WheelBuilder(str(ROOT)).build(directory=str(folder), versions=["standard"])
    return Path(sdist), Path(wheel)


def test_the_version_is_the_same_wherever_it_is_declared():
    assert set(RELEASE.declared_versions().values()) == {lifted_bregman.__version__}


def test_the_day_of_the_release_is_the_same_wherever_it_is_declared():
    (day,) = set(RELEASE.release_dates().values())
    assert day != "none"


def test_the_wheel_holds_every_file_of_the_library_and_nothing_else(built):
    assert RELEASE.wheel_faults(built[1]) == []


def test_the_sdist_holds_the_sources_and_nothing_else(built):
    assert RELEASE.sdist_faults(built[0]) == []


def test_the_wheel_starts_the_command_and_carries_the_version(built):
    with zipfile.ZipFile(built[1]) as archive:
        information = f"lifted_bregman-{lifted_bregman.__version__}.dist-info"
        assert "lifted = lifted_bregman.cli:main" in archive.read(f"{information}/entry_points.txt").decode()
        metadata = archive.read(f"{information}/METADATA").decode()
    assert f"\nVersion: {lifted_bregman.__version__}\n" in metadata
    assert "\nLicense-Expression: MIT\n" in metadata


def test_a_file_too_many_and_a_file_too_few_are_named(built, tmp_path):
    sdist, wheel = built
    with zipfile.ZipFile(wheel) as whole, zipfile.ZipFile(tmp_path / wheel.name, "w") as changed:
        for name in whole.namelist():
            if name != "lifted_bregman/py.typed":
                changed.writestr(name, whole.read(name))
        changed.writestr("tests/test_a.py", "")
    assert RELEASE.wheel_faults(tmp_path / wheel.name) == [
        "lifted_bregman/py.typed is missing",
        "tests/test_a.py does not belong there",
    ]
    with tarfile.open(tmp_path / sdist.name, "w:gz") as changed:
        changed.add(ROOT / "README.md", f"{sdist.name.removesuffix('.tar.gz')}/results/README.md")
    faults = RELEASE.sdist_faults(tmp_path / sdist.name)
    assert "results/README.md does not belong there" in faults and "src/lifted_bregman/py.typed is missing" in faults


def test_a_tree_that_is_not_committed_makes_no_release(monkeypatch, capsys):
    ran = []
    monkeypatch.setattr(RELEASE, "run", lambda *command, **more: ran.append(command))
    monkeypatch.setattr(RELEASE, "require_clean_tree", lambda: RELEASE.require_none(["a.py is not committed"]))
    assert RELEASE.main() == 1
    assert "a.py is not committed" in capsys.readouterr().err and not ran


def test_the_documentation_is_a_folder_in_a_zip_file_and_every_file_has_its_hash(tmp_path, monkeypatch):
    pages, dist = tmp_path / "docs" / "_build" / "html", tmp_path / "dist"
    (pages / "api").mkdir(parents=True)
    dist.mkdir()
    (pages / "index.html").write_text("first")
    (pages / "api" / "losses.html").write_text("second")
    monkeypatch.setattr(RELEASE, "ROOT", tmp_path)
    monkeypatch.setattr(RELEASE, "DIST", dist)
    RELEASE.pack_documentation(Path("lifted_bregman-1.2.3-py3-none-any.whl"))
    packed = dist / "lifted_bregman-1.2.3-docs.zip"
    with zipfile.ZipFile(packed) as archive:
        names = {"lifted_bregman-1.2.3-docs/index.html", "lifted_bregman-1.2.3-docs/api/losses.html"}
        assert set(archive.namelist()) == names
    RELEASE.write_hashes()
    digest = hashlib.sha256(packed.read_bytes()).hexdigest()
    assert (dist / "SHA256SUMS").read_text() == f"{digest}  {packed.name}\n"


def test_places_that_declare_different_versions_are_named(monkeypatch):
    monkeypatch.setattr(RELEASE, "declared_versions", lambda: {"pyproject.toml": "1.0.0", "CITATION.cff": "0.9.0"})
    with pytest.raises(RELEASE.ReleaseError, match=r"CITATION\.cff has 0\.9\.0"):
        RELEASE.require_one_version()


def test_the_software_and_the_paper_can_both_be_cited():
    yaml = pytest.importorskip("yaml")
    software = yaml.safe_load((ROOT / "CITATION.cff").read_text())
    assert software["authors"] == [{"name": "The lifted-bregman authors"}]
    assert (software["title"], software["license"], software["type"]) == ("lifted-bregman", "MIT", "software")
    paper = software["preferred-citation"]
    assert [author["family-names"] for author in paper["authors"]] == ["Wang", "Benning"]
    assert (paper["year"], paper["volume"], paper["issue"]) == (2023, 24, 232)


@pytest.mark.long
def test_the_wheel_works_in_a_new_environment(built, tmp_path):
    """Needs the package index; the environment has the library and what it depends on, and no extra."""
    RELEASE.try_in_new_environment(built[1], tmp_path)
