"""Pictures and tables on narrow screens: they keep their size and scroll by themselves."""

import re

from docutils import nodes
from sphinx_gallery.directives import imgsgnode

LONGEST = 16
"""Letters of a number or a name that a cell of a table keeps on one line."""
SENTENCE = 50
"""Letters from which a cell holds a sentence, whose column is never that of a single word."""
NUMBERS = re.compile(r"[\d.,]+ (to|±) [\d.,]+( \([\d.,]+\)|\u00a0[+-])?")
"""A range, or a mean and its deviation with a mark, which stay on one line too."""


def _in_a_box(doctree, kinds, box):
    for picture in list(doctree.findall(lambda node: isinstance(node, kinds))):
        boxed = isinstance(picture.parent, nodes.container) and {"wide", "picture"} & set(picture.parent["classes"])
        if isinstance(picture.parent, nodes.Structural | nodes.container) and not boxed:
            around = nodes.container(classes=[box])
            picture.replace_self(around)
            around += picture


def _keep(app, doctree, docname):
    if docname != "auto_gallery/index":
        _in_a_box(doctree, nodes.image, "wide")
        _in_a_box(doctree, imgsgnode, "picture")
    for cell in doctree.findall(nodes.entry):
        if (len(text := cell.astext()) <= LONGEST and not re.search(r"\s", text)) or NUMBERS.fullmatch(text):
            cell["classes"].append("word")
        elif len(text) >= SENTENCE:
            cell["classes"].append("sentence")
    for printed in doctree.findall(nodes.literal_block):
        if "sphx-glr-script-out" in printed["classes"] and "-----" in printed.astext():
            printed["classes"].append("table")


def setup(app):
    app.connect("doctree-resolved", _keep)
    return {"version": "1", "parallel_read_safe": True, "parallel_write_safe": True}
