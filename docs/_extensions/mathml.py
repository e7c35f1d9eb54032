"""Formulas as MathML, which browsers draw by themselves: pages with formulas need neither a script nor a network."""

import re

from docutils import nodes
from docutils.utils.math import MathError
from docutils.utils.math.latex2mathml import tex2mathml
from sphinx.util import logging

logger = logging.getLogger(__name__)
NORM = re.compile(r"<mo((?:(?!stretchy)[^>])*)>([‖⟨⟩])</mo>")
"""The signs of norms and inner products do not grow: browsers would draw them as high as the whole formula."""
BAR = re.compile(r"<mo((?:(?!space)[^>])*)>\|</mo>")
"""The bars of an absolute value: browsers would take the second for a relation and set space around it."""
HAT = re.compile(
    r"<munderover>\s*(?P<letter><mi[^>]*>[^<]*</mi>)\s*(?P<index>(?:(?!</?munderover>).)*?)\s*"
    r"(?P<hat><mo[^>]*>[ˆˉ~˙]</mo>)\s*</munderover>",
    re.DOTALL,
)
"""A letter with a hat, or a bar, and an index, which docutils puts below the letter."""


def _mathml(node, as_block):
    try:
        formula = NORM.sub(r'<mo\1 stretchy="false">\2</mo>', tex2mathml(node.astext(), as_block=as_block))
        formula = BAR.sub(r'<mo\1 lspace="0" rspace="0">|</mo>', formula)
        return HAT.sub(r"<msub><mover>\g<letter>\g<hat></mover>\g<index></msub>", formula)
    except MathError as error:
        logger.warning("formula not understood: %s", error, location=node)
        return ""


def visit_math(self, node):
    self.body.append(_mathml(node, as_block=False))
    raise nodes.SkipNode


def visit_math_block(self, node):
    self.body.append(f'<div class="math">{_mathml(node, as_block=True)}</div>\n')
    raise nodes.SkipNode


def setup(app):
    app.add_html_math_renderer("mathml", inline_renderers=(visit_math, None), block_renderers=(visit_math_block, None))
    app.config.html_math_renderer = "mathml"
    return {"version": "1", "parallel_read_safe": True, "parallel_write_safe": True}
