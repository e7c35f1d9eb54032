"""Reports: self-contained HTML pages made of text, figures and tables.  Needs the extra `plot`."""

from lifted_bregman.reports.page import Figure, Page, Section, Table, Text

__all__ = ["Figure", "Page", "Section", "Table", "Text"]
