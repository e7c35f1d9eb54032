"""The paper's point on regularisation, on the example of the documentation: what is consistent and what is not."""

from __future__ import annotations

import importlib.util
import math
import re
from itertools import pairwise
from pathlib import Path

import pytest
import torch

DOCS = Path(__file__).parents[2] / "docs"


@pytest.fixture(scope="module")
def example():
    spec = importlib.util.spec_from_file_location("consistency", DOCS / "examples" / "consistency.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    module.found = module.rows()
    return module


def test_variational_regularisation_breaks_consistency_and_iterative_does_not(example):
    variational = [row for row in example.found if row.regularisation == "variational"]
    iterative = [row for row in example.found if row.regularisation == "iterative"]
    assert [row.weight for row in variational] == sorted(row.weight for row in variational)
    gaps = [row.gap for row in variational]
    assert gaps[0] > 0.1 and all(b > 1.5 * a for a, b in pairwise(gaps))
    assert all(row.gap < 1e-6 and row.loss < 1e-10 and row.certificate < 1e-6 for row in iterative)
    assert min(row.zeros for row in iterative) > 0.3  # regularised all the same


def test_the_variational_gap_is_as_large_as_theory_demands(example):
    """At a stationary Θ_1 the gradient is -α sign(W) where W is not zero: ‖d_1‖ >= s (α √nnz - residual) / ‖X‖₂."""
    X, Y = example.data()
    for weight in example.VARIATIONAL:
        problem, variables = example.variational(weight)
        W, b = problem.model[0].weight.detach(), problem.model[0].bias.detach()
        d = torch.tanh(X @ W.T + b) - variables[1]
        residual = problem.certificates(variables, X, Y).parameters[0]
        bound = len(X) * (weight * math.sqrt(int(W.count_nonzero())) - residual)
        assert bound > 0.0
        assert float(d.norm()) >= bound / float(torch.linalg.matrix_norm(X, 2))


def test_the_page_shows_the_numbers_of_the_example(example):
    page = (DOCS / "regularisation.md").read_text(encoding="utf-8")
    printed = re.findall(r"^\| (variational|iterative) \| ([\d.]+) \| (.*?) \| (\d+) % \| (.*?) \|$", page, re.M)
    assert len(printed) == len(example.found)
    for (kind, weight, gap, zeros, loss), row in zip(printed, example.found, strict=True):
        assert (kind, float(weight)) == (row.regularisation, row.weight)
        assert abs(float(zeros) - 100 * row.zeros) <= 2.0
        for shown, value in ((gap, row.gap), (loss, row.loss)):
            if shown == "below 1e-6":
                assert value < 1e-6
            else:
                assert float(shown) == pytest.approx(value, rel=0.01, abs=6e-4)


def test_the_pages_own_lines_run():
    page = (DOCS / "regularisation.md").read_text(encoding="utf-8")
    block, *_ = re.findall(r"```python\n(.*?)```", page, re.S)
    names = {}
    exec(block, names)
    assert abs(names["result"].state.metrics["parameter_sparsity"] - 0.9) < 0.01
