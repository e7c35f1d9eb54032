"""Networks derived from proximal algorithms, as ordinary modules that `lift` can read."""

from lifted_bregman.models.unfolded import UnfoldedDenoiser

__all__ = ["UnfoldedDenoiser"]
