"""Every published number and every stated finding of Section 6, with the rule that judges it.

Values, tolerances and inequalities were fixed before the runs that judge them, but for what `report.DECIDED_LATER`
names.  Numbers have a tolerance, findings are inequalities that must hold on the mean over seeds; each says why.  Where
the paper can be read in several ways the main reading is judged, and the other readings are stored beside it.
"""

from __future__ import annotations

from lifted_bregman_lab.paper.claims import classification, denoising, sparse_autoencoder, undercomplete
from lifted_bregman_lab.reproduction import Claim

CLAIMS: tuple[Claim, ...] = (
    *classification.CLAIMS,
    *sparse_autoencoder.CLAIMS,
    *denoising.CLAIMS,
    *undercomplete.CLAIMS,
)
"""All claims, in the order of the paper."""

__all__ = ["CLAIMS"]
