"""Sphinx settings."""

import contextlib
import importlib
import logging as python_logging
import re
import sys
import typing
import warnings
from importlib.metadata import version as installed_version
from pathlib import Path
from types import ModuleType

from sphinx.util import logging

import lifted_bregman
from lifted_bregman.experiments import Settings

logger = logging.getLogger(__name__)

sys.path.insert(0, str(Path(__file__).parent / "_extensions"))

project = "lifted-bregman"
author = "The lifted-bregman authors"
project_copyright = "2026, The lifted-bregman authors"
version = release = installed_version("lifted-bregman")
language = "en-GB"

extensions = [
    "myst_parser",
    "sphinx.ext.autodoc",
    "sphinx.ext.napoleon",
    "sphinx_gallery.gen_gallery",
    "sphinxcontrib.bibtex",
    "mathml",
    "narrow",
]
myst_enable_extensions = ["dollarmath", "deflist"]
myst_heading_anchors = 3
bibtex_bibfiles = ["references.bib"]
exclude_patterns = ["_build", "gallery"]

html_theme = "furo"
html_title = "lifted-bregman"
html_static_path = ["_static"]
html_css_files = ["maths.css", "gallery.css", "look.css"]
html_copy_source = False
html_show_search_summary = False  # the search would fetch pages, which browsers forbid in the file system

autodoc_member_order = "bysource"
autodoc_inherit_docstrings = False  # a method is described once, where it is declared
autodoc_typehints = "signature"
autodoc_typehints_format = "short"
python_use_unqualified_type_names = True
napoleon_numpy_docstring = False

# Every example is run when the pages are built, and one that fails fails the build.  Those of tools that are not
# installed are named here, and their pages show the code alone.
from gallery_order import NEEDS, executed, not_run  # noqa: E402

for skipped in not_run():
    print(f"gallery: {skipped} is shown and not run, for {NEEDS[skipped]} is not installed.", file=sys.stderr)
sphinx_gallery_conf = {
    "examples_dirs": "gallery",
    "gallery_dirs": "auto_gallery",
    "filename_pattern": executed(not_run()),
    "within_subsection_order": "gallery_order.key",
    "abort_on_example_error": True,
    "capture_repr": (),  # what an example prints, and nothing else
    "download_all_examples": False,
    "notebook_extensions": set(),
    "show_signature": False,
    "write_computation_times": False,
    "thumbnail_size": (640, 300),
    "reset_modules": ("matplotlib", "gallery_look.style"),
    "remove_config_comments": True,
    "min_reported_time": 3600,  # it would only tell how busy the machine was
}
# The theme's colours turn on the log of every package, and some have much to say.  Two set their level when imported.
for package in ("lightning.pytorch", "mlflow"):
    with contextlib.suppress(ImportError):
        importlib.import_module(package)
for talkative in ("onnx_ir", "onnxscript", "torch.onnx", "lightning.pytorch", "mlflow", "accelerate", "tensorboard"):
    python_logging.getLogger(talkative).setLevel(python_logging.ERROR)
warnings.filterwarnings("ignore", ".*LeafSpec.* is deprecated", FutureWarning)  # which torch's exporter itself uses

# Names that belong to other projects, whose inventories are not fetched: the documentation is built without a network.
nitpick_ignore_regex = [
    (r"py:.*", r"(torch|nn|np|numpy|pd|pandas|collections|contextlib|typing|pathlib)\..*"),
    (r"py:class", r"Tensor|Path|Console|Regularisers|LayerTensors|InputLike|(dict|list|tuple)\[.*"),
    (r"py:class", r"lifted_bregman\.data\..*(Archive|NpmPackage|Package|FileInfo)"),  # of interest to its registry
    (r"py:class", r"lifted_bregman\.(maps\.sites\.Site|graph\.gates\.Gate)"),  # of interest to maps and graphs
    (r"py:class", r"lifted_bregman\.solvers\..*\.(S|Key|BatchMemory|BlockMoves|ParameterSteps|Round)"),
    (r"py:class", r"lifted_bregman\.solvers\..*\.(TableState|UnitBlock)"),  # for solvers only
    (r"py:class", r"lifted_bregman\.solvers\.divergence\.ObjectiveReference"),  # for estimators
    (r"py:class", r"lifted_bregman\.tasks\.inversion_solver\.S"),  # of interest to its solvers
    (r"py:class", r"lifted_bregman_lab\.stored\.T"),  # the type of results
    (r"py:class", r"lifted_bregman\.backward\.switching\.Model"),  # the type of the model that is given and returned
]


