"""Sources: what a docstring names is in the bibliography, and every entry of the bibliography is cited on a page."""

from __future__ import annotations

import re
import unicodedata
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
DOCS, SOURCE = ROOT / "docs", ROOT / "src" / "lifted_bregman"
FIELD = r"^  (\w+) += \{(.*)\},$"
NAMED = re.compile(r"([A-Z][\w'-]+)(?:(?:, | and | et al\.)[\w-]*)* ((?:19|20)\d\d)\b")


def entries():
    """{key: its fields} of references.bib, names without TeX's accents."""
    found = {}
    for key, body in re.findall(r"^@\w+\{(\w+),\n(.*?)^\}", (DOCS / "references.bib").read_text("utf-8"), re.M | re.S):
        found[key] = dict(re.findall(FIELD, body, re.M))
    return found


def surname(entry):
    return re.sub(r"\{\\.\{?(\w)\}?\}", r"\1", entry["author"]).partition(",")[0]


def without_accents(text):
    return "".join(letter for letter in unicodedata.normalize("NFKD", text) if not unicodedata.combining(letter))


def test_every_source_that_a_docstring_names_is_in_the_bibliography():
    known = {(surname(entry), entry["year"]) for entry in entries().values()}
    named = {
        (match[1], match[2], path.name)
        for path in SOURCE.rglob("*.py")
        for match in NAMED.finditer(re.sub(r"\s*\n\s*", " ", without_accents(path.read_text("utf-8"))))
    }
    assert {file for *_, file in named} >= {"saga.py", "piag.py", "fenchel_lifted.py", "lpom.py", "linbreg.py"}
    assert {(name, year, file) for name, year, file in named if (name, year) not in known} == set()


def test_every_entry_of_the_bibliography_is_cited():
    cited = set()
    for page in DOCS.glob("*.md"):
        for keys in re.findall(r"\{cite:[pt]\}`([\w,]+)`", page.read_text("utf-8")):
            cited.update(keys.split(","))
    assert set(entries()) == cited


def test_the_paper_is_cited_with_the_same_data_everywhere():
    yaml = pytest.importorskip("yaml")
    cff = yaml.safe_load((ROOT / "CITATION.cff").read_text("utf-8"))["preferred-citation"]
    paper = entries()["wang2023lifted"]
    assert paper["title"].replace("{", "").replace("}", "") == cff["title"]
    assert paper["author"] == " and ".join(f"{a['family-names']}, {a['given-names']}" for a in cff["authors"])
    assert [paper[name] for name in ("volume", "number", "year")] == [str(cff[n]) for n in ("volume", "issue", "year")]
    assert paper["pages"] == f"{cff['start']}--{cff['end']}"
    (preprint,) = cff["identifiers"]
    assert preprint["value"] == f"10.48550/arXiv.{paper['eprint']}"
    for page in (ROOT / "README.md", DOCS / "references.md"):
        text = page.read_text("utf-8")
        block = text.split("```bibtex\n", 1)[1].split("```", 1)[0]
        assert dict(re.findall(FIELD, block, re.M)) == paper
        assert preprint["value"] in text
