"""What the report shows besides the claims, and what was tried where a number was not reached."""

from __future__ import annotations

from lifted_bregman.experiments.reproduction.exhibits import Exhibit
from lifted_bregman_paper import report_figures, report_tables

EXHIBITS: tuple[Exhibit, ...] = (
    report_tables.TABLE_1,
    report_tables.TABLE_2,
    report_figures.SPARSE_AUTOENCODER,
    report_figures.DENOISING_1K,
    report_figures.DENOISING_10K,
    report_figures.EQUAL_ITERATIONS,
    report_figures.UNDERCOMPLETE,
    report_figures.THEORY,
)
"""Tables and figures in the order of the report: what was measured first, the theory last."""

NOTES: dict[str, str] = {}
"""What was tried for a claim that was not reproduced, by the name of the claim; whole sentences."""
