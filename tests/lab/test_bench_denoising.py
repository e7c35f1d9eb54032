"""`lifted bench denoising`: patches, PSNR, equal time, files; and that the page in the docs is what is stored."""

from __future__ import annotations

import itertools
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from lifted_bregman import data
from lifted_bregman.errors import CheckpointError, SettingError
from lifted_bregman_lab.denoising import (
    ARMS,
    DenoisingStudy,
    StudySettings,
    read_denoising,
    run_denoising,
    running,
    write_denoising,
)
from lifted_bregman_lab.denoising.arms import rate_share
from lifted_bregman_lab.denoising.page import page
from lifted_bregman_lab.denoising.samples import NOISE, PATCH, Patches, evaluate, psnr
from tests.cli.program import call

DOCS = Path(__file__).parents[2] / "docs"
STORED = DOCS / "figures" / "denoising.json"
TINY = StudySettings(minutes=0.01, layers=2, filters=4, kernel_size=3, batch_size=2)


def pictures(count: int, size: int = 140) -> tuple[Tensor, ...]:
    """Blocks of other brightness in each picture."""
    generator = torch.Generator().manual_seed(3)
    blocks = torch.rand(count, 1, size // 10, size // 10, generator=generator)
    return tuple(blocks.repeat_interleave(10, 2).repeat_interleave(10, 3))


def symmetries(patch: Tensor) -> list[Tensor]:
    turned = [torch.rot90(patch, turns, (1, 2)) for turns in range(4)]
    return turned + [one.flip(2) for one in turned]


def test_a_patch_is_a_piece_of_a_picture_turned_or_mirrored() -> None:
    """In a picture whose pixels all differ, the pixel at the corner says where the patch was cut."""
    whole = torch.arange(50 * 60, dtype=torch.float32).view(1, 50, 60)
    seen = set()
    for noisy, clean in itertools.islice(iter(Patches([whole], 3, seed=1).draw, None), 20):
        assert noisy.shape == clean.shape == (3, 1, PATCH, PATCH)
        for patch in clean:
            row, column = divmod(int(patch.min()), 60)
            original = whole[:, row : row + PATCH, column : column + PATCH]
            matches = [torch.equal(patch, other) for other in symmetries(original)]
            assert matches.count(True) == 1
            seen.add(matches.index(True))
    assert seen == set(range(8))


def test_everyone_with_the_same_seed_gets_the_same_batches_and_new_noise() -> None:
    one, two = Patches(pictures(3), 4, seed=5), Patches(pictures(3), 4, seed=5)
    batches = [one.draw() for _ in range(6)]
    assert all(torch.equal(a, b) for pair in batches for a, b in zip(pair, two.draw(), strict=True))
    noise = torch.stack([noisy - clean for noisy, clean in batches])
    assert abs(float(noise.std()) / NOISE - 1.0) < 0.02 and abs(float(noise.mean())) < 0.002
    assert not torch.equal(noise[0], noise[1])


def test_psnr_is_ten_times_the_logarithm_of_the_mean_squared_error() -> None:
    clean = torch.full((1, 4, 4), 0.5)
    assert psnr(clean + 0.1, clean) == pytest.approx(20.0, abs=1e-4)
    assert psnr(clean + 7.0, clean) == pytest.approx(6.0206, abs=1e-3)  # clipped to 1: an error of ½
    assert evaluate(nn.Identity(), pictures(2))[0] == pytest.approx(20.4, abs=0.5)  # -20 log₁₀(25/255) = 20.17, clipped


def test_the_rate_rises_at_first_and_ends_at_0() -> None:
    assert rate_share(0.0) == pytest.approx(0.01) and rate_share(1.0) == 0.0
    assert rate_share(0.5) == pytest.approx(0.5) and rate_share(0.05) > 0.99


class Clock:
    """Processor time that passes by an 80th of a second with every look at it."""

    def __init__(self) -> None:
        self.now = 0.0

    def process_time(self) -> float:
        self.now += 0.0125
        return self.now


@pytest.fixture
def study(monkeypatch: pytest.MonkeyPatch) -> tuple[DenoisingStudy, dict[str, nn.Module]]:
    monkeypatch.setattr(running, "time", Clock())
    models: dict[str, nn.Module] = {}
    return run_denoising(TINY, pictures(4), pictures(1), pictures(2), keep=models.__setitem__), models


def test_all_arms_get_the_same_time_and_train_the_same_network(
    study: tuple[DenoisingStudy, dict[str, nn.Module]],
) -> None:
    found, models = study
    assert [row.arm for row in found.rows] == list(models) == list(ARMS)
    assert {(row.seconds, row.steps) for row in found.rows} == {(0.6, 48)}
    start = TINY.network()
    assert found.parameters == sum(p.numel() for p in start.parameters()) == 3 * (4 * 9 + 4) + 2
    for row in found.rows:
        assert row.curve[0][0] == 0.0 and row.curve[-1][0] == 0.6 and len(row.curve) == 6
        assert row.curve[0][1] == found.rows[0].curve[0][1]  # before the first step they are one network
        assert row.mean > found.untrained > found.noisy and row.curve[-1][1] > row.curve[0][1]
        moved = [bool((p != q).any()) for p, q in zip(start.parameters(), models[row.arm].parameters(), strict=True)]
        assert all(moved)


def test_the_command_writes_rows_table_and_figure(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(running, "time", Clock())
    monkeypatch.setattr(data, "load_pictures", lambda name, **where: pictures(3))
    words = ["--minutes", "0.005", "--layers", "1", "--filters", "2", "--kernel-size", "3", "--out", str(tmp_path)]
    called = call(capsys, "bench", "denoising", *words)
    assert called.code == 0 and "back-propagation" in called.out and "28.57" in called.out
    found = read_denoising(tmp_path / "denoising.json")
    assert (tmp_path / "denoising.inc").read_text() == page(found) and found.settings["filters"] == 2
    for name in ("denoising.png", "denoising_dark.png"):
        assert (tmp_path / name).read_bytes()[:4] == b"\x89PNG"
    assert call(capsys, "bench", "denoising", "--minutes", "0").code == 2


def test_a_file_holds_the_study(study: tuple[DenoisingStudy, dict[str, nn.Module]], tmp_path: Path) -> None:
    write_denoising(tmp_path / "file", study[0])
    assert page(read_denoising(tmp_path / "file")) == page(study[0])
    (tmp_path / "other").write_text("{}")
    with pytest.raises(CheckpointError, match="other is not what 'lifted bench denoising' writes"):
        read_denoising(tmp_path / "other")
    with pytest.raises(SettingError, match="filters is 0"):
        StudySettings(filters=0)


def test_the_page_shows_the_stored_rows_and_lifted_training_keeps_up() -> None:
    found = read_denoising(STORED)
    assert (DOCS / "figures" / "denoising.inc").read_text() == page(found)
    assert "```{include} figures/denoising.inc\n```" in (DOCS / "denoising.md").read_text()
    rows = {row.arm: row for row in found.rows}
    assert list(rows) == list(ARMS) and all(len(row.psnr) == 68 for row in found.rows)
    assert max(row.seconds for row in found.rows) < 1.01 * min(row.seconds for row in found.rows)
    assert max(rows["lifted backward"].mean, rows["lifted sweep"].mean) >= rows["back-propagation"].mean - 0.05
