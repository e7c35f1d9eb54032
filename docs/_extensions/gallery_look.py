"""The look of the gallery's figures: the library's colours on no ground, so that they suit light and dark pages."""

from lifted_bregman.reports.palette import LIGHT

INK = "#767c88"
"""Words and axes: more than 4 to 1 from both papers."""


def style(gallery_conf, name):
    """Set matplotlib's defaults before each example; sphinx-gallery restores its own first."""
    import matplotlib
    from cycler import cycler

    matplotlib.rcParams.update(
        {
            "figure.facecolor": "none",
            "axes.facecolor": "none",
            "savefig.facecolor": "none",
            "savefig.dpi": 160,
            "legend.framealpha": 0.0,
            "legend.edgecolor": "none",
            "text.color": INK,
            "axes.labelcolor": INK,
            "axes.edgecolor": INK,
            "xtick.color": INK,
            "ytick.color": INK,
            "axes.spines.top": False,
            "axes.spines.right": False,
            "axes.prop_cycle": cycler(color=LIGHT.curves),
            "lines.linewidth": 2.0,
            "font.size": 11.0,
            "image.interpolation": "nearest",
        }
    )
