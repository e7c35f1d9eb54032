"""Networks that come from proximal algorithms, as ordinary modules that `lift` reads."""

from lifted_bregman.models.unfolded import UnfoldedDenoiser

__all__ = ["UnfoldedDenoiser"]