def _as_restructured_text(app, what, name, obj, options, lines):
    """Docstrings are written as plain text; this gives them the markup that they mean.

    An indented block is a formula or a table, shown as it is.  A paragraph of lines `name  what it is` describes
    arguments.  Single backticks are code, and * and | belong to formulas.  The example at the end stays as it is.
    """
    end = lines.index("Example:") if "Example:" in lines else len(lines)
    example = lines[end:]
    del lines[end:]
    if what in ("attribute", "property") and lines:
        lines[:1] = lines[0].split(" ", 1)  # or napoleon takes what comes before a colon in the first line for a type
    text, literal, start_of_paragraph, above = [], False, True, ""
    for line in lines:
        indented = line.startswith("    ")
        if literal and line and not indented:
            literal = False
        if not literal and indented and start_of_paragraph and not above.startswith((" ", "- ", "* ", ":")):
            text += ["::", ""]
            literal = True
        if start_of_paragraph:
            argument = re.match(r"(\w+) {2,}(\S.*)$", line)
        else:
            argument = re.match(r"(\w+) +(\S.*)$", line) if above.startswith(":param") else None
        if literal or not line:
            text.append(line)
        elif argument and what != "module":
            line = f":param {argument[1]}: {_inline(argument[2])}"
            text.append(line)
        elif above.startswith(":param") and line.startswith("  "):
            text.append("    " + _inline(line.strip()))
            line = above
        else:
            text.append(_inline(line))
        start_of_paragraph = not line
        above = line or above
    lines[:] = text + example


def _inline(line):
    pieces = re.split(r"(``[^`]+``|:[a-z:]+:`[^`]+`|`[^`]+`)", line)
    for place, piece in enumerate(pieces):
        if place % 2 == 0:
            pieces[place] = re.sub(r"(?<!\\)([*|])", r"\\\1", piece)
        elif piece.startswith("`") and not piece.startswith("``"):
            pieces[place] = f"`{piece}`"
    return "".join(pieces)


def _skip_what_scikit_learn_adds(app, what, name, obj, skip, options):
    """`set_fit_request` and the like, which every estimator has and scikit-learn describes."""
    return True if re.fullmatch(r"set_\w+_request", name) else None


def _nothing_public_is_missing(app, env):
    """Every name that the library exports has an entry in the reference."""
    documented = {name.rpartition(".")[2] for name in env.get_domain("py").objects}
    for name in lifted_bregman.__all__:
        exported = getattr(lifted_bregman, name)
        for public in getattr(exported, "__all__", []) if isinstance(exported, ModuleType) else [name]:
            if public not in documented:
                logger.warning("%s is exported and not documented: add it to a page of docs/api", public)


def _show_plain_types(kind):
    """The reference shows `int` for a setting whose type is `Annotated[int, Field(ge=1)]`."""
    kind(data="digits")  # constructs its checks, of the types with ranges
    hints = typing.get_type_hints(kind)
    kind.__annotations__ = hints
    kind.__init__.__annotations__ = {**hints, "return": None}


def setup(app):
    _show_plain_types(Settings)
    app.connect("env-check-consistency", _nothing_public_is_missing)
    app.connect("autodoc-process-docstring", _as_restructured_text, priority=100)
    app.connect("autodoc-skip-member", _skip_what_scikit_learn_adds)
