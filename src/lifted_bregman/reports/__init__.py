"""Reports: self-contained HTML pages of text, figures and tables.  Needs the extra `plot`."""

from lifted_bregman.reports.charts import Chart, Charts, Curve
from lifted_bregman.reports.page import Figure, Finding, Heading, Listing, Page, PageTable, Section, Text
from lifted_bregman.reports.strips import Strip, Strips

__all__ = [
    "Chart",
    "Charts",
    "Curve",
    "Figure",
    "Finding",
    "Heading",
    "Listing",
    "Page",
    "PageTable",
    "Section",
    "Strip",
    "Strips",
    "Text",
]
